"""How a run shows while it goes on: a live display, or plain lines without a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from funcl.commands.words import clock, say
from funcl.evaluate import metrics
from funcl.report.style import with_error

if TYPE_CHECKING:
    from rich.console import Console

    from funcl.evaluate.history import History
    from funcl.train.run import Runner, Snapshot

QUIET_SECONDS = 10.0  # between two plain lines within a task


class RunProgress:
    """Shows snapshots as they come: task, phase, losses, accuracy, speed and the time left."""

    def __init__(self, runner: Runner, console: Console, name: str = ""):
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.text import Text

        self.runner, self.console, self.name = runner, console, name
        self.steps = [sum(runner.steps(stage)) for stage in range(len(runner.stages))]
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[left]}"),
            expand=True,
        )
        self.row = self.bar.add_task("compiling", total=sum(self.steps), left="")
        self.numbers = Text("", style="dim")
        self.live = Live(
            Group(self.bar, self.numbers), console=console, transient=True, refresh_per_second=8
        )
        self.last: tuple[int, float] | None = None  # steps and training seconds at the last chunk
        self.said_at = time.monotonic()

    def __enter__(self) -> RunProgress:
        """Begin to show."""
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the display."""
        self.live.stop()

    def __call__(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        if snapshot.report is None:
            if snapshot.stage:
                self._say(self._finished(snapshot))
            if snapshot.stage < len(self.steps):
                self._move(snapshot.stage, sum(self.steps[: snapshot.stage]), "")
            self.last = None  # consolidating and evaluating are not steps
            return
        report, seconds = snapshot.report, snapshot.history.seconds["train"]
        done = sum(self.steps[: snapshot.stage]) + self._steps_done(snapshot)
        numbers = (
            f"{report.phase} {report.step:,}/{report.steps:,} · "
            f"loss {_mean(report.loss, report.alive)} · "
            f"penalty {_mean(report.penalty, report.alive)} · "
            f"accuracy {_mean(100 * report.accuracy, report.alive)} %"
        )
        left = ""
        if self.last is not None and seconds > self.last[1]:
            rate = (done - self.last[0]) / (seconds - self.last[1])
            numbers += f" · {rate:,.0f} steps/s"
            left = f"{clock((sum(self.steps) - done) / rate)} left"
        self.last = done, seconds
        self._move(snapshot.stage, done, left)
        self.numbers.plain = numbers
        quiet = time.monotonic() - self.said_at > QUIET_SECONDS
        if quiet and not self.console.is_terminal:
            self._say(f"{self._place(snapshot.stage)}: {numbers}{left and f' · {left}'}")

    def _place(self, stage: int) -> str:
        tasks = self.runner.stages[stage]
        name = self.runner.sequence[tasks[0]].name if len(tasks) == 1 else "all together"
        if len(self.steps) == 1:
            return f"{self.name}{name}"
        return f"{self.name}task {stage + 1} of {len(self.steps)} ({name})"

    def _steps_done(self, snapshot: Snapshot) -> int:
        """Steps of this stage so far, over its phases."""
        assert snapshot.report is not None
        names = [phase.name for phase in self.runner.engine.phases]
        before = names.index(snapshot.report.phase)
        return snapshot.report.step + sum(self.runner.steps(snapshot.stage)[:before])

    def _move(self, stage: int, done: int, left: str) -> None:
        self.bar.update(self.row, description=self._place(stage), completed=done, left=left)

    def _finished(self, snapshot: Snapshot) -> str:
        history, stage = snapshot.history, snapshot.stage - 1
        place = f"{self._place(stage)} learned"
        mean, error = accuracy_so_far(history, max(self.runner.stages[stage]))
        for seed, where in history.diverged.items():
            place += f"; seed {seed} diverged at {where}"
        if np.isnan(mean):
            return place
        return f"{place}; mean accuracy so far {with_error(100 * mean, 100 * error)} %"

    def _say(self, line: str) -> None:
        self.said_at = time.monotonic()
        say(self.console, line)


def accuracy_so_far(history: History, after: int) -> tuple[float, float]:
    """Mean and standard error over seeds of the mean accuracy on the tasks up to `after`."""
    curve = metrics.after_each_task(history.without_diverged().accuracy)
    mean, error = metrics.mean_and_error(curve[:, after])
    return float(mean), float(error)


def _mean(values: np.ndarray, alive: np.ndarray) -> str:
    return f"{values[alive].mean():.3g}" if alive.any() else "-"
