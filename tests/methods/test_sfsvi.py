"""S-FSVI's objective against one written from its formulas, with the whole Jacobian."""

from functools import partial
from itertools import pairwise

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from funcl.gaussian import Gaussian, sample, seeds_of_draws
from funcl.memory.context import Coreset, Noise, Pixels
from funcl.methods.sfsvi import SFSVI
from funcl.networks import MLP
from funcl.protocol import Batch, Keys, Problem, State, TaskData
from funcl.train.data import head_table

pytestmark = pytest.mark.usefixtures("float64", "wide_integers")
ROWS, BATCH, STAGES, MOST_POINTS = 12, 6, 3, 16
MULTI = [(0, 1), (2, 3, 4), (5, 6)]
SINGLE = [(0, 1, 2)] * STAGES
quickly = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module")
def wide_integers():
    """In float64 the method counts in 64 bits beside the tasks' 32; strict types refuse that."""
    with jax.numpy_dtype_promotion("standard"):
        yield


SMALL = MLP([4], "tanh")


def problem_with(columns, network=SMALL, stages=STAGES, rows=ROWS, batch=BATCH):
    return Problem(
        network=network,
        input_shape=(3,),
        input_dtype="uint8",
        scale=1 / 255,
        outputs=max(max(head) for head in columns) + 1,
        stages=stages,
        head_width=max(len(head) for head in columns),
        rows=rows,
        batch_size=batch,
        dtype="float64",
    )


def task_of(problem, columns, stage):
    rng = np.random.default_rng(stage)
    size = problem.rows - stage  # the rest is padding, which nothing may choose
    x = np.zeros((problem.rows, 3), np.uint8)
    y = np.full(problem.rows, columns[stage][0], np.int32)
    x[:size] = rng.integers(1, 256, (size, 3))
    y[:size] = rng.choice(columns[stage], size)
    mask = np.isin(np.arange(problem.outputs), columns[stage])
    return TaskData(
        x=jnp.asarray(x),
        y=jnp.asarray(y),
        size=jnp.int32(size),
        stage=jnp.int32(stage),
        heads=head_table(columns, problem.stages, problem.head_width),
        masks=jnp.asarray(mask[None]),
        group=jnp.zeros(problem.rows, jnp.int32),
    )


def batch_of(problem, task, count=BATCH):
    mask = jnp.broadcast_to(task.masks[0], (count, task.masks.shape[1]))
    return Batch(problem.inputs(task.x[:count]), task.y[:count], mask, task.stage)


def posterior(problem, seed):
    rng = np.random.default_rng(seed)
    widths = (3, *problem.network.hidden, problem.outputs)
    shapes = [((i, o), (o,)) for i, o in pairwise(widths)]
    mean = tuple({"weight": rng.normal(size=w), "bias": rng.normal(size=b)} for w, b in shapes)
    return jax.tree.map(
        jnp.asarray,
        Gaussian(mean, jax.tree.map(lambda m: rng.uniform(-5, -1, m.shape), mean)),
    )


def keys_of(stage):
    return Keys(*jax.random.split(jax.random.key(stage), 3))


# The formulas, on their own


def f(parameters, x):
    *hidden, last = parameters
    for layer in hidden:
        x = jnp.tanh(x @ layer["weight"] + layer["bias"])
    return x @ last["weight"] + last["bias"]


@jax.jit
def brute_moments(q, x):
    flat, rebuild = jax.flatten_util.ravel_pytree(q.mean)
    spread = jnp.exp(jax.flatten_util.ravel_pytree(q.log_variance)[0])
    jacobian = jax.jacrev(lambda parameters: f(rebuild(parameters), x))(flat)
    full = jnp.einsum("ikp,p,jlp->ikjl", jacobian, spread, jacobian)
    return f(q.mean, x), jnp.einsum("ikik->ik", full)


@jax.jit
@jax.value_and_grad
def brute_penalty(q, x, counted, prior_mean, prior_variance, c):
    mean, spread = brute_moments(q, x)
    kl = jnp.log(jnp.sqrt(prior_variance) / jnp.sqrt(spread)) - 0.5
    kl += (spread + (mean - prior_mean) ** 2) / (2 * prior_variance)
    return c * jnp.sum(kl * counted)


@jax.jit
@jax.value_and_grad
def brute_loss(q, batch, noise):
    """`noise` holds a standard normal for every parameter and draw."""
    total = 0
    for epsilon in noise:
        theta = jax.tree.map(lambda m, v, e: m + jnp.exp(v / 2) * e, *q, epsilon)
        odds = jnp.exp(f(theta, batch.x)) * batch.mask
        label = jnp.arange(odds.shape[1]) == batch.y[:, None]
        total -= jnp.sum(jnp.log(jnp.sum(odds * label, 1) / jnp.sum(odds, 1)))
    return total / len(noise)


def brute_noise(q, key, draws):
    standard = jax.tree.map(jnp.zeros_like, q)
    return [sample(standard, words) for words in seeds_of_draws(standard, key, draws)]


