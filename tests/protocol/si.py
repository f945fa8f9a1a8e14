"""Synaptic intelligence (Zenke, Poole, Ganguli 2017), thin.

On task t, with θ̃ the parameters at its start and ℓ̄ the mean cross-entropy on the task's head,

    L = ℓ̄(θ) + c Σ_j Ω_j (θ_j − θ̃_j)²                                  (no ½)
    ω_j ← ω_j − g_j Δθ_j       after every step: g = ∇ℓ̄ before it, Δθ what it really changed
    Ω_j ← relu( Ω_j + ω_j / ((θ_j − θ̃_j)² + ξ) ),   ω ← 0              at the end of the task
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from funcl.likelihood import cross_entropy, probabilities
from funcl.protocol import (
    Batch,
    Head,
    Keys,
    Method,
    Phase,
    Problem,
    State,
    Step,
    TaskData,
    required_network,
)

PyTree = Any


class Reference(NamedTuple):
    """What a task is held to: where it started, and how much each parameter matters."""

    anchor: PyTree
    importance: PyTree


@dataclass(frozen=True)
class SI(Method):
    """Importance from the path: `running` is ω of this task, `carried` is Ω of all before it."""

    strength: float = 1.0
    damping: float = 1e-3

    name: ClassVar[str] = "si"

    def init(self, problem: Problem, keys: Keys) -> State:
        parameters = super().init(problem, keys).trainable
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return State(parameters, running=zeros, carried=zeros)

    def begin_task(
        self, problem: Problem, state: State, task: TaskData, keys: Keys
    ) -> tuple[State, Reference]:
        return state, Reference(state.trainable, state.carried)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("fit", self.loss, self.penalty, after_step=self.after_step),)

    def loss(
        self, problem: Problem, trainable: PyTree, reference: Reference, batch: Batch, keys: Keys
    ) -> tuple[Array, Array]:
        logits = required_network(problem).apply(trainable, batch.x)
        nll, correct = cross_entropy(logits, batch.y, batch.mask)
        return jnp.mean(nll), jnp.mean(correct, dtype=nll.dtype)

    def penalty(
        self, problem: Problem, trainable: PyTree, reference: Reference, batch: Batch, keys: Keys
    ) -> Array:
        pulls = jax.tree.map(
            lambda p, a, w: jnp.sum(w * jnp.square(p - a)),
            trainable,
            reference.anchor,
            reference.importance,
        )
        return self.strength * jax.tree.reduce(jnp.add, pulls)

    def after_step(
        self, problem: Problem, running: PyTree, reference: Reference, step: Step
    ) -> PyTree:
        return jax.tree.map(
            lambda w, g, old, new: w - g * (new - old),
            running,
            step.gradient,
            step.before,
            step.after,
        )

    def end_task(
        self, problem: Problem, state: State, reference: Reference, task: TaskData, keys: Keys
    ) -> State:
        importance = jax.tree.map(
            lambda total, path, p, a: jax.nn.relu(
                total + path / (jnp.square(p - a) + self.damping)
            ),
            state.carried,
            state.running,
            state.trainable,
            reference.anchor,
        )
        return State(state.trainable, jax.tree.map(jnp.zeros_like, state.running), importance)

    def predict(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head, keys: Keys
    ) -> Array:
        logits = required_network(problem).apply(state.trainable, x)
        return probabilities(logits, head.mask(problem.outputs))
