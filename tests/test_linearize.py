"""The three ways to the function-space variance against a Jacobian that is written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcl.gaussian import Gaussian, variance
from funcl.linearize import covariance_block, layerwise_moments, moments, vjp_moments
from funcl.networks import MLP, Foreign

pytestmark = pytest.mark.usefixtures("float64")


@st.composite
def problems(draw):
    """A network, a posterior, inputs and the head columns that each is asked for."""
    hidden = draw(st.lists(st.integers(1, 4), max_size=3))
    network = MLP(hidden, draw(st.sampled_from(["relu", "tanh", "sigmoid"])))
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    outputs, examples = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    width = draw(st.integers(1, outputs))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    mean = network.init(jax.random.key(draw(st.integers(0, 99))), shape, outputs)
    log_variance = jax.tree.map(lambda m: jnp.asarray(rng.uniform(-4, 0, m.shape)), mean)
    x = jnp.asarray(rng.normal(size=(examples, *shape)))
    columns = np.stack([rng.permutation(outputs)[:width] for _ in range(examples)])
    return network, Gaussian(mean, log_variance), x, jnp.asarray(columns, jnp.int32)


def flat_jacobian(network, mean, x):
    """[examples, outputs, parameters]"""
    rows = jax.jacrev(network.apply)(mean, x)
    return jnp.concatenate(
        [j.reshape(*j.shape[:2], -1) for j in jax.tree.leaves(rows)], axis=-1
    )


def brute_force(network, q, x, columns):
    jacobian = flat_jacobian(network, q.mean, x)
    spread = jnp.concatenate([v.ravel() for v in jax.tree.leaves(variance(q))])
    every = jnp.sum(jacobian**2 * spread, axis=-1)
    return (
        jnp.take_along_axis(network.apply(q.mean, x), columns, axis=1),
        jnp.take_along_axis(every, columns, axis=1),
    )


def summary(moments_fn, network, x, columns):
    """A number that depends on mean and variance unevenly, so that no error cancels."""

    def number(q):
        m, v = moments_fn(network, q, x, columns)
        weights = jnp.arange(1, m.size + 1, dtype=m.dtype).reshape(m.shape)
        return jnp.sum(weights * jnp.sin(m)) + jnp.sum(jnp.sqrt(weights) * jnp.log(v))

    return number


def assert_close(found, expected):
    """To 1e-10 relative to each array's largest element."""
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert f.dtype == jnp.float64
        np.testing.assert_allclose(f, e, rtol=1e-10, atol=1e-10 * np.abs(e).max())


@given(problems())
def test_layerwise_and_vjp_moments_are_the_brute_force_ones(problem):
    expected = brute_force(*problem)
    assert_close(jax.jit(layerwise_moments, static_argnums=0)(*problem), expected)
    assert_close(jax.jit(vjp_moments, static_argnums=0)(*problem), expected)


@given(problems())
def test_gradients_flow_through_mean_jacobian_and_variance(problem):
    network, q, x, columns = problem
    expected = jax.grad(summary(brute_force, network, x, columns))(q)
    for fn in (layerwise_moments, vjp_moments):
        assert_close(jax.jit(jax.grad(summary(fn, network, x, columns)))(q), expected)


@given(problems())
def test_covariance_block_is_the_brute_force_one(problem):
    network, q, x, columns = problem
    jacobian = flat_jacobian(network, q.mean, x)[:, columns[0, 0]]
    spread = jnp.concatenate([v.ravel() for v in jax.tree.leaves(variance(q))])
    block = covariance_block(network, q, x, columns[0, 0])
    assert_close(block, (jacobian * spread) @ jacobian.T)
    wanted = jnp.full((len(x), 1), columns[0, 0])
    assert_close(jnp.diag(block), layerwise_moments(network, q, x, wanted)[1][:, 0])


def partly_random(pattern):
    network = MLP([3, 4], "tanh")
    mean = network.init(jax.random.key(1), (2,), 3)
    full = jax.tree.map(lambda m: jnp.full(m.shape, -2.0), mean)
    log_variance = {
        "last layer": (None, None, full[2]),
        "first layer": (full[0], None, None),
        "no bias": tuple({"weight": layer["weight"], "bias": None} for layer in full),
        "none": (None, None, None),
    }[pattern]
    return network, Gaussian(mean, log_variance)


@pytest.mark.parametrize("pattern", ["last layer", "first layer", "no bias", "none"])
def test_parameters_without_variance_take_no_part(pattern):
    network, q = partly_random(pattern)
    x = jax.random.normal(jax.random.key(2), (5, 2))
    columns = jnp.tile(jnp.arange(2, dtype=jnp.int32), (5, 1))
    expected = brute_force(network, q, x, columns)
    for fn in (layerwise_moments, vjp_moments):
        assert_close(fn(network, q, x, columns), expected)
    block = covariance_block(network, q, x, jnp.int32(1))
    assert_close(jnp.diag(block), expected[1][:, 1])
    if pattern != "none":
        gradient = jax.grad(summary(brute_force, network, x, columns))(q)
        assert_close(jax.grad(summary(layerwise_moments, network, x, columns))(q), gradient)


def test_moments_takes_the_vjp_path_for_networks_without_layers():
    network = MLP([3])
    foreign = Foreign(network.init, network.apply)
    mean = network.init(jax.random.key(0), (2,), 2)
    q = Gaussian(mean, jax.tree.map(lambda m: m - 3, mean))
    x = jax.random.normal(jax.random.key(1), (40, 2))  # more than are in memory at once
    columns = jnp.tile(jnp.arange(2, dtype=jnp.int32), (40, 1))
    assert_close(moments(foreign, q, x, columns), moments(network, q, x, columns))


def test_a_linear_network_has_the_variance_of_its_own_formula():
    network = MLP([])
    mean = network.init(jax.random.key(0), (3,), 2)
    q = Gaussian(mean, jax.tree.map(lambda m: -1 - m**2, mean))
    x = jax.random.normal(jax.random.key(1), (4, 3))
    _, v = moments(network, q, x, jnp.tile(jnp.arange(2, dtype=jnp.int32), (4, 1)))
    spread = variance(q)[0]
    assert_close(v, x**2 @ spread["weight"] + spread["bias"])
