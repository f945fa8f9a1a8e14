"""Capacity that grows while tasks keep coming, and what each call to fit begins."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from funcl import MLP, FunclError, Learner, TaskSequence, Training
from funcl.memory.context import Coreset, Noise
from funcl.methods import SFSVI, FineTune
from funcl.stream import Lesson, doubled, grow, next_lesson, room_for, shaped

METHOD = SFSVI(
    draws=1,
    first_context=Noise(4),
    context=Coreset(8, per_task=False),  # one branch of the penalty, so it compiles fast
    coreset_size=4,
    prediction_draws=2,
)
TRAINING = Training(epochs=1, batch_size=8, learning_rate=0.01, chunk=50)
TASKS = 9


def data(task, rows=24):
    generator = np.random.default_rng(task)
    y = np.arange(rows) % 2
    return (generator.normal(size=(rows, 3)) + y[:, None]).astype(np.float32), y


@pytest.fixture(scope="module")
def stream():
    """Nine tasks, one after the other, and what there was after each."""
    learner = Learner(MLP([8]), METHOD, TRAINING, heads="multi")
    progress = []
    for task in range(TASKS):
        learner.fit(*data(task), task=f"week {task}")
        learner.predict(data(task)[0], task=f"week {task}")
        progress.append(learner._progress)
    return SimpleNamespace(learner=learner, progress=progress)


def corner(new, old):
    return new[tuple(slice(0, size) for size in old.shape)]


# ---------------------------------------------------------------------- growth


def test_one_compilation_of_each_program_per_doubling(stream):
    engines = {id(p.engine): p.engine for p in stream.progress}.values()
    traces = Counter()
    for engine in engines:
        traces.update({name: program.traces for name, program in engine.programs.items()})
    assert set(traces) == {"start", "begin", "chunk fit", "end", "predict", "moments"}
    assert max(traces.values()) <= math.ceil(math.log2(TASKS)) + 1
    assert len(engines) == 3  # room for 4, 8 and 16 tasks


def test_growth_keeps_columns_moments_and_memory_to_the_bit(stream):
    before = stream.progress[3]  # four tasks fill the first room
    problem = stream.progress[4].engine.problem
    assert problem.outputs == 2 * before.engine.problem.outputs == 16
    grown = grow(before.learned, stream.progress[4].engine)
    flat = jax.tree_util.tree_leaves_with_path(before.learned)
    assert any("optimiser" in jax.tree_util.keystr(path) for path, _ in flat)
    larger = 0
    for (path, old), new in zip(flat, jax.tree.leaves(grown), strict=True):
        larger += new.shape != old.shape
        kept = corner(np.asarray(new), old)
        np.testing.assert_array_equal(kept, old, err_msg=jax.tree_util.keystr(path))
    assert larger >= 9  # mean, log-variance and both moments of the last layer, and the memory
    fresh = stream.progress[4].engine.start()
    outputs = before.engine.problem.outputs
    new_columns = grown.state.trainable.mean[-1]["weight"][..., outputs:]
    np.testing.assert_array_equal(
        new_columns, fresh.state.trainable.mean[-1]["weight"][..., outputs:]
    )
    moments = jax.tree.leaves(grown.optimiser)
    assert all(np.all(np.asarray(m)[..., outputs:] == 0) for m in moments if m.ndim > 2)


def test_growth_changes_no_prediction(stream):
    before, after = stream.progress[3], stream.progress[4]
    learned = grow(before.learned, after.engine)
    grown = replace(before, engine=after.engine, learned=learned)
    for lesson in before.lessons:
        x = data(lesson.stage)[0]
        old, (old_mean, old_variance) = before.predict(x, lesson), before.moments(x, lesson)
        new, (new_mean, new_variance) = grown.predict(x, lesson), grown.moments(x, lesson)
        np.testing.assert_allclose(new_mean, old_mean, atol=1e-6)
        np.testing.assert_allclose(new_variance, old_variance, rtol=1e-4)
        assert np.all(new[..., old.shape[-1] :] == 0)
        # Weight draws are new where the layer is larger, so they agree only as draws do.
        assert np.abs(new[..., : old.shape[-1]] - old).max() < 0.1


def test_a_longer_task_makes_room_for_its_rows(stream):
    problem = stream.progress[-1].engine.problem
    lesson = stream.progress[-1].lessons[-1]
    assert room_for(problem, lesson, 64) == problem
    assert room_for(problem, lesson, 65).rows == 128


def test_doubling():
    assert [doubled(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]
    assert doubled(7, 3) == 12


# ---------------------------------------------------------------------- a task taken up again


def test_the_same_name_goes_on_with_its_head_its_memory_and_its_posterior(stream):
    learner = Learner(MLP([8]), METHOD, TRAINING, heads="multi")
    learner._progress = stream.progress[2]
    first = learner._progress
    x, y = data(0)
    learner.fit(x, y, task="week 0")
    again = learner._progress
    assert again.engine is first.engine
    assert learner.tasks == ["week 0", "week 1", "week 2"]
    lesson = learner._progress.lesson("week 0")
    assert (lesson.stage, lesson.columns) == (3, (0, 1))
    # Its earlier memory is still there, and is compared on the same head.
    old, new = first.learned.state.carried, again.learned.state.carried
    np.testing.assert_array_equal(new.x[:, :3], old.x[:, :3])
    assert new.size[0].tolist()[:4] == [4, 4, 4, 4]
    # A handful of small steps away from the posterior that was the prior.
    means = zip(
        jax.tree.leaves(first.learned.state.trainable.mean),
        jax.tree.leaves(again.learned.state.trainable.mean),
        strict=True,
    )
    assert 0 < max(float(np.abs(a - b).max()) for a, b in means) < 10 * TRAINING.learning_rate


def test_the_earlier_memory_of_a_task_taken_up_again_is_in_the_context(stream):
    last = []
    for change in (0.0, 3.0):
        learner = Learner(MLP([8]), METHOD, TRAINING, heads="multi")
        progress = stream.progress[0]
        state = progress.learned.state
        memory = state.carried._replace(x=state.carried.x + change)
        learned = progress.learned._replace(state=state._replace(carried=memory))
        learner._progress = type(progress)(progress.engine, learned, progress.lessons, {})
        learner.fit(*data(0), task="week 0")
        last.append(learner.predict(data(0)[0], task="week 0").mean)
    assert np.abs(last[0] - last[1]).max() > 1e-4


# ---------------------------------------------------------------------- lessons


def test_lessons_open_heads_or_share_one():
    first = next_lesson([], "a", ("cat", "dog"), "multi", None)
    second = next_lesson([first], "b", (3, 4, 5), "multi", None)
    assert (first.columns, second.columns, second.stage) == ((0, 1), (2, 3, 4), 1)
    again = next_lesson([first, second], "a", ("dog",), "multi", None)
    assert (again.columns, again.classes, again.stage) == ((0, 1), ("cat", "dog"), 2)
    shared = next_lesson([], "a", (2,), "single", (2, 1, 0))
    assert (shared.classes, shared.columns) == ((2, 1, 0), (0, 1, 2))
    assert shared.numbers(np.array([0, 2])).tolist() == [2, 0]


def test_a_task_taken_up_again_keeps_its_permutation():
    permutation = np.array([2, 0, 1], np.int32)
    known = Lesson("a", (0, 1), (0, 1), 0, permutation)
    assert next_lesson([known], "a", (0, 1), "single", None).permutation is permutation


@pytest.mark.parametrize(
    ("lessons", "task", "shown", "heads", "given", "text"),
    [
        ([], "a", (7,), "multi", None, "Task 'a' shows only the class 7, and a head needs two"),
        ([], "a", (7,), "single", None, "Task 'a' shows only the class 7, and a head needs two"),
        ([("a", (0, 1))], "a", (1, 2), "multi", None, r"learnt with the classes \[0, 1\] and now"),
        ([("a", (0, 1))], "b", (1, 2), "single", None, "labels outside the head, such as 2"),
        ([], "a", ("x",), "single", ("y", "z"), "outside the head, such as 'x'.*'y', 'z'"),
    ],
)
def test_lessons_that_cannot_be_are_refused(lessons, task, shown, heads, given, text):
    known = [Lesson(name, classes, (0, 1), i) for i, (name, classes) in enumerate(lessons)]
    with pytest.raises(FunclError, match=text):
        next_lesson(known, task, shown, heads, given)


def test_inputs_take_the_earlier_shape(stream):
    problem = stream.progress[0].engine.problem
    plain, permuted = (
        Lesson("a", (0, 1), (0, 1), 0, p) for p in (None, np.array([2, 0, 1], np.int32))
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
    assert shaped(x, 1.0, problem, plain).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert shaped(x, 1.0, problem, permuted).tolist() == [[2, 0, 1], [5, 3, 4]]
    with pytest.raises(FunclError, match="float16 with the scale 1 and the earlier"):
        shaped(x.astype(np.float16), 1.0, problem, plain)
    with pytest.raises(FunclError, match=r"shape \(4,\) and the earlier ones had \(3,\)"):
        shaped(np.zeros((2, 4), np.float32), 1.0, problem, plain)


# ---------------------------------------------------------------------- after a known sequence


def test_run_then_predict_then_fit_one_more():
    parts = [(*data(t), *data(t + 20, 6)) for t in range(2)]
    sequence = TaskSequence.from_arrays(parts, heads="multi", names=["a", "b"])
    learner = Learner(MLP([8]), FineTune(), TRAINING)
    history = learner.run(sequence)
    x, y = parts[0][2:]
    assert learner.evaluate(x, y, task="a")["accuracy"] == pytest.approx(history.accuracy[0, 1, 0])
    before = learner.predict(x, task="a")
    assert before.mean is None  # no distribution over functions
    assert before.variance is None
    learner.fit(*data(5), task="c")
    assert learner.tasks == ["a", "b", "c"]
    assert learner._progress.lesson("c").columns == (4, 5)
    after = learner.predict(x, task="a")
    assert 0 < np.abs(after.probs - before.probs).max() < 0.2  # three steps
    assert learner.predict(x, task="c").probs.shape == (6, 2)


def test_permuted_sequence_predicts_in_each_task_s_order():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(24, 2, 2)).astype(np.float32)
    y = (x[:, 0, 0] > 0).astype(int)
    plain = TaskSequence.from_arrays([(x, y, x, y)] * 2, heads="single", names=["a", "b"])
    order = np.array([3, 2, 1, 0], np.int32)
    tasks = (
        replace(plain[0], permutation=np.arange(4, dtype=np.int32)),
        replace(plain[1], permutation=order),
    )
    learner = Learner(MLP([8]), FineTune(), TRAINING)
    history = learner.run(replace(plain, tasks=tasks))
    for number, name in enumerate("ab"):
        scores = learner.evaluate(x, y, task=name)
        assert scores["accuracy"] == pytest.approx(history.accuracy[0, 1, number])
        assert scores["nll"] == pytest.approx(history.nll[0, 1, number], rel=1e-5)
    flipped = x.reshape(24, 4)[:, ::-1]
    np.testing.assert_allclose(
        learner.predict(x, task="b").probs, learner.predict(flipped, task="a").probs, atol=1e-6
    )
    with pytest.raises(FunclError, match="Say which task the inputs are of"):
        learner.predict(x)
    before = learner._progress
    learner.fit(x, y, task="b")
    assert learner._progress.lesson("b").permutation is not None
    assert learner._progress is not before
