import gzip
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from funcl import disk
from funcl.errors import FunclError
from funcl.tasks import files, formats, sources

TRAIN_IMAGES = "train-images-idx3-ubyte"
HEADER = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 3)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("FUNCL_OFFLINE", "1")


# Finding


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("inner", [".", "tiny", "Tiny/raw"])
def test_idx_files_are_found_in_a_named_folder(tiny, tmp_path, inner, compressed):
    tiny.write_idx(tmp_path / "mine" / inner, compressed)
    tiny.assert_equal(files.read("tiny", tmp_path / "mine"))


def test_an_archive_is_found_in_the_environments_folder(tiny, tmp_path, monkeypatch, offline):
    tiny.write_npz(tmp_path / "mine")
    monkeypatch.setenv("FUNCL_DATA", str(tmp_path / "mine"))
    tiny.assert_equal(files.read("tiny"))


@pytest.mark.parametrize(
    "place", ["cache/data/tiny", "data/Tiny/raw", "home/data/Tiny/raw", "home/.keras/datasets/tiny"]
)
def test_idx_files_are_found_where_programs_keep_them(tiny, tmp_path, offline, place):
    tiny.write_idx(tmp_path / place)
    tiny.assert_equal(files.read("tiny"))
    assert files.fetch("tiny").resolve() == tmp_path / place


def test_an_archive_is_found_where_keras_keeps_it(tiny, tmp_path, monkeypatch, offline):
    archive = tiny.write_npz(tmp_path / "keras" / "datasets")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    assert files.verify("tiny").where == archive


def test_labels_may_be_stored_as_wider_integers(tiny, tmp_path):
    tiny.write_npz(tmp_path, y_train=tiny.arrays["y_train"].astype(np.int64))
    arrays = files.read("tiny", tmp_path)
    tiny.assert_equal(arrays)
    assert arrays["y_train"].dtype == np.uint8


def test_any_order_of_rows_gives_the_same_arrays(tiny, tmp_path):
    reordered = []
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(40)
        changes = {name: tiny.arrays[name][order] for name in ("x_train", "y_train")}
        tiny.write_npz(tmp_path / str(seed), **changes)
        reordered.append(files.read("tiny", tmp_path / str(seed)))
    for name in reordered[0]:
        np.testing.assert_array_equal(reordered[0][name], reordered[1][name])
    np.testing.assert_array_equal(reordered[0]["x_test"], tiny.arrays["x_test"])
    assert (np.diff(reordered[0]["y_train"].astype(int)) >= 0).all()


def test_rows_with_another_rows_label_are_refused(tiny, tmp_path):
    tiny.write_npz(tmp_path, y_train=np.roll(tiny.arrays["y_train"], 1))
    with pytest.raises(FunclError, match="the train part does not hold the rows of tiny"):
        files.read("tiny", tmp_path)


def test_loose_files_of_another_set_are_no_damage(tiny, tmp_path, monkeypatch):
    tiny.register_other(monkeypatch)
    tiny.write_idx(tmp_path / "mine")
    monkeypatch.setenv("FUNCL_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("FUNCL_OFFLINE", "1")
    with pytest.raises(FunclError, match="other is not on this machine"):
        files.read("other")
    assert files.verify("other").verified is None
    (tmp_path / "mine" / "other").mkdir()
    tiny.write_idx(tmp_path / "mine" / "other")
    with pytest.raises(FunclError, match="mine/other is no sound other"):
        files.read("other")


# Refusing


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "begins with nothing"),
        (b"<html>no such file</html>", "no IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "no IDX file"),
        (b"\0\0\x08\x03\0\0\0\x02\0\0", "header is cut short"),
        (HEADER + bytes(17), "17 bytes of values where its header says 18"),
        (HEADER + bytes(19), "19 bytes of values where its header says 18"),
        (gzip.compress(HEADER + bytes(18))[:-4], "cannot be read"),
        (gzip.compress(b"x") + b"tail", "cannot be read"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "header says"),
    ],
)
def test_idx_files_are_read_strictly(tmp_path, data, says):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(formats.DamagedError, match=says):
        formats.read_idx(tmp_path / "file")


