"""A sequence of classification tasks: plain arrays, and which output columns each task owns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np

from funcl.checked import seed_number
from funcl.errors import FunclError
from funcl.tasks import checks

PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """One task: its data and its head.

    Inputs keep the dtype they are stored in. Labels are int32 numbers of output columns: the
    class `classes[i]` of the user is the column `columns[i]`. With a single head the columns
    are all columns, whether or not this task shows every class. Inputs of a task with a
    `permutation` are flattened and reordered, `x.reshape(len(x), -1)[:, permutation]`, where
    they are used; the arrays themselves can thus be shared between tasks. All arrays are
    read-only.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple
    columns: tuple[int, ...]
    permutation: np.ndarray | None = None

    def __repr__(self) -> str:
        sizes = f"{len(self.x_train):,} training and {len(self.x_test):,} test rows"
        return f"<Task {self.name!r}: {sizes}, {len(self.columns)} columns>"


@dataclass(frozen=True, eq=False, repr=False)
class TaskSequence:
    """Tasks in the order in which they are learnt.

    `heads` is "multi" (each task has its own output columns, and it is known at prediction
    which task an input belongs to) or "single" (all tasks share all columns). Inputs are cast
    to float and multiplied by `scale`. `split` says what the test parts are: the test data, or
    rows held out of the training data by `validation`.
    """

    name: str
    tasks: tuple[Task, ...]
    heads: str
    scenario: str
    scale: float
    data_seed: int | None
    split: str = "test"

    @classmethod
    def from_arrays(
        cls,
        tasks: Iterable[Any],
        *,
        heads: str,
        names: Iterable[str] | None = None,
        name: str = "custom",
        scale: float | None = None,
        data_seed: int | None = None,
    ) -> "TaskSequence":
        """Make a sequence of one `(x_train, y_train, x_test, y_test)` per task, and check it.

        Labels are whole numbers or strings. With heads="multi" every task gets a column for
        each of its own classes; with heads="single" the classes of all tasks together, sorted,
        are the columns. Inputs are used as they are, without a copy, unless their dtype has to
        change: booleans become uint8, int64 becomes int32, float64 becomes float32. `scale` is
        1/255 for uint8 inputs and 1 otherwise, unless given. An array that several tasks share
        stays one array. `data_seed` says with which seed the arrays were drawn, if with any.

        >>> x, y = np.zeros((4, 2)), ["cat", "dog", "cat", "dog"]
        >>> sequence = TaskSequence.from_arrays([(x, y, x, y), (x, y, x, y)], heads="multi")
        >>> sequence
        <TaskSequence 'custom': 2 tasks, multi heads, task-incremental, 4 columns>
        >>> sequence[1].classes, sequence[1].columns, sequence[1].y_train.tolist()
        (('cat', 'dog'), (2, 3), [2, 3, 2, 3])
        """
        heads = checks.check_heads(heads)
        if data_seed is not None:
            data_seed = seed_number("data_seed", data_seed)
        given = _unpack(tasks)
        labels = _name_tasks(names, len(given))
        inputs, default_scale = _check_all_inputs(given, labels)
        targets = _check_all_labels(given, labels)
        shown = [tuple(np.unique(y_train).tolist()) for y_train, _ in targets]
        classes, columns = _assign_columns(shown, labels, heads)
        encoded = _encode(given, targets, classes, columns)
        scenario = "task-incremental"
        if heads == "single":
            scenario = "domain-incremental" if len(set(shown)) == 1 else "class-incremental"
        return cls(
            name=name,
            tasks=tuple(
                Task(label, x_train, y_train, x_test, y_test, own_classes, own_columns)
                for label, (x_train, x_test), (y_train, y_test), own_classes, own_columns in zip(
                    labels, inputs, encoded, classes, columns, strict=True
                )
            ),
            heads=heads,
            scenario=scenario,
            scale=default_scale if scale is None else checks.check_scale(scale),
            data_seed=data_seed,
        )

    @property
    def outputs(self) -> int:
        """The number of output columns of all tasks together."""
        return 1 + max(max(task.columns) for task in self.tasks)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example as a network sees it: flat where pixels are permuted."""
        shape = self.tasks[0].x_train.shape[1:]
        permuted = any(task.permutation is not None for task in self.tasks)
        return (int(np.prod(shape)),) if permuted else shape

    def first(self, count: int) -> "TaskSequence":
        """Return the first `count` tasks, with the columns they have here."""
        if count not in range(1, len(self) + 1):
            raise FunclError(
                f"{self.name} has {len(self)} tasks, so its first {count!r} cannot be taken."
            )
        return replace(self, tasks=self.tasks[:count])

    def validation(self, fraction: float = 0.1, seed: int = 0) -> "TaskSequence":
        """Return the sequence with rows of its training data held out in place of the test data.

        Of every class of every task `fraction` of the training rows is held out, at least one
        and never all. The same seed holds the same rows out. Tasks that share their arrays share
        the smaller ones too.
        """
        seed = seed_number("seed", seed)
        if not isinstance(fraction, Real) or not 0 < fraction < 1:
            raise FunclError(f"fraction must lie between 0 and 1, not {fraction!r}.")
        divided: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        tasks = []
        for position, task in enumerate(self.tasks):
            key = id(task.x_train), id(task.y_train)
            if key not in divided:
                held_out = _hold_out(task, fraction, np.random.default_rng([seed, position]))
                divided[key] = {
                    "x_train": checks.read_only(task.x_train[~held_out]),
                    "y_train": checks.read_only(task.y_train[~held_out]),
                    "x_test": checks.read_only(task.x_train[held_out]),
                    "y_test": checks.read_only(task.y_train[held_out]),
                }
            tasks.append(replace(task, **divided[key]))
        return replace(self, tasks=tuple(tasks), split="validation")

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, position: int) -> Task:
        return self.tasks[position]

    def __repr__(self) -> str:
        return (
            f"<TaskSequence {self.name!r}: {len(self)} tasks, {self.heads} heads,"
            f" {self.scenario}, {self.outputs} columns>"
        )


def _unpack(tasks: Iterable[Any]) -> list[tuple[Any, ...]]:
    wanted = f"({', '.join(PARTS)})"
    try:
        given = list(tasks)
    except TypeError:
        raise FunclError(
            f"tasks must be a list with one {wanted} per task, not {type(tasks).__name__}."
        ) from None
    if not given:
        raise FunclError(f"There are no tasks: give a list with one {wanted} per task.")
    for number, arrays in enumerate(given, start=1):
        if not isinstance(arrays, tuple | list) or len(arrays) != len(PARTS):
            kind = type(arrays).__name__
            size = f" of {len(arrays)}" if isinstance(arrays, tuple | list) else ""
            raise FunclError(f"Task {number} must be four arrays {wanted}, not a {kind}{size}.")
    return [tuple(arrays) for arrays in given]


def _name_tasks(names: Iterable[str] | None, count: int) -> list[str]:
    if names is None:
        return [f"task {number}" for number in range(1, count + 1)]
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise FunclError(f"names must be a list of {count} strings, not {names!r}.")
    given = list(names)
    if len(given) != count:
        raise FunclError(f"There are {len(given)} names for {count} tasks; give one for each.")
    for name in given:
        if not isinstance(name, str) or not name:
            raise FunclError(f"The name of a task must be a string with some text, not {name!r}.")
    if repeated := [name for name in dict.fromkeys(given) if given.count(name) > 1]:
        raise FunclError(f"Two tasks are called {repeated[0]!r}; names must differ.")
    return given


def _where(number: int, name: str, part: str) -> str:
    return f"Task {number} ({name}), {part}"


def _check_all_inputs(
    given: list[tuple[Any, ...]], names: list[str]
) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Check every task's inputs, and that all can go through one network at one scale."""
    known: dict[int, tuple[np.ndarray, float]] = {}
    checked = []
    reference = None
    for number, (name, arrays) in enumerate(zip(names, given, strict=True), start=1):
        pair = []
        for part, values in zip(PARTS[::2], arrays[::2], strict=True):
            where = _where(number, name, part)
            if id(values) not in known:
                array, scale = checks.check_inputs(values, where)
                known[id(values)] = checks.read_only(array), scale
            array, scale = known[id(values)]
            reference = reference or (where, array, scale)
            first_where, first, first_scale = reference
            if array.shape[1:] != first.shape[1:]:
                raise FunclError(
                    f"{where}: rows have the shape {array.shape[1:]}, but those of"
                    f" {first_where} {first.shape[1:]}; all tasks go through one network, so"
                    " bring them to one shape."
                )
            if (array.dtype, scale) != (first.dtype, first_scale):
                raise FunclError(
                    f"{where}: inputs are {_dtype(values)}, but those of {first_where} are"
                    f" {_dtype(given[0][0])}; give all tasks the same dtype and scale."
                )
            pair.append(array)
        checked.append(tuple(pair))
    assert reference is not None
    return checked, reference[2]


