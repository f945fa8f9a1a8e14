import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from funcl import tasks
from funcl.errors import FunclError
from funcl.tasks import digits, images, toy2d

EMBEDDED = ("toy2d", "split-digits", "permuted-digits")

needs_data = pytest.mark.skipif(
    "FUNCL_DATA" not in os.environ, reason="$FUNCL_DATA names no folder with the real data"
)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_seed_decides_the_training_data(name):
    one, same, other = (tasks.load(name, data_seed=seed) for seed in (3, 3, 4))
    for a, b in zip(one, same, strict=True):
        np.testing.assert_array_equal(a.x_train, b.x_train)
        np.testing.assert_array_equal(a.y_test, b.y_test)
    assert not np.array_equal(one[0].x_train, other[0].x_train)
    assert (one.name, one.data_seed) == (name, 3)


def test_the_gaussians_are_those_of_the_table():
    sequence = tasks.load("toy2d")
    assert (len(sequence), sequence.heads, sequence.outputs) == (5, "single", 2)
    assert sequence.scenario == "domain-incremental"
    for task, components in zip(sequence, toy2d.GAUSSIANS, strict=True):
        assert task.x_train.shape == (3600, 2)
        assert task.x_test.shape == (400, 2)
        assert task.x_train.dtype == np.float32
        x = np.concatenate([task.x_train, task.x_test])
        y = np.concatenate([task.y_train, task.y_test])
        for label, component in enumerate(components):
            points = x[y == label]
            assert len(points) == 2000
            # Five standard errors of a mean and of a deviation of 2,000 points.
            np.testing.assert_array_less(
                abs(points.mean(0) - component[:2]), 5 * component[2:] / 2000**0.5
            )
            np.testing.assert_allclose(points.std(0), component[2:], rtol=5 / 4000**0.5)


def test_digits_are_all_there_and_tested_on_a_fixed_fifth():
    arrays = digits.arrays()
    assert len(arrays["x_train"]) + len(arrays["x_test"]) == 1797
    assert arrays["x_train"].shape[1:] == (8, 8)
    assert (arrays["x_train"].min(), arrays["x_train"].max()) == (0, 16)
    train, test = (np.bincount(arrays[f"y_{part}"]) for part in ("train", "test"))
    np.testing.assert_array_equal(test, (train + test) // 5)
    one, other = (tasks.load("split-digits", data_seed=seed) for seed in (0, 1))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.x_test, b.x_test)
        np.testing.assert_array_equal(np.sort(a.y_train), np.sort(b.y_train))
    assert one.scale == 1 / 16


def test_digits_are_those_of_scikit_learn():
    origin = pytest.importorskip("sklearn.datasets").load_digits()
    with np.load(digits.__file__.replace(".py", ".npz")) as archive:
        np.testing.assert_array_equal(archive["x"], origin.images)
        np.testing.assert_array_equal(archive["y"], origin.target)


def test_split_keeps_rows_with_their_labels():
    arrays = digits.arrays()
    sequence = tasks.load("split-digits", heads="single")
    assert [task.name for task in sequence] == ["0/1", "2/3", "4/5", "6/7", "8/9"]
    assert (sequence.scenario, sequence.outputs) == ("class-incremental", 10)
    for part in ("train", "test"):
        label_of = {
            image.tobytes(): label
            for image, label in zip(arrays[f"x_{part}"], arrays[f"y_{part}"], strict=True)
        }
        for number, task in enumerate(sequence):
            x, y = getattr(task, f"x_{part}"), getattr(task, f"y_{part}")
            assert [label_of[image.tobytes()] for image in x] == y.tolist()
            assert set(y.tolist()) == {2 * number, 2 * number + 1}


