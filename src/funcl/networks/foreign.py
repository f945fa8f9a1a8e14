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
                raise not_floats(path)
        return parameters

    def apply(self, parameters: Any, x: Array) -> Array:
        """Outputs of `apply_fn`."""
        return self.apply_fn(parameters, x)


class EquinoxParameters(eqx.Module):
    """The floating arrays of a module, and the number of outputs that it was built for."""

    arrays: Any
    outputs: int = eqx.field(static=True)


@dataclass(frozen=True)
class EquinoxNetwork(Network):
    """An Equinox module that maps ONE example to its outputs: `build(key, input_shape, outputs)`.

    Only the arrays are parameters; all else of the module is rebuilt, without any arithmetic, where
    the network is applied. Batch statistics and other state that changes in training are refused:
    after a task they would describe the last task's inputs only.
    """

    build: Callable[[Array, tuple[int, ...], int], eqx.Module]

    def init(self, key: Array, input_shape: tuple[int, ...], outputs: int) -> EquinoxParameters:
        """Initial parameters, refused where the module holds other arrays or state."""
        module = self.build(key, input_shape, outputs)
        if any(map(_is_state, jax.tree.leaves(module, is_leaf=_is_state))):
            raise FunclError(
                "This network keeps state that changes in training (batch statistics): "
                "replace batch normalisation by group or layer normalisation."
            )
        for path, leaf in jax.tree_util.tree_leaves_with_path(module):
            if eqx.is_array_like(leaf) and not eqx.is_inexact_array(leaf):
                raise not_floats(path)
        return EquinoxParameters(eqx.filter(module, eqx.is_inexact_array), outputs)

    def apply(self, parameters: EquinoxParameters, x: Array) -> Array:
        """Outputs of the module, one example at a time."""
        skeleton = eqx.filter_eval_shape(
            self.build, jax.random.key(0), x.shape[1:], parameters.outputs
        )
        return jax.vmap(eqx.combine(parameters.arrays, skeleton))(x)


def from_equinox(build: Callable[[Array, tuple[int, ...], int], eqx.Module]) -> EquinoxNetwork:
    """Wrap an Equinox module of ONE example, made by `build(key, input_shape, outputs)`."""
    return EquinoxNetwork(build)


def not_floats(path: Any) -> FunclError:
    """The refusal of a parameter that cannot be random."""
    return FunclError(
        f"The network's parameter {jax.tree_util.keystr(path)} is not an array of floats: "
        "keep settings and counters out of the parameters."
    )


def _is_state(node: Any) -> bool:
    return isinstance(node, eqx.nn.State | eqx.nn.StateIndex)
