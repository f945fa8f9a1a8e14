"""Which rows a step sees: steps of an epoch, wrap-around, the sliding window, reshuffling."""

import numpy as np
import pytest

from train.recorder import shown

SIZES = (10, 3, 8)


@pytest.fixture(scope="module")
def sliding():
    return shown(SIZES, reshuffle=False)


@pytest.fixture(scope="module")
def shuffled():
    return shown(SIZES, reshuffle=True)


def rows_of(counts):
    """Row numbers, each as often as it was counted."""
    return sorted(np.repeat(np.arange(len(counts)), counts.round().astype(int)).tolist())


def test_without_reshuffling_the_window_slides_on_through_the_epochs(sliding):
    # Ten rows, batches of four: two steps an epoch; the next goes on where the last one ended.
    assert [rows_of(step[0]) for step in sliding[0]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [0, 1, 8, 9],
        [2, 3, 4, 5],
        [6, 7, 8, 9],
        [0, 1, 2, 3],
    ]


def test_a_task_smaller_than_a_batch_wraps_around(sliding):
    # Three rows: one step an epoch, whose fourth example is the first one again.
    assert [rows_of(step[0]) for step in sliding[1]] == [[0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2]]


def test_reshuffling_shows_every_row_once_an_epoch_where_batches_divide(shuffled):
    epochs = shuffled[2].reshape(3, 2, 2, -1)  # epochs, steps, seeds, rows
    np.testing.assert_array_equal(epochs.sum(1)[..., :8], np.ones((3, 2, 8)))
    orders = {tuple(map(tuple, epoch[:, 0])) for epoch in epochs}
    assert len(orders) == 3


def test_reshuffling_never_repeats_a_row_within_an_epoch(shuffled):
    epochs = shuffled[0].reshape(3, 2, 2, -1)
    assert epochs.sum(1).max() == 1
    assert [rows_of(step[0])[-1] <= 2 for step in shuffled[1]] == [True] * 3


def test_the_order_of_data_is_the_same_for_all_seeds(shuffled):
    for stage in shuffled:
        np.testing.assert_array_equal(stage[:, 0], stage[:, 1])


def test_first_epochs_and_first_learning_rate_are_those_of_the_first_task_alone():
    first, second = shown(
        (8, 8), epochs=1, chunk=100, seeds=1, first_epochs=3, first_learning_rate=0.5
    )
    np.testing.assert_array_equal(first[0, 0], np.full(8, 3 * 0.5))
    np.testing.assert_array_equal(second[0, 0], np.ones(8))
