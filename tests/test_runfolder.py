"""A run folder survives stopping, a second process, a full disk and other settings."""

import contextlib
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from funcl import MLP, Training
from funcl.disk import locked
from funcl.errors import FunclError
from funcl.memory.context import Coreset, Noise
from funcl.methods import SFSVI
from funcl.report import load_run
from funcl.runfolder import run_in_folder
from funcl.tasks import TaskSequence
from funcl.train.run import Runner
from funcl.train.training import SOURCES, Seeds

CHUNKS = 3 * 2 + 3  # three tasks of six steps, two chunks each, and the end of each


def make_runner(sequence, **changes):
    method = SFSVI(
        draws=1, coreset_size=3, first_context=Noise(3), context=Coreset(3), prediction_draws=2
    )
    settings = {"epochs": 2, "batch_size": 4, "chunk": 4} | changes
    return Runner(sequence, MLP([4]), method, Training(**settings), Seeds.of(2, SOURCES, 0))


@pytest.fixture(scope="module")
def sequence():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    return TaskSequence.from_arrays([(x + t, y, x + t, y) for t in range(3)], heads="multi")


@pytest.fixture(scope="module")
def runner(sequence):
    return make_runner(sequence)


@pytest.fixture(scope="module")
def whole(runner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run_in_folder(runner, folder, about={"command": "a command"})
    return folder


def state(folder: Path) -> str:
    """The checkpoint's arrays lie in a file that is named by their digest."""
    (path,) = (folder / "state").glob("arrays-*")
    return path.name


def without_seconds(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in load_run(folder).log]


def after(count):
    """A wish to stop that comes after so many snapshots."""
    left = iter(range(count - 1))
    return lambda: next(left, None) is None


def test_a_run_folder_holds_the_whole_account(whole):
    run = load_run(whole)
    assert run.info["status"] == "done"
    assert run.info["command"] == "a command"
    assert run.info["settings"]["training"]["epochs"] == 2
    assert run.history.settings == run.info["settings"]
    assert [(line["task"], line["step"]) for line in run.log] == [
        (task, step) for task in (1, 2, 3) for step in (4, 6)
    ]
    assert all(len(line["loss"]) == 2 for line in run.log)
    assert np.isfinite(run.history.accuracy[:, 2]).all()
    assert run.info["seconds"]["total"] == pytest.approx(sum(run.history.seconds.values()))


@pytest.mark.parametrize("stop_after", range(1, CHUNKS))
def test_a_resumed_run_is_the_unbroken_run_bit_by_bit(runner, whole, tmp_path, stop_after):
    assert run_in_folder(runner, tmp_path, stop=after(stop_after)) is None
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "running"
    history = run_in_folder(runner, tmp_path, resume=True).history
    expected = load_run(whole).history
    for name in ("accuracy", "nll", "bins"):
        assert np.array_equal(getattr(history, name), getattr(expected, name), equal_nan=True)
    assert state(tmp_path) == state(whole)
    assert without_seconds(tmp_path) == without_seconds(whole)


def test_what_was_logged_after_the_last_checkpoint_is_logged_once(runner, whole, tmp_path):
    def crash(snapshot):
        if snapshot.stage == 1 and snapshot.report is not None and snapshot.report.step == 6:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run_in_folder(runner, tmp_path, watch=crash)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"task": 2, "pha')
    run_in_folder(runner, tmp_path, resume=True)
    assert without_seconds(tmp_path) == without_seconds(whole)
    assert state(tmp_path) == state(whole)


def test_within_a_task_there_is_a_checkpoint_every_so_often(runner, tmp_path):
    positions = []

    def look(snapshot):
        with contextlib.suppress(FileNotFoundError):
            manifest = json.loads((tmp_path / "state" / "manifest.json").read_text())
            positions.append(tuple(manifest["payload"]["position"]))

    run_in_folder(runner, tmp_path, watch=look, checkpoint_seconds=0)
    assert (0, 4) in positions


def test_a_finished_run_is_not_run_again(runner, whole):
    before = state(whole)
    snapshot = run_in_folder(
        runner, whole, resume=True, watch=lambda s: (s.report, s.stage) == (None, 3) or 1 / 0
    )
    assert snapshot is not None
    assert state(whole) == before


def test_a_folder_with_a_run_is_refused(runner, whole):
    with pytest.raises(FunclError, match=r"already holds a run: go on with it by --resume"):
        run_in_folder(runner, whole)


def test_other_settings_are_named(sequence, whole):
    with pytest.raises(FunclError, match=r"training\.epochs \(2 there, 5 here\)"):
        run_in_folder(make_runner(sequence, epochs=5), whole, resume=True)


def test_a_folder_that_is_held_is_refused(runner, tmp_path):
    with locked(tmp_path), pytest.raises(FunclError, match="Another process is writing"):
        run_in_folder(runner, tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_folder_that_cannot_be_made_is_named(runner, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FunclError, match=r"file/run could not be written"):
        run_in_folder(runner, tmp_path / "file" / "run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_and_the_checkpoint_survives(runner, whole, tmp_path):
    run_in_folder(runner, tmp_path, stop=after(4))

    def fill(snapshot):
        (tmp_path / "log.jsonl").unlink(missing_ok=True)
        (tmp_path / "log.jsonl").symlink_to("/dev/full")

    with pytest.raises(FunclError, match=r"log\.jsonl could not be written \(No space left"):
        run_in_folder(runner, tmp_path, resume=True, watch=fill)
    (tmp_path / "log.jsonl").unlink()
    run_in_folder(runner, tmp_path, resume=True)
    assert state(tmp_path) == state(whole)


def test_a_checkpoint_without_room_leaves_the_one_before(runner, whole, tmp_path, monkeypatch):
    run_in_folder(runner, tmp_path, stop=after(4))
    fsync = os.fsync
    writes = iter(range(100))

    def full(file):
        if next(writes) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FunclError, match="No space left"):
            run_in_folder(runner, tmp_path, resume=True)
    run_in_folder(runner, tmp_path, resume=True)
    assert state(tmp_path) == state(whole)
