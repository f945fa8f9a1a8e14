"""Tables of measured numbers, as rich text, Markdown, LaTeX or HTML.

A `Table` holds rows of `Cell`s; the writers only differ in how they spell a cell. The best of a
column is marked where its lead over the runner-up exceeds the sum of their standard errors: seeds
could turn a smaller lead around. A missing number is "-", with the reason below the table.
"""

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from funcl.evaluate.metrics import Metric
from funcl.report.runs import Run, by_setting
from funcl.report.style import with_error

if TYPE_CHECKING:
    import rich.console

LEGEND = "best by more than the standard errors"


@dataclass(frozen=True)
class Cell:
    """A number with its standard error (NaN: unknown), or a text; `note` says why it is missing."""

    mean: float = math.nan
    standard_error: float = math.nan
    decimals: int = 2
    note: str = ""
    text: str = ""
    best: bool = False

    def __str__(self) -> str:
        if self.text or math.isnan(self.mean):
            return self.text or "-"
        return with_error(self.mean, self.standard_error, self.decimals)


@dataclass(frozen=True)
class Table:
    """Labelled rows of cells under a title and column headings."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def notes(self) -> list[str]:
        """The reasons below the table, each with the cells it concerns."""
        places: dict[str, dict[str, list[str]]] = {}
        for label, cells in self.rows:
            for column, cell in zip(self.columns, cells, strict=True):
                if cell.note:
                    places.setdefault(cell.note, {}).setdefault(column, []).append(label)
        notes = []
        for reason, columns in places.items():
            rows = list(columns.values())
            if all(labels == rows[0] for labels in rows):
                everyone = len(rows[0]) == len(self.rows)
                where = ", ".join(columns) + ("" if everyone else f" ({', '.join(rows[0])})")
            else:
                parts = (f"{column} ({', '.join(labels)})" for column, labels in columns.items())
                where = ", ".join(parts)
            notes.append(f"{where}: {reason}.")
        return notes

    @property
    def has_best(self) -> bool:
        """Whether any cell is marked as the best of its column."""
        return any(cell.best for _, cells in self.rows for cell in cells)

    def transposed(self) -> "Table":
        """Rows as columns, for few runs with many numbers."""
        rows = tuple(
            (column, tuple(cells[place] for _, cells in self.rows))
            for place, column in enumerate(self.columns)
        )
        return Table(self.title, "", tuple(label for label, _ in self.rows), rows)


# name of the metric: heading, factor, decimals, and whether higher (1) or lower (-1) is better
_COLUMNS = {
    "accuracy": ("accuracy (%)", 100, 2, 1),
    "forgetting": ("forgetting", 100, 2, -1),
    "backward_transfer": ("backward transfer", 100, 2, 1),
    "forward_transfer": ("forward transfer", 100, 2, 1),
    "nll": ("NLL", 1, 4, -1),
    "brier": ("Brier", 1, 4, -1),
    "ece": ("ECE (%)", 100, 2, -1),
    "entropy": ("entropy", 1, 4, 0),
}


def comparison(runs: Sequence[Run]) -> list[Table]:
    """Compare runs: one table for each sequence, scenario, head and split, since only runs that
    share these can be compared. Accuracies, forgetting and transfers are in per cent."""
    tables = []
    for setting, group in by_setting(runs).items():
        columns = [[_seeds(run) for run in group.values()]]
        headings = ["seeds"]
        for name, (heading, factor, decimals, better) in _COLUMNS.items():
            metrics = [run.history.metrics[name] for run in group.values()]
            columns.append(mark_best([_cell(m, factor, decimals) for m in metrics], better))
            headings.append(heading)
            if name == "accuracy" and any(run.info.get("published") for run in group.values()):
                columns.append([_published(run) for run in group.values()])
                headings.append("published (%)")
        rows = zip(group, zip(*columns, strict=True), strict=True)
        tables.append(Table(setting, "method", tuple(headings), tuple(rows)))
    return tables


def mark_best(cells: Sequence[Cell], better: int = 1) -> list[Cell]:
    """Mark the best cell where its lead over the runner-up exceeds the sum of both standard errors.

    `better` is 1 where higher is better, -1 where lower is, 0 where neither. Cells without a
    standard error are never marked, and nothing is marked that leads them.

    >>> [c.best for c in mark_best([Cell(99.5, 0.1), Cell(99.2, 0.1), Cell()])]
    [True, False, False]
    >>> [c.best for c in mark_best([Cell(99.5, 0.1), Cell(99.4, 0.1)])]
    [False, False]
    """
    ranked = sorted(
        (place for place, cell in enumerate(cells) if not math.isnan(cell.mean)),
        key=lambda place: -better * cells[place].mean,
    )
    marked = list(cells)
    if better and len(ranked) > 1:
        first, second = cells[ranked[0]], cells[ranked[1]]
        if abs(first.mean - second.mean) > first.standard_error + second.standard_error:
            marked[ranked[0]] = replace(first, best=True)
    return marked


def to_rich(table: Table, width: int | None = None) -> "rich.console.Group":
    """For the terminal: print it with a `rich.console.Console`.

    A table wider than `width` is turned round where that makes it narrower.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    turned = table.transposed()
    wide = width is not None and _width(table) > max(width, _width(turned))
    laid = turned if wide else table
    space = " " if table.has_best else ""  # below the stars
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(Text(laid.corner))
    for column in laid.columns:
        grid.add_column(Text(column + space), justify="right")
    for label, cells in laid.rows:
        texts = (Text(f"{c}*", style="bold") if c.best else Text(f"{c}{space}") for c in cells)
        grid.add_row(Text(label), *texts)
    notes = table.notes + ([f"* {LEGEND}."] if table.has_best else [])
    return Group(Text(table.title, style="bold"), grid, *map(Text, notes))


