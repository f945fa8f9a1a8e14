"""The shape holds for two more: a pass over all data at a task's end, and no network at all."""

import os
from dataclasses import replace

# Batched factorisations can block each other where jax runs them on several threads. Its thread
# pool is as large as the set of CPUs that the process may use when it first computes.
if hasattr(os, "sched_setaffinity"):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(worker) % len(cpus)]})

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import conformance, tiny

from funcl import tasks
from funcl.likelihood import probabilities
from funcl.memory.store import Memory
from funcl.networks import MLP, Foreign
from funcl.protocol import Head, Problem, State
from funcl.train.run import Runner, run
from funcl.train.training import SOURCES, Seeds, Training
from protocol import vargp
from protocol.fromp import FROMP, Carried
from protocol.vargp import VARGP

METHODS = {
    "fromp": (FROMP(points=8), "multi"),
    "vargp": (VARGP(points=4, function_draws=4), "single"),
}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=METHODS)
def case(request):
    return METHODS[request.param]


@pytest.fixture
def wide():
    with tiny.double_precision():
        yield


def one_task(runner, stage=0):
    """A runner's problem, a task of it and one seed's keys."""
    keys = jax.tree.map(lambda key: key[0], runner.engine.keys)
    return runner.problem, runner.data(stage), keys


# ---------------------------------------------------------------------- the conformance table


@pytest.mark.parametrize("check", conformance.EVERY_METHOD, ids=lambda check: check.__name__)
def test_property(case, check):
    check(*case)


def test_save_and_restore_in_the_middle_of_a_task(case, tmp_path):
    conformance.check_restore(*case, tmp_path)


def test_strength_zero_is_the_likelihood_alone(case):
    method, heads = case
    conformance.check_strength_zero(replace(method, strength=0.0), heads)


def test_a_huge_strength_freezes_the_function_at_memorable_points():
    method, heads = METHODS["fromp"]
    weak, strong = (replace(method, strength=strength) for strength in (0.0, 1e4))
    conformance.check_strength_huge(strong, weak, heads)


def test_where_the_penalty_of_a_gaussian_process_is_zero_its_function_is_the_last_one(wide):
    """So a huge strength freezes it, however far from there a task begins."""
    stages, points, features, jitter = 2, 4, 2, 1e-4
    generator = np.random.default_rng(1)
    z = generator.normal(size=(stages, points, features))
    theta = {"scale": jnp.array([0.1, -0.2]), "amplitude": jnp.array(0.3)}
    every = jnp.asarray(z.reshape(-1, features))
    prior = vargp.kernel(theta, every, every) + jitter * np.exp(0.6) * np.eye(len(every))
    own = np.linalg.cholesky(prior)[points:, points:]  # of the second task, given the first
    raw = np.tril(own, -1) + np.diag(np.log(np.expm1(np.diag(own))))
    raws = np.stack([generator.normal(size=(points, points)), raw])
    mean = np.stack([generator.normal(size=points), np.zeros(points)])
    inducing = vargp.Inducing(*map(jnp.asarray, (z, mean, raws)))
    x = jnp.asarray(generator.normal(size=(5, features)))
    before, after = (vargp.marginals(theta, inducing, n, jitter, x) for n in (1, 2))
    conformance.assert_close(before, after, relative=1e-9)
    _, means, roots = vargp.whitened(theta, inducing, 2, jitter)
    assert abs(float(vargp.divergence_from_standard(means[1], roots[1]))) < 1e-9
    assert float(vargp.divergence_from_standard(means[0], roots[0])) > 1


def test_memory_of_the_first_task_changes_the_third(case):
    conformance.check_memory_matters(*case)


# ---------------------------------------------------------------------- real data


def test_fromp_on_digits():
    training = Training(epochs=15, batch_size=32, learning_rate=1e-2)
    seeds = Seeds.of(2, SOURCES, 0)
    with jax.numpy_dtype_promotion("standard"):
        last = run(Runner(tasks.load("split-digits"), MLP([16]), FROMP(), training, seeds))
    assert last.history.accuracy[:, -1].min() > 0.85


def test_vargp_on_digits():
    sequence = tasks.load("split-digits", heads="single").first(2)
    training = Training(epochs=40, batch_size=64, learning_rate=2e-2)
    seeds = Seeds.of(2, SOURCES, 0)
    with jax.numpy_dtype_promotion("standard"):
        last = run(Runner(sequence, None, VARGP(), training, seeds))
    assert last.history.accuracy[:, -1].min() > 0.5  # of ten classes


# ---------------------------------------------------------------------- identities


def test_curvature_is_the_diagonal_of_the_generalised_gauss_newton_matrix(wide):
    method, heads = FROMP(points=8, piece=12), "multi"
    problem, task, keys = one_task(tiny.runner(method, heads))
    state = method.init(problem, keys)
    end = jax.jit(lambda state: method.end_task(problem, state, None, task, keys))
    found = end(state).carried

    x = problem.inputs(task.x)[: task.size]
    mask = task.head.mask(problem.outputs)
    p = probabilities(problem.network.apply(state.trainable, x), mask)
    middle = jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]
    jacobian = jax.jacrev(problem.network.apply)(state.trainable, x)
    wanted = jax.tree.map(lambda j: jnp.einsum("ni...,nij,nj...->...", j, middle, j), jacobian)
    conformance.assert_close(found.curvature, wanted)

    doubt, stored = np.asarray(jnp.sum(p * (1 - p), axis=1)), np.asarray(found.memory.x[0])
    for label in np.unique(task.y[: task.size]):
        own = np.flatnonzero(np.asarray(task.y[: task.size]) == label)
        most = np.asarray(x)[own[np.argsort(-doubt[own])[:4]]]
        assert all((row == stored).all(axis=1).any() for row in most)


