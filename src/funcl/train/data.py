"""From a sequence of tasks to the padded arrays that the compiled programs read."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from funcl.networks.network import Network
from funcl.protocol import Head, Problem, TaskData, TestData
from funcl.tasks.sequence import Task, TaskSequence


def problem_of(
    sequence: TaskSequence,
    stages: tuple[tuple[int, ...], ...],
    network: Network | None,
    batch_size: int,
    dtype: str,
) -> Problem:
    """The static shapes of a known sequence: every size is its largest."""
    return Problem(
        network=network,
        input_shape=sequence.input_shape,
        input_dtype=str(sequence[0].x_train.dtype),
        scale=sequence.scale,
        outputs=sequence.outputs,
        stages=len(stages),
        head_width=max(len(columns_of(sequence, stage)) for stage in stages),
        rows=max(sum(len(sequence[t].y_train) for t in stage) for stage in stages),
        batch_size=batch_size,
        dtype=dtype,
    )


def columns_of(sequence: TaskSequence, stage: tuple[int, ...]) -> tuple[int, ...]:
    """The output columns of all tasks that are trained together."""
    return tuple(sorted({c for t in stage for c in sequence[t].columns}))


def head_table(columns: list[tuple[int, ...]], stages: int, width: int) -> Head:
    """One padded row of columns per stage."""
    table = np.zeros((stages, width), np.int32)
    valid = np.zeros((stages, width), bool)
    for row, chosen in enumerate(columns):
        table[row, : len(chosen)] = chosen
        valid[row, : len(chosen)] = True
    return Head(jnp.asarray(table), jnp.asarray(valid))


class Shelf:
    """Arrays on the device, put there once however many tasks share them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[np.ndarray, jnp.ndarray]] = {}

    def padded(self, array: np.ndarray, rows: int) -> jnp.ndarray:
        """The array with rows of zeros behind it."""
        key = id(array), rows
        if key not in self._kept:
            # The array is kept so that its id stays its own.
            self._kept[key] = array, padded(array, rows)
        return self._kept[key][1]


def padded(array: np.ndarray, rows: int) -> jnp.ndarray:
    """The array on the device, with rows of zeros behind it."""
    filled = np.zeros((rows, *array.shape[1:]), array.dtype)
    filled[: len(array)] = array
    return jnp.asarray(filled)


def stage_data(
    sequence: TaskSequence,
    stages: tuple[tuple[int, ...], ...],
    number: int,
    problem: Problem,
    shelf: Shelf,
) -> TaskData:
    """The training data of one stage."""
    tasks = [sequence[t] for t in stages[number]]
    heads = head_table(
        [columns_of(sequence, s) for s in stages], problem.stages, problem.head_width
    )
    if len(tasks) == 1:
        size, permutation = len(tasks[0].y_train), tasks[0].permutation
        x = shelf.padded(tasks[0].x_train, problem.rows)
        y = shelf.padded(tasks[0].y_train, problem.rows)
        group = np.zeros(size, np.int32)
    else:
        # Tasks trained together may permute differently, so they are laid out as they are seen.
        size, permutation = sum(len(task.y_train) for task in tasks), None
        x = padded(np.concatenate([seen_inputs(task) for task in tasks]), problem.rows)
        y = padded(np.concatenate([task.y_train for task in tasks]), problem.rows)
        group = np.repeat(np.arange(len(tasks), dtype=np.int32), [len(t.y_train) for t in tasks])
    masks = np.zeros((len(tasks), problem.outputs), bool)
    for row, task in enumerate(tasks):
        masks[row, list(task.columns)] = True
    return TaskData(
        x=x,
        y=y,
        size=jnp.int32(size),
        stage=jnp.int32(number),
        heads=heads,
        masks=jnp.asarray(masks),
        group=padded(group, problem.rows),
        permutation=None if permutation is None else jnp.asarray(permutation),
    )


def seen_inputs(task: Task) -> np.ndarray:
    """Training inputs with the task's permutation applied."""
    if task.permutation is None:
        return task.x_train
    return task.x_train.reshape(len(task.x_train), -1)[:, task.permutation]


def test_pieces(sequence: TaskSequence, at_once: int) -> tuple[int, int]:
    """How the test parts are cut so that all have one shape: (pieces, rows of a piece)."""
    most = max(len(task.y_test) for task in sequence)
    pieces = -(-most // at_once)
    return pieces, -(-most // pieces)


def test_data(task: Task, pieces: tuple[int, int], shelf: Shelf) -> TestData:
    """The test part of a task, padded and cut."""
    count, rows = pieces
    x = shelf.padded(task.x_test, count * rows)
    y = shelf.padded(task.y_test, count * rows)
    return TestData(
        x.reshape(count, rows, *x.shape[1:]),
        y.reshape(count, rows),
        jnp.int32(len(task.y_test)),
        None if task.permutation is None else jnp.asarray(task.permutation),
    )
