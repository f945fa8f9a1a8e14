"""The learner: what a user holds. Learn a known sequence, or one task at a time as data arrive."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from funcl import config
from funcl.errors import FunclError, unknown
from funcl.evaluate.history import History
from funcl.evaluate.scores import score
from funcl.networks.network import Network
from funcl.prediction import Prediction
from funcl.protocol import Method, Problem
from funcl.stream import (
    Lesson,
    blank_task,
    doubled,
    grow,
    head_of,
    lesson_data,
    lessons_of,
    next_lesson,
    room_for,
)
from funcl.tasks import checks
from funcl.tasks.sequence import TaskSequence
from funcl.train import checkpoint
from funcl.train.engine import EVALUATION_ROWS, Engine, Learned, Report
from funcl.train.run import Runner, Snapshot
from funcl.train.training import SOURCES, Seeds, Training

PROBE_ROWS = 4
PROBE_TOLERANCE = 1e-3


class Learner:
    """A network that learns one task after another with a method, in several repeats at once.

    `run` learns a whole `TaskSequence`; `fit` learns the next task. `seeds=10` makes ten repeats,
    `seeds=[3]` a certain one; `vary` says which randomness differs between them. For `fit`, say
    heads="multi" (a head per task, named at prediction) or heads="single" with `classes`.
    """

    def __init__(
        self,
        network: Network | None,
        method: Method,
        training: Training | None = None,
        *,
        seeds: int | Sequence[int] = 1,
        vary: Sequence[str] = SOURCES,
        data_seed: int = 0,
        heads: str | None = None,
        classes: Sequence | None = None,
    ):
        self.network, self.method = network, method
        self.training = training or Training()
        self.seeds = Seeds.of(seeds, vary, checks.check_seed(data_seed))
        self.heads = None if heads is None else checks.check_heads(heads)
        self.classes = None if classes is None else tuple(classes)
        if self.classes is not None and self.heads != "single":
            raise FunclError(
                "classes=[...] names the classes of a single head: add heads='single'."
            )
        if self.classes is not None and len(set(self.classes)) < 2:
            raise FunclError("classes=[...] needs at least two different classes.")
        if method.needs_network and network is None:
            raise FunclError(f"{method.name} trains a network: pass one, such as funcl.MLP([256]).")
        self.lessons: list[Lesson] = []
        self.diverged: dict[int, str] = {}
        self._engine: Engine | None = None
        self._learned: Learned | None = None
        self._stage_of: dict[str, int] = {}

    # ------------------------------------------------------------------ learning

    def run(
        self,
        sequence: TaskSequence,
        *,
        evaluate: str = "all",
        on_snapshot: Callable[[Snapshot], Any] | None = None,
    ) -> History:
        """Learn a whole sequence from the beginning, and return the scores.

        `evaluate` is "all" (every task seen, after every task), "last" or "none".
        """
        runner = Runner(sequence, self.network, self.method, self.training, self.seeds, evaluate)
        snapshot = runner.start()
        for snapshot in runner.advance(snapshot):
            if on_snapshot is not None:
                on_snapshot(snapshot)
        self.heads, self.classes = sequence.heads, None
        self.lessons = lessons_of(sequence)
        self._stage_of = {
            sequence[t].name: number for number, stage in enumerate(runner.stages) for t in stage
        }
        self._engine, self._learned = runner.engine, snapshot.learned
        self.diverged = dict(snapshot.history.diverged)
        return snapshot.history

    def fit(
        self,
        x: Any,
        y: Any,
        *,
        task: str,
        on_report: Callable[[Report], Any] | None = None,
    ) -> Learner:
        """Learn one more task, or go on with a known one: the last posterior is the prior.

        A new name opens a new head (heads="multi") or shares the one head (heads="single").
        """
        heads = self._fitting_heads()
        x, scale = checks.check_inputs(x, f"Task {task!r}, x")
        y = checks.check_labels(y, f"Task {task!r}, y", len(x))
        classes = tuple(np.unique(y).tolist())
        lesson = next_lesson(self.lessons, task, classes, heads, self.classes)
        lessons = [*self.lessons, lesson]
        problem = self._room(lessons, x, scale)
        self.method.check(problem, {task: len(x)})
        engine, learned = self._with_room(problem)
        column = dict(zip(lesson.classes, lesson.columns, strict=True))
        data = lesson_data(problem, lessons, x, np.array([column[c] for c in y.tolist()], np.int32))
        learned, reference = engine.begin(learned, data)
        for learned, _, report in engine.train(learned, reference, data):
            self._note_diverged(report, task)
            if on_report is not None:
                on_report(report)
        self._learned, self._engine = engine.end(learned, reference, data), engine
        self.lessons, self.heads = lessons, heads
        self._stage_of[task] = len(lessons) - 1
        return self

    # ------------------------------------------------------------------ predicting

    def predict(self, x: Any, *, task: str | None = None) -> Prediction:
        """Class probabilities and uncertainty; with heads="multi" say whose task the inputs are."""
        engine, learned, lesson, stage = self._ready(task)
        x, _ = checks.check_inputs(x, "x")
        x = self._shaped(x, engine.problem, lesson)
        pieces = [self._predict_piece(engine, learned, piece, lesson, stage) for piece in split(x)]
        alive = [s not in self.diverged for s in self.seeds.numbers]
        columns = list(lesson.columns)
        members = np.concatenate([p[..., columns] for p, _ in pieces], axis=1)[alive]
        if pieces[0][1] is None:
            return Prediction(members, lesson.classes)
        count = len(columns)
        mean = np.concatenate([m[0][..., :count] for _, m in pieces], axis=1)[alive]
        variance = np.concatenate([m[1][..., :count] for _, m in pieces], axis=1)[alive]
        return Prediction(members, lesson.classes, mean.mean(0), variance.mean(0) + mean.var(0))

    def evaluate(self, x: Any, y: Any, *, task: str | None = None) -> dict[str, float]:
        """Accuracy, negative log-likelihood, Brier score, calibration error and entropy on labelled data."""
        prediction = self.predict(x, task=task)
        y = checks.check_labels(y, "y", len(prediction))
        place = {c: i for i, c in enumerate(prediction.classes)}
        strange = [label for label in np.unique(y).tolist() if label not in place]
        if strange:
            raise FunclError(
                f"y has labels outside the head, such as {strange[0]!r}: "
                f"the head holds {list(prediction.classes)}."
            )
        labels = jnp.array([place[label] for label in y.tolist()], jnp.int32)
        sums = score(jnp.asarray(prediction.probs), labels, jnp.ones(len(y), bool))
        history = History.blank(
            tasks=["task"],
            seeds=[0],
            sequence="",
            method="",
            variant=None,
            heads="",
            scenario="",
            split="test",
            data_seed=0,
        ).with_row(0, {0: jax.tree.map(lambda s: np.asarray(s)[None], sums)})
        names = ("accuracy", "nll", "brier", "ece", "entropy")
        return {name: float(getattr(history, name)[0, 0, 0]) for name in names}

    # ------------------------------------------------------------------ saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder, so that learning can go on as if it had never stopped."""
        engine, learned = self._trained()
        payload = {
            "kind": "learner",
            "network": config.to_plain(self.network),
            "method": config.to_plain(self.method),
            "training": config.to_plain(self.training),
            "seeds": list(self.seeds.numbers),
            "vary": list(self.seeds.vary),
            "data_seed": self.seeds.data_seed,
            "heads": self.heads,
            "classes": self.classes,
            "problem": {f: getattr(engine.problem, f) for f in SHAPES},
            "lessons": [
                {
                    "task": lesson.task,
                    "classes": lesson.classes,
                    "columns": lesson.columns,
                    "permuted": None if lesson.permutation is None else len(lesson.permutation),
                }
                for lesson in self.lessons
            ],
            "stage_of": self._stage_of,
            "diverged": {str(k): v for k, v in self.diverged.items()},
        }
        arrays = {
            "learned": engine.kept(learned),
            "permutations": [lesson.permutation for lesson in self.lessons],
            "probe": self._probe(engine, learned),
        }
        checkpoint.save(path, arrays, payload)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        network: Network | None = None,
        method: Method | None = None,
    ) -> Learner:
        """Read a saved learner. A network or method of your own is passed again, and checked."""
        payload = checkpoint.load_manifest(path)
        if payload.get("kind") != "learner":
            raise FunclError(f"{path} holds a {payload.get('kind')}, not a saved learner.")
        learner = cls(
            network if network is not None else stored(payload, "network", path),
            method if method is not None else stored(payload, "method", path),
            config.from_plain(payload["training"]),
            seeds=payload["seeds"],
            vary=payload["vary"],
            data_seed=payload["data_seed"],
            heads=payload["heads"],
            classes=payload["classes"],
        )
        shapes = {k: tuple(v) if isinstance(v, list) else v for k, v in payload["problem"].items()}
        problem = Problem(
            network=learner.network,
            batch_size=learner.training.batch_size,
            dtype=learner.training.precision,
            **shapes,
        )
        engine = Engine(problem, learner.method, learner.training, learner.seeds)
        lengths = [lesson["permuted"] for lesson in payload["lessons"]]
        templates = {
            "learned": engine.templates(blank_task(problem))[0],
            "permutations": [n and jax.ShapeDtypeStruct((n,), np.int32) for n in lengths],
            "probe": jax.ShapeDtypeStruct(
                (len(learner.seeds.numbers), PROBE_ROWS, problem.outputs), problem.dtype
            ),
        }
        arrays = checkpoint.load_arrays(path, templates)
        learner.lessons = [
            Lesson(d["task"], tuple(d["classes"]), tuple(d["columns"]), permutation)
            for d, permutation in zip(payload["lessons"], arrays["permutations"], strict=True)
        ]
        learner._stage_of = payload["stage_of"]
        learner.diverged = {int(k): v for k, v in payload["diverged"].items()}
        learner._engine = engine
        learner._learned = engine.restored(arrays["learned"])
        if network is not None or method is not None:
            learner._check_probe(arrays["probe"], path)
        return learner

    # ------------------------------------------------------------------ how it is done

    def _fitting_heads(self) -> str:
        if self.heads is None:
            raise FunclError(
                "Say which heads the tasks have before fit: Learner(..., heads='multi') for one per "
                "task, or heads='single', classes=[...] for one that all share."
            )
        if self.heads not in self.method.scenarios:
            raise FunclError(
                f"{self.method.name} cannot learn with {self.heads} heads; "
                f"it can with {' or '.join(self.method.scenarios)}."
            )
        if len(self.method.stages(2)) < 2:
            raise FunclError(
                f"{self.method.name} learns all tasks at once, so it cannot take them as they come: "
                "use run(sequence)."
            )
        return self.heads

    def _room(self, lessons: list[Lesson], x: np.ndarray, scale: float) -> Problem:
        """A problem in which the lessons fit, the present one if it is large enough."""
        present = self._engine.problem if self._engine else None
        if present is not None:
            x = self._shaped(x, present, lessons[-1])
        head = len(lessons[-1].columns) if self.heads == "single" else 2
        begin = Problem(
            network=self.network,
            input_shape=x.shape[1:],
            input_dtype=str(x.dtype),
            scale=scale,
            outputs=head,
            stages=4,
            head_width=head,
            rows=64,
            batch_size=self.training.batch_size,
            dtype=self.training.precision,
        )
        return room_for(present, begin, lessons, len(x))

    def _with_room(self, problem: Problem) -> tuple[Engine, Learned]:
        if self._engine is None or self._learned is None:
            engine = Engine(problem, self.method, self.training, self.seeds)
            return engine, engine.start()
        if problem == self._engine.problem:
            return self._engine, self._learned
        engine = Engine(problem, self.method, self.training, self.seeds)
        return engine, grow(self._learned, engine)

    def _shaped(self, x: np.ndarray, problem: Problem, lesson: Lesson) -> np.ndarray:
        if str(x.dtype) != problem.input_dtype:
            raise FunclError(
                f"The inputs are {x.dtype} and the earlier ones were {problem.input_dtype}: "
                "pass them in the same form, so that their scale stays the same."
            )
        if math.prod(x.shape[1:]) != math.prod(problem.input_shape):
            raise FunclError(
                f"An input has shape {list(x.shape[1:])} and the earlier ones had "
                f"{list(problem.input_shape)}: all tasks share one network."
            )
        if lesson.permutation is not None:
            return x.reshape(len(x), -1)[:, lesson.permutation]
        return x.reshape(len(x), *problem.input_shape)

    def _note_diverged(self, report: Report, task: str) -> None:
        for seed, alive in zip(self.seeds.numbers, report.alive, strict=True):
            if not alive and seed not in self.diverged:
                self.diverged[seed] = f"task {task!r}, before step {report.step:,}"
        if len(self.diverged) == len(self.seeds.numbers):
            raise FunclError(
                f"Every seed diverged ({next(iter(self.diverged.values()))}): what was learnt before "
                f"this task is kept; try a learning rate below {self.training.learning_rate}."
            )

    def _trained(self) -> tuple[Engine, Learned]:
        if self._engine is None or self._learned is None:
            raise FunclError("This learner has learnt nothing yet: call fit or run first.")
        return self._engine, self._learned

    def _ready(self, task: str | None) -> tuple[Engine, Learned, Lesson, int]:
        engine, learned = self._trained()
        known = list(self._stage_of)
        if task is None:
            if self.heads == "multi" and len(known) > 1:
                raise FunclError(
                    "With a head per task, say whose inputs these are: "
                    f"predict(x, task=...), one of {', '.join(map(repr, known))}."
                )
            task = known[-1]
        if task not in self._stage_of:
            raise unknown("task", task, known)
        lesson = next(lesson for lesson in reversed(self.lessons) if lesson.task == task)
        return engine, learned, lesson, self._stage_of[task]

    def _predict_piece(
        self,
        engine: Engine,
        learned: Learned,
        x: np.ndarray,
        lesson: Lesson,
        stage: int,
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
        rows = min(doubled(len(x)), EVALUATION_ROWS)
        padded = np.zeros((rows, *x.shape[1:]), x.dtype)
        padded[: len(x)] = x
        head = head_of(engine.problem, lesson)
        result = engine.predict(learned, jnp.asarray(padded), stage, head)
        return jax.tree.map(lambda a: a[:, : len(x)], result)

    def _probe(self, engine: Engine, learned: Learned) -> np.ndarray:
        """Predictions for a fixed input: a network that is passed again must repeat them."""
        x = np.linspace(0, 1, PROBE_ROWS * math.prod(engine.problem.input_shape))
        x = x.reshape(PROBE_ROWS, *engine.problem.input_shape) / engine.problem.scale
        x = x.astype(engine.problem.input_dtype)
        lesson = self.lessons[0]
        return self._predict_piece(engine, learned, x, lesson, self._stage_of[lesson.task])[0]

    def _check_probe(self, saved: np.ndarray, path: str | os.PathLike[str]) -> None:
        engine, learned = self._trained()
        now = self._probe(engine, learned)
        if not np.allclose(now, saved, atol=PROBE_TOLERANCE, equal_nan=True):
            raise FunclError(
                f"The network or method passed to load is not the one that {path} was saved with: "
                f"its predictions differ by up to {np.nanmax(np.abs(now - saved)):.2g}."
            )


SHAPES = ("input_shape", "input_dtype", "scale", "outputs", "stages", "head_width", "rows")


def stored(payload: dict, what: str, path: str | os.PathLike[str]) -> Any:
    """Settings out of a manifest; what cannot be written down has to be passed again."""
    data = payload[what]
    if isinstance(data, str):
        raise FunclError(
            f"{path} was saved with a {what} of your own ({data.strip('<>')}): "
            f"pass it again, Learner.load(path, {what}=...)."
        )
    return config.from_plain(data)


def split(x: np.ndarray) -> Iterator[np.ndarray]:
    """Pieces of at most EVALUATION_ROWS rows."""
    for start in range(0, max(len(x), 1), EVALUATION_ROWS):
        yield x[start : start + EVALUATION_ROWS]
