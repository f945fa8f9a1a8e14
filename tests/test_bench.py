"""The bench: what the floor counts, that nothing of it is optimised away, and what is reported."""

import math

import numpy as np
import pytest

from funcl import MLP, Training
from funcl.bench import Effort, bench_sequence, fastest, slopes
from funcl.floor import Floor, StepShape, context_of, flops, step_products
from funcl.memory.context import Coreset, Noise
from funcl.methods import SFSVI
from funcl.tasks import TaskSequence
from funcl.train.programs import Layout

SHAPE = StepShape(
    widths=(5, 4, 3), batch=7, draws=2, points=6, fresh=0, head=2, likelihood="weights"
)


def test_the_products_of_the_data_term_by_hand():
    data = [p for p in step_products(SHAPE) if p.part == "data"]
    # Per draw: forward twice, gradients of two weights, and of the hidden layer's values.
    assert len(data) == 2 * 5
    assert flops(data) == 2 * (2 * 7 * 5 * 4 * 2 + 2 * 7 * 4 * 3 * 3)


def test_the_products_of_the_context_by_hand():
    context = [p for p in step_products(SHAPE) if p.part == "context"]
    values = 2 * 6 * 5 * 4 * 2 + 2 * 6 * 4 * 3 * 3  # as the data term of one draw
    sensitivities = 2 * (6 * 2) * 3 * 4 * 2  # down one layer, and the gradient of its weight
    assert flops(context) == 2 * values + sensitivities


def test_a_prior_that_is_linearised_within_the_step_counts_forward_only():
    fresh = StepShape(**{**vars(SHAPE), "fresh": 6})
    more = flops(step_products(fresh)) - flops(step_products(SHAPE))
    assert more == 2 * (2 * 6 * (5 * 4 + 4 * 3)) + 2 * 12 * 3 * 4


def test_local_reparameterisation_needs_the_first_layer_once():
    local = StepShape(**{**vars(SHAPE), "likelihood": "local"})
    data = [p for p in step_products(local) if p.part == "data"]
    assert flops(data) == 2 * (2 * 7 * 5 * 4 * 2 + 2 * 14 * 4 * 3 * 3)


@pytest.mark.parametrize("likelihood", ["weights", "local"])
def test_every_product_is_made(likelihood):
    shape = StepShape(**{**vars(SHAPE), "likelihood": likelihood, "fresh": 6})
    layout = Layout(1, "map")
    floor = Floor(shape, layout)
    assert len(set(floor.products)) == len(floor.products)
    count = np.int32(3)
    text = floor.run._jitted.lower(floor.operands, count).compile().as_text()
    products = text.count(" dot(") + text.count("custom-call(") + text.count("__onednn$matmul")
    assert products == len(floor.products)
    assert floor(2) > 0


def test_points_of_a_step():
    assert context_of(SFSVI(first_context=Noise(30)), 0) == (30, 0)
    assert context_of(SFSVI(context=Coreset(40)), 3) == (120, 0)
    assert context_of(SFSVI(context=Coreset(40), coreset_size=10), 3) == (30, 0)
    assert context_of(SFSVI(context=Coreset(50, per_task=False)), 3) == (50, 0)
    assert context_of(SFSVI(own_context=Noise(5, per_task=True)), 1) == (50, 10)
    assert context_of(SFSVI(context=Noise(9)), 4) == (9, 9)


def test_the_fastest_of_stretches_that_are_long_enough():
    asked = []

    def timer(count):
        asked.append(count)
        return 0.001 * count

    assert fastest([timer, timer], Effort(seconds=0.1, repeats=2)) == pytest.approx([0.001, 0.001])
    assert max(asked) >= 50


def test_slopes_of_context_points_leave_out_the_small_ones():
    sizes = [10, 100, 300, 1000]
    points = [
        {"across": "context points", "size": n, "microseconds_per_step": 5 + n * (n >= 100) - 5,
         "chunk_memory": n**2}
        for n in sizes
    ]  # fmt: skip
    found = slopes(points)["context points"]
    assert found["time"] == pytest.approx(1)
    assert found["memory"] == pytest.approx(2)


def test_a_sequence_is_measured():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    sequence = TaskSequence.from_arrays([(x, y, x, y)], heads="single")
    method = SFSVI(draws=1, coreset_size=3, first_context=Noise(3), context=Coreset(3))
    effort = Effort(seconds=0.01, repeats=2)
    row = bench_sequence(sequence, MLP([4]), method, Training(batch_size=4), 2, effort)
    assert row["ratio_to_floor"] == pytest.approx(
        row["microseconds_per_step"] / row["floor_microseconds"]
    )
    for name in ("steps_per_second", "compile_seconds", "peak_memory", "prediction_microseconds"):
        assert 0 < row[name] < math.inf
    assert row["counted"]["context"]["products"] > row["counted"]["data"]["products"]
