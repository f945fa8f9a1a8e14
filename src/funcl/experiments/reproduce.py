"""Measure the paper's tables and figures: plan cells, run them over a store, write results."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import numpy as np

from funcl import tasks
from funcl.errors import FunclError, unknown
from funcl.experiments import presets
from funcl.experiments.circumstances import circumstances, command
from funcl.experiments.identity import cell_key
from funcl.experiments.page import sequence_table, write_results_page
from funcl.experiments.results import result, write_result
from funcl.experiments.store import Store, joined
from funcl.networks.network import Network
from funcl.protocol import Method
from funcl.report.tables import Table
from funcl.tasks.sequence import TaskSequence
from funcl.train.run import Runner, Snapshot
from funcl.train.training import SOURCES, Seeds, Training

PLAIN_VARIANT = "none"


@dataclass(frozen=True)
class Case:
    """One row and column of a table: what is run."""

    sequence: str
    method: str
    variant: str | None
    network: Network
    method_value: Method
    training: Training

    @classmethod
    def preset(cls, sequence: str, method: str, variant: str | None = None) -> Case:
        """The run of a preset."""
        return cls(sequence, method, variant, *presets.preset(sequence, method, variant))

    @property
    def name(self) -> str:
        """How it is called on screen: sequence, method and variant."""
        return " ".join(filter(None, [self.sequence, self.method, self.variant]))

    @property
    def is_preset(self) -> bool:
        """Whether its settings are those of the preset, unchanged."""
        return self == Case.preset(self.sequence, self.method, self.variant)


@dataclass(frozen=True)
class Event:
    """Something that a display may show while cells are measured.

    `kind` is "started" (a group of seeds begins), "progress" (`snapshot` after a chunk or a task),
    "done" (the group's cells are kept) or "paused" (the budget ends; the state is kept).
    """

    kind: str
    case: Case
    seeds: tuple[int, ...]
    runner: Runner
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Status:
    """How far a run is: its seeds that are finished and left, and an estimate for those left."""

    case: Case
    done: tuple[int, ...]
    left: tuple[int, ...]
    seconds_left: float | None  # None: nothing of it has been timed


@dataclass(frozen=True)
class Outcome:
    """What `reproduce` has done: status of every run, tables, and the files written."""

    name: str
    status: tuple[Status, ...]
    tables: tuple[Table, ...]
    files: tuple[Path, ...]

    @property
    def complete(self) -> bool:
        """Whether every cell asked for is finished."""
        return not any(status.left for status in self.status)


def reproduce(
    name: str,
    only: str | None = None,
    method: str | None = None,
    variant: str | None = None,
    *,
    seeds: int | Sequence[int] = 10,
    budget: float | None = None,
    store: Store | str | Path | None = None,
    results: str | Path = "results",
    docs: str | Path | None = "docs",
    on_event: Callable[[Event], object] = lambda event: None,
    together: int | None = None,
    data_dir: str | Path | None = None,
) -> Outcome:
    """Measure a table or figure by name, as far as `budget` seconds go, over what is kept already.

    `only` is one sequence, `method` and `variant` ("none": the plain one) narrow the rows.
    `together` is how many seeds go through one program: all of them on an accelerator, one on a
    CPU, unless said otherwise. Results go to `results`; the page and the figures to `docs`.
    """
    store = store if isinstance(store, Store) else Store(store)
    measurer = Measurer(seeds, store, Path(results), on_event, together, data_dir)
    cases = plan(name, only, method, variant)
    deadline = Deadline(budget)
    status = measurer.measure(cases, deadline)
    written = [*measurer.written]
    if docs is not None:
        figure = definition(name).get("figure")
        if figure and status[0].done:
            written += measurer.draw(status[0], Path(docs) / "figures" / figure, deadline)
        written.append(write_results_page(results, Path(docs) / "results.md"))
    return Outcome(name, tuple(status), tuple(measured_tables(name, results, only)), tuple(written))


def names() -> list[str]:
    """What can be reproduced."""
    return list(_definitions())


def definition(name: str) -> dict[str, Any]:
    """A table or figure as data: title, corner, columns and rows."""
    if name not in _definitions():
        raise unknown("table or figure", name, names())
    return _definitions()[name]


def plan(
    name: str, only: str | None = None, method: str | None = None, variant: str | None = None
) -> list[Case]:
    """The runs of a table or figure that there are presets for, narrowed down."""
    table = definition(name)
    sequences = [column["sequence"] for column in table["columns"]]
    if only is not None and only not in sequences:
        raise unknown(f"sequence in {name}", only, sequences)
    cases = []
    for sequence in [only] if only else sequences:
        for row in table["rows"]:
            known = row["method"] in presets.methods(sequence)
            choice = [None, *presets.variants(sequence, row["method"])] if known else []
            if row.get("variant") in choice:
                cases.append(Case.preset(sequence, row["method"], row.get("variant")))
    methods = {case.method for case in cases}
    if method is not None and method not in methods:
        raise unknown(f"method that can be measured in {name}", method, methods)
    cases = [case for case in cases if method in (None, case.method)]
    variants = {case.variant or PLAIN_VARIANT for case in cases}
    if variant is not None and variant not in variants:
        raise unknown(f"variant in {name}", variant, variants)
    return [case for case in cases if variant in (None, case.variant or PLAIN_VARIANT)]


def measured_tables(name: str, results: str | Path, only: str | None = None) -> list[Table]:
    """Measured beside published: one table for each sequence of a table or figure."""
    table = definition(name)
    rows = [(row["label"], row["method"], row.get("variant")) for row in table["rows"]]
    found = [
        sequence_table(f"{column['label']}: {table['title']}", column["sequence"], rows, results)
        for column in table["columns"]
        if only in (None, column["sequence"])
    ]
    return [measured for measured in found if measured.rows]


@dataclass
class Measurer:
    """Measures runs on this machine: the seeds asked for, where things are kept, who watches."""

    seeds: int | Sequence[int]
    store: Store
    results: Path
    on_event: Callable[[Event], object] = lambda event: None
    together: int | None = None
    data_dir: str | Path | None = None
    written: list[Path] = field(default_factory=list)
    # Seconds per step and seed, and seconds spent already, of what had to pause.
    pace: dict[Case, tuple[float, float]] = field(default_factory=dict)
    _sequences: dict[str, TaskSequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the numbers."""
        self.numbers = Seeds.of(self.seeds, SOURCES, 0).numbers
        if self.together is not None and self.together < 1:
            raise FunclError(f"At least one seed goes through a program, not {self.together}.")
        alone = jax.default_backend() == "cpu"
        self.group = self.together or (1 if alone else len(self.numbers))

    def measure(self, cases: Sequence[Case], deadline: Deadline | None = None) -> list[Status]:
        """Run what is left of the cells, first seeds first and cheap runs before others.

        Results are written whenever a group of seeds is finished. The deadline ends a group between
        two chunks of steps; its state is kept.
        """
        deadline = deadline or Deadline(None)
        keys = {case: cell_key(self.runner(case, self.numbers[:1])) for case in cases}
        cheap_first = sorted(cases, key=self.work)
        groups = [
            (case, self.numbers[n : n + self.group])
            for n in range(0, len(self.numbers), self.group)
            for case in cheap_first
        ]
        for case, numbers in groups:
            left = tuple(seed for seed in numbers if self.store.cell(keys[case], seed) is None)
            if left and not (
                deadline.leaves_time() and self._group(case, left, keys[case], deadline)
            ):
                break
        for case in cases:
            self._write(case, keys[case])
        return [self._status(case, keys[case]) for case in cases]

    def runner(self, case: Case, numbers: Sequence[int]) -> Runner:
        """A run's runner for some seeds; it evaluates after every task."""
        if case.sequence not in self._sequences:
            self._sequences[case.sequence] = tasks.load(case.sequence, data_dir=self.data_dir)
        seeds = Seeds.of(numbers, SOURCES, 0)
        settings = case.network, case.method_value, case.training
        return Runner(self._sequences[case.sequence], *settings, seeds, variant=case.variant)

    def work(self, case: Case) -> float:
        """A rough measure of a run's cost: its steps times its parameters."""
        runner = self.runner(case, self.numbers[:1])
        shapes = jax.eval_shape(
            lambda key: case.network.init(key, runner.problem.input_shape, runner.problem.outputs),
            jax.random.key(0),
        )
        parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        return all_steps(runner) * parameters

    def draw(self, status: Status, path: Path, deadline: Deadline) -> list[Path]:
        """The toy figure of the first seed that is done, from the states of the seeds it ran with.

        States that are kept no longer are trained again, if the deadline leaves the time.
        """
        from funcl.experiments.toy import draw_toy

        key = cell_key(self.runner(status.case, self.numbers[:1]))
        cell = self.store.cell(key, status.done[0])
        assert cell is not None
        runner = self.runner(status.case, cell.settings["measured"]["seeds_together"])
        drawn = draw_toy(runner, self.store, path, cell.seeds[0], deadline)
        return [path] if drawn else []

    def _group(self, case: Case, numbers: tuple[int, ...], key: str, deadline: Deadline) -> bool:
        """Run some seeds in one program; whether they got to the end in time."""
        runner = self.runner(case, numbers)
        self.on_event(Event("started", case, numbers, runner))
        deadline.begin()
        last = None
        for last in self.store.advance(runner, deadline):
            self.on_event(Event("progress", case, numbers, runner, last))
        assert last is not None
        if last.stage < len(runner.stages):
            self._note_pace(case, runner, last)
            self.on_event(Event("paused", case, numbers, runner, last))
            return False
        settings = {
            **last.history.settings,
            "measured": {
                "peak_memory": runner.engine.peak_bytes or None,
                "programs_from_cache": runner.engine.from_cache,
                "seeds_together": list(numbers),
                "command": command(),
                **circumstances(),
            },
        }
        self.store.keep_cells(key, replace(last.history, settings=settings))
        self._write(case, key)
        self.on_event(Event("done", case, numbers, runner, last))
        return True

    def _note_pace(self, case: Case, runner: Runner, snapshot: Snapshot) -> None:
        done = sum(sum(runner.steps(stage)) for stage in range(snapshot.stage))
        if snapshot.report is not None:
            done += snapshot.report.step
        if done:
            seconds = snapshot.history.seconds["train"]
            self.pace[case] = seconds / done / len(snapshot.history.seeds), seconds

    def _write(self, case: Case, key: str) -> None:
        """Write the result of every seed that the store holds, asked for now or earlier."""
        histories = [h for seed in self.store.seeds(key) if (h := self.store.cell(key, seed))]
        if not histories:
            return
        whole = joined(histories)
        measured = joint_account([history.settings["measured"] for history in histories])
        settings = {k: v for k, v in whole.settings.items() if k != "measured"}
        value = result(
            replace(whole, settings=settings),
            measured=measured,
            preset=case.is_preset,
            tuning=presets.tuning(case.sequence, case.method, case.variant),
        )
        path = write_result(self.results, value)
        if path not in self.written:
            self.written.append(path)

    def _status(self, case: Case, key: str) -> Status:
        histories = {seed: self.store.cell(key, seed) for seed in self.numbers}
        done = tuple(seed for seed, history in histories.items() if history is not None)
        left = tuple(seed for seed in self.numbers if seed not in done)
        spent = [sum(h.seconds.values()) for h in histories.values() if h is not None]
        estimate = float(np.mean(spent)) * len(left) if spent else None
        if estimate is None and case in self.pace:
            steps = all_steps(self.runner(case, self.numbers[:1]))
            pace, spent_already = self.pace[case]
            estimate = pace * steps * len(left) - spent_already
        return Status(case, done, left, estimate if left else 0.0)


class Deadline:
    """Says after every chunk of steps whether the next one would end too late."""

    def __init__(self, seconds: float | None):
        if seconds is not None and seconds <= 0:
            raise FunclError(f"The budget must be a positive time, not {seconds} seconds.")
        self.end = float("inf") if seconds is None else time.monotonic() + seconds
        self.slowest_start = 0.0  # from the beginning of a group to its first chunk: compiling
        self.begin()

    def begin(self) -> None:
        """A new group begins, with chunks of its own length."""
        self.last, self.longest, self.first = time.monotonic(), 0.0, True

    def leaves_time(self) -> bool:
        """Whether a group can begin and get through its first chunk."""
        return time.monotonic() + self.slowest_start < self.end

    def __call__(self) -> bool:
        """Whether to stop now."""
        now = time.monotonic()
        if self.first:
            self.slowest_start, self.first = max(self.slowest_start, now - self.last), False
        else:
            self.longest = max(self.longest, now - self.last)
        self.last = now
        return now + 1.2 * self.longest >= self.end


def all_steps(runner: Runner) -> int:
    """How many optimiser steps a run takes."""
    return sum(sum(runner.steps(stage)) for stage in range(len(runner.stages)))


def joint_account(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One account of several cells' circumstances: the largest numbers, all different texts."""
    first = measured[0]
    joint = dict(first)
    joint["peak_memory"] = max(
        (m["peak_memory"] for m in measured if m["peak_memory"] is not None), default=None
    )
    joint["programs_from_cache"] = sum(m["programs_from_cache"] for m in measured)
    joint["seeds_together"] = max(len(m["seeds_together"]) for m in measured)
    for name in ("commit", "hardware", "command"):
        texts = dict.fromkeys(m[name] for m in measured if m[name] is not None)
        joint[name] = "; ".join(texts) if texts else None
    joint["versions"] = {
        name: ", ".join(dict.fromkeys(m["versions"].get(name, "unknown") for m in measured))
        for name in first["versions"]
    }
    return joint


@cache
def _definitions() -> dict[str, Any]:
    return tomllib.loads(files("funcl.experiments").joinpath("tables.toml").read_text("utf-8"))