# The method, one task after another

ALL_OF_IT = SFSVI(
    likelihood="weights",
    draws=2,
    first_context=Noise(4),
    context=Coreset(5),
    coreset_size=5,
    prior_variance=0.3,
    prior_mean=0.2,
    kl_scale="equal",
)
CASES = {
    "a coreset for each task": (MULTI, ALL_OF_IT, "equal", [4, 5, 10]),
    "a coreset in total, and the task's own": (
        SINGLE,
        SFSVI(
            likelihood="weights",
            draws=2,
            first_context=Pixels(6, real=0.5),
            context=Coreset(4, per_task=False),
            coreset_size=5,
            coreset_selection="per-class",
            own_context=Noise(3, low=-1.0, high=2.0, per_task=True),
            kl_scale="normalized",
        ),
        "normalized",
        [6, 4 + 6, 4 + 9],
    ),
    "noise in total": (
        MULTI,
        SFSVI(
            likelihood="weights", draws=1, context=Noise(5), first_context=Noise(3), kl_scale="none"
        ),
        "none",
        [3, 5, 5],
    ),
    "pixels for each task, and its own": (
        MULTI,
        SFSVI(
            likelihood="weights",
            draws=1,
            first_context=Pixels(4, real=1.0),
            context=Pixels(4, per_task=True, real=0.5),
            second_context=Noise(7),
            own_context=Pixels(2, per_task=False),
            kl_scale=0.7,
        ),
        0.7,
        [4, 7 + 2, 8 + 2],
    ),
}
SCALES = {
    "equal": lambda points: BATCH / points,
    "normalized": lambda points: 1 / points,
    "none": lambda points: 1,
}


def steps(method, columns):
    """What one step of every task finds, with the posterior before it and the memory."""
    problem = problem_with(columns)

    @quickly
    def step(state, q, task, batch, keys):
        state, reference = method.begin_task(problem, state, task, keys)
        how = problem, q, reference, batch, keys
        (loss, _), loss_gradient = jax.value_and_grad(method.loss, 1, has_aux=True)(*how)
        penalty = jax.value_and_grad(method.penalty, 1)(*how)
        contexts = [method.first(reference, batch, keys)[:3]]
        contexts += [
            method.later(problem, reference, batch, keys, slots)[:3]
            for slots in method.plans(problem)
        ]
        after = method.end_task(problem, State(q, None, state.carried), reference, task, keys)
        return after, (loss, loss_gradient), penalty, contexts

    state = jax.jit(method.init, static_argnums=0)(problem, keys_of(9))
    found = []
    for stage in range(STAGES):
        task, q = task_of(problem, columns, stage), posterior(problem, stage)
        batch, keys = batch_of(problem, task), keys_of(stage)
        after, loss, penalty, contexts = step(state, q, task, batch, keys)
        plans = [0, *method.plans(problem)]
        context = contexts[next(i for i, slots in enumerate(plans) if slots >= stage)]
        found.append((state, q, task, batch, keys, loss, penalty, context))
        state = after
    return found


@pytest.fixture(scope="module")
def taken():
    """The steps of each case, taken once."""
    kept = {}

    def of(case):
        if case not in kept:
            columns, method, *_ = CASES[case]
            kept[case] = steps(method, columns)
        return kept[case]

    return of


def assert_close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


@pytest.mark.parametrize("case", CASES)
def test_the_penalty_and_its_gradient_are_those_of_the_formula(taken, case):
    columns, method, scale, counts = CASES[case]
    for stage, (state, q, _, _, _, _, penalty, context) in enumerate(taken(case)):
        valid = np.asarray(context[2])
        x, slot = (np.asarray(part)[valid] for part in context[:2])
        points = len(x)
        assert points == counts[stage]
        if method.own_context is None:
            assert set(slot.tolist()) <= ({0} if stage == 0 else set(range(stage)))
        outputs = max(max(head) for head in columns) + 1
        padded = np.zeros((MOST_POINTS, 3))
        padded[:points] = x
        counted = np.zeros((MOST_POINTS, outputs))
        for row in range(points):
            counted[row, list(columns[slot[row]])] = 1
        if stage == 0:
            prior = (
                np.full(counted.shape, method.prior_mean),
                np.full(counted.shape, method.prior_variance),
            )
        else:
            prior = brute_moments(state.trainable, padded)
        c = scale if isinstance(scale, float) else SCALES[scale](points)
        assert_close(penalty, brute_penalty(q, padded, counted, *prior, float(c)))
        assert float(penalty[0]) > 0


@pytest.mark.parametrize("case", list(CASES)[:2])
def test_the_loss_and_its_gradient_are_those_of_the_formula(taken, case):
    method = CASES[case][1]
    for _, q, _, batch, keys, loss, _, _ in taken(case):
        assert_close(loss, brute_loss(q, batch, brute_noise(q, keys.noise, method.draws)))