@pytest.mark.parametrize("kind", ["npz", "gz", "idx"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_damaged_byte_goes_unnoticed(tiny, tmp_path, kind, data):
    """Whatever byte is altered or cut off, the file is refused or its arrays are still right."""
    if kind == "npz":
        path = tiny.write_npz(tmp_path)
        whole = path.read_bytes()
    else:
        path = tiny.write_idx(tmp_path, compressed=kind == "gz") / TRAIN_IMAGES
        path = path.with_suffix(".gz") if kind == "gz" else path
        whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.integers(0, 255))
    end = len(whole) if data.draw(st.booleans()) else position + 1
    path.write_bytes(
        (whole[:position] + bytes([whole[position] ^ damage]) + whole[position + 1 :])[:end]
    )
    found = files.verify("tiny", tmp_path)
    if found.verified:
        tiny.assert_equal(files.read("tiny", tmp_path))
    else:
        with pytest.raises(FunclError, match=rf"{path} .* delete it\.$"):
            files.read("tiny", tmp_path)


@pytest.mark.parametrize("by_environment", [True, False])
def test_damage_in_a_named_folder_is_an_error(tiny, tmp_path, monkeypatch, by_environment):
    folder = tiny.write_idx(tmp_path / "mine", compressed=False)
    tiny.write_npz(tmp_path / "cache" / "data")
    whole = tiny.idx[TRAIN_IMAGES]
    (folder / TRAIN_IMAGES).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    monkeypatch.setenv("FUNCL_DATA", str(folder))
    with pytest.raises(FunclError, match=f"mine/{TRAIN_IMAGES} is no sound tiny: the train part"):
        files.read("tiny", None if by_environment else folder)
    found = files.verify("tiny")
    assert (found.where, found.verified) == (folder, False)
    assert TRAIN_IMAGES in str(found.problem)


def test_a_named_folder_that_lacks_files_is_an_error(tiny, tmp_path):
    folder = tiny.write_idx(tmp_path / "mine")
    (folder / f"{TRAIN_IMAGES}.gz").unlink()
    with pytest.raises(FunclError, match=f"mine is no sound tiny: there is no {TRAIN_IMAGES}"):
        files.read("tiny", folder)


def test_an_archive_without_an_array_is_an_error(tiny, tmp_path):
    np.savez(tmp_path / "tiny.npz", x_train=tiny.arrays["x_train"])
    with pytest.raises(FunclError, match=r"tiny.npz is no sound tiny: it lacks the array y_train"):
        files.read("tiny", tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_test": np.zeros((20, 25), np.uint8)}, r"x_test has the shape \(20, 25\)"),
        ({"x_test": np.zeros((20, 5, 5))}, "x_test has dtype float64"),
        ({"y_test": np.full(20, 300)}, "y_test has values beyond a byte"),
        ({"y_test": np.array([None] * 20)}, "cannot be read"),
    ],
)
def test_an_archive_of_other_arrays_is_an_error(tiny, tmp_path, changes, says):
    tiny.write_npz(tmp_path, **changes)
    with pytest.raises(FunclError, match=says):
        files.read("tiny", tmp_path)


def test_damage_elsewhere_is_passed_over_with_a_warning(tiny, tmp_path, offline):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tiny.npz").write_bytes(b"PK nonsense")
    good = tiny.write_idx(tmp_path / "home" / "data" / "tiny")
    with pytest.warns(UserWarning, match=r"Passed over: data/tiny.npz is no sound tiny"):
        tiny.assert_equal(files.read("tiny"))
    found = files.verify("tiny")
    assert (found.where, found.verified) == (good, True)
    assert "tiny.npz is no sound" in str(found.problem)


