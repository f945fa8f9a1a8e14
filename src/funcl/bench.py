"""How long a step of S-FSVI takes, beside the time of its bare matrix products, and how it grows.

`funcl.floor` says which products these are. Times are minima over repeats, and what is compared is
measured in turns: processors are noisy, and noise only ever adds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from funcl.floor import Floor, shape_of
from funcl.memory.context import Coreset
from funcl.methods.sfsvi import SFSVI
from funcl.networks import MLP
from funcl.protocol import Problem, TaskData
from funcl.tasks.sequence import TaskSequence
from funcl.train.data import head_table
from funcl.train.engine import Engine, Position
from funcl.train.run import Runner
from funcl.train.training import SOURCES, Seeds, Training

PREDICTION_ROWS = 1000
ENDLESS = 1_000_000  # epochs: a stretch of any length fits before the end
WIDTHS = (32, 64, 128, 256, 512)
POINTS = (10, 30, 100, 300, 1000)
TASKS = (5, 10, 20, 50, 100, 200)
LINEAR_FROM = 100  # context points; below, the data term hides how the context grows


@dataclass(frozen=True)
class Effort:
    """How hard to measure: seconds of one stretch of steps, and how many stretches.

    A stretch is a chunk of steps, whose begin and end cost as much as a few of them.
    """

    seconds: float = 1.5
    repeats: int = 5


QUICK = Effort(seconds=0.5, repeats=3)


def bench_sequence(
    sequence: TaskSequence,
    network: MLP,
    method: SFSVI,
    training: Training,
    seeds: int,
    effort: Effort,
) -> dict[str, Any]:
    """Times of the last task's steps, which have the most context points."""
    runner = Runner(
        sequence, network, method, endless(training), Seeds.of(seeds, SOURCES, 0), "none"
    )
    stage = len(sequence) - 1
    with compiling_anew():
        engine, data = runner.engine, runner.data(stage)
        measured = measure(engine, method, data, effort)
        learned = engine.end(*engine.begin(engine.start(), data), data)
        runner.score(learned, stage)
    predicting = predict_time(runner, learned, stage, effort)
    return {
        "sequence": sequence.name,
        "seeds": seeds,
        "likelihood": method.likelihood,
        "precision": training.precision,
        **measured,
        "compile_seconds": engine.compile_seconds,
        "peak_memory": peak_memory(engine),
        "prediction_microseconds": predicting,
    }


def measure(engine: Engine, method: SFSVI, task: TaskData, effort: Effort) -> dict[str, Any]:
    """Step time and floor of a task, in turns."""
    learned, reference = engine.begin(engine.start(), task)
    total = engine.steps(engine.phases[0], int(task.stage), int(task.size))

    def steps(count: int) -> float:
        began = time.perf_counter()
        next(engine.train(learned, reference, task, Position(0, total - count)))
        return time.perf_counter() - began

    shape = shape_of(engine.problem, method, int(task.stage))
    floor = Floor(shape, engine.layout, engine.training.products)
    step_time, floor_time = fastest((steps, floor), effort)
    return {
        "steps_per_second": 1 / step_time,
        "microseconds_per_step": 1e6 * step_time,
        "floor_microseconds": 1e6 * floor_time,
        "ratio_to_floor": step_time / floor_time,
        "counted": floor.account(),
        "chunk_memory": engine.programs["chunk fit"].peak_bytes,
    }


def fastest(timers: Sequence[Callable[[int], float]], effort: Effort) -> list[float]:
    """Seconds per step of each timer: the minimum over stretches that are taken in turns."""
    counts = []
    for timer in timers:
        timer(1)  # compiles
        count = 1
        while (spent := timer(count)) < effort.seconds / 2:
            count = math.ceil(count * min(10, 0.9 * effort.seconds / max(spent, 1e-6)))
        counts.append(count)
    rounds = [
        [timer(count) / count for timer, count in zip(timers, counts, strict=True)]
        for _ in range(effort.repeats)
    ]
    return np.min(rounds, axis=0).tolist()


