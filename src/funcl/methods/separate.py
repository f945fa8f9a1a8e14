"""Separate training: every task is learnt alone, by a fresh copy of any method.

The inner method is told that each task is its first and only one, so it trains θ_t from its own
initial state on task t and knows of no other task. The finished state of every task is kept, and
a task is predicted by its own. The accuracies are R^ind, the measure of forward transfer.

The first task is exactly what the inner method does on its first task. Later ones draw new initial
parameters: their networks are independent, as separately trained ones are. The epochs, the learning
rate and the phases are those of a first task throughout. With a single head the prediction is told
which task an input belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from funcl.methods.wrapper import Wrapper
from funcl.protocol import Batch, Head, Keys, Phase, Problem, PyTree, State, Step, TaskData


class Carried(NamedTuple):
    """What the task in training carries, and the finished states: [stages, ...] in every leaf.

    A state that has been taken off the shelf to predict with has no others beside it.
    """

    inner: PyTree
    finished: State | None


@dataclass(frozen=True)
class Separate(Wrapper):
    """Any method, on each task alone."""

    name: ClassVar[str] = "separate"
    always_first: ClassVar[bool] = True

    @property
    def adaptation(self) -> Phase | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner method's adaptation, of one task's own state."""
        phase = self.method.adaptation
        return None if phase is None else alone_phase(phase)

    def phases(self) -> tuple[Phase, ...]:
        """The inner method's phases, each on a problem of one task."""
        return tuple(alone_phase(phase) for phase in self.method.phases())

    def check(self, problem: Problem, sizes: Mapping[str, int]) -> None:
        """The inner method has to cope with each task."""
        self.method.check(alone(problem), sizes)

    def init(self, problem: Problem, keys: Keys) -> State:
        """The first task's initial state, and room for all finished ones."""
        state = self.method.init(alone(problem), keys)
        room = jax.tree.map(lambda a: jnp.broadcast_to(a, (problem.stages, *a.shape)), state)
        return outer(state, room)

    def begin_task(
        self, problem: Problem, state: State, task: TaskData, keys: Keys
    ) -> tuple[State, PyTree]:
        """Start afresh; the first task has its initial state already."""
        fresh = self.method.init(alone(problem), keys.fold(0))
        first = task.stage == 0
        own = jax.tree.map(lambda a, b: jnp.where(first, a, b), inner(state), fresh)
        own, reference = self.method.begin_task(alone(problem), own, alone_task(task), keys)
        return outer(own, state.carried.finished), reference

    def end_task(
        self, problem: Problem, state: State, reference: PyTree, task: TaskData, keys: Keys
    ) -> State:
        """Put the finished state on the shelf."""
        own = inner(state)
        own = self.method.end_task(alone(problem), own, reference, alone_task(task), keys)
        shelf = jax.tree.map(
            lambda kept, new: kept.at[task.stage].set(new), state.carried.finished, own
        )
        return outer(own, shelf)

    def predict(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head, keys: Keys
    ) -> Array:
        """The probabilities of the task's own state."""
        own = chosen(state, stage)
        return self.method.predict(alone(problem), own, x, jnp.zeros_like(stage), head, keys)

    def moments(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head
    ) -> tuple[Array, Array] | None:
        """The moments of the task's own state."""
        own = chosen(state, stage)
        return self.method.moments(alone(problem), own, x, jnp.zeros_like(stage), head)

    def recall(
        self, problem: Problem, state: State, stage: Array, head: Head
    ) -> tuple[State, TaskData, PyTree]:
        """The task's own state, taken off the shelf, and what it adapts on."""
        own = chosen(state, stage)
        own, task, reference = self.method.recall(alone(problem), own, jnp.zeros_like(stage), head)
        return outer(own, None), task, reference


def alone(problem: Problem) -> Problem:
    """The problem of a single task."""
    return replace(problem, stages=1)


def alone_task(task: TaskData) -> TaskData:
    """A task as the first and only one."""
    heads = Head(task.head.columns[None], task.head.valid[None])
    return task._replace(stage=jnp.zeros_like(task.stage), heads=heads)


def first_batch(batch: Batch) -> Batch:
    """A batch of the first and only task."""
    return batch._replace(stage=jnp.zeros_like(batch.stage))


def inner(state: State) -> State:
    """The state of the task in training, as the inner method knows it."""
    return state._replace(carried=state.carried.inner)


def outer(own: State, finished: State | None) -> State:
    """The inner method's state with the finished ones beside it."""
    return own._replace(carried=Carried(own.carried, finished))


def chosen(state: State, stage: Array) -> State:
    """The finished state of a stage, or the only one there is."""
    if state.carried.finished is None:
        return inner(state)
    return jax.tree.map(lambda kept: kept[stage], state.carried.finished)


def alone_phase(phase: Phase) -> Phase:
    """A phase whose functions see the problem of a single task."""

    def loss(
        problem: Problem, trainable: PyTree, reference: PyTree, batch: Batch, keys: Keys
    ) -> PyTree:
        return phase.loss(alone(problem), trainable, reference, first_batch(batch), keys)

    def penalty(
        problem: Problem, trainable: PyTree, reference: PyTree, batch: Batch, keys: Keys
    ) -> Array:
        assert phase.penalty is not None
        return phase.penalty(alone(problem), trainable, reference, first_batch(batch), keys)

    def after_step(problem: Problem, running: PyTree, reference: PyTree, step: Step) -> PyTree:
        assert phase.after_step is not None
        return phase.after_step(alone(problem), running, reference, step)

    def trained(problem: Problem, trainable: PyTree, reference: PyTree) -> PyTree:
        assert phase.trained is not None
        return phase.trained(alone(problem), trainable, reference)

    def enter(
        problem: Problem, state: State, reference: PyTree, task: TaskData, keys: Keys
    ) -> State:
        assert phase.enter is not None
        own = phase.enter(alone(problem), inner(state), reference, alone_task(task), keys)
        return outer(own, state.carried.finished)

    return replace(
        phase,
        loss=loss,
        penalty=phase.penalty and penalty,
        after_step=phase.after_step and after_step,
        trained=phase.trained and trained,
        enter=phase.enter and enter,
    )
