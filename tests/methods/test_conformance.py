"""The conformance table: every method of the library against every property."""

from dataclasses import replace

import pytest

from funcl.memory.context import Coreset, Noise
from funcl.methods import SFSVI, FineTune, Joint, Separate
from methods import conformance

SMALL = SFSVI(
    draws=2,
    prediction_draws=2,
    first_context=Noise(6),
    context=Coreset(6),
    coreset_size=8,
    prior_variance=1.0,
)
WEIGHTS = replace(SMALL, likelihood="weights", context=Coreset(6, per_task=False))
# The memory holds the whole task, so that the context covers it.
STRENGTH = {scale: replace(WEIGHTS, kl_scale=scale, coreset_size=40) for scale in (0.0, 1e4)}

CASES = {
    "sfsvi-local": (SMALL, "multi"),
    "sfsvi-weights": (WEIGHTS, "single"),
    "finetune": (FineTune(), "single"),
    "joint": (Joint(), "single"),
    "separate": (Separate(), "multi"),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


# Without a compiler every operation is dispatched alone, which takes long: what joint training and
# the other likelihood estimator run is, operation by operation, in the rows that are kept.
TABLE = [
    pytest.param(check, *CASES[name], id=f"{check.__name__}-{name}")
    for name in CASES
    for check in conformance.EVERY_METHOD
    if check is not conformance.check_jit_equals_eager or name not in ("joint", "sfsvi-weights")
]


@pytest.mark.parametrize(("check", "method", "heads"), TABLE)
def test_property(check, method, heads):
    check(method, heads)


def test_save_and_restore_in_the_middle_of_a_task(case, tmp_path):
    conformance.check_restore(*case, tmp_path)


@pytest.mark.parametrize("name", ["sfsvi-local", "finetune"])
def test_seed_axis_in_single_precision(name):
    conformance.check_seed_axis_in_single_precision(CASES[name][0], "multi")


def test_strength_zero_is_the_likelihood_alone():
    conformance.check_strength_zero(STRENGTH[0.0], "single")


def test_huge_strength_freezes_the_function_on_the_context():
    conformance.check_strength_huge(STRENGTH[1e4], STRENGTH[0.0], "single")


@pytest.mark.parametrize("name", ["sfsvi-local", "sfsvi-weights"])
def test_memory_of_the_first_task_changes_the_third(name):
    conformance.check_memory_matters(*CASES[name])


def test_separate_tasks_share_nothing():
    conformance.check_memory_does_not_matter(*CASES["separate"])


@pytest.mark.parametrize("method", [FineTune(), SMALL], ids=lambda method: method.name)
def test_joint_is_at_least_as_good_as_fine_tuning(method):
    conformance.check_joint_is_no_worse(method, "single")
