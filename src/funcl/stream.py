"""What a learner knows of its tasks, and how capacity grows while tasks keep coming."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from funcl.errors import FunclError
from funcl.protocol import Head, Problem, TaskData
from funcl.tasks.sequence import TaskSequence
from funcl.train.data import head_table
from funcl.train.engine import EVALUATION_ROWS, Engine, Learned


@dataclass(frozen=True, eq=False)
class Lesson:
    """One stretch of learning: the task it was for, and that task's classes and output columns.

    A task that is taken up again has a lesson for each time, on one head. `stage` counts what was
    trained one after the other.
    """

    task: str
    classes: tuple
    columns: tuple[int, ...]
    stage: int
    permutation: np.ndarray | None = None

    def numbers(self, labels: np.ndarray) -> np.ndarray:
        """The output columns of labels."""
        column = dict(zip(self.classes, self.columns, strict=True))
        return np.array([column[label] for label in labels.tolist()], np.int32)


@dataclass(frozen=True, eq=False)
class Progress:
    """All that has been learnt. Learning makes a new one: a call that fails leaves the old."""

    engine: Engine
    learned: Learned
    lessons: tuple[Lesson, ...]
    diverged: dict[int, str]  # seed: where it stopped

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks, in the order in which they were first learnt."""
        return list(dict.fromkeys(lesson.task for lesson in self.lessons))

    @property
    def alive(self) -> list[bool]:
        """Which seeds have not diverged."""
        return [seed not in self.diverged for seed in self.engine.seeds.numbers]

    def lesson(self, task: str) -> Lesson:
        """The last lesson of a task."""
        return next(lesson for lesson in reversed(self.lessons) if lesson.task == task)

    def predict(self, x: np.ndarray, lesson: Lesson) -> np.ndarray:
        """Class probabilities [seeds, examples, outputs] on a lesson's head."""
        return self._in_pieces(self.engine.predict, x, lesson)

    def moments(self, x: np.ndarray, lesson: Lesson) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and variance of the function [seeds, examples, head], if the method has any."""
        return self._in_pieces(self.engine.moments, x, lesson)

    def _in_pieces(self, look: Callable[..., Any], x: np.ndarray, lesson: Lesson) -> Any:
        head = head_of(self.engine.problem, lesson)
        state = self.engine.adapted(self.learned, lesson.stage, head)
        found = []
        for start in range(0, max(len(x), 1), EVALUATION_ROWS):
            piece = x[start : start + EVALUATION_ROWS]
            # Padded to a power of two, so that few sizes are compiled.
            size = len(piece)
            padded = np.zeros((min(doubled(size), EVALUATION_ROWS), *x.shape[1:]), x.dtype)
            padded[:size] = piece
            result = look(state, jnp.asarray(padded), lesson.stage, head)
            found.append(jax.tree.map(lambda a, size=size: a[:, :size], result))
        return jax.tree.map(lambda *pieces: np.concatenate(pieces, axis=1), *found)


def lessons_of(sequence: TaskSequence, stages: tuple[tuple[int, ...], ...]) -> tuple[Lesson, ...]:
    """The lessons of a known sequence whose tasks were trained in these stages."""
    stage_of = {task: number for number, stage in enumerate(stages) for task in stage}
    return tuple(
        Lesson(task.name, task.classes, task.columns, stage_of[number], task.permutation)
        for number, task in enumerate(sequence)
    )


def doubled(needed: int, present: int = 1) -> int:
    """The smallest present · 2ⁿ that holds what is needed.

    >>> doubled(5), doubled(5, 6), doubled(7, 6)
    (8, 6, 12)
    """
    while present < needed:
        present *= 2
    return present


def room_for(problem: Problem, lesson: Lesson, rows: int) -> Problem:
    """The problem with room for one more lesson; nothing changes where everything fits already."""
    return replace(
        problem,
        outputs=doubled(1 + max(lesson.columns), problem.outputs),
        stages=doubled(1 + lesson.stage, problem.stages),
        head_width=doubled(len(lesson.columns), problem.head_width),
        rows=doubled(rows, problem.rows),
    )


def shaped(x: np.ndarray, scale: float, problem: Problem, lesson: Lesson) -> np.ndarray:
    """Inputs as the earlier ones were, in the order in which the task has them."""
    if (str(x.dtype), scale) != (problem.input_dtype, problem.scale):
        raise FunclError(
            f"The inputs are {x.dtype} with the scale {scale:.4g} and the earlier ones were "
            f"{problem.input_dtype} with {problem.scale:.4g}: pass them in the same form."
        )
    if math.prod(x.shape[1:]) != math.prod(problem.input_shape):
        raise FunclError(
            f"Each row of the inputs has the shape {x.shape[1:]} and the earlier ones had "
            f"{problem.input_shape}: all tasks go through one network, so give them one shape."
        )
    if lesson.permutation is not None:
        return x.reshape(len(x), -1)[:, lesson.permutation]
    return x.reshape(len(x), *problem.input_shape)


def grow(learned: Learned, engine: Engine) -> Learned:
    """Put a smaller state into a freshly made larger one: what was learnt fills the leading corner.

    New columns and slots keep their initial values, and their optimiser moments are zero. Only the
    leaves are compared: a network may note its number of outputs in the structure around them.
    """

    def corner(new: jax.Array, old: jax.Array) -> jax.Array:
        if new.shape == old.shape:
            return old
        return new.at[tuple(slice(0, size) for size in old.shape)].set(old)

    larger, structure = jax.tree.flatten(engine.start())
    pairs = zip(larger, jax.tree.leaves(learned), strict=True)
    return jax.tree.unflatten(structure, [corner(new, old) for new, old in pairs])


def lesson_data(
    problem: Problem, lessons: Sequence[Lesson], x: np.ndarray, y: np.ndarray
) -> TaskData:
    """The last lesson's data, padded to the problem's shapes."""
    inputs = np.zeros((problem.rows, *x.shape[1:]), x.dtype)
    labels = np.zeros(problem.rows, np.int32)
    inputs[: len(x)], labels[: len(y)] = x, y
    columns = [lesson.columns for lesson in lessons]
    mask = np.zeros((1, problem.outputs), bool)
    mask[0, list(columns[-1])] = True
    return TaskData(
        x=jnp.asarray(inputs),
        y=jnp.asarray(labels),
        size=jnp.int32(len(y)),
        stage=jnp.int32(lessons[-1].stage),
        heads=head_table(columns, problem.stages, problem.head_width),
        masks=jnp.asarray(mask),
        group=jnp.zeros(problem.rows, jnp.int32),
    )


def blank_task(problem: Problem) -> TaskData:
    """A task of the problem's shapes without data, for whoever needs the shapes alone."""
    x = np.zeros((0, *problem.input_shape), problem.input_dtype)
    return lesson_data(problem, [Lesson("", (), (0,), 0)], x, np.zeros(0, np.int32))


