"""Additive scores of predicted class probabilities.

Every field is a sum over examples, so the scores of two batches add up to the scores of both; the
means are taken once, at the end (`History.with_row`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

BINS = 15
"""Equal-width bins of the confidence, as usual for the calibration error."""

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""A label's probability counts as at least this (the smallest normal float32), so that one
confident mistake costs at most 87.3 nats and not infinitely many."""


class Scores(NamedTuple):
    """Sums over examples; `bins` holds, per bin of the confidence, the number of examples, the sum
    of their confidences and the number of correct ones."""

    count: Int[Array, "*axes"]
    correct: Int[Array, "*axes"]
    nll: Float[Array, "*axes"]
    brier: Float[Array, "*axes"]
    entropy: Float[Array, "*axes"]
    bins: Float[Array, "*axes 15 3"]


def score(
    probabilities: Float[Array, "examples classes"],
    labels: Int[Array, " examples"],
    valid: Bool[Array, " examples"],
) -> Scores:
    """Score the predictions for the examples that are `valid` (the rest is padding).

    `probabilities` are zero outside the task's head; `labels` are output columns. The confidence is
    the largest probability; bin b (from 0) holds confidences in (b/15, (b+1)/15].

    - negative log-likelihood: -log p(label), with p at least `SMALLEST_PROBABILITY`
    - Brier score: the sum over classes of (p - 1[label])², between 0 and 2
    - predictive entropy: -Σ p log p, in nats

    >>> p = jnp.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    >>> s = score(p, jnp.array([0, 0]), jnp.array([True, True]))
    >>> int(s.count), int(s.correct)
    (2, 1)
    >>> [round(float(x), 3) for x in (s.nll, s.brier, s.entropy)]
    [2.303, 1.78, 1.194]
    """
    one_hot = jax.nn.one_hot(labels, probabilities.shape[-1], dtype=probabilities.dtype)
    of_label = jnp.sum(probabilities * one_hot, axis=-1)
    confidence = jnp.max(probabilities, axis=-1)
    correct = jnp.argmax(probabilities, axis=-1).astype(labels.dtype) == labels
    nll = -jnp.log(jnp.maximum(of_label, SMALLEST_PROBABILITY))
    brier = jnp.sum(jnp.square(probabilities - one_hot), axis=-1)
    entropy = jnp.sum(jax.scipy.special.entr(probabilities), axis=-1)

    bin_number = jnp.clip(jnp.ceil(confidence * BINS).astype(jnp.int32) - 1, 0, BINS - 1)
    in_bin = jax.nn.one_hot(bin_number, BINS, dtype=bool) & valid[:, None]
    columns = jnp.stack(
        [jnp.ones_like(confidence), confidence, correct.astype(confidence.dtype)], axis=-1
    )
    # Selected and summed, not multiplied as matrices: accelerators would round the products.
    bins = jnp.sum(jnp.where(in_bin[:, :, None], columns[:, None, :], 0.0), axis=0)

    def total(values):
        return jnp.sum(jnp.where(valid, values, 0.0))

    return Scores(
        count=jnp.sum(valid, dtype=jnp.int32),
        correct=jnp.sum(correct & valid, dtype=jnp.int32),
        nll=total(nll),
        brier=total(brier),
        entropy=total(entropy),
        bins=bins,
    )
