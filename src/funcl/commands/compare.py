"""`funcl compare` and `funcl report`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from funcl.errors import unknown

FORMATS = ("terminal", "markdown", "latex")


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    style: Annotated[
        str, typer.Option("--format", help="terminal, markdown or latex.")
    ] = "terminal",
) -> None:
    """Compare runs in a table.

    Runs share a table where they share sequence, scenario and heads; the best of a kind is marked
    where it leads by more than the standard errors. Forward transfer is known where a run of the
    same method on every task alone is among them.

    \b
    [bold]Examples[/bold]
    funcl compare runs/split-digits-sfsvi runs/split-digits-finetune
    funcl compare runs/split-digits-sfsvi runs/split-digits-separate-sfsvi
    """
    if style not in FORMATS:
        raise unknown("format", style, FORMATS)
    from rich.console import Console

    from funcl.report import load_runs, tables

    console = Console()
    for table in tables.comparison(load_runs(folders)):
        if style == "terminal":
            console.print(tables.to_rich(table, console.width))
        else:
            typer.echo(tables.to_markdown(table) if style == "markdown" else tables.to_latex(table))


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page about runs, which needs no network to be read.

    It shows accuracy over tasks with error bands, the accuracies as heat maps, every task beside
    published numbers, calibration, the losses, settings and versions.

    \b
    [bold]Example[/bold]
    funcl report runs/a runs/b -o report.html
    """
    from funcl.report import write_report

    write_report(folders, out)
    typer.echo(f"Report: {out}")
