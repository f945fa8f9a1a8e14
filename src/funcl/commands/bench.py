"""`funcl bench`: how fast a step is, beside the floor, and how its cost grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from funcl.commands.words import say
from funcl.errors import FunclError, unknown

if TYPE_CHECKING:
    from funcl.report.tables import Cell, Table
    from funcl.tasks.sequence import TaskSequence

SEEDS = (1, 10)
STEP = ("µs/step", "floor (µs)", "ratio")
UNITS = {"context points": "context points in a step", "parameters": "parameters", "tasks": "tasks"}


def bench(
    sequences: Annotated[
        list[str] | None,
        typer.Argument(help="Sequences; all whose data are on this machine unless given."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few sizes and short times: a first impression.")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="float32, or tensorfloat32 where the accelerator has it.")
    ] = "float32",
    growth: Annotated[bool, typer.Option(help="Also measure how time and memory grow.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for the numbers, a page and figures.")] = Path(
        "bench"
    ),
) -> None:
    """Measure steps of S-FSVI beside the floor, the time of their bare matrix products.

    For every sequence, with 1 and 10 seeds in one program: time per step, time of compiling, peak
    memory, prediction time. Then how step time and memory grow with context points, parameters
    and tasks, on made-up data.

    \b
    [bold]Examples[/bold]
    funcl bench --quick
    funcl bench split-mnist permuted-mnist --out bench-gpu
    """
    from rich.console import Console

    from funcl import bench as benchmark
    from funcl import tasks
    from funcl.disk import replace_file
    from funcl.experiments.circumstances import circumstances, command
    from funcl.report.tables import to_rich

    for name in sequences or []:
        if name not in tasks.names():
            raise unknown("sequence", name, tasks.names())
    console = Console()
    effort = benchmark.QUICK if quick else benchmark.Effort()
    found: dict[str, Any] = {"schema": 1, "command": command(), **circumstances()}
    found |= {"steps": [], "growth": []}
    out.mkdir(parents=True, exist_ok=True)

    def keep() -> None:  # after every row, so that a long bench can be stopped
        text = json.dumps(found, indent=1) + "\n"
        replace_file(out / "bench.json", text.encode())

    with console.status("measuring: a program takes a while to compile"):
        for sequence in _sequences(sequences, quick):
            for likelihood, seeds in _cases(quick):
                row = _steps(sequence, likelihood, seeds, precision, effort)
                found["steps"].append(row)
                keep()
                say(console, f"{sequence.name}, {likelihood} draws, seeds {seeds}: {_brief(row)}")
        if growth:
            for point in benchmark.growth(quick, effort, precision):
                found["growth"].append(point)
                keep()
                say(console, f"{point['size']:,} {point['across']}: {_brief(point)}")
            found["slopes"] = benchmark.slopes(found["growth"])
            keep()
    console.print()
    measured, figures = tables(found), _figures(found["growth"], out)
    for table in measured:
        console.print(to_rich(table, console.width))
        console.print()
    written = [out / "bench.json", out / "bench.md", *figures]
    replace_file(out / "bench.md", _page(found, measured, figures).encode())
    say(console, f"Written: {', '.join(map(str, written))}")


def _sequences(wanted: list[str] | None, quick: bool) -> list[TaskSequence]:
    """The sequences named, or all that need no download."""
    from funcl import tasks
    from funcl.tasks import files

    if wanted:
        return [tasks.load(name) for name in wanted]
    here = {found.name for found in ([] if quick else files.status()) if found.verified}
    chosen = [name for name, recipe in tasks.SEQUENCES.items() if here.issuperset(recipe.datasets)]
    return [tasks.load(name) for name in chosen]


def _brief(row: dict[str, Any]) -> str:
    return (
        f"{row['microseconds_per_step']:,.0f} µs per step, "
        f"{row['ratio_to_floor']:.2f} × its matrix products"
    )


def _cases(quick: bool) -> list[tuple[str, int]]:
    cases = [("weights", seeds) for seeds in SEEDS]
    return cases if quick else [*cases, *(("local", seeds) for seeds in SEEDS)]


def _steps(
    sequence: TaskSequence, likelihood: str, seeds: int, precision: str, effort: Any
) -> dict[str, Any]:
    from dataclasses import replace

    from funcl import bench as benchmark
    from funcl.experiments.presets import preset
    from funcl.methods.sfsvi import SFSVI
    from funcl.networks import MLP

    network, method, training = preset(sequence.name, "sfsvi")
    if not isinstance(method, SFSVI) or not isinstance(network, MLP):
        raise FunclError(f"{sequence.name} has no dense network: its step cannot be counted.")
    method = replace(method, likelihood=likelihood)
    training = replace(training, precision=precision)
    return benchmark.bench_sequence(sequence, network, method, training, seeds, effort)


def tables(found: dict[str, Any]) -> list[Table]:
    """What was measured, as tables: steps of every sequence, and how a step grows."""
    from funcl.report.tables import Cell, Table

    steps = Table(
        "S-FSVI, a step of the last task",
        "sequence, draws, seeds",
        (*STEP, "steps/s", "compiling (s)", "memory (MB)", "predicting (µs/example)"),
        tuple(
            (
                f"{row['sequence']}, {row['likelihood']}, {row['seeds']}",
                (
                    *_step_cells(row),
                    Cell(row["steps_per_second"], decimals=0),
                    Cell(row["compile_seconds"], decimals=1),
                    Cell(row["peak_memory"] / 1e6, decimals=0),
                    Cell(row["prediction_microseconds"]),
                ),
            )
            for row in found["steps"]
        ),
    )
    grown = [
        Table(
            f"A step against {UNITS[across]}: time ~ n^{slope['time']:.2f}, "
            f"memory ~ n^{slope['memory']:.2f}",
            across,
            (*STEP, "memory (MB)"),
            tuple(
                (
                    f"{point['size']:,}",
                    (*_step_cells(point), Cell(point["chunk_memory"] / 1e6, decimals=1)),
                )
                for point in found["growth"]
                if point["across"] == across
            ),
        )
        for across, slope in found.get("slopes", {}).items()
    ]
    return [steps, *grown]


def _step_cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    from funcl.report.tables import Cell

    return (
        Cell(row["microseconds_per_step"], decimals=0),
        Cell(row["floor_microseconds"], decimals=0),
        Cell(row["ratio_to_floor"]),
    )


def _page(found: dict[str, Any], measured: list[Table], figures: list[Path]) -> str:
    """The page beside bench.json."""
    from funcl.experiments.circumstances import described
    from funcl.report.tables import to_markdown

    parts = [
        "# How fast a step is",
        f"Written by `{found['command']}` on {found['hardware']}; {described(found)}.",
        "Times are minima over repeats. The floor is the time of the step's bare matrix products, "
        "measured in turns with the step in the same process, and the ratio is step to floor. "
        "Exponents of context points leave out the sizes below 100, where the data term dominates.",
        *(to_markdown(table).rstrip() for table in measured),
        *(f"![{path.stem}]({path.name})" for path in figures),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(points: list[dict[str, Any]], out: Path) -> list[Path]:
    from funcl.report.figures import growth_figure, save

    written = []
    for across in dict.fromkeys(point["across"] for point in points):
        chosen = [point for point in points if point["across"] == across]
        sizes = [point["size"] for point in chosen]
        lines = {
            "a step": (sizes, [point["microseconds_per_step"] for point in chosen]),
            "its matrix products": (sizes, [point["floor_microseconds"] for point in chosen]),
        }
        path = out / f"growth-{across.replace(' ', '-')}.png"
        save(growth_figure(lines, across=UNITS[across], up="microseconds"), path)
        written.append(path)
    return written
