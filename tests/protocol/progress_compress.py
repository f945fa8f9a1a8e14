"""Progress & Compress (Schwarz et al. 2018), thin: two columns, two phases, the first predicts.

Progress trains an active column A, made anew for every task, that sees the features k of the
knowledge base K as the last task left it (from the second task on):

    h_i = σ( W_i h_{i−1} + b_i + α_i ⊙ U_i σ(V_i k_{i−1} + c_i) ),  i ≥ 2;   L = −mean log π_A(y|x)

Compress distils A, now fixed, into K at temperature τ, held by online EWC:

    L = mean KL( π_A(·|x) ‖ π_K(·|x) ) + ½ λ γ Σ_j F*_j (θ_j − θ̃_j)²
    F* ← γ F* + F / ‖F‖₂,   F_j = mean E_{y∼π_K}[ (∂_j log π_K(y|x))² ] on the task, at its end
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from funcl.likelihood import cross_entropy, log_probabilities, probabilities
from funcl.networks.layers import Dense, Layer
from funcl.protocol import Keys, Method, Phase, Problem, State, TaskData

PyTree = Any
FISHER_ROWS = 64  # examples whose gradients are in memory at once


class Columns(NamedTuple):
    """All that is trained; `adaptors[i]` feeds layer i + 1 of the active column."""

    knowledge: PyTree
    active: PyTree
    adaptors: PyTree


class Reference(NamedTuple):
    """The knowledge base that the task found: anchor, and source of lateral features."""

    knowledge: PyTree
    importance: PyTree
    connected: Array  # 1 from the second task on


@dataclass(frozen=True)
class ProgressCompress(Method):
    """Learn with help from what is known, then write it into what is known. `carried` is F*."""

    strength: float = 15.0
    decay: float = 0.99
    temperature: float = 2.0
    distilling_rate: float = 0.5  # of the learning rate

    name: ClassVar[str] = "progress-compress"

    def init(self, problem, keys):
        knowledge = super().init(problem, keys).trainable
        columns = Columns(knowledge, *self.fresh_column(problem, keys.fold(0)))
        return State(columns, carried=jax.tree.map(jnp.zeros_like, knowledge))

    def fresh_column(self, problem: Problem, keys: Keys) -> tuple[PyTree, PyTree]:
        """A new active column and its lateral connections."""
        active = super().init(problem, keys).trainable
        adaptors = []
        for number, layer in enumerate(active[1:]):
            fan_in, fan_out = layer["weight"].shape
            v, u, a = jax.random.split(jax.random.fold_in(keys.init, number), 3)
            scale = jax.random.uniform(a, (fan_out,), maxval=0.1)
            up = Dense.init(u, fan_in, fan_out)["weight"]
            adaptors.append({"v": Dense.init(v, fan_in, fan_in), "u": up, "alpha": scale})
        return active, adaptors

    def begin_task(self, problem, state, task, keys):
        connected = (task.stage > 0).astype(problem.dtype)
        return state, Reference(state.trainable.knowledge, state.carried, connected)

    def phases(self):
        return (
            Phase("progress", self.loss, enter=self.renew),
            Phase("compress", self.distillation, self.penalty, trained=self.knowledge_only),
        )

    def renew(self, problem, state, reference, task, keys):
        fresh = Columns(state.trainable.knowledge, *self.fresh_column(problem, keys))
        return state._replace(trainable=fresh)

    def knowledge_only(self, problem, trainable, reference):
        rates = (self.distilling_rate, 0.0, 0.0)
        parts = zip(trainable, rates, strict=True)
        return Columns(*(jax.tree.map(lambda _, r=rate: r, part) for part, rate in parts))

    def active_logits(self, problem, columns: Columns, reference: Reference, x: Array) -> Array:
        """The active column's outputs, with the features of the reference's knowledge base."""
        _, _, features, _ = problem.network.trace(reference.knowledge, x)

        def visit(index: int, layer: Layer, inputs: Array) -> Array:
            own = layer(columns.active[index], inputs)
            if index == 0:
                return own
            adaptor = columns.adaptors[index - 1]
            lateral = jax.nn.relu(layer(adaptor["v"], features[index])) @ adaptor["u"]
            return own + reference.connected * adaptor["alpha"] * lateral

        return problem.network.forward(x, visit)

    def loss(self, problem, trainable, reference, batch, keys):
        logits = self.active_logits(problem, trainable, reference, batch.x)
        nll, correct = cross_entropy(logits, batch.y, batch.mask)
        return jnp.mean(nll), jnp.mean(correct, dtype=nll.dtype)

    def distillation(self, problem, trainable, reference, batch, keys):
        teacher = self.active_logits(problem, jax.lax.stop_gradient(trainable), reference, batch.x)
        student = problem.network.apply(trainable.knowledge, batch.x)
        log_a = log_probabilities(teacher / self.temperature, batch.mask)
        log_k = log_probabilities(student / self.temperature, batch.mask)
        divergence = jnp.sum(jnp.where(batch.mask, jnp.exp(log_a) * (log_a - log_k), 0), axis=-1)
        _, correct = cross_entropy(student, batch.y, batch.mask)
        return jnp.mean(divergence), jnp.mean(correct, dtype=divergence.dtype)

    def penalty(self, problem, trainable, reference, batch, keys):
        held = trainable.knowledge, reference.knowledge, reference.importance
        pulls = jax.tree.map(lambda p, a, f: jnp.sum(f * jnp.square(p - a)), *held)
        return 0.5 * self.strength * self.decay * jax.tree.reduce(jnp.add, pulls)

    def end_task(self, problem, state, reference, task, keys):
        fisher = fisher_diagonal(problem, state.trainable.knowledge, task)
        squares = jax.tree.map(lambda f: jnp.sum(jnp.square(f)), fisher)
        norm = jnp.sqrt(jax.tree.reduce(jnp.add, squares)) + jnp.finfo(problem.dtype).tiny
        total = jax.tree.map(lambda old, f: self.decay * old + f / norm, state.carried, fisher)
        return state._replace(carried=total)

    def predict(self, problem, state, x, stage, head, keys):
        logits = problem.network.apply(state.trainable.knowledge, x)
        return probabilities(logits, head.mask(problem.outputs))


def fisher_diagonal(problem: Problem, parameters: PyTree, task: TaskData) -> PyTree:
    """Mean over the task's examples of E_{y∼p}[(∂ log p(y))²], every label of the head in turn."""
    last = task.y.shape[0] - 1

    def one(row: Array) -> PyTree:
        real, row = row < task.size, jnp.minimum(row, last)
        x, mask = problem.inputs(task.raw(row[None])), task.masks[task.group[row]]

        def log_p(parameters: PyTree) -> Array:
            return log_probabilities(problem.network.apply(parameters, x)[0], mask)[
                task.head.columns
            ]

        weights = jnp.where(task.head.valid & real, jnp.exp(log_p(parameters)), 0)
        jacobian = jax.jacrev(log_p)(parameters)
        return jax.tree.map(lambda j: jnp.tensordot(weights, jnp.square(j), 1), jacobian)

    def piece(rows: Array) -> PyTree:
        return jax.tree.map(lambda s: jnp.sum(s, axis=0), jax.vmap(one)(rows))

    pieces = -(-(last + 1) // FISHER_ROWS)
    sums = jax.lax.map(piece, jnp.arange(pieces * FISHER_ROWS).reshape(pieces, FISHER_ROWS))
    size = task.size.astype(problem.dtype)
    return jax.tree.map(lambda s: jnp.sum(s, axis=0) / size, sums)
