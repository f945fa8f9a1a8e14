"""Fine-tuning: every task starts where the last one ended; nothing holds the earlier ones in place.

At task t, with θ carried over from task t−1,

    L(θ) = −(1/B) Σ_b log softmax_head( f(x_b; θ) )[y_b]

It is the floor that every method is measured against, and what a method with strength 0 becomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from funcl.likelihood import cross_entropy, probabilities
from funcl.protocol import Batch, Head, Keys, Method, Problem, PyTree, State, required_network


@dataclass(frozen=True)
class FineTune(Method):
    """A plain network trained on one task after the other."""

    name: ClassVar[str] = "finetune"

    def loss(
        self, problem: Problem, trainable: PyTree, reference: PyTree, batch: Batch, keys: Keys
    ) -> tuple[Array, Array]:
        """Cross-entropy, averaged over the batch."""
        logits = required_network(problem).apply(trainable, batch.x)
        nll, correct = cross_entropy(logits, batch.y, batch.mask)
        return jnp.mean(nll), jnp.mean(correct, dtype=nll.dtype)

    def predict(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head, keys: Keys
    ) -> Array:
        """Softmax over the head."""
        logits = required_network(problem).apply(state.trainable, x)
        return probabilities(logits, head.mask(problem.outputs))
