"""The matrix products that a step of S-FSVI cannot do without, and the time that they alone take.

They are counted forward and backward, for every weight draw and every context point. Operands
have the names of what they stand for: two products share an operand where the step does, and no
two products are the same, so the compiler cannot merge any. What a step does beside them (random
numbers, activations, softmax, the KL terms, the optimiser) is its distance from this floor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from funcl.errors import FunclError
from funcl.memory.context import Coreset, Source
from funcl.methods.sfsvi import SFSVI
from funcl.networks import MLP
from funcl.protocol import Problem
from funcl.train.programs import Layout, Program

TURNED = ", transposed"


class Product(NamedTuple):
    """A matrix product left @ right, [rows, inner] @ [inner, columns], of two named operands."""

    part: str
    left: str
    right: str
    rows: int
    inner: int
    columns: int


@dataclass(frozen=True)
class StepShape:
    """What a step's matrix products depend on."""

    widths: tuple[int, ...]  # of all layers, inputs and outputs included
    batch: int
    draws: int
    points: int  # context points
    fresh: int  # those of them at which the last posterior is linearised within the step
    head: int  # outputs of a context point that are compared
    likelihood: str


def step_products(shape: StepShape) -> list[Product]:
    """Every matrix product of one optimiser step."""
    data = data_products if shape.likelihood == "weights" else local_data_products
    return [*data(shape), *context_products(shape)]


def data_products(shape: StepShape) -> Iterator[Product]:
    """The data term with weight draws: each draw sends the batch through its own weights."""
    for draw in range(shape.draws):
        for layer, (i, o) in enumerate(layers(shape)):
            name = f"{layer} of draw {draw}"
            inputs = f"inputs {name}" if layer else "batch"
            yield from dense("data", inputs, f"weight {name}", shape.batch, i, o, layer > 0)


def local_data_products(shape: StepShape) -> Iterator[Product]:
    """The data term with local reparameterisation: means and variances of every layer's outputs.

    The first layer's are the same for all draws.
    """
    for layer, (i, o) in enumerate(layers(shape)):
        rows = shape.batch * (shape.draws if layer else 1)
        inputs = f"inputs {layer}" if layer else "batch"
        yield from dense("data", inputs, f"mean {layer}", rows, i, o, layer > 0)
        yield from dense("data", f"squared {inputs}", f"variance {layer}", rows, i, o, layer > 0)


def context_products(shape: StepShape) -> Iterator[Product]:
    """The context points: function values, variances, and sensitivities of the head's outputs."""
    for whose, points in (("", shape.points), ("last ", shape.fresh)):
        if not points:
            continue
        learns = not whose  # the last posterior is held constant
        for layer, (i, o) in enumerate(layers(shape)):
            below = learns and layer > 0
            x, mean = f"{whose}context inputs {layer}", f"{whose}mean {layer}"
            yield from dense("context", x, mean, points, i, o, below, learns)
            squared, variance = f"squared {x}", f"{whose}variance {layer}"
            yield from dense("context", squared, variance, points, i, o, below, learns)
            if layer:  # down to the layer below: one row for each point and output
                above = learns and layer < len(shape.widths) - 2
                sensitivity, rows = f"{whose}sensitivity {layer}", points * shape.head
                yield from dense("context", sensitivity, turned(mean), rows, o, i, above, learns)


def dense(
    part: str,
    inputs: str,
    weight: str,
    rows: int,
    i: int,
    o: int,
    inputs_learn: bool,
    weight_learns: bool = True,
) -> Iterator[Product]:
    """inputs @ weight, and the gradients with respect to what learns."""
    gradient = f"gradient of {inputs} @ {plain(weight)}"
    yield Product(part, inputs, weight, rows, i, o)
    if weight_learns:
        yield Product(part, turned(inputs), gradient, i, rows, o)
    if inputs_learn:
        yield Product(part, gradient, turned(weight), rows, o, i)


def layers(shape: StepShape) -> list[tuple[int, int]]:
    """Inputs and outputs of every layer."""
    return list(pairwise(shape.widths))


