"""Tiny made-up sequences, and runs that several tests share so that programs compile once."""

import contextlib
import functools

import jax
import numpy as np

from funcl.networks import MLP
from funcl.tasks.sequence import TaskSequence
from funcl.train.run import Runner
from funcl.train.training import SOURCES, Seeds, Training

NETWORK = MLP([8])
TRAINING = Training(
    epochs=20, batch_size=16, learning_rate=0.02, chunk=24, precision="float64", seed_axis="map"
)
TWO_SEEDS = Seeds.of(2, SOURCES, 0)


@contextlib.contextmanager
def double_precision():
    """Float64 inside; integers of both widths then meet, which strict types forbid."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def sequence(heads):
    """Three pairs of Gaussian blobs in four dimensions, 40 training rows each.

    The pairs lie apart, and each is split along the same direction with the opposite sign of the
    last: on a single head, learning one undoes another, though one network can do all three.
    """
    generator = np.random.default_rng(0)
    tasks = []
    for number in range(3):
        parts = []
        for rows in (40, 30):
            y = np.arange(rows) % 2
            x = generator.normal(scale=0.3, size=(rows, 4))
            x[:, 0] += 2.0 * (number - 1)
            x[:, 1] += (2 * y - 1) * (-1) ** number
            parts += [x.astype(np.float32), y + (2 * number if heads == "multi" else 0)]
        tasks.append(parts)
    return TaskSequence.from_arrays(tasks, heads=heads, name=f"tiny-{heads}")


def runner(method, heads, training=TRAINING, seeds=TWO_SEEDS, **options):
    """A runner on a tiny sequence."""
    return Runner(sequence(heads), NETWORK, method, training, seeds, **options)


class Finished:
    """A whole run: its runner, whose programs are compiled, and every snapshot on the way."""

    def __init__(self, runner):
        self.runner = runner
        self.engine = runner.engine
        self.snapshots = [runner.start()]
        self.snapshots += runner.advance(self.snapshots[0])

    @property
    def last(self):
        """The end of the run."""
        return self.snapshots[-1]

    def after(self, stages):
        """The snapshot between two stages."""
        return next(s for s in self.snapshots if s.stage == stages and not s.begun)

    def middle(self):
        """A snapshot in the middle of a stage, the second one where there are several."""
        stage = min(1, len(self.runner.stages) - 1)
        return next(s for s in self.snapshots if s.stage == stage and s.report is not None)


@functools.cache
def finished(method, heads):
    """The whole run of a method in double precision, once per session."""
    with double_precision():
        return Finished(runner(method, heads))
