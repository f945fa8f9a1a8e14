"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
from jax import Array

from funcl.checked import whole
from funcl.errors import FunclError
from funcl.networks.layers import Dense
from funcl.networks.network import LayeredNetwork, Visitor

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jax.numpy.tanh, "sigmoid": jax.nn.sigmoid}


@dataclass(frozen=True)
class MLP(LayeredNetwork):
    """Dense layers with an activation between them; the output layer is linear.

    >>> MLP([256, 256])
    MLP(hidden=(256, 256), activation='relu')
    """

    hidden: Sequence[int]
    activation: str = "relu"

    def __post_init__(self) -> None:
        """Check the widths and freeze them."""
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Iterable):
            raise FunclError(f"MLP takes a list of widths, such as MLP([64]), not {self.hidden!r}.")
        widths = tuple(whole("An MLP's hidden width", width) for width in self.hidden)
        if self.activation not in ACTIVATIONS:
            raise FunclError(
                f"MLP has no activation {self.activation!r}: choose {', '.join(ACTIVATIONS)}."
            )
        object.__setattr__(self, "hidden", widths)

    def init(
        self, key: Array, input_shape: tuple[int, ...], outputs: int
    ) -> tuple[dict[str, Array], ...]:
        """Weights and biases of every layer, uniform on ±1/√fan_in."""
        widths = (math.prod(input_shape), *self.hidden, outputs)
        keys = jax.random.split(key, len(widths) - 1)
        return tuple(
            Dense.init(k, i, o) for k, i, o in zip(keys, widths[:-1], widths[1:], strict=True)
        )

    def forward(self, x: Array, visit: Visitor) -> Array:
        """Flatten, then alternate dense layers and the activation."""
        activate = ACTIVATIONS[self.activation]
        h = x.reshape(x.shape[0], -1)
        for index in range(len(self.hidden)):
            h = activate(visit(index, Dense(), h))
        return visit(len(self.hidden), Dense(), h)
