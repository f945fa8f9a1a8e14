"""The page's interactive charts, as Vega-Lite built with altair.

Colours of text and lines are the page's CSS variables, so the same charts serve light, dark and
print. All data are inlined; every chart is as wide as its place on the page.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from funcl.evaluate.history import History
from funcl.report.figures import curve_of_run, end_of_run, matrix_of_run, reliability
from funcl.report.runs import Run
from funcl.report.style import PALETTE, with_error

Records = list[dict[str, Any]]
LONGEST_CURVE = 400
PUBLISHED = "published"
# Named, not inherited: the charts measure their labels in it. The page uses the same.
FONT = 'system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif'


def accuracy_chart(group: Mapping[str, Run]) -> dict[str, Any]:
    """Mean accuracy over the tasks so far, with bands of one standard error."""
    import altair as alt

    records: Records = []
    for label, run in group.items():
        means, errors = (values.tolist() for values in curve_of_run(run.history))
        for t, (mean, error) in enumerate(zip(means, errors, strict=True)):
            if np.isfinite(mean):
                half = 0.0 if np.isnan(error) else error
                records.append(
                    {
                        "run": label, "tasks": t + 1, "task": run.history.tasks[t],
                        "accuracy": mean, "low": mean - half, "high": mean + half,
                        "shown": with_error(mean, error),
                    }
                )  # fmt: skip
    base = alt.Chart(alt.Data(values=records)).encode(
        x=alt.X("tasks:Q", title="tasks learned", axis=alt.Axis(format="d", tickMinStep=1)),
        color=_colours(list(group)),
    )
    scale = alt.Scale(zero=False, nice=True)
    title = "mean accuracy so far (%)"
    band = base.mark_area(opacity=0.2).encode(alt.Y("low:Q", scale=scale, title=title), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(alt.Y("accuracy:Q", scale=scale, title=title))
    point = base.mark_point(filled=True, size=55, opacity=1).encode(
        alt.Y("accuracy:Q", scale=scale, title=title),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("task:N", title="after"),
            alt.Tooltip("shown:N", title="accuracy (%)"),
        ],
    )
    return _finished(alt.layer(band, line, point), height=280)


def matrix_chart(history: History, low: float) -> dict[str, Any]:
    """Accuracy on each task after each task: the mean over seeds, as a heat map with numbers.

    The colours begin at `low` per cent, so that several runs can share one scale.
    """
    import altair as alt

    mean, error = matrix_of_run(history)
    records = [
        {
            "after": history.tasks[t], "on": history.tasks[i], "accuracy": float(mean[t, i]),
            "shown": with_error(float(mean[t, i]), float(error[t, i])),
        }
        for t, i in zip(*np.nonzero(np.isfinite(mean)), strict=True)
    ]  # fmt: skip
    number = len(history.tasks)
    scale = alt.Scale(domain=history.tasks)
    axis = alt.Axis(labelLimit=110, labelOverlap=True)
    base = alt.Chart(alt.Data(values=records)).encode(
        x=alt.X("on:N", scale=scale, axis=axis, title="accuracy on task (%)"),
        y=alt.Y("after:N", scale=scale, axis=axis, title="after task"),
    )
    gap = 2 if number <= 12 else 0
    cells = base.mark_rect(cornerRadius=gap, stroke="var(--paper)", strokeWidth=gap).encode(
        alt.Color(
            "accuracy:Q",
            scale=alt.Scale(domain=[low, 100], range=["#eaf3fb", "#5aa5d8", "#08457e"]),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("after:N"),
            alt.Tooltip("on:N"),
            alt.Tooltip("shown:N", title="accuracy (%)"),
        ],
    )
    dark = alt.datum.accuracy > low + 0.6 * (100 - low)
    numbers = base.mark_text(fontSize=12 if number <= 6 else 9).encode(
        text=alt.Text("accuracy:Q", format=".1f"),
        color=alt.condition(dark, alt.value("#ffffff"), alt.value("#1b2733")),
    )
    chart = alt.layer(cells, numbers) if number <= 12 else alt.layer(cells)
    return _finished(chart, height=min(520, 40 + 44 * number))


def task_chart(group: Mapping[str, Run]) -> dict[str, Any]:
    """Accuracy on every task at the end, and the mean over tasks beside the published numbers."""
    import altair as alt

    records: Records = []
    for label, run in group.items():
        values, errors = end_of_run(run.history)
        for task, value, error in zip([*run.history.tasks, "mean"], values, errors, strict=True):
            if np.isfinite(value):
                records.append(_bar(task, label, value, error))
    for entry in published(group):
        records.append(_bar(entry["row"], entry["of"], entry["mean"], entry["standard_error"]))
    rows = list(dict.fromkeys(record["row"] for record in records))
    last = ["mean", *(row for row in rows if row.startswith(PUBLISHED))]
    rows = [row for row in rows if row not in last] + last
    base = alt.Chart(alt.Data(values=records)).encode(
        y=alt.Y("row:N", sort=rows, title=None, axis=alt.Axis(labelLimit=130),
                scale=alt.Scale(paddingInner=0.22)),
        yOffset=alt.YOffset("run:N", sort=list(group)),
    )  # fmt: skip
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("accuracy:Q", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(tickCount=5),
                title="accuracy after the last task (%)"),
        color=_colours(list(group)),
        opacity=alt.condition("datum.published", alt.value(0.5), alt.value(1)),
        tooltip=[
            alt.Tooltip("row:N", title="task"), alt.Tooltip("run:N"),
            alt.Tooltip("shown:N", title="accuracy (%)"),
        ],
    )  # fmt: skip
    numbers = base.mark_text(align="left", dx=4, fontSize=11, color="var(--ink)").encode(
        x=alt.X("accuracy:Q"), text="shown:N"
    )
    height = len(rows) * (8 + 17 * len(group))
    return _finished(alt.layer(bars, numbers), height=height)


def calibration_chart(group: Mapping[str, Run]) -> dict[str, Any]:
    """Reliability diagram at the end, over all tasks and seeds; the diagonal is honest."""
    import altair as alt

    records = [
        {"run": label, "confidence": c, "accuracy": a, "share": share}
        for label, run in group.items()
        for c, a, share in reliability(run.history).tolist()
    ]
    honest = alt.Chart(alt.Data(values=[{"at": 0}, {"at": 1}]))
    diagonal = honest.mark_line(strokeDash=[4, 4], color="var(--quiet)", strokeWidth=1).encode(
        x="at:Q", y="at:Q"
    )
    unit = alt.Scale(domain=[0, 1])
    base = alt.Chart(alt.Data(values=records)).encode(
        x=alt.X("confidence:Q", scale=unit, axis=alt.Axis(tickCount=5), title="confidence"),
        y=alt.Y("accuracy:Q", scale=unit, axis=alt.Axis(tickCount=5), title="accuracy"),
        color=_colours(list(group)),
    )
    # Bins that hold next to nothing are dots alone: a line through them would shout.
    line = base.transform_filter("datum.share >= 0.01").mark_line(strokeWidth=1.5, opacity=0.5)
    point = base.mark_point(filled=True, opacity=0.85).encode(
        size=alt.Size("share:Q", scale=alt.Scale(domain=[0, 1], range=[25, 420]), legend=None),
        tooltip=[
            alt.Tooltip("run:N"), alt.Tooltip("confidence:Q", format=".3f"),
            alt.Tooltip("accuracy:Q", format=".3f"),
            alt.Tooltip("share:Q", format=".2%", title="share of predictions"),
        ],
    )  # fmt: skip
    return _finished(alt.layer(diagonal, line, point), height=330)


def training_chart(curves: Mapping[str, Records]) -> dict[str, Any]:
    """Loss against steps, mean over seeds, with a rule where each task begins."""
    import altair as alt

    records = [{"run": label, **point} for label, curve in curves.items() for point in curve]
    positive = all(record["loss"] > 0 for record in records)
    scale = alt.Scale(type="log", nice=True) if positive else alt.Scale(zero=False)
    dots = alt.OverlayMarkDef(size=14)  # a task may be a single point
    base = alt.Chart(alt.Data(values=records))
    line = base.mark_line(strokeWidth=1.5, clip=True, point=dots).encode(
        x=alt.X("step:Q", title="gradient steps", axis=alt.Axis(format="~s", tickCount=6)),
        y=alt.Y("loss:Q", scale=scale, title="loss"),
        color=_colours(list(curves)),
        detail=["task:N", "phase:N"],
        tooltip=["run:N", "task:Q", "phase:N", alt.Tooltip("step:Q", format=","), "loss:Q"],
    )  # fmt: skip
    starts = sorted({point["start"] for curve in curves.values() for point in curve} - {0})
    rules = alt.Chart(alt.Data(values=[{"start": start} for start in starts])).mark_rule(
        color="var(--faint)"
    )
    chart = alt.layer(rules.encode(x="start:Q"), line) if starts else alt.layer(line)
    return _finished(chart, height=240)


def training_curve(log: Sequence[Mapping[str, Any]]) -> Records:
    """Points (step over all tasks, loss as the mean over seeds) from a run's log, thinned."""
    points: Records = []
    start = length = 0
    current: tuple[Any, Any] | None = None
    for line in log:
        part = (line.get("task"), line.get("phase"))
        if part != current:
            start, current = start + length, part
        length = int(line.get("steps") or line.get("step") or 0)
        losses = np.array(line.get("loss") or [], dtype=np.float64)
        losses = losses[np.isfinite(losses)]
        if len(losses):
            points.append(
                {
                    "step": start + int(line.get("step") or 0), "loss": float(losses.mean()),
                    "task": part[0], "phase": part[1], "start": start,
                }
            )  # fmt: skip
    return points[:: max(1, -(-len(points) // LONGEST_CURVE))]


def published(group: Mapping[str, Run]) -> Records:
    """The published numbers of a group's runs, in per cent, with the row to show each in."""
    entries = [
        {
            "of": label, "mean": float(entry["mean"]), "source": entry.get("source") or "no source",
            "standard_error": float(np.array(entry.get("standard_error"), np.float64)),
        }
        for label, run in group.items()
        for entry in run.info.get("published") or []
    ]  # fmt: skip
    several = len({entry["source"] for entry in entries}) > 1
    for entry in entries:
        entry["row"] = f"{PUBLISHED}: {entry['source']}" if several else PUBLISHED
    return entries


def _bar(row: str, run: str, value: float, error: float) -> dict[str, Any]:
    shown = with_error(value, error)
    return {
        "row": row, "run": run, "accuracy": float(value), "shown": shown,
        "published": row.startswith(PUBLISHED),
    }  # fmt: skip


def _colours(names: list[str]) -> Any:
    import altair as alt

    tints = [f"var(--run-{number % len(PALETTE)})" for number in range(len(names))]
    legend = alt.Legend(title=None, orient="top", columns=2, labelLimit=260, symbolType="circle")
    return alt.Color(
        "run:N",
        scale=alt.Scale(domain=names, range=tints),
        legend=legend if len(names) > 1 else None,
    )


def _finished(chart: Any, *, height: int) -> dict[str, Any]:
    axis = {
        "labelColor": "var(--quiet)", "titleColor": "var(--ink)", "domainColor": "var(--faint)",
        "tickColor": "var(--faint)", "gridColor": "var(--grid)", "labelFontSize": 12,
        "titleFontSize": 12, "titleFontWeight": "normal", "labelAngle": 0,
    }  # fmt: skip
    spec = (
        chart.properties(
            width="container", height=height, background="transparent", padding=4
        )
        .configure(font=FONT)
        .configure_view(stroke=None)
        .configure_axis(**axis)
        .configure_axisX(labelOverlap=True)
        .configure_legend(labelColor="var(--ink)", labelFontSize=12, symbolOpacity=1)
        .to_dict()
    )  # fmt: skip
    spec.pop("$schema")  # an address that nothing needs at view time
    return spec
