"""What has been computed once: finished cells, and the states after each task.

A cell is one sequence, method, variant and seed; its history lies under a hash of all its settings.
A state is what training has changed by the end of a task. It lies under a hash of the settings that
the tasks so far have read, so runs which share their first tasks share the work. What goes into
these hashes is decided in identity.py.

A state is kept when its task is trained and before it is finished, because finishing (choosing a
coreset, say) reads settings of the next task. What begins and finishes a task is repeated on the
way back; it costs little. Within a task, the state is kept where a run has to stop.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from funcl.disk import cache_folder, writing
from funcl.errors import FunclError
from funcl.evaluate.history import SCORES, History
from funcl.experiments.identity import state_key
from funcl.train import checkpoint
from funcl.train.engine import Learned, Position
from funcl.train.run import Runner, Snapshot, Timer

LIMIT = 2 * 2**30  # bytes of states; the least recently used go first


class Store:
    """A folder of finished cells and of states."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int = LIMIT):
        folder = Path(folder) if folder is not None else cache_folder("store")
        self.cells, self.states, self.limit = folder / "cells", folder / "states", limit

    # ------------------------------------------------------------------ finished cells

    def cell(self, key: str, seed: int) -> History | None:
        """The history of a finished cell; None where there is none that can be read."""
        try:
            return History.load(self.cells / key / f"{seed}.json")
        except FunclError:
            return None

    def seeds(self, key: str) -> list[int]:
        """The seeds of a cell that are finished."""
        return sorted(int(path.stem) for path in (self.cells / key).glob("*.json"))

    def keep_cells(self, key: str, history: History) -> None:
        """Keep a history, seed by seed, with each seed's share of the seconds."""
        with writing(self.cells, "choose another folder with --store"):
            (self.cells / key).mkdir(parents=True, exist_ok=True)
        for one in split(history):
            one.save(self.cells / key / f"{one.seeds[0]}.json")

    # ------------------------------------------------------------------ states after a task

    def advance(
        self, runner: Runner, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Snapshot]:
        """Like `Runner.advance` from the start, but over kept states and keeping new ones.

        Asked after every chunk of steps, `stop` ends the run; the next one goes on from there.
        """
        snapshot = runner.start()
        while snapshot.stage < len(runner.stages):
            before = snapshot.history.seconds
            trained = Position(trained_phases(runner, snapshot.stage))
            for snapshot in runner.advance(self._restored(runner, snapshot)):  # noqa: B020
                if snapshot.report is None:
                    break
                stopping = stop()
                if stopping or snapshot.position == trained:
                    self._keep(runner, snapshot, before)
                yield snapshot
                if stopping:
                    return
            yield snapshot

    def _keep(self, runner: Runner, snapshot: Snapshot, before: dict[str, float]) -> None:
        payload = {
            "position": list(snapshot.position),
            "seconds": {k: snapshot.history.seconds[k] - before[k] for k in ("train", "compile")},
            "diverged": {str(seed): where for seed, where in snapshot.history.diverged.items()},
        }
        folder = self.states / state_key(runner, snapshot.stage)
        arrays = {"trained": trained_part(runner, runner.engine.kept(snapshot.learned))}
        checkpoint.save(folder, arrays, payload)
        self._make_room({state_key(runner, stage) for stage in range(len(runner.stages))})

    def _restored(self, runner: Runner, snapshot: Snapshot) -> Snapshot:
        """The kept state of this stage in the place of the given one, which has yet to begin it."""
        folder = self.states / state_key(runner, snapshot.stage)
        if not (folder / checkpoint.MANIFEST).is_file():
            return snapshot
        timer = Timer(runner.engine, snapshot.history)
        learned, reference = runner.engine.begin(snapshot.learned, runner.data(snapshot.stage))
        try:
            payload = checkpoint.load_manifest(folder)
            template = {"trained": trained_part(runner, runner.engine.kept(learned))}
            arrays = checkpoint.load_arrays(folder, template)
        except FunclError:  # damaged: as good as not there
            shutil.rmtree(folder, ignore_errors=True)
            return snapshot
        os.utime(folder)
        trainable, running, optimiser, alive, entered = runner.engine.restored(arrays["trained"])
        state = learned.state._replace(trainable=trainable, running=running)
        if enters(runner):
            state = state._replace(carried=entered)
        history = timer.history("train")
        spent = {k: v + payload["seconds"].get(k, 0.0) for k, v in history.seconds.items()}
        diverged = {int(seed): where for seed, where in payload["diverged"].items()}
        return Snapshot(
            Learned(state, optimiser, alive),
            snapshot.stage,
            Position(*payload["position"]),
            reference,
            replace(history, seconds=spent, diverged=history.diverged | diverged),
            begun=True,
        )

    def _make_room(self, needed: set[str]) -> None:
        """Remove the states that were used least recently until the others fit.

        Those of the run in hand stay: it could not go on from its last one without its first.
        """
        found = []
        for folder in self.states.iterdir():
            if folder.name in needed:
                continue
            with suppress(OSError):  # another process may be removing it too
                size = sum(file.stat().st_size for file in folder.iterdir())
                found.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in found)
        for _, size, folder in sorted(found):
            if total <= self.limit:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


def trained_part(runner: Runner, learned: Learned) -> tuple[Any, ...]:
    """What steps of training change, and what is carried where a phase may change it."""
    state = learned.state
    carried = state.carried if enters(runner) else None
    return state.trainable, state.running, learned.optimiser, learned.alive, carried


def enters(runner: Runner) -> bool:
    """Whether a phase may change the state as it begins."""
    return any(phase.enter is not None for phase in runner.engine.phases)


def trained_phases(runner: Runner, stage: int) -> int:
    """The number of phases up to the last one that trains."""
    return max((n + 1 for n, steps in enumerate(runner.steps(stage)) if steps), default=0)


def split(history: History) -> list[History]:
    """One history per seed, each with its share of the seconds."""
    count = len(history.seeds)
    share = {kind: spent / count for kind, spent in history.seconds.items()}
    return [
        replace(
            history,
            seeds=[seed],
            seconds=share,
            diverged={s: where for s, where in history.diverged.items() if s == seed},
            **{name: getattr(history, name)[n : n + 1] for name in per_seed(history)},
        )
        for n, seed in enumerate(history.seeds)
    ]


def per_seed(history: History) -> list[str]:
    """The names of the tensors that have a seed axis."""
    alone = [] if history.independent_accuracy is None else ["independent_accuracy"]
    return [*SCORES, "bins", *alone]


def joined(histories: list[History]) -> History:
    """The inverse of `split`."""
    kinds = histories[0].seconds
    return replace(
        histories[0],
        seeds=[seed for history in histories for seed in history.seeds],
        seconds={kind: sum(h.seconds[kind] for h in histories) for kind in kinds},
        diverged={seed: where for h in histories for seed, where in h.diverged.items()},
        **{
            name: np.concatenate([getattr(h, name) for h in histories])
            for name in per_seed(histories[0])
        },
    )
