"""FROMP in its thin form (Pan et al. 2020): hold class probabilities at a few memorable points.

Objective of task t, with μ the parameters as the task begins and H_s the head of task s:

    L(θ) = ℓ̄_t(θ) / τ + λ Σ_{s<t} Σ_{c∈H_s} ½ Δᵀ K⁻¹ Δ,    Δ = p_c(M_s; θ) − p_c(M_s; μ)
    K = G (F + δ)⁻¹ Gᵀ + ε I,    G = ∂p_c(M_s; μ)/∂θ,    F = Σ_{s<t} Σ_{i∈D_s} diag(J_iᵀ Λ_i J_i)

ℓ̄ is the mean cross-entropy and λ = 1 in the paper. At a task's end all of its data are read once:
F grows by the task's own share, and the points whose class is most in doubt, Σ_c p_c (1 − p_c),
are kept, taken from the classes in turn. The gradient is clipped to a global norm before Adam.

F is the derivative of a linearised variance with respect to the parameters' variances: with
log-probabilities read off the network, Σ_c p_c (∂ log p_c / ∂θ)² = diag(JᵀΛJ).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from funcl.gaussian import Gaussian
from funcl.likelihood import cross_entropy, log_probabilities, probabilities
from funcl.linearize import covariance_block, moments
from funcl.memory.select import lowest
from funcl.memory.store import Memory
from funcl.networks import Foreign, LayeredNetwork, Network
from funcl.networks.network import Visitor
from funcl.protocol import Head, Keys, Method, Problem, State, TaskData, required_network


class Carried(NamedTuple):
    """What is known of finished tasks."""

    memory: Memory
    curvature: Any  # F, shaped like the parameters


class Reference(NamedTuple):
    """The memorable points of every task, zero precision where there are none yet."""

    x: Array  # [stages, points, ...]
    heads: Head
    anchor: Array  # p_c(M_s; μ): [stages, head_width, points]
    precision: Array  # K⁻¹: [stages, head_width, points, points]


@dataclass(frozen=True)
class FROMP(Method):
    """Functional regularisation of memorable past."""

    points: int = 20
    temperature: float = 1.0  # τ
    strength: float = 1.0  # λ
    prior_precision: float = 1e-3  # δ
    noise: float = 1e-3  # ε
    clip: float = 1.0
    piece: int = 100  # examples in memory at once at a task's end

    name: ClassVar[str] = "fromp"

    def optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(1.0))

    def init(self, problem: Problem, keys: Keys) -> State:
        parameters = super().init(problem, keys).trainable
        curvature = jax.tree.map(jnp.zeros_like, parameters)
        return State(parameters, carried=Carried(Memory.empty(problem, self.points), curvature))

    def begin_task(self, problem: Problem, state: State, task: TaskData, keys: Keys) -> Any:
        """Anchors and kernels of every past task, all at the current parameters."""
        network, heads, (memory, curvature) = required_network(problem), task.heads, state.carried
        log_variance = jax.tree.map(lambda f: -jnp.log(f + self.prior_precision), curvature)
        posterior = Gaussian(state.trainable, log_variance)

        def fill(slot: Array, filled: tuple[Array, Array]) -> tuple[Array, Array]:
            head = Head(heads.columns[slot], heads.valid[slot])
            confident = reading(network, partial(probabilities, mask=head.mask(problem.outputs)))
            x = problem.inputs(memory.x[slot])
            kernel = partial(covariance_block, confident, posterior, x)
            stored = jnp.arange(self.points) < memory.size[slot]
            precision = jax.vmap(self.inverse)(
                jax.lax.map(kernel, head.columns), head.valid[:, None] & stored
            )
            anchor = confident.apply(state.trainable, x)[:, head.columns].T
            return filled[0].at[slot].set(anchor), filled[1].at[slot].set(precision)

        shape = (*heads.columns.shape, self.points)
        blank = jnp.zeros(shape, problem.dtype), jnp.zeros((*shape, self.points), problem.dtype)
        anchor, precision = jax.lax.fori_loop(0, task.stage, fill, blank)
        return state, Reference(memory.x, heads, anchor, precision)

    def inverse(self, kernel: Array, counted: Array) -> Array:
        """(kernel + ε I)⁻¹ over the points that count, zero elsewhere."""
        pairs = counted[:, None] & counted
        ridge = jnp.diag(jnp.where(counted, self.noise, 1).astype(kernel.dtype))
        factor = cho_factor(jnp.where(pairs, kernel, 0) + ridge)
        return jnp.where(pairs, cho_solve(factor, jnp.eye(*pairs.shape, dtype=kernel.dtype)), 0)

    def loss(self, problem: Problem, trainable: Any, reference: Any, batch: Any, keys: Keys) -> Any:
        logits = required_network(problem).apply(trainable, batch.x)
        nll, correct = cross_entropy(logits, batch.y, batch.mask)
        return jnp.mean(nll) / self.temperature, jnp.mean(correct, dtype=nll.dtype)

    def penalty(self, problem, trainable, reference, batch, keys) -> Array:
        """λ Σ_s Σ_c ½ Δᵀ K⁻¹ Δ."""
        stages, points, *shape = reference.x.shape
        x = problem.inputs(reference.x.reshape(stages * points, *shape))
        logits = required_network(problem).apply(trainable, x).reshape(stages, points, -1)
        p = probabilities(logits, reference.heads.mask(problem.outputs)[:, None])
        p = jnp.take_along_axis(p, reference.heads.columns[:, None], axis=2)
        gap = jnp.swapaxes(p, 1, 2) - reference.anchor
        return 0.5 * self.strength * jnp.einsum("scm,scmn,scn->", gap, reference.precision, gap)

    def end_task(self, problem, state, reference, task, keys) -> State:
        """One pass over all data: curvature, and the doubt about every example's class."""
        network, head, (memory, curvature) = required_network(problem), task.head, state.carried
        surprise = reading(network, partial(log_probabilities, mask=head.mask(problem.outputs)))
        flat = jax.tree.map(jnp.zeros_like, curvature)

        def look(total: Any, rows: Array) -> tuple[Any, Array]:
            valid = rows < task.size
            x = problem.inputs(task.raw(jnp.minimum(rows, problem.rows - 1)))
            columns = jnp.broadcast_to(head.columns, (self.piece, problem.head_width))
            p = jnp.exp(surprise.apply(state.trainable, x))[:, head.columns]
            weight = jnp.where(valid[:, None] & head.valid, p, 0)

            def spread(log_variance: Any) -> Array:
                q = Gaussian(state.trainable, log_variance)
                return jnp.sum(weight * moments(surprise, q, x, columns)[1])

            total = jax.tree.map(jnp.add, total, jax.grad(spread)(flat))
            return total, jnp.sum(weight * (1 - p), axis=1)

        pieces = -(-problem.rows // self.piece)
        rows = jnp.arange(pieces * self.piece).reshape(pieces, self.piece)
        curvature, doubt = jax.lax.scan(look, curvature, rows)
        scores = turns(doubt.ravel()[: problem.rows], task.y, task.valid_rows())
        size = jnp.minimum(self.points, task.size)
        memory = memory.insert(task, lowest(scores, self.points), size)
        return state._replace(carried=Carried(memory, curvature))

    def predict(self, problem, state, x, stage, head, keys) -> Array:
        logits = required_network(problem).apply(state.trainable, x)
        return probabilities(logits, head.mask(problem.outputs))


def turns(doubt: Array, y: Array, valid: Array) -> Array:
    """Each example's place in its own class, most doubtful first; padding comes last of all."""
    order = jnp.lexsort((-doubt, y, ~valid))
    label = jnp.where(valid, y, jnp.iinfo(jnp.int32).max)[order]
    places = jnp.arange(label.shape[0]) - jnp.searchsorted(label, label)
    return jnp.where(valid, jnp.zeros_like(places).at[order].set(places), label.shape[0])


@dataclass(frozen=True)
class Reading(LayeredNetwork):
    """A layered network with a function of its outputs on top."""

    network: LayeredNetwork
    read: Callable[[Array], Array]

    def forward(self, x: Array, visit: Visitor) -> Array:
        return self.read(self.network.forward(x, visit))


def reading(network: Network, read: Callable[[Array], Array]) -> Network:
    """`read` of the network's outputs, with its layers still exposed where they are."""
    if isinstance(network, LayeredNetwork):
        return Reading(network, read)
    return Foreign(network.init, lambda parameters, x: read(network.apply(parameters, x)))
