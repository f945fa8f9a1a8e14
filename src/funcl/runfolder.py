"""A run folder being written: every chunk of steps is logged, and stopping loses next to nothing.

    run.json       what is run, on what, and how far it got
    history.json   the scores after every finished task
    log.jsonl      one line per chunk of steps; "seconds" is the training time of the run so far
    state/         a checkpoint, from which the run goes on bit by bit as if it had never stopped
    .lock          held while a process writes here
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from funcl.config import to_plain
from funcl.errors import FunclError
from funcl.evaluate.history import SCORES, History, read_json
from funcl.report.runs import SCHEMA
from funcl.train import checkpoint
from funcl.train.engine import Position
from funcl.train.run import Runner, Snapshot

try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are not kept apart there
    fcntl = None

CHECKPOINT_SECONDS = 30.0  # within a task; after every task there is one anyway
TENSORS = (*SCORES, "bins")


def run_in_folder(
    runner: Runner,
    folder: str | Path,
    *,
    resume: bool = False,
    about: Mapping[str, Any] | None = None,
    watch: Callable[[Snapshot], object] = lambda snapshot: None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> History | None:
    """Run to the end and return the history, or None where `stop` asked for an earlier end.

    `about` is added to run.json; `watch` sees every snapshot, the one to begin with included. With
    `resume` a run that the folder holds goes on; without it, such a folder is refused.
    """
    folder = Path(folder)
    with _held(folder):
        writer = Writer(runner, folder, dict(about or {}), checkpoint_seconds)
        snapshot = writer.resumed() if writer.holds_run(resume) else writer.started()
        watch(snapshot)
        for snapshot in runner.advance(snapshot):
            writer.take(snapshot)
            watch(snapshot)
            if stop() and not finished(runner, snapshot):
                writer.keep(snapshot)
                return None
        return writer.finish(snapshot)


def finished(runner: Runner, snapshot: Snapshot) -> bool:
    """Whether all stages are done."""
    return snapshot.stage == len(runner.stages)


def description(runner: Runner) -> dict[str, Any]:
    """What has to be the same for a run to go on."""
    engine, blank = runner.engine, runner.blank
    return {
        "sequence": blank.sequence,
        "method": blank.method,
        "variant": blank.variant,
        "heads": blank.heads,
        "scenario": blank.scenario,
        "split": blank.split,
        "tasks": blank.tasks,
        "settings": {
            "network": to_plain(runner.problem.network),
            "method": to_plain(engine.method),
            "training": to_plain(engine.training),
        },
        "evaluate": runner.evaluate,
        "seeds": blank.seeds,
        "vary": list(engine.seeds.vary),
        "data_seed": blank.data_seed,
        "precision": engine.training.precision,
    }


class Writer:
    """What is written of one run, and in which order, so that no interruption leaves a broken folder."""

    def __init__(
        self, runner: Runner, folder: Path, about: dict[str, Any], checkpoint_seconds: float
    ):
        self.runner, self.folder, self.about = runner, folder, about
        self.checkpoint_seconds = checkpoint_seconds
        self.description = description(runner)
        self.log, self.state = folder / "log.jsonl", folder / "state"
        self.kept_at = time.monotonic()
        self.began, self.before = time.perf_counter(), 0.0

    def holds_run(self, resume: bool) -> bool:
        """Whether to go on with what is here; refuse what is not ours, or not asked for."""
        path = self.folder / "run.json"
        if not path.is_file():
            return False
        if not resume:
            raise FunclError(
                f"{self.folder} already holds a run: go on with it by --resume, or write to another "
                "folder with --out."
            )
        stored = read_json(path, "run", SCHEMA)
        wanted = json.loads(json.dumps(self.description))
        changes = list(differences({key: stored.get(key) for key in wanted}, wanted))
        if changes:
            raise FunclError(
                f"The run in {self.folder} has other settings ({'; '.join(changes[:3])}"
                f"{', and more' if len(changes) > 3 else ''}): repeat its command "
                f"({stored.get('command') or 'see run.json'}), or write to another folder with --out."
            )
        self.about = {"command": stored.get("command")} | self.about
        return (self.state / checkpoint.MANIFEST).is_file()

    def started(self) -> Snapshot:
        """Begin a run in an empty folder."""
        snapshot = self.runner.start()
        self._write_info(snapshot.history, "running")
        with writing(self.log):
            self.log.write_bytes(b"")
        return snapshot

    def resumed(self) -> Snapshot:
        """Go on from the checkpoint; what was logged after it will be logged again."""
        runner, payload = self.runner, checkpoint.load_manifest(self.state)
        stage = payload["stage"]
        data = runner.data(min(stage, len(runner.stages) - 1))
        templates = dict(zip(("learned", "reference"), runner.engine.templates(data), strict=True))
        if not payload["begun"]:
            del templates["reference"]
        scores = {name: getattr(runner.blank, name) for name in TENSORS}
        arrays = checkpoint.load_arrays(self.state, {**templates, "scores": scores})
        history = replace(
            runner.blank,
            **arrays["scores"],
            seconds=payload["seconds"],
            diverged={int(seed): where for seed, where in payload["diverged"].items()},
        )
        with writing(self.log), self.log.open("a+b") as file:
            file.truncate(payload["log_bytes"])
        self.before = payload["total_seconds"]
        restored = {name: runner.engine.restored(arrays[name]) for name in templates}
        return Snapshot(
            restored["learned"],
            stage,
            Position(*payload["position"]),
            restored.get("reference"),
            history,
        )

    def take(self, snapshot: Snapshot) -> None:
        """Log a chunk; keep the state after every task, and within a task every so often."""
        report = snapshot.report
        if report is not None:
            line = {
                "task": snapshot.stage + 1,
                "phase": report.phase,
                "step": report.step,
                "steps": report.steps,
                "loss": _plain(report.loss),
                "penalty": _plain(report.penalty),
                "accuracy": _plain(report.accuracy),
                "seconds": round(snapshot.history.seconds["train"], 3),
            }
            with writing(self.log), self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        elif self.runner.evaluate != "none":
            self._history(snapshot.history).save(self.folder / "history.json")
        if report is None or time.monotonic() - self.kept_at > self.checkpoint_seconds:
            self.keep(snapshot)

    def keep(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; the one before it stays until this one is whole."""
        history, kept = snapshot.history, self.runner.engine.kept
        arrays: dict[str, Any] = {
            "learned": kept(snapshot.learned),
            "scores": {name: getattr(history, name) for name in TENSORS},
        }
        if snapshot.begun:
            arrays["reference"] = kept(snapshot.reference)
        payload = {
            "kind": "run",
            "stage": snapshot.stage,
            "position": list(snapshot.position),
            "begun": snapshot.begun,
            "seconds": history.seconds,
            "diverged": {str(seed): where for seed, where in history.diverged.items()},
            "log_bytes": self.log.stat().st_size,
            "total_seconds": self._total_seconds(),
        }
        checkpoint.save(self.state, arrays, payload)
        self.kept_at = time.monotonic()

    def finish(self, snapshot: Snapshot) -> History:
        """Mark the run as done."""
        history = self._history(snapshot.history)
        history.save(self.folder / "history.json")
        self._write_info(history, "done")
        return history

    def _history(self, history: History) -> History:
        return replace(history, settings=self.description["settings"])

    def _write_info(self, history: History, status: str) -> None:
        info = {
            "schema": SCHEMA,
            **self.description,
            "preset": False,
            "published": [],
            "command": None,
            **self.about,
            **circumstances(),
            "peak_memory": self.runner.engine.peak_bytes or None,
            "seconds": {**history.seconds, "total": self._total_seconds()},
            "diverged": {str(seed): where for seed, where in history.diverged.items()},
            "status": status,
        }
        path = self.folder / "run.json"
        with writing(path):
            checkpoint.replace_file(path, json.dumps(info, indent=1).encode())

    def _total_seconds(self) -> float:
        return self.before + time.perf_counter() - self.began


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise FunclError(
            f"{path} cannot be written ({error.strerror or error}): make room or permit it, or "
            "choose another folder with --out; what was saved before is untouched."
        ) from error


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    with lock:
        if fcntl:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FunclError(
                    f"Another process is writing to {folder}: wait until it has ended, or choose "
                    "another folder with --out."
                ) from None
            except OSError:
                pass  # some network folders know no locks; a run there is no worse than without
        yield


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Name every setting that differs between two nested descriptions.

    >>> list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}))
    ['a.b is 1 there and 3 here']
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield f"{where} is {json.dumps(old)} there and {json.dumps(new)} here"


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
