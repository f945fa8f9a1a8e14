"""A run folder being written: every chunk of steps is logged, and stopping loses next to nothing.

run.json       what is run, on what, and how far it got
history.json   the scores after every finished task
log.jsonl      one line per chunk of steps; "seconds" is the training time of the run so far
state/         a checkpoint, from which the run goes on as if it had never stopped
.lock          held while a process writes here
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from funcl.disk import locked, replace_file, writing
from funcl.errors import FunclError
from funcl.evaluate.history import History, read_json
from funcl.experiments.circumstances import circumstances
from funcl.report.runs import SCHEMA
from funcl.train.checkpoint import MANIFEST
from funcl.train.run import Runner, Snapshot

ADVICE = "make room or choose another folder with --out; what was saved before is untouched"
CHECKPOINT_SECONDS = 30.0  # within a task; after every task there is one anyway


def run_in_folder(
    runner: Runner,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    about: Mapping[str, Any] | None = None,
    watch: Callable[[Snapshot], object] = lambda snapshot: None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Snapshot | None:
    """Run to the end and return the last snapshot, or None where `stop` asked for an earlier end.

    `about` is added to run.json ("command", "preset", "published"). `watch` sees every snapshot,
    the one to begin with included. With `resume` a run that the folder holds goes on; without
    it, such a folder is refused.
    """
    folder = Path(folder)
    busy = f"Another process is writing to {folder}: wait for it, or choose another with --out."
    with locked(folder, busy, ADVICE):
        writer = Writer(runner, folder, dict(about or {}))
        first = snapshot = writer.begin(resume)
        watch(first)
        kept_at = time.monotonic()
        for snapshot in runner.advance(first):
            writer.record(snapshot)
            stopping = stop()
            due = time.monotonic() - kept_at > checkpoint_seconds
            if snapshot.report is None or stopping or due:
                runner.save(snapshot, writer.state)
                kept_at = time.monotonic()
            watch(snapshot)
            if stopping and snapshot.stage < len(runner.stages):
                return None
        writer.finish(snapshot)
        return snapshot


def description(runner: Runner) -> dict[str, Any]:
    """All that has to be the same for a run to go on."""
    engine, blank = runner.engine, runner.blank
    return {
        "sequence": blank.sequence,
        "method": blank.method,
        "variant": blank.variant,
        "heads": blank.heads,
        "scenario": blank.scenario,
        "split": blank.split,
        "tasks": blank.tasks,
        "settings": blank.settings,
        "evaluate": runner.evaluate,
        "seeds": blank.seeds,
        "vary": list(engine.seeds.vary),
        "data_seed": blank.data_seed,
        "precision": engine.training.precision,
    }


class Writer:
    """The files of one run."""

    def __init__(self, runner: Runner, folder: Path, about: dict[str, Any]):
        self.runner, self.folder, self.about = runner, folder, about
        self.description = description(runner)
        self.info, self.log, self.state = (
            folder / "run.json",
            folder / "log.jsonl",
            folder / "state",
        )

    def begin(self, resume: bool) -> Snapshot:
        """Start, or go on with what the folder holds."""
        if self.info.is_file():
            self._check_same(resume)
            if (self.state / MANIFEST).is_file():
                snapshot = self.runner.load(self.state)
                self._cut_log(snapshot.history.seconds["train"])
                self._write_info(snapshot.history, "running")
                return snapshot
        elif any(path.name != ".lock" for path in self.folder.iterdir()):
            raise FunclError(
                f"{self.folder} holds other files and no run: name an empty or new folder by --out."
            )
        snapshot = self.runner.start()
        self._write_info(snapshot.history, "running")
        self._write(self.log, b"")
        return snapshot

    def record(self, snapshot: Snapshot) -> None:
        """Log a chunk of steps, or write the scores after a task."""
        report = snapshot.report
        if report is None:
            snapshot.history.save(self.folder / "history.json")
            return
        line = {
            "task": snapshot.stage + 1,
            "phase": report.phase,
            "step": report.step,
            "steps": report.steps,
            "loss": _plain(report.loss),
            "penalty": _plain(report.penalty),
            "accuracy": _plain(report.accuracy),
            "seconds": snapshot.history.seconds["train"],
        }
        with writing(self.log, ADVICE), self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def finish(self, snapshot: Snapshot) -> None:
        """Mark the run as done."""
        snapshot.history.save(self.folder / "history.json")
        self._write_info(snapshot.history, "done")

    def _check_same(self, resume: bool) -> None:
        if not resume:
            raise FunclError(
                f"{self.folder} already holds a run: go on with it by --resume, or write "
                "to another folder with --out."
            )
        stored = read_json(self.info, "run", SCHEMA)
        wanted = json.loads(json.dumps(self.description))
        changes = list(differences({key: stored.get(key) for key in wanted}, wanted))
        if changes:
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise FunclError(
                f"The run in {self.folder} has other settings: {', '.join(changes[:3])}{more}; "
                "resume it with its own, or write to another folder with --out."
            )
        self.about = {key: stored.get(key) for key in ("command", "preset")} | self.about

    def _cut_log(self, seconds: float) -> None:
        """Drop what was logged after the checkpoint; it will be logged again."""
        with writing(self.log, ADVICE):
            lines = self.log.read_bytes().splitlines(keepends=True) if self.log.is_file() else []
        kept = [line for line in lines if _logged_at(line) <= seconds]
        self._write(self.log, b"".join(kept))

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
            "seconds": {**history.seconds, "total": sum(history.seconds.values())},
            "diverged": {str(seed): where for seed, where in history.diverged.items()},
            "status": status,
        }
        self._write(self.info, json.dumps(info, indent=1).encode())

    def _write(self, path: Path, data: bytes) -> None:
        with writing(path, ADVICE):
            replace_file(path, data)


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Name every value that differs between two nested descriptions.

    >>> list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}))
    ['a.b (1 there, 3 here)']
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*new, *(key for key in old if key not in new)]:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield f"{where} ({json.dumps(old)} there, {json.dumps(new)} here)"


def _logged_at(line: bytes) -> float:
    try:
        return json.loads(line)["seconds"]
    except (ValueError, KeyError, TypeError):
        return float("inf")  # half a line, left by a process that was killed


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
