from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcl.errors import FunclError
from funcl.tasks import TaskSequence

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
GOOD = (X, Y, X[:2], Y[:2])


def swap(**changes):
    parts = dict(zip(("x_train", "y_train", "x_test", "y_test"), GOOD, strict=True))
    return tuple((parts | changes).values())


def changed(array, position, value):
    array = np.array(array, float)
    array[position] = value
    return array


def test_multi_heads_number_columns_task_by_task():
    other = (X, np.array([7, 9, 8, 7, 9, 8]), X[:1], [8])
    sequence = TaskSequence.from_arrays([GOOD, other], heads="multi", names=["a", "b"])
    assert [task.columns for task in sequence] == [(0, 1), (2, 3, 4)]
    assert [task.classes for task in sequence] == [(0, 1), (7, 8, 9)]
    assert sequence[1].y_train.tolist() == [2, 4, 3, 2, 4, 3]
    assert sequence[1].y_test.tolist() == [3]
    assert sequence[1].y_train.dtype == np.int32
    assert (sequence.outputs, sequence.input_shape, len(sequence)) == (5, (2,), 2)
    assert (sequence.scenario, sequence.split) == ("task-incremental", "test")


def test_a_single_head_is_the_union_of_labels():
    other = (X, np.array(list("bcbcbc")), X[:1], ["c"])
    first = (X, np.array(list("abaaba")), X[:1], ["a"])
    sequence = TaskSequence.from_arrays([first, other], heads="single")
    assert sequence.scenario == "class-incremental"
    assert all(task.classes == ("a", "b", "c") for task in sequence)
    assert all(task.columns == (0, 1, 2) for task in sequence)
    assert sequence[1].y_train.tolist() == [1, 2, 1, 2, 1, 2]
    same = TaskSequence.from_arrays([first, first], heads="single")
    assert same.scenario == "domain-incremental"


def test_a_single_head_may_have_tasks_of_one_class():
    tasks = [(X, [label] * 6, X[:1], [label]) for label in (3, 5)]
    sequence = TaskSequence.from_arrays(tasks, heads="single")
    assert [set(task.y_train.tolist()) for task in sequence] == [{0}, {1}]


@pytest.mark.parametrize(
    ("given_dtype", "kept", "scale"),
    [
        ("uint8", "uint8", 1 / 255),
        ("bool", "uint8", 1.0),
        ("int64", "int32", 1.0),
        ("uint32", "int32", 1.0),
        ("int16", "int16", 1.0),
        ("float64", "float32", 1.0),
        (">f4", "float32", 1.0),
        ("float16", "float16", 1.0),
    ],
)
def test_stored_dtypes_and_default_scales(given_dtype, kept, scale):
    x = (X % 2).astype(given_dtype)
    sequence = TaskSequence.from_arrays([(x, Y, x, Y)], heads="multi")
    assert sequence[0].x_train.dtype == np.dtype(kept)
    assert sequence[0].x_train.dtype.isnative
    assert sequence.scale == scale
    np.testing.assert_array_equal(sequence[0].x_train, X % 2)


