"""The boundary between networks and everything else: parameters go in, outputs come out.

A network is a value that holds its architecture and no parameters. `forward` sends an input
through the layers and lets a visitor say how each layer that has parameters is evaluated; plain
evaluation, sensitivities and local reparameterisation are three visitors of one description.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from funcl.errors import FunclError
from funcl.networks.layers import Layer

Parameters = Any
Visitor = Callable[[int, Layer, Array], Array]


class Network:
    """Any function of parameters and a batch of inputs."""

    seed_axis: str = "vmap"  # how repeats are laid out where nobody says otherwise

    def init(self, key: Array, input_shape: tuple[int, ...], outputs: int) -> Parameters:
        """Draw initial parameters."""
        raise NotImplementedError

    def apply(self, parameters: Parameters, x: Array) -> Array:
        """Outputs [examples, outputs] for a batch of inputs."""
        raise NotImplementedError


def check_network(network: Network, input_shape: tuple[int, ...], outputs: int, dtype: str) -> None:
    """Refuse a network that does not map a batch of inputs to its outputs; nothing is computed."""
    batch = jax.ShapeDtypeStruct((2, *input_shape), dtype)

    def run(key: Array, x: Array) -> Array:
        return network.apply(network.init(key, input_shape, outputs), x)

    try:
        found = jax.eval_shape(run, jax.eval_shape(lambda: jax.random.key(0)), batch)
        shape = found.shape
    except FunclError:
        raise
    except Exception as mistake:
        raise FunclError(
            f"{type(network).__name__} fails on 2 inputs of shape {input_shape} and {outputs} "
            f"outputs: {mistake}"
        ) from mistake
    if shape != (2, outputs):
        raise FunclError(
            f"{type(network).__name__} maps 2 inputs of shape {input_shape} to an array of shape "
            f"{shape}, and it must be (2, {outputs}): one row for each, one column for each output."
        )


class LayeredNetwork(Network):
    """A network that exposes each layer's inputs and pre-activations.

    Its parameters are a tuple with one entry per layer, in the order of `forward`.
    """

    def forward(self, x: Array, visit: Visitor) -> Array:
        """Send `x` through; `visit(index, layer, inputs)` returns that layer's pre-activations."""
        raise NotImplementedError

    def apply(self, parameters: Parameters, x: Array) -> Array:
        """Outputs with the given parameters."""
        return self.forward(x, lambda index, layer, inputs: layer(parameters[index], inputs))

    def trace(self, parameters: Parameters, x: Array) -> tuple[Array, list, list, Callable]:
        """Outputs, layers, each layer's inputs, and the map from cotangents to sensitivities.

        The sensitivity δˡ of an output is its derivative with respect to layer l's pre-activations,
        found as the pullback of a zero that is added to them.
        """
        layers: list[Layer] = []

        def forward(taps: list[Array]) -> tuple[Array, list[Array]]:
            seen: list[Array] = []

            def visit(index: int, layer: Layer, inputs: Array) -> Array:
                seen.append(inputs)
                return layer(parameters[index], inputs) + taps[index]

            return self.forward(x, visit), seen

        def shapes(x: Array) -> list[Array]:
            found: list[Array] = []

            def visit(index: int, layer: Layer, inputs: Array) -> Array:
                layers.append(layer)
                found.append(layer(parameters[index], inputs))
                return found[-1]

            self.forward(x, visit)
            return found

        taps = [jnp.zeros(tap.shape, tap.dtype) for tap in jax.eval_shape(shapes, x)]
        outputs, pullback, inputs = jax.vjp(forward, taps, has_aux=True)
        return outputs, layers, inputs, lambda cotangent: pullback(cotangent)[0]
