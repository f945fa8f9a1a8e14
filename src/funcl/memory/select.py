"""Rules that choose rows: at random, or at random with the classes in turn.

Every rule gives each row a score and takes the lowest, so padding (`valid` false) comes last and
shapes stay fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from funcl.errors import unknown

Rule = Callable[[Array, Array, Array], Array]


def random_scores(key: Array, y: Array, valid: Array) -> Array:
    """Uniform: taking the lowest scores is a draw without replacement."""
    return jnp.where(valid, jax.random.uniform(key, valid.shape), jnp.inf)


def class_turn_scores(key: Array, y: Array, valid: Array) -> Array:
    """The rank of a row within its class in a random order: each class gives one row in turn."""
    u = jax.random.uniform(key, valid.shape)
    order = jnp.lexsort((u, y, ~valid))
    label = jnp.where(valid, y, jnp.iinfo(jnp.int32).max)[order]
    start = jnp.searchsorted(label, label, side="left")
    position = jnp.arange(start.size, dtype=start.dtype)
    rank = jnp.zeros_like(u).at[order].set((position - start).astype(u.dtype))
    return jnp.where(valid, rank + u, jnp.inf)


SELECTIONS: dict[str, Rule] = {"random": random_scores, "per-class": class_turn_scores}


def rule(name: str) -> Rule:
    """The selection rule of that name."""
    if name not in SELECTIONS:
        raise unknown("coreset selection", name, SELECTIONS)
    return SELECTIONS[name]


def lowest(scores: Array, count: int) -> Array:
    """The rows with the lowest scores, lowest first."""
    return jax.lax.top_k(-scores, count)[1].astype(jnp.int32)
