"""S-FSVI: sequential function-space variational inference (Rudner et al., ICML 2022).

At task t, with q a mean-field Gaussian over parameters and p the posterior after task t−1,

    L = −(1/S) Σ_s Σ_b log softmax_head( f(x_b; θ_s) )[y_b]  +  c Σ_{j ∈ context, k ∈ head(j)} KL_jk
    KL_jk = ½ [ log(Kᵖ/K^q) + K^q/Kᵖ − 1 + (f_k(x_j; μ) − mᵖ_jk)² / Kᵖ ]
    K^q_jk = Σ_p (∂f_k(x_j; μ)/∂μ_p)² σ²_p                                   (paper, Proposition 1)

Gradients flow through the function values, the Jacobian and the variances. At task 1 the prior is
a constant on function values; later it is the last posterior linearised at its own mean.

Where this follows the authors' code rather than the paper: σ = exp(½ log σ²) is a standard
deviation; the KL has the scale c (`kl_scale`); a context point is compared on its own task's head
only; at t > 1 the context holds points of earlier tasks only, unless `own_context` is given; the
prior variance is a variance of function values; optimiser state survives tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from funcl.branches import one_of
from funcl.checked import real, whole
from funcl.draws import local_draws, weight_draws
from funcl.errors import FunclError, unknown
from funcl.gaussian import Gaussian, kl_of_moments
from funcl.likelihood import cross_entropy, probabilities
from funcl.linearize import moments
from funcl.memory.context import (
    Coreset,
    MadeUp,
    Noise,
    Source,
    finished_choice,
    recall_in_total,
    recall_per_task,
    spread,
)
from funcl.memory.select import lowest, rule
from funcl.memory.store import Memory
from funcl.networks.network import LayeredNetwork
from funcl.protocol import Batch, Head, Keys, Method, Problem, State, TaskData, required_network


class Reference(NamedTuple):
    """What a task holds constant: the last posterior, the memory, and the prior at its points."""

    posterior: Gaussian
    memory: Memory | None
    mean: Array | None  # of the prior at every memory point: [stages, capacity, head_width]
    variance: Array | None
    heads: Head


class Context(NamedTuple):
    """The context points of one step and the prior there."""

    x: Array  # [points, ...]
    slot: Array  # int32 [points]: the stage whose head each point is compared on
    valid: Array  # bool [points]
    mean: Array  # [points, head_width]
    variance: Array


@dataclass(frozen=True)
class SFSVI(Method):
    """Sequential function-space variational inference.

    `kl_scale` is the factor c of the KL sum: "equal" is batch / points, "normalized" is 1 / points,
    "none" is 1, a number is itself. `likelihood` estimates the data term with "weights" draws (as
    published) or with "local" reparameterisation (dense layers; same objective, less noise).
    `prediction` averages the class probabilities of the draws, or their "logits" (as published).
    """

    prior_mean: float = 0.0
    prior_variance: float = 1.0
    draws: int = 5
    likelihood: str = "local"
    kl_scale: str | float = "normalized"
    first_context: MadeUp = Noise(40)
    context: Source = field(default=Coreset(40), metadata={"first_read": 2})
    second_context: Source | None = field(default=None, metadata={"first_read": 2})
    own_context: MadeUp | None = field(default=None, metadata={"first_read": 2})
    coreset_size: int = field(default=40, metadata={"first_read": 2})
    coreset_selection: str = field(default="random", metadata={"first_read": 2})
    prediction: str = field(default="probabilities", metadata={"first_read": None})
    prediction_draws: int = field(default=20, metadata={"first_read": None})
    initial_log_variance: tuple[float, float] = (-10.0, -8.0)

    name: ClassVar[str] = "sfsvi"
    keeps_optimiser: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that cannot work anywhere."""
        real("prior_mean", self.prior_mean)
        real("prior_variance", self.prior_variance, "a positive number", above=0)
        for setting in ("draws", "prediction_draws", "coreset_size"):
            whole(setting, getattr(self, setting))
        ends = self.initial_log_variance
        if not isinstance(ends, tuple | list) or len(ends) != 2:
            raise FunclError(f"initial_log_variance takes two numbers, low and high, not {ends!r}.")
        low, high = (real("initial_log_variance", v) for v in ends)
        if low > high:
            raise FunclError(f"initial_log_variance goes from low to high, not {(low, high)}.")
        if isinstance(self.kl_scale, str):
            if self.kl_scale not in KL_SCALES:
                raise unknown("KL scale", self.kl_scale, KL_SCALES)
        elif real("kl_scale", self.kl_scale) < 0:
            raise FunclError(f"kl_scale must not be negative, not {self.kl_scale}.")
        if self.likelihood not in ("weights", "local"):
            raise unknown("likelihood estimator", self.likelihood, ("weights", "local"))
        if self.prediction not in ("probabilities", "logits"):
            raise unknown("prediction rule", self.prediction, ("probabilities", "logits"))
        rule(self.coreset_selection)
        for setting in ("first_context", "context", "second_context", "own_context"):
            source = getattr(self, setting)
            optional = setting in ("second_context", "own_context")
            if not isinstance(source, Source) and not (optional and source is None):
                raise FunclError(
                    f"{setting} must be a source of context points such as "
                    f"funcl.memory.Noise(40), Pixels or Coreset, not {source!r}."
                )
            if setting in ("first_context", "own_context") and isinstance(source, Coreset):
                raise FunclError(
                    f"{setting} cannot be a Coreset: memory holds earlier tasks only. "
                    "Use Noise or Pixels."
                )

    def check(self, problem: Problem, sizes: Mapping[str, int]) -> None:
        """Refuse settings that do not go with the network or the tasks."""
        if self.likelihood == "local" and not isinstance(problem.network, LayeredNetwork):
            raise FunclError(
                "likelihood='local' needs a network that exposes its layers; "
                "use likelihood='weights' with this one."
            )
        if self.remembers:
            for task, size in sizes.items():
                if self.coreset_size > size:
                    raise FunclError(
                        f"coreset_size={self.coreset_size} is larger than task {task!r} "
                        f"with its {size} examples; choose at most {size}."
                    )

    @property
    def remembers(self) -> bool:
        """Whether any context comes from stored examples."""
        return any(isinstance(s, Coreset) for s in (self.context, self.second_context))

    def init(self, problem: Problem, keys: Keys) -> State:
        """Means by the network's own rule, log-variances uniform; an empty memory."""
        network = required_network(problem)
        mean = network.init(keys.init, problem.input_shape, problem.outputs)
        low, high = self.initial_log_variance

        def log_variance(m: Array) -> Array:
            # One constant key, as published: variances do not differ between seeds.
            return jax.random.uniform(jax.random.key(0), m.shape, m.dtype, low, high)

        memory = Memory.empty(problem, self.coreset_size) if self.remembers else None
        return State(Gaussian(mean, jax.tree.map(log_variance, mean)), carried=memory)

    def begin_task(
        self, problem: Problem, state: State, task: TaskData, keys: Keys
    ) -> tuple[State, Reference]:
        """Freeze the last posterior, and linearise it once at every stored point."""
        memory: Memory | None = state.carried
        mean = spread_ = None
        if memory is not None:
            shape = (*memory.y.shape, problem.head_width)
            blank = jnp.zeros(shape, problem.dtype)

            def fill(slot: Array, filled: tuple[Array, Array]) -> tuple[Array, Array]:
                columns = jnp.broadcast_to(task.heads.columns[slot], shape[1:])
                m, v = moments(
                    required_network(problem),
                    state.trainable,
                    problem.inputs(memory.x[slot]),
                    columns,
                )
                return filled[0].at[slot].set(m), filled[1].at[slot].set(v)

            mean, spread_ = jax.lax.fori_loop(0, task.stage, fill, (blank, blank + 1))
        return state, Reference(state.trainable, memory, mean, spread_, task.heads)

    def loss(
        self, problem: Problem, trainable: Gaussian, reference: Reference, batch: Batch, keys: Keys
    ) -> tuple[Array, Array]:
        """−E_q[log p(y | f(x))], summed over the batch."""
        network = required_network(problem)
        if self.likelihood == "local":
            assert isinstance(network, LayeredNetwork)
            logits = local_draws(network, trainable, batch.x, keys.noise, self.draws)
        else:
            logits = weight_draws(network, trainable, batch.x, keys.noise, self.draws)
        nll, correct = cross_entropy(logits, batch.y, batch.mask)
        return jnp.sum(nll) / self.draws, jnp.mean(correct, dtype=nll.dtype)

    def penalty(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, problem: Problem, trainable: Gaussian, reference: Reference, batch: Batch, keys: Keys
    ) -> Array:
        """c Σ KL between the linearised posterior and prior at the context points.

        The number of points grows with the tasks. One branch per doubling keeps one compiled
        program and wastes at most half of its points.
        """
        plans = self.plans(problem)

        def first(q: Gaussian, reference: Reference, b: Batch, k: Keys) -> Array:
            return self.divergence(problem, q, reference, b, self.first(reference, b, k))

        branches = [first]
        for slots in plans:

            def later(
                q: Gaussian, reference: Reference, b: Batch, k: Keys, slots: int = slots
            ) -> Array:
                context = self.later(problem, reference, b, k, slots)
                return self.divergence(problem, q, reference, b, context)

            branches.append(later)
        # By the stage of the batch: the reference is every seed's own, and a choice that differs
        # between seeds would run all branches.
        branch = jnp.where(
            batch.stage == 0, 0, 1 + jnp.searchsorted(jnp.array(plans, int), batch.stage)
        )
        return one_of(branch, branches, trainable, reference, batch, keys)

    def plans(self, problem: Problem) -> list[int]:
        """Upper bounds of finished tasks, in order, that get a branch of their own."""
        most = problem.stages - 1
        if most < 1:
            return []
        if any(s is not None and s.per_task for s in (self.context, self.own_context)):
            return [*(2**n for n in range((most - 1).bit_length())), most]
        return sorted({1, most}) if self.second_context else [most]

    def first(self, reference: Reference, batch: Batch, keys: Keys) -> Context:
        """Task 1: made-up points and a constant prior on their function values."""
        points = self.first_context.points
        x = self.first_context.draw(keys.context, batch.x, points)
        shape = (points, reference.heads.columns.shape[1])
        return Context(
            x,
            jnp.zeros(points, int),
            jnp.ones(points, bool),
            jnp.full(shape, self.prior_mean, x.dtype),
            jnp.full(shape, self.prior_variance, x.dtype),
        )

    def later(
        self, problem: Problem, reference: Reference, batch: Batch, keys: Keys, slots: int
    ) -> Context:
        """Task t > 1: points of up to `slots` earlier tasks, and the task's own if wanted."""
        parts = []
        source = self.second_context if self.second_context and slots == 1 else self.context
        finished = batch.stage
        slot_key, key, own_key = jax.random.split(keys.context, 3)
        if isinstance(source, Coreset):
            parts.append(self.remembered(problem, reference, source, key, finished, slots))
        else:
            assert isinstance(source, MadeUp)
            slot, valid = shared_out(source, slot_key, finished, slots, problem.stages)
            x = source.draw(key, batch.x, slot.shape[0])
            parts.append(self.compared(problem, reference, x, slot, valid))
        if self.own_context is not None:
            own = self.own_context
            points = own.count(slots + 1)
            valid = jnp.arange(points) < own.count(finished + 1)
            x = own.draw(own_key, batch.x, points)
            parts.append(self.compared(problem, reference, x, jnp.full(points, finished), valid))
        return Context(*(jnp.concatenate(piece) for piece in zip(*parts, strict=True)))

    def remembered(
        self,
        problem: Problem,
        reference: Reference,
        source: Coreset,
        key: Array,
        finished: Array,
        slots: int,
    ) -> Context:
        """Points of the memory, with the prior that `begin_task` computed there."""
        memory = reference.memory
        assert memory is not None
        assert reference.mean is not None
        assert reference.variance is not None
        how = (key, memory, finished)
        if source.per_task:
            drawn = recall_per_task(*how, slots, source.points, self.coreset_selection)
        else:
            drawn = recall_in_total(*how, source.points, self.coreset_selection)
        where = drawn.slot, drawn.row
        return Context(
            problem.inputs(memory.x[where]),
            drawn.slot,
            drawn.valid,
            reference.mean[where],
            reference.variance[where],
        )

    def compared(
        self, problem: Problem, reference: Reference, x: Array, slot: Array, valid: Array
    ) -> Context:
        """Made-up points, with the last posterior linearised there."""
        columns = reference.heads.columns[slot]
        m, v = moments(required_network(problem), reference.posterior, x, columns)
        return Context(x, slot, valid, m, v)

    def divergence(
        self,
        problem: Problem,
        q: Gaussian,
        reference: Reference,
        batch: Batch,
        context: Context,
    ) -> Array:
        """c Σ_j Σ_k KL_jk over valid points and the columns of their heads."""
        columns = reference.heads.columns[context.slot]
        counted = reference.heads.valid[context.slot] & context.valid[:, None]
        # What does not count is compared as if it were equal: padding may have no variance, and a
        # KL that is masked only afterwards would still send NaN back through its gradient.
        m, v = moments(required_network(problem), q, context.x, columns)
        mean, spread_ = jnp.where(counted, m, 0), jnp.where(counted, v, 1)
        prior_mean = jnp.where(counted, context.mean, 0)
        prior_variance = jnp.where(counted, context.variance, 1)
        total = jnp.sum(kl_of_moments(mean, spread_, prior_mean, prior_variance))
        if not isinstance(self.kl_scale, str):
            return self.kl_scale * total
        points = jnp.maximum(jnp.sum(context.valid), 1).astype(total.dtype)
        return total * KL_SCALES[self.kl_scale](batch.y.shape[0], points)

    def end_task(
        self, problem: Problem, state: State, reference: Reference, task: TaskData, keys: Keys
    ) -> State:
        """Choose the coreset of the finished task."""
        if state.carried is None:
            return state
        scores = rule(self.coreset_selection)(keys.context, task.y, task.valid_rows())
        rows = lowest(scores, self.coreset_size)
        size = jnp.minimum(self.coreset_size, task.size)
        return state._replace(carried=state.carried.insert(task, rows, size))

    def predict(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head, keys: Keys
    ) -> Array:
        """Average over weight draws, the same for all inputs."""
        network = required_network(problem)
        how_many = self.prediction_draws
        logits = weight_draws(network, state.trainable, x, keys.noise, how_many, False)
        mask = head.mask(problem.outputs)
        if self.prediction == "logits":
            return probabilities(jnp.mean(logits, axis=0), mask)
        return jnp.mean(probabilities(logits, mask), axis=0)

    def moments(
        self, problem: Problem, state: State, x: Array, stage: Array, head: Head
    ) -> tuple[Array, Array]:
        """Mean and variance of the linearised function on the head."""
        columns = jnp.broadcast_to(head.columns, (x.shape[0], head.columns.shape[0]))
        return moments(required_network(problem), state.trainable, x, columns)


KL_SCALES = {
    "equal": lambda batch, points: batch / points,
    "normalized": lambda batch, points: 1 / points,
    "none": lambda batch, points: 1.0,
}


def shared_out(
    source: Source, key: Array, finished: Array, slots: int, stages: int
) -> tuple[Array, Array]:
    """Which earlier task's head each made-up point is compared on, and which points count."""
    if source.per_task:
        slot = jnp.repeat(jnp.arange(slots), source.points)
        return slot, slot < finished
    groups = min(source.points, stages)
    group, _ = spread(source.points, finished, groups)
    slot = finished_choice(key, finished, stages, groups)[group]
    return slot, jnp.ones(source.points, bool)
