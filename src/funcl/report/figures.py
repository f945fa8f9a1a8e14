"""Figures for papers: matplotlib, drawn on `Figure` objects without any global state.

Each function takes labelled histories (or plain arrays) and returns a `Figure`; `save` writes it as
PNG, SVG or PDF after the file's ending. Bands are one standard error over seeds; seeds that
diverged are left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from funcl.errors import FunclError
from funcl.evaluate import metrics
from funcl.evaluate.history import History
from funcl.report.style import FAINT, INK, QUIET, colour, with_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def save(figure: "Figure", path: str | Path) -> None:
    """Write the figure in the format that the ending of `path` names."""
    import matplotlib

    path = Path(path)
    if path.suffix not in FORMATS:
        raise FunclError(
            f"A figure cannot be written to {path}: end the name in .png, .svg or .pdf."
        )
    # Without the date and the random ids, the same figure is the same file.
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with matplotlib.rc_context({"svg.hashsalt": "funcl"}):
        figure.savefig(path, dpi=200, metadata=undated)


def accuracy_figure(runs: Mapping[str, History]) -> "Figure":
    """Mean accuracy over the tasks so far, after each task, one line per run."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = _panels(1, width=6.4, height=3.8)
    ends = []
    for number, (label, history) in enumerate(runs.items()):
        mean, error = curve_of_run(history)
        seen = np.flatnonzero(np.isfinite(mean))
        if not len(seen):
            continue
        mean, error, tint = mean[seen], np.nan_to_num(error[seen]), colour(number)
        axes.fill_between(seen + 1, mean - error, mean + error, color=tint, alpha=0.18, lw=0)
        axes.plot(seen + 1, mean, color=tint, marker="o", markersize=4, lw=1.8)
        ends.append((seen[-1] + 1, mean[-1], label, tint))
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("mean accuracy over tasks so far (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.12)
    _label_ends(axes, ends)
    return figure


def matrix_figure(history: History) -> "Figure":
    """Accuracy on each task (columns) after each task (rows), mean over seeds, in per cent."""
    mean, _ = matrix_of_run(history)
    number = len(history.tasks)
    side = 1.6 + max(2.4, 0.62 * min(number, 20))
    figure, (axes,) = _panels(1, width=side + 1.0, height=side, grid=False)
    low = float(np.min(mean[np.isfinite(mean)], initial=99.0))
    # Blue deepens with accuracy; the scale starts at the lowest value, so that differences show.
    image = axes.imshow(mean, cmap="Blues", vmin=low, vmax=100.0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    names = _short(history.tasks)
    axes.set_xticks(range(number), names, rotation=0 if max(map(len, names)) < 6 else 35)
    axes.set_yticks(range(number), names)
    for text in axes.get_xticklabels():
        text.set_horizontalalignment("center" if text.get_rotation() == 0 else "right")
    axes.set_xlabel("accuracy on task (%)")
    axes.set_ylabel("after task")
    if number <= 20:
        for after, on in zip(*np.nonzero(np.isfinite(mean)), strict=True):
            dark = (mean[after, on] - low) > 0.55 * (100 - low)
            axes.text(
                on, after, f"{mean[after, on]:.1f}", ha="center", va="center", fontsize=8,
                color="white" if dark else INK,
            )  # fmt: skip
    _quiet_bar(figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03))
    return figure


def task_figure(
    runs: Mapping[str, History], published: Sequence[Mapping[str, Any]] = ()
) -> "Figure":
    """Accuracy on every task at the end, and the mean over tasks beside the published numbers.

    `published` is a list of {"mean", "standard_error", "source"}, in per cent.
    """
    history = next(iter(runs.values()))
    groups = [*_short(history.tasks), "mean"]
    bars = len(runs) + (1 if published else 0)
    thick = 0.8 / max(bars, 1)
    height = 1.4 + len(groups) * max(0.34, 0.2 * bars)
    figure, (axes,) = _panels(1, width=6.4, height=height)
    axes.grid(axis="y", visible=False)
    for number, (label, run) in enumerate(runs.items()):
        values, errors = end_of_run(run)
        at = np.arange(len(values)) + (number - (bars - 1) / 2) * thick
        axes.barh(at, values, thick * 0.9, color=colour(number), label=label)
        for y, value, error in zip(at, values, errors, strict=True):
            if np.isfinite(value):
                _bar_label(axes, value, y, with_error(value, error))
    for number, entry in enumerate(published):
        share = thick / len(published)
        y = len(groups) - 1 + (len(runs) - bars / 2) * thick + (number + 0.5) * share
        axes.barh(y, entry["mean"], share * 0.9, color=FAINT, label=None if number else "published")
        text = with_error(entry["mean"], _number(entry.get("standard_error")))
        _bar_label(axes, entry["mean"], y, f"{text}  {entry.get('source') or 'published'}")
    axes.set_yticks(range(len(groups)), groups)
    axes.axhline(len(groups) - 1.5, color=FAINT, lw=0.8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy after the last task (%)")
    _legend(figure, axes)
    return figure


def calibration_figure(runs: Mapping[str, History]) -> "Figure":
    """Reliability diagram: accuracy against confidence at the end, over all tasks and seeds."""
    figure, (axes,) = _panels(1, width=4.6, height=4.4)
    axes.plot([0, 1], [0, 1], color=QUIET, lw=1, ls=(0, (4, 3)))
    for number, (label, history) in enumerate(runs.items()):
        curve = reliability(history)
        axes.plot(curve[:, 0], curve[:, 1], color=colour(number), lw=1.2)
        axes.scatter(
            curve[:, 0], curve[:, 1], s=12 + 90 * curve[:, 2], color=colour(number), lw=0,
            alpha=0.85, label=f"{label}: ECE {_final_ece(history)}",
        )  # fmt: skip
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    axes.set_xlabel("confidence (dot size: share of predictions)")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False, fontsize=9, loc="upper left", labelcolor=INK)
    return figure


def toy_figure(
    x: np.ndarray,
    y: np.ndarray,
    probabilities: Sequence[np.ndarray],
    points: Sequence[tuple[np.ndarray, np.ndarray]],
) -> "Figure":
    """Draw the predicted probability of class 1 over the plane, one panel per learned task.

    `x` and `y` are the grid's axes, `probabilities` one [len(y), len(x)] array per panel in steps
    of 0.05, and `points` the (positions [N, 2], labels [N]) of each task: panel t shows 1 to t.
    """
    from matplotlib.ticker import MaxNLocator

    number, shape = len(probabilities), (y[-1] - y[0]) / (x[-1] - x[0])
    height = 0.7 + 2.15 * float(shape)  # so that the panels fill it
    figure, panels = _panels(number, width=2.3 * number + 0.8, height=height, grid=False)
    contours = None
    for task, axes in enumerate(panels):
        contours = axes.contourf(
            x, y, probabilities[task], levels=np.linspace(0, 1, 21), cmap="coolwarm", alpha=0.85
        )
        for positions, labels in points[: task + 1]:
            for label, tint in ((0, "#0b1f4b"), (1, "#ffd34d")):
                rows = positions[np.asarray(labels) == label]
                axes.scatter(rows[:, 0], rows[:, 1], s=4, color=tint, lw=0, rasterized=True)
        axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), aspect="equal")
        axes.set_title(f"after task {task + 1}", fontsize=10, color=INK)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4, prune="both"))
        if task:
            axes.set_yticklabels([])
    assert contours is not None
    bar = figure.colorbar(
        contours, ax=panels, ticks=[0, 0.25, 0.5, 0.75, 1], fraction=0.02, pad=0.01
    )
    bar.set_label("probability of class 1", fontsize=9, color=INK)
    _quiet_bar(bar)
    return figure