def test_nothing_is_copied_or_frozen_that_belongs_to_the_caller():
    x = X.copy()
    sequence = TaskSequence.from_arrays([(x, Y, x, Y)] * 3, heads="single", scale=0.5)
    assert np.shares_memory(sequence[0].x_train, x)
    assert all(task.x_train is sequence[0].x_test for task in sequence)
    assert all(task.y_train is sequence[0].y_train for task in sequence)
    assert x.flags.writeable
    for part in ("x_train", "y_train", "x_test", "y_test"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(sequence[0], part)[0] = 0
    assert sequence.scale == 0.5


@pytest.mark.parametrize(
    ("tasks", "options", "says"),
    [
        ([], {}, "There are no tasks"),
        (None, {}, "tasks must be a list"),
        (GOOD, {}, "Task 1 must be four arrays .* not a ndarray"),
        ([GOOD, GOOD[:3]], {}, "Task 2 must be four arrays .* not a tuple of 3"),
        ([GOOD], {"heads": "mutli"}, "'mutli' is no known kind of heads; did you mean 'multi'"),
        ([GOOD], {"names": "ab"}, "names must be a list of 1 strings"),
        ([GOOD], {"names": ["a", "b"]}, "There are 2 names for 1 tasks"),
        ([GOOD], {"names": [3]}, "must be a string"),
        ([GOOD] * 2, {"names": ["a", "a"]}, "Two tasks are called 'a'"),
        ([GOOD], {"scale": 0}, "scale must be a positive number"),
        ([GOOD], {"scale": "big"}, "scale must be a positive number"),
        ([GOOD], {"data_seed": -1}, "data_seed must be a whole number"),
        ([GOOD], {"data_seed": 0.5}, "data_seed must be a whole number"),
    ],
)
def test_a_wrong_call_is_one_sentence(tasks, options, says):
    with pytest.raises(FunclError, match=says):
        TaskSequence.from_arrays(tasks, **{"heads": "multi"} | options)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_train": X[:, 0]}, r"x_train: inputs need the shape .* not \(6,\)"),
        ({"x_train": X[:, :0]}, "x_train: rows of shape .* hold no feature"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "x_train is empty"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "x_test is empty"),
        ({"x_train": X.astype(object)}, "x_train: inputs must be numbers, not dtype object"),
        ({"x_train": X.astype(str)}, "x_train: inputs must be numbers"),
        ({"x_train": X.astype(complex)}, "x_train: inputs must be numbers"),
        ({"x_train": [[1, 2], [3]]}, "x_train cannot be read as one array"),
        ({"x_train": np.ma.masked_less(X, 3)}, "x_train is a masked array"),
        ({"x_train": changed(X, 2, np.nan)}, "x_train: 1 of 6 rows hold NaN or infinite"),
        ({"x_test": changed(X[:2], (0, 1), np.inf)}, "x_test: 1 of 2 rows hold NaN or infinite"),
        ({"x_train": changed(X, 2, 1e300)}, "x_train: 1 of 6 rows hold values beyond float32"),
        ({"x_train": X.astype(np.int64) << 40}, "x_train: 6 of 6 rows hold values beyond int32"),
        ({"x_test": X[:2, :1]}, r"x_test: rows have the shape \(1,\), but those of Task 1"),
        ({"x_test": X[:2].astype(np.uint8)}, "x_test: inputs are uint8, but .* float32"),
        ({"y_train": Y[:5]}, "y_train: 5 labels for 6 rows"),
        ({"y_train": np.eye(2)[Y]}, r"y_train: labels need the shape .*argmax\(1\)"),
        ({"y_train": Y + 0.5}, "y_train: labels must be whole numbers or strings, but 6 of 6"),
        ({"y_train": changed(Y, 1, np.nan)}, "y_train: .* 1 of 6 are not, such as nan"),
        ({"y_train": Y.astype(object)}, "y_train: .* not dtype object"),
        ({"y_train": Y.astype(complex)}, "y_train: .* not dtype complex"),
        ({"y_test": [0, 4]}, "y_test: the training part never shows label 4;"),
        ({"y_test": ["0", "1"]}, "y_test: the training part never shows labels '0', '1';"),
        ({"y_train": Y * 0, "y_test": [0, 0]}, "one class only, label 0, and a head"),
    ],
)
def test_a_wrong_array_is_one_sentence_that_names_it(changes, says):
    with pytest.raises(FunclError, match=says) as caught:
        TaskSequence.from_arrays([GOOD, swap(**changes)], heads="multi", names=["a", "b"])
    text = str(caught.value)
    assert "Task 2 (b)" in text
    assert text.endswith(".")
    assert "\n" not in text


def test_tasks_must_agree_on_inputs():
    wide = (np.ones((6, 3), np.float32), Y, np.ones((1, 3), np.float32), [0])
    with pytest.raises(FunclError, match=r"Task 2 .*\(3,\), but those of Task 1 .*\(2,\)"):
        TaskSequence.from_arrays([GOOD, wide], heads="multi")
    truth, pixels = X > 3, X.astype(np.uint8)
    with pytest.raises(FunclError, match=r"inputs are uint8, but .* are bool"):
        TaskSequence.from_arrays(
            [(truth, Y, truth, Y), (pixels, Y, pixels, Y)], heads="multi", scale=1.0
        )


def test_a_single_head_needs_two_classes_of_one_kind():
    constant = swap(y_train=Y * 0, y_test=[0, 0])
    with pytest.raises(FunclError, match="All tasks together show one class only, label 0"):
        TaskSequence.from_arrays([constant] * 2, heads="single")
    words = swap(y_train=list("ababab"), y_test=list("ab"))
    with pytest.raises(FunclError, match="strings as labels and others numbers"):
        TaskSequence.from_arrays([GOOD, words], heads="single")


