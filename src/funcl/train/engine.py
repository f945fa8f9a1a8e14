"""The engine: compiles a method's pure functions once, and runs them over tasks, chunks and seeds.

It knows no method, no sequence and no file. All seeds go through one program. A seed whose loss or
parameters stop being finite keeps its last good state from the chunk before and stops alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from funcl.errors import FunclError
from funcl.evaluate.scores import Scores, score
from funcl.networks.network import check_network
from funcl.protocol import (
    Head,
    Keys,
    Method,
    Phase,
    Problem,
    State,
    TaskData,
    TestData,
)
from funcl.train.programs import Layout, Program, keep_compilations
from funcl.train.steps import Learned, survivors, take_steps
from funcl.train.training import Seeds, Training, check_precision

PyTree = Any
EVALUATION_ROWS = 1000  # test examples in memory at once


class Use(IntEnum):
    """What keys are for: every call of a method's functions draws from a stream of its own."""

    INIT = 0
    BEGIN = 1
    ENTER = 2
    STEP = 3
    END = 4
    ADAPT = 5
    PREDICT = 6


class Position(NamedTuple):
    """Where in a stage training stands: what to do next."""

    phase: int = 0
    step: int = 0


START = Position()


@dataclass(frozen=True)
class Report:
    """What a chunk of steps looked like, one value per seed."""

    phase: str
    step: int
    steps: int
    loss: np.ndarray
    penalty: np.ndarray
    accuracy: np.ndarray
    alive: np.ndarray


