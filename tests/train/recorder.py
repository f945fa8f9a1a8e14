"""A method that only counts how often it saw each row, and data that say which row they are."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from funcl.protocol import Method, State
from funcl.tasks.sequence import TaskSequence
from funcl.train.run import Runner
from funcl.train.training import SOURCES, Seeds, Training


@dataclass(frozen=True)
class Recorder(Method):
    """With plain gradient descent, a row's parameter grows by the learning rate when shown."""

    name: ClassVar[str] = "recorder"
    needs_network: ClassVar[bool] = False

    def init(self, problem, keys):
        return State(jnp.zeros(problem.rows))

    def begin_task(self, problem, state, task, keys):
        return State(jnp.zeros(problem.rows)), None

    def loss(self, problem, trainable, reference, batch, keys):
        rows = batch.x[:, 0].astype(jnp.int32)
        shown = jax.nn.one_hot(rows, problem.rows, dtype=trainable.dtype)
        return -jnp.sum(shown @ trainable), jnp.zeros(())

    def predict(self, problem, state, x, stage, head, keys):
        mask = head.mask(problem.outputs)
        return jnp.broadcast_to(mask / jnp.sum(mask), (x.shape[0], problem.outputs))


def numbered(*sizes):
    """Tasks of these sizes whose inputs are the numbers of their rows."""
    parts = []
    for size in sizes:
        x = np.arange(size, dtype=np.float32)[:, None]
        parts.append((x, np.arange(size) % 2, x[:2], np.arange(2)))
    return TaskSequence.from_arrays(parts, heads="single")


def shown(sizes, epochs=3, chunk=1, seeds=2, **options):
    """Per stage, what each chunk added to the count of every row: [chunks, seeds, rows]."""
    training = Training(
        **{
            "epochs": epochs,
            "batch_size": 4,
            "learning_rate": 1.0,
            "optimiser": "sgd",
            "chunk": chunk,
            **options,
        }
    )
    seeds = Seeds.of(seeds, SOURCES, 0)
    runner = Runner(numbered(*sizes), None, Recorder(), training, seeds, evaluate="none")
    stages = [[] for _ in sizes]
    before = 0.0
    for snapshot in runner.advance(runner.start()):
        if not snapshot.begun:
            before = 0.0
            continue
        counts = np.asarray(snapshot.learned.state.trainable)
        stages[snapshot.stage].append(counts - before)
        before = counts
    return [np.stack(stage) for stage in stages]
