"""A learner on disk: settings and lessons in the manifest of a checkpoint, arrays beside it."""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import numpy as np

from funcl import config
from funcl.errors import FunclError
from funcl.networks.network import Network
from funcl.protocol import Method, Problem
from funcl.stream import Lesson, Progress, blank_task
from funcl.train import checkpoint
from funcl.train.engine import Engine
from funcl.train.training import Seeds, Training

SHAPES = ("input_shape", "input_dtype", "scale", "outputs", "stages", "head_width", "rows")
PROBE_ROWS = 4
PROBE_TOLERANCE = 1e-3

Path = str | os.PathLike[str]


def write(path: Path, progress: Progress, **settings: Any) -> None:
    """Write what was learnt, and the settings that it was learnt with."""
    engine = progress.engine
    payload = {
        "kind": "learner",
        "network": config.to_plain(engine.problem.network),
        "method": config.to_plain(engine.method),
        "training": config.to_plain(engine.training),
        "seeds": list(engine.seeds.numbers),
        "vary": list(engine.seeds.vary),
        "data_seed": engine.seeds.data_seed,
        **settings,
        "problem": {name: getattr(engine.problem, name) for name in SHAPES},
        "lessons": [
            {
                "task": lesson.task,
                "classes": lesson.classes,
                "columns": lesson.columns,
                "stage": lesson.stage,
                "permuted": None if lesson.permutation is None else len(lesson.permutation),
            }
            for lesson in progress.lessons
        ],
        "diverged": {str(seed): where for seed, where in progress.diverged.items()},
    }
    arrays = {
        "learned": engine.kept(progress.learned),
        "permutations": [lesson.permutation for lesson in progress.lessons],
        "probe": None if _rebuilt(payload) else _probe(progress),
    }
    checkpoint.save(path, arrays, payload)


def read_settings(path: Path) -> dict[str, Any]:
    """What `write` was told, as plain values."""
    payload = checkpoint.load_manifest(path)
    if payload.get("kind") != "learner":
        raise FunclError(f"{path} holds a {payload.get('kind')}, not a saved learner.")
    return payload


def rebuild(payload: dict[str, Any], part: str, passed: Any, path: Path) -> Any:
    """The stored network or method; one of the user's own has to be passed again."""
    stored = payload[part]
    if config.is_storable(stored):
        if passed is not None and config.to_plain(passed) != stored:
            raise FunclError(
                f"The {part} passed to load is not the one that {path} was saved with, "
                f"{config.from_plain(stored)}: leave it out, it is read from there."
            )
        return config.from_plain(stored)
    if passed is None:
        raise FunclError(
            f"{path} was saved with a {part} of your own ({stored[config.TYPE]}): "
            f"pass it again, Learner.load(path, {part}=...)."
        )
    return passed


def read_progress(
    path: Path,
    payload: dict[str, Any],
    network: Network | None,
    method: Method,
    training: Training,
    seeds: Seeds,
) -> Progress:
    """What was learnt; a network or method that was passed again has to repeat its predictions."""
    shapes: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in payload["problem"].items()
    }
    problem = Problem(
        network=network, batch_size=training.batch_size, dtype=training.dtype, **shapes
    )
    engine = Engine(problem, method, training, seeds)
    lengths = [lesson["permuted"] for lesson in payload["lessons"]]
    probe = jax.ShapeDtypeStruct((len(seeds.numbers), PROBE_ROWS, problem.outputs), problem.dtype)
    templates = {
        "learned": engine.templates(blank_task(problem))[0],
        "permutations": [n and jax.ShapeDtypeStruct((n,), np.int32) for n in lengths],
        "probe": None if _rebuilt(payload) else probe,
    }
    arrays = checkpoint.load_arrays(path, templates)
    lessons = tuple(
        Lesson(d["task"], tuple(d["classes"]), tuple(d["columns"]), d["stage"], permutation)
        for d, permutation in zip(payload["lessons"], arrays["permutations"], strict=True)
    )
    diverged = {int(seed): where for seed, where in payload["diverged"].items()}
    progress = Progress(engine, engine.restored(arrays["learned"]), lessons, diverged)
    if arrays["probe"] is not None:
        difference = np.max(np.abs(_probe(progress) - arrays["probe"]))
        if not difference <= PROBE_TOLERANCE:
            raise FunclError(
                f"The network or method passed to load is not the one that {path} was saved with: "
                f"its predictions differ by up to {difference:.2g}."
            )
    return progress


def _rebuilt(payload: dict[str, Any]) -> bool:
    return all(config.is_storable(payload[part]) for part in ("network", "method"))


def _probe(progress: Progress) -> np.ndarray:
    """Predictions for a fixed input."""
    problem = progress.engine.problem
    x = np.linspace(0, 1, PROBE_ROWS * math.prod(problem.input_shape)) / problem.scale
    x = x.reshape(PROBE_ROWS, *problem.input_shape).astype(problem.input_dtype)
    return progress.predict(x, progress.lessons[0])
