"""Monte Carlo draws of a random network's outputs: [draws, examples, outputs]."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from funcl.gaussian import Gaussian, sample, seeds_of_draws, standard_normal, variance
from funcl.networks.layers import Layer
from funcl.networks.network import LayeredNetwork, Network


def weight_draws(
    network: Network, q: Gaussian, x: Array, key: Array, draws: int, differentiated: bool = True
) -> Array:
    """Draw whole sets of parameters; each is shared by all examples."""
    words = seeds_of_draws(q, key, draws)

    def outputs(words: Array) -> Array:
        return network.apply(sample(q, words), x)

    if jax.default_backend() != "cpu":
        return jax.vmap(outputs)(words)
    if not differentiated:
        return jax.lax.map(outputs, words)
    # Batched over draws, the gradient of a dense layer takes several times its matrix products
    # there; written out, it takes about as long as they do.
    return jnp.stack([outputs(own) for own in words])


def local_draws(network: LayeredNetwork, q: Gaussian, x: Array, key: Array, draws: int) -> Array:
    """Draw every layer's pre-activations instead (local reparameterisation).

    One example's outputs have the same distribution as with weight draws; different examples have
    independent noise, which makes sums over a batch less noisy.
    """
    spread = variance(q)

    def visit(index: int, layer: Layer, inputs: Array) -> Array:
        mean = layer(q.mean[index], inputs)
        if not jax.tree.leaves(q.log_variance[index]):
            return mean
        activation_variance = layer.activation_variance(spread[index], inputs)
        # A blank input through a layer whose bias is not random has none, where √ has no slope.
        smallest = jnp.finfo(mean.dtype).tiny
        deviation = jnp.sqrt(jnp.maximum(activation_variance, smallest))
        shape = (draws, *mean.shape[-2:])
        words = jax.random.bits(jax.random.fold_in(key, index), (2,), jnp.uint32)
        noise = standard_normal(words, shape, mean.dtype)
        return mean + deviation * noise

    outputs = network.forward(x, visit)
    return jnp.broadcast_to(outputs, (draws, *outputs.shape[-2:]))