def predict_time(runner: Runner, learned: Any, stage: int, effort: Effort) -> float:
    """Microseconds per example of probabilities and linearised variance, for all seeds."""
    task = runner.sequence[stage]
    x = np.resize(task.x_test, (PREDICTION_ROWS, *runner.problem.input_shape))
    placed, head = jnp.asarray(x), runner.head(stage)
    state = runner.engine.adapted(learned, stage, head)

    def predict(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            runner.engine.predict(state, placed, stage, head)
            runner.engine.moments(state, placed, stage, head)
        return time.perf_counter() - began

    return 1e6 * fastest([predict], effort)[0] / PREDICTION_ROWS


def growth(quick: bool, effort: Effort, precision: str = "float32") -> Iterator[dict[str, Any]]:
    """Made-up tasks that grow in one respect at a time."""
    how = {"effort": effort, "precision": precision}
    thin = (lambda sizes: sizes[1:4:2]) if quick else (lambda sizes: sizes)
    for points in (LINEAR_FROM, POINTS[-1]) if quick else POINTS:
        yield grown("context points", points, **how, points=points)
    for width in thin(WIDTHS):
        yield grown("parameters", parameters((784, width, width, 10)), **how, width=width)
    for tasks in thin(TASKS):
        yield grown("tasks", tasks, **how, tasks=tasks)


def grown(
    across: str,
    size: int,
    *,
    effort: Effort,
    precision: str = "float32",
    points: int = 100,
    width: int = 100,
    tasks: int = 5,
) -> dict[str, Any]:
    """Step time and memory of one size; the context has `points` in all, however many tasks."""
    stored = math.ceil(points / (tasks - 1))
    context = Coreset(points, per_task=False)
    method = SFSVI(context=context, coreset_size=stored, likelihood="weights")
    rows = 2000
    problem = Problem(
        network=MLP([width, width]),
        input_shape=(784,),
        input_dtype="uint8",
        scale=1 / 255,
        outputs=10,
        stages=tasks,
        head_width=10,
        rows=rows,
        batch_size=128,
    )
    engine = Engine(
        problem, method, endless(Training(precision=precision)), Seeds.of(1, SOURCES, 0)
    )
    random = np.random.default_rng(0)
    task = TaskData(
        x=jnp.asarray(random.integers(0, 256, (rows, 784), np.uint8)),
        y=jnp.asarray(random.integers(0, 10, rows, np.int32)),
        size=jnp.int32(rows),
        stage=jnp.int32(tasks - 1),
        heads=head_table([tuple(range(10))] * tasks, tasks, 10),
        masks=jnp.ones((1, 10), bool),
        group=jnp.zeros(rows, jnp.int32),
    )
    measured = measure(engine, method, task, effort)
    return {"across": across, "size": size, **measured}


def slopes(points: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Log-log slopes of step time and memory; of context points from LINEAR_FROM on."""
    found: dict[str, dict[str, float]] = {}
    points = list(points)
    for across in dict.fromkeys(point["across"] for point in points):
        chosen = [p for p in points if p["across"] == across]
        if across == "context points":
            chosen = [p for p in chosen if p["size"] >= LINEAR_FROM]
        found[across] = {
            what: slope([p["size"] for p in chosen], [p[key] for p in chosen])
            for what, key in (("time", "microseconds_per_step"), ("memory", "chunk_memory"))
        }
    return found


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent with which costs grow.

    >>> round(slope([1, 10, 100], [3, 30, 300]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def parameters(widths: Sequence[int]) -> int:
    """Means and log-variances of a dense network.

    >>> parameters((2, 3, 1))
    26
    """
    return 2 * sum((i + 1) * o for i, o in pairwise(widths))


def endless(training: Training) -> Training:
    """The same training without a last step."""
    return replace(training, epochs=ENDLESS, first_epochs=None, chunk=ENDLESS * ENDLESS)


def peak_memory(engine: Engine) -> int:
    """The device's own account of its peak where it keeps one, else the compiler's."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("peak_bytes_in_use") or engine.peak_bytes


@contextmanager
def compiling_anew() -> Iterator[None]:
    """Use no compilations of earlier processes, so that the time of compiling shows."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
