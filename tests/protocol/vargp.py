"""VAR-GP in its thin form (Kapoor et al. 2021): one sparse Gaussian process per output, no network.

For every output, task t brings inducing inputs Z_t and a conditional
q(u_t | u_<t, ϑ) = N(K_t,<t K_<t,<t⁻¹ u_<t + m_t, R_t R_tᵀ); those of finished tasks are frozen. The
kernel γ² exp(−½ Σ_d (x_d − x'_d)²/σ_d²) has a Gaussian q(ϑ) over ϑ = (log σ_1..D, log γ), whose
prior is the last task's q. Objective:

    (N_t/|B|) Σ_B E[−log softmax(f(x))_y] + λ (β KL(q_t(ϑ) ‖ q_{t−1}(ϑ)) + E_ϑ Σ_c KL_u)

with λ = 1 in the paper. In coordinates v = L⁻¹ u, L Lᵀ = K(Z_≤t, Z_≤t) + jitter, the posterior is
block-diagonal, v_s ~ N(L_ss⁻¹ m_s, L_ss⁻¹ R_s R_sᵀ L_ss⁻ᵀ), so that with a = L⁻¹ K(Z_≤t, x)

    E f(x) = Σ_s a_sᵀ L_ss⁻¹ m_s,    Var f(x) = γ² − ‖a‖² + Σ_s ‖R_sᵀ L_ss⁻ᵀ a_s‖²
    KL_u = KL(N(m_t, R_t R_tᵀ) ‖ N(0, L_tt L_ttᵀ))

The first prior centres every σ_d on half the median distance of the data, not on 1 as in the
paper: far below the distances the kernel underflows and nothing can be learnt.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.linalg import solve_triangular

from funcl.gaussian import Gaussian, kl, sample, seeds_of_draws, standard_normal
from funcl.likelihood import cross_entropy, probabilities
from funcl.memory.select import lowest
from funcl.protocol import Keys, Method, Problem, State, TaskData


class Inducing(NamedTuple):
    """What a task adds to the posterior; finished tasks stand along a leading axis of stages."""

    z: Array  # [outputs, points, features]
    mean: Array  # m: [outputs, points]
    raw: Array  # R before its diagonal is made positive: [outputs, points, points]


class Posterior(NamedTuple):
    """All finished tasks: the first `finished` slots of `inducing` are filled."""

    hyper: Gaussian  # q(ϑ)
    inducing: Inducing
    finished: Array

    def and_then(self, hyper: Gaussian, task: Inducing) -> "Posterior":
        """With the task at hand; what is trained is (hyper, task)."""
        slots = jax.tree.map(lambda s, t: s.at[self.finished].set(t), self.inducing, task)
        return Posterior(hyper, slots, self.finished + 1)


@dataclass(frozen=True)
class VARGP(Method):
    """Variational autoregressive Gaussian processes."""

    points: int = 5  # M, for each task and output
    beta: float = 1.0
    strength: float = 1.0  # λ
    hyper_draws: int = 3
    function_draws: int = 10
    jitter: float = 1e-4

    name: ClassVar[str] = "vargp"
    scenarios: ClassVar[tuple[str, ...]] = ("single",)
    needs_network: ClassVar[bool] = False

    def optimiser(self) -> optax.GradientTransformation:
        return optax.yogi(1.0)

    def init(self, problem: Problem, keys: Keys) -> State:
        features, outputs, dtype = math.prod(problem.input_shape), problem.outputs, problem.dtype
        centre = {"scale": jnp.zeros(features, dtype), "amplitude": jnp.zeros((), dtype)}
        hyper = Gaussian(centre, jax.tree.map(jnp.zeros_like, centre))
        shapes = (self.points, features), (self.points,), (self.points, self.points)
        blank = Inducing(*(jnp.zeros((outputs, *shape), dtype) for shape in shapes))
        slots = jax.tree.map(lambda a: jnp.zeros((problem.stages, *a.shape), dtype), blank)
        return State((hyper, blank), carried=Posterior(hyper, slots, jnp.int32(0)))

    def begin_task(self, problem: Problem, state: State, task: TaskData, keys: Keys) -> Any:
        """Inducing inputs at random examples, other ones for every output; q(ϑ) as it was."""
        last, first = state.carried, task.stage == 0
        place, shift = jax.random.split(keys.init)
        places = jax.random.split(place, problem.outputs)
        u = jax.vmap(lambda key: jax.random.uniform(key, (problem.rows,)))(places)
        rows = lowest(jnp.where(task.valid_rows(), u, jnp.inf), self.points)
        z = problem.inputs(task.raw(rows.ravel())).reshape(rows.size, -1)
        distances = squared_distances(z, z)[jnp.triu_indices(rows.size, 1)]
        half = jnp.log(0.5 * jnp.sqrt(jnp.median(distances)))
        centre = {**last.hyper.mean, "scale": jnp.where(first, half, last.hyper.mean["scale"])}
        spread = jax.tree.map(lambda v: jnp.where(first, v - 2, v), last.hyper.log_variance)
        last = last._replace(hyper=Gaussian(centre, last.hyper.log_variance))
        identity = math.log(math.e - 1) * jnp.eye(self.points, dtype=z.dtype)
        inducing = Inducing(
            z.reshape(*rows.shape, -1),
            0.5 * standard_normal(jax.random.bits(shift, (2,), jnp.uint32), rows.shape, z.dtype),
            jnp.broadcast_to(identity, (*rows.shape, self.points)),
        )
        state = state._replace(trainable=(Gaussian(centre, spread), inducing))
        return state, (last, task.size)

    def loss(self, problem: Problem, trainable: Any, reference: Any, batch: Any, keys: Keys) -> Any:
        last, size = reference
        logits = self.draws(last.and_then(*trainable), batch.x, keys.noise)
        nll, correct = cross_entropy(logits, batch.y, batch.mask)
        accuracy = jnp.mean(correct, dtype=nll.dtype)
        return jnp.mean(nll) * size.astype(nll.dtype), accuracy

    def penalty(self, problem, trainable, reference, batch, keys) -> Array:
        """λ (β KL of ϑ + E_ϑ Σ_c KL of u), at the draws of ϑ that the loss takes too."""
        last, now = reference[0], reference[0].and_then(*trainable)

        def divergence(theta: Any, inducing: Inducing) -> Array:
            _, mean, root = whitened(theta, inducing, now.finished, self.jitter)
            return divergence_from_standard(mean[last.finished], root[last.finished])

        over_outputs = jax.vmap(divergence, (None, 1))
        kl_u = jax.vmap(over_outputs, (0, None))(self.thetas(now, keys.noise), now.inducing)
        kl_hyper = kl(trainable[0], last.hyper)
        return self.strength * (self.beta * kl_hyper + jnp.sum(jnp.mean(kl_u, axis=0)))

    def end_task(self, problem, state, reference, task, keys) -> State:
        return state._replace(carried=reference[0].and_then(*state.trainable))

    def predict(self, problem, state, x, stage, head, keys) -> Array:
        logits = self.draws(state.carried, x, keys.noise)
        return jnp.mean(probabilities(logits, head.mask(problem.outputs)), axis=0)

    def thetas(self, posterior: Posterior, key: Array) -> Any:
        """Draws of ϑ, along a leading axis."""
        words = seeds_of_draws(posterior.hyper, jax.random.fold_in(key, 0), self.hyper_draws)
        return jax.vmap(lambda own: sample(posterior.hyper, own))(words)

    def draws(self, posterior: Posterior, x: Array, key: Array) -> Array:
        """Function values [draws, examples, outputs], from the marginals of every example."""

        def one(theta: Any, inducing: Inducing) -> tuple[Array, Array]:
            flat = x.reshape(x.shape[0], -1)
            return marginals(theta, inducing, posterior.finished, self.jitter, flat)

        every = jax.vmap(jax.vmap(one, (None, 1), -1), (0, None))
        mean, variance = every(self.thetas(posterior, key), posterior.inducing)
        shape = (self.function_draws, *mean.shape)
        words = jax.random.bits(jax.random.fold_in(key, 1), (2,), jnp.uint32)
        noise = standard_normal(words, shape, mean.dtype)
        return (mean + jnp.sqrt(variance) * noise).reshape(-1, *mean.shape[1:])


def squared_distances(a: Array, b: Array) -> Array:
    cross = jnp.sum(a * a, axis=1)[:, None] + jnp.sum(b * b, axis=1) - 2 * a @ b.T
    return jnp.maximum(cross, 0)


def kernel(theta: Any, a: Array, b: Array) -> Array:
    scale = jnp.exp(-theta["scale"])
    return jnp.exp(2 * theta["amplitude"] - 0.5 * squared_distances(a * scale, b * scale))


@jax.custom_jvp
def inverse_root(k: Array) -> Array:
    """L⁻¹ where L Lᵀ = k; its derivative needs products only, no further triangular solve."""
    return solve_triangular(jnp.linalg.cholesky(k), jnp.eye(*k.shape, dtype=k.dtype), lower=True)


@inverse_root.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """dL⁻¹ = −Φ(L⁻¹ dk L⁻ᵀ) L⁻¹, where Φ keeps the lower triangle and half of the diagonal."""
    inverse = inverse_root(*primals)
    inner = inverse @ tangents[0] @ inverse.T
    return inverse, -(jnp.tril(inner) - 0.5 * jnp.diag(jnp.diag(inner))) @ inverse


def whitened(theta: Any, inducing: Inducing, finished: Array, jitter: float) -> tuple:
    """One output: L⁻¹, and mean and root of every block of v; unfilled slots stand apart."""
    stages, points, features = inducing.z.shape
    z = inducing.z.reshape(stages * points, features)
    filled = jnp.repeat(jnp.arange(stages) < finished, points)
    ridge = jnp.where(filled, jitter * jnp.exp(2 * theta["amplitude"]), 1)
    inner = jnp.where(filled[:, None] & filled, kernel(theta, z, z), 0)
    inverse = inverse_root(inner + jnp.diag(ridge))
    stage = jnp.arange(stages)
    blocks = inverse.reshape(stages, points, stages, points)[stage, :, stage]
    diagonal = jax.nn.softplus(jnp.diagonal(inducing.raw, axis1=1, axis2=2))
    root = jnp.tril(inducing.raw, -1) + diagonal[..., None] * jnp.eye(points, dtype=z.dtype)
    mean = jnp.einsum("smn,sn->sm", blocks, inducing.mean)
    return jnp.where(filled[:, None], inverse, 0), mean, blocks @ root


def marginals(theta: Any, inducing: Inducing, finished: Array, jitter: float, x: Array) -> tuple:
    """Mean and variance of one output at every x."""
    inverse, mean, root = whitened(theta, inducing, finished, jitter)
    stages, points, features = inducing.z.shape
    a = (inverse @ kernel(theta, inducing.z.reshape(-1, features), x)).reshape(stages, points, -1)
    added = jnp.einsum("smn,smb->snb", root, a)
    change = jnp.sum(added * added, axis=(0, 1)) - jnp.sum(a * a, axis=(0, 1))
    variance = jnp.maximum(jnp.exp(2 * theta["amplitude"]) + change, 1e-8)
    return jnp.einsum("sm,smb->b", mean, a), variance


def divergence_from_standard(mean: Array, root: Array) -> Array:
    """KL(N(mean, root rootᵀ) ‖ N(0, I)) of a triangular root."""
    logdet = jnp.sum(jnp.log(jnp.diagonal(root)))
    return 0.5 * (jnp.sum(root * root) + jnp.sum(mean * mean) - mean.shape[0]) - logdet
