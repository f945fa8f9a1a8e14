import json
from dataclasses import replace

import numpy as np
import pytest
from made_up import folder, history

from funcl.errors import FunclError
from funcl.report import load_run, load_runs
from funcl.report.runs import Run, by_setting, labels


def test_a_run_is_read_back(tmp_path):
    run = load_run(folder(tmp_path / "a", history(variant="larger")))
    assert run.label == "sfsvi larger"
    assert run.name == "a"
    assert run.info["commit"] == "0123abc"
    assert len(run.log) == 5 * 20
    assert run.history.tasks == run.info["tasks"]


def test_every_failure_is_one_sentence(tmp_path):
    good = folder(tmp_path / "good", history())
    with pytest.raises(FunclError, match="no run folder"):
        load_run(tmp_path / "none")
    with pytest.raises(FunclError, match="not a run folder"):
        load_run(tmp_path)
    (good / "log.jsonl").write_text("{}\n{damaged\n{}\n")
    with pytest.raises(FunclError, match="line 2"):
        load_run(good)
    info = json.loads((good / "run.json").read_text())
    (good / "run.json").write_text(json.dumps(info | {"schema": 99}))
    with pytest.raises(FunclError, match="newer funcl"):
        load_run(good)
    (good / "run.json").write_text("{")
    with pytest.raises(FunclError, match="damaged"):
        load_run(good)
    (good / "run.json").write_text(json.dumps(info))
    (good / "history.json").unlink()
    with pytest.raises(FunclError, match=r"no history\.json yet"):
        load_run(good)


def test_half_a_last_log_line_is_what_a_killed_run_leaves(tmp_path):
    path = folder(tmp_path / "a", history())
    with (path / "log.jsonl").open("a") as log:
        log.write('{"task": 5, "ph')
    assert len(load_run(path).log) == 5 * 20


def test_a_run_on_every_task_alone_gives_its_method_forward_transfer(tmp_path):
    inner = {"type": "Mine", "strength": 1.0}
    settings = [{"method": inner}, {"method": {"type": "Separate", "method": inner}}]
    settings.append({"method": {"type": "Separate", "method": {"type": "Another"}}})
    folders = [
        folder(tmp_path / name, replace(history(method=name), settings=known))
        for name, known in zip(("mine", "separate", "other"), settings, strict=True)
    ]
    alone = np.diagonal(history().accuracy, axis1=1, axis2=2)
    with_it, without = load_runs(folders), load_runs([folders[0], folders[2]])
    np.testing.assert_array_equal(with_it[0].history.independent_accuracy, alone)
    assert with_it[1].history.independent_accuracy is None
    assert without[0].history.independent_accuracy is None


def test_labels_tell_runs_apart():
    def run(name, **about):
        return Run({}, history(**about), [], name)

    assert labels([run("a"), run("b", method="vcl")]) == ["sfsvi", "vcl"]
    assert labels([run("a"), run("b")]) == ["sfsvi (a)", "sfsvi (b)"]
    assert labels([run("a"), run("a")]) == ["sfsvi (a) #1", "sfsvi (a) #2"]
    groups = by_setting([run("a"), run("b", split="validation")])
    assert [list(group) for group in groups.values()] == [["sfsvi"], ["sfsvi"]]
    assert list(groups)[1].endswith("validation split")
