"""funcl: learn one task after another without forgetting, and say how sure you are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from funcl import memory as memory
    from funcl import methods as methods
    from funcl import networks as networks
    from funcl import tasks as tasks
    from funcl.errors import FunclError as FunclError
    from funcl.evaluate.history import History as History
    from funcl.experiments.presets import preset as preset
    from funcl.learner import Learner as Learner
    from funcl.networks import MLP as MLP
    from funcl.tasks.sequence import TaskSequence as TaskSequence
    from funcl.train.training import Training as Training

__version__ = "0.1.0"

# Imported when first asked for, so that `funcl --help` need not wait for jax.
_HOMES = {
    "FunclError": "funcl.errors",
    "History": "funcl.evaluate.history",
    "Learner": "funcl.learner",
    "MLP": "funcl.networks",
    "TaskSequence": "funcl.tasks.sequence",
    "Training": "funcl.train.training",
    "preset": "funcl.experiments.presets",
}
_ROOMS = ("memory", "methods", "networks", "tasks")

__all__ = [*_HOMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name in _ROOMS:
        return import_module(f"funcl.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'funcl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted(__all__)