@pytest.mark.parametrize(
    "labels",
    [
        Y.astype(float),
        Y.astype(bool),
        Y.astype(np.uint64),
        Y.tolist(),
        np.array(list("ababab"), object),
    ],
    ids=str,
)
def test_labels_of_any_honest_kind(labels):
    (task,) = TaskSequence.from_arrays([(X, labels, X, labels)], heads="multi")
    assert task.y_train.tolist() == Y.tolist()
    assert all(type(label) in (int, str) for label in task.classes)


def test_first_keeps_columns():
    sequence = TaskSequence.from_arrays([GOOD] * 3, heads="multi")
    assert [task.columns for task in sequence.first(2)] == [(0, 1), (2, 3)]
    wrong: list[Any] = [0, 4, "2"]
    for count in wrong:
        with pytest.raises(FunclError, match="custom has 3 tasks"):
            sequence.first(count)


def test_representations_are_short():
    sequence = TaskSequence.from_arrays([GOOD], heads="multi", names=["a"])
    assert repr(sequence[0]) == "<Task 'a': 6 training and 2 test rows, 2 columns>"
    assert len(repr(sequence)) < 100


def test_validation_shares_what_was_shared():
    held = TaskSequence.from_arrays([GOOD] * 3, heads="single").validation()
    for part in ("x_train", "y_train", "x_test", "y_test"):
        assert all(getattr(task, part) is getattr(held[0], part) for task in held)
        assert not getattr(held[0], part).flags.writeable
    assert held.split == "validation"


def test_validation_says_what_is_wrong():
    lone = (X, [0, 0, 0, 0, 0, 1], X[:1], [0])
    sequence = TaskSequence.from_arrays([GOOD, lone], heads="multi", names=["a", "b"])
    with pytest.raises(FunclError, match="Task b: class 1 has one training row only"):
        sequence.validation()
    wrong: list[Any] = [0, 1, float("nan"), "half"]
    for fraction in wrong:
        with pytest.raises(FunclError, match="fraction must lie between 0 and 1"):
            sequence.validation(fraction)
    with pytest.raises(FunclError, match="seed must be a whole number"):
        sequence.validation(seed=-1)


@st.composite
def labelled_tasks(draw):
    """Tasks whose inputs number their rows, so that every row can be told from every other."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    tasks, start = [], 0
    for _ in range(draw(st.integers(1, 4))):
        counts = draw(
            st.dictionaries(st.integers(-5, 5), st.integers(2, 30), min_size=2, max_size=4)
        )
        y = generator.permutation(np.repeat(list(counts), list(counts.values())))
        x = np.arange(start, start + len(y), dtype=np.int32)[:, None]
        tasks.append((x, y, x[:1], y[:1]))
        start += len(y)
    return tasks


@settings(max_examples=50, deadline=None)
@given(labelled_tasks(), st.sampled_from(["multi", "single"]))
def test_columns_stand_for_the_labels_given(tasks, heads):
    sequence = TaskSequence.from_arrays(tasks, heads=heads)
    for task, (x, y, _, _) in zip(sequence, tasks, strict=True):
        label_of = dict(zip(task.columns, task.classes, strict=True))
        assert [label_of[column] for column in task.y_train.tolist()] == y.tolist()
        np.testing.assert_array_equal(task.x_train, x)
    columns = [column for task in sequence for column in task.columns]
    assert set(columns) == set(range(sequence.outputs))
    assert heads == "single" or len(columns) == len(set(columns))


@settings(max_examples=50, deadline=None)
@given(
    labelled_tasks(),
    st.sampled_from(["multi", "single"]),
    st.floats(0.01, 0.99),
    st.integers(0, 100),
)
def test_validation_divides_every_class(tasks, heads, fraction, seed):
    sequence = TaskSequence.from_arrays(tasks, heads=heads)
    held = sequence.validation(fraction, seed)
    again = sequence.first(len(sequence)).validation(fraction, seed)
    for whole, task, twin in zip(sequence, held, again, strict=True):
        np.testing.assert_array_equal(task.x_test, twin.x_test)
        rows = np.concatenate([task.x_train, task.x_test])
        np.testing.assert_array_equal(np.sort(rows, axis=0), whole.x_train)
        label_of = dict(zip(whole.x_train[:, 0].tolist(), whole.y_train.tolist(), strict=True))
        for x, y in ((task.x_train, task.y_train), (task.x_test, task.y_test)):
            assert [label_of[row] for row in x[:, 0].tolist()] == y.tolist()
        for column in np.unique(whole.y_train):
            total = (whole.y_train == column).sum()
            out = (task.y_test == column).sum()
            assert 1 <= out < total
            assert abs(out - fraction * total) <= 1