def to_text(table: Table, width: int = 100) -> str:
    """Plain text; a table wider than `width` is turned round where that makes it narrower."""
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(to_rich(table, width))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def to_markdown(table: Table) -> str:
    """GitHub's Markdown."""

    def line(items: Sequence[str]) -> str:
        return "| " + " | ".join(item.replace("|", "\\|") for item in items) + " |"

    lines = [f"**{table.title}**", "", line([table.corner, *table.columns])]
    lines.append("| --- |" + " ---: |" * len(table.columns))
    for label, cells in table.rows:
        lines.append(line([label, *(f"**{c}**" if c.best else str(c) for c in cells)]))
    notes = table.notes + ([f"Bold: {LEGEND}."] if table.has_best else [])
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """Write a `tabular` with booktabs rules, and the notes as comments."""

    def spelled(cell: Cell) -> str:
        if cell.text or math.isnan(cell.mean):
            return _latex(cell.text or "--")
        mean, _, error = str(cell).partition(" ± ")
        mean = f"\\mathbf{{{mean}}}" if cell.best else mean
        return f"${mean} \\pm {error}$" if error else f"${mean}$"

    notes = [table.title, *table.notes, *([f"Bold: {LEGEND}."] if table.has_best else [])]
    lines = [f"% {note}" for note in notes]
    lines.append("\\begin{tabular}{l" + "r" * len(table.columns) + "}")
    heading = " & ".join(map(_latex, [table.corner, *table.columns]))
    lines += ["\\toprule", f"{heading} \\\\", "\\midrule"]
    for label, cells in table.rows:
        lines.append(" & ".join([_latex(label), *map(spelled, cells)]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def to_html(table: Table) -> str:
    """Write an HTML table with its caption, without style of its own."""

    def spelled(cell: Cell) -> str:
        text = html.escape(cell.text) or str(cell).replace("-", "−" if cell.mean < 0 else "-")
        reason = f' title="{html.escape(cell.note)}"' if cell.note else ""
        return f"<td{reason}>{f'<strong>{text}</strong>' if cell.best else text}</td>"

    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.columns)
    body = "".join(
        f'<tr><th scope="row">{html.escape(label)}</th>{"".join(map(spelled, cells))}</tr>'
        for label, cells in table.rows
    )
    return (
        f'<table><thead><tr><th scope="col">{html.escape(table.corner)}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _cell(metric: Metric, factor: float, decimals: int) -> Cell:
    mean, error = factor * metric.mean, factor * metric.standard_error
    # What limits a number that is there concerns the whole run: it stands once, at the seeds.
    return Cell(mean, error, decimals, metric.note if math.isnan(mean) else "")


def _seeds(run: Run) -> Cell:
    seeds, lost = run.history.seeds, run.history.diverged
    notes = [f"seed {seed} diverged at {place}" for seed, place in sorted(lost.items())]
    accuracy = run.history.metrics["accuracy"]
    if accuracy.note and not math.isnan(accuracy.mean):
        notes.append(accuracy.note)
    text = f"{len(seeds) - len(lost)} of {len(seeds)}" if lost else str(len(seeds))
    return Cell(text=text, note="; ".join(notes))


def _published(run: Run) -> Cell:
    entries = run.info.get("published") or []
    if not entries:
        return Cell(note="no published number")
    error = entries[0].get("standard_error")
    return Cell(entries[0]["mean"], math.nan if error is None else error)


def _latex(text: str) -> str:
    for character in "&%#_":
        text = text.replace(character, f"\\{character}")
    return text


def _width(table: Table) -> int:
    columns = zip(*([str(cell) for cell in cells] for _, cells in table.rows), strict=True)
    widths = [
        max(map(len, (name, *cells))) for name, cells in zip(table.columns, columns, strict=True)
    ]
    first = max(map(len, (table.corner, *(label for label, _ in table.rows))))
    return first + sum(width + 3 for width in widths) + 2
