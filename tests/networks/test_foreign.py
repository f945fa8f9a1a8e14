from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from funcl.errors import FunclError
from funcl.gaussian import Gaussian
from funcl.linearize import moments
from funcl.networks import MLP, Foreign
from funcl.networks.foreign import from_equinox


def build_mlp(key, input_shape, outputs):
    return eqx.nn.MLP(input_shape[0], outputs, 4, 1, activation=jnp.tanh, key=key)


class Convolutions(eqx.Module):
    convolution: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    last: eqx.nn.Linear
    pool: eqx.nn.MaxPool2d = eqx.nn.MaxPool2d(2, 2)

    def __init__(self, key, input_shape, outputs):
        height, width, channels = input_shape
        first, second = jax.random.split(key)
        self.convolution = eqx.nn.Conv2d(channels, 2, 3, padding=1, key=first)
        self.norm = eqx.nn.GroupNorm(1, 2)
        self.last = eqx.nn.Linear(2 * (height // 2) * (width // 2), outputs, key=second)

    def __call__(self, x):
        h = jax.nn.relu(self.norm(self.convolution(jnp.moveaxis(x, -1, 0))))
        return self.last(self.pool(h).ravel())


def build_with_batch_statistics(key, input_shape, outputs):
    layers = [
        eqx.nn.BatchNorm(input_shape[0], "batch", mode="ema"),
        build_mlp(key, input_shape, outputs),
    ]
    return eqx.nn.Sequential(layers)


class Counting(eqx.Module):
    linear: eqx.nn.Linear
    calls: jax.Array

    def __init__(self, key, input_shape, outputs):
        self.linear = eqx.nn.Linear(input_shape[0], outputs, key=key)
        self.calls = jnp.zeros((), jnp.int32)


@pytest.mark.parametrize(
    ("build", "shape"),
    [(build_mlp, (3,)), (Convolutions, (4, 4, 2))],
    ids=["dense", "convolutions"],
)
def test_an_equinox_module_maps_a_batch_as_it_maps_each_example(build, shape):
    @jax.jit
    def both(key, x):
        module = build(key, shape, 3)
        network = from_equinox(build)
        return network.apply(network.init(key, shape, 3), x), jnp.stack([module(row) for row in x])

    found, expected = both(
        jax.random.key(0), np.random.default_rng(0).random((2, *shape), np.float32)
    )
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_network_that_never_drew_its_parameters_can_use_them():
    parameters = jax.jit(partial(from_equinox(build_mlp).init, input_shape=(3,), outputs=2))(
        jax.random.key(0)
    )
    x = jnp.ones((4, 3))
    fresh = from_equinox(build_mlp)
    assert fresh == from_equinox(build_mlp)
    assert hash(fresh) == hash(from_equinox(build_mlp))
    # Two sizes of one network may be in use at once.
    wider = jax.jit(partial(fresh.init, input_shape=(3,), outputs=5))(jax.random.key(0))
    assert jax.jit(fresh.apply)(parameters, x).shape == (4, 2)
    assert jax.jit(fresh.apply)(wider, x).shape == (4, 5)


def test_the_linearised_variance_of_an_equinox_module_is_that_of_the_same_layers():
    network = from_equinox(build_mlp)
    layered = MLP([4], "tanh")

    @jax.jit
    def both(key, x, columns):
        mean = network.init(key, (3,), 2)
        q = Gaussian(mean, jax.tree.map(lambda m: m - 3, mean))

        def as_layers(parameters):
            return tuple(
                {"weight": layer.weight.T, "bias": layer.bias} for layer in parameters.arrays.layers
            )

        same = Gaussian(as_layers(q.mean), as_layers(q.log_variance))
        return moments(network, q, x, columns), moments(layered, same, x, columns)

    x = np.random.default_rng(0).random((5, 3), np.float32)
    found, expected = both(jax.random.key(0), x, np.tile(np.int32([1, 0]), (5, 1)))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_batch_statistics_are_refused():
    network = from_equinox(build_with_batch_statistics)
    with pytest.raises(FunclError, match="replace batch normalisation by group or layer"):
        network.init(jax.random.key(0), (3,), 2)
    with_state = from_equinox(
        lambda *arguments: eqx.nn.make_with_state(build_with_batch_statistics)(*arguments)
    )
    with pytest.raises(FunclError, match="replace batch normalisation by group or layer"):
        with_state.init(jax.random.key(0), (3,), 2)


def test_arrays_that_are_not_floats_are_refused_by_name():
    with pytest.raises(FunclError, match=r"\.calls is not an array of floats"):
        from_equinox(Counting).init(jax.random.key(0), (3,), 2)
    counting = Foreign(lambda *_: {"weight": jnp.ones(2), "count": jnp.int32(0)}, lambda p, x: x)
    with pytest.raises(FunclError, match=r"\['count'\] is not an array of floats"):
        counting.init(jax.random.key(0), (3,), 2)


def test_a_pair_of_functions_is_a_network():
    network = Foreign(
        lambda key, shape, outputs: {"w": jax.random.normal(key, (*shape, outputs))},
        lambda parameters, x: x @ parameters["w"],
    )
    parameters = network.init(jax.random.key(0), (3,), 2)
    np.testing.assert_allclose(network.apply(parameters, jnp.eye(3)), parameters["w"], rtol=1e-6)
    assert isinstance(hash(network), int)
