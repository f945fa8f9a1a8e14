"""What every method has to pass, one function per property.

    check_xxx(method, heads, ...)

takes a method value and "multi" or "single" and fails with an AssertionError. The functions are
independent of each other and of any table: import them and call them for a method of your own, or
all of those that need nothing but the method:

    for check in EVERY_METHOD:
        check(SFSVI(), "multi")

All use the tiny sequences of `tiny.py` in double precision, and share one whole run per method
(`tiny.finished`), so that the second check of a method compiles little. Methods with a strength
also go through `check_strength_zero` and `check_strength_huge`, those with a memory of any kind
(stored examples, importances, anchors) through `check_memory_matters`, which says how to pass them.
"""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import subjaxprs

from funcl.methods import FineTune, Joint
from funcl.methods.wrapper import Wrapper
from funcl.train import checkpoint
from funcl.train.engine import Engine
from methods import tiny

SAME = 1e-10  # relative, in double precision: layouts, vmap against loop, jit against eager
SAME_IN_SINGLE = 2e-3  # relative to the largest value, in single precision after 100 steps


def in_double_precision(check):
    """Run a check in float64."""

    @functools.wraps(check)
    def checked(*arguments, **options):
        with tiny.double_precision():
            return check(*arguments, **options)

    return checked


# ---------------------------------------------------------------------- comparing


def arrays(tree):
    """The leaves of a pytree off the device, random keys as numbers."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    found = {}
    for path, leaf in flat:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found[jax.tree_util.keystr(path)] = np.asarray(leaf)
    return found


def assert_close(one, other, relative=SAME):
    """Every leaf agrees, relative to the leaf's largest value."""
    one, other = arrays(one), arrays(other)
    assert one.keys() == other.keys()
    for path in one:
        scale = np.max(np.abs(one[path]), initial=0) if one[path].dtype.kind == "f" else 0
        np.testing.assert_allclose(
            one[path], other[path], rtol=0, atol=relative * scale, err_msg=path
        )


def assert_identical(one, other):
    """Every leaf agrees to the bit."""
    one, other = arrays(one), arrays(other)
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], other[path], err_msg=path)


def differ(one, other):
    """Whether some leaf differs by more than rounding."""
    one, other = arrays(one), arrays(other)
    return any(not np.allclose(one[p], other[p], rtol=1e-6, atol=1e-9) for p in one)


def assert_same_scores(one, other):
    """Two histories hold the same scores."""
    for name in ("accuracy", "nll", "brier", "ece", "entropy"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


# ---------------------------------------------------------------------- (a) jit = eager


class EagerEngine(Engine):
    """An engine that compiles nothing and takes one seed after the other."""

    def _run(self, name, function, seeded, *arguments):
        seeds = []
        with jax.disable_jit():
            for seed in range(len(self.seeds.numbers)):
                own = [
                    jax.tree.map(lambda a, seed=seed: a[seed], a) if s else a
                    for a, s in zip(arguments, seeded, strict=True)
                ]
                seeds.append(function(*own))
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)


@in_double_precision
def check_jit_equals_eager(method, heads):
    """Beginning a stage and one optimiser step give the same numbers without a compiler."""
    run = tiny.finished(method, heads)
    stage = min(1, len(run.runner.stages) - 1)
    eager = EagerEngine(run.engine.problem, method, tiny.TRAINING, tiny.TWO_SEEDS)
    assert_close(*(one_step(engine, run, stage) for engine in (run.engine, eager)))


def one_step(engine, run, stage):
    """What the first step of a stage gives, from the state before that stage."""
    task = engine.layout.place(run.runner.data(stage), seeded=False)
    learned, reference = engine.begin(run.after(stage).learned, task)
    number = next(
        n for n, phase in enumerate(engine.phases) if engine.steps(phase, stage, int(task.size))
    )
    learned = engine._enter(learned, reference, task, number)
    phase = engine.phases[number]
    learned, report = engine._chunk(phase, learned, reference, task, number, 0, 1, 1)
    return learned, reference, report.loss, report.penalty


# ---------------------------------------------------------------------- (b), (i) layout


@in_double_precision
def check_layout_is_inert(method, heads):
    """Seeds mapped one after the other or vmapped, with room to spare or without: the same result.

    The second run has more room for rows, for columns of a head and for stages than it needs. That
    a single seed does the same on its own is part of `check_jit_equals_eager`.
    """
    run = tiny.finished(method, heads)
    problem = run.engine.problem
    other = tiny.runner(method, heads, evaluate="none")
    other.problem = replace(
        problem,
        rows=problem.rows + 24,
        head_width=problem.head_width + 2,
        stages=problem.stages + 2,
    )
    vmapped = replace(tiny.TRAINING, seed_axis="vmap")
    other.engine = Engine(other.problem, method, vmapped, tiny.TWO_SEEDS)
    for snapshot, its in zip(run.snapshots, tiny.Finished(other).snapshots, strict=True):
        assert_close(snapshot.learned.state.trainable, its.learned.state.trainable)
        if snapshot.report is not None:
            assert_close(numbers(snapshot.report), numbers(its.report))


