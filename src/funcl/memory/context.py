"""Context points: the inputs at which the function is compared with the last posterior.

A `Source` says where points come from. `Noise` and `Pixels` make them up at every step;
`Coreset` draws them from the memory of each earlier task. `points` counts per step in all or,
with `per_task`, for each task concerned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from funcl.checked import real, whole
from funcl.errors import FunclError
from funcl.memory.select import lowest, rule
from funcl.memory.store import Memory


@dataclass(frozen=True)
class Source:
    """Where context points come from and how many of them."""

    points: int = 40
    per_task: bool = False

    def __post_init__(self) -> None:
        """Refuse empty contexts."""
        whole(f"{type(self).__name__}: points", self.points)

    def count(self, tasks: Any) -> Any:
        """Points in a step in which `tasks` tasks are concerned (a number or a traced one)."""
        return self.points * tasks if self.per_task else self.points


@dataclass(frozen=True)
class MadeUp(Source):
    """Points that are made at every step, from the current minibatch or from nothing."""

    def draw(self, key: Array, batch: Array, count: int) -> Array:
        """`count` inputs shaped like those of the minibatch."""
        raise NotImplementedError(f"{type(self).__name__} must say how its points are made.")


@dataclass(frozen=True)
class Noise(MadeUp):
    """Uniform noise in every coordinate, on [low, high] or on the range of the current batch."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """Refuse half a range and an empty one."""
        super().__post_init__()
        if (self.low is None) != (self.high is None):
            raise FunclError("Noise needs both low and high, or neither (the range of the batch).")
        if self.low is None or self.high is None:
            return
        if real("Noise: low", self.low) >= real("Noise: high", self.high):
            raise FunclError(f"Noise(low={self.low}, high={self.high}): low must be below high.")

    def draw(self, key: Array, batch: Array, count: int) -> Array:
        """`count` noise inputs."""
        low = jnp.min(batch, axis=0) if self.low is None else self.low
        high = jnp.max(batch, axis=0) if self.high is None else self.high
        u = jax.random.uniform(key, (count, *batch.shape[1:]), batch.dtype)
        return low + u * (high - low)


@dataclass(frozen=True)
class Pixels(MadeUp):
    """Inputs made of the current minibatch: a part `real` are its examples, the others constant.

    A constant input has one value everywhere (per channel, where inputs have three axes), taken
    from a random place of the minibatch: a grey image.
    """

    real: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a part outside [0, 1]."""
        super().__post_init__()
        if not 0 <= self.real <= 1:
            raise FunclError(f"Pixels(real={self.real}): the real part lies between 0 and 1.")

    def draw(self, key: Array, batch: Array, count: int) -> Array:
        """`count` inputs, the constant ones first; for several tasks, a draw for each."""
        if count > self.points:
            keys = jax.random.split(key, count // self.points)
            x = jax.vmap(lambda k: self.draw(k, batch, self.points))(keys)
            return x.reshape(count, *batch.shape[1:])
        examples = math.ceil(round(self.real * count, 6))  # 0.07 × 100 is 7, not a little more
        constant = count - examples
        if examples > batch.shape[0]:
            raise FunclError(
                f"{type(self).__name__} asks for {examples} distinct examples of a minibatch of "
                f"{batch.shape[0]}: ask for fewer points or enlarge batch_size."
            )
        place_key, row_key = jax.random.split(key)
        channels = batch.shape[-1] if batch.ndim == 4 else 1
        values = batch.reshape(-1, channels)
        places = jax.random.randint(place_key, (constant,), 0, values.shape[0])
        shape = (constant, *([1] * (batch.ndim - 2)), channels)
        grey = jnp.broadcast_to(values[places].reshape(shape), (constant, *batch.shape[1:]))
        rows = jax.random.permutation(row_key, batch.shape[0])[:examples]
        return jnp.concatenate([grey, batch[rows]])


@dataclass(frozen=True)
class Coreset(Source):
    """Points from the memory of every earlier task, drawn without replacement at every step."""

    per_task: bool = True


class Recalled(NamedTuple):
    """Where drawn points stand in the memory; `valid` is false for padding."""

    slot: Array  # int32 [points]
    row: Array  # int32 [points]
    valid: Array  # bool [points]


def recall_per_task(
    key: Array, memory: Memory, finished: Array, slots: int, points: int, selection: str
) -> Recalled:
    """`points` from each of the first `finished` slots; `slots` is their static upper bound."""
    capacity = memory.y.shape[1]
    points = min(points, capacity)
    if points == capacity:  # all of it: nothing to draw
        row = jnp.broadcast_to(_numbers(capacity), (slots, capacity))
    else:
        stored = _numbers(capacity) < memory.size[:slots, None]
        keys = jax.random.split(key, slots)
        row = lowest(jax.vmap(rule(selection))(keys, memory.y[:slots], stored), points)
    slot = jnp.broadcast_to(_numbers(slots)[:, None], row.shape)
    drawn = _numbers(points) < memory.size[:slots, None]
    valid = drawn & (slot < finished)
    return Recalled(slot.ravel(), row.ravel(), valid.ravel())


def recall_in_total(
    key: Array, memory: Memory, finished: Array, points: int, selection: str
) -> Recalled:
    """`points` in all, split evenly over the finished slots, the remainder to the last.

    With more tasks than points, a random choice of tasks gives one point each. The work does not
    depend on how many tasks there are.
    """
    slots = min(points, memory.y.shape[0])
    task_key, row_key = jax.random.split(key)
    choice = finished_choice(task_key, finished, memory.y.shape[0], slots)
    group, place = spread(points, finished, slots)
    stored = _numbers(memory.y.shape[1]) < memory.size[choice, None]
    keys = jax.random.split(row_key, slots)
    scores = jax.vmap(rule(selection))(keys, memory.y[choice], stored)
    ranked = lowest(scores, min(points, memory.y.shape[1]))
    place_kept = jnp.minimum(place, ranked.shape[1] - 1)
    slot = choice[group]
    return Recalled(slot, ranked[group, place_kept], place < memory.size[slot])


def finished_choice(key: Array, finished: Array, stages: int, slots: int) -> Array:
    """The finished slots in order where they fit into `slots`, else a random choice of them."""
    ordered = jnp.minimum(_numbers(slots), jnp.maximum(finished, 1) - 1)
    u = jnp.where(_numbers(stages) < finished, jax.random.uniform(key, (stages,)), jnp.inf)
    return jnp.where(finished <= slots, ordered, lowest(u, slots))


def spread(points: int, tasks: Array, slots: int) -> tuple[Array, Array]:
    """Share `points` over min(tasks, slots) groups evenly, the remainder to the last group.

    >>> group, place = spread(7, jnp.array(3), 7)
    >>> group.tolist(), place.tolist()
    ([0, 0, 1, 1, 2, 2, 2], [0, 1, 0, 1, 0, 1, 2])
    """
    groups = jnp.clip(tasks, 1, slots)
    share = points // groups
    index = _numbers(points)
    group = jnp.minimum(index // share, groups - 1)
    return group, index - group * share


def _numbers(count: int) -> Array:
    return jnp.arange(count, dtype=jnp.int32)
