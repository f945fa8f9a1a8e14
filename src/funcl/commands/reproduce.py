"""`funcl reproduce`: the paper's tables and figures, measured beside the published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from funcl.commands.run import parse_seeds
from funcl.commands.words import clock, say
from funcl.errors import FunclError

if TYPE_CHECKING:
    from rich.console import Console

    from funcl.commands.progress import RunProgress

UNITS = {"s": 1, "m": 60, "h": 3600}


def reproduce(
    name: Annotated[str, typer.Argument(help="Table or figure: table1, toy2d or digits.")],
    only: Annotated[str | None, typer.Option(help="One sequence of it.")] = None,
    method: Annotated[str | None, typer.Option(help="One method of it.")] = None,
    variant: Annotated[
        str | None, typer.Option(help="One variant; none is the plain method.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Number of repeats, or certain seeds with commas: 3,5.")
    ] = "10",
    budget: Annotated[
        str | None, typer.Option(help="Stop after so long, such as 90s, 25m or 2h, and keep all.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder that holds the data, if not in the usual places.")
    ] = None,
    together: Annotated[
        int | None,
        typer.Option(
            min=1, help="Seeds in one program; all on an accelerator, one on a CPU unless given."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder for what is finished or begun, if not in the cache."),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the measured numbers.")] = Path(
        "results"
    ),
    docs: Annotated[Path, typer.Option(help="Folder for results.md and the figures.")] = Path(
        "docs"
    ),
) -> None:
    """Measure a table or figure of the paper, and show it beside the published numbers.

    What is finished is kept: the same command goes on with what is left, and runs that share their
    first tasks share the work.

    \b
    [bold]Examples[/bold]
    funcl reproduce toy2d
    funcl reproduce table1 --only split-mnist --method sfsvi --seeds 3
    funcl reproduce table1 --budget 25m
    """
    from rich.console import Console

    repeats, seconds = parse_seeds(seeds), None if budget is None else parse_time(budget)
    from funcl.experiments.reproduce import reproduce as measure
    from funcl.report.tables import to_rich

    console = Console()
    with Display(console) as display:
        done = measure(
            name, only, method, variant,
            seeds=repeats, budget=seconds, store=store, results=results, docs=docs,
            on_event=display, together=together, data_dir=data_dir,
        )  # fmt: skip
    for table in done.tables:
        console.print(to_rich(table, console.width))
        console.print()
    say(console, f"Written: {', '.join(map(str, done.files))}")
    for status in done.status:
        if status.left:
            left = f"{status.case.name}: {len(status.left)} of "
            left += f"{len(status.left) + len(status.done)} seeds are left"
            if status.seconds_left:
                left += f", about {clock(status.seconds_left)}"
            say(console, left)
    if not done.complete:
        say(console, "The same command goes on with what is left.")


class Display:
    """Shows the run that is being measured."""

    def __init__(self, console: Console):
        self.console = console
        self.shown: RunProgress | None = None

    def __enter__(self) -> Display:
        """Nothing is shown before the first run starts."""
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the display."""
        self._clear()

    def __call__(self, event: Any) -> None:
        """Follow the events of `funcl.experiments.reproduce`."""
        from funcl.commands.progress import RunProgress

        seeds = ", ".join(map(str, event.seeds))
        what = f"{event.case.name}, {'seed' if len(event.seeds) == 1 else 'seeds'} {seeds}"
        if event.kind == "started":
            self._clear()
            self.shown = RunProgress(event.runner, self.console, f"{what}: ").__enter__()
        elif event.kind == "progress" and self.shown is not None:
            self.shown(event.snapshot)
        else:
            self._clear()
            say(self.console, f"{what}: {event.kind}")

    def _clear(self) -> None:
        if self.shown is not None:
            self.shown.__exit__(None, None, None)
            self.shown = None


def parse_time(text: str) -> float:
    """Read a time with its unit, in seconds.

    >>> parse_time("90s"), parse_time("25m"), parse_time("1.5h")
    (90.0, 1500.0, 5400.0)
    """
    try:
        seconds = float(text[:-1]) * UNITS[text[-1]]
    except (ValueError, KeyError, IndexError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise FunclError(f"--budget {text} cannot be used: give a time such as 90s, 25m or 2h.")
    return seconds
