import numpy as np
import pytest

from funcl.tasks.order import proportional, stratified_order


def test_the_order_is_that_of_scikit_learns_stratified_split():
    """Rows of train_test_split(stratify=labels, test_size=11) of scikit-learn, end to end."""
    labels = np.random.RandomState(3).permutation(np.repeat(np.arange(7), [5, 9, 4, 9, 5, 4, 6]))
    generator = np.random.RandomState(5)
    order = stratified_order(labels, 11, generator)
    in_front = [26, 17, 20, 41, 37, 7, 28, 15, 33, 23, 21, 34, 9, 27, 25, 0, 39, 3, 29, 19, 14, 40]
    in_front += [31, 4, 1, 36, 12, 13, 38, 16, 5]
    assert order.tolist() == [*in_front, 24, 10, 32, 30, 35, 22, 8, 11, 2, 18, 6]
    # The permutations of pixels come from the same stream, so its place after the order counts.
    assert generator.permutation(3).tolist() == [0, 1, 2]


def test_equal_claims_tie_in_spite_of_rounding():
    """Five sixths of MNIST's classes: zeros, sevens and eights all claim 5/6 of one row more.

    scikit-learn 0.21, which drew the published order, multiplies before it divides and sees that.
    Later versions do it the other way round, see two of the three, and draw another order.
    """
    counts = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    generator, by_hand = np.random.RandomState(0), np.random.RandomState(0)
    shares = proportional(counts, 50_000, generator)
    whole = counts * 5 // 6
    for tied, missing in (([0, 7, 8], 3), ([6], 1), ([5, 9], 1)):
        whole[by_hand.choice(tied, size=missing, replace=False)] += 1
    assert shares.tolist() == whole.tolist()
    assert generator.randint(2**31) == by_hand.randint(2**31)


@pytest.mark.parametrize("last", [3, 10, 17])
def test_both_parts_show_every_class_in_proportion(last):
    labels = np.random.RandomState(1).randint(0, 4, 60)
    order = stratified_order(labels, last, np.random.RandomState(2))
    assert sorted(order.tolist()) == list(range(60))
    exact = np.bincount(labels) * last / 60
    assert np.all(np.abs(np.bincount(labels[order[-last:]], minlength=4) - exact) < 1)


def test_shares_add_up_and_equal_claims_are_drawn_for():
    counts = np.array([3, 3, 3, 3])
    drawn = [tuple(proportional(counts, 6, np.random.RandomState(seed))) for seed in range(20)]
    assert all(sorted(shares) == [1, 1, 2, 2] for shares in drawn)
    assert len(set(drawn)) > 1
