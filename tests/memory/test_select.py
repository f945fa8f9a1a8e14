from functools import partial

import jax
import numpy as np
import pytest
import scipy.stats

from funcl.errors import FunclError
from funcl.memory.select import lowest, rule

DRAWS = 3000
KEYS = jax.random.split(jax.random.key(0), DRAWS)
Y = np.array([0, 0, 0, 0, 0, 2, 2, 1, 1, 1, 0, 1], np.int32)
VALID = np.arange(12) < 10


@partial(jax.jit, static_argnums=(0, 1))
def chosen(name, count):
    return jax.vmap(lambda key: lowest(rule(name)(key, Y, VALID), count))(KEYS)


@pytest.mark.parametrize("name", ["random", "per-class"])
def test_rows_are_real_and_distinct(name):
    rows = np.asarray(chosen(name, 6))
    assert rows.dtype == np.int32
    assert rows.max() < 10
    assert all(len(set(row)) == 6 for row in rows.tolist())


@pytest.mark.parametrize("name", ["random", "per-class"])
def test_padding_comes_last(name):
    rows = np.asarray(chosen(name, 12))
    assert np.all(np.sort(rows[:, :10], axis=1) == np.arange(10))


def test_random_rows_are_uniform_in_every_place():
    rows = np.asarray(chosen("random", 6))
    for place in (0, 5):
        assert scipy.stats.chisquare(np.bincount(rows[:, place], minlength=10)).pvalue > 0.01
    pairs = np.sort(rows[:, :2], axis=1) @ [10, 1]
    counts = np.bincount(pairs, minlength=100)
    assert scipy.stats.chisquare(counts[counts > 0]).pvalue > 0.01
    assert np.count_nonzero(counts) == 45


@pytest.mark.parametrize(("count", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)])
def test_classes_take_turns(count, most):
    labels = Y[np.asarray(chosen("per-class", count))]
    per_class = np.stack([(labels == c).sum(axis=1) for c in range(3)], axis=1)
    assert per_class.max() == most  # ⌈count / 3⌉
    assert per_class.min() == count // 3


def test_an_exhausted_class_leaves_its_places_to_the_others():
    labels = Y[np.asarray(chosen("per-class", 8))]
    per_class = {tuple(np.bincount(row, minlength=3)) for row in labels}
    assert per_class == {(3, 3, 2)}


def test_rows_of_a_class_are_uniform():
    rows = np.asarray(chosen("per-class", 3))
    for members in (range(5), (5, 6), (7, 8, 9)):
        counts = [np.count_nonzero(rows == row) for row in members]
        assert sum(counts) == DRAWS
        assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_an_unknown_rule_is_refused():
    with pytest.raises(FunclError, match="per-class"):
        rule("per-clas")
