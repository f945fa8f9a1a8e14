"""A whole run: evaluation against plain numpy, chunks, evaluation rules, several devices."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import tiny
from methods.conformance import assert_identical

from funcl.errors import FunclError
from funcl.memory import Coreset, Noise
from funcl.methods import SFSVI, FineTune, Joint
from funcl.train import run
from funcl.train.training import SOURCES, Seeds, Training

TRAINING = Training(epochs=4, batch_size=16, learning_rate=0.02, chunk=5, seed_axis="map")
SEEDS = Seeds.of([3, 1, 4], SOURCES, 0)
REMEMBERING = SFSVI(
    draws=1, prediction_draws=2, first_context=Noise(4), context=Coreset(4), coreset_size=4
)


@pytest.fixture(scope="module")
def finished():
    """A run whose test parts are cut into four pieces with two rows of padding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "EVALUATION_ROWS", 8)
        return tiny.Finished(tiny.runner(FineTune(), "multi", TRAINING, SEEDS))


def test_evaluation_equals_plain_numpy(finished):
    history = finished.last.history
    sequence = tiny.sequence("multi")
    layers = jax.tree.map(np.float64, finished.last.learned.state.trainable)
    for seed in range(3):
        for on, task in enumerate(sequence):
            hidden, output = [{k: v[seed] for k, v in layer.items()} for layer in layers]
            h = np.maximum(task.x_test @ hidden["weight"] + hidden["bias"], 0)
            logits = (h @ output["weight"] + output["bias"])[:, list(task.columns)]
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            y = task.y_test - task.columns[0]
            of_label = p[np.arange(len(y)), y]
            wanted = {
                "accuracy": np.mean(p.argmax(1) == y),
                "nll": -np.mean(np.log(of_label)),
                "brier": np.mean(np.sum((p - np.eye(2)[y]) ** 2, axis=1)),
                "entropy": -np.mean(np.sum(p * np.log(p), axis=1)),
            }
            found = {name: getattr(history, name)[seed, 2, on] for name in wanted}
            assert found == pytest.approx(wanted, rel=1e-4)


def test_a_task_is_evaluated_from_when_it_is_learnt(finished):
    measured = np.isfinite(finished.last.history.accuracy)
    np.testing.assert_array_equal(measured, np.broadcast_to(np.tri(3, dtype=bool), (3, 3, 3)))


def test_chunks_report_every_step_once(finished):
    reports = [s.report for s in finished.snapshots if s.report]
    assert [(r.step, r.steps) for r in reports] == [(5, 8), (8, 8)] * 3
    assert all(r.loss.shape == (3,) and r.alive.all() for r in reports)


def test_the_length_of_a_chunk_changes_nothing(finished):
    other = tiny.runner(FineTune(), "multi", replace(TRAINING, chunk=3), SEEDS, evaluate="none")
    other.engine.programs = finished.engine.programs
    assert_identical(run.run(other).learned, finished.last.learned)


def test_evaluation_can_wait_for_the_end_or_be_left_out(finished):
    for rule, rows in (("last", [False, False, True]), ("none", [False] * 3)):
        other = tiny.runner(FineTune(), "multi", TRAINING, SEEDS, evaluate=rule)
        other.engine.programs, other.pieces = finished.engine.programs, finished.runner.pieces
        measured = np.isfinite(run.run(other).history.accuracy).any((0, 2))
        np.testing.assert_array_equal(measured, rows)


TWO_DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np
from methods.conformance import arrays, assert_identical
from train.test_runner import SEEDS, REMEMBERING, TRAINING, tiny

assert jax.local_device_count() == 2
runner = tiny.runner(REMEMBERING, "multi", TRAINING, SEEDS)
assert runner.engine.layout.padded == 4
snapshots = list(runner.advance(runner.start()))
runner.save(snapshots[1], sys.argv[1] + ".run")  # in the middle of the first task
*_, again = runner.advance(runner.load(sys.argv[1] + ".run"))
last = snapshots[-1]
assert_identical(*(runner.engine.kept(s.learned) for s in (again, last)))
x, head = jnp.asarray(tiny.sequence("multi")[0].x_test), runner.head(0)
p = runner.engine.predict(last.learned.state, x, 0, head)
kept = arrays(runner.engine.kept(last.learned.state))
np.savez(sys.argv[1], accuracy=last.history.accuracy, probabilities=p, **kept)
"""


def test_several_devices_share_the_seeds_and_change_nothing(tmp_path):
    # Three seeds on two devices: the axis is padded to four.
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": flags}
    target = tmp_path / "two.npz"
    subprocess.run([sys.executable, "-c", TWO_DEVICES, target], env=environment, check=True)
    found = np.load(target)
    runner = tiny.runner(REMEMBERING, "multi", TRAINING, SEEDS)
    last = run.run(runner)
    np.testing.assert_array_equal(found["accuracy"], last.history.accuracy)
    x = jnp.asarray(tiny.sequence("multi")[0].x_test)
    p = runner.engine.predict(last.learned.state, x, 0, runner.head(0))
    np.testing.assert_allclose(found["probabilities"], p, rtol=0, atol=1e-5)
    for path, leaf in jax.tree_util.tree_leaves_with_path(runner.engine.kept(last.learned.state)):
        np.testing.assert_allclose(found[jax.tree_util.keystr(path)], leaf, rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class OneHeadOnly(FineTune):
    name: ClassVar[str] = "one-head-only"
    scenarios: ClassVar[tuple[str, ...]] = ("single",)


def test_a_method_is_kept_from_what_it_cannot_learn():
    with pytest.raises(FunclError, match="one-head-only cannot learn tiny-multi with multi heads"):
        tiny.runner(OneHeadOnly(), "multi", TRAINING, SEEDS)
    with pytest.raises(FunclError, match="joint cannot learn tiny-multi with multi heads"):
        tiny.runner(Joint(OneHeadOnly()), "multi", TRAINING, SEEDS)


def test_an_unknown_evaluation_rule_is_refused():
    with pytest.raises(FunclError, match="did you mean 'last'"):
        tiny.runner(FineTune(), "multi", TRAINING, SEEDS, evaluate="lst")
