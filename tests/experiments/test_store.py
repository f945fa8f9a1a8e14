from dataclasses import replace

import numpy as np
import pytest

from funcl import tasks
from funcl.experiments import identity
from funcl.experiments.identity import cell_key, state_key
from funcl.experiments.store import Store, joined, split
from funcl.memory.context import Coreset, Noise
from funcl.methods import SFSVI, FineTune, Separate
from funcl.networks import MLP
from funcl.train.run import Runner, run
from funcl.train.training import SOURCES, Seeds, Training

TINY = SFSVI(
    draws=1,
    first_context=Noise(4),
    context=Coreset(4),
    coreset_size=8,
    prediction_draws=1,
)
PLAIN, SMALL = FineTune(), MLP([8])
TRAINING = Training(epochs=2, batch_size=64, learning_rate=5e-4, chunk=5)


@pytest.fixture(scope="module")
def sequence():
    return tasks.load("split-digits").first(2)


@pytest.fixture
def make(sequence):
    def runner(method=PLAIN, training=TRAINING, seeds=(0, 1), network=SMALL):
        return Runner(sequence, network, method, training, Seeds.of(seeds, SOURCES, 0))

    return runner


def keys(runner):
    return state_key(runner, 0), state_key(runner, 1)


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"prior_variance": 0.1}, 0),
        ({"first_context": Noise(5)}, 0),
        ({"likelihood": "weights"}, 0),
        ({"coreset_size": 9}, 1),
        ({"coreset_selection": "per-class"}, 1),
        ({"context": Coreset(3)}, 1),
        ({"own_context": Noise(3)}, 1),
        ({"second_context": Coreset(2)}, 1),
        ({"prediction": "logits", "prediction_draws": 3}, 2),
    ],
)
def test_a_setting_changes_the_hash_from_the_task_that_reads_it(make, change, shared):
    plain, other = make(TINY), make(replace(TINY, **change))
    assert [a == b for a, b in zip(keys(plain), keys(other), strict=True)] == [
        task < shared for task in range(2)
    ]
    assert cell_key(plain) != cell_key(other)


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"learning_rate": 1e-3}, 0),
        ({"batch_size": 32}, 0),
        ({"epochs": 3, "first_epochs": 2}, 1),
        ({"learning_rate": 1e-3, "first_learning_rate": 5e-4}, 1),
        ({"chunk": 7}, 2),
        ({"first_epochs": 2}, 2),
    ],
)
def test_training_is_compared_by_what_each_task_uses(make, change, shared):
    plain, other = make(), make(training=replace(TRAINING, **change))
    assert [a == b for a, b in zip(keys(plain), keys(other), strict=True)] == [
        task < shared for task in range(2)
    ]


def test_hashes_depend_on_data_network_and_seeds(make, sequence):
    plain = make()
    assert keys(plain) == keys(make())
    assert keys(plain)[0] != keys(make(seeds=[0]))[0]
    assert keys(plain)[0] != keys(make(network=MLP([9])))[0]
    assert cell_key(plain) == cell_key(make(seeds=[5]))
    held_out = Runner(
        sequence.validation(0.2), MLP([8]), FineTune(), TRAINING, Seeds.of(2, SOURCES, 0)
    )
    assert keys(plain)[0] != keys(held_out)[0]


def test_comments_are_no_part_of_the_code(tmp_path):
    file = tmp_path / "module.py"

    def meaning(text):
        file.write_text(text)
        return identity._meaning(file)

    plain = meaning('"""One."""\ndef f(x):\n    """Two."""\n    return x + 1\n')
    assert (
        meaning('"""Other."""\ndef f(x):\n    """More."""\n    # why\n    return x + 1\n') == plain
    )
    assert meaning('"""One."""\ndef f(x):\n    """Two."""\n    return x + 2\n') != plain
    assert identity._only_shows(identity.PACKAGE / "report" / "page.py")
    assert not identity._only_shows(identity.PACKAGE / "evaluate" / "history.py")


