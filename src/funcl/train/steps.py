"""What a chunk of steps does to one seed: the gradient steps, the order of examples, who survives.

Everything here is traced, for one seed; the engine lays it out over seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from funcl.protocol import Batch, Keys, Phase, Problem, State, Step, TaskData

PyTree = Any


class Learned(NamedTuple):
    """Everything that training changes, with a leading seed axis."""

    state: State
    optimiser: PyTree
    alive: Array  # bool: false once a seed has diverged


def take_steps(
    problem: Problem,
    transformation: optax.GradientTransformation,
    reshuffle: bool,
    phase: Phase,
    learned: Learned,
    reference: PyTree,
    keys: Keys,
    task: TaskData,
    order_key: Array,
    first: Array,
    count: Array,
    rate: Array,
) -> tuple[Learned, PyTree]:
    """`count` optimiser steps of one seed, from step `first` on."""
    state = learned.state
    task = task._replace(size=task.size - phase.withheld)
    zero = jnp.zeros((), problem.dtype)

    def one(index: Array, carry: PyTree) -> PyTree:
        before, running, optimiser, order, sums = carry
        order, rows = rows_of_step(
            problem.batch_size, reshuffle, order, order_key, index, first, task
        )
        if phase.rows is not None:
            rows = phase.rows(reference)[rows]
        batch = Batch(
            problem.inputs(task.raw(rows)),
            task.y[rows],
            task.masks[task.group[rows]],
            task.stage,
        )
        step_keys = keys.fold(index)  # the same for both: an expectation may be over one draw
        (loss, accuracy), gradient = jax.value_and_grad(phase.loss, 1, has_aux=True)(
            problem, before, reference, batch, step_keys
        )
        penalty, total = zero, gradient
        if phase.penalty is not None:
            penalty, pull = jax.value_and_grad(phase.penalty, 1)(
                problem, before, reference, batch, step_keys
            )
            total = jax.tree.map(jnp.add, gradient, pull)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            updates, optimiser = transformation.update(total, optimiser, before)
        if phase.trained is not None:
            updates = jax.tree.map(jnp.multiply, updates, phase.trained(problem, before, reference))
        after = optax.apply_updates(before, jax.tree.map(lambda u: rate * u, updates))
        if phase.after_step is not None:
            running = phase.after_step(problem, running, reference, Step(before, after, gradient))
        sums = jax.tree.map(jnp.add, sums, (loss, penalty, accuracy))
        return after, running, optimiser, order, sums

    order = jnp.arange(task.x.shape[0])
    carry = state.trainable, state.running, learned.optimiser, order, (zero, zero, zero)
    trainable, running, optimiser, _, sums = jax.lax.fori_loop(first, first + count, one, carry)
    means = jax.tree.map(lambda s: s / count.astype(s.dtype), sums)
    new = Learned(State(trainable, running, state.carried), optimiser, learned.alive)
    return survivors(new, learned, means), means


def rows_of_step(
    batch_size: int,
    reshuffle: bool,
    order: Array,
    order_key: Array,
    index: Array,
    first: Array,
    task: TaskData,
) -> tuple[Array, Array]:
    """The examples of a step. Nothing here depends on the seed, so no order is kept per seed."""
    batch = jnp.arange(batch_size)
    if not reshuffle:
        return order, (index * batch_size + batch) % task.size
    epoch_steps = jnp.maximum(1, task.size // batch_size)
    within = index % epoch_steps

    def shuffled() -> Array:
        u = jax.random.uniform(jax.random.fold_in(order_key, index // epoch_steps), order.shape)
        return jnp.argsort(jnp.where(task.valid_rows(), u, jnp.inf))

    order = jax.lax.cond((within == 0) | (index == first), shuffled, lambda: order)
    return order, order[(within * batch_size + batch) % task.size]


def survivors(new: Learned, old: Learned, means: PyTree = ()) -> Learned:
    """One seed's next state, or its last good one from the moment that it has diverged.

    Parameters and means have to be finite; what else a method carries may be infinite (a precision,
    say) but not NaN.
    """
    finite = [jnp.isfinite(leaf) for leaf in jax.tree.leaves((new.state.trainable, means))]
    rest = jax.tree.leaves((new.state.running, new.state.carried))
    known = [~jnp.isnan(leaf) for leaf in rest if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    alive = old.alive & jnp.all(jnp.stack([jnp.all(sound) for sound in finite + known]))
    kept = jax.tree.map(lambda n, o: jnp.where(alive, n, o), new, old)
    return kept._replace(alive=alive)
