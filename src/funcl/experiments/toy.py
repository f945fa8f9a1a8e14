"""The figure of the toy sequence: predicted probabilities over the plane, after every task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from funcl.disk import writing
from funcl.experiments.store import Store
from funcl.report.figures import save, toy_figure
from funcl.tasks.sequence import TaskSequence
from funcl.train.engine import Engine
from funcl.train.run import Runner

DRAWS = 50
POINTS = 100  # training points of every task that are shown
STEP = 0.25  # of the grid
# How far the grid reaches beyond the shown points of the first task: below, and above in x and y.
MARGIN_BELOW, MARGIN_ABOVE = 1.0, (3.0, 1.5)


def draw_toy(
    runner: Runner,
    store: Store,
    path: Path,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Write the figure of one of the runner's seeds, unless `stop` ends the training before.

    Class probabilities are averaged over the same 50 weight draws everywhere. States that the store
    keeps are not trained again.
    """
    place = runner.engine.seeds.numbers.index(seed)
    sequence = runner.sequence
    points = shown_points(sequence)
    x, y = grid(points[0][0])
    plane = jnp.asarray(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2), jnp.float32)
    method = replace(runner.engine.method, prediction="probabilities", prediction_draws=DRAWS)  # pyright: ignore[reportCallIssue]
    painter = Engine(runner.problem, method, runner.engine.training, runner.engine.seeds)
    panels = []
    for snapshot in store.advance(runner, stop):
        if snapshot.report is None:
            stage = snapshot.stage - 1
            state = painter.adapted(snapshot.learned, stage, runner.head(stage))
            p = painter.predict(state, plane, stage, runner.head(stage))
            panels.append(p[place, :, 1].reshape(len(y), len(x)))
    if len(panels) < len(sequence):
        return False
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save(toy_figure(x, y, panels, points), path)
    return True


def shown_points(sequence: TaskSequence) -> list[tuple[np.ndarray, np.ndarray]]:
    """Some training points of every task with their labels."""
    generator = np.random.default_rng(sequence.data_seed)
    rows = [generator.choice(len(task.y_train), POINTS, replace=False) for task in sequence]
    return [
        (task.x_train[chosen], task.y_train[chosen])
        for task, chosen in zip(sequence, rows, strict=True)
    ]


def grid(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The axes of the plane that is shown around some positions."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    x, y = (
        np.arange(low[axis] - MARGIN_BELOW, high[axis] + MARGIN_ABOVE[axis], STEP)
        for axis in (0, 1)
    )
    return x, y
