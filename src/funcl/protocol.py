"""What a method is: a value with pure functions over an explicit state, and the shapes involved.

A method subclasses `Method` and fills in the functions that it needs, in this order:

    init         the state before any task
    begin_task   may change the state; returns the reference, all that the loss holds constant
    loss         of the trained parameters on one batch, without any penalty; and the accuracy there
    penalty      what holds the earlier tasks in place; the objective is loss + penalty
    end_task     consolidate: importance, memory, the posterior that becomes the next prior
    predict      class probabilities on one head
    moments      mean and variance of the function, for methods with a distribution over functions

Methods that train in steps list `phases`; methods that watch every step (path integrals) give a
phase an `after_step`; methods that adapt before they predict give `adaptation` and `recall`.
The engine calls these functions and knows no method by name. All of them are traced: shapes come
from `Problem`, which is static, and what differs between tasks from `TaskData`, which is not. Every
call gets random keys of its own; only the loss and the penalty of a step share theirs, so that both
can be taken at the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from funcl.errors import FunclError
from funcl.networks.network import Network

PyTree = Any


@dataclass(frozen=True)
class Problem:
    """The static shapes of a run. Whatever is compiled depends on this and on nothing else."""

    network: Network | None
    input_shape: tuple[int, ...]
    input_dtype: str
    scale: float
    outputs: int
    stages: int
    head_width: int
    rows: int
    batch_size: int
    dtype: str = "float32"

    def inputs(self, raw: Array) -> Array:
        """Cast stored inputs to floats and apply the declared scale."""
        return raw.astype(self.dtype) * jnp.asarray(self.scale, self.dtype)


class Keys(NamedTuple):
    """One random key per source of randomness, so that each can vary with the seed or not."""

    init: Array
    noise: Array
    context: Array

    def fold(self, number: Array | int) -> Keys:
        """Derive fresh keys from a counter."""
        return Keys(*(jax.random.fold_in(key, number) for key in self))


class Head(NamedTuple):
    """The output columns that a task speaks on, padded to the widest head."""

    columns: Array  # int32 [head_width]
    valid: Array  # bool [head_width]

    def mask(self, outputs: int) -> Array:
        """The head as a row of booleans over all output columns."""
        onehot = self.columns[..., None] == jnp.arange(outputs)
        return jnp.any(onehot & self.valid[..., None], axis=-2)


class TaskData(NamedTuple):
    """One task as the compiled programs see it: padded arrays, and how much of them is real."""

    x: Array  # [rows, ...] in the dtype of the file
    y: Array  # int32 [rows], output columns
    size: Array  # int32: how many rows are real
    stage: Array  # int32: 0 for the first task learnt
    heads: Head  # of every stage: [stages, head_width]
    masks: Array  # bool [groups, outputs]: which columns the softmax of a group sees
    group: Array  # int32 [rows]
    permutation: Array | None = None  # int32 [features]

    def raw(self, rows: Array) -> Array:
        """Stored inputs of some rows, in the file's dtype, permuted if the task permutes."""
        x = jnp.take(self.x, rows, axis=0)
        if self.permutation is None:
            return x
        return jnp.take(x.reshape(x.shape[0], -1), self.permutation, axis=1)

    @property
    def head(self) -> Head:
        """The head of this task."""
        return Head(self.heads.columns[self.stage], self.heads.valid[self.stage])

    def valid_rows(self) -> Array:
        """Which of the padded rows are real."""
        return jnp.arange(self.x.shape[0]) < self.size


class TestData(NamedTuple):
    """The test part of a task, cut into equal pieces; rows beyond `size` are padding."""

    x: Array  # [pieces, rows, ...] in the dtype of the file
    y: Array  # int32 [pieces, rows]
    size: Array
    permutation: Array | None = None


class Batch(NamedTuple):
    """The examples of one step."""

    x: Array  # [batch, ...] floats
    y: Array  # int32 [batch]
    mask: Array  # bool [batch, outputs]
    stage: Array  # int32: of the task that they are of; the same for all seeds, so it may branch


class State(NamedTuple):
    """All that a method carries: trained, updated at every step, changed at task ends."""

    trainable: PyTree
    running: PyTree = None
    carried: PyTree = None


