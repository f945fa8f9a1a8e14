"""The learner: what a user holds. Learn a known sequence, or one task at a time as data arrive."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from funcl import config, saving
from funcl.checked import seed_number
from funcl.errors import FunclError, unknown
from funcl.evaluate.history import History
from funcl.evaluate.metrics import means
from funcl.evaluate.scores import score
from funcl.networks.network import Network
from funcl.prediction import Prediction
from funcl.protocol import Method, Problem
from funcl.stream import (
    Lesson,
    Progress,
    grow,
    lesson_data,
    lessons_of,
    next_lesson,
    room_for,
    shaped,
)
from funcl.tasks import checks
from funcl.tasks.sequence import TaskSequence
from funcl.train.engine import Engine, Learned, Report
from funcl.train.run import Runner, Snapshot
from funcl.train.training import SOURCES, Seeds, Training, check_precision

FIRST_STAGES, FIRST_ROWS = 4, 64  # the room that an open stream begins with


class Learner:
    """A network that learns one task after another with a method, in several repeats at once.

    `run` learns a whole `TaskSequence`; `fit` learns the next task. `seeds=10` makes ten repeats,
    `seeds=[3]` a certain one; `vary` says which randomness differs between them. For `fit`, say
    heads="multi" (a head per task, named at prediction) or heads="single" with `classes`. Inputs
    are multiplied by `scale`: 1/255 for uint8 and 1 otherwise, unless given.
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
        scale: float | None = None,
    ):
        check_parts(network, method, training)
        self._network, self._method = network, method
        self._training = training or Training()
        self._seeds = Seeds.of(seeds, vary, seed_number("data_seed", data_seed))
        self._heads = None if heads is None else checks.check_heads(heads)
        self._classes = None if classes is None else check_classes(classes, self._heads)
        self._scale = None if scale is None else checks.check_scale(scale)
        self._progress: Progress | None = None

    # Settings stay what they are: what was compiled and learnt depends on them.

    @property
    def network(self) -> Network | None:
        """The network that is trained."""
        return self._network

    @property
    def method(self) -> Method:
        """The method that trains it."""
        return self._method

    @property
    def training(self) -> Training:
        """How long, how fast, in what order."""
        return self._training

    @property
    def seeds(self) -> Seeds:
        """The repeats."""
        return self._seeds

    @property
    def heads(self) -> str | None:
        """Heads of the tasks, "multi" or "single"; None before that is known."""
        return self._heads

    @property
    def classes(self) -> tuple | None:
        """The classes of a single head, if they were given."""
        return self._classes

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks learnt so far."""
        return self._progress.tasks if self._progress else []

    def __repr__(self) -> str:
        learnt = f"{len(self.tasks)} tasks learnt" if self.tasks else "nothing learnt yet"
        return f"<Learner: {self.method.name} on {self.network!r}, {learnt}>"

    @property
    def diverged(self) -> dict[int, str]:
        """The seeds that stopped because something was no longer finite, and where."""
        return dict(self._progress.diverged) if self._progress else {}

    # ------------------------------------------------------------------ learning

    def run(
        self,
        sequence: TaskSequence,
        *,
        evaluate: str = "all",
        on_snapshot: Callable[[Snapshot], Any] | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> History:
        """Learn a whole sequence from the beginning, and return the scores.

        `evaluate` is "all" (every task seen, after every task), "last" or "none". With `out` the
        run is also written to a folder, for `funcl report` and `funcl compare`; a stopped run goes
        on from there with `resume`.
        """
        if not isinstance(sequence, TaskSequence):
            raise FunclError(
                f"run learns a TaskSequence and not {type(sequence).__name__}: make one by "
                "funcl.TaskSequence.from_arrays(...) or funcl.tasks.load(...)."
            )
        if self._progress is not None:
            raise FunclError(
                f"This learner has learnt {', '.join(map(repr, self.tasks))} already, and run "
                "begins from nothing: make a new Learner for it, or go on with fit."
            )
        runner = Runner(sequence, self.network, self.method, self.training, self.seeds, evaluate)
        if out is None:
            start = snapshot = runner.start()
            for snapshot in runner.advance(start):
                if on_snapshot is not None:
                    on_snapshot(snapshot)
        else:
            from funcl.runfolder import run_in_folder

            watch = on_snapshot or (lambda snapshot: None)
            finished = run_in_folder(runner, out, resume=resume, watch=watch)
            assert finished is not None  # nothing asks for an earlier end
            snapshot = finished
        lessons = lessons_of(sequence, runner.stages)
        diverged = dict(snapshot.history.diverged)
        self._heads, self._classes = sequence.heads, None
        usual = checks.usual_scale(sequence[0].x_train.dtype)
        self._scale = None if sequence.scale == usual else sequence.scale
        self._progress = Progress(runner.engine, snapshot.learned, lessons, diverged)
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
        check_precision(self.training)
        heads, before = self._fitting_heads(), self._progress
        if not isinstance(task, str) or not task:
            raise FunclError(f"The name of a task must be a string with some text, not {task!r}.")
        x, scale = self._inputs(x, f"Task {task!r}, x")
        y = checks.check_labels(y, f"Task {task!r}, y", len(x))
        lessons = before.lessons if before else ()
        lesson = next_lesson(lessons, task, tuple(np.unique(y).tolist()), heads, self.classes)
        if before:
            x = shaped(x, scale, before.engine.problem, lesson)
        problem = before.engine.problem if before else self._first_room(x, scale, lesson)
        problem = room_for(problem, lesson, len(x))
        # A known task is remembered already, so more of it may be as little as there is.
        self.method.check(problem, {} if task in self.tasks else {task: len(x)})
        engine, learned = self._with_room(problem)
        diverged = self._note_diverged(self.diverged, learned, "before this task")
        data = lesson_data(problem, [*lessons, lesson], x, lesson.numbers(y))
        begun, reference = engine.begin(learned, data)
        for learned, _, report in engine.train(begun, reference, data):
            where = f"task {task!r}, before step {report.step:,}"
            diverged = self._note_diverged(diverged, learned, where)
            if on_report is not None:
                on_report(report)
        learned = engine.end(learned, reference, data)
        diverged = self._note_diverged(diverged, learned, f"task {task!r}, as it was finished")
        self._progress = Progress(engine, learned, (*lessons, lesson), diverged)
        return self

    # ------------------------------------------------------------------ predicting

    def predict(self, x: Any, *, task: str | None = None, moments: bool = True) -> Prediction:
        """Class probabilities and uncertainty; with heads="multi" say whose task the inputs are.

        Without `moments` the mean and variance of the function are left out, which takes less time.
        """
        progress = self._learnt()
        lesson = progress.lesson(self._named(progress, task))
        x, scale = self._inputs(x, "x", empty=True)
        x = shaped(x, scale, progress.engine.problem, lesson)
        alive = progress.alive
        if not any(alive):
            raise FunclError(
                f"Every seed diverged ({next(iter(progress.diverged.values()))}): nothing is left "
                f"to predict with; try a learning rate below {self.training.learning_rate}."
            )
        members = progress.predict(x, lesson)[alive][..., list(lesson.columns)]
        found = progress.moments(x, lesson) if moments else None
        if found is None:
            return Prediction(members, lesson.classes)
        mean, variance = (m[alive][..., : len(lesson.columns)] for m in found)
        return Prediction(members, lesson.classes, mean.mean(0), variance.mean(0) + mean.var(0))

    def evaluate(self, x: Any, y: Any, *, task: str | None = None) -> dict[str, float]:
        """Accuracy, log-likelihood, Brier score, calibration error and entropy on labelled data."""
        prediction = self.predict(x, task=task, moments=False)
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
        return {name: float(value) for name, value in means(sums).items()}

    # ------------------------------------------------------------------ saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder, so that learning can go on as if it had never stopped."""
        told = {"heads": self.heads, "classes": self.classes, "scale": self._scale}
        saving.write(path, self._learnt(), **told)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        network: Network | None = None,
        method: Method | None = None,
    ) -> Learner:
        """Read a saved learner. A network or method of your own is passed again, and checked."""
        payload = saving.read_settings(path)
        learner = cls(
            saving.rebuild(payload, "network", network, path),
            saving.rebuild(payload, "method", method, path),
            config.from_plain(payload["training"]),
            seeds=payload["seeds"],
            vary=payload["vary"],
            data_seed=payload["data_seed"],
            heads=payload["heads"],
            classes=payload["classes"],
            scale=payload["scale"],
        )
        check_precision(learner.training)
        settings = learner.network, learner.method, learner.training, learner.seeds
        learner._progress = saving.read_progress(path, payload, *settings)
        return learner

    # ------------------------------------------------------------------ how it is done

    def _inputs(self, x: Any, where: str, empty: bool = False) -> tuple[np.ndarray, float]:
        x, usual = checks.check_inputs(x, where, empty)
        return x, usual if self._scale is None else self._scale

    def _fitting_heads(self) -> str:
        if self.heads is None:
            raise FunclError(
                "Say which heads the tasks have before fit: Learner(..., heads='multi') for one "
                "per task, or heads='single', classes=[...] for one that all share."
            )
        if self.heads not in self.method.scenarios:
            raise FunclError(
                f"{self.method.name} cannot learn with {self.heads} heads; "
                f"it can with {' or '.join(self.method.scenarios)}."
            )
        if len(self.method.stages(2)) < 2:
            raise FunclError(
                f"{self.method.name} learns all tasks at once, so it cannot take them as they "
                "come: use run(sequence)."
            )
        return self.heads

    def _first_room(self, x: np.ndarray, scale: float, lesson: Lesson) -> Problem:
        """Room for a few tasks like the first one; a single head is as wide as it will ever be."""
        head = len(lesson.columns)
        return Problem(
            network=self.network,
            input_shape=x.shape[1:],
            input_dtype=str(x.dtype),
            scale=scale,
            outputs=head if self.heads == "single" else head * FIRST_STAGES,
            stages=FIRST_STAGES,
            head_width=head,
            rows=FIRST_ROWS,
            batch_size=self.training.batch_size,
            dtype=self.training.dtype,
        )

    def _with_room(self, problem: Problem) -> tuple[Engine, Learned]:
        before = self._progress
        if before and before.engine.problem == problem:
            return before.engine, before.learned
        engine = Engine(problem, self.method, self.training, self.seeds)
        return engine, grow(before.learned, engine) if before else engine.start()

    def _note_diverged(self, noted: dict[int, str], learned: Learned, where: str) -> dict[int, str]:
        """The seeds that have stopped by now; an error once none is left."""
        seeds = self.seeds.numbers
        alive = np.asarray(learned.alive)[: len(seeds)]
        stopped = {seed: where for seed, lives in zip(seeds, alive, strict=True) if not lives}
        noted = {**stopped, **noted}
        if len(noted) == len(seeds):
            raise FunclError(
                f"Every seed diverged ({next(iter(noted.values()))}): the learner is as it was "
                f"before this call; try a learning rate below {self.training.learning_rate}."
            )
        return noted

    def _learnt(self) -> Progress:
        if self._progress is None:
            raise FunclError("This learner has learnt nothing yet: call fit or run first.")
        check_precision(self.training)
        return self._progress

    def _named(self, progress: Progress, task: str | None) -> str:
        known = progress.tasks
        if task is not None:
            if task not in known:
                raise unknown("task", task, known)
            return task
        permuted = any(lesson.permutation is not None for lesson in progress.lessons)
        if len(known) > 1 and (self.heads == "multi" or permuted):
            raise FunclError(
                "Say which task the inputs are of: "
                f"predict(x, task=...), one of {', '.join(map(repr, known))}."
            )
        return known[-1]


