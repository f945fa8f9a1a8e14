from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from funcl.errors import FunclError
from funcl.networks import MLP


def test_initial_parameters_fill_the_range_of_their_layer():
    init = partial(MLP([100, 30]).init, input_shape=(5, 5), outputs=40)
    parameters = jax.jit(init)(jax.random.key(0))
    for layer, (fan_in, fan_out) in zip(parameters, [(25, 100), (100, 30), (30, 40)], strict=True):
        assert layer["weight"].shape == (fan_in, fan_out)
        assert layer["bias"].shape == (fan_out,)
        for values in layer.values():
            scaled = np.asarray(values) * np.sqrt(fan_in)
            assert np.abs(scaled).max() <= 1
            assert np.abs(scaled).max() > 0.9
            assert abs(scaled.mean()) < 4 / np.sqrt(3 * scaled.size)


def test_the_sensitivities_are_derivatives_with_respect_to_pre_activations():
    network = MLP([4, 3], "tanh")
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)

    @jax.jit
    def traced(key):
        parameters = network.init(key, (2,), 3)
        outputs, _, inputs, sensitivities = network.trace(parameters, x)
        of_one = sensitivities(jnp.zeros_like(outputs).at[:, 1].set(1))

        # A bias shared by all examples moves what the pre-activations of all examples move.
        gradient = jax.grad(lambda p: jnp.sum(network.apply(p, x)[:, 1]))(parameters)
        return inputs, of_one, gradient, outputs, network.apply(parameters, x)

    inputs, of_one, gradient, outputs, applied = traced(jax.random.key(0))
    np.testing.assert_array_equal(inputs[0], x)
    np.testing.assert_allclose(outputs, applied, rtol=1e-6)
    for a, delta, layer in zip(inputs, of_one, gradient, strict=True):
        np.testing.assert_allclose(delta.sum(0), layer["bias"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a.T @ delta, layer["weight"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [[0], [3, -1], [2.5]])
def test_impossible_widths_are_refused(hidden):
    with pytest.raises(FunclError, match="must be a whole number of at least 1"):
        MLP(hidden)


def test_an_unknown_activation_is_refused():
    with pytest.raises(FunclError, match="choose relu, tanh, sigmoid"):
        MLP([3], "rulu")


def test_a_network_is_a_value():
    assert MLP([3, 4]) == MLP((3, 4))
    assert hash(MLP([3])) == hash(MLP([3]))
