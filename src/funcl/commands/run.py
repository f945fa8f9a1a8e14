"""`funcl run`: one method on one sequence, into a run folder."""

from __future__ import annotations

import shlex
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from funcl.commands.words import clock, say
from funcl.errors import FunclError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from funcl.evaluate.history import History
    from funcl.report.tables import Table
    from funcl.train.run import Runner, Snapshot

LARGEST_MATRIX = 12  # tasks; more do not fit on a terminal


def run(
    ctx: typer.Context,
    sequence: Annotated[str, typer.Argument(help="Sequence of tasks, such as split-digits.")],
    method: Annotated[str, typer.Option(help="Method that learns it.")] = "sfsvi",
    variant: Annotated[str | None, typer.Option(help="Variant of the method's preset.")] = None,
    seeds: Annotated[
        str, typer.Option(help="Number of repeats, or certain seeds with commas: 3,5.")
    ] = "10",
    heads: Annotated[
        str | None,
        typer.Option(help="multi (one head per task) or single."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder that holds the data, if not in the usual places.")
    ] = None,
    data_seed: Annotated[
        int, typer.Option(help="Seed of the data's order, the same for all repeats.")
    ] = 0,
    vary: Annotated[
        str, typer.Option(help="What differs between repeats, of init,noise,context.")
    ] = "init,noise,context",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Replace a setting; may be repeated."),
    ] = None,
    evaluate: Annotated[
        str, typer.Option(help="When to test: all (after every task), last or none.")
    ] = "all",
    validation: Annotated[
        float | None,
        typer.Option(help="Test on this part of the training data, held out of training."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/SEQUENCE-METHOD unless given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
) -> None:
    """Train a method on a sequence of tasks, and write a run folder.

    Settings are those of the sequence's preset, as published where there is a publication; --set
    replaces single ones, such as hidden=100,100 or context.points=20. A run that was stopped
    goes on with the same command and --resume, to the same numbers.

    \b
    [bold]Examples[/bold]
    funcl run split-digits
    funcl run split-mnist --method sfsvi --variant larger --seeds 10 --out runs/a
    funcl run split-mnist --set prior_variance=0.01 --set epochs=20 --validation 0.1
    funcl run split-digits --method joint --seeds 3,5 --evaluate last
    """
    from rich.console import Console

    changes = parse_settings(settings or [])
    runner = make_runner(
        sequence, method, variant,
        seeds=parse_seeds(seeds), heads=heads, data_dir=data_dir, data_seed=data_seed,
        vary=vary, changes=changes, evaluate=evaluate, validation=validation,
    )  # fmt: skip
    name = "-".join(filter(None, [runner.blank.sequence, method, variant]))
    folder = out or Path("runs") / name
    console = Console()
    if resume and not (folder / "run.json").is_file():
        say(console, f"{folder} holds no run to go on with; it begins anew.")
    about = {
        "command": shlex.join(["funcl", *ctx.meta.get("funcl.arguments", [])]),
        "preset": not changes,
        "published": [] if changes else published_numbers(runner),
    }
    if train(runner, folder, console, about=about, resume=resume) is None:
        say(
            console,
            f"Stopped; what was learned is in {folder}: the same command with --resume goes on.",
        )
        raise typer.Exit(130)
    show_result(folder, console)


def make_runner(
    sequence: str,
    method: str,
    variant: str | None,
    *,
    seeds: int | list[int],
    heads: str | None = None,
    data_dir: Path | None = None,
    data_seed: int = 0,
    vary: str = "init,noise,context",
    changes: dict[str, str] | None = None,
    evaluate: str = "all",
    validation: float | None = None,
) -> Runner:
    """Put a run together from names; every name is checked before any data are read."""
    from funcl import tasks
    from funcl.experiments import presets
    from funcl.experiments.settings import with_settings
    from funcl.train.run import EVALUATE, Runner
    from funcl.train.training import Seeds, set_up_precision

    if sequence not in tasks.names():
        raise unknown("sequence", sequence, tasks.names())
    if method not in presets.methods(sequence):
        raise unknown("method", method, presets.methods(sequence))
    if evaluate not in EVALUATE:
        raise unknown("evaluation rule", evaluate, EVALUATE)
    repeats = Seeds.of(seeds, [part.strip() for part in vary.split(",") if part.strip()], data_seed)
    chosen = tasks.load(sequence, heads=heads, data_dir=data_dir, data_seed=data_seed)
    network, method_value, training = with_settings(
        *presets.preset(chosen.name, method, variant), changes or {}
    )
    if validation is not None:
        chosen = chosen.validation(validation)
    set_up_precision(training)
    return Runner(chosen, network, method_value, training, repeats, evaluate, variant)


def train(
    runner: Runner,
    folder: Path,
    console: Console,
    *,
    about: dict[str, Any],
    resume: bool = False,
    name: str = "",
) -> Snapshot | None:
    """Run in a folder with a live display; None says that the user stopped it."""
    from funcl.commands.progress import RunProgress
    from funcl.runfolder import run_in_folder

    with StopSignals() as stopped, RunProgress(runner, console, name) as progress:
        return run_in_folder(
            runner, folder, resume=resume, about=about, watch=progress, stop=stopped
        )


class StopSignals:
    """Turns the first SIGINT or SIGTERM into a wish to stop; the second one stops at once."""

    def __init__(self) -> None:
        self.wanted = False
        self.before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether the user wants to stop."""
        return self.wanted

    def __enter__(self) -> StopSignals:
        """Begin to listen; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._want)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _want(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


def show_result(folder: Path, console: Console) -> None:
    """Print the accuracies after every task and the headline numbers of a finished run."""
    from funcl.report import load_run, tables

    finished = load_run(folder)
    matrix = accuracy_table(finished.history)
    for table in [*([matrix] if matrix else []), *tables.comparison([finished])]:
        console.print(tables.to_rich(table, console.width))
        console.print()
    seconds = finished.info["seconds"]
    parts = {"train": "trained", "compile": "compiled", "evaluate": "evaluated"}
    times = ", ".join(f"{word} for {clock(seconds[kind])}" for kind, word in parts.items())
    say(console, f"{times[0].upper()}{times[1:]}.")
    say(console, f"The run is in {folder}; for a page about it: funcl report {folder}")


def accuracy_table(history: History) -> Table | None:
    """Accuracy on each task after each task, in per cent, if measured and not too large."""
    import numpy as np

    from funcl.report.figures import matrix_of_run
    from funcl.report.tables import Cell, Table

    mean, _ = matrix_of_run(history)
    rows = [row for row in range(len(mean)) if np.isfinite(mean[row]).any()]
    if not rows or len(history.tasks) > LARGEST_MATRIX:
        return None

    def cell(after: int, on: int) -> Cell:
        return Cell(mean[after, on], decimals=1) if np.isfinite(mean[after, on]) else Cell(text=" ")

    tasks = range(len(history.tasks))
    return Table(
        "accuracy (%) on each task, mean over seeds",
        "after task",
        tuple(history.tasks),
        tuple((history.tasks[row], tuple(cell(row, on) for on in tasks)) for row in rows),
    )


def published_numbers(runner: Runner) -> list[dict[str, Any]]:
    """The numbers that this very run was published with, if its data and repeats are those."""
    from funcl.experiments.results import published
    from funcl.train.training import SOURCES

    blank, seeds = runner.blank, runner.engine.seeds
    if blank.split != "test" or seeds.data_seed != 0 or set(seeds.vary) != set(SOURCES):
        return []
    return published(blank.sequence, blank.method, blank.variant)


def parse_seeds(text: str) -> int | list[int]:
    """Read "10" as ten repeats, and "3,5" as these two.

    >>> parse_seeds("10"), parse_seeds("3,5"), parse_seeds("7,")
    (10, [3, 5], [7])
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = [part for part in parts if part]
    if not numbers or not all(part.isdecimal() for part in numbers):
        raise FunclError(
            f"--seeds {text} cannot be used: give a number of repeats, such as 10, or seeds with "
            "commas, such as 3,5."
        )
    return int(numbers[0]) if len(parts) == 1 else [int(part) for part in numbers]


def parse_settings(given: list[str]) -> dict[str, str]:
    """Read "name=value" texts.

    >>> parse_settings(["epochs=2", "hidden=8,8"])
    {'epochs': '2', 'hidden': '8,8'}
    """
    settings = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise FunclError(f"--set {text} cannot be used: write --set name=value.")
        settings[name.strip()] = value.strip()
    return settings
