"""Layers with parameters: drawing them, evaluating them, and what their variance does."""

from __future__ import annotations

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array


class Layer(Protocol):
    """What the linearisation needs to know of a layer."""

    def __call__(self, parameters: Any, inputs: Array) -> Array:
        """Pre-activations."""
        ...

    def output_variance(self, variance: Any, inputs: Array, sensitivity: Array) -> Array:
        """This layer's share of diag(J Σ Jᵀ): [heads, examples]."""
        ...

    def activation_variance(self, variance: Any, inputs: Array) -> Array:
        """Variance of the pre-activations when the parameters are independent Gaussians."""
        ...


class Dense:
    """y = x W + b, with weights and biases drawn uniformly from ±1/√fan_in."""

    @staticmethod
    def init(key: Array, fan_in: int, fan_out: int) -> dict[str, Array]:
        """Initial weight and bias."""
        bound = 1 / math.sqrt(fan_in)
        weight, bias = jax.random.split(key)
        return {
            "weight": jax.random.uniform(weight, (fan_in, fan_out), minval=-bound, maxval=bound),
            "bias": jax.random.uniform(bias, (fan_out,), minval=-bound, maxval=bound),
        }

    def __call__(self, parameters: dict[str, Array], inputs: Array) -> Array:
        """Pre-activations."""
        return inputs @ parameters["weight"] + parameters["bias"]

    def activation_variance(self, variance: dict[str, Array], inputs: Array) -> Array:
        """Var[y_j] = Σ_i x_i² σ²_ij + σ²_j."""
        return jnp.square(inputs) @ variance["weight"] + variance["bias"]

    def output_variance(
        self, variance: dict[str, Array], inputs: Array, sensitivity: Array
    ) -> Array:
        """Σ_j (Σ_i a_i² σ²_ij + σ²_j) δ_j²: the Jacobian is the outer product of a and δ."""
        spread = self.activation_variance(variance, inputs)
        return jnp.einsum("no,hno->hn", spread, jnp.square(sensitivity))