def _dtype(values: Any) -> np.dtype:
    return np.asarray(values).dtype


def _check_all_labels(
    given: list[tuple[Any, ...]], names: list[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Check every task's labels, and that no test label is new."""
    checked = []
    for number, (name, arrays) in enumerate(zip(names, given, strict=True), start=1):
        x_train, y_train, x_test, y_test = arrays
        train = checks.check_labels(y_train, _where(number, name, "y_train"), len(x_train))
        test = checks.check_labels(y_test, _where(number, name, "y_test"), len(x_test))
        shown = set(np.unique(train).tolist())
        if new := [label for label in np.unique(test).tolist() if label not in shown]:
            raise FunclError(
                f"{_where(number, name, 'y_test')}: the training part never shows"
                f" {_list(new)}; drop those rows or train on that class too."
            )
        checked.append((train, test))
    return checked


def _assign_columns(
    shown: list[tuple], names: list[str], heads: str
) -> tuple[list[tuple], list[tuple[int, ...]]]:
    """Give every task its classes and the output columns they stand for."""
    if heads == "single":
        union = {label for classes in shown for label in classes}
        if len({type(label) for label in union}) > 1:
            raise FunclError(
                "Some tasks have strings as labels and others numbers; with a single head all"
                " tasks need the same kind."
            )
        if len(union) == 1:
            raise FunclError(
                f"All tasks together show one class only, {_list(union)}; a head needs two."
            )
        classes = tuple(sorted(union))
        return [classes] * len(shown), [tuple(range(len(classes)))] * len(shown)
    for number, (name, classes) in enumerate(zip(names, shown, strict=True), start=1):
        if len(classes) == 1:
            raise FunclError(
                f"{_where(number, name, 'y_train')}: one class only, {_list(classes)}, and a head"
                " of one class cannot be learnt; join the task with another, or use heads='single'."
            )
    ends = list(accumulate(map(len, shown)))
    return shown, [
        tuple(range(end - len(classes), end)) for classes, end in zip(shown, ends, strict=True)
    ]


def _list(labels: Iterable[Any], most: int = 5) -> str:
    labels = list(labels)
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    noun = "label" if len(labels) == 1 else "labels"
    return f"{noun} {', '.join(repr(label) for label in labels[:most])}{more}"


def _encode(
    given: list[tuple[Any, ...]],
    targets: list[tuple[np.ndarray, np.ndarray]],
    classes: list[tuple],
    columns: list[tuple[int, ...]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Turn labels into column numbers; one array of labels under one head stays one array."""
    known: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    encoded = []
    for arrays, pair, own_classes, own_columns in zip(
        given, targets, classes, columns, strict=True
    ):
        column_of = dict(zip(own_classes, own_columns, strict=True))
        for values, labels in zip(arrays[1::2], pair, strict=True):
            if (id(values), own_columns) not in known:
                present, positions = np.unique(labels, return_inverse=True)
                numbers = np.array([column_of[label] for label in present.tolist()], np.int32)
                known[id(values), own_columns] = checks.read_only(numbers[positions])
        encoded.append(tuple(known[id(values), own_columns] for values in arrays[1::2]))
    return encoded


def _hold_out(task: Task, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Mark the rows of the training data to hold out, class by class."""
    held_out = np.zeros(len(task.y_train), bool)
    for column in np.unique(task.y_train):
        rows = np.flatnonzero(task.y_train == column)
        if len(rows) < 2:
            label = task.classes[task.columns.index(int(column))]
            raise FunclError(
                f"Task {task.name}: class {label!r} has one training row only, too few to hold one"
                " out; drop the class or give it more rows."
            )
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        held_out[generator.choice(rows, count, replace=False)] = True
    return held_out
