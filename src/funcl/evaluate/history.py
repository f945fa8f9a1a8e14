"""The record of a run: one tensor per score over seeds and tasks, and what led to it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from funcl.disk import replace_file, writing
from funcl.errors import FunclError
from funcl.evaluate import metrics
from funcl.evaluate.metrics import Floats, Metric

if TYPE_CHECKING:
    import pandas

    from funcl.evaluate.scores import Scores

SCHEMA = 1
SCORES = ("accuracy", "nll", "brier", "ece", "entropy")
BIN_SHAPE = (15, 3)

_NOT_ALL = 'not measured: needs the accuracies after every task (evaluate="all")'
_NOT_ALONE = "not measured: needs a run of the same method on every task alone (separate)"


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Scores [seed, after task, on task] (NaN: not evaluated) and the settings behind them.

    `bins` [seed, task, 15, 3] are the calibration bins after the last evaluated task, `seconds` is
    by kind ("train", "compile", "evaluate"), `diverged` says where a seed stopped, and
    `independent_accuracy` [seed, task] is that of every task learned alone, if it was measured.
    A new history comes from `blank`, is filled by `with_row`, and is never changed in place.
    """

    sequence: str
    method: str
    variant: str | None
    heads: str
    scenario: str
    split: str
    tasks: list[str]
    seeds: list[int]
    data_seed: int
    accuracy: Floats
    nll: Floats
    brier: Floats
    ece: Floats
    entropy: Floats
    bins: Floats
    seconds: dict[str, float] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    independent_accuracy: Floats | None = None

    @classmethod
    def blank(cls, *, tasks: Sequence[str], seeds: Sequence[int], **about: Any) -> "History":
        """Make a history in which nothing is evaluated yet; `about` are the other fields."""
        shape = (len(seeds), len(tasks))
        tensors = {name: np.full((*shape, len(tasks)), np.nan) for name in SCORES}
        bins = np.full((*shape, *BIN_SHAPE), np.nan)
        return cls(tasks=list(tasks), seeds=list(seeds), bins=bins, **tensors, **about)

    def __repr__(self) -> str:
        accuracy = self.metrics["accuracy"]
        known = np.isfinite(accuracy.mean)
        reached = f"accuracy {100 * accuracy.mean:.2f} %" if known else "not evaluated"
        size = f"{len(self.tasks)} tasks, {len(self.seeds)} seeds"
        return f"<History: {self.method} on {self.sequence}, {size}, {reached}>"

    def with_row(self, after: int, scores: "Mapping[int, Scores]") -> "History":
        """Add a whole evaluation: the scores on each task (its number from 0) after task `after`.

        Each value is a `Scores` with a leading seed axis. The bins become those of this row. A seed
        that has diverged, or whose probabilities were not finite, stays NaN.
        """
        tensors = {name: getattr(self, name).copy() for name in SCORES}
        bins = np.full_like(self.bins, np.nan)
        stopped = np.isin(self.seeds, list(self.diverged))
        for on, sums in scores.items():
            for name, values in metrics.means(sums).items():
                tensors[name][:, after, on] = np.where(stopped, np.nan, values)
            unknown = np.isnan(tensors["accuracy"][:, after, on])
            bins[:, on] = np.where(unknown[:, None, None], np.nan, np.asarray(sums.bins))
        return replace(self, **tensors, bins=bins)

    def with_independent(self, separate: "History") -> "History":
        """Add what the tasks reach alone, from a run of `Separate` of the same method.

        That makes forward transfer known. Every seed needs its counterpart.
        """
        missing = sorted(set(self.seeds) - set(separate.seeds))
        if self.tasks != separate.tasks or missing:
            what = f"seeds {missing} are missing" if missing else f"its tasks are {separate.tasks}"
            raise FunclError(f"The run on every task alone does not fit this one: {what}.")
        rows = [separate.seeds.index(seed) for seed in self.seeds]
        own = np.diagonal(separate.without_diverged().accuracy, axis1=1, axis2=2)
        return replace(self, independent_accuracy=own[rows])

    def without_diverged(self) -> "History":
        """Return the history with every score of the diverged seeds as NaN.

        What a seed reached before it stopped would otherwise pass for a result of the whole run.
        """
        stopped = np.isin(self.seeds, list(self.diverged))
        if not stopped.any():
            return self
        tensors = {name: getattr(self, name).copy() for name in (*SCORES, "bins")}
        for tensor in tensors.values():
            tensor[stopped] = np.nan
        return replace(self, **tensors)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Every metric by name; accuracies and transfers are fractions, nll and entropy nats.

        Seeds that diverged are left out and named in the note.
        """
        kept = self.without_diverged()
        R = kept.accuracy
        independent = self.independent_accuracy
        if independent is None:
            independent = np.full(R.shape[:2], np.nan)
        row = metrics.last_row(R)
        note = ""
        if row is None:
            lost = len(self.diverged) == len(self.seeds)
            missing = "every seed diverged" if lost else "not measured: no evaluation"
            transfer = alone = missing
        else:
            missing = "not measured: no evaluation"
            transfer = _NOT_ALL if row else "not defined: needs two tasks"
            known = np.isfinite(independent[:, 1 : row + 1]).any()
            alone = transfer if known or not row else _NOT_ALONE
            if row + 1 < len(self.tasks):
                note = f"after {row + 1} of {len(self.tasks)} tasks"

        def summary(name: str, per_seed: Floats, missing: str) -> Metric:
            return metrics.summarize(name, per_seed, self.seeds, missing=missing, note=note)

        found = [
            summary("accuracy", metrics.final(R), missing),
            summary("forgetting", metrics.forgetting(R), transfer),
            summary("backward_transfer", metrics.backward_transfer(R), transfer),
            summary("forward_transfer", metrics.forward_transfer(R, independent), alone),
        ]
        found += [summary(name, metrics.final(getattr(kept, name)), missing) for name in SCORES[1:]]
        return {metric.name: metric for metric in found}

    def to_frame(self) -> "pandas.DataFrame":
        """One line per seed and evaluated pair; `after` and `on` are ordered categories (names)."""
        import pandas

        seed, after, on = np.nonzero(np.isfinite(self.accuracy))
        frame = pandas.DataFrame({"seed": np.asarray(self.seeds, int)[seed]})
        for name, number in (("after", after), ("on", on)):
            frame[name] = pandas.Categorical.from_codes(number, self.tasks, ordered=True)
        for name in SCORES:
            frame[name] = getattr(self, name)[seed, after, on]
        return frame

    def save(self, path: str | Path) -> None:
        """Write JSON (NaN as null) under a temporary name, then rename: never half a file."""
        text = json.dumps(self.to_plain(), allow_nan=False)
        with writing(path):
            replace_file(Path(path), text.encode() + b"\n")

    def to_plain(self) -> dict[str, Any]:
        """Return the history as numbers, strings, lists and dicts that JSON holds exactly."""
        return {"schema": SCHEMA} | _plain(asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read what `save` wrote."""
        return cls.from_plain(read_json(path, "history", SCHEMA), str(path))

    @classmethod
    def from_plain(cls, stored: Mapping[str, Any], path: str) -> "History":
        """Rebuild what `to_plain` gave; `path` is named where something is wrong."""
        try:
            known = {item.name: stored[item.name] for item in fields(cls)}
            known["diverged"] = {int(seed): str(where) for seed, where in known["diverged"].items()}
            shape = (len(known["seeds"]), len(known["tasks"]))
            for name in SCORES:
                known[name] = _array(known[name], (*shape, shape[1]))
            known["bins"] = _array(known["bins"], (*shape, *BIN_SHAPE))
            if known["independent_accuracy"] is not None:
                known["independent_accuracy"] = _array(known["independent_accuracy"], shape)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FunclError(
                f"The history {path} is damaged ({type(error).__name__}: {error}): "
                "restore it from a copy or repeat the run."
            ) from error
        return cls(**known)


def read_json(path: str | Path, kind: str, newest: int) -> dict[str, Any]:
    """Read a JSON object with a schema number up to `newest`; every failure is one sentence."""
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FunclError(
            f"The {kind} {path} cannot be read ({error.strerror}): check the path."
        ) from error
    except ValueError as error:
        raise FunclError(
            f"The {kind} {path} is damaged ({error}): restore it from a copy or repeat the run."
        ) from error
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if not isinstance(schema, int):
        raise FunclError(f"{path} is no {kind} of funcl (it has no schema number): check the path.")
    if schema > newest:
        raise FunclError(
            f"The {kind} {path} was written by a newer funcl (schema {schema}, this one reads up "
            f"to {newest}): upgrade funcl to read it."
        )
    return stored


def _plain(value: Any) -> Any:
    """Turn a value into what JSON holds exactly: arrays into lists, NaN and infinity into null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _array(value: Any, shape: tuple[int, ...]) -> Floats:
    array = np.array(value, dtype=np.float64)  # null becomes NaN
    if array.shape != shape:
        raise ValueError(f"an array has shape {array.shape} instead of {shape}")
    return array
