import json
from dataclasses import replace

import numpy as np
import pytest

from funcl.errors import FunclError
from funcl.evaluate.history import History
from funcl.experiments import results
from funcl.experiments.circumstances import circumstances, command
from funcl.experiments.page import sequence_table, write_results_page
from funcl.experiments.results import read_result, result, write_result

MEASURED = {
    "peak_memory": 2**21,
    "seeds_together": 1,
    "programs_from_cache": 0,
    "command": "funcl reproduce table1",
    "commit": "abc",
    "hardware": "a computer",
    "versions": {"python": "3.11"},
}


def history(sequence="split-mnist", variant=None, last=(0.995, 0.996)):
    blank = History.blank(
        tasks=["one", "two"],
        seeds=[0, 1],
        sequence=sequence,
        method="sfsvi",
        variant=variant,
        heads="multi",
        scenario="task-incremental",
        split="test",
        data_seed=0,
        seconds={"train": 10.0, "compile": 2.0, "evaluate": 1.0},
        settings={"network": {}, "method": {}, "training": {"precision": "float32"}},
    )
    accuracy = np.array([[[1.0, np.nan], [value - 0.001, value + 0.001]] for value in last])
    return replace(blank, accuracy=accuracy)


def test_a_result_holds_percentages_and_what_was_published():
    value = result(history(), measured=MEASURED, preset=True)
    assert value["accuracy"] == [99.5, 99.6]
    assert value["mean"] == 99.55
    assert value["standard_error"] == round(0.05 / np.sqrt(2), 4)
    assert value["matrix"] == [[100.0, None], [99.45, 99.65]]
    assert value["published"][0]["mean"] == 99.54
    assert value["accept"] == [99.44, 99.64]
    assert results.is_accepted(value)
    assert (value["train_seconds"], value["compile_seconds"]) == (10.0, 2.0)
    assert value["tuning"] is None


def test_other_settings_are_not_compared_with_what_was_published():
    value = result(history(), measured=MEASURED, preset=False)
    assert (value["published"], value["accept"]) == ([], None)
    assert results.is_accepted(value) is None


def test_a_diverged_seed_is_null_and_named():
    value = result(
        replace(history(), diverged={1: "task 2 (two), step 5"}), measured=MEASURED, preset=True
    )
    assert value["accuracy"] == [99.5, None]
    assert (value["mean"], value["standard_error"]) == (99.5, None)
    assert value["diverged"] == {"1": "task 2 (two), step 5"}


def test_results_are_written_where_they_belong_and_read_back(tmp_path):
    value = result(history(variant="larger"), measured=MEASURED, preset=True)
    path = write_result(tmp_path, value)
    assert path == tmp_path / "split-mnist" / "sfsvi-larger.json"
    assert read_result(path) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": "high"}, "mean is 'high'"),
        ({"accuracy": [1.0]}, "1 accuracies for 2 seeds"),
        ({"hardware": None}, "hardware is None"),
        ({"schema": 99}, "newer funcl"),
    ],
)
def test_unsound_results_are_refused(tmp_path, change, message):
    path = write_result(tmp_path, result(history(), measured=MEASURED, preset=True))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FunclError, match=message):
        read_result(path)


def test_a_missing_key_is_named(tmp_path):
    value = result(history(), measured=MEASURED, preset=True)
    del value["commit"]
    with pytest.raises(FunclError, match="commit is missing"):
        write_result(tmp_path, value)


# Typed by hand from the paper and the README of the released code.
@pytest.mark.parametrize(
    ("name", "first", "limits"),
    [
        (("split-mnist", "sfsvi", "larger"), 99.76, [99.66, 99.86]),
        (("split-mnist", "sfsvi", "no-coreset"), 99.62, [99.52, 99.72]),
        (("split-fashion", "sfsvi", None), 99.05, [98.7, 99.4]),
        (("split-fashion", "sfsvi", "larger"), 98.5, [98.15, 98.85]),
        (("split-fashion", "sfsvi", "no-coreset"), 99.17, [98.82, 99.52]),
        (("permuted-mnist", "sfsvi", None), 95.76, [95.66, 95.86]),
        (("permuted-mnist", "sfsvi", "larger"), 97.5, [97.35, 97.65]),
        (("permuted-mnist", "sfsvi", "no-coreset"), 84.06, [82.56, 85.56]),
        (("permuted-mnist", "sfsvi", "minimal"), 89.59, [88.09, 91.09]),
        (("split-mnist-sh", "sfsvi", None), 92.87, [92.37, 93.37]),
        (("split-mnist-sh", "sfsvi", "larger"), 93.38, [92.88, 93.88]),
        (("split-mnist-sh", "sfsvi", "no-coreset"), 20.15, [18.65, 21.65]),
        (("split-mnist-sh", "sfsvi", "minimal"), 51.44, [48.44, 54.44]),
        (("split-mnist", "fromp", None), 99.0, None),
        (("omniglot", "sfsvi", None), 83.29, None),
        (("split-cifar", "sfsvi", None), 77.6, None),
    ],
)
def test_published_numbers_and_ranges(name, first, limits):
    assert results.published(*name)[0]["mean"] == first
    assert results.accepted(*name) == limits


def test_the_page_is_made_from_the_files_alone(tmp_path):
    folder, page = tmp_path / "results", tmp_path / "docs" / "results.md"
    write_result(folder, result(history(), measured=MEASURED, preset=True))
    write_result(
        folder, result(history(variant="larger", last=(0.9, 0.9)), measured=MEASURED, preset=True)
    )
    text = write_results_page(folder, page).read_text()
    line = "| [sfsvi](../results/split-mnist/sfsvi.json) | 99.55 ± 0.04 | 2 | 99.54 ± 0.04 (paper"
    assert line in text
    assert "99.44 to 99.64 | yes" in text
    assert "99.66 to 99.86 | no" in text
    assert "a computer" in text
    assert write_results_page(folder, page).read_text() == text


def test_a_page_without_results_says_so(tmp_path):
    page = write_results_page(tmp_path / "results", tmp_path / "results.md")
    assert "Nothing has been measured yet" in page.read_text()


def test_a_table_shows_rivals_that_are_only_published(tmp_path):
    write_result(tmp_path, result(history(), measured=MEASURED, preset=True))
    rows = [("EWC", "ewc", None), ("ours", "sfsvi", None), ("nobody", "vargp", None)]
    table = sequence_table("title", "split-mnist", rows, tmp_path)
    assert [label for label, _ in table.rows] == ["EWC", "ours"]
    assert [str(cell) for cell in table.rows[0][1]] == [
        "-",
        "-",
        "63.10 (paper, Table 1)",
        "-",
        "-",
    ]


def test_circumstances_are_described(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/funcl", "reproduce", "table1"])
    assert command() == "funcl reproduce table1"
    found = circumstances()
    assert found["hardware"]
    assert {"python", "jax", "numpy", "funcl"} <= found["versions"].keys()


def test_the_commit_comes_from_the_environment_where_there_is_no_checkout(monkeypatch):
    from funcl.experiments import circumstances as module

    monkeypatch.setattr(module, "_git", lambda *arguments: None)
    monkeypatch.setenv("FUNCL_COMMIT", "abc123")
    assert module.commit() == "abc123"
    monkeypatch.delenv("FUNCL_COMMIT")
    assert module.commit() is None
