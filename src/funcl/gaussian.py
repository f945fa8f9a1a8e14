"""The mean-field Gaussian over parameters: draw from it, compare two of them.

The variance is kept as its logarithm, so that σ = exp(½ log σ²). A `None` in place of a
log-variance marks a parameter, or a whole layer of them, that is not random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

PyTree = Any


class Gaussian(NamedTuple):
    """N(mean, diag exp(log_variance)); both are pytrees of one structure, but for `None`."""

    mean: PyTree
    log_variance: PyTree


def variance(q: Gaussian) -> PyTree:
    """σ² of every parameter; zero where a parameter is not random."""

    def leaf(v: Array | None, m: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, m) if v is None else jnp.exp(v)

    return _map_random(leaf, q.log_variance, q.mean)


def seeds_of_draws(q: Gaussian, key: Array, draws: int) -> Array:
    """Two random words for every array of every draw: [draws, arrays, 2]."""
    return jax.random.bits(key, (draws, len(jax.tree.leaves(q.mean)), 2), jnp.uint32)


def sample(q: Gaussian, words: Array) -> PyTree:
    """One draw μ + σ ε, from two random words for every array."""
    words = jax.tree.unflatten(jax.tree.structure(q.mean), list(words))

    def leaf(v: Array | None, m: PyTree, w: PyTree) -> PyTree:
        return m if v is None else m + jnp.exp(0.5 * v) * standard_normal(w, m.shape, m.dtype)

    return _map_random(leaf, q.log_variance, q.mean, words)


def kl(q: Gaussian, p: Gaussian) -> Array:
    """KL(q ‖ p) = ½ Σ [log σ²_p − log σ²_q + (σ²_q + (μ_q − μ_p)²)/σ²_p − 1], of random ones."""

    def leaf(vq: Array | None, vp: Array, mq: Array, mp: Array) -> Array | None:
        if vq is None:
            return None
        return jnp.sum(kl_of_moments(mq, jnp.exp(vq), mp, jnp.exp(vp)))

    terms = _map_random(leaf, q.log_variance, p.log_variance, q.mean, p.mean)
    return jax.tree.reduce(jnp.add, terms, jnp.zeros(()))


def _map_random(leaf_fn: Callable, log_variance: PyTree, *trees: PyTree) -> PyTree:
    """Map over log-variances, where `None` goes with whatever the others have there."""
    return jax.tree.map(leaf_fn, log_variance, *trees, is_leaf=lambda v: v is None)


def kl_of_moments(mean_q: Array, variance_q: Array, mean_p: Array, variance_p: Array) -> Array:
    """½ [log(K_p/K_q) + K_q/K_p − 1 + (m_q − m_p)²/K_p], elementwise.

    >>> one, two = jnp.array(1.0), jnp.array(2.0)
    >>> float(kl_of_moments(one, two, 0 * one, one).round(4))
    0.6534
    """
    ratio = variance_q / variance_p
    return 0.5 * (ratio - jnp.log(ratio) - 1 + jnp.square(mean_q - mean_p) / variance_p)


def standard_normal(words: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Standard normal draws from two random 32-bit words: `jax.random.bits(key, (2,))`.

    In single precision they go through a cheap inverse of the error function, a logarithm and two
    polynomials: Giles' approximation (relative error below 4e-7), of a uniform number with 23
    random bits, centred so that ±1 cannot occur. Weight draws need millions of normals a step,
    and this is several times faster on a CPU.
    """
    count = math.prod(shape)
    if jnp.dtype(dtype) != jnp.float32:
        high, low = hashed_bits(words, 2 * count).reshape(2, *shape).astype(dtype)
        u = (high + (low + 0.5) * 2.0**-32) * 2.0**-31 - 1
        return jnp.sqrt(jnp.asarray(2, dtype)) * jax.lax.erf_inv(u)
    bits = hashed_bits(words, count).reshape(shape) >> 9
    u = bits.astype(jnp.int32).astype(jnp.float32) * 2.0**-22 + (2.0**-23 - 1)
    w = -jnp.log((1 - u) * (1 + u))
    centre = _polynomial(_CENTRE, w - 2.5)
    tail = _polynomial(_TAIL, jnp.sqrt(w) - 3)
    return jnp.where(w < 5, centre, tail) * u * jnp.float32(2**0.5)


def hashed_bits(words: Array, count: int) -> Array:
    """Random 32-bit numbers: two rounds of an integer hash of 0, 1, 2, ..., each keyed by a word.

    The words come from the key's own generator. That is a cipher, and would take several times as
    long for every number as the arithmetic that the number is for.
    """
    counter = jax.lax.iota(jnp.uint32, count)
    return _hashed(_hashed(counter ^ words[0]) + words[1])


def _hashed(x: Array) -> Array:
    """A permutation of the 32-bit words with little bias: every bit of x moves half of the others.

    Multipliers and shifts are C. Wellons' lowbias32, found by search for the least avalanche bias.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
