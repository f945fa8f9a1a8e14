from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from funcl.draws import local_draws, weight_draws
from funcl.gaussian import Gaussian, variance
from funcl.networks import MLP

DRAWS = 4_000  # in pairs, so that draws of one call are looked at too
X = np.array([[0.5, -1.0, 2.0], [0.5, -1.0, 2.0], [1.0, 0.0, -0.5]], np.float32)
KEY = jax.random.key(7)


def posterior(hidden, random=lambda layer, name: True):
    rng = np.random.default_rng(0)
    widths = (3, *hidden, 2)
    mean, log_variance = [], []
    for number, (i, o) in enumerate(pairwise(widths)):
        layer = {"weight": rng.normal(size=(i, o)), "bias": rng.normal(size=o)}
        mean.append({k: v.astype(np.float32) for k, v in layer.items()})
        spread = {k: np.float32(rng.uniform(-4, -1, v.shape)) for k, v in layer.items()}
        kept = {k: v if random(number, k) else None for k, v in spread.items()}
        log_variance.append(None if all(v is None for v in kept.values()) else kept)
    return MLP(hidden, "tanh"), Gaussian(tuple(mean), tuple(log_variance))


@partial(jax.jit, static_argnums=(0, 1))
def many(drawing, network, q):
    """[draws, examples, outputs]"""
    keys = jax.random.split(KEY, DRAWS // 2)
    pairs = jax.vmap(lambda key: drawing(network, q, jnp.asarray(X), key, 2))(keys)
    return pairs.reshape(DRAWS, len(X), 2)


def assert_moments(values, mean, spread):
    """Within four and a half standard errors."""
    assert np.all(np.abs(values.mean(0) - mean) < 4.5 * np.sqrt(spread / DRAWS))
    assert np.all(np.abs(values.var(0) / spread - 1) < 4.5 * np.sqrt(2 / DRAWS))


@pytest.mark.parametrize("drawing", [weight_draws, local_draws])
def test_a_linear_network_has_the_moments_of_its_formula(drawing):
    network, q = posterior(())
    layer, spread = q.mean[0], variance(q)[0]
    values = np.asarray(many(drawing, network, q), np.float64)
    own = X**2 @ np.asarray(spread["weight"]) + np.asarray(spread["bias"])
    assert_moments(values, X @ layer["weight"] + layer["bias"], own)


@pytest.mark.parametrize("which", ["all random", "first layer only", "last layer only"])
def test_both_estimators_have_the_same_marginal_moments(which):
    wanted = {"all random": {0, 1}, "first layer only": {0}, "last layer only": {1}}[which]
    network, q = posterior((3,), lambda layer, name: layer in wanted)
    by_weights = np.asarray(many(weight_draws, network, q), np.float64)
    locally = np.asarray(many(local_draws, network, q), np.float64)
    deviation = by_weights.std(0)
    # The difference of two estimates has twice the variance of one; outputs are not Gaussian.
    assert np.all(np.abs(by_weights.mean(0) - locally.mean(0)) < 6.5 * deviation / np.sqrt(DRAWS))
    assert np.all(np.abs(locally.std(0) / deviation - 1) < 6.5 * np.sqrt(1 / DRAWS))


def test_local_noise_differs_between_examples_and_weight_noise_is_shared():
    network, q = posterior((3,))
    by_weights, locally = (np.asarray(many(d, network, q)) for d in (weight_draws, local_draws))
    np.testing.assert_allclose(by_weights[:, 0], by_weights[:, 1], rtol=1e-5, atol=1e-5)
    correlation = np.corrcoef(locally[:, 0, 0], locally[:, 1, 0])[0, 1]
    assert abs(correlation) < 4.5 / np.sqrt(DRAWS)
    pairs = locally.reshape(-1, 2, *locally.shape[1:])[:, :, 0, 0]
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 4.5 / np.sqrt(DRAWS / 2)


@pytest.mark.parametrize("drawing", [weight_draws, local_draws])
def test_a_network_without_randomness_gives_its_output_in_every_draw(drawing):
    network, q = posterior((3,), lambda layer, name: False)
    values = jax.jit(drawing, static_argnums=(0, 4))(network, q, X, KEY, 3)
    expected = jax.jit(network.apply)(q.mean, X)
    assert values.shape == (3, len(X), 2)
    np.testing.assert_allclose(values, np.broadcast_to(expected, values.shape), rtol=1e-5)


def test_a_blank_input_has_a_gradient_where_biases_are_not_random():
    network, q = posterior((3,), lambda layer, name: name == "weight")
    blank = jnp.zeros((2, 3))

    @jax.jit
    @jax.grad
    def gradient(q):
        return jnp.sum(local_draws(network, q, blank, KEY, 2) ** 2)

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(q)))