def flops(products: Sequence[Product]) -> int:
    """Multiplications and additions of some products."""
    return sum(2 * p.rows * p.inner * p.columns for p in products)


def shape_of(problem: Problem, method: SFSVI, stage: int) -> StepShape:
    """The step of a stage (0 is the first), without the points that only pad."""
    network = problem.network
    if not isinstance(network, MLP):
        raise FunclError("The matrix products of a step are counted for MLPs only.")
    inputs = int(np.prod(problem.input_shape))
    points, fresh = context_of(method, stage)
    return StepShape(
        widths=(inputs, *network.hidden, problem.outputs),
        batch=problem.batch_size,
        draws=method.draws,
        points=points,
        fresh=fresh,
        head=problem.head_width,
        likelihood=method.likelihood,
    )


def context_of(method: SFSVI, stage: int) -> tuple[int, int]:
    """Context points of a step, and those at which the prior is not known before it."""
    if stage == 0:
        return method.first_context.points, 0
    source: Source = method.context
    if method.second_context is not None and stage == 1:
        source = method.second_context
    points = source.count(stage)
    stored = isinstance(source, Coreset)
    if stored:
        points = min(points, method.coreset_size * stage)
    own = method.own_context.count(stage + 1) if method.own_context is not None else 0
    return points + own, own if stored else points + own


class Floor:
    """Runs the products of a step, and nothing else, in one compiled loop."""

    def __init__(self, shape: StepShape, layout: Layout, products: str = "highest"):
        self.products = step_products(shape)
        random = np.random.default_rng(0)
        self.operands = layout.place(
            {
                name: jnp.asarray(random.standard_normal((layout.padded, *size)), "float32")
                for name, size in operands(self.products).items()
            },
            seeded=True,
        )
        self.run = Program(layout.over_seeds(self._loop, [True, False]), products)

    def __call__(self, count: int) -> float:
        """Seconds that the products of `count` steps take."""
        began = time.perf_counter()
        jax.block_until_ready(self.run(self.operands, jnp.int32(count)))
        return time.perf_counter() - began

    def account(self) -> dict[str, dict[str, int]]:
        """How many products, and how many multiplications and additions, each part has."""
        parts = dict.fromkeys(product.part for product in self.products)
        chosen = {part: [p for p in self.products if p.part == part] for part in parts}
        return {part: {"products": len(ps), "flops": flops(ps)} for part, ps in chosen.items()}

    def _loop(self, given: dict[str, Array], count: Array) -> list[Array]:
        def step(index: Array, before: list[Array]) -> list[Array]:
            # The barrier makes the operands depend on the step, so that no product leaves the loop.
            now, _ = jax.lax.optimization_barrier((given, index))
            return [operand(now, p.left) @ operand(now, p.right) for p in self.products]

        blank = [jnp.zeros((p.rows, p.columns), given[plain(p.left)].dtype) for p in self.products]
        return jax.lax.fori_loop(0, count, step, blank)


def operands(products: Sequence[Product]) -> dict[str, tuple[int, int]]:
    """Every operand with its shape as stored."""
    found: dict[str, tuple[int, int]] = {}
    for p in products:
        for name, size in ((p.left, (p.rows, p.inner)), (p.right, (p.inner, p.columns))):
            stored = (size[1], size[0]) if name.endswith(TURNED) else size
            if found.setdefault(plain(name), stored) != stored:
                raise ValueError(
                    f"{name} is counted with two shapes, {found[plain(name)]} and {stored}"
                )
    return found


def operand(given: dict[str, Array], name: str) -> Array:
    """An operand as a product reads it."""
    return given[plain(name)].T if name.endswith(TURNED) else given[name]


def plain(name: str) -> str:
    """The name under which an operand is stored."""
    return name.removesuffix(TURNED)


def turned(name: str) -> str:
    """The name of an operand's transpose."""
    return plain(name) if name.endswith(TURNED) else name + TURNED