@pytest.mark.parametrize("case", list(CASES)[:2])
def test_a_coreset_holds_real_rows_of_its_own_task(taken, case):
    columns, method, *_ = CASES[case]
    problem = problem_with(columns)
    tasks = [task_of(problem, columns, stage) for stage in range(STAGES)]
    for stage, (state, *_, context) in enumerate(taken(case)):
        memory = state.carried
        for slot in range(stage):
            assert int(memory.size[slot]) == method.coreset_size
            rows = {tuple(row) for row in np.asarray(tasks[slot].x[: ROWS - slot]).tolist()}
            stored = {tuple(row) for row in np.asarray(memory.x[slot]).tolist()}
            assert len(stored) == method.coreset_size
            assert stored <= rows
            assert set(np.asarray(memory.y[slot]).tolist()) <= set(columns[slot])
        drawn = [np.asarray(part) for part in context]
        for x, slot, valid in zip(*drawn, strict=True):
            if stage and valid and slot < stage:
                assert np.any(np.all(np.isclose(np.asarray(memory.x[slot]) / 255, x), axis=1))


def test_made_up_points_are_shared_out_over_the_earlier_heads(taken):
    slots = [np.asarray(step[-1][1]).tolist() for step in taken("noise in total")]
    assert slots == [[0] * 3, [0] * 5, [0, 0, 1, 1, 1]]
    per_task, own = np.split(np.asarray(taken("pixels for each task, and its own")[2][-1][1]), [8])
    assert per_task.tolist() == [0] * 4 + [1] * 4
    assert own.tolist() == [2, 2]


def test_pixels_are_drawn_anew_for_each_task(taken):
    _, _, _, batch, _, _, _, (x, _, _) = taken("pixels for each task, and its own")[2]
    rows = {tuple(row) for row in np.asarray(batch.x).tolist()}
    for task in np.asarray(x)[:8].reshape(2, 4, 3):
        assert np.all(task[:2] == task[:2, :1])
        assert {tuple(row) for row in task[2:].tolist()} <= rows


def test_the_current_head_and_the_current_outputs_do_not_enter_the_penalty(taken):
    (*_, penalty, _) = taken("a coreset for each task")[2]
    last = jax.tree.map(
        lambda part: part[-1], tuple(penalty[1]), is_leaf=lambda p: isinstance(p, tuple)
    )
    for layer in last:
        for gradient in layer.values():
            assert np.all(np.asarray(gradient)[..., 5:] == 0)
            assert np.all(np.asarray(gradient)[..., :5] != 0)


def test_the_penalty_vanishes_at_the_last_posterior_and_with_no_strength():
    problem = problem_with(MULTI)
    task = task_of(problem, MULTI, 1)
    batch, q, other = batch_of(problem, task), posterior(problem, 0), posterior(problem, 1)

    def penalties(q, other, strength):
        method = SFSVI(coreset_size=5, context=Coreset(3), kl_scale=strength)
        state = method.init(problem, keys_of(0))
        state = State(q, None, state.carried._replace(size=jnp.array([5, 0, 0], jnp.int32)))
        _, reference = method.begin_task(problem, state, task, keys_of(1))

        def penalty(q):
            return method.penalty(problem, q, reference, batch, keys_of(1))

        return *jax.value_and_grad(penalty)(q), penalty(other)

    at_it, gradient, elsewhere = quickly(penalties, static_argnums=2)(q, other, "equal")
    assert abs(float(at_it)) < 1e-12
    assert all(np.abs(leaf).max() < 1e-12 for leaf in jax.tree.leaves(gradient))
    assert float(elsewhere) > 0
    *_, none = quickly(penalties, static_argnums=2)(q, other, 0.0)
    assert float(none) == 0


@pytest.mark.parametrize(
    ("context", "published"),
    [(Coreset(40), [3.2, 3.2, 1.6, 1.07, 0.8]), (Pixels(40), [3.2] * 5)],
)
def test_the_published_scales(context, published):
    columns = [(0, 1)] * 5
    problem = problem_with(columns, MLP([], "tanh"), stages=5, rows=128, batch=128)
    q, before = posterior(problem, 0), posterior(problem, 1)

    @quickly
    def ratio(task):
        values = []
        for kl_scale in ("equal", "none"):
            method = SFSVI(context=context, kl_scale=kl_scale)
            state = method.init(problem, keys_of(0))
            carried = state.carried
            if carried is not None:
                carried = carried._replace(size=jnp.full(5, 40, jnp.int32))
            state = State(before, None, carried)
            _, reference = method.begin_task(problem, state, task, keys_of(1))
            batch = batch_of(problem, task, 128)
            values.append(method.penalty(problem, q, reference, batch, keys_of(1)))
        return values[0] / values[1]

    found = [float(ratio(task_of(problem, columns, stage))) for stage in range(5)]
    np.testing.assert_allclose(found, published, atol=0.005)