def numbers(report):
    """What a chunk of steps looked like."""
    return report.loss, report.penalty, report.accuracy


def stage_trained(engine, run, stage):
    """A stage trained from the run's state before it: what `engine.end` takes to finish it."""
    task = run.runner.data(stage)
    learned, reference = engine.begin(run.after(stage).learned, task)
    *_, (learned, _, _) = engine.train(learned, reference, task)
    return learned, reference, task


def check_seed_axis_in_single_precision(method, heads):
    """After 100 steps in float32, mapped and vmapped seeds agree within a stated tolerance."""
    states = []
    for axis in ("map", "vmap"):
        training = replace(
            tiny.TRAINING,
            precision="float32",
            seed_axis=axis,
            epochs=50,
            chunk=100,
            learning_rate=1e-3,
        )
        runner = tiny.runner(method, heads, training, evaluate="none")
        snapshot = next(s for s in runner.advance(runner.start()) if s.report is not None)
        assert snapshot.report.step == 100
        states.append(snapshot.learned.state.trainable)
    assert_close(*states, relative=SAME_IN_SINGLE)


# ---------------------------------------------------------------------- (c) compilations


@in_double_precision
def check_compiled_once(method, heads):
    """A whole known sequence traces and compiles each program once, one per phase."""
    fresh = {
        name: (program.traces, len(program._compiled))
        for name, program in tiny.finished(method, heads).engine.programs.items()
    }
    assert fresh == dict.fromkeys(fresh, (1, 1))
    trained = {name for name in fresh if name.startswith("chunk ")}
    assert trained == {f"chunk {phase.name}" for phase in method.phases()}


class TracingEngine(Engine):
    """An engine that keeps what would be compiled, and gives zeros for its results."""

    def _run(self, name, function, seeded, *arguments):
        mapped = self.layout.over_seeds(function, seeded)
        self.traced, shapes = jax.make_jaxpr(mapped, return_shape=True)(*arguments)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


@in_double_precision
def check_seeds_share_branches(method, heads):
    """Laid out side by side, seeds still take one branch of every choice between branches.

    A choice that could differ between seeds becomes one of results, after all branches have run.
    """
    run = tiny.finished(method, heads)
    last = len(run.runner.stages) - 1
    task, before = run.runner.data(last), run.after(last).learned
    learned, reference = run.engine.begin(before, task)
    for number, phase in enumerate(method.phases()):
        found = []
        for axis in ("map", "vmap"):
            training = replace(tiny.TRAINING, seed_axis=axis)
            engine = TracingEngine(run.engine.problem, method, training, tiny.TWO_SEEDS)
            engine._chunk(phase, learned, reference, task, number, 0, 1, 1)
            found.append(choices(engine.traced.jaxpr))
        assert found[0] == found[1], phase.name


def choices(jaxpr):
    """How many branches each choice in a program has, the programs inside it included."""
    chosen = [e.params["branches"] for e in jaxpr.eqns if e.primitive.name == "cond"]
    inside = [size for inner in subjaxprs(jaxpr) for size in choices(inner)]
    return [*map(len, chosen), *inside]


# ---------------------------------------------------------------------- (d) save and restore


@in_double_precision
def check_restore(method, heads, folder):
    """A run saved in the middle of a stage and gone on with elsewhere ends in the same bits."""
    run = tiny.finished(method, heads)
    saved = run.middle()
    held = {"learned": saved.learned, "reference": saved.reference}
    checkpoint.save(folder, run.engine.kept(held), {})

    other = tiny.runner(method, heads)
    other.engine.programs = run.engine.programs
    shapes = other.engine.templates(other.data(saved.stage))
    loaded = checkpoint.load_arrays(folder, dict(zip(held, shapes, strict=True)))
    restored = {name: other.engine.restored(tree) for name, tree in loaded.items()}
    *_, last = other.advance(replace(saved, **restored))
    assert_identical(last.learned, run.last.learned)
    assert_same_scores(last.history, run.last.history)


# ---------------------------------------------------------------------- (e), (f) strength


@dataclass(frozen=True)
class LikelihoodOnly(Wrapper):
    """A method without what holds earlier tasks in place."""

    name = "likelihood only"

    def phases(self):
        """The phases without their penalties."""
        return tuple(replace(phase, penalty=None) for phase in self.method.phases())

    def init(self, *arguments):
        """As the method."""
        return self.method.init(*arguments)

    def begin_task(self, *arguments):
        """As the method."""
        return self.method.begin_task(*arguments)