def growth_figure(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, across: str, up: str
) -> "Figure":
    """Draw measured cost against size on logarithmic axes, with the slope beside each line."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure, (axes,) = _panels(1, width=6.4, height=3.8)
    ends = []
    for number, (label, (sizes, costs)) in enumerate(lines.items()):
        axes.plot(sizes, costs, color=colour(number), marker="o", markersize=4, lw=1.8)
        slope = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
        ends.append((sizes[-1], costs[-1], f"{label} (slope {slope:.2f})", colour(number)))
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    axes.margins(y=0.15)
    _label_ends(axes, ends)
    return figure


def end_of_run(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy on every task at the end, then their mean, with standard errors, in per cent."""
    R = 100 * history.without_diverged().accuracy
    row = metrics.last_row(R)
    last = R[:, -1 if row is None else row]
    return metrics.mean_and_error(np.column_stack([last, metrics.final(R)]))


def curve_of_run(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Mean accuracy over the tasks so far after each task, with standard errors, in per cent."""
    R = history.without_diverged().accuracy
    return metrics.mean_and_error(100 * metrics.after_each_task(R))


def matrix_of_run(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy [after, on], with standard errors, in per cent."""
    return metrics.mean_and_error(100 * history.without_diverged().accuracy)


def reliability(history: History) -> np.ndarray:
    """Rows of (confidence, accuracy, share of predictions) for every bin that holds any."""
    bins = np.nansum(history.without_diverged().bins, axis=(0, 1))
    bins = bins[bins[:, 0] > 0]
    count = bins[:, :1]
    return np.hstack([bins[:, 1:] / count, count / count.sum()])


def _panels(
    number: int, *, width: float, height: float, grid: bool = True
) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = [figure.add_subplot(1, number, place + 1) for place in range(number)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=QUIET, labelsize=9, length=3)
        axes.xaxis.label.set(color=INK, fontsize=10)
        axes.yaxis.label.set(color=INK, fontsize=10)
        axes.set_axisbelow(True)
        if grid:
            axes.grid(color=FAINT, lw=0.5, alpha=0.7)
    return figure, panels


def _quiet_bar(bar: "Colorbar") -> None:
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(labelsize=8, colors=QUIET)


def _label_ends(axes: "Axes", ends: list[tuple[float, float, str, str]]) -> None:
    """Write each line's name right of its last point, pushed apart where they would overlap."""
    if not ends:
        return
    axes.get_figure().draw_without_rendering()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    to_pixels, gap = axes.transData.transform, 15.0
    floor = -np.inf
    for x, y, label, tint in sorted(ends, key=lambda end: end[1]):
        wanted = to_pixels((x, y))[1]
        placed = max(wanted, floor + gap)
        floor = placed
        axes.annotate(
            label, (x, y), xytext=(8, (placed - wanted) * 0.72), textcoords="offset points",
            color=tint, fontsize=9, fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip


def _bar_label(axes: "Axes", value: float, y: float, text: str) -> None:
    axes.annotate(
        text, (value, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
        color=INK, annotation_clip=False,
    )  # fmt: skip


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(
            handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=9,
            labelcolor=INK,
        )  # fmt: skip


def _final_ece(history: History) -> str:
    ece = history.metrics["ece"]
    return "not measured" if np.isnan(ece.mean) else f"{100 * ece.mean:.2f} %"


def _short(names: Sequence[str], longest: int = 16) -> list[str]:
    return [name if len(name) <= longest else name[: longest - 1] + "…" for name in names]


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
