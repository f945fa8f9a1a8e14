"""Padded arrays: what is on the device, what is shared, and several tasks in one stage."""

import numpy as np

from funcl import tasks
from funcl.tasks.sequence import TaskSequence
from funcl.train.data import Shelf, problem_of, stage_data, test_data, test_pieces

test_data.__test__ = test_pieces.__test__ = False  # functions of the library, not tests


def three_tasks():
    generator = np.random.default_rng(0)

    def part(rows, first):
        y = np.arange(rows) % 2 + first
        return generator.integers(0, 255, (rows, 3), np.uint8), y

    sizes = ((6, 5), (4, 3), (5, 7))
    return TaskSequence.from_arrays(
        [(*part(a, 2 * i), *part(b, 2 * i)) for i, (a, b) in enumerate(sizes)], heads="multi"
    )


def test_shapes_of_a_problem_are_the_largest_of_its_stages():
    sequence = three_tasks()
    apart = problem_of(sequence, ((0,), (1,), (2,)), None, 2, "float32")
    together = problem_of(sequence, ((0, 1), (2,)), None, 2, "float32")
    assert (apart.rows, apart.head_width, apart.stages, apart.outputs) == (6, 2, 3, 6)
    assert (together.rows, together.head_width, together.stages) == (10, 4, 2)
    assert (apart.input_dtype, apart.scale) == ("uint8", 1 / 255)


def test_tasks_of_one_stage_keep_their_own_heads():
    sequence = three_tasks()
    stages = ((0, 1), (2,))
    problem = problem_of(sequence, stages, None, 2, "float32")
    task = stage_data(sequence, stages, 0, problem, Shelf())
    assert int(task.size) == 10
    np.testing.assert_array_equal(task.x[6:10], sequence[1].x_train)
    masks = np.asarray(task.masks)[np.asarray(task.group)]
    np.testing.assert_array_equal(masks[:6], [[1, 1, 0, 0, 0, 0]] * 6)
    np.testing.assert_array_equal(masks[6:10], [[0, 0, 1, 1, 0, 0]] * 4)
    np.testing.assert_array_equal(task.head.columns, [0, 1, 2, 3])
    np.testing.assert_array_equal(task.heads.valid, [[1, 1, 1, 1], [1, 1, 0, 0]])


def test_a_smaller_stage_is_padded_and_says_so():
    sequence = three_tasks()
    stages = ((0,), (1,), (2,))
    problem = problem_of(sequence, stages, None, 2, "float32")
    task = stage_data(sequence, stages, 1, problem, Shelf())
    assert task.x.shape == (6, 3)
    np.testing.assert_array_equal(task.valid_rows(), [1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(task.x[4:], np.zeros((2, 3)))


def test_test_parts_are_cut_into_equal_pieces():
    sequence = three_tasks()
    assert test_pieces(sequence, 1000) == (1, 7)
    pieces = test_pieces(sequence, 3)
    assert pieces == (3, 3)
    cut = test_data(sequence[0], pieces, Shelf())
    assert cut.x.shape == (3, 3, 3)
    np.testing.assert_array_equal(cut.x.reshape(9, 3)[:5], sequence[0].x_test)
    assert int(cut.size) == 5


def test_permuted_tasks_share_one_copy_on_the_device():
    sequence = tasks.load("permuted-digits").first(3)
    stages = ((0,), (1,), (2,))
    problem, shelf = problem_of(sequence, stages, None, 32, "float32"), Shelf()
    first, second, _ = (stage_data(sequence, stages, n, problem, shelf) for n in range(3))
    assert first.x is second.x
    assert first.y is second.y
    rows = np.array([3, 1])
    flat = sequence[1].x_train.reshape(len(sequence[1].x_train), -1)
    np.testing.assert_array_equal(second.raw(rows), flat[rows][:, sequence[1].permutation])


def test_permuted_tasks_in_one_stage_are_laid_out_as_they_are_seen():
    sequence = tasks.load("permuted-digits").first(2)
    stages = ((0, 1),)
    problem = problem_of(sequence, stages, None, 32, "float32")
    task = stage_data(sequence, stages, 0, problem, Shelf())
    rows = len(sequence[0].x_train)
    flat = sequence[1].x_train.reshape(rows, -1)
    np.testing.assert_array_equal(task.x[rows:], flat[:, sequence[1].permutation])
    assert task.permutation is None
