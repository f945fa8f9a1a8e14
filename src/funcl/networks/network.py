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