def test_permutations_are_vectors_over_shared_arrays():
    sequence = tasks.load("permuted-digits")
    assert (len(sequence), sequence.outputs, sequence.input_shape) == (10, 10, (64,))
    assert sequence[0].x_train.shape[1:] == (8, 8)
    assert all(task.x_train is sequence[0].x_train for task in sequence)
    held = sequence.validation()
    assert all(task.x_train is held[0].x_train for task in held)
    different = {tuple(range(64))}
    for task in sequence:
        assert isinstance(task.permutation, np.ndarray)
        assert sorted(task.permutation.tolist()) == list(range(64))
        assert task.permutation.dtype == np.int32
        assert not task.permutation.flags.writeable
        different.add(tuple(task.permutation.tolist()))
    assert len(different) == 11


def test_random_streams_stay_what_they_are():
    """Measured results hold for these very data; another NumPy must not change them unnoticed."""
    assert digest(tasks.load("toy2d")[0].x_train) == "3bf9fdcd56371b00"
    assert digest(tasks.load("split-digits")[0].x_train) == "dc5cb6144a4df438"
    assert digest(tasks.load("permuted-digits")[9].permutation) == "e118c7cdb82baae0"


def test_wrong_names_and_heads_are_one_sentence():
    with pytest.raises(FunclError, match="'split-mnits' is no known sequence; did you mean"):
        tasks.load("split-mnits")
    with pytest.raises(FunclError, match="'mutli' is no known kind of heads"):
        tasks.load("split-digits", heads="mutli")
    with pytest.raises(FunclError, match="toy2d is made for heads='single' only"):
        tasks.load("toy2d", heads="multi")
    with pytest.raises(FunclError, match="split-mnist-sh is made for heads='single' only"):
        tasks.load("split-mnist-sh", heads="multi")
    with pytest.raises(FunclError, match="data_seed"):
        tasks.load("toy2d", data_seed=-1)


def test_names_are_known_and_a_registry_may_grow(monkeypatch):
    assert {*EMBEDDED, "split-mnist", "split-mnist-sh", "split-fashion", "permuted-mnist"} <= set(
        tasks.names()
    )
    monkeypatch.setitem(
        tasks.SEQUENCES, "mine", tasks.Recipe("funcl.tasks.toy2d:gaussians", ("single",))
    )
    assert tasks.load("mine").name == "mine"


def test_embedded_data_need_no_network_code():
    code = (
        "import sys, funcl.tasks as tasks; tasks.load('split-digits');"
        "sys.exit('funcl.tasks.files' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_data
@pytest.mark.parametrize(
    ("name", "heads"), [("split-mnist", "multi"), ("split-mnist-sh", "single")]
)
def test_split_mnist_as_published(name, heads):
    sequence = tasks.load(name)
    assert (sequence.name, sequence.heads) == (name, heads)
    assert [len(task.x_train) for task in sequence] == [12665, 12089, 11263, 12183, 11800]
    assert [len(task.x_test) for task in sequence] == [2115, 2042, 1874, 1986, 1983]
    assert sequence.input_shape == (28, 28)
    assert (sequence[0].x_train.dtype, sequence.scale) == (np.uint8, 1 / 255)
    assert tasks.load("split-mnist", heads=heads).name == name


@needs_data
def test_split_fashion_as_published():
    sequence = tasks.load("split-fashion")
    assert [len(task.x_train) for task in sequence] == [12000] * 5
    assert [len(task.x_test) for task in sequence] == [2000] * 5


@needs_data
def test_permuted_mnist_as_published():
    sequence = tasks.load("permuted-mnist")
    assert (len(sequence), sequence.heads, sequence.input_shape) == (10, "single", (784,))
    assert len(sequence[0].x_train) == 60_000
    assert all(task.x_train is sequence[0].x_train for task in sequence)


def test_split_shuffles_training_rows_and_keeps_test_rows():
    labels = np.arange(40) % 10
    x = np.arange(40, dtype=np.float32)[:, None]
    arrays = {"x_train": x, "y_train": labels, "x_test": x, "y_test": labels}
    task = images.split(arrays, heads="multi", data_seed=0)[1]
    assert task.x_test[:, 0].tolist() == [2, 3, 12, 13, 22, 23, 32, 33]
    assert sorted(task.x_train[:, 0].tolist()) == task.x_test[:, 0].tolist()
    assert task.x_train[:, 0].tolist() != task.x_test[:, 0].tolist()
