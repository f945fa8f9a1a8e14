"""How long, how fast, in what order: the settings of a run that belong to no method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import jax
import optax

from funcl.checked import real, seed_number, whole
from funcl.errors import FunclError, unknown
from funcl.protocol import Keys

OPTIMISERS = {"adam": optax.adam, "sgd": optax.sgd, "yogi": optax.yogi}
SEED_AXES = ("auto", "vmap", "map")
# Numbers are kept in the first; matrix products are taken in the second.
PRECISIONS = {
    "float32": ("float32", "highest"),
    "tensorfloat32": ("float32", "tensorfloat32"),
    "float64": ("float64", "highest"),
}


@dataclass(frozen=True)
class Training:
    """The settings of training.

    An epoch has max(1, examples // batch_size) steps; small tasks wrap around. With `reshuffle` the
    order of examples is new in every epoch, else it stays as loaded and the window slides (as
    published). `seed_axis` lays repeats out as one batch ("vmap") or one after the other inside
    the same program ("map"); "auto" asks the network. `chunk` is the number of steps between two
    looks at the losses. `precision` is "float32", "float64", or "tensorfloat32": float32 whose
    matrix products round their inputs to 10 bits, on accelerators that are faster so.
    """

    epochs: int = 50
    batch_size: int = 32
    learning_rate: float = 1e-3
    first_epochs: int | None = None
    first_learning_rate: float | None = None
    optimiser: str = "adam"
    reshuffle: bool = True
    seed_axis: str = "auto"
    chunk: int = field(default=500, metadata={"first_read": None})
    precision: str = "float32"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("epochs", "first_epochs", "batch_size", "chunk"):
            if not (name == "first_epochs" and self.first_epochs is None):
                whole(name, getattr(self, name))
        for name in ("learning_rate", "first_learning_rate"):
            if not (name == "first_learning_rate" and self.first_learning_rate is None):
                real(name, getattr(self, name), "a positive number", above=0)
        if not isinstance(self.reshuffle, bool):
            raise FunclError(f"reshuffle must be True or False, not {self.reshuffle!r}.")
        if self.optimiser not in OPTIMISERS:
            raise unknown("optimiser", self.optimiser, OPTIMISERS)
        if self.seed_axis not in SEED_AXES:
            raise unknown("seed axis", self.seed_axis, SEED_AXES)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)

    @property
    def dtype(self) -> str:
        """The type in which parameters and activations are kept."""
        return PRECISIONS[self.precision][0]

    @property
    def products(self) -> str:
        """The precision of matrix products, as jax names it."""
        return PRECISIONS[self.precision][1]

    def transformation(self) -> optax.GradientTransformation:
        """The optimiser for a learning rate of 1; the engine multiplies by the rate of the task."""
        return OPTIMISERS[self.optimiser](1.0)

    def rate(self, stage: int) -> float:
        """Learning rate of a stage (0 is the first)."""
        first = self.first_learning_rate
        return first if stage == 0 and first is not None else self.learning_rate

    def epochs_of(self, stage: int) -> int:
        """Epochs of a stage (0 is the first)."""
        return self.first_epochs if stage == 0 and self.first_epochs else self.epochs


def check_precision(training: Training) -> None:
    """Refuse a precision that jax is not set up for: it would mix two, or quietly use the other."""
    double = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    if training.dtype == "float64" and not double:
        raise FunclError(
            "precision='float64' needs jax's double precision: call "
            "jax.config.update('jax_enable_x64', True) at the start of the program."
        )
    if training.dtype == "float32" and double:
        raise FunclError(
            "jax's double precision is switched on: say Training(precision='float64'), or call "
            "jax.config.update('jax_enable_x64', False)."
        )


def set_up_precision(training: Training) -> None:
    """Set jax up for a training, in a program that has it to itself."""
    jax.config.update("jax_enable_x64", training.dtype == "float64")


SOURCES = ("init", "noise", "context")
MOST_REPEATS = 10_000


@dataclass(frozen=True)
class Seeds:
    """Repeats as an axis: which numbers, and which sources of randomness they drive.

    What does not vary uses `data_seed`, like the order of the data.
    """

    numbers: tuple[int, ...]
    vary: tuple[str, ...] = SOURCES
    data_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse no seeds, repeated seeds, and sources that do not exist."""
        for number in self.numbers:
            seed_number("A seed", number)
        if not self.numbers:
            raise FunclError("At least one seed is needed.")
        if len(set(self.numbers)) < len(self.numbers):
            raise FunclError(f"Seeds must differ from each other, not {list(self.numbers)}.")
        for source in self.vary:
            if source not in SOURCES:
                raise unknown("source of randomness", source, SOURCES)

    @classmethod
    def of(cls, seeds: int | Sequence[int], vary: Sequence[str], data_seed: int) -> Seeds:
        """`seeds=10` is 0 to 9; a list is taken as it is."""
        if isinstance(vary, str):
            raise FunclError(f"vary is a list of sources, such as vary=[{vary!r}].")
        if isinstance(seeds, str) or not isinstance(seeds, Iterable):
            count = whole("seeds (a number of repeats, or a list)", seeds)
            if count > MOST_REPEATS:
                raise FunclError(
                    f"seeds={count} would be as many repeats: ask for at most {MOST_REPEATS:,}, or "
                    f"for the one seed by a list, seeds=[{count}]."
                )
            seeds = range(count)
        return cls(tuple(seed_number("A seed", n) for n in seeds), tuple(vary), data_seed)

    def keys(self, padded: int) -> Keys:
        """A key for every seed and source; the axis is padded by repeating the last seed."""
        numbers = [*self.numbers, *[self.numbers[-1]] * (padded - len(self.numbers))]

        def source_keys(index: int, source: str) -> jax.Array:
            chosen = [n if source in self.vary else self.data_seed for n in numbers]
            bases = [jax.random.fold_in(jax.random.key(n), index) for n in chosen]
            return jax.numpy.stack(bases)

        return Keys(*(source_keys(i, s) for i, s in enumerate(SOURCES)))

    def order_key(self) -> jax.Array:
        """The key of the data order, the same for all repeats."""
        return jax.random.fold_in(jax.random.key(self.data_seed), len(SOURCES))
