"""`funcl data`: the data sets that live in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Find, fetch and verify data sets."
)

Folder = Annotated[
    Path | None, typer.Option("--data-dir", help="Look only in this folder, or download to it.")
]
Names = Annotated[
    list[str] | None, typer.Argument(help="Data sets, such as mnist; all unless given.")
]


@app.command("list")
def list_(data_dir: Folder = None) -> None:
    """List the data sets, where they were found, and which sequences need them."""
    from rich.console import Console
    from rich.table import Table

    from funcl.tasks import SEQUENCES, files

    table = Table(box=None, pad_edge=False)
    for heading in ("data set", "for", "size", "where"):
        table.add_column(heading, overflow="fold")
    for found in files.status(data_dir):
        users = ", ".join(name for name, made in SEQUENCES.items() if found.name in made.datasets)
        size = f"{found.size / 1e6:.0f} MB" if found.size else ""
        if found.where is None:
            where = found.problem or f"not here; funcl data fetch {found.name}"
        else:
            where = f"{found.where} (damaged)" if found.problem else str(found.where)
        table.add_row(found.name, users, size, where)
    embedded = [name for name, made in SEQUENCES.items() if not made.datasets]
    console = Console()
    console.print(table)
    console.print(f"\nThese need no files: {', '.join(embedded)}.", highlight=False)


@app.command()
def fetch(names: Names = None, data_dir: Folder = None) -> None:
    """Download what this machine does not have yet; a download that broke off goes on.

    \b
    [bold]Example[/bold]
    funcl data fetch mnist
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from funcl.tasks import files

    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    for name in _known(names):
        with Progress(*columns, console=console, transient=True) as bar:
            where = files.fetch(name, data_dir=data_dir, progress=_shown_in(bar))
        console.print(f"{name}: {where}", highlight=False, soft_wrap=True)


@app.command()
def verify(names: Names = None, data_dir: Folder = None) -> None:
    """Read data sets and compare every row with what it should be.

    The exit code is 1 where a data set is missing or not sound.
    """
    from rich.console import Console

    from funcl.tasks import files

    console, sound = Console(), True
    for name in _known(names):
        found = files.verify(name, data_dir)
        if found.where is None and not found.problem:
            text = f"not on this machine; funcl data fetch {name}"
        else:
            text = f"{'sound' if found.verified else 'NOT sound'}, {found.where or 'nowhere'}"
        sound = sound and bool(found.verified)
        console.print(f"{name}: {text}", highlight=False, soft_wrap=True)
        if found.problem:
            console.print(f"  {found.problem}", highlight=False, soft_wrap=True, markup=False)
    if not sound:
        raise typer.Exit(1)


def _shown_in(bar: Progress) -> Callable[[str, int, int | None], None]:
    rows: dict[str, TaskID] = {}

    def show(file: str, received: int, size: int | None) -> None:
        if file not in rows:
            rows[file] = bar.add_task(file, total=size)
        bar.update(rows[file], completed=received, total=size)

    return show


def _known(names: list[str] | None) -> list[str]:
    """The names given, all if none; a wrong one is refused before the first is touched."""
    from funcl.errors import unknown
    from funcl.tasks.sources import DATASETS

    for name in names or []:
        if name not in DATASETS:
            raise unknown("data set", name, DATASETS)
    return names or list(DATASETS)