def head_of(problem: Problem, lesson: Lesson) -> Head:
    """The head of a lesson's task."""
    table = head_table([lesson.columns], 1, problem.head_width)
    return Head(table.columns[0], table.valid[0])


def next_lesson(
    lessons: Sequence[Lesson], task: str, shown: tuple, heads: str, given: tuple | None
) -> Lesson:
    """The lesson that these data begin: on a new head, a known one, or the one that all share."""
    known = next((lesson for lesson in reversed(lessons) if lesson.task == task), None)
    if heads == "multi":
        classes = known.classes if known else shown
        strange = set(shown) - set(classes)
        if strange:
            raise FunclError(
                f"Task {task!r} was learnt with the classes {list(classes)} and now comes with "
                f"{list(shown)}: give the new classes a task name of their own."
            )
    else:
        classes = given or (lessons[0].classes if lessons else shown)
        strange = [c for c in shown if c not in classes]
        if strange:
            raise FunclError(
                f"Task {task!r} has labels outside the head, such as {strange[0]!r}: the single "
                f"head holds {list(classes)}. Name all classes at the start: "
                "Learner(..., classes=[...])."
            )
    if len(classes) < 2:
        raise FunclError(
            f"Task {task!r} shows only the class {shown[0]!r}, and a head needs two: join it "
            "with another task, or let all tasks share one head: heads='single', classes=[...]."
        )
    if known:
        columns = known.columns
    elif heads == "single":
        columns = tuple(range(len(classes)))
    else:
        start = 1 + max((max(lesson.columns) for lesson in lessons), default=-1)
        columns = tuple(range(start, start + len(classes)))
    permutation = known.permutation if known else None
    return Lesson(task, classes, columns, len(lessons), permutation)
