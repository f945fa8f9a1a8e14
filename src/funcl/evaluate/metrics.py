"""Metrics as pure functions of one tensor.

R[s, t, i] is the accuracy (or another score) of seed s on task i after training task t, all counted
from 0 in the arrays and from 1 in the formulae; NaN says "not evaluated". T is the last task after
which anything was evaluated. Every function returns one number per seed, NaN where the entries that
its formula needs are missing; `summarize` turns these into a mean with its standard error.
Accuracies are fractions; tables and figures print them in per cent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from funcl.evaluate.scores import Scores

# [seed, after, on] and so on; the shapes stand in the docstrings.
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Metric:
    """One metric: mean and standard error over seeds, and every seed's value.

    `standard_error` is the population standard deviation (ddof 0) over √n, as in the published
    tables, and NaN for a single seed. `note` says what is missing and why.
    """

    name: str
    mean: float
    standard_error: float
    per_seed: tuple[float, ...]
    note: str = ""


def last_row(R: Floats) -> int | None:
    """Return the last task after which anything was evaluated (None: never)."""
    evaluated = np.isfinite(R).any(axis=(0, 2))
    return int(np.flatnonzero(evaluated)[-1]) if evaluated.any() else None


def after_each_task(R: Floats) -> Floats:
    """Mean over the tasks so far: A_t = 1/t Σ_{i≤t} R_{t,i}, as [seed, t].

    >>> R = np.array([[[0.9, np.nan], [0.7, 0.8]]])
    >>> after_each_task(R).round(3).tolist()
    [[0.9, 0.75]]
    """
    return np.stack([R[:, t, : t + 1].mean(axis=1) for t in range(R.shape[1])], axis=1)


def final(R: Floats) -> Floats:
    """Mean over tasks of the last evaluated row: 1/T Σ_{i≤T} R_{T,i}.

    Of accuracies this is the headline number of the paper's tables; of the calibration error it is
    the mean of every task's own error.
    """
    row = last_row(R)
    return np.full(R.shape[0], np.nan) if row is None else after_each_task(R)[:, row]


def forgetting(R: Floats) -> Floats:
    """What was once known and is lost (Chaudhry et al. 2018): the mean over i < T of
    max_{l<T} R_{l,i} - R_{T,i}.

    The maximum leaves out the last row, so the value is negative where the last task helped.
    Entries before task i was learned join the maximum if they were evaluated; the later ones must
    be there.

    >>> R = np.array([[[0.9, np.nan, np.nan], [0.95, 0.8, np.nan], [0.7, 0.85, 0.9]]])
    >>> round(float(forgetting(R)[0]), 3)    # ((0.95 - 0.7) + (0.8 - 0.85)) / 2
    0.1
    """
    row = last_row(R)
    if not row:
        return np.full(R.shape[0], np.nan)
    lost = []
    for i in range(row):
        earlier = R[:, :row, i]
        complete = np.isfinite(earlier[:, i:]).all(axis=1)
        best = np.where(np.isnan(earlier), -np.inf, earlier).max(axis=1)
        lost.append(np.where(complete, best, np.nan) - R[:, row, i])
    return np.mean(lost, axis=0)


def backward_transfer(R: Floats) -> Floats:
    """How learning on changed earlier tasks: the mean over i < T of R_{T,i} - R_{i,i}.

    >>> R = np.array([[[0.9, np.nan, np.nan], [0.95, 0.8, np.nan], [0.7, 0.85, 0.9]]])
    >>> round(float(backward_transfer(R)[0]), 3)    # ((0.7 - 0.9) + (0.85 - 0.8)) / 2
    -0.075
    """
    row = last_row(R)
    if not row:
        return np.full(R.shape[0], np.nan)
    own = np.diagonal(R, axis1=1, axis2=2)
    return (R[:, row, :row] - own[:, :row]).mean(axis=1)


def forward_transfer(R: Floats, R_ind: Floats) -> Floats:
    """How earlier tasks helped later ones: the mean over 2 ≤ i ≤ T of R_{i,i} - R_ind_i.

    R_ind [seed, task] is the accuracy of the same method trained on that task alone.

    >>> R = np.array([[[0.9, np.nan, np.nan], [0.95, 0.8, np.nan], [0.7, 0.85, 0.9]]])
    >>> round(float(forward_transfer(R, np.array([[0.9, 0.75, 0.88]]))[0]), 3)
    0.035
    """
    row = last_row(R)
    if not row:
        return np.full(R.shape[0], np.nan)
    own = np.diagonal(R, axis1=1, axis2=2)
    return (own[:, 1 : row + 1] - R_ind[:, 1 : row + 1]).mean(axis=1)


def calibration_error(bins: Floats) -> Floats:
    """Expected calibration error of bins [..., 15, 3] (count, sum of confidence, sum of correct):
    Σ_b n_b/N |accuracy_b - confidence_b|, which is Σ_b |correct_b - confidence sum_b| / N.

    >>> bins = np.zeros((15, 3)); bins[7] = 4, 2.0, 3; bins[14] = 6, 6.0, 6
    >>> float(calibration_error(bins))    # 4/10 · |3/4 - 2/4| + 6/10 · 0
    0.1
    """
    count = bins[..., 0].sum(axis=-1)
    gap = np.abs(bins[..., 2] - bins[..., 1]).sum(axis=-1)
    return np.divide(gap, count, out=np.full(np.shape(gap), np.nan), where=count > 0)


def means(sums: "Scores") -> dict[str, Floats]:
    """The scores per example of additive sums; NaN where there are none or some are not finite."""
    count = np.asarray(sums.count, np.float64)
    count = np.where((count == 0) | ~np.isfinite(np.asarray(sums.nll)), np.nan, count)
    found = {"accuracy": np.asarray(sums.correct) / count}
    found |= {name: np.asarray(getattr(sums, name)) / count for name in ("nll", "brier", "entropy")}
    found["ece"] = np.where(np.isnan(count), np.nan, calibration_error(np.asarray(sums.bins)))
    return found


def mean_and_error(values: Floats) -> tuple[Floats, Floats]:
    """Mean and standard error over the first axis (seeds), leaving NaN out, entry by entry.

    The standard error is the population standard deviation (ddof 0) over √n; NaN for n = 1.

    >>> mean, error = mean_and_error(np.array([0.96, 0.98, np.nan]))
    >>> round(float(mean), 4), round(float(error), 5)    # 0.01 / √2
    (0.97, 0.00707)
    """
    there = np.isfinite(values)
    number = there.sum(axis=0)
    divisor = np.where(number > 0, number, np.nan)
    mean = np.where(there, values, 0.0).sum(axis=0) / divisor
    variance = np.where(there, np.square(values - mean), 0.0).sum(axis=0) / divisor
    return mean, np.where(number > 1, np.sqrt(variance / divisor), np.nan)


def summarize(
    name: str, per_seed: Floats, seeds: Sequence[int], *, missing: str, note: str = ""
) -> Metric:
    """Mean and standard error over the seeds that have a value; `missing` is the note if none has.

    >>> summarize("accuracy", np.array([0.5, np.nan, 0.7]), [0, 1, 2], missing="").note
    'without seed 1, which has no final value'
    """
    mean, error = mean_and_error(per_seed)
    there = np.isfinite(per_seed)
    notes = [note] if note else []
    if not there.any():
        notes = [missing]
    else:
        lost = [str(seed) for seed, ok in zip(seeds, there, strict=True) if not ok]
        if lost:
            noun, verb = ("seed", "has") if len(lost) == 1 else ("seeds", "have")
            notes.append(f"without {noun} {', '.join(lost)}, which {verb} no final value")
        if there.sum() == 1:
            notes.append("one seed, so no standard error")
    values = tuple(float(value) for value in per_seed)
    return Metric(name, float(mean), float(error), values, "; ".join(notes))