class Engine:
    """One problem, one method, one set of seeds."""

    def __init__(self, problem: Problem, method: Method, training: Training, seeds: Seeds):
        check_precision(training)
        if problem.network is not None:
            check_network(problem.network, problem.input_shape, problem.outputs, problem.dtype)
        keep_compilations()
        self.problem, self.method, self.training, self.seeds = problem, method, training, seeds
        strategy = chosen_strategy(problem) if training.seed_axis == "auto" else training.seed_axis
        self.layout = Layout(len(seeds.numbers), strategy)
        self.keys = self.layout.place(seeds.keys(self.layout.padded), seeded=True)
        self.order_key = self.layout.place(seeds.order_key(), seeded=False)
        self.transformation = method.optimiser() or training.transformation()
        self.phases = method.phases()
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise FunclError(f"{method.name} must give each of its phases a name, not {names}.")
        self.programs: dict[str, Program] = {}

    # ------------------------------------------------------------------ what the caller does

    def start(self) -> Learned:
        """The state before any task."""
        state, optimiser = self._run("start", self._start_one, [True], self.keys)
        alive = self.layout.place(jnp.ones(self.layout.padded, bool), seeded=True)
        return Learned(state, optimiser, alive)

    def begin(self, learned: Learned, task: TaskData) -> tuple[Learned, PyTree]:
        """Prepare a task; the reference is what its loss holds constant."""
        return self._run(
            "begin",
            self._begin_one,
            [True, True, False],
            learned,
            self.keys,
            self.layout.place(task, seeded=False),
        )

    def templates(self, task: TaskData) -> tuple[Learned, PyTree]:
        """Shapes of what is learnt and of a task's reference, per seed; nothing is computed."""
        key = jax.eval_shape(lambda keys: jax.tree.map(lambda k: k[0], keys), self.keys)
        state, optimiser = jax.eval_shape(self._start_one, key)
        alive = jax.eval_shape(lambda: jnp.array(True))
        learned, reference = jax.eval_shape(
            self._begin_one, Learned(state, optimiser, alive), key, task
        )
        seeds = len(self.seeds.numbers)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype),
            (learned, reference),
        )

    def kept(self, tree: PyTree) -> PyTree:
        """Off the device, without the padding of the seed axis."""
        return jax.tree.map(lambda a: np.asarray(a)[: len(self.seeds.numbers)], tree)

    def restored(self, tree: PyTree) -> PyTree:
        """The inverse of `kept`: padded by repeating the last seed, and back on the devices."""
        more = self.layout.padded - len(self.seeds.numbers)
        padded = jax.tree.map(lambda a: np.concatenate([a, *[a[-1:]] * more]), tree)
        return self.layout.place(padded, seeded=True)

    def steps(self, phase: Phase, stage: int, size: int) -> int:
        """How many steps a phase takes on a stage with `size` examples."""
        stage = self._pace(stage)
        if phase.first_only and stage > 0:
            return 0
        epochs = phase.epochs or self.training.epochs_of(stage)
        return epochs * max(1, (size - phase.withheld) // self.problem.batch_size)

    def train(
        self, learned: Learned, reference: PyTree, task: TaskData, position: Position = START
    ) -> Iterator[tuple[Learned, Position, Report]]:
        """Train a task from a position on, a chunk at a time."""
        task = self.layout.place(task, seeded=False)
        for number in range(position.phase, len(self.phases)):
            phase = self.phases[number]
            step = position.step if number == position.phase else 0
            steps = self.steps(phase, int(task.stage), int(task.size))
            if step == 0 and steps:
                learned = self._enter(learned, reference, task, number)
            while step < steps:
                count = min(self.training.chunk, steps - step)
                learned, report = self._chunk(
                    phase, learned, reference, task, number, step, count, steps
                )
                step += count
                done = step == steps
                yield learned, Position(number + done, 0 if done else step), report

    def end(self, learned: Learned, reference: PyTree, task: TaskData) -> Learned:
        """Let the method consolidate what it learnt."""

        def end(learned: Learned, reference: PyTree, keys: Keys, task: TaskData) -> Learned:
            keys = keys.fold(Use.END).fold(task.stage)
            state = self.method.end_task(self.problem, learned.state, reference, task, keys)
            return survivors(learned._replace(state=state), learned)

        return self._run(
            "end",
            end,
            [True, True, True, False],
            learned,
            reference,
            self.keys,
            self.layout.place(task, seeded=False),
        )

    def score(self, learned: Learned, test: TestData, stage: int, head: Head) -> Scores:
        """Additive scores of every seed on a test part, as the task of `stage` on its `head`."""

        def score_one(state: State, keys: Keys, test: TestData, stage: Array, head: Head) -> Scores:
            def piece(rows: tuple[Array, Array, Array]) -> Scores:
                raw, labels, first = rows
                if test.permutation is not None:
                    raw = raw.reshape(raw.shape[0], -1)[:, test.permutation]
                inputs = self.problem.inputs(raw)
                p = self._predict_one(state, keys, inputs, stage, head)
                return score(p, labels, first + jnp.arange(labels.shape[0]) < test.size)

            firsts = jnp.arange(test.y.shape[0]) * test.y.shape[1]
            pieces = jax.lax.map(piece, (test.x, test.y, firsts))
            return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), pieces)

        scores = self._run(
            "score",
            score_one,
            [True, True, False, False, False],
            self.adapted(learned, stage, head),
            self.keys,
            *self.layout.place((test, jnp.int32(stage), head), seeded=False),
        )
        return self.kept(scores)

    def predict(self, state: State, x: Array, stage: int, head: Head) -> np.ndarray:
        """Class probabilities [seeds, examples, outputs].

        The state comes from `adapted`, once for however many pieces the inputs come in.
        """

        def predict(state: State, keys: Keys, x: Array, stage: Array, head: Head) -> Array:
            return self._predict_one(state, keys, self.problem.inputs(x), stage, head)

        return self._look("predict", predict, state, x, stage, head)

    def moments(
        self, state: State, x: Array, stage: int, head: Head
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and variance of the function [seeds, examples, head], if the method has any."""

        def moments(state: State, keys: Keys, x: Array, stage: Array, head: Head) -> PyTree:
            return self.method.moments(self.problem, state, self.problem.inputs(x), stage, head)

        return self._look("moments", moments, state, x, stage, head)

    @property
    def compile_seconds(self) -> float:
        """Time spent on compiling so far."""
        return sum(program.compile_seconds for program in self.programs.values())

    @property
    def from_cache(self) -> int:
        """How many programs an earlier process had compiled."""
        return sum(program.from_cache for program in self.programs.values())

    @property
    def peak_bytes(self) -> int:
        """The largest program's memory, by the compiler's own account."""
        return max((program.peak_bytes for program in self.programs.values()), default=0)

    # ------------------------------------------------------------------ how it is done

    def _pace(self, stage: int) -> int:
        """The stage with whose number of epochs and learning rate a stage is trained."""
        return 0 if self.method.always_first else stage

    def _look(
        self, name: str, function: Any, state: State, x: Array, stage: int, head: Head
    ) -> PyTree:
        """Run what reads a state and inputs and changes nothing."""
        found = self._run(
            name,
            function,
            [True, True, False, False, False],
            state,
            self.keys,
            *self.layout.place((x, jnp.int32(stage), head), seeded=False),
        )
        return self.kept(found)

    def _predict_one(
        self, state: State, keys: Keys, inputs: Array, stage: Array, head: Head
    ) -> Array:
        keys = keys.fold(Use.PREDICT)
        return self.method.predict(self.problem, state, inputs, stage, head, keys)

    def _start_one(self, keys: Keys) -> tuple[State, PyTree]:
        state = self.method.init(self.problem, keys.fold(Use.INIT))
        return state, self.transformation.init(state.trainable)

    def _begin_one(self, learned: Learned, keys: Keys, task: TaskData) -> tuple[Learned, PyTree]:
        keys = keys.fold(Use.BEGIN).fold(task.stage)
        state, reference = self.method.begin_task(self.problem, learned.state, task, keys)
        optimiser = learned.optimiser
        if self.method.always_first or not self.method.keeps_optimiser:
            optimiser = self.transformation.init(state.trainable)
        begun = survivors(Learned(state, optimiser, learned.alive), learned)
        return begun, jax.lax.stop_gradient(reference)

    def _run(self, name: str, function: Any, seeded: list[bool], *arguments: PyTree) -> PyTree:
        if name not in self.programs:
            mapped = self.layout.over_seeds(function, seeded)
            self.programs[name] = Program(mapped, self.training.products)
        return self.programs[name](*arguments)

    def _enter(self, learned: Learned, reference: PyTree, task: TaskData, number: int) -> Learned:
        phase = self.phases[number]
        if phase.enter is None and (number == 0 or self.method.keeps_optimiser):
            return learned

        def enter(learned: Learned, reference: PyTree, keys: Keys, task: TaskData) -> Learned:
            state, optimiser = learned.state, learned.optimiser
            if phase.enter is not None:
                keys = keys.fold(Use.ENTER).fold(task.stage).fold(number)
                state = phase.enter(self.problem, state, reference, task, keys)
            if not self.method.keeps_optimiser:
                optimiser = self.transformation.init(state.trainable)
            return survivors(Learned(state, optimiser, learned.alive), learned)

        return self._run(
            f"enter {phase.name}",
            enter,
            [True, True, True, False],
            learned,
            reference,
            self.keys,
            task,
        )

    def _chunk(
        self,
        phase: Phase,
        learned: Learned,
        reference: PyTree,
        task: TaskData,
        number: int,
        step: int,
        count: int,
        steps: int,
    ) -> tuple[Learned, Report]:
        def chunk(
            learned: Learned,
            reference: PyTree,
            keys: Keys,
            task: TaskData,
            order_key: Array,
            first: Array,
            count: Array,
            rate: Array,
        ) -> tuple[Learned, PyTree]:
            keys = keys.fold(Use.STEP).fold(task.stage).fold(number)
            order_key = jax.random.fold_in(order_key, task.stage)
            return self._steps(phase, learned, reference, keys, task, order_key, first, count, rate)

        pace = self._pace(int(task.stage))
        rate = jnp.asarray(self.training.rate(pace), self.problem.dtype)
        learned, (loss, penalty, accuracy) = self._run(
            f"chunk {phase.name}",
            chunk,
            [True, True, True, False, False, False, False, False],
            learned,
            reference,
            self.keys,
            task,
            self.order_key,
            *self.layout.place((jnp.int32(step), jnp.int32(count), rate), seeded=False),
        )
        values = self.kept((loss, penalty, accuracy, learned.alive))
        return learned, Report(phase.name, step + count, steps, *values)

    def _steps(self, phase: Phase, *arguments: PyTree) -> tuple[Learned, PyTree]:
        return take_steps(
            self.problem, self.transformation, self.training.reshuffle, phase, *arguments
        )

    def adapted(self, learned: Learned, stage: int, head: Head) -> State:
        """The state that predicts: a copy trained on recalled data, if the method adapts."""
        phase = self.method.adaptation
        if phase is None:
            return learned.state

        def adapt(
            state: State, keys: Keys, stage: Array, head: Head, order_key: Array, rate: Array
        ) -> State:
            state, task, reference = self.method.recall(self.problem, state, stage, head)
            fresh = Learned(state, self.transformation.init(state.trainable), jnp.array(True))
            epochs = phase.epochs or self.training.epochs
            rounds = jnp.maximum(1, task.size // self.problem.batch_size)
            first, count = jnp.int32(0), (epochs * rounds).astype(jnp.int32)
            reference = jax.lax.stop_gradient(reference)
            keys = keys.fold(Use.ADAPT).fold(stage)
            adapted, _ = self._steps(
                phase, fresh, reference, keys, task, order_key, first, count, rate
            )
            return adapted.state

        rate = jnp.asarray(self.training.learning_rate, self.problem.dtype)
        return self._run(
            "adapt",
            adapt,
            [True, True, False, False, False, False],
            learned.state,
            self.keys,
            *self.layout.place((jnp.int32(stage), head), seeded=False),
            self.order_key,
            self.layout.place(rate, seeded=False),
        )


def chosen_strategy(problem: Problem) -> str:
    """How to lay out repeats: a CPU's caches hold one, an accelerator wants all at once."""
    if jax.default_backend() == "cpu":
        return "map"
    return problem.network.seed_axis if problem.network else "vmap"
