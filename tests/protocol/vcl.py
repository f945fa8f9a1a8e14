"""Variational continual learning with a random coreset (Nguyen et al. 2018), thin.

With q = N(μ, diag σ²) and N_t examples of task t without its coreset C_t,

    L = −(1/S) Σ_s mean log p(y | x, θ_s) + KL(q ‖ q_{t−1}) / N_t          on D_t \\ C_t

The prior q_0, and that of the columns of a new head, is N(0, 1); every other parameter's is the
last posterior. Task 1 begins with maximum likelihood for μ on all of D_1, with log σ² = −6.

Before a head is predicted, a copy of q is trained with the same L on the coreset of its task
(single head: of all tasks) with prior q, and thrown away after the prediction.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from funcl.draws import weight_draws
from funcl.errors import FunclError
from funcl.gaussian import Gaussian, kl, sample, seeds_of_draws
from funcl.likelihood import cross_entropy, probabilities
from funcl.memory.select import lowest, random_scores
from funcl.memory.store import Memory
from funcl.protocol import Batch, Head, Keys, Method, Phase, Problem, State, TaskData


class Reference(NamedTuple):
    """The prior, the number N_t that divides its KL, and the task's rows with the coreset last."""

    prior: Gaussian
    size: Array
    rows: Array


@dataclass(frozen=True)
class VCL(Method):
    """The last posterior is the next prior; `carried` is the memory of coresets."""

    coreset_size: int = 20
    strength: float = 1.0  # of the KL; 1 is Bayes
    draws: int = 10
    prediction_draws: int = 100
    initial_log_variance: float = -6.0

    name: ClassVar[str] = "vcl"

    def check(self, problem, sizes):
        for task, size in sizes.items():
            if not 0 < self.coreset_size < size:
                raise FunclError(
                    f"coreset_size={self.coreset_size} must leave some of the {size} examples of "
                    f"task {task!r}; choose 1 to {size - 1}."
                )

    def init(self, problem: Problem, keys: Keys) -> State:
        shapes = super().init(problem, keys).trainable
        leaves, structure = jax.tree.flatten(shapes)
        draws = [
            0.1 * jax.random.truncated_normal(key, -2, 2, leaf.shape, leaf.dtype)
            for key, leaf in zip(jax.random.split(keys.init, len(leaves)), leaves, strict=True)
        ]
        spread = jax.tree.map(lambda a: jnp.full_like(a, self.initial_log_variance), shapes)
        memory = Memory.empty(problem, self.coreset_size)
        return State(Gaussian(jax.tree.unflatten(structure, draws), spread), carried=memory)

    def begin_task(
        self, problem: Problem, state: State, task: TaskData, keys: Keys
    ) -> tuple[State, Reference]:
        chosen = lowest(random_scores(keys.context, task.y, task.valid_rows()), self.coreset_size)
        place = jnp.where(task.valid_rows(), 0, 2).at[chosen].set(1)
        memory = state.carried.insert(task, chosen, jnp.int32(self.coreset_size))
        size = (task.size - self.coreset_size).astype(problem.dtype)
        prior = self.prior(problem, state.trainable, task)
        return state._replace(carried=memory), Reference(prior, size, jnp.argsort(place))

    def prior(self, problem: Problem, posterior: Gaussian, task: TaskData) -> Gaussian:
        """The last posterior, with N(0, 1) for what no task has trained: all layers, or a head.

        The columns of heads that are still to come are their own prior, so that they stay put.
        """
        seen = jnp.arange(problem.stages) < task.stage
        earlier = jnp.any(task.heads.mask(problem.outputs) & seen[:, None], axis=0)
        new_columns = task.head.mask(problem.outputs) & ~earlier
        hidden = len(posterior.mean) - 1
        new = (*[task.stage == 0] * hidden, new_columns)

        def standard(layers):
            pairs = zip(layers, new, strict=True)
            return tuple(jax.tree.map(lambda a, n=n: jnp.where(n, 0, a), p) for p, n in pairs)

        return Gaussian(standard(posterior.mean), standard(posterior.log_variance))

    def phases(self):
        rows = {"withheld": self.coreset_size, "rows": lambda reference: reference.rows}
        return (
            Phase("start", self.likelihood_of_mean, first_only=True),
            Phase("fit", self.loss, self.penalty, **rows),
        )

    def likelihood_of_mean(self, problem, trainable, reference, batch, keys):
        return fit(problem.network.apply(trainable.mean, batch.x)[None], batch)

    def loss(self, problem, trainable, reference, batch, keys):
        logits = weight_draws(problem.network, trainable, batch.x, keys.noise, self.draws)
        return fit(logits, batch)

    def penalty(self, problem, trainable, reference, batch, keys):
        return self.strength * kl(trainable, reference.prior) / reference.size

    def predict(self, problem, state, x, stage, head, keys):
        mask = head.mask(problem.outputs)

        def member(words: Array) -> Array:
            return probabilities(problem.network.apply(sample(state.trainable, words), x), mask)

        words = seeds_of_draws(state.trainable, keys.noise, self.prediction_draws)
        members = jax.lax.map(member, words)
        return jnp.mean(members, axis=0)

    @property
    def adaptation(self):
        return Phase("adapt", self.loss, self.penalty)

    def recall(self, problem: Problem, state: State, stage: Array, head: Head):
        memory: Memory = state.carried
        if problem.head_width >= problem.outputs:  # a single head: all coresets, learnt ones first
            x, y = memory.x.reshape(-1, *problem.input_shape), memory.y.reshape(-1)
            size = jnp.sum(memory.size)
        else:
            x, y, size = memory.x[stage], memory.y[stage], memory.size[stage]
        data = TaskData(
            x=x,
            y=y,
            size=size,
            stage=stage,
            heads=Head(head.columns[None], head.valid[None]),
            masks=head.mask(problem.outputs)[None],
            group=jnp.zeros(y.shape, jnp.int32),
        )
        rows = jnp.arange(y.shape[0])
        return state, data, Reference(state.trainable, size.astype(problem.dtype), rows)


def fit(logits: Array, batch: Batch) -> tuple[Array, Array]:
    """Mean cross-entropy over draws and examples."""
    nll, correct = cross_entropy(logits, batch.y, batch.mask)
    return jnp.mean(nll), jnp.mean(correct, dtype=nll.dtype)
