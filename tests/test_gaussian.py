import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from funcl import gaussian
from funcl.gaussian import (
    Gaussian,
    hashed_bits,
    kl,
    kl_of_moments,
    sample,
    seeds_of_draws,
    standard_normal,
    variance,
)


def posterior(seed):
    rng = np.random.default_rng(seed)
    shapes = {"first": (3, 2), "second": (4,)}
    return Gaussian(
        {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()},
        {name: jnp.asarray(rng.uniform(-3, 1, shape)) for name, shape in shapes.items()},
    )


def as_numpyro(q):
    return {name: dist.Normal(q.mean[name], jnp.exp(0.5 * q.log_variance[name])) for name in q.mean}


@given(st.integers(0, 99), st.integers(0, 99))
@pytest.mark.usefixtures("float64")
def test_kl_is_that_of_numpyro(one, other):
    q, p = posterior(one), posterior(other)
    ps = as_numpyro(p)
    expected = sum(jnp.sum(dist.kl_divergence(d, ps[name])) for name, d in as_numpyro(q).items())
    np.testing.assert_allclose(kl(q, p), expected, rtol=1e-12, atol=1e-12)
    assert float(kl(q, q)) == 0


@given(*[st.floats(-3, 3) for _ in range(2)], *[st.floats(1e-3, 1e3) for _ in range(2)])
@pytest.mark.usefixtures("float64")
def test_kl_of_moments_is_that_of_numpyro(mean_q, mean_p, variance_q, variance_p):
    moments = [jnp.asarray(v) for v in (mean_q, variance_q, mean_p, variance_p)]
    expected = dist.kl_divergence(
        dist.Normal(mean_q, variance_q**0.5), dist.Normal(mean_p, variance_p**0.5)
    )
    np.testing.assert_allclose(kl_of_moments(*moments), expected, rtol=1e-10, atol=1e-12)


