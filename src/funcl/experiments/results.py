"""Measured results: one JSON per sequence, method and variant, beside the published numbers."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from funcl.disk import replace_file, writing
from funcl.errors import FunclError
from funcl.evaluate import metrics
from funcl.evaluate.history import History, read_json

SCHEMA = 1
# Every key of a result, with the types that its value may have.
KEYS: dict[str, tuple[type, ...]] = {
    "sequence": (str,),
    "method": (str,),
    "variant": (str, type(None)),
    "preset": (bool,),
    "heads": (str,),
    "scenario": (str,),
    "split": (str,),
    "tasks": (list,),
    "settings": (dict,),
    "tuning": (dict, type(None)),
    "seeds": (list,),
    "data_seed": (int,),
    "accuracy": (list,),
    "mean": (int, float, type(None)),
    "standard_error": (int, float, type(None)),
    "matrix": (list,),
    "metrics": (dict,),
    "published": (list,),
    "accept": (list, type(None)),
    "train_seconds": (int, float),
    "compile_seconds": (int, float),
    "evaluate_seconds": (int, float),
    "peak_memory": (int, type(None)),
    "seeds_together": (int,),
    "programs_from_cache": (int,),
    "precision": (str,),
    "diverged": (dict,),
    "command": (str, type(None)),
    "commit": (str, type(None)),
    "hardware": (str,),
    "versions": (dict,),
}


def result(
    history: History,
    *,
    measured: Mapping[str, Any],
    preset: bool,
    tuning: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A result from a history with its settings.

    `measured` holds what the history does not: peak_memory, seeds_together (repeats in one
    program), programs_from_cache (which took next to no compiling), command, commit, hardware,
    versions. Accuracies and the matrix are in per cent; a seed that diverged is null. The seconds
    are sums over all seeds.
    """
    kept = history.without_diverged()
    final = 100 * metrics.final(kept.accuracy)
    mean, error = metrics.mean_and_error(final)
    matrix, _ = metrics.mean_and_error(100 * kept.accuracy)
    name = history.sequence, history.method, history.variant
    value = {
        "schema": SCHEMA,
        "sequence": history.sequence,
        "method": history.method,
        "variant": history.variant,
        "preset": preset,
        "heads": history.heads,
        "scenario": history.scenario,
        "split": history.split,
        "tasks": list(history.tasks),
        "settings": history.settings,
        "tuning": tuning,
        "seeds": list(history.seeds),
        "data_seed": history.data_seed,
        "accuracy": _plain(final),
        "mean": _plain(mean),
        "standard_error": _plain(error),
        "matrix": _plain(matrix),
        "metrics": {
            metric.name: {
                "mean": _plain(np.asarray(metric.mean)),
                "standard_error": _plain(np.asarray(metric.standard_error)),
                "note": metric.note,
            }
            for metric in history.metrics.values()
        },
        "published": published(*name) if preset else [],
        "accept": accepted(*name) if preset else None,
        **{f"{kind}_seconds": round(spent, 3) for kind, spent in history.seconds.items()},
        "precision": history.settings["training"]["precision"],
        "diverged": {str(seed): where for seed, where in history.diverged.items()},
        **measured,
    }
    return _checked(value, "the result")


def path_of(folder: str | Path, value: Mapping[str, Any]) -> Path:
    """Where a result belongs: <sequence>/<method>[-<variant>].json."""
    variant = f"-{value['variant']}" if value["variant"] else ""
    return Path(folder) / value["sequence"] / f"{value['method']}{variant}.json"


def write_result(folder: str | Path, value: Mapping[str, Any]) -> Path:
    """Write a result where it belongs, and return where that is."""
    path = path_of(folder, _checked(dict(value), "the result"))
    text = json.dumps({"schema": SCHEMA} | dict(value), indent=1, allow_nan=False)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode() + b"\n")
    return path


def read_result(path: str | Path) -> dict[str, Any]:
    """Read a result and check that it is one."""
    return _checked(read_json(path, "result", SCHEMA), str(path))


def read_results(folder: str | Path) -> list[dict[str, Any]]:
    """All results under a folder, by path."""
    return [read_result(path) for path in sorted(Path(folder).glob("*/*.json"))]


def published(sequence: str, method: str, variant: str | None = None) -> list[dict[str, Any]]:
    """Published numbers of a run, the one to compare with first.

    >>> published("split-mnist", "sfsvi")
    [{'mean': 99.54, 'standard_error': 0.04, 'source': 'paper, Table 1'}]
    """
    numbers = _published().get((sequence, method, variant), {}).get("numbers", [])
    return [{"mean": None, "standard_error": None, **number} for number in numbers]


def accepted(sequence: str, method: str, variant: str | None = None) -> list[float | None] | None:
    """The lowest and highest mean that count as reproduced (None: no limit); None: no such range.

    >>> accepted("split-mnist", "sfsvi"), accepted("toy2d", "sfsvi")
    ([99.44, 99.64], [95.0, None])
    """
    entry = _published().get((sequence, method, variant), {})
    if "at_least" in entry:
        return [entry["at_least"], None]
    if "within" not in entry:
        return None
    centre, within = entry["numbers"][0]["mean"], entry["within"]
    return [round(centre - within, 4), round(centre + within, 4)]


def is_accepted(value: Mapping[str, Any]) -> bool | None:
    """Whether a result lies in the range that counts as reproduced; None where none is given."""
    if value["accept"] is None or value["mean"] is None:
        return None
    low, high = value["accept"]
    return low <= value["mean"] and (high is None or value["mean"] <= high)


@cache
def _published() -> dict[tuple[str, str, str | None], dict[str, Any]]:
    text = files("funcl.experiments").joinpath("published.toml").read_text("utf-8")
    runs = tomllib.loads(text)["run"]
    return {(run["sequence"], run["method"], run.get("variant")): run for run in runs}


def _checked(value: dict[str, Any], where: str) -> dict[str, Any]:
    for key, kinds in KEYS.items():
        if key not in value:
            raise FunclError(f"{where} is no complete result: {key} is missing; measure it again.")
        if not isinstance(value[key], kinds):
            raise FunclError(
                f"{where} is no sound result: {key} is {value[key]!r}; measure it again."
            )
    if len(value["accuracy"]) != len(value["seeds"]):
        raise FunclError(
            f"{where} is no sound result: {len(value['accuracy'])} accuracies for "
            f"{len(value['seeds'])} seeds; measure it again."
        )
    return value


def _plain(values: Any) -> Any:
    """Numbers to four decimals, null where there is none."""
    if isinstance(values, np.ndarray | np.generic):
        values = values.tolist()
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return round(values, 4) if math.isfinite(values) else None
