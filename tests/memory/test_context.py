from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from funcl.errors import FunclError
from funcl.memory.context import (
    Coreset,
    Noise,
    Pixels,
    finished_choice,
    recall_in_total,
    recall_per_task,
    spread,
)
from funcl.memory.store import Memory
from funcl.protocol import Problem, TaskData
from funcl.train.data import head_table

DRAWS = 400
KEYS = jax.random.split(jax.random.key(0), DRAWS)


def memory_of(sizes, capacity):
    stages = len(sizes)
    labels = np.tile(np.arange(capacity, dtype=np.int32) % 2, (stages, 1))
    blank = np.zeros((stages, capacity, 1), np.float32)
    return Memory(*map(jnp.asarray, (blank, labels, np.array(sizes, np.int32))))


@partial(jax.jit, static_argnums=(2, 3, 4))
def per_task(memory, finished, slots, points, selection):
    draw = partial(recall_per_task, slots=slots, points=points, selection=selection)
    return jax.vmap(lambda key: draw(key, memory, finished))(KEYS)


@partial(jax.jit, static_argnums=(2, 3))
def in_total(memory, finished, points, selection):
    draw = partial(recall_in_total, points=points, selection=selection)
    return jax.vmap(lambda key: draw(key, memory, finished))(KEYS)


def places(recalled):
    """For every draw, the valid (slot, row) pairs."""
    for slot, row, valid in zip(*(np.asarray(part) for part in recalled), strict=True):
        yield [(int(s), int(r)) for s, r, v in zip(slot, row, valid, strict=True) if v]


# Per task


@pytest.mark.parametrize("selection", ["random", "per-class"])
def test_every_finished_task_gives_its_points_and_no_other_does(selection):
    sizes = [6, 2, 6, 0]
    found = list(places(per_task(memory_of(sizes, 6), jnp.int32(2), 3, 4, selection)))
    for draw in found:
        assert len(set(draw)) == len(draw)
        assert all(row < sizes[slot] for slot, row in draw)
        assert [sum(slot == s for slot, _ in draw) for s in range(4)] == [4, 2, 0, 0]
        if selection == "per-class":
            assert sum(row % 2 for slot, row in draw if slot == 0) == 2
    rows = [row for draw in found for slot, row in draw if slot == 0]
    counts = np.bincount(rows, minlength=6)
    assert np.abs(counts / DRAWS - 4 / 6).max() < 4.5 * np.sqrt(4 / 6 * 2 / 6 / DRAWS)


def test_different_tasks_are_drawn_from_independently():
    drawn = np.asarray(per_task(memory_of([6, 6], 6), jnp.int32(2), 2, 1, "random").row)
    table = np.zeros((6, 6))
    np.add.at(table, tuple(drawn.T), 1)
    assert scipy.stats.chi2_contingency(table).pvalue > 0.01


@pytest.mark.parametrize("points", [6, 9])
def test_asking_for_all_or_more_gives_each_stored_point_once(points):
    for draw in places(per_task(memory_of([6, 3], 6), jnp.int32(2), 2, points, "random")):
        assert sorted(draw) == [(0, row) for row in range(6)] + [(1, row) for row in range(3)]


# In total


@pytest.mark.parametrize(
    ("finished", "shares"),
    [(1, [40]), (2, [20, 20]), (3, [13, 13, 14]), (4, [10, 10, 10, 10]), (5, [8] * 5)],
)
def test_a_budget_is_shared_evenly_with_the_remainder_to_the_last(finished, shares):
    group, place = (np.asarray(part) for part in spread(40, jnp.int32(finished), 5))
    assert np.bincount(group).tolist() == shares
    assert place.tolist() == [number for share in shares for number in range(share)]
    memory = memory_of([40] * 5 + [0], 40)
    slots = np.asarray(in_total(memory, jnp.int32(finished), 40, "random").slot)
    assert np.bincount(slots[0]).tolist() == shares
    for draw in list(places(in_total(memory, jnp.int32(finished), 40, "random")))[:20]:
        assert len(set(draw)) == 40


def test_with_more_tasks_than_points_a_random_choice_of_tasks_gives_one_each():
    found = list(places(in_total(memory_of([3] * 7 + [0], 3), jnp.int32(7), 2, "random")))
    pairs = []
    for draw in found:
        (one, _), (other, _) = draw
        assert one != other
        assert max(one, other) < 7
        pairs += [one, other]
    assert scipy.stats.chisquare(np.bincount(pairs, minlength=7)).pvalue > 0.01


def test_points_beyond_what_is_stored_are_not_made_up():
    for draw in places(in_total(memory_of([3, 2, 0], 3), jnp.int32(2), 10, "random")):
        assert sorted(draw) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_finished_tasks_are_taken_in_order_where_they_fit():
    choice = jax.jit(finished_choice, static_argnums=(2, 3))
    assert choice(KEYS[0], jnp.int32(3), 5, 4).tolist() == [0, 1, 2, 2]
    assert sorted(choice(KEYS[0], jnp.int32(4), 5, 4).tolist()) == [0, 1, 2, 3]
    assert set(choice(KEYS[0], jnp.int32(5), 9, 4).tolist()) < set(range(5))


