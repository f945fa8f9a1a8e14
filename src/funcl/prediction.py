"""What a learner says about inputs: class probabilities, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions on one head, its columns in the order of `classes`.

    `mean` and `variance` describe the linearised function, as a mixture over the repeats: the
    variance is the mean of their variances plus the variance of their means. Methods without a
    distribution over functions have None there.
    """

    members: npt.NDArray[np.floating]  # [seeds, examples, classes]
    classes: tuple
    mean: npt.NDArray[np.floating] | None = None  # [examples, classes]
    variance: npt.NDArray[np.floating] | None = None

    @property
    def probs(self) -> npt.NDArray[np.floating]:
        """Class probabilities [examples, classes], averaged over the repeats."""
        return self.members.mean(0)

    @property
    def labels(self) -> npt.NDArray:
        """The most probable class of each example."""
        return np.asarray(self.classes)[self.probs.argmax(-1)]

    @property
    def entropy(self) -> npt.NDArray[np.floating]:
        """Entropy of the class probabilities in nats: 0 is certain, log(classes) is ignorant."""
        p = self.probs
        return -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=-1)

    def __len__(self) -> int:
        return self.members.shape[1]

    def __repr__(self) -> str:
        seeds, examples, classes = self.members.shape
        return f"<Prediction: {examples} examples, {classes} classes, mean of {seeds} seeds>"