def test_fromp_is_a_quadratic_penalty_where_points_determine_the_parameters(wide):
    """With a square invertible Jacobian, ½ Δᵀ(G Σ Gᵀ)⁻¹Δ = ½ Δθᵀ Σ⁻¹ Δθ, once for each class."""
    points = 3
    network = Foreign(
        lambda key, shape, outputs: jnp.zeros(points),
        lambda theta, x: jnp.stack([x @ theta, jnp.zeros(x.shape[0])], axis=1),
    )
    problem = Problem(network, (points,), "float64", 1.0, 2, 2, 2, 4, 4, "float64")
    method = FROMP(points=points, noise=0.0, prior_precision=0.5)
    generator = np.random.default_rng(0)
    theta, curvature = generator.normal(size=3), generator.uniform(1, 2, 3)
    x = jnp.asarray(generator.normal(size=(2, points, points)))
    memory = Memory(x, jnp.zeros((2, points), jnp.int32), jnp.array([points, 0], jnp.int32))
    state = State(jnp.asarray(theta), carried=Carried(memory, jnp.asarray(curvature)))
    runner = tiny.runner(METHODS["fromp"][0], "multi")
    columns = jnp.array([[0, 1], [0, 1]])
    task = runner.data(1)._replace(heads=Head(columns, jnp.ones((2, 2), bool)))
    _, reference = method.begin_task(problem, state, task, None)
    step = 1e-6 * generator.normal(size=3)
    found = method.penalty(problem, jnp.asarray(theta + step), reference, None, None)
    np.testing.assert_allclose(found, 2 * 0.5 * step @ ((curvature + 0.5) * step), rtol=1e-4)


def test_vargp_in_whitened_coordinates_is_the_joint_posterior(wide):
    """Against the joint q(u_≤t) built conditional by conditional, with dense inverses."""
    stages, points, features, jitter = 3, 4, 2, 1e-4
    generator = np.random.default_rng(0)
    z = generator.normal(size=(stages, points, features))
    m, raw = (
        generator.normal(size=(stages, points)),
        generator.normal(size=(stages, points, points)),
    )
    x = generator.normal(size=(5, features))
    theta = {"scale": jnp.array([0.1, -0.2]), "amplitude": jnp.array(0.3)}
    filled = 2  # the third slot has to stay without effect

    def k(a, b):
        gap = (a[:, None] - b) / np.exp(np.asarray(theta["scale"]))
        return np.exp(0.6) * np.exp(-0.5 * np.sum(gap**2, axis=-1))

    mean, covariance = np.zeros(0), np.zeros((0, 0))
    for s in range(filled):
        before, own = z[:s].reshape(-1, features), z[s]
        inner = k(before, before) + jitter * np.exp(0.6) * np.eye(len(before))
        a = k(own, before) @ np.linalg.inv(inner) if s else np.zeros((points, 0))
        root = np.tril(raw[s], -1) + np.diag(np.logaddexp(0, np.diag(raw[s])))
        cross = a @ covariance
        covariance = np.block(
            [[covariance, cross.T], [cross, a @ covariance @ a.T + root @ root.T]]
        )
        mean = np.concatenate([mean, a @ mean + m[s]])
    every = z[:filled].reshape(-1, features)
    prior = k(every, every) + jitter * np.exp(0.6) * np.eye(len(every))
    weights = k(x, every) @ np.linalg.inv(prior)
    wanted_variance = np.exp(0.6) - np.diag(weights @ (prior - covariance) @ weights.T)
    wanted_kl = 0.5 * (
        np.trace(np.linalg.solve(prior, covariance))
        + mean @ np.linalg.solve(prior, mean)
        - len(mean)
        + np.linalg.slogdet(prior)[1]
        - np.linalg.slogdet(covariance)[1]
    )

    inducing = vargp.Inducing(jnp.asarray(z), jnp.asarray(m), jnp.asarray(raw))
    found = jax.jit(vargp.marginals)(theta, inducing, filled, jitter, jnp.asarray(x))
    np.testing.assert_allclose(found[0], weights @ mean, rtol=1e-9)
    np.testing.assert_allclose(found[1], wanted_variance, rtol=1e-9)
    _, means, roots = jax.jit(vargp.whitened)(theta, inducing, filled, jitter)
    kl = sum(vargp.divergence_from_standard(means[s], roots[s]) for s in range(filled))
    np.testing.assert_allclose(kl, wanted_kl, rtol=1e-9)


def test_the_derivative_of_an_inverse_root_is_that_of_the_direct_computation(wide):
    root = np.random.default_rng(0).normal(size=(4, 4))
    k, tangent = jnp.asarray(root @ root.T + np.eye(4)), jnp.asarray(root + root.T)

    def direct(k):
        return jnp.linalg.inv(jnp.linalg.cholesky(k))

    conformance.assert_close(
        jax.jvp(vargp.inverse_root, (k,), (tangent,)), jax.jvp(direct, (k,), (tangent,))
    )
