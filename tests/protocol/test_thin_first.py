"""The shape holds for three extremes: a hook at every step, two networks in phases, adaptation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import conformance, tiny

from funcl.gaussian import Gaussian, kl
from funcl.likelihood import log_probabilities
from funcl.methods import FineTune
from funcl.networks import MLP
from funcl.protocol import Batch
from funcl.tasks import load
from funcl.train.engine import Position
from funcl.train.run import Runner, run
from funcl.train.training import Seeds, Training
from protocol.progress_compress import ProgressCompress, fisher_diagonal
from protocol.si import SI
from protocol.vcl import VCL

TINY_VCL = VCL(coreset_size=6, draws=1, prediction_draws=2)
CASES = {
    "si": (SI(), "single"),
    "progress-compress": (ProgressCompress(), "multi"),
    "vcl": (TINY_VCL, "single"),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize("check", conformance.EVERY_METHOD, ids=lambda check: check.__name__)
def test_conformance(case, check):
    check(*case)


def test_save_and_restore_in_the_middle_of_a_task(case, tmp_path):
    conformance.check_restore(*case, tmp_path)


@pytest.mark.parametrize(
    ("method", "huge"),
    [(SI, 1e4), (ProgressCompress, 1e6), (functools.partial(VCL, 6, draws=1), 1e6)],
    ids=CASES,
)
def test_strength_goes_from_the_likelihood_alone_to_no_movement(method, huge):
    weak, strong = method(strength=0.0), method(strength=huge)
    conformance.check_strength_zero(weak, "multi")
    conformance.check_strength_huge(strong, weak, "multi")


@pytest.mark.parametrize("name", ["si", "progress-compress"])
def test_importance_of_the_first_task_changes_the_third(name):
    conformance.check_memory_matters(*CASES[name])


def test_coresets_change_predictions_and_not_the_posterior():
    conformance.check_memory_does_not_matter(*CASES["vcl"])
    with tiny.double_precision():
        done = tiny.finished(*CASES["vcl"])
        learned, head = done.last.learned, done.runner.head(0)
        x = jnp.asarray(done.runner.sequence[0].x_test)
        other = learned._replace(
            state=learned.state._replace(carried=conformance.moved(learned.state.carried))
        )
        before, after, again = (
            done.engine.predict(done.engine.adapted(one, 0, head), x, 0, head)
            for one in (learned, other, learned)
        )
        np.testing.assert_array_equal(before, again)
        assert np.max(np.abs(before - after)) > 1e-3


# ---------------------------------------------------------------------- real digits


SEQUENCES = {
    "multi": load("split-digits"),
    "single": load("split-digits", heads="single"),
    "permuted": load("permuted-digits").first(3),
}


@functools.cache
def digits_accuracy(method, which):
    """Final mean accuracy over tasks, one value per seed."""
    training = Training(epochs=12, batch_size=64, learning_rate=0.01, seed_axis="map")
    sequence = SEQUENCES[which]
    runner = Runner(sequence, MLP([32]), method, training, Seeds((0, 1)), evaluate="last")
    history = run(runner).history
    assert not history.diverged
    return np.mean(history.accuracy[:, -1], axis=1)


DIGITS_VCL = VCL(draws=2, prediction_draws=20)


@pytest.mark.parametrize("method", [SI(), ProgressCompress(), DIGITS_VCL], ids=CASES)
def test_learns_digits_with_a_head_per_task(method):
    assert digits_accuracy(method, "multi").mean() > 0.88


@pytest.mark.parametrize(
    ("method", "which"), [(SI(0.1), "permuted"), (DIGITS_VCL, "single")], ids=["si", "vcl"]
)
def test_forgets_less_than_fine_tuning_on_one_head(method, which):
    plain = digits_accuracy(FineTune(), which).mean()
    assert digits_accuracy(method, which).mean() >= plain + 0.1


# ---------------------------------------------------------------------- SI


def test_si_without_strength_is_fine_tuning_to_the_bit():
    ours = tiny.finished(SI(strength=0.0), "multi").last.learned.state.trainable
    theirs = tiny.finished(FineTune(), "multi").last.learned.state.trainable
    conformance.assert_identical(ours, theirs)


def test_si_path_adds_up_to_the_drop_of_the_loss():
    training = Training(
        epochs=200,
        batch_size=40,
        learning_rate=1e-3,
        optimiser="sgd",
        chunk=200,
        precision="float64",
        seed_axis="map",
    )
    with tiny.double_precision():
        runner = tiny.runner(SI(), "multi", training, evaluate="none")
        start = runner.start()
        trained = next(runner.advance(start))
        task, method, problem = runner.data(0), runner.engine.method, runner.problem
        x, mask = problem.inputs(task.x), task.masks[task.group]
        for seed in range(2):
            path = jax.tree.map(lambda a, s=seed: jnp.sum(a[s]), trained.learned.state.running)
            losses = [
                method.loss(
                    problem,
                    jax.tree.map(lambda a, s=seed: a[s], snapshot.learned.state.trainable),
                    None,
                    Batch(x, task.y, mask, task.stage),
                    None,
                )[0]
                for snapshot in (start, trained)
            ]
            total = sum(jax.tree.leaves(path))
            assert losses[0] - losses[1] > 0.01
            np.testing.assert_allclose(total, losses[0] - losses[1], rtol=1e-2)


# ---------------------------------------------------------------------- Progress & Compress


def test_active_column_without_lateral_connections_is_a_plain_network():
    with tiny.double_precision():
        done = tiny.finished(*CASES["progress-compress"])
        method, problem = done.engine.method, done.engine.problem
        task = done.runner.data(1)
        learned, reference = done.engine.begin(done.after(1).learned, task)
        columns, reference = jax.tree.map(lambda a: a[0], (learned.state.trainable, reference))
        x = problem.inputs(task.x)
        plain = problem.network.apply(columns.active, x)
        for adaptor in columns.adaptors:
            assert not np.allclose(method.active_logits(problem, columns, reference, x), plain)
            adaptor["alpha"] = jnp.zeros_like(adaptor["alpha"])
        alone = method.active_logits(problem, columns, reference, x)
        np.testing.assert_array_equal(alone, plain)


def test_each_phase_moves_its_own_column_and_the_active_one_is_new():
    with tiny.double_precision():
        done = tiny.finished(*CASES["progress-compress"])
        before = done.after(1)
        chunks = [s for s in done.snapshots if s.stage == 1 and s.begun]
        progress = next(s for s in chunks if s.position == Position(1, 0))
        compress = chunks[-1]
        old, mid, new = (s.learned.state.trainable for s in (before, progress, compress))
        conformance.assert_identical(mid.knowledge, old.knowledge)
        conformance.assert_identical((new.active, new.adaptors), (mid.active, mid.adaptors))
        assert conformance.differ(new.knowledge, mid.knowledge)


def test_fisher_is_the_mean_over_real_rows_and_labels_of_the_squared_score():
    with tiny.double_precision():
        done = tiny.finished(*CASES["progress-compress"])
        problem, task = done.engine.problem, done.runner.data(1)
        task = task._replace(size=jnp.int32(7), x=task.x.at[7:].set(9.0))
        knowledge = jax.tree.map(lambda a: a[0], done.last.learned.state.trainable.knowledge)
        ours = fisher_diagonal(problem, knowledge, task)
        wanted = jax.tree.map(jnp.zeros_like, knowledge)
        for row in range(7):
            for label in done.runner.sequence[1].columns:

                def log_p(parameters, row=row, label=label):
                    logits = problem.network.apply(
                        parameters, problem.inputs(task.x[row : row + 1])
                    )
                    return log_probabilities(logits, task.masks[0])[0, label]

                value, score = jax.value_and_grad(log_p)(knowledge)
                wanted = jax.tree.map(
                    lambda w, s, v=value: w + jnp.exp(v) * s**2 / 7, wanted, score
                )
        conformance.assert_close(ours, wanted)


# ---------------------------------------------------------------------- VCL


@pytest.fixture(scope="module")
def two_heads():
    """The start of the second of three tasks with a head each, for one seed."""
    with tiny.double_precision():
        done = tiny.finished(TINY_VCL, "multi")
        learned, reference = done.engine.begin(done.after(1).learned, done.runner.data(1))
        return done, learned, reference


def test_prior_of_the_second_task_is_the_posterior_but_for_the_new_head(two_heads):
    _, learned, reference = two_heads
    with tiny.double_precision():
        q, prior = jax.tree.map(lambda a: a[0], (learned.state.trainable, reference.prior))
        *_, output = prior.mean
        assert not jnp.any(output["weight"][:, 2:4])
        assert not jnp.any(prior.log_variance[-1]["bias"][2:4])

        def cut(tree):
            *hidden, last = tree
            return (*hidden, jax.tree.map(lambda a: jnp.delete(a, jnp.arange(2, 4), -1), last))

        assert kl(*(Gaussian(cut(g.mean), cut(g.log_variance)) for g in (q, prior))) == 0
        assert kl(q, prior) > 1


def test_heads_to_come_stay_as_they_were_drawn(two_heads):
    done, *_ = two_heads
    with tiny.double_precision():
        first, later = (done.after(n).learned.state.trainable for n in (0, 2))
        conformance.assert_identical(
            *(
                jax.tree.map(lambda a: a[..., 4:], (q.mean[-1], q.log_variance[-1]))
                for q in (first, later)
            )
        )


def test_training_never_sees_the_coreset(two_heads):
    done, learned, reference = two_heads
    with tiny.double_precision():
        task = done.runner.data(1)
        rows, memory = reference.rows[0], learned.state.carried
        assert sorted(rows.tolist()) == list(range(40))
        np.testing.assert_array_equal(
            np.sort(task.x[rows[34:]], axis=0), np.sort(memory.x[0, 1], axis=0)
        )
        poisoned = task._replace(x=task.x.at[rows[34:]].set(jnp.nan))
        *_, (trained, _, _) = done.engine.train(learned, reference, poisoned)
        wanted = next(s for s in reversed(done.snapshots) if s.stage == 1 and s.begun)
        conformance.assert_identical(
            *(jax.tree.map(lambda a: a[0], t.state) for t in (trained, wanted.learned))
        )


def test_maximum_likelihood_start_is_the_first_task_only_and_uses_all_rows():
    done = tiny.finished(TINY_VCL, "multi")
    found = {(s.stage, s.report.phase, s.report.steps) for s in done.snapshots if s.report}
    steps, kept = 20 * (40 // 16), 20 * (34 // 16)
    assert found == {(0, "start", steps), *((stage, "fit", kept) for stage in range(3))}
