"""`funcl demo`: what this library is for, in under a minute and without a download."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from funcl.commands.run import make_runner, train
from funcl.commands.words import say
from funcl.errors import FunclError

if TYPE_CHECKING:
    from funcl.report.runs import Run

SEQUENCE = "split-digits-sh"
METHODS = ("sfsvi", "finetune", "joint")
MARK = ".funcl-demo"  # in a folder that the demo made, and may therefore replace


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path(
        "funcl-demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Repeats of every method.")] = 3,
) -> None:
    """Train three methods on real handwritten digits, compare them, and write a report.

    It takes less than a minute, downloads nothing and needs no accelerator.
    """
    from rich.console import Console

    from funcl.report import load_run, tables, write_report

    console = Console()
    runners = {method: make_runner(SEQUENCE, method, None, seeds=seeds) for method in METHODS}
    tasks = ", ".join(task.name for task in runners[METHODS[0]].sequence)
    say(
        console,
        f"Five tasks of handwritten digits, one after the other: {tasks}. "
        f"{seeds} repeats of each method.",
    )
    _make_room(out)
    for method, runner in runners.items():
        about = {
            "command": f"funcl run {SEQUENCE} --method {method} --seeds {seeds}",
            "preset": True,
        }
        if train(runner, out / method, console, about=about, name=f"{method}: ") is None:
            say(console, "Stopped.")
            raise typer.Exit(130)
    runs = {method: load_run(out / method) for method in METHODS}
    console.print()
    for table in tables.comparison(list(runs.values())):
        console.print(tables.to_rich(table, console.width))
    console.print()
    console.print(what_was_seen(runs), highlight=False)
    page = out / "report.html"
    write_report([out / method for method in METHODS], page)
    console.print()
    say(console, f"Report: {page}")


def what_was_seen(runs: dict[str, Run]) -> str:
    """One paragraph about the three runs, in their own numbers."""
    sfsvi, finetune, joint = (runs[method].history.metrics for method in METHODS)

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %"

    kept, lost = sfsvi["forgetting"].mean, finetune["forgetting"].mean
    return (
        f"After the last task, fine-tuning gets {percent(finetune['accuracy'].mean)} right over "
        f"all tasks and has lost {100 * lost:.1f} points of what it once knew. S-FSVI, which "
        "compares the function it learns with the last one at a few remembered digits, gets "
        f"{percent(sfsvi['accuracy'].mean)} and has lost {100 * kept:.1f} points. Training on all "
        "tasks together, which continual learning cannot do, gets "
        f"{percent(joint['accuracy'].mean)}. The calibration error is "
        f"{percent(sfsvi['ece'].mean)} with S-FSVI and {percent(finetune['ece'].mean)} with "
        "fine-tuning."
    )


def _make_room(out: Path) -> None:
    """Replace an earlier demo, and nothing else."""
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise FunclError(f"{out} is not a folder of an earlier demo: name another one with --out.")
    for method in METHODS:
        shutil.rmtree(out / method, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
