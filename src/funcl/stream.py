"""What a learner remembers of its tasks on the host, and how capacity grows while tasks keep coming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from funcl.errors import FunclError
from funcl.protocol import Head, Problem, TaskData
from funcl.tasks.sequence import TaskSequence
from funcl.train.data import head_table
from funcl.train.engine import Engine, Learned


@dataclass(frozen=True, eq=False)
class Lesson:
    """One stretch of learning: the task it was for, and that task's classes and output columns.

    A task that is taken up again has a lesson for each time, on one head.
    """

    task: str
    classes: tuple
    columns: tuple[int, ...]
    permutation: np.ndarray | None = None


def lessons_of(sequence: TaskSequence) -> list[Lesson]:
    """The lessons of a known sequence."""
    return [Lesson(t.name, t.classes, t.columns, t.permutation) for t in sequence]


def doubled(needed: int, present: int = 1) -> int:
    """The smallest present · 2ⁿ that holds what is needed.

    >>> doubled(5), doubled(5, 6), doubled(7, 6)
    (8, 6, 12)
    """
    while present < needed:
        present *= 2
    return present


def room_for(
    problem: Problem | None,
    fixed: Problem,
    lessons: Sequence[Lesson],
    rows: int,
) -> Problem:
    """The problem with room for all lessons; nothing changes where everything fits already.

    `fixed` gives what does not grow, and the sizes to begin with.
    """
    now = problem or fixed
    return replace(
        now,
        outputs=doubled(1 + max(max(lesson.columns) for lesson in lessons), now.outputs),
        stages=doubled(len(lessons), now.stages),
        head_width=doubled(max(len(lesson.columns) for lesson in lessons), now.head_width),
        rows=doubled(rows, now.rows),
    )


def grow(learned: Learned, engine: Engine) -> Learned:
    """Put a smaller state into a freshly made larger one: what was learnt fills the leading corner.

    New columns and slots keep their initial values, and their optimiser moments are zero.
    """

    def corner(new: jax.Array, old: jax.Array) -> jax.Array:
        if new.shape == old.shape:
            return old
        return new.at[tuple(slice(0, size) for size in old.shape)].set(old)

    return jax.tree.map(corner, engine.start(), learned)


def lesson_data(
    problem: Problem, lessons: Sequence[Lesson], x: np.ndarray, y: np.ndarray
) -> TaskData:
    """The last lesson's data, padded to the problem's shapes."""
    rows = problem.rows
    inputs = np.zeros((rows, *x.shape[1:]), x.dtype)
    labels = np.zeros(rows, np.int32)
    inputs[: len(x)], labels[: len(y)] = x, y
    columns = [lesson.columns for lesson in lessons]
    mask = np.zeros((1, problem.outputs), bool)
    mask[0, list(columns[-1])] = True
    return TaskData(
        x=jnp.asarray(inputs),
        y=jnp.asarray(labels),
        size=jnp.int32(len(y)),
        stage=jnp.int32(len(lessons) - 1),
        heads=head_table(columns, problem.stages, problem.head_width),
        masks=jnp.asarray(mask),
        group=jnp.zeros(rows, jnp.int32),
    )


def blank_task(problem: Problem) -> TaskData:
    """A task of the problem's shapes without data, for whoever needs the shapes alone."""
    x = np.zeros((0, *problem.input_shape), problem.input_dtype)
    return lesson_data(problem, [Lesson("", (), (0,))], x, np.zeros(0, np.int32))


def head_of(problem: Problem, lesson: Lesson) -> Head:
    """The head of a lesson's task."""
    table = head_table([lesson.columns], 1, problem.head_width)
    return Head(table.columns[0], table.valid[0])


def next_lesson(
    lessons: Sequence[Lesson], task: str, classes: tuple, heads: str, given: tuple | None
) -> Lesson:
    """The lesson that data with these classes begin: a new head, a known one, or the one that all share."""
    if heads == "single":
        head = given or (lessons[0].classes if lessons else classes)
        strange = [c for c in classes if c not in head]
        if strange:
            raise FunclError(
                f"Task {task!r} has labels outside the head, such as {strange[0]!r}: the single head "
                f"holds {list(head)}. Name all classes at the start: Learner(..., classes=[...])."
            )
        return Lesson(task, head, tuple(range(len(head))))
    for known in lessons:
        if known.task != task:
            continue
        if not set(classes) <= set(known.classes):
            raise FunclError(
                f"Task {task!r} was learnt with the classes {list(known.classes)} and now comes with "
                f"{list(classes)}: give the new classes a task name of their own."
            )
        return Lesson(task, known.classes, known.columns)
    if len(classes) < 2:
        raise FunclError(
            f"Task {task!r} shows only the class {classes[0]!r}: a head of its own needs two classes. "
            "Join it with another task, or use one head for all: heads='single'."
        )
    start = 1 + max((max(lesson.columns) for lesson in lessons), default=-1)
    return Lesson(task, classes, tuple(range(start, start + len(classes))))
