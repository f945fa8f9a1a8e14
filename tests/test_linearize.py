"""The three ways to the function-space variance against a Jacobian that is written out."""

from itertools import pairwise

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcl.gaussian import Gaussian, variance
from funcl.linearize import covariance_block, layerwise_moments, moments, vjp_moments
from funcl.networks import MLP, Foreign

pytestmark = pytest.mark.usefixtures("float64")


PATTERNS = {
    "all random": [("weight", "bias")] * 4,
    "last layer": [(), (), (), ("weight", "bias")],
    "no bias": [("weight",)] * 4,
    "none": [()] * 4,
}


def problem(hidden, activation, shape, outputs, examples, width, seed, pattern="all random"):
    """A network, a posterior, inputs and the head columns that each is asked for."""
    rng = np.random.default_rng(seed)
    widths = (int(np.prod(shape)), *hidden, outputs)
    sizes = [{"weight": (i, o), "bias": (o,)} for i, o in pairwise(widths)]
    mean = tuple({k: rng.normal(size=s) for k, s in layer.items()} for layer in sizes)
    log_variance = tuple(
        {k: rng.uniform(-4, 0, s) if k in names else None for k, s in layer.items()}
        if names
        else None
        for names, layer in zip(PATTERNS[pattern][-len(sizes) :], sizes, strict=True)
    )
    x = rng.normal(size=(examples, *shape))
    columns = np.stack([rng.permutation(outputs)[:width] for _ in range(examples)])
    return MLP(hidden, activation), Gaussian(mean, log_variance), x, columns.astype(np.int32)


@st.composite
def problems(draw):
    outputs = draw(st.integers(2, 4))
    return problem(
        draw(st.lists(st.integers(1, 4), max_size=3)),
        draw(st.sampled_from(["relu", "tanh", "sigmoid"])),
        draw(st.sampled_from([(1,), (3,), (2, 2)])),
        outputs,
        draw(st.integers(1, 4)),
        draw(st.integers(1, outputs)),
        draw(st.integers(0, 99)),
    )


def brute_force(network, q, x, columns):
    """Mean, variance, and the covariance of one output, from the whole Jacobian."""
    mean, rebuild = jax.flatten_util.ravel_pytree(q.mean)
    jacobian = jax.jacrev(lambda flat: network.apply(rebuild(flat), x))(mean)
    spread = jax.flatten_util.ravel_pytree(variance(q))[0]
    every = jnp.sum(jacobian**2 * spread, axis=-1)
    one = jacobian[:, columns[0, 0]]
    return (
        jnp.take_along_axis(network.apply(q.mean, x), columns, axis=1),
        jnp.take_along_axis(every, columns, axis=1),
        (one * spread) @ one.T,
    )


def with_block(moments_fn):
    return lambda network, q, x, columns: (
        *moments_fn(network, q, x, columns),
        covariance_block(network, q, x, columns[0, 0]),
    )


def values_and_gradients(q, x, columns, network):
    """What each way finds, and the gradients of a number that no error can cancel in."""

    def of(way):
        def number(q):
            found = m, v, block = way(network, q, x, columns)
            weights = jnp.arange(1, m.size + 1, dtype=m.dtype).reshape(m.shape)
            value = jnp.sum(weights * jnp.sin(m)) + jnp.sum(jnp.sqrt(weights) * jnp.sqrt(1 + v))
            return value + jnp.sum(jnp.cos(block)), found

        return jax.value_and_grad(number, has_aux=True)(q)

    return [
        of(way) for way in (brute_force, with_block(layerwise_moments), with_block(vjp_moments))
    ]


def assert_ways_agree(network, q, x, columns):
    compiled = jax.jit(
        values_and_gradients,
        static_argnums=3,
        compiler_options={"xla_backend_optimization_level": 0},
    )
    expected, *others = compiled(q, x, columns, network)
    for found in others:
        for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert f.dtype == jnp.float64
            np.testing.assert_allclose(f, e, rtol=1e-10, atol=1e-10 * np.abs(e).max())


@settings(max_examples=4)
@given(problems())
def test_all_ways_and_their_gradients_are_the_brute_force_ones(drawn):
    assert_ways_agree(*drawn)


def test_three_hidden_layers_agree():
    assert_ways_agree(*problem((3, 4, 2), "sigmoid", (2, 2), 4, 3, 2, seed=1))


@pytest.mark.parametrize("pattern", ["last layer", "no bias", "none"])
def test_parameters_without_variance_take_no_part(pattern):
    network, q, x, columns = problem((3,), "tanh", (2,), 3, 4, 2, 2, pattern)
    assert_ways_agree(network, q, x, columns)


def test_moments_takes_the_vjp_path_for_networks_without_layers():
    network, q, x, columns = problem((3,), "tanh", (2,), 2, 40, 2, seed=0)  # 40: over `at_once`
    expected = jax.jit(moments, static_argnums=0)(network, q, x, columns)
    foreign = Foreign(network.init, network.apply)
    found = jax.jit(moments, static_argnums=0)(foreign, q, x, columns)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-10)


def test_a_linear_network_has_the_variance_of_its_own_formula():
    network, q, x, _ = problem((), "relu", (3,), 2, 4, 2, seed=0)
    columns = np.tile(np.arange(2, dtype=np.int32), (4, 1))
    mean, spread = jax.jit(moments, static_argnums=0)(network, q, x, columns)
    (layer,), (log_variance,) = q.mean, q.log_variance
    np.testing.assert_allclose(mean, x @ layer["weight"] + layer["bias"], rtol=1e-12)
    own = x**2 @ np.exp(log_variance["weight"]) + np.exp(log_variance["bias"])
    np.testing.assert_allclose(spread, own, rtol=1e-12)
