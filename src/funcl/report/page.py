"""One self-contained HTML page about runs: no network, and readable without JavaScript."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from funcl.disk import replace_file, writing
from funcl.errors import FunclError
from funcl.report import charts
from funcl.report.figures import curve_of_run, end_of_run, matrix_of_run, reliability
from funcl.report.runs import Run, by_setting, load_runs
from funcl.report.style import PALETTE, PALETTE_ON_DARK
from funcl.report.tables import LEGEND, Cell, Table, comparison, to_html

FEW = 4  # so many runs fit side by side: numbers then run down the page


@dataclass(frozen=True)
class Chart:
    """A chart with a title, a sentence about it, and its data as an HTML table."""

    title: str
    about: str
    spec: dict[str, Any]
    table: str


def write_report(folders: Sequence[str | Path], path: str | Path) -> None:
    """Write one page about the runs in `folders` to `path`."""
    if not folders:
        raise FunclError("A report needs at least one run folder: name the folders of your runs.")
    text = render(load_runs(folders))
    path = Path(path)
    if path.is_file() and not path.read_bytes().lstrip().lower().startswith(b"<!doctype html"):
        raise FunclError(f"{path} is there and no page: name another one for the report by -o.")
    with writing(path):
        replace_file(path, text.encode())


def render(runs: Sequence[Run]) -> str:
    """Return the page's HTML."""
    import jinja2
    import vl_convert

    groups = by_setting(runs)
    tables = comparison(runs)
    sections = [
        _section(setting, group, table)
        for (setting, group), table in zip(groups.items(), tables, strict=True)
    ]
    template = resources.files("funcl.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    library = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    specs = [chart.spec for section in sections for chart in section["charts"]]
    return environment.from_string(template).render(
        title=", ".join(dict.fromkeys(run.history.sequence for run in runs)),
        sections=sections,
        legend=LEGEND,
        font=charts.FONT,
        light=enumerate(PALETTE),
        dark=enumerate(PALETTE_ON_DARK),
        # "</" could close the script element early, in a task's name as well as in the library.
        specs=json.dumps(specs, allow_nan=False).replace("</", "<\\/"),
        library=library.replace("</script", "<\\/script"),
    )


def _section(setting: str, group: Mapping[str, Run], table: Table) -> dict[str, Any]:
    low = min([99.0, *(_lowest(run) for run in group.values())])
    found = [_accuracy(group)]
    found += [
        _matrix(label, run, low)
        for label, run in group.items()
        if np.isfinite(matrix_of_run(run.history)[0]).any(axis=1).sum() > 1  # one row is below
    ]
    found.append(_tasks(group))
    if any(len(reliability(run.history)) for run in group.values()):
        found.append(_calibration(group))
    curves = {label: charts.training_curve(run.log) for label, run in group.items()}
    curves = {label: curve for label, curve in curves.items() if curve}
    if curves:
        found.append(_training(curves))
    return {
        "setting": setting,
        "number_of_tasks": max(len(run.history.tasks) for run in group.values()),
        "cards": _cards(group, table) if len(group) <= FEW else [],
        "warnings": _warnings(group),
        "comparison": to_html(table.transposed() if len(group) <= FEW else table),
        "notes": table.notes,
        "has_best": table.has_best,
        "charts": found,
        "settings": to_html(_settings(group)),
        "circumstances": to_html(_circumstances(group)),
    }


def _cards(group: Mapping[str, Run], table: Table) -> list[dict[str, Any]]:
    seeds, place = table.columns.index("seeds"), table.columns.index("accuracy (%)")
    cards = []
    for (label, run), (_, cells) in zip(group.items(), table.rows, strict=True):
        mean, _, error = str(cells[place]).partition(" ± ")
        cards.append(
            {
                "label": label, "mean": mean, "error": error, "seeds": str(cells[seeds]),
                "note": cells[place].note, "published": charts.published({label: run}),
            }
        )  # fmt: skip
    return cards


def _warnings(group: Mapping[str, Run]) -> list[str]:
    warnings = []
    for label, run in group.items():
        for seed, where in sorted(run.history.diverged.items()):
            warnings.append(f"{label}: seed {seed} diverged at {where} and is left out.")
        if run.info.get("status") == "running":
            warnings.append(f"{label}: the run is not finished; go on with it by --resume.")
    return warnings


def _accuracy(group: Mapping[str, Run]) -> Chart:
    columns = [_cells(*curve_of_run(run.history)) for run in group.values()]
    longest = max((run.history.tasks for run in group.values()), key=len)
    rows = tuple(
        (task, tuple(column[t] if t < len(column) else Cell() for column in columns))
        for t, task in enumerate(longest)
    )
    return Chart(
        "Accuracy over tasks",
        "Mean accuracy over the tasks learned so far, in per cent; bands: one standard error.",
        charts.accuracy_chart(group),
        to_html(Table("", "after task", tuple(group), rows)),
    )


def _matrix(label: str, run: Run, low: float) -> Chart:
    history = run.history
    mean, error = matrix_of_run(history)
    rows = tuple((task, tuple(_cells(mean[t], error[t]))) for t, task in enumerate(history.tasks))
    return Chart(
        f"Every task after every task: {label}",
        "Read down a column to see what became of a task. Mean over seeds, in per cent.",
        charts.matrix_chart(history, low),
        to_html(Table("", "after task", tuple(history.tasks), rows)),
    )


def _tasks(group: Mapping[str, Run]) -> Chart:
    places: dict[tuple[str, str], Cell] = {}
    for label, run in group.items():
        cells = _cells(*end_of_run(run.history))
        places |= {
            (row, label): c for row, c in zip([*run.history.tasks, "mean"], cells, strict=True)
        }
    for entry in charts.published(group):
        places[entry["row"], entry["of"]] = Cell(entry["mean"], entry["standard_error"])
    rows = tuple(
        (row, tuple(places.get((row, label), Cell()) for label in group))
        for row in dict.fromkeys(row for row, _ in places)
    )
    return Chart(
        "Every task at the end",
        "Accuracy after the last task, in per cent, ± one standard error over seeds.",
        charts.task_chart(group),
        to_html(Table("", "task", tuple(group), rows)),
    )


def _calibration(group: Mapping[str, Run]) -> Chart:
    rows = tuple(
        (label, (Cell(c, decimals=3), Cell(a, decimals=3), Cell(100 * share)))
        for label, run in group.items()
        for c, a, share in reliability(run.history).tolist()
    )
    return Chart(
        "Calibration",
        "Accuracy against confidence after the last task, over all tasks and seeds. On the dashed "
        "line the model is as often right as it says; below it is overconfident. Dots grow with "
        "their share of the predictions.",
        charts.calibration_chart(group),
        to_html(Table("", "run", ("confidence", "accuracy", "share (%)"), rows)),
    )


def _training(curves: Mapping[str, charts.Records]) -> Chart:
    last: dict[tuple[str, str], float] = {}
    for label, curve in curves.items():
        for point in curve:
            last[f"{point['task']} ({point['phase']})", label] = point["loss"]
    rows = tuple(
        (part, tuple(Cell(last.get((part, label), np.nan), decimals=4) for label in curves))
        for part in dict.fromkeys(part for part, _ in last)
    )
    return Chart(
        "Training",
        "Loss, mean over seeds; a rule marks where a task or phase begins.",
        charts.training_chart(curves),
        to_html(Table("", "last loss of task (phase)", tuple(curves), rows)),
    )


def _settings(group: Mapping[str, Run]) -> Table:
    columns = [_flat(run.info.get("settings") or run.history.settings) for run in group.values()]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        texts = [column.get(name, "-") for column in columns]
        differs = len(set(texts)) > 1  # what makes the runs differ stands out
        rows.append((name, tuple(Cell(text=text, best=differs) for text in texts)))
    return Table("", "setting", tuple(group), tuple(rows))


def _circumstances(group: Mapping[str, Run]) -> Table:
    columns = []
    for run in group.values():
        info, history = run.info, run.history
        seconds = info.get("seconds") or history.seconds
        memory = info.get("peak_memory")
        facts = {
            "scenario": f"{history.scenario}, {history.heads} head",
            "preset": "the preset's settings" if info.get("preset") else "settings of its own",
            "seeds": ", ".join(map(str, history.seeds)),
            "data seed": str(history.data_seed),
            **{f"{kind} time": f"{value:,.1f} s" for kind, value in seconds.items()},
            "peak memory": f"{memory / 2**20:,.0f} MiB" if memory else "not measured",
            **{key: _text(info.get(key)) for key in ("precision", "hardware", "commit", "command")},
            **{name: _text(value) for name, value in (info.get("versions") or {}).items()},
        }
        columns.append(facts)
    names = list(dict.fromkeys(name for facts in columns for name in facts))
    rows = tuple(
        (name, tuple(Cell(text=facts.get(name, "-")) for facts in columns)) for name in names
    )
    return Table("", "", tuple(group), rows)


def _cells(means: np.ndarray, errors: np.ndarray) -> list[Cell]:
    return [Cell(float(m), float(e)) for m, e in zip(means, errors, strict=True)]


def _lowest(run: Run) -> float:
    mean, _ = matrix_of_run(run.history)
    return float(np.min(mean[np.isfinite(mean)], initial=100.0))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _text(value)
    return flat


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
