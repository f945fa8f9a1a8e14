"""Checkpoints: whole or not at all, without pickle, and refused in one sentence otherwise."""

import errno
import json
import os

import numpy as np
import pytest

from funcl import FunclError, disk
from funcl.train import checkpoint

ARRAYS = {"a": {"x": np.arange(6.0).reshape(2, 3)}, "b": [np.array(True), None]}
OTHERS = {"a": {"x": np.ones((2, 3))}, "b": [np.array(False), None]}
PAYLOAD = {"numbers": (1, 2), "rate": 0.1, "by": {2: "b", 10: "a"}}


@pytest.fixture
def folder(tmp_path):
    checkpoint.save(tmp_path / "c", ARRAYS, PAYLOAD)
    return tmp_path / "c"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(call, *arguments):
    """The one sentence of a refusal."""
    with pytest.raises(FunclError) as caught:
        call(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_what_is_saved_is_read_back(folder):
    plain = checkpoint.load_manifest(folder)
    assert plain == {"numbers": [1, 2], "rate": 0.1, "by": {"2": "b", "10": "a"}}
    arrays = checkpoint.load_arrays(folder, ARRAYS)
    np.testing.assert_array_equal(arrays["a"]["x"], ARRAYS["a"]["x"])
    assert arrays["b"][0] == np.array(True)
    assert arrays["b"][1] is None


def test_there_is_one_manifest_and_one_file_of_arrays(folder):
    checkpoint.save(folder, OTHERS, {})
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]
    mask = os.umask(0)
    os.umask(mask)
    assert all(path.stat().st_mode & 0o777 == 0o666 & ~mask for path in folder.iterdir())


@pytest.mark.parametrize("moment", [1, 2])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_save_that_fails_leaves_the_old_one(folder, monkeypatch, moment, code):
    calls = []

    def failing(source, target):
        calls.append(target)
        if len(calls) == moment:
            raise OSError(code, os.strerror(code))
        original(source, target)

    original = os.replace
    monkeypatch.setattr(disk.os, "replace", failing)
    before = files(folder)
    text = refused(checkpoint.save, folder, OTHERS, {"other": 1})
    assert os.strerror(code) in text
    assert "saved there before is untouched" in text
    assert before.items() <= files(folder).items()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    np.testing.assert_array_equal(
        checkpoint.load_arrays(folder, ARRAYS)["a"]["x"], ARRAYS["a"]["x"]
    )
    monkeypatch.undo()
    checkpoint.save(folder, OTHERS, {})
    assert len(files(folder)) == 2  # the leftover of the failed save is gone


def test_an_interrupt_while_saving_leaves_the_old_one(folder, monkeypatch):
    def interrupted(handle):
        raise KeyboardInterrupt

    before = files(folder)
    monkeypatch.setattr(disk.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(folder, OTHERS, {})
    assert files(folder) == before


def test_settings_that_json_cannot_hold_are_noticed_before_anything_is_written(folder):
    before = files(folder)
    with pytest.raises(TypeError):
        checkpoint.save(folder, OTHERS, {"what": object()})
    assert files(folder) == before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    assert "could not be written" in refused(checkpoint.save, tmp_path / "file" / "c", ARRAYS, {})
    assert "could not be written" in refused(checkpoint.save, tmp_path / "file", ARRAYS, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(folder):
    folder.chmod(0o500)
    try:
        assert "Permission denied" in refused(checkpoint.save, folder, OTHERS, {})
    finally:
        folder.chmod(0o700)
    checkpoint.load_manifest(folder)


# ---------------------------------------------------------------------- damage


def arrays_file(folder):
    return next(folder.glob("*.safetensors"))


def truncate(folder):
    path = arrays_file(folder)
    path.write_bytes(path.read_bytes()[:-7])


def alter(folder):
    path = arrays_file(folder)
    blob = bytearray(path.read_bytes())
    blob[-3] ^= 1
    path.write_bytes(blob)


def lose(folder):
    arrays_file(folder).unlink()


def edit(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut_manifest(folder):
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-20])


DAMAGES = {
    "truncated": (truncate, "is truncated: .* of .* bytes"),
    "altered": (alter, "was altered after it was saved"),
    "lost arrays": (lose, "cannot be read"),
    "lost manifest": (lambda f: (f / "manifest.json").unlink(), "holds no checkpoint"),
    "cut manifest": (cut_manifest, "is damaged"),
    "not a manifest": (lambda f: (f / "manifest.json").write_text("[1]"), "is damaged"),
    "not text": (lambda f: (f / "manifest.json").write_bytes(b"\xff\x00"), "is damaged"),
    "newer": (lambda f: edit(f, schema=2), "newer funcl .format 2, this one reads up to 1"),
    "no schema": (lambda f: edit(f, schema=None), "is damaged"),
    "altered payload": (lambda f: edit(f, payload={"rate": 0.2}), "was altered after"),
    "altered digest": (lambda f: edit(f, sha256="0"), "was altered after"),
}


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(folder, damage, text):
    damage(folder)
    for call in (checkpoint.load_manifest, lambda f: checkpoint.load_arrays(f, ARRAYS)):
        with pytest.raises(FunclError, match=text):
            call(folder)
        assert str(folder) in refused(call, folder)


def test_no_folder_and_no_folder_but_a_file(tmp_path):
    assert "holds no checkpoint" in refused(checkpoint.load_manifest, tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "holds no checkpoint" in refused(checkpoint.load_manifest, tmp_path / "file")


@pytest.mark.parametrize(
    ("templates", "text"),
    [
        ({"a": {"x": np.zeros((2, 4))}, "b": ARRAYS["b"]}, r"should be float64\[2, 4\] and is"),
        ({"a": {"x": np.zeros((2, 3), np.float32)}, "b": ARRAYS["b"]}, r"should be float32\[2, 3"),
        ({"a": {"y": np.zeros(2)}, "b": ARRAYS["b"]}, "and is nothing"),
        ({"a": ARRAYS["a"]}, "it also holds"),
    ],
)
def test_arrays_that_do_not_fit(folder, templates, text):
    with pytest.raises(FunclError, match=text):
        checkpoint.load_arrays(folder, templates)