def test_missing_folders_and_data_are_one_sentence(tiny, tmp_path, monkeypatch):
    with pytest.raises(FunclError, match="named by data_dir, is not a folder"):
        files.read("tiny", tmp_path / "nowhere")
    with pytest.raises(FunclError, match=r"holds no tiny; put tiny.npz or"):
        files.read("tiny", tmp_path)
    monkeypatch.setenv("FUNCL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FunclError, match=r"named by \$FUNCL_DATA, is not a folder"):
        files.read("tiny")
    assert "is not a folder" in str(files.status()[0].problem)
    with pytest.raises(FunclError, match="'tyni' is no known data set; did you mean 'tiny'"):
        files.read("tyni")


def test_status_tells_of_all_sets(tiny, tmp_path):
    assert files.status() == [files.Status("tiny", None, None, None, None)]
    archive = tiny.write_npz(tmp_path / "cache" / "data")
    size = archive.stat().st_size
    assert files.status() == [files.Status("tiny", archive, size, True, None)]


def test_real_digests_hold():
    if "FUNCL_DATA" not in os.environ:
        pytest.skip("$FUNCL_DATA names no folder with the real data")
    for name, dataset in sources.DATASETS.items():
        arrays = files.read(name, os.environ["FUNCL_DATA"])
        assert formats.find_different(dataset, arrays) == []
        for part in dataset.rows:
            digest = formats.row_digest(arrays[f"x_{part}"], arrays[f"y_{part}"])
            assert digest == dataset.rows[part]


# Downloading


def test_a_download_lands_in_the_cache_and_is_not_repeated(tiny, tmp_path):
    steps = []
    place = files.fetch("tiny", progress=lambda *step: steps.append(step))
    assert place == tmp_path / "cache" / "data" / "tiny"
    tiny.assert_equal(files.read("tiny"))
    assert len(tiny.mirrors[0].requests) == 4
    assert tiny.mirrors[1].requests == []
    assert (f"{TRAIN_IMAGES}.gz", len(tiny.files[f"{TRAIN_IMAGES}.gz"])) in [s[:2] for s in steps]
    assert all(received <= total for _, received, total in steps)
    assert not list(place.glob("*.partial"))


def test_reading_downloads_what_is_nowhere(tiny):
    tiny.assert_equal(files.read("tiny"))


def test_a_download_goes_to_the_folder_asked_for(tiny, tmp_path):
    assert files.fetch("tiny", data_dir=tmp_path / "new") == tmp_path / "new" / "tiny"
    tiny.assert_equal(files.read("tiny", tmp_path / "new"))


@pytest.mark.parametrize("fault", ["missing", "corrupt", "truncate", "stall"])
def test_the_second_mirror_makes_up_for_the_first(tiny, fault):
    tiny.mirrors[0].always = fault
    files.fetch("tiny", timeout=0.1)
    tiny.assert_equal(files.read("tiny"))
    resumed = [asked for _, asked in tiny.mirrors[1].requests if asked]
    assert len(resumed) == (4 if fault in ("truncate", "stall") else 0)


def test_one_mirror_resumes_by_itself(tiny):
    tiny.mirrors[1].always = "missing"
    tiny.mirrors[0].faults = ["truncate", "stall", "truncate"]
    files.fetch("tiny", timeout=0.1)
    tiny.assert_equal(files.read("tiny"))
    asked = [asked for name, asked in tiny.mirrors[0].requests if TRAIN_IMAGES in name]
    starts = [int(each.strip("bytes=-")) if each else 0 for each in asked]
    assert len(starts) == 4
    assert starts == sorted(set(starts))


def test_a_mirror_that_cannot_resume_starts_over(tiny):
    for mirror in tiny.mirrors:
        mirror.ranges = False
    tiny.mirrors[0].faults = ["truncate"]
    files.fetch("tiny")
    tiny.assert_equal(files.read("tiny"))


@pytest.mark.parametrize("leftover", ["whole", "half", "stale", "too long"])
def test_an_earlier_process_leaves_a_partial_file(tiny, tmp_path, leftover):
    name = f"{TRAIN_IMAGES}.gz"
    whole = tiny.files[name]
    contents = {
        "whole": whole,
        "half": whole[: len(whole) // 2],
        "stale": b"x" * 100,
        "too long": whole + b"tail",
    }
    place = tmp_path / "cache" / "data" / "tiny"
    place.mkdir(parents=True)
    (place / f"{name}.partial").write_bytes(contents[leftover])
    tiny.mirrors[1].always = "missing"
    files.fetch("tiny")
    assert (place / name).read_bytes() == whole
    if leftover in ("whole", "half"):
        assert len([asked for file, asked in tiny.mirrors[0].requests if file == name]) == 1


def test_damaged_and_missing_files_of_a_download_are_mended(tiny):
    place = files.fetch("tiny")
    (place / f"{TRAIN_IMAGES}.gz").write_bytes(b"nonsense")
    (place / "t10k-labels-idx1-ubyte.gz").unlink()
    tiny.mirrors[0].requests.clear()
    files.fetch("tiny", data_dir=place.parent)
    tiny.assert_equal(files.read("tiny", place.parent))
    assert len(tiny.mirrors[0].requests) == 2


def test_files_that_hide_the_download_are_named(tiny):
    place = files.fetch("tiny")
    (place / TRAIN_IMAGES).write_bytes(b"nonsense")
    with (
        pytest.warns(UserWarning, match="is no sound tiny"),
        pytest.raises(FunclError, match="holds files that hide the download"),
    ):
        files.fetch("tiny")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("missing", "answered 404"),
        ("corrupt", "served a wrong file"),
        ("truncate", "broke off after"),
        ("stall", "no byte for 0.1 s"),
    ],
)
def test_both_mirrors_failing_is_one_sentence(tiny, fault, says):
    for mirror in tiny.mirrors:
        mirror.always = fault
    with pytest.raises(FunclError, match=says) as caught:
        files.fetch("tiny", timeout=0.1)
    assert all(mirror.url in str(caught.value) for mirror in tiny.mirrors)
    assert TRAIN_IMAGES in str(caught.value)
    assert not (disk.cache_folder("data") / "tiny" / f"{TRAIN_IMAGES}.gz").exists()


def test_a_mirror_that_is_down_is_one_sentence(tiny):
    for mirror in tiny.mirrors:
        mirror.close()
    with pytest.raises(FunclError, match=r"could not be downloaded .*refused"):
        files.fetch("tiny")


def test_offline_means_offline(tiny, offline):
    with pytest.raises(FunclError, match=r"\$FUNCL_OFFLINE forbids a download"):
        files.fetch("tiny")
    assert tiny.mirrors[0].requests == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FUNCL_CACHE", str(tmp_path / "file"))
    with pytest.raises(FunclError, match=r"could not be written .* \$FUNCL_CACHE"):
        files.fetch("tiny")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_sentence(tiny, tmp_path):
    place = tmp_path / "cache" / "data" / "tiny"
    place.mkdir(parents=True)
    (place / f"{TRAIN_IMAGES}.gz.partial").symlink_to("/dev/full")
    with pytest.raises(FunclError, match=r"could not be written \(No space left on device\)"):
        files.fetch("tiny")


def test_simultaneous_downloads_do_not_clash(tiny):
    pytest.importorskip("fcntl")
    threads = [threading.Thread(target=files.fetch, args=("tiny",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tiny.assert_equal(files.read("tiny"))
    assert len(tiny.mirrors[0].requests) == 4
