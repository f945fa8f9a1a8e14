import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcl.evaluate import score
from funcl.evaluate.metrics import calibration_error

PROBABILITIES = np.array(
    [[0.7, 0.3, 0.0], [0.4, 0.6, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32
)
LABELS = np.array([0, 0, 0, 0], np.int32)


def test_hand_worked_sums():
    scores = score(jnp.array(PROBABILITIES[:3]), jnp.array(LABELS[:3]), jnp.ones(3, bool))
    assert (scores.count, scores.correct) == (3, 2)
    assert scores.nll == pytest.approx(-np.log(0.7) - np.log(0.4), rel=1e-6)
    assert scores.brier == pytest.approx(2 * 0.3**2 + 2 * 0.6**2, rel=1e-6)
    first, second = 0.7 * np.log(0.7) + 0.3 * np.log(0.3), 0.4 * np.log(0.4) + 0.6 * np.log(0.6)
    assert scores.entropy == pytest.approx(-first - second, rel=1e-6)
    # confidences 0.7, 0.6 and 1.0 lie in (10/15, 11/15], (8/15, 9/15] and (14/15, 1]
    assert np.flatnonzero(np.asarray(scores.bins)[:, 0]).tolist() == [8, 10, 14]
    error = (0.6 + 0.3 + 0) / 3  # wrong at 0.6, right at 0.7, right at 1
    assert calibration_error(np.asarray(scores.bins)) == pytest.approx(error, rel=1e-6)


def test_a_certain_mistake_costs_a_finite_amount():
    scores = score(jnp.array(PROBABILITIES[3:]), jnp.array(LABELS[3:]), jnp.ones(1, bool))
    assert scores.nll == pytest.approx(126 * np.log(2), rel=1e-6)  # the smallest normal: 2^-126
    assert scores.brier == 2
    assert scores.entropy == 0


def test_padding_counts_for_nothing_even_if_it_is_not_finite():
    padded = np.concatenate([PROBABILITIES, np.full((2, 3), np.nan, np.float32)])
    labels = np.concatenate([LABELS, np.array([-1, 7], np.int32)])
    valid = np.array([True] * 4 + [False] * 2)
    plain = score(jnp.array(PROBABILITIES), jnp.array(LABELS), jnp.ones(4, bool))
    with_padding = score(jnp.array(padded), jnp.array(labels), jnp.array(valid))
    for one, other in zip(plain, with_padding, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_jit_and_vmap_agree_with_plain_calls():
    random = np.random.default_rng(0)
    p = jnp.array(random.dirichlet(np.ones(4), (3, 20)), jnp.float32)
    labels, valid = jnp.array(random.integers(0, 4, 20), jnp.int32), jnp.ones(20, bool)
    together = jax.jit(jax.vmap(score, (0, None, None)))(p, labels, valid)
    for seed in range(3):
        for one, many in zip(score(p[seed], labels, valid), together, strict=True):
            np.testing.assert_allclose(one, many[seed], rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 12))
def test_scores_add_up_over_batches_and_stay_in_bounds(seed, cut):
    random = np.random.default_rng(seed)
    p = jnp.array(random.dirichlet(np.full(3, 0.3), 12), jnp.float32)
    labels = jnp.array(random.integers(0, 3, 12), jnp.int32)
    first = jnp.arange(12) < cut
    whole = score(p, labels, jnp.ones(12, bool))
    parts = jax.tree.map(jnp.add, score(p, labels, first), score(p, labels, ~first))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert 0 <= whole.brier <= 2 * 12
    assert -1e-5 <= whole.entropy <= 12 * np.log(3) + 1e-4
    assert whole.bins[:, 0].sum() == 12
    assert int(whole.bins[:, 2].sum()) == int(whole.correct)
    assert 0 <= calibration_error(np.asarray(whole.bins)) <= 1
