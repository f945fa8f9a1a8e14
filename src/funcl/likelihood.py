"""The categorical likelihood on a head: columns outside it take no part in the softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

OUTSIDE = -1e30  # a logit that no softmax can see, finite so that its gradient is zero and not NaN


def log_probabilities(logits: Array, mask: Array) -> Array:
    """Log-softmax over the columns where `mask` is true."""
    return jax.nn.log_softmax(jnp.where(mask, logits, OUTSIDE), axis=-1)


def probabilities(logits: Array, mask: Array) -> Array:
    """Softmax over the columns where `mask` is true, zero elsewhere."""
    return jnp.where(mask, jnp.exp(log_probabilities(logits, mask)), 0)


def cross_entropy(logits: Array, y: Array, mask: Array) -> tuple[Array, Array]:
    """Negative log-likelihood and correctness of each example; leading axes are draws."""
    log_p = log_probabilities(logits, mask)
    labels = jnp.broadcast_to(y, logits.shape[:-1])
    nll = -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    return nll, jnp.argmax(log_p, axis=-1).astype(y.dtype) == labels
