"""Adapters for networks that were written elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jax import Array

from funcl.errors import FunclError
from funcl.networks.network import Network


@dataclass(frozen=True)
class Foreign(Network):
    """Any pair of functions: `init_fn(key, input_shape, outputs)` and `apply_fn(parameters, x)`.

    Parameters may be any pytree of floating arrays. The linearised variance then goes through
    vector-Jacobian products of `apply_fn`, which is exact for every network.
    """

    init_fn: Callable[[Array, tuple[int, ...], int], Any]
    apply_fn: Callable[[Any, Array], Array]

    def init(self, key: Array, input_shape: tuple[int, ...], outputs: int) -> Any:
        """Initial parameters, refused where they are not all floating arrays."""
        parameters = self.init_fn(key, input_shape, outputs)
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
            if not eqx.is_inexact_array(leaf):
                raise FunclError(
                    f"The network's parameter {jax.tree_util.keystr(path)} is not an array of floats: "
                    "keep settings and counters out of the parameters."
                )
        return parameters

    def apply(self, parameters: Any, x: Array) -> Array:
        """Outputs of `apply_fn`."""
        return self.apply_fn(parameters, x)


def from_equinox(build: Callable[[Array, tuple[int, ...], int], eqx.Module]) -> Foreign:
    """Wrap an Equinox module that maps ONE example to its outputs: `build(key, input_shape, outputs)`.

    Batch statistics and other state that changes in training are refused: after a task they would
    describe the last task's inputs only.
    """

    def skeleton(input_shape: tuple[int, ...], outputs: int) -> tuple[Any, Any]:
        module = build(jax.random.key(0), input_shape, outputs)
        leaves = jax.tree.leaves(
            module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.State | eqx.nn.StateIndex)
        )
        if any(isinstance(leaf, eqx.nn.State | eqx.nn.StateIndex) for leaf in leaves):
            raise FunclError(
                "This network keeps state that changes in training (batch statistics): "
                "replace batch normalisation by group or layer normalisation."
            )
        return eqx.partition(module, eqx.is_inexact_array)

    static: dict[str, Any] = {}

    def init_fn(key: Array, input_shape: tuple[int, ...], outputs: int) -> Any:
        static["rest"] = skeleton(input_shape, outputs)[1]
        return eqx.filter(build(key, input_shape, outputs), eqx.is_inexact_array)

    def apply_fn(parameters: Any, x: Array) -> Array:
        return jax.vmap(eqx.combine(parameters, static["rest"]))(x)

    return Foreign(init_fn, apply_fn)