WHOLE = {"layer": {"weight": 0, "bias": 0}, "head": {"weight": 0, "bias": 0}}
PATTERNS = {
    "per leaf": {"layer": {"weight": 0, "bias": None}, "head": {"weight": None, "bias": 0}},
    "whole layer": {"layer": None, "head": {"weight": 0, "bias": 0}},
    "nothing": {"layer": None, "head": None},
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_missing_log_variance_marks_parameters_that_are_not_random(pattern):
    mean = jax.tree.map(lambda _: jnp.ones(3), WHOLE)
    log_variance = jax.tree.map(lambda _: jnp.full(3, -2.0), PATTERNS[pattern])
    q = Gaussian(mean, log_variance)
    drawn, spread = sample(q, seeds_of_draws(q, jax.random.key(0), 1)[0]), variance(q)
    assert jax.tree.structure(drawn) == jax.tree.structure(spread) == jax.tree.structure(mean)
    random = 0
    for layer, name in itertools.product(WHOLE, ("weight", "bias")):
        given_ = (PATTERNS[pattern][layer] or {}).get(name) is not None
        random += given_
        assert bool(jnp.all(drawn[layer][name] == 1)) != given_
        np.testing.assert_allclose(spread[layer][name], np.exp(-2.0) * given_, rtol=1e-6)
    moved = Gaussian(jax.tree.map(lambda m: m + 1, mean), log_variance)
    np.testing.assert_allclose(kl(moved, q), random * 3 * 0.5 * np.exp(2.0), rtol=1e-6)


def test_a_draw_does_not_depend_on_which_other_parameters_are_random():
    mean = jax.tree.map(lambda _: jnp.zeros(3), WHOLE)
    both = Gaussian(mean, mean)
    head_only = Gaussian(mean, {**mean, "layer": None})
    words = seeds_of_draws(both, jax.random.key(3), 1)[0]
    one, other = sample(both, words)["head"], sample(head_only, words)["head"]
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_draw_has_the_mean_and_the_variance_of_its_gaussian():
    q = posterior(0)
    q = jax.tree.map(lambda a: a.astype(jnp.float32), q)
    draws = jax.vmap(lambda words: sample(q, words))(seeds_of_draws(q, jax.random.key(0), 4_000))
    for name, values in draws.items():
        deviation = np.exp(0.5 * q.log_variance[name])
        z = (np.asarray(values) - q.mean[name]) / deviation
        assert np.abs(z.mean(0)).max() < 4 / np.sqrt(4_000)
        assert np.abs(z.var(0) - 1).max() < 4 * np.sqrt(2 / 4_000)


# Standard normals


NORMALS = 200_000


def words(seed):
    return jax.random.bits(jax.random.key(seed), (2,), jnp.uint32)


@pytest.fixture(scope="module")
def normals():
    return np.asarray(standard_normal(words(0), (NORMALS,)), np.float64)


def test_standard_normals_have_standard_moments(normals):
    assert normals.dtype == np.float64
    for power, (moment, spread) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs(np.mean(normals**power) - moment) < 4 * np.sqrt(spread / NORMALS)


def test_standard_normals_pass_a_kolmogorov_smirnov_test(normals):
    assert scipy.stats.kstest(normals, "norm").pvalue > 0.01


def test_the_polynomials_invert_the_error_function_to_the_stated_tolerance(monkeypatch):
    lattice = np.arange(2**23, dtype=np.uint32)
    chosen = np.unique(
        np.concatenate(
            [
                lattice[:2000],
                lattice[-2000:],
                lattice[2**22 - 2000 : 2**22 + 2000],
                lattice[255::511],
                lattice[-256::-511],
            ]
        )
    )
    bits = jnp.asarray(chosen << 9)
    monkeypatch.setattr(gaussian, "hashed_bits", lambda *_: bits)
    found = np.asarray(standard_normal(words(0), bits.shape), np.float64)
    u = (chosen * 2.0 + 1) * 2.0**-23 - 1
    expected = np.sqrt(2) * scipy.special.erfinv(u)
    assert np.isfinite(found).all()
    assert found.min() < -5
    assert found.max() > 5
    np.testing.assert_array_equal(found, -found[::-1])
    np.testing.assert_allclose(found, expected, rtol=4e-7)


def test_one_key_gives_the_same_normals_alone_and_in_a_batch():
    pairs = jax.random.bits(jax.random.key(1), (4, 2), jnp.uint32)
    together = jax.vmap(lambda pair: standard_normal(pair, (5, 3)))(pairs)
    alone = jnp.stack([standard_normal(pair, (5, 3)) for pair in pairs])
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    assert len(np.unique(np.asarray(together))) == together.size


@pytest.mark.usefixtures("float64")
def test_double_precision_normals_have_double_precision():
    z = np.asarray(standard_normal(words(0), (100_000,), jnp.float64))
    assert z.dtype == np.float64
    assert np.mean(z != z.astype(np.float32)) > 0.99
    assert len(np.unique(z)) == len(z)
    assert scipy.stats.kstest(z, "norm").pvalue > 0.01


# The bits that they are made of


def hashed(pair, count):
    return np.asarray(hashed_bits(jnp.asarray(pair, jnp.uint32), count))


def test_hashed_bits_are_uniform():
    bits = hashed(words(0), 2**20)
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits >> shift) & 255, minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
    # As a fraction, compared with those a little further on.
    u = bits / 2**32 - 0.5
    for lag in (1, 2, 3, 10, 256, 784):
        correlation = 12 * np.mean(u[:-lag] * u[lag:]) * np.sqrt(len(u) - lag)
        assert abs(correlation) < 4


@pytest.mark.parametrize("place", [0, 1])
def test_words_that_differ_in_one_bit_give_unrelated_numbers(place):
    count = 2**18
    pair = np.array([12345, 777], np.uint32)
    before = hashed(pair, count)
    for bit in range(32):
        other = pair.copy()
        other[place] ^= np.uint32(1 << bit)
        after = hashed(other, count)
        flips = [np.mean((before ^ after) >> k & 1) for k in range(32)]
        assert np.abs(np.array(flips) - 0.5).max() < 5 * 0.5 / np.sqrt(count)
        u, v = before / 2**32 - 0.5, after / 2**32 - 0.5
        assert abs(12 * np.mean(u * v)) < 5 / np.sqrt(count)
