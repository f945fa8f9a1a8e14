"""Run a method over a whole sequence: train each stage, evaluate, go on.

`Runner.advance` is a generator of snapshots. Each one is a complete account of the run so far, so
stopping, saving and going on are the same thing as taking the next snapshot later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from funcl.config import to_plain
from funcl.errors import FunclError, unknown
from funcl.evaluate.history import History
from funcl.networks.network import Network
from funcl.protocol import Head, Method, TaskData
from funcl.tasks.sequence import TaskSequence
from funcl.train import checkpoint
from funcl.train.data import Shelf, head_table, problem_of, stage_data, test_data, test_pieces
from funcl.train.engine import EVALUATION_ROWS, Engine, Learned, Position, Report
from funcl.train.training import Seeds, Training

EVALUATE = ("all", "last", "none")


@dataclass(frozen=True)
class Snapshot:
    """A run so far. `reference` belongs to a stage that has begun; between stages it is None."""

    learned: Learned
    stage: int
    position: Position
    reference: Any
    history: History
    report: Report | None = None  # of the chunk that led here
    begun: bool = False  # whether the stage has been prepared


class Runner:
    """One method on one sequence."""

    def __init__(
        self,
        sequence: TaskSequence,
        network: Network | None,
        method: Method,
        training: Training,
        seeds: Seeds,
        evaluate: str = "all",
        variant: str | None = None,
    ):
        if evaluate not in EVALUATE:
            raise unknown("evaluation rule", evaluate, EVALUATE)
        if sequence.heads not in method.scenarios:
            raise FunclError(
                f"{method.name} cannot learn {sequence.name} with {sequence.heads} heads; "
                f"it can with {' or '.join(method.scenarios)}."
            )
        if sequence.data_seed not in (None, seeds.data_seed):
            raise FunclError(
                f"{sequence.name} was made with data_seed={sequence.data_seed} and the run has "
                f"data_seed={seeds.data_seed}: give both the same, so that results can name it."
            )
        self.sequence, self.evaluate = sequence, evaluate
        self.stages = method.stages(len(sequence))
        self.problem = problem_of(
            sequence, self.stages, network, training.batch_size, training.dtype
        )
        method.check(self.problem, {task.name: len(task.y_train) for task in sequence})
        self.engine = Engine(self.problem, method, training, seeds)
        self.shelf = Shelf()
        self._data: dict[int, TaskData] = {}
        self.pieces = test_pieces(sequence, EVALUATION_ROWS)
        self.blank = History.blank(
            tasks=[task.name for task in sequence],
            seeds=list(seeds.numbers),
            sequence=sequence.name,
            method=method.name,
            variant=variant,
            heads=sequence.heads,
            scenario=sequence.scenario,
            split=sequence.split,
            data_seed=seeds.data_seed,
            settings=to_plain({"network": network, "method": method, "training": training}),
            seconds={"train": 0.0, "compile": 0.0, "evaluate": 0.0},
        )

    def start(self) -> Snapshot:
        """The snapshot before any task."""
        timer = Timer(self.engine, self.blank)
        learned = jax.block_until_ready(self.engine.start())
        return Snapshot(learned, 0, Position(), None, timer.history("train"))

    def data(self, stage: int) -> TaskData:
        """The training data of a stage, on the device."""
        if stage not in self._data:
            self._data[stage] = stage_data(
                self.sequence, self.stages, stage, self.problem, self.shelf
            )
        return self._data[stage]

    def steps(self, stage: int) -> list[int]:
        """How many optimiser steps each phase of a stage takes."""
        size = sum(len(self.sequence[task].y_train) for task in self.stages[stage])
        return [self.engine.steps(phase, stage, size) for phase in self.engine.phases]

    def advance(self, snapshot: Snapshot) -> Iterator[Snapshot]:
        """Train to the end, one snapshot per chunk of steps and one per finished stage.

        A run whose seeds have all diverged has nothing left to learn, and ends.
        """
        while snapshot.stage < len(self.stages):
            if len(snapshot.history.diverged) == len(snapshot.history.seeds):
                yield Snapshot(
                    snapshot.learned, len(self.stages), Position(), None, snapshot.history
                )
                return
            task = self.data(snapshot.stage)
            timer = Timer(self.engine, snapshot.history)
            if not snapshot.begun:
                learned, reference = self.engine.begin(snapshot.learned, task)
                snapshot = replace(snapshot, learned=learned, reference=reference, begun=True)
            chunks = self.engine.train(
                snapshot.learned, snapshot.reference, task, snapshot.position
            )
            for learned, position, report in chunks:
                history = self.name_diverged(
                    timer.history("train"), snapshot.stage, learned, f"before step {report.step:,}"
                )
                snapshot = replace(
                    snapshot, learned=learned, position=position, report=report, history=history
                )
                yield snapshot
                if len(history.diverged) == len(history.seeds):
                    break
                timer = Timer(self.engine, history)
            yield (snapshot := self.finish(snapshot, task))

    def finish(self, snapshot: Snapshot, task: TaskData) -> Snapshot:
        """Consolidate a trained stage and evaluate."""
        timer = Timer(self.engine, snapshot.history)
        learned = self.engine.end(snapshot.learned, snapshot.reference, task)
        jax.block_until_ready(learned)
        history = self.name_diverged(
            timer.history("train"), snapshot.stage, learned, "as it was finished"
        )
        done = snapshot.stage + 1
        if self.evaluate == "all" or (self.evaluate == "last" and done == len(self.stages)):
            timer = Timer(self.engine, history)
            seen = [t for stage in self.stages[:done] for t in stage]
            scores = {on: self.score(learned, on) for on in seen}
            history = timer.history("evaluate").with_row(max(seen), scores)
        return Snapshot(learned, done, Position(), None, history)

    def save(self, snapshot: Snapshot, folder: str | os.PathLike[str]) -> None:
        """Write a snapshot to a checkpoint folder."""
        arrays = {
            "learned": self.engine.kept(snapshot.learned),
            "reference": self.engine.kept(snapshot.reference),
        }
        payload = {
            "kind": "run",
            "stage": snapshot.stage,
            "position": list(snapshot.position),
            "begun": snapshot.begun,
            "history": snapshot.history.to_plain(),
        }
        checkpoint.save(folder, arrays, payload)

    def load(self, folder: str | os.PathLike[str]) -> Snapshot:
        """Read a snapshot; going on from it gives what an unbroken run gives."""
        payload = checkpoint.load_manifest(folder)
        if payload.get("kind") != "run":
            raise FunclError(f"{folder} holds a {payload.get('kind')}, not a run.")
        stage = payload["stage"]
        learned, reference = self.engine.templates(self.data(min(stage, len(self.stages) - 1)))
        templates = {"learned": learned, "reference": reference if payload["begun"] else None}
        arrays = checkpoint.load_arrays(folder, templates)
        return Snapshot(
            self.engine.restored(arrays["learned"]),
            stage,
            Position(*payload["position"]),
            self.engine.restored(arrays["reference"]),
            History.from_plain(payload["history"], str(folder)),
            begun=payload["begun"],
        )

    def score(self, learned: Learned, on: int) -> Any:
        """Scores of one task's test part."""
        test = test_data(self.sequence[on], self.pieces, self.shelf)
        stage = next(i for i, tasks in enumerate(self.stages) if on in tasks)
        return self.engine.score(learned, test, stage, self.head(on))

    def head(self, on: int) -> Head:
        """The head of a task of the sequence."""
        columns = self.sequence[on].columns
        table = head_table([columns], 1, self.problem.head_width)
        return Head(table.columns[0], table.valid[0])

    def name_diverged(self, history: History, stage: int, learned: Learned, when: str) -> History:
        """Note the seeds that have stopped since the last look."""
        numbers = np.asarray(history.seeds)
        alive = np.asarray(learned.alive)[: len(numbers)]
        new = {int(n) for n in numbers[~alive]} - set(history.diverged)
        if not new:
            return history
        task = self.sequence[self.stages[stage][0]].name
        where = f"task {stage + 1} ({task}), {when}"
        return replace(history, diverged={**history.diverged, **dict.fromkeys(new, where)})


class Timer:
    """Time since its making, split into compiling and all else."""

    def __init__(self, engine: Engine, history: History):
        self.engine, self.before = engine, history
        self.compiled, self.began = engine.compile_seconds, time.perf_counter()

    def history(self, kind: str) -> History:
        """The history with the time since then added under `kind`."""
        compiling = self.engine.compile_seconds - self.compiled
        spent = time.perf_counter() - self.began - compiling
        seconds = dict(self.before.seconds)
        seconds[kind] += spent
        seconds["compile"] += compiling
        return replace(self.before, seconds=seconds)


def run(runner: Runner) -> Snapshot:
    """Run to the end, and return the last snapshot."""
    *_, last = runner.advance(runner.start())
    return last
