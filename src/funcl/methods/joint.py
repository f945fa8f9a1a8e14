"""Joint training: all tasks at once, as one stage of any method.

The inner method sees a single first task whose rows are those of all tasks. Each example keeps its
own head, so with M_b the columns of its task and B examples drawn from all tasks together, a plain
network minimises

    L(θ) = −(1/B) Σ_b log softmax_{M_b}( f(x_b; θ) )[y_b]

Nothing is learnt one after the other, so only the last row of the accuracy tensor exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from funcl.methods.wrapper import Wrapper
from funcl.protocol import Head, Keys, Problem, PyTree, State, TaskData


@dataclass(frozen=True)
class Joint(Wrapper):
    """Any method, on all tasks together."""

    name: ClassVar[str] = "joint"

    def stages(self, tasks: int) -> tuple[tuple[int, ...], ...]:
        """One stage with every task."""
        return (tuple(range(tasks)),)

    def check(self, problem: Problem, sizes: Mapping[str, int]) -> None:
        """The inner method has to cope with one task of all examples."""
        self.method.check(problem, {"all tasks": sum(sizes.values())})

    def init(self, problem: Problem, keys: Keys) -> State:
        """The inner method's state."""
        return self.method.init(problem, keys)

    def begin_task(
        self, problem: Problem, state: State, task: TaskData, keys: Keys
    ) -> tuple[State, PyTree]:
        """The inner method's first task begins."""
        return self.method.begin_task(problem, state, task, keys)

    def end_task(
        self, problem: Problem, state: State, reference: PyTree, task: TaskData, keys: Keys
    ) -> State:
        """The inner method's first task ends."""
        return self.method.end_task(problem, state, reference, task, keys)

    def predict(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head, keys: Keys
    ) -> Array:
        """The inner method's probabilities on a task's own head."""
        return self.method.predict(problem, state, x, stage, head, keys)

    def moments(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head
    ) -> tuple[Array, Array] | None:
        """The inner method's moments on a task's own head."""
        return self.method.moments(problem, state, x, stage, head)

    def recall(
        self, problem: Problem, state: State, stage: Array, head: Head
    ) -> tuple[State, TaskData, PyTree]:
        """What the inner method adapts on."""
        return self.method.recall(problem, state, stage, head)