def check_parts(network: Any, method: Any, training: Any) -> None:
    """Refuse what is not a network, a method or the settings of training."""
    if not isinstance(method, Method):
        raise FunclError(
            f"The method must be a value such as funcl.methods.SFSVI(), not {method!r}."
        )
    if network is None and method.needs_network:
        raise FunclError(f"{method.name} trains a network: pass one, such as funcl.MLP([256]).")
    if network is not None and not isinstance(network, Network):
        raise FunclError(
            f"The network must be a value such as funcl.MLP([256]), not {network!r}; wrap one of "
            "your own in funcl.networks.Foreign(init_fn, apply_fn)."
        )
    if training is not None and not isinstance(training, Training):
        raise FunclError(
            f"The training must be a value such as funcl.Training(epochs=50), not {training!r}."
        )


def check_classes(classes: Any, heads: str | None) -> tuple:
    """The classes of a single head as plain values, in the order in which they were given."""
    if heads != "single":
        raise FunclError("classes=[...] names the classes of a single head: add heads='single'.")
    checked = tuple(checks.check_labels(classes, "classes", len(classes)).tolist())
    if len(set(checked)) < max(len(checked), 2):
        raise FunclError(
            f"classes must name at least two classes, each of them once, not {list(checked)}."
        )
    return checked