def test_separate_training_is_hashed_by_the_pace_of_a_first_task(make):
    plain = make(Separate(), replace(TRAINING, first_epochs=2))
    other = make(Separate(), replace(TRAINING, first_epochs=2, epochs=9))
    assert keys(plain) == keys(other)


@pytest.fixture(scope="module")
def whole(sequence):
    return run(
        Runner(sequence, MLP([8]), FineTune(), TRAINING, Seeds.of((0, 1), SOURCES, 0))
    ).history


def test_a_stopped_run_goes_on_from_the_chunk_where_it_stopped(make, tmp_path, whole):
    store, runner, reached, last = Store(tmp_path), make(), [], None
    for _ in range(20):
        chunks = 0
        for last in store.advance(runner, lambda: True):
            chunks += last.report is not None
        reached.append((last.stage, *last.position))
        assert chunks <= 1
        if last.stage == 2:
            break
    assert len(reached) == len(set(reached)) > 4
    assert reached == sorted(reached)
    np.testing.assert_array_equal(last.history.accuracy, whole.accuracy)
    np.testing.assert_array_equal(last.history.nll, whole.nll)


def test_another_coreset_goes_on_from_the_shared_first_task(make, tmp_path):
    store = Store(tmp_path)
    first = list(store.advance(make(TINY, seeds=[0])))
    chunks = sum(snapshot.report is not None for snapshot in first)
    other = list(store.advance(make(replace(TINY, coreset_size=5, context=Coreset(3)), seeds=[0])))
    trained = [snapshot.stage for snapshot in other if snapshot.report is not None]
    assert set(trained) == {1}
    assert len(trained) == chunks / 2
    a, b = first[-1].history, other[-1].history
    np.testing.assert_array_equal(a.accuracy[:, 0, 0], b.accuracy[:, 0, 0])
    assert b.seconds["train"] > 0


def test_a_damaged_state_is_computed_again(make, tmp_path, whole):
    store = Store(tmp_path)
    list(store.advance(make()))
    for file in store.states.glob("*/arrays*"):
        file.write_bytes(file.read_bytes()[:-4])
    *_, last = store.advance(make())
    np.testing.assert_array_equal(last.history.accuracy, whole.accuracy)


def test_the_least_recently_used_states_go_first(make, tmp_path):
    store = Store(tmp_path)
    list(store.advance(make()))
    folders = {folder.name for folder in store.states.iterdir()}
    other = make(training=replace(TRAINING, learning_rate=1e-3))
    own = {state_key(other, stage) for stage in range(2)}
    # Without any room, what the run in hand needs to go on stays all the same.
    list(Store(tmp_path, limit=0).advance(other))
    left = {folder.name for folder in store.states.iterdir()}
    assert left == own
    assert left.isdisjoint(folders)


def test_cells_come_back_seed_by_seed(tmp_path, whole):
    store = Store(tmp_path)
    assert store.cell("key", 1) is None
    store.keep_cells("key", whole)
    assert store.seeds("key") == [0, 1]
    one = store.cell("key", 1)
    assert one.seeds == [1]
    np.testing.assert_array_equal(one.accuracy[0], whole.accuracy[1])
    assert one.seconds["train"] == pytest.approx(whole.seconds["train"] / 2)


def test_joining_undoes_splitting(whole):
    alone = np.arange(2.0 * len(whole.tasks)).reshape(2, -1)
    whole = replace(whole, diverged={1: "there"}, independent_accuracy=alone)
    assert split(whole)[1].independent_accuracy.tolist() == alone[1:].tolist()
    again = joined(split(whole))
    np.testing.assert_array_equal(again.independent_accuracy, alone)
    assert again.seeds == whole.seeds
    assert again.diverged == whole.diverged
    np.testing.assert_array_equal(again.bins, whole.bins)
    assert again.seconds == pytest.approx(whole.seconds)
