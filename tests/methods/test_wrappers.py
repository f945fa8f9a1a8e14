"""Joint and Separate around a method that uses every part of the protocol."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from funcl.config import from_plain, to_plain
from funcl.errors import FunclError
from funcl.memory.store import Memory
from funcl.methods import SFSVI, FineTune, Joint, Separate
from funcl.protocol import Head, Phase, State, TaskData
from funcl.tasks.sequence import TaskSequence
from funcl.train.run import Runner
from funcl.train.training import SOURCES, Seeds, Training
from methods import tiny
from methods.conformance import assert_close, assert_identical, in_double_precision

TRAINING = Training(
    epochs=1, first_epochs=3, first_learning_rate=0.03, batch_size=16, chunk=50, reshuffle=False
)
SEEDS = Seeds.of(1, SOURCES, 0)


class Reference(NamedTuple):
    start: tuple
    stage: jax.Array


@dataclass(frozen=True)
class Everything(FineTune):
    """Two phases with a penalty, a frozen layer, a count of steps, a memory, and an adaptation.

    It starts from the same parameters whatever the key, so that a task alone can be compared.
    """

    name: ClassVar[str] = "everything"

    def init(self, problem, keys):
        network = problem.network.init(jax.random.key(5), problem.input_shape, problem.outputs)
        return State(network, jnp.zeros(()), Memory.empty(problem, 8))

    def begin_task(self, problem, state, task, keys):
        return state, Reference(state.trainable, task.stage)

    def phases(self):
        warm = Phase("warm", self.loss, trained=last_layer, first_only=True, epochs=2)
        fit = Phase("fit", self.loss, self.hold, after_step=count, enter=shrink)
        return warm, fit

    def hold(self, problem, trainable, reference, batch, keys):
        gaps = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), trainable, reference.start)
        # Harder for later tasks, of which Separate must know nothing.
        later = (reference.stage + batch.stage).astype(problem.dtype)
        strength = 0.01 * problem.stages + later
        return strength * jax.tree.reduce(jnp.add, gaps)

    def end_task(self, problem, state, reference, task, keys):
        return state._replace(carried=state.carried.insert(task, jnp.arange(8), 8))

    @property
    def adaptation(self):
        return Phase("adapt", self.loss)

    def recall(self, problem, state, stage, head):
        x, y = state.carried.x[stage], state.carried.y[stage]
        heads = Head(head.columns[None], head.valid[None])
        group = jnp.zeros(y.shape, jnp.int32)
        masks = head.mask(problem.outputs)[None]
        return state, TaskData(x, y, jnp.int32(8), stage, heads, masks, group), None


def last_layer(problem, trainable, reference):
    first, last = trainable
    return jax.tree.map(jnp.zeros_like, first), jax.tree.map(jnp.ones_like, last)


def count(problem, running, reference, step):
    return running + 1


def shrink(problem, state, reference, task, keys):
    return state._replace(trainable=jax.tree.map(lambda a: 0.9 * a, state.trainable))


def run(sequence, method):
    return tiny.Finished(Runner(sequence, tiny.NETWORK, method, TRAINING, SEEDS))


@pytest.fixture(scope="module")
def separate():
    return run(tiny.sequence("single"), Separate(Everything()))


def test_separate_is_each_task_alone(separate):
    sequence = tiny.sequence("single")
    alone = None
    for number, task in enumerate(sequence):
        only = TaskSequence("alone", (task,), "single", sequence.scenario, sequence.scale, 0)
        runner = Runner(only, tiny.NETWORK, Everything(), TRAINING, SEEDS)
        if alone is not None:
            runner.engine.programs = alone.engine.programs
        alone = tiny.Finished(runner)
        shelf = separate.last.learned.state.carried.finished
        kept = jax.tree.map(lambda a, n=number: a[:, n], shelf)
        assert_close(kept, alone.last.learned.state, 1e-6)
        for name in ("accuracy", "nll"):  # of the adapted copy
            found = getattr(separate.last.history, name)[:, number:, number]
            wanted = getattr(alone.last.history, name)[:, 0, 0]
            np.testing.assert_allclose(found, np.tile(wanted, (1, 3 - number)), rtol=1e-5)


def test_separate_trains_every_task_like_a_first_one(separate):
    lengths = [s.report.steps for s in separate.snapshots if s.report is not None]
    assert lengths == [4, 6] * 3
    np.testing.assert_array_equal(separate.last.learned.state.running, [6.0])


def test_separate_tasks_begin_with_parameters_of_their_own():
    with tiny.double_precision():
        state = tiny.finished(Separate(), "multi").after(1).learned.state
        method = Separate()
        runner = tiny.finished(Separate(), "multi").runner
        keys = jax.tree.map(lambda key: key[0], runner.engine.keys)
        own = jax.tree.map(lambda a: a[0], state)
        first, later = (
            method.begin_task(runner.problem, own, runner.data(n), keys.fold(n))[0].trainable
            for n in (0, 1)
        )
        assert_identical(first, own.trainable)
        assert not np.allclose(first[0]["weight"], later[0]["weight"])


def test_the_first_task_of_separate_is_the_methods_own_first_task():
    with tiny.double_precision():
        apart, plain = tiny.finished(Separate(), "multi"), tiny.finished(FineTune(), "multi")
        assert_close(apart.after(1).learned.state.trainable, plain.after(1).learned.state.trainable)


def test_joint_measures_the_last_row_only():
    accuracy = tiny.finished(Joint(), "single").last.history.accuracy
    assert np.isnan(accuracy[:, :2]).all()
    assert np.isfinite(accuracy[:, 2]).all()


@in_double_precision
def test_joint_may_keep_more_than_one_task_holds():
    size = len(tiny.sequence("multi")[0].y_train)
    greedy = SFSVI(coreset_size=size + 10)
    with pytest.raises(FunclError, match="coreset_size=50 is larger than task"):
        tiny.runner(greedy, "multi")
    tiny.runner(Joint(greedy), "multi")
    with pytest.raises(FunclError, match="coreset_size=50 is larger than task"):
        tiny.runner(Separate(greedy), "multi")


def test_wrappers_say_what_they_wrap():
    method = Joint(SFSVI(draws=3))
    assert method.name == "joint"
    assert to_plain(method)["method"]["draws"] == 3
    assert from_plain(to_plain(method)) == method
    assert Joint() == Joint(FineTune())
    assert Joint(SFSVI()).keeps_optimiser
    assert not replace(method, method=FineTune()).keeps_optimiser
