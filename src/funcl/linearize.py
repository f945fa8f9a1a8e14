"""Moments of the linearised network: f(x; θ) ≈ f(x; μ) + J(x; μ)(θ − μ) with θ ~ N(μ, Σ) diagonal.

The variance of output k at x is Σ_p (∂f_k/∂θ_p)² σ²_p. The Jacobian is never formed: for a layer
with inputs a and sensitivities δ_k = ∂f_k/∂z its rows are outer products, so a layer's share is two
matrix products (Dense.output_variance). Networks that do not expose their layers go through one
vector-Jacobian product per output. Both are exact and differentiable.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from funcl.gaussian import Gaussian, variance
from funcl.networks.network import LayeredNetwork, Network


def moments(network: Network, q: Gaussian, x: Array, columns: Array) -> tuple[Array, Array]:
    """Mean and variance [examples, k] of the outputs `columns` [examples, k] of each example."""
    if isinstance(network, LayeredNetwork):
        return layerwise_moments(network, q, x, columns)
    return vjp_moments(network, q, x, columns)


def layerwise_moments(
    network: LayeredNetwork, q: Gaussian, x: Array, columns: Array
) -> tuple[Array, Array]:
    """Exact moments from each layer's inputs and sensitivities; linear in the examples."""
    outputs, layers, inputs, sensitivities = network.trace(q.mean, x)
    cotangents = jax.nn.one_hot(columns.T, outputs.shape[-1], dtype=outputs.dtype)
    deltas = jax.vmap(sensitivities)(cotangents)
    shares = [
        layer.output_variance(layer_variance, a, delta)
        for layer, layer_variance, a, delta in zip(layers, variance(q), inputs, deltas, strict=True)
    ]
    return jnp.take_along_axis(outputs, columns, axis=1), sum(shares[1:], shares[0]).T


def vjp_moments(
    network: Network, q: Gaussian, x: Array, columns: Array, at_once: int = 32
) -> tuple[Array, Array]:
    """Exact moments of any `apply`, `at_once` examples in memory."""
    spread = variance(q)

    def one(example: Array, wanted: Array) -> tuple[Array, Array]:
        outputs, pullback = jax.vjp(lambda mean: network.apply(mean, example[None])[0], q.mean)

        def output_variance(column: Array) -> Array:
            (row,) = pullback(jax.nn.one_hot(column, outputs.shape[0], dtype=outputs.dtype))
            terms = jax.tree.map(lambda g, v: jnp.sum(jnp.square(g) * v), row, spread)
            return jax.tree.reduce(jnp.add, terms)

        return outputs[wanted], jax.vmap(output_variance)(wanted)

    return jax.lax.map(lambda pair: one(*pair), (x, columns), batch_size=at_once)


def covariance_block(network: Network, q: Gaussian, x: Array, column: Array) -> Array:
    """J Σ Jᵀ between all examples for one output: [examples, examples]."""
    spread = variance(q)

    def row(example: Array) -> Array:
        gradient = jax.grad(lambda mean: network.apply(mean, example[None])[0, column])(q.mean)
        return jnp.concatenate([g.ravel() for g in jax.tree.leaves(gradient)])

    rows = jax.vmap(row)(x)
    scale = jnp.concatenate([v.ravel() for v in jax.tree.leaves(spread)])
    return (rows * scale) @ rows.T
