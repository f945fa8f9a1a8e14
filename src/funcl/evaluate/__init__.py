"""What a run achieved: scores of predictions, tensors over seeds and tasks, metrics of those.

`Scores` and `score` run inside the compiled programs and need jax; they are imported only when
asked for, so that reading and comparing finished runs starts at once.
"""

from typing import TYPE_CHECKING

from funcl.evaluate.history import History
from funcl.evaluate.metrics import Metric

if TYPE_CHECKING:
    from funcl.evaluate.scores import Scores, score

__all__ = ["History", "Metric", "Scores", "score"]


def __getattr__(name: str):
    if name in ("Scores", "score"):
        from funcl.evaluate import scores

        return getattr(scores, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
