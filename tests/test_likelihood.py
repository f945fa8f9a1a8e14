import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from funcl.likelihood import cross_entropy, log_probabilities, probabilities


@st.composite
def heads(draw):
    outputs = 5  # one shape, so that every example runs what the first one compiled
    columns = draw(st.sets(st.integers(0, outputs - 1), min_size=1))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    logits = rng.normal(scale=draw(st.sampled_from([1, 100])), size=(2, 4, outputs))
    mask = np.isin(np.arange(outputs), list(columns))
    return logits, rng.choice(sorted(columns), 4).astype(np.int32), mask


@given(heads())
@pytest.mark.usefixtures("float64")
def test_the_softmax_is_that_of_the_head_alone(head):
    logits, y, mask = head
    log_p = log_softmax(logits[..., mask], axis=-1)
    np.testing.assert_allclose(log_probabilities(logits, mask)[..., mask], log_p, rtol=1e-12)
    p = probabilities(logits, mask)
    np.testing.assert_allclose(p[..., mask], np.exp(log_p), rtol=1e-10)
    assert np.all(np.asarray(p[..., ~mask]) == 0)
    nll, correct = cross_entropy(jnp.asarray(logits), jnp.asarray(y), jnp.asarray(mask))
    place = np.cumsum(mask)[y] - 1
    expected = -np.take_along_axis(log_p, np.broadcast_to(place, (2, 4))[..., None], -1)[..., 0]
    np.testing.assert_allclose(nll, expected, rtol=1e-12)
    np.testing.assert_array_equal(correct, log_p.argmax(-1) == place)


@given(heads())
def test_columns_outside_the_head_have_exactly_no_gradient(head):
    logits, y, mask = (jnp.asarray(part) for part in head)
    logits = logits.astype(jnp.float32)
    wild = jnp.where(mask, logits, jnp.float32(3e38))  # whatever they are
    for values in (logits, wild, jnp.where(mask, logits, -jnp.inf)):
        gradient = jax.grad(lambda v: jnp.sum(cross_entropy(v, y, mask)[0]))(values)
        assert bool(jnp.all(jnp.where(mask, 0, gradient) == 0))
        expected = jax.grad(lambda v: jnp.sum(cross_entropy(v, y, mask)[0]))(logits)
        np.testing.assert_array_equal(gradient, expected)


def test_a_label_outside_the_head_costs_much_but_nothing_infinite():
    logits, mask = jnp.zeros((1, 3)), jnp.array([True, True, False])

    def cost(values):
        nll, correct = cross_entropy(values, jnp.array([2], jnp.int32), mask)
        return nll[0], correct[0]

    (nll, correct), gradient = jax.value_and_grad(cost, has_aux=True)(logits)
    assert 1e20 < float(nll) < np.inf
    assert not correct
    np.testing.assert_allclose(gradient, [[0.5, 0.5, 0]])


def test_every_example_may_have_its_own_head():
    logits = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    masks = jnp.array([[True, True, False], [False, True, True]])
    p = probabilities(logits, masks)
    np.testing.assert_allclose(p[0, :2], p[1, 1:], rtol=1e-6)
    nll, correct = cross_entropy(logits, jnp.array([1, 1], jnp.int32), masks)
    np.testing.assert_allclose(nll, -np.log(np.asarray(p)[[0, 1], [1, 1]]), rtol=1e-6)
    assert correct.tolist() == [True, False]
