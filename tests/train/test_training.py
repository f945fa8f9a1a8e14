"""The settings of training, and seeds as an axis of keys."""

import jax
import numpy as np
import pytest

from funcl.errors import FunclError
from funcl.train.training import SOURCES, Seeds, Training


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("epochs", 0, "epochs must be a whole number of at least 1"),
        ("epochs", 1.5, "epochs must be a whole number"),
        ("first_epochs", 0, "first_epochs must be a whole number"),
        ("batch_size", -1, "batch_size must be a whole number"),
        ("chunk", 0, "chunk must be a whole number"),
        ("learning_rate", 0.0, "learning_rate must be a positive number"),
        ("learning_rate", float("nan"), "learning_rate must be a positive number"),
        ("first_learning_rate", float("inf"), "first_learning_rate must be a positive number"),
        ("optimiser", "adm", "did you mean 'adam'?"),
        ("seed_axis", "vmapp", "did you mean 'vmap'?"),
        ("precision", "float23", "'float23' is no known precision"),
    ],
)
def test_impossible_settings_are_refused(setting, value, words):
    with pytest.raises(FunclError, match=words.replace("?", r"\?")):
        Training(**{setting: value})


@pytest.mark.parametrize(
    ("seeds", "vary", "words"),
    [
        ([], SOURCES, "At least one seed"),
        (0, SOURCES, "must be a whole number of at least 1, not 0"),
        ([1, 2, 1], SOURCES, "must differ"),
        ([1], ("noyse",), "did you mean 'noise'"),
    ],
)
def test_impossible_seeds_are_refused(seeds, vary, words):
    with pytest.raises(FunclError, match=words):
        Seeds.of(seeds, vary, 0)


def test_a_number_of_seeds_counts_from_zero_and_a_list_is_taken_as_it_is():
    assert Seeds.of(3, SOURCES, 0).numbers == (0, 1, 2)
    assert Seeds.of([7, 3], SOURCES, 0).numbers == (7, 3)


def test_only_what_varies_differs_between_seeds():
    keys = Seeds.of([4, 9], ("noise",), 2).keys(2)
    numbers = {name: jax.random.key_data(key) for name, key in keys._asdict().items()}
    same = {name: bool(np.all(pair[0] == pair[1])) for name, pair in numbers.items()}
    assert same == {"init": True, "noise": False, "context": True}


def test_sources_of_randomness_have_keys_of_their_own():
    keys = jax.random.key_data(jax.numpy.concatenate(Seeds.of(2, SOURCES, 0).keys(2)))
    order = jax.random.key_data(Seeds.of(2, SOURCES, 0).order_key())
    assert len({tuple(key) for key in np.asarray([*keys, order]).tolist()}) == 7


def test_a_seed_means_the_same_in_any_company_and_padding_repeats_the_last():
    alone = jax.random.key_data(Seeds.of([5], SOURCES, 0).keys(1).init)
    padded = jax.random.key_data(Seeds.of([3, 5], SOURCES, 0).keys(4).init)
    np.testing.assert_array_equal(padded[1:], np.repeat(alone, 3, axis=0))


def test_the_data_order_depends_on_the_data_seed_and_not_on_the_seeds():
    def order(seeds, data_seed):
        return jax.random.key_data(Seeds.of(seeds, SOURCES, data_seed).order_key()).tolist()

    assert order([1], 0) == order([2, 3], 0)
    assert order([1], 0) != order([1], 1)