@in_double_precision
def check_strength_zero(weak, heads):
    """`weak`, a method with its strength set to 0, trains as its own loss does without penalty."""
    run = tiny.finished(weak, heads)
    plain = Engine(run.engine.problem, LikelihoodOnly(weak), tiny.TRAINING, tiny.TWO_SEEDS)
    ours, theirs = (stage_trained(engine, run, 1)[0] for engine in (run.engine, plain))
    assert_close(ours, theirs)


@in_double_precision
def check_strength_huge(strong, weak, heads, part=0.05):
    """With a huge strength the first task's function, or the parameters, hardly move any more.

    The first task is learnt with no strength. Then the second one moves the probabilities on the
    first one's training inputs, on average, by at most `part` of what it does with no strength.
    """
    run = tiny.finished(weak, heads)
    engine = Engine(run.engine.problem, strong, tiny.TRAINING, tiny.TWO_SEEDS)
    head, x = run.runner.head(0), jnp.asarray(run.runner.sequence[0].x_train)
    after = [e.end(*stage_trained(e, run, 1)) for e in (run.engine, engine)]
    states = run.after(1).learned, *after
    # As it was learnt: an adaptation would bring the first task back from its coreset.
    before, weakly, strongly = (run.engine.predict(s.state, x, 0, head) for s in states)
    change = np.mean(np.abs(weakly - before))
    assert change > 1e-3, "with no strength the function does not move: nothing to hold"
    assert np.mean(np.abs(strongly - before)) < part * change


# ---------------------------------------------------------------------- (g) memory


@in_double_precision
def check_memory_matters(method, heads, disturb=None):
    """What is carried from task 1 changes how task 3 is learnt, in the compiled program.

    `disturb(carried)` returns another first task's memory; without it, every floating-point number
    that is carried after task 1 is moved. This fails where a program has compiled the state of an
    earlier task into itself.
    """
    run = tiny.finished(method, heads)
    assert differ(run.last.learned.state.trainable, third_task(run, disturb or moved))


@in_double_precision
def check_memory_does_not_matter(method, heads, disturb=None):
    """What is carried from task 1 changes nothing in task 3, for methods that promise so."""
    run = tiny.finished(method, heads)
    assert_identical(run.last.learned.state.trainable, third_task(run, disturb or moved))


def third_task(run, disturb):
    """The trained parameters at the end, had task 1 left something else behind."""
    after = run.after(1)
    state = after.learned.state
    other = state._replace(carried=disturb(state.carried))
    assert differ(state.carried, other.carried), "there is nothing to disturb"
    *_, last = run.runner.advance(replace(after, learned=after.learned._replace(state=other)))
    return last.learned.state.trainable


def moved(carried):
    """Every floating-point number away from what it was."""
    return jax.tree.map(lambda a: a + 0.5 if jnp.issubdtype(a.dtype, jnp.floating) else a, carried)


# ---------------------------------------------------------------------- (h) joint training


@in_double_precision
def check_joint_is_no_worse(method, heads):
    """Where fine-tuning forgets, training the method on all tasks at once does not."""
    forgetful = tiny.finished(FineTune(), heads).last.history.metrics
    together = tiny.finished(Joint(method), heads).last.history.metrics
    assert forgetful["forgetting"].mean > 0.3
    assert together["accuracy"].mean >= forgetful["accuracy"].mean


# ---------------------------------------------------------------------- (j) divergence


@in_double_precision
def check_divergence(method, heads):
    """A seed that diverges stops alone with its last good state and is named; the others go on."""
    run = tiny.finished(method, heads)
    good = run.middle()
    optimiser = jax.tree.map(
        lambda a: a.at[1].set(jnp.nan) if jnp.issubdtype(a.dtype, jnp.floating) else a,
        good.learned.optimiser,
    )
    assert differ(optimiser, good.learned.optimiser), "the optimiser has no numbers to spoil"
    bad = replace(good, learned=good.learned._replace(optimiser=optimiser))
    *_, last = run.runner.advance(bad)

    def of(seed, learned):
        return jax.tree.map(lambda a: a[seed], learned)

    task = run.runner.sequence[run.runner.stages[good.stage][0]].name
    assert list(last.history.diverged) == [1]
    assert task in last.history.diverged[1]
    assert list(np.asarray(last.learned.alive)) == [True, False]
    assert_identical(of(1, last.learned.state), of(1, good.learned.state))
    assert_identical(of(0, last.learned), of(0, run.last.learned))
    np.testing.assert_array_equal(last.history.accuracy[0], run.last.history.accuracy[0])
    assert np.isnan(last.history.accuracy[1, -1]).all()


EVERY_METHOD = (
    check_compiled_once,
    check_seeds_share_branches,
    check_jit_equals_eager,
    check_layout_is_inert,
    check_divergence,
)