# Sources


IMAGES = np.random.default_rng(0).random((8, 4, 4, 3), np.float32)
drawn = jax.jit(
    lambda source, key, batch, count: source.draw(key, batch, count), static_argnums=(0, 3)
)


def test_noise_fills_its_bounds():
    x = np.asarray(drawn(Noise(2000, low=-4.0, high=4.0), KEYS[0], IMAGES[:, 0, 0, :2], 2000))
    assert scipy.stats.kstest(x.ravel(), scipy.stats.uniform(-4, 8).cdf).pvalue > 0.01
    assert x.shape == (2000, 2)


def test_noise_without_bounds_keeps_to_the_range_of_the_batch_in_every_coordinate():
    batch = IMAGES[:, 0, 0] * [1, 10, 0] + [0, 5, 7]
    x = np.asarray(drawn(Noise(2000), KEYS[0], np.float32(batch), 2000))
    low, high = batch.min(0), batch.max(0)
    assert np.all(x >= low - 1e-6)
    assert np.all(x <= high + 1e-5)
    reached = x.max(0) - x.min(0)
    np.testing.assert_allclose(reached, high - low, rtol=0.02)


@pytest.mark.parametrize("shape", [(16,), (4, 4), (4, 4, 1), (4, 4, 3)])
def test_pixels_are_constant_images_and_distinct_rows(shape):
    batch = np.random.default_rng(1).random((8, *shape), np.float32)
    x = np.asarray(drawn(Pixels(7, real=0.5), KEYS[0], batch, 7))
    assert x.shape == (7, *shape)
    channels = shape[-1] if len(shape) == 3 else 1
    flat = x.reshape(7, -1, channels)
    grey, real = flat[:3], x[3:]  # ⌊(1 − p) n⌋ of them are constant
    assert np.all(grey == grey[:, :1])
    colours = {tuple(pixel) for pixel in batch.reshape(-1, channels).tolist()}
    assert {tuple(pixel) for pixel in grey[:, 0].tolist()} <= colours
    rows = [int(np.flatnonzero([np.array_equal(row, b) for b in batch])[0]) for row in real]
    assert len(set(rows)) == 4


@pytest.mark.parametrize(
    ("real", "points", "constant"), [(1.0, 8, 0), (0.0, 8, 8), (0.9, 10, 1), (0.07, 100, 93)]
)
def test_the_real_part_is_counted_without_rounding_errors(real, points, constant):
    batch = np.arange(200, dtype=np.float32).reshape(100, 2)
    x = np.asarray(drawn(Pixels(points, real=real), KEYS[0], batch, points))
    assert np.count_nonzero(x[:, 0] == x[:, 1]) == constant


def test_pixels_for_several_tasks_are_drawn_for_each():
    batch = np.arange(20, dtype=np.float32).reshape(10, 2)
    x = np.asarray(drawn(Pixels(6, per_task=True, real=0.5), KEYS[0], batch, 18)).reshape(3, 6, 2)
    for task in x:
        assert np.all(task[:3, 0] == task[:3, 1])
        assert len({row[0] for row in task[3:].tolist()}) == 3
        assert np.all(task[3:, 0] + 1 == task[3:, 1])
    assert len({task.tobytes() for task in x}) == 3


def test_impossible_sources_are_refused():
    with pytest.raises(FunclError, match="points must be a whole number of at least 1, not 0"):
        Coreset(0)
    with pytest.raises(FunclError, match="both low and high"):
        Noise(3, low=1.0)
    with pytest.raises(FunclError, match="low must be below high"):
        Noise(3, low=1.0, high=1.0)
    with pytest.raises(FunclError, match="between 0 and 1"):
        Pixels(3, real=1.5)
    with pytest.raises(FunclError, match="9 distinct examples of a minibatch of 8"):
        Pixels(9).draw(KEYS[0], IMAGES, 9)


def test_sources_count_their_points():
    assert Coreset(40).count(3) == 120
    assert Noise(40).count(3) == 40
    assert Pixels(5, per_task=True).count(2) == 10


# The store


def test_stored_examples_are_the_rows_that_were_asked_for():
    problem = Problem(None, (4,), "uint8", 1.0, 2, 3, 2, 6, 2)
    task = TaskData(
        x=jnp.arange(24, dtype=jnp.uint8).reshape(6, 2, 2),
        y=jnp.arange(6, dtype=jnp.int32) % 2,
        size=jnp.int32(5),
        stage=jnp.int32(1),
        heads=head_table([(0, 1)] * 3, 3, 2),
        masks=jnp.ones((1, 2), bool),
        group=jnp.zeros(6, jnp.int32),
        permutation=jnp.array([3, 1, 0, 2], jnp.int32),
    )
    memory = Memory.empty(problem, 3).insert(task, jnp.array([4, 1, 0]), jnp.int32(2))
    assert memory.x.dtype == jnp.uint8
    assert memory.size.tolist() == [0, 2, 0]
    assert memory.y[1].tolist() == [0, 1, 0]
    assert memory.x[1].tolist() == [[19, 17, 16, 18], [7, 5, 4, 6], [3, 1, 0, 2]]
    assert not memory.x[0].any()
