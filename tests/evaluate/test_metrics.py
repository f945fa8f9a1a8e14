import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from funcl.evaluate import metrics

NAN = np.nan
# One seed, four tasks: every formula below is worked by hand from this matrix.
R = np.array(
    [[
        [0.90, NAN, NAN, NAN],
        [0.80, 0.95, NAN, NAN],
        [0.85, 0.70, 0.99, NAN],
        [0.60, 0.75, 0.89, 0.92],
    ]]
)  # fmt: skip


def test_accuracy_after_each_task():
    expected = [0.90, (0.80 + 0.95) / 2, (0.85 + 0.70 + 0.99) / 3, (0.60 + 0.75 + 0.89 + 0.92) / 4]
    np.testing.assert_allclose(metrics.after_each_task(R), [expected], rtol=1e-12)
    np.testing.assert_allclose(metrics.final(R), [expected[-1]], rtol=1e-12)


def test_forgetting_takes_the_best_before_the_last_task_and_leaves_out_the_last_task():
    expected = ((0.90 - 0.60) + (0.95 - 0.75) + (0.99 - 0.89)) / 3
    assert metrics.forgetting(R)[0] == pytest.approx(expected, rel=1e-12)


def test_forgetting_is_negative_where_the_last_task_helped():
    helped = np.array([[[0.5, NAN], [0.7, 0.9]]])
    assert metrics.forgetting(helped)[0] == pytest.approx(-0.2, rel=1e-12)


def test_forgetting_counts_what_was_known_before_the_task_if_that_was_evaluated():
    known = np.array([[[0.9, 0.8, 0.1], [0.9, 0.6, 0.1], [0.9, 0.5, 0.9]]])
    assert metrics.forgetting(known)[0] == pytest.approx((0 + 0.3) / 2, rel=1e-12)


def test_transfers():
    backward = ((0.60 - 0.90) + (0.75 - 0.95) + (0.89 - 0.99)) / 3
    assert metrics.backward_transfer(R)[0] == pytest.approx(backward, rel=1e-12)
    alone = np.array([[NAN, 0.90, 0.98, 0.95]])  # the first task's own model is not needed
    forward = ((0.95 - 0.90) + (0.99 - 0.98) + (0.92 - 0.95)) / 3
    assert metrics.forward_transfer(R, alone)[0] == pytest.approx(forward, rel=1e-12)


def test_a_run_that_stopped_early_is_scored_at_its_last_row():
    early = R.copy()
    early[:, 2:] = NAN
    assert metrics.final(early)[0] == pytest.approx((0.80 + 0.95) / 2)
    assert metrics.forgetting(early)[0] == pytest.approx(0.1)
    assert metrics.backward_transfer(early)[0] == pytest.approx(-0.1)


@pytest.mark.parametrize("make", [metrics.forgetting, metrics.backward_transfer])
def test_missing_rows_are_not_measured(make):
    last_only = np.full_like(R, NAN)
    last_only[:, -1] = R[:, -1]
    assert np.isnan(make(last_only)).all()
    assert np.isnan(make(R[:, :1, :1])).all()  # one task
    assert np.isnan(make(np.full_like(R, NAN))).all()


def test_stored_published_run():
    # A published single run: final mean 77.495 %, backward transfer -2.346 points.
    rows = [
        [0.8010], [0.7944, 0.7870], [0.7869, 0.7750, 0.7680], [0.7750, 0.7580, 0.7550, 0.8150],
        [0.7652, 0.7710, 0.7530, 0.8010, 0.7880], [0.7617, 0.7610, 0.7420, 0.8010, 0.7760, 0.8080],
    ]  # fmt: skip
    stored = np.full((1, 6, 6), NAN)
    for after, row in enumerate(rows):
        stored[0, after, : len(row)] = row
    assert 100 * metrics.final(stored)[0] == pytest.approx(77.495, abs=1e-3)
    assert 100 * metrics.backward_transfer(stored)[0] == pytest.approx(-2.346, abs=1e-3)


def test_standard_error_is_the_population_deviation_over_root_n():
    metric = metrics.summarize("accuracy", np.array([0.96, 0.98, 1.0]), [0, 1, 2], missing="")
    assert metric.mean == pytest.approx(0.98)
    assert metric.standard_error == pytest.approx(np.sqrt(2 / 3) * 0.02 / np.sqrt(3))
    assert metric.note == ""


def test_one_seed_has_no_standard_error():
    metric = metrics.summarize("accuracy", np.array([0.9]), [4], missing="")
    assert metric.mean == 0.9
    assert np.isnan(metric.standard_error)
    assert metric.note == "one seed, so no standard error"


def test_seeds_without_a_value_are_named():
    metric = metrics.summarize("x", np.array([0.9, NAN, NAN, 0.7]), [3, 5, 8, 9], missing="")
    assert metric.mean == pytest.approx(0.8)
    assert metric.note == "without seeds 5, 8, which have no final value"
    nothing = metrics.summarize("x", np.array([NAN, NAN]), [0, 1], missing="not measured")
    assert np.isnan(nothing.mean)
    assert nothing.note == "not measured"


unit = st.floats(0, 1)


@given(arrays(np.float64, (3, 4, 4), elements=unit), st.permutations(range(3)))
def test_bounds_and_the_order_of_seeds(full, order):
    lower = np.where(np.tri(4, dtype=bool), full, NAN)
    assert ((metrics.final(lower) >= 0) & (metrics.final(lower) <= 1)).all()
    forgetting, backward = metrics.forgetting(lower), metrics.backward_transfer(lower)
    # The best is at least the own accuracy, so forgetting is at least the negative transfer.
    assert (forgetting >= -backward - 1e-12).all()
    assert (np.abs(forgetting) <= 1).all()
    for make in (metrics.final, metrics.forgetting, metrics.backward_transfer):
        np.testing.assert_array_equal(make(lower)[order], make(lower[order]))
        one = metrics.summarize("x", make(lower), [0, 1, 2], missing="")
        other = metrics.summarize("x", make(lower[order]), order, missing="")
        assert one.mean == pytest.approx(other.mean, abs=1e-12)
        assert one.standard_error == pytest.approx(other.standard_error, abs=1e-9)


def test_calibration_error_of_empty_bins_is_not_a_number():
    assert np.isnan(metrics.calibration_error(np.zeros((2, 15, 3)))).all()
