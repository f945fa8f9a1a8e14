"""A store of fixed capacity for a few examples of every task."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from funcl.protocol import Problem, TaskData


class Memory(NamedTuple):
    """Stored examples, one slot per task learnt; rows beyond `size` are padding."""

    x: Array  # [stages, capacity, ...] in the dtype of the inputs
    y: Array  # int32 [stages, capacity]
    size: Array  # int32 [stages]

    @classmethod
    def empty(cls, problem: Problem, capacity: int) -> Memory:
        """A store for every stage of the problem."""
        slots = (problem.stages, capacity)
        return cls(
            jnp.zeros((*slots, *problem.input_shape), problem.input_dtype),
            jnp.zeros(slots, jnp.int32),
            jnp.zeros(problem.stages, jnp.int32),
        )

    def insert(self, task: TaskData, rows: Array, size: Array) -> Memory:
        """Put some rows of a task into its slot."""
        return Memory(
            self.x.at[task.stage].set(task.raw(rows)),
            self.y.at[task.stage].set(task.y[rows]),
            self.size.at[task.stage].set(size),
        )
