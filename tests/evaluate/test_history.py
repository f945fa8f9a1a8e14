import json
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from funcl.errors import FunclError
from funcl.evaluate import History, Scores

ABOUT = {
    "sequence": "split-digits", "method": "sfsvi", "variant": None, "heads": "multi",
    "scenario": "task-incremental", "split": "test", "data_seed": 0,
}  # fmt: skip


def blank(seeds=(0, 1), tasks=("a", "b", "c"), **about) -> History:
    return History.blank(tasks=tasks, seeds=seeds, **(ABOUT | about))


def sums(correct, nll=(3.0, 6.0)) -> Scores:
    correct = np.array(correct)
    bins = np.zeros((len(correct), 15, 3))
    bins[:, 14] = np.stack([np.full(len(correct), 10), np.full(len(correct), 9.5), correct], -1)
    number = np.array(nll)
    return Scores(np.full(len(correct), 10), correct, number, number / 10, number / 5, bins)  # pyright: ignore[reportArgumentType]


def filled() -> History:
    history = blank(seconds={"train": 1.5}, settings={"network": {"hidden": [8, 8]}})
    history = history.with_row(0, {0: sums([10, 9])})
    history = history.with_row(1, {0: sums([8, 9]), 1: sums([9, 9])})
    return history.with_row(2, {0: sums([7, 8]), 1: sums([9, 8]), 2: sums([10, 10])})


def test_rows_become_means_and_the_old_history_stays():
    empty = blank()
    history = empty.with_row(0, {0: sums([10, 9])})
    assert np.isnan(empty.accuracy).all()
    assert history.accuracy[:, 0, 0].tolist() == [1.0, 0.9]
    assert history.nll[:, 0, 0].tolist() == [0.3, 0.6]
    assert history.ece[:, 0, 0] == pytest.approx([0.05, 0.05])  # |10 - 9.5| / 10, |9 - 9.5| / 10
    assert np.isfinite(history.accuracy).sum() == 2


def test_bins_are_those_of_the_last_row():
    history = blank().with_row(0, {0: sums([10, 9])}).with_row(1, {1: sums([9, 8])})
    assert np.isnan(history.bins[:, 0]).all()
    assert history.bins[:, 1, 14, 2].tolist() == [9, 8]


def test_metrics_are_worked_from_the_rows():
    metrics = filled().metrics
    assert metrics["accuracy"].per_seed == pytest.approx(((0.7 + 0.9 + 1) / 3, (0.8 + 0.8 + 1) / 3))
    assert metrics["forgetting"].per_seed == pytest.approx((0.15, 0.1))
    assert metrics["backward_transfer"].per_seed == pytest.approx((-0.15, -0.1))
    assert metrics["nll"].mean == pytest.approx(0.45)
    assert metrics["accuracy"].note == ""
    assert "every task alone" in metrics["forward_transfer"].note
    alone = replace(filled(), independent_accuracy=np.full((2, 3), 0.9))
    assert alone.metrics["forward_transfer"].per_seed == pytest.approx((0.05, 0.05))


def test_accuracies_of_tasks_alone_come_from_the_diagonal_seed_by_seed():
    own = np.diagonal(filled().accuracy, axis1=1, axis2=2)
    separate = replace(filled(), accuracy=filled().accuracy[::-1], seeds=filled().seeds[::-1])
    np.testing.assert_array_equal(filled().with_independent(separate).independent_accuracy, own)
    with pytest.raises(FunclError, match="does not fit this one: seeds"):
        replace(filled(), seeds=[7, 8]).with_independent(separate)
    with pytest.raises(FunclError, match="does not fit this one: its tasks"):
        replace(filled(), tasks=["x", "y", "z"]).with_independent(separate)


def test_what_was_not_evaluated_is_said():
    last = blank().with_row(2, {on: sums([9, 8]) for on in range(3)})
    assert last.metrics["accuracy"].mean == pytest.approx(0.85)
    for name in ("forgetting", "backward_transfer"):
        assert np.isnan(last.metrics[name].mean)
        assert last.metrics[name].note.startswith("not measured")
    assert blank().metrics["ece"].note == "not measured: no evaluation"
    early = blank().with_row(0, {0: sums([9, 8])})
    assert early.metrics["accuracy"].note == "after 1 of 3 tasks"
    assert early.metrics["forgetting"].note == "not defined: needs two tasks"


def test_a_diverged_seed_is_left_out_whatever_it_reached_before():
    history = blank().with_row(0, {0: sums([10, 9])})
    history = replace(history, diverged={1: "task 2 (b), step 40"})
    history = history.with_row(1, {0: sums([8, 9]), 1: sums([9, 9])})
    assert np.isnan(history.accuracy[1, 1]).all()
    assert history.accuracy[1, 0, 0] == 0.9
    assert np.isnan(history.without_diverged().accuracy[1]).all()
    accuracy = history.metrics["accuracy"]
    assert accuracy.mean == pytest.approx(0.85)
    assert "without seed 1" in accuracy.note
    everyone = replace(history, diverged={0: "task 2", 1: "task 2"})
    assert everyone.metrics["accuracy"].note == "every seed diverged"


def test_probabilities_that_are_not_finite_are_no_result():
    history = blank().with_row(0, {0: sums([10, 9], nll=(1.0, np.nan))})
    assert np.isnan(history.accuracy[1, 0, 0])
    assert np.isnan(history.bins[1]).all()


def test_round_trip(tmp_path):
    history = replace(filled(), diverged={1: "task 3 (c), step 1,200"})
    path = tmp_path / "history.json"
    history.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["history.json"]
    assert "NaN" not in path.read_text()
    again = History.load(path)
    for item in fields(History):
        one, other = getattr(history, item.name), getattr(again, item.name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)  # bit for bit
        else:
            assert one == other


def test_the_long_frame():
    frame = filled().to_frame()
    columns = ["seed", "after", "on", "accuracy", "nll", "brier", "ece", "entropy"]
    assert list(frame.columns) == columns
    assert len(frame) == 2 * 6
    row = frame[(frame["seed"] == 1) & (frame["after"] == "c") & (frame["on"] == "a")]
    assert row["accuracy"].tolist() == [0.8]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "newer funcl"),
        (lambda text: text.replace('"nll"', '"lln"'), "damaged"),
        (lambda text: text.replace('"seeds": [0, 1]', '"seeds": [0, 1, 2]'), "damaged"),
        (lambda _: "[1, 2]", "no schema number"),
    ],
)
def test_unreadable_files_get_one_sentence(tmp_path, damage, said):
    path = tmp_path / "history.json"
    filled().save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(FunclError, match=said) as caught:
        History.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unwritable_paths_get_one_sentence(tmp_path):
    with pytest.raises(FunclError, match="cannot be read"):
        History.load(tmp_path / "none.json")
    with pytest.raises(FunclError, match="could not be written"):
        filled().save(tmp_path / "no folder" / "history.json")


def test_an_interrupted_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "history.json"
    filled().save(path)
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FunclError, match="No space left"):
        blank().save(path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_reading_a_history_needs_neither_jax_nor_pandas():
    code = (
        "import sys, funcl.evaluate.history, json; heavy = ('jax', 'pandas', 'matplotlib'); "
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
