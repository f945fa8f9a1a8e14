"""What a number depends on, as a hash: data, settings, seeds, code, jax and the kind of device.

Fields of settings say by `first_read` in their metadata at which task they are read first: 1 unless
said otherwise, and None where no training reads them. So states after the first tasks are the same
for runs that differ in what only later tasks read.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jax

from funcl.config import is_storable, to_plain
from funcl.errors import FunclError
from funcl.tasks.sequence import TaskSequence
from funcl.train.run import Runner
from funcl.train.training import Training

PACKAGE = Path(__file__).parents[1]
# What shows numbers or times them, and has no part in what they are.
SHOWING = ("bench.py", "cli.py", "commands", "floor.py", "report")


def cell_key(runner: Runner) -> str:
    """A hash of all that a cell's numbers depend on, its seed aside."""
    engine = runner.engine
    return _hash(
        {
            **_common(runner),
            "method": to_plain(engine.method),
            "training": to_plain(engine.training),
            "evaluate": runner.evaluate,
        }
    )


def state_key(runner: Runner, stage: int) -> str:
    """A hash of all that the state at the end of a stage (from 0) depends on."""
    engine = runner.engine
    return _hash(
        {
            **_common(runner),
            "method": read_by(engine.method, stage + 1),
            "training": paces(engine.training, stage, engine.method.always_first),
            "seeds": engine.seeds.numbers,
            "stage": stage,
        }
    )


def read_by(value: Any, task: int) -> Any:
    """The settings that have been read when a task (from 1) is trained, as plain values.

    >>> from funcl.methods import SFSVI
    >>> "coreset_size" in read_by(SFSVI(), 1), "coreset_size" in read_by(SFSVI(), 2)
    (False, True)
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_plain(value)
    read = {"type": type(value).__name__}
    for field in dataclasses.fields(value):
        first = field.metadata.get("first_read", 1)
        if first is not None and first <= task:
            read[field.name] = read_by(getattr(value, field.name), task)
    return read


def paces(training: Training, stage: int, always_first: bool) -> dict[str, Any]:
    """The settings of training as the stages up to this one read them."""
    read = read_by(training, stage + 1)
    for name in ("epochs", "learning_rate", "first_epochs", "first_learning_rate"):
        read.pop(name)
    stages = [0 if always_first else s for s in range(stage + 1)]
    read["paces"] = [(training.epochs_of(s), training.rate(s)) for s in stages]
    return read


@lru_cache(maxsize=8)
def fingerprint(sequence: TaskSequence) -> str:
    """A hash of the sequence's arrays: it differs where its data do."""
    known: dict[int, bytes] = {}  # tasks may share arrays

    def digest(array: Any) -> bytes:
        if id(array) not in known:
            described = f"{array.dtype}{array.shape}".encode()
            known[id(array)] = hashlib.sha256(described + array.tobytes()).digest()
        return known[id(array)]

    whole = hashlib.sha256()
    for task in sequence:
        for array in (task.x_train, task.y_train, task.x_test, task.y_test, task.permutation):
            whole.update(b"" if array is None else digest(array))
    return whole.hexdigest()


@cache
def code() -> str:
    """A hash of the package's code: of what it does, not of how it is explained."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if not _only_shows(path)]
    return _hash([_meaning(path) for path in files])


def _only_shows(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[0] in SHOWING


def _meaning(file: Path) -> str:
    """A module's syntax without its comments and docstrings."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            first.value.value = ""
    return ast.dump(tree)


def _common(runner: Runner) -> dict[str, Any]:
    sequence, engine, network = runner.sequence, runner.engine, runner.problem.network
    settings = to_plain({"network": network, "method": engine.method})
    if not is_storable(settings):
        raise FunclError(
            "Results of a network or method of your own cannot be kept in the store, which would "
            "not know it again: use funcl.Learner, whose History you can save."
        )
    return {
        "code": code(),
        "device": [jax.__version__, jax.local_devices()[0].device_kind],
        "sequence": [sequence.name, sequence.heads, sequence.split, sequence.scale],
        "columns": [task.columns for task in sequence],
        "data": fingerprint(sequence),
        "network": settings["network"],
        "vary": sorted(engine.seeds.vary),
        "data_seed": engine.seeds.data_seed,
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
