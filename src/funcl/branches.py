"""A choice between functions whose gradient is taken inside the one that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array

PyTree = Any


def one_of(
    branch: Array, functions: Sequence[Callable[..., Array]], trainable: PyTree, *others: PyTree
) -> Array:
    """`functions[branch](trainable, *others)`, differentiable in `trainable` alone.

    The gradient of a plain `lax.switch` carries what every branch would need backwards, mostly
    zeros, from one half to the other. Here value and gradient come out of one branch together.
    """

    @jax.custom_vjp
    def chosen(trainable: PyTree, branch: Array, others: tuple) -> Array:
        return jax.lax.switch(branch, functions, trainable, *others)

    def forward(trainable: PyTree, branch: Array, others: tuple) -> tuple[Array, PyTree]:
        gradients = [jax.value_and_grad(function) for function in functions]
        return jax.lax.switch(branch, gradients, trainable, *others)

    def backward(gradient: PyTree, cotangent: Array) -> tuple[PyTree, None, None]:
        return jax.tree.map(lambda g: cotangent * g, gradient), None, None

    chosen.defvjp(forward, backward)
    return chosen(trainable, branch, others)
