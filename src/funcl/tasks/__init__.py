"""Sequences of tasks: the known ones by name, and any arrays by `TaskSequence.from_arrays`."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike

from funcl.checked import seed_number
from funcl.errors import FunclError, unknown
from funcl.tasks.checks import check_heads
from funcl.tasks.sequence import Task, TaskSequence

__all__ = ["SEQUENCES", "Recipe", "Task", "TaskSequence", "load", "names"]


@dataclass(frozen=True)
class Recipe:
    """How a known sequence is made.

    `maker` names a function as "module:function". It is called with the arrays of each of the
    `datasets` in turn, with data_seed and, where there is a choice of `heads` (the first is the
    default), with heads.
    """

    maker: str
    heads: tuple[str, ...]
    datasets: tuple[str, ...] = ()


SEQUENCES: dict[str, Recipe] = {
    "toy2d": Recipe("funcl.tasks.toy2d:gaussians", ("single",)),
    "split-digits": Recipe("funcl.tasks.digits:split", ("multi", "single")),
    "permuted-digits": Recipe("funcl.tasks.digits:permute", ("single",)),
    "split-mnist": Recipe("funcl.tasks.images:split", ("multi", "single"), ("mnist",)),
    "split-fashion": Recipe("funcl.tasks.images:split", ("multi", "single"), ("fashion_mnist",)),
    "permuted-mnist": Recipe("funcl.tasks.images:permute", ("single",), ("mnist",)),
}

# A sequence with heads that are not its default has a name of its own, for it is another problem.
ALIASES = {
    "split-digits-sh": ("split-digits", "single"),
    "split-mnist-sh": ("split-mnist", "single"),
    "split-fashion-sh": ("split-fashion", "single"),
}


def names() -> list[str]:
    """Return the names that `load` knows."""
    return [*SEQUENCES, *ALIASES]


def load(
    name: str,
    *,
    heads: str | None = None,
    data_dir: str | PathLike[str] | None = None,
    data_seed: int = 0,
) -> TaskSequence:
    """Return a known sequence.

    `heads` is "multi" or "single" where the sequence leaves a choice. `data_dir` is the folder that
    holds the data; without it they are looked for in the usual places and otherwise
    downloaded. `data_seed` decides the order of the training rows and all else that is random
    in the data.

    >>> load("split-digits")
    <TaskSequence 'split-digits': 5 tasks, multi heads, task-incremental, 10 columns>
    """
    if name not in names():
        raise unknown("sequence", name, names())
    base, fixed_heads = ALIASES.get(name, (name, None))
    recipe = SEQUENCES[base]
    choice = (fixed_heads,) if fixed_heads else recipe.heads
    if heads is not None and check_heads(heads) not in choice:
        raise FunclError(f"{name} is made for heads={choice[0]!r} only; leave heads={heads!r} out.")
    heads = heads or choice[0]
    options = {"heads": heads} if len(recipe.heads) > 1 else {}
    data_seed = seed_number("data_seed", data_seed)
    sequence = _maker(recipe)(*_read(recipe.datasets, data_dir), data_seed=data_seed, **options)
    # The same tasks carry the same name, however they were asked for.
    names_by_heads = {target: alias for alias, target in ALIASES.items()}
    return replace(sequence, name=names_by_heads.get((base, heads), base))


def _maker(recipe: Recipe) -> Callable[..., TaskSequence]:
    module, function = recipe.maker.split(":")
    return getattr(importlib.import_module(module), function)


def _read(datasets: tuple[str, ...], data_dir: str | PathLike[str] | None) -> list[dict]:
    if not datasets:
        return []
    # Imported on demand: embedded sequences touch no file and no network.
    from funcl.tasks import files

    return [files.read(dataset, data_dir) for dataset in datasets]
