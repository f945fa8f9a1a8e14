"""Results as tables and as a page of the documentation, always from the JSONs and never typed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from funcl.disk import replace_file, writing
from funcl.experiments.circumstances import described
from funcl.experiments.results import (
    accepted,
    is_accepted,
    path_of,
    published,
    read_result,
    read_results,
)
from funcl.report.style import with_error
from funcl.report.tables import Cell, Table, to_markdown

Row = tuple[str, str, str | None]  # label, method, variant

COMPARED = ("measured (%)", "seeds", "published (%)", "accepted (%)", "met")
COST = ("training (s)", "compiling (s)", "memory (MiB)")


def sequence_table(title: str, sequence: str, rows: Sequence[Row], results: str | Path) -> Table:
    """Measured beside published, for the rows that have a number of either kind."""
    lines = []
    for label, method, variant in rows:
        name = {"sequence": sequence, "method": method, "variant": variant}
        path = path_of(results, name)
        value = read_result(path) if path.is_file() else None
        numbers = published(sequence, method, variant)
        if value or numbers:
            limits = accepted(sequence, method, variant)
            lines.append((label, _compared(value, numbers, limits)))
    return Table(title, "method", COMPARED, tuple(lines))


def write_results_page(results: str | Path, path: str | Path) -> Path:
    """Write the page of all measured results, and return its path."""
    results, path = Path(results), Path(path)
    values = read_results(results)
    parts = [
        "# Measured results",
        "This page is generated from the JSON files under `results/` by `funcl reproduce`.",
        "A measured number is the accuracy after the last task, averaged over tasks, in per cent: "
        "mean over seeds ± standard error (population standard deviation / √n). Beside it "
        "stand the published number, the range that counts as reproduced, and whether the "
        "measured mean lies in it. Training and compiling are seconds for all seeds together, "
        "memory is the largest program's, by the compiler's account.",
    ]
    if not values:
        parts.append("Nothing has been measured yet.")
    for sequence in dict.fromkeys(value["sequence"] for value in values):
        group = [value for value in values if value["sequence"] == sequence]
        parts.append(f"## {sequence}")
        parts.append(to_markdown(_page_table(group, results, path)).rstrip())
        figure = path.parent / "figures" / f"{sequence}.png"
        if figure.is_file():
            parts.append(f"![{sequence}](figures/{figure.name})")
        parts += _circumstances(group)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, ("\n\n".join(parts) + "\n").encode())
    return path


def _page_table(group: Sequence[Mapping[str, Any]], results: Path, page: Path) -> Table:
    first = group[0]
    heads = "a head per task" if first["heads"] == "multi" else "one head"
    rows = []
    for value in group:
        link = Path(os.path.relpath(path_of(results, value), page.parent)).as_posix()
        name = " ".join(filter(None, [value["method"], value["variant"]]))
        cells = _compared(value, value["published"], value["accept"])
        memory = value["peak_memory"]
        cost = (
            Cell(value["train_seconds"], decimals=1),
            Cell(value["compile_seconds"], decimals=1, note=_cached(value)),
            Cell(memory / 2**20, decimals=0) if memory else Cell(),
        )
        rows.append((f"[{name}]({link})", (*cells, *cost)))
    title = f"{len(first['tasks'])} tasks, {heads}, {first['scenario']}"
    return Table(title, "run", COMPARED + COST, tuple(rows))


def _compared(
    value: Mapping[str, Any] | None,
    numbers: Sequence[Mapping[str, Any]],
    limits: Sequence[float | None] | None,
) -> tuple[Cell, ...]:
    measured = count = met = Cell()
    if value is not None:
        notes = [f"seed {seed} diverged at {at}" for seed, at in value["diverged"].items()]
        if not value["preset"]:
            notes.append("settings differ from the preset's")
        count = Cell(text=str(len(value["seeds"])), note="; ".join(notes))
        measured = Cell(_number(value["mean"]), _number(value["standard_error"]))
        verdict = is_accepted(value)
        met = Cell() if verdict is None else Cell(text="yes" if verdict else "no")
    quoted = " / ".join(_quoted(number) for number in numbers if number["mean"] is not None)
    return measured, count, Cell(text=quoted), Cell(text=_limits(limits)), met


def _cached(value: Mapping[str, Any]) -> str:
    return "some programs were in the cache already" if value["programs_from_cache"] else ""


def _quoted(number: Mapping[str, Any]) -> str:
    text = with_error(number["mean"], _number(number["standard_error"]))
    return f"{text} ({number['source'].partition(' of ')[0]})"


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _limits(limits: Sequence[float | None] | None) -> str:
    if limits is None or limits[0] is None:
        return ""
    low, high = limits
    return f"at least {low:g}" if high is None else f"{low:.2f} to {high:.2f}"


def _circumstances(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where and with what the group was measured, each different account once."""
    accounts: dict[str, list[str]] = {}
    for value in group:
        account = f"{value['hardware']}, {value['precision']}; {described(value)}"
        name = " ".join(filter(None, [value["method"], value["variant"]]))
        accounts.setdefault(account, []).append(name)
    if len(accounts) == 1:
        return [f"Measured on {next(iter(accounts))}."]
    return [f"{', '.join(names)}: measured on {account}." for account, names in accounts.items()]