class Step(NamedTuple):
    """What an `after_step` sees of one optimiser step."""

    before: PyTree
    after: PyTree
    gradient: PyTree  # of the loss alone, without the penalty


LossFunction = Callable[[Problem, PyTree, PyTree, Batch, Keys], tuple[Array, Array]]
PenaltyFunction = Callable[[Problem, PyTree, PyTree, Batch, Keys], Array]


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one objective. Most methods have one; some train in steps.

    `enter` may rewrite the state as the phase begins, `trained` returns a pytree of factors for the
    updates (0 freezes a parameter), `epochs` replaces the run's own number, and `first_only` keeps
    the phase to the first task. A phase that may not see some of its task's rows says how many are
    `withheld` and reads from its reference the order of all `rows` that has those last among the
    real ones.
    """

    name: str
    loss: LossFunction
    penalty: PenaltyFunction | None = None
    after_step: Callable[[Problem, PyTree, PyTree, Step], PyTree] | None = None
    enter: Callable[[Problem, State, PyTree, TaskData, Keys], State] | None = None
    trained: Callable[[Problem, PyTree, PyTree], PyTree] | None = None
    epochs: int | None = None
    first_only: bool = False
    withheld: int = 0
    rows: Callable[[PyTree], Array] | None = None


@dataclass(frozen=True)
class Method:
    """The base of every method: override what differs."""

    name: ClassVar[str] = "method"
    scenarios: ClassVar[tuple[str, ...]] = ("multi", "single")
    needs_network: ClassVar[bool] = True
    keeps_optimiser: ClassVar[bool] = False
    always_first: ClassVar[bool] = False  # every stage is trained as long and as fast as the first
    adaptation: ClassVar[Phase | None] = None

    def optimiser(self) -> optax.GradientTransformation | None:
        """The method's own optimiser, built for a learning rate of 1; None takes the run's."""
        return None

    def stages(self, tasks: int) -> tuple[tuple[int, ...], ...]:
        """Which tasks are trained together: one at a time, unless a wrapper says otherwise."""
        return tuple((task,) for task in range(tasks))

    def check(self, problem: Problem, sizes: Mapping[str, int]) -> None:
        """Refuse impossible settings, in one sentence; `sizes` counts the examples of each task."""

    def init(self, problem: Problem, keys: Keys) -> State:
        """The state before any task."""
        network = required_network(problem)
        return State(network.init(keys.init, problem.input_shape, problem.outputs))

    def begin_task(
        self, problem: Problem, state: State, task: TaskData, keys: Keys
    ) -> tuple[State, PyTree]:
        """Prepare a task; the second result is held constant while it is trained."""
        return state, None

    def phases(self) -> tuple[Phase, ...]:
        """The stretches of training that every task goes through."""
        return (Phase("fit", self.loss, self.penalty),)

    def loss(
        self, problem: Problem, trainable: PyTree, reference: PyTree, batch: Batch, keys: Keys
    ) -> tuple[Array, Array]:
        """Data term on one batch, and the accuracy on it, to be shown while training."""
        raise NotImplementedError(f"{type(self).__name__} must say how a batch is fitted.")

    penalty: ClassVar[PenaltyFunction | None] = None

    def end_task(
        self, problem: Problem, state: State, reference: PyTree, task: TaskData, keys: Keys
    ) -> State:
        """Consolidate what was learnt."""
        return state

    def predict(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head, keys: Keys
    ) -> Array:
        """Class probabilities [examples, outputs], zero outside the head."""
        raise NotImplementedError(f"{type(self).__name__} must say how it predicts.")

    def moments(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head
    ) -> tuple[Array, Array] | None:
        """Mean and variance of the head's function values, if the method has any."""
        return None

    def recall(
        self, problem: Problem, state: State, stage: Array, head: Head
    ) -> tuple[State, TaskData, PyTree]:
        """What `adaptation` trains before predicting: a state, on data, with a reference."""
        raise NotImplementedError(f"{type(self).__name__} has no adaptation to recall data for.")


def required_network(problem: Problem) -> Network:
    """The problem's network, for methods that cannot do without one."""
    if problem.network is None:
        raise FunclError("This method trains a network: pass one, such as funcl.MLP([256, 256]).")
    return problem.network
