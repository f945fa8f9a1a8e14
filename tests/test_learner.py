"""What a user holds: fit, predict, evaluate, save, load, and what each refuses."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from funcl import MLP, FunclError, Learner, Training
from funcl.memory.context import Coreset, Noise
from funcl.methods import SFSVI, FineTune, Joint
from funcl.networks import Foreign
from funcl.prediction import Prediction
from funcl.tasks import TaskSequence
from funcl.train import checkpoint

TRAINING = Training(epochs=5, batch_size=8, learning_rate=0.05, chunk=10)
METHOD = SFSVI(
    draws=1,
    first_context=Noise(4),
    context=Coreset(8, per_task=False),
    coreset_size=4,
    prediction_draws=2,
)
NAMES = np.array(["no", "yes", "maybe"])


def data(task, rows=24):
    """Two blobs that lie apart, labelled 0 and 1."""
    generator = np.random.default_rng(task)
    y = np.arange(rows) % 2
    return (generator.normal(size=(rows, 3)) + 3 * y[:, None]).astype(np.float32), y


def again(learner):
    """A learner that knows the same; its programs are compiled already."""
    other = Learner(
        learner.network,
        learner.method,
        learner.training,
        seeds=learner.seeds.numbers,
        heads=learner.heads,
        classes=learner.classes,
    )
    other._progress = learner._progress
    return other


def assert_identical(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same_predictions(one, other):
    for name in ("members", "mean", "variance"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)


@pytest.fixture(scope="module")
def numbered():
    """A head per task, whole numbers as labels, two repeats, no distribution over functions."""
    learner = Learner(MLP([8]), FineTune(), TRAINING, seeds=2, heads="multi")
    for task in range(2):
        x, y = data(task)
        learner.fit(x, y + 10 * task, task=f"month {task}")
    return learner


@pytest.fixture(scope="module")
def named():
    """One head whose classes are text, two repeats, with S-FSVI."""
    learner = Learner(
        MLP([8]), METHOD, TRAINING, seeds=[3, 5], heads="single", classes=["no", "yes", "maybe"]
    )
    x, y = data(0)
    return learner.fit(x, NAMES[y], task="january").fit(x, NAMES[y + 1], task="february")


@pytest.fixture(scope="module")
def saved(named, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learner") / "model"
    named.save(folder)
    return SimpleNamespace(folder=folder, loaded=Learner.load(folder))


# ---------------------------------------------------------------------- fit, predict, evaluate


def test_multi_head_with_whole_numbers(numbered):
    x, y = data(1)
    p = numbered.predict(x, task="month 1")
    assert p.classes == (10, 11)
    assert p.labels.dtype.kind == "i"
    assert set(p.labels.tolist()) <= {10, 11}
    scores = numbered.evaluate(x, y + 10, task="month 1")
    assert set(scores) == {"accuracy", "nll", "brier", "ece", "entropy"}
    assert scores["accuracy"] > 0.8
    assert scores["accuracy"] == pytest.approx(np.mean(p.labels == y + 10))
    assert scores["entropy"] == pytest.approx(p.entropy.mean(), rel=1e-5)
    assert scores["nll"] == pytest.approx(-np.log(p.probs[np.arange(24), y]).mean(), rel=1e-4)
    assert numbered.tasks == ["month 0", "month 1"]


def test_single_head_with_text(named):
    x, _ = data(0)
    p = named.predict(x)
    assert p.classes == ("no", "yes", "maybe")
    assert set(p.labels.tolist()) <= set(NAMES.tolist())
    assert p.probs.shape == p.mean.shape == p.variance.shape == (24, 3)
    assert p.members.shape == (2, 24, 3)
    np.testing.assert_allclose(p.members.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(p.probs, p.members.mean(0))
    assert np.all(p.variance > 0)
    assert_same_predictions(p, named.predict(x, task="february"))
    assert "24 examples, 3 classes, mean of 2 seeds" in repr(p)


def test_mean_and_variance_are_those_of_the_mixture(named):
    x, _ = data(0)
    p = named.predict(x)
    progress = named._progress
    means, variances = progress.moments(x, progress.lessons[-1])
    np.testing.assert_allclose(p.mean, (means[0] + means[1]) / 2, rtol=1e-5)
    square = (variances + means**2).mean(0)
    np.testing.assert_allclose(p.variance, square - p.mean**2, rtol=1e-3, atol=1e-5)


def test_prediction_by_hand():
    members = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.1, 0.9]]])
    p = Prediction(members, ("a", "b"))
    np.testing.assert_allclose(p.probs, [[1, 0], [0.3, 0.7]])
    assert p.labels.tolist() == ["a", "b"]
    np.testing.assert_allclose(p.entropy, [0, -0.3 * np.log(0.3) - 0.7 * np.log(0.7)])
    assert len(p) == 2


def test_more_inputs_than_go_in_one_piece(numbered, monkeypatch):
    x, _ = data(7, 40)
    whole = numbered.predict(x, task="month 0")
    monkeypatch.setattr("funcl.stream.EVALUATION_ROWS", 32)
    np.testing.assert_allclose(numbered.predict(x, task="month 0").probs, whole.probs, atol=1e-6)


def test_inputs_of_another_shape_and_the_same_size(numbered):
    x, y = data(0)
    learner = again(numbered)
    learner.fit(x[:, None], y, task="month 0")
    assert_identical(
        learner._progress.learned, again(numbered).fit(x, y, task="month 0")._progress.learned
    )


# ---------------------------------------------------------------------- save and load


def test_load_then_fit_is_as_if_never_stopped(named, saved):
    x, y = data(0)
    assert_identical(named._progress.learned, saved.loaded._progress.learned)
    assert_same_predictions(named.predict(x), saved.loaded.predict(x))
    learner, other = again(named), again(saved.loaded)
    assert other._progress.engine is not learner._progress.engine
    for one in (learner, other):
        one.fit(x, NAMES[y], task="january")
    assert_identical(learner._progress.learned, other._progress.learned)
    assert_same_predictions(learner.predict(x), other.predict(x))
    assert other.tasks == ["january", "february"]


def test_loading_gives_the_settings_back(named, saved):
    for setting in ("network", "method", "training", "seeds", "heads", "classes", "diverged"):
        assert getattr(saved.loaded, setting) == getattr(named, setting)


def test_only_json_and_safetensors_are_written(saved):
    assert sorted(p.suffix for p in saved.folder.iterdir()) == [".json", ".safetensors"]


def test_loading_another_network_is_refused(saved):
    with pytest.raises(FunclError, match=r"network passed to load .*MLP\(hidden=\(8,\)"):
        Learner.load(saved.folder, network=MLP([9]))
    with pytest.raises(FunclError, match="method passed to load is not the one"):
        Learner.load(saved.folder, method=FineTune())


def test_loading_what_is_no_learner(tmp_path):
    checkpoint.save(tmp_path / "run", {}, {"kind": "run"})
    with pytest.raises(FunclError, match="holds a run, not a saved learner"):
        Learner.load(tmp_path / "run")
    with pytest.raises(FunclError, match="holds no checkpoint"):
        Learner.load(tmp_path / "nowhere")


def linear(key, input_shape, outputs):
    return jax.random.normal(key, (input_shape[0], outputs)) / 2


def matrix_product(parameters, x):
    return x @ parameters


def twice(parameters, x):
    return 2 * x @ parameters


@dataclass(frozen=True)
class Mine(FineTune):
    """A method of the user's own."""

    def predict(self, problem, state, x, stage, head, keys):
        return super().predict(problem, state, x, stage, head, keys)


@dataclass(frozen=True)
class Flat(Mine):
    """One that predicts otherwise."""

    def predict(self, problem, state, x, stage, head, keys):
        return super().predict(problem, state, 0 * x, stage, head, keys)


def test_a_network_and_a_method_of_one_s_own_are_passed_again_and_checked(tmp_path):
    network, method = Foreign(linear, matrix_product), Mine()
    learner = Learner(network, method, TRAINING, heads="multi")
    x, y = data(0)
    learner.fit(x, y, task="a").save(tmp_path)
    with pytest.raises(FunclError, match=r"network of your own \(.*Foreign\): pass it again"):
        Learner.load(tmp_path)
    with pytest.raises(FunclError, match=r"method of your own \(.*Mine\): pass it again"):
        Learner.load(tmp_path, network=network)
    for wrong in ({"network": Foreign(linear, twice)}, {"method": Flat()}):
        with pytest.raises(FunclError, match=r"not the one that .* its predictions differ by"):
            Learner.load(tmp_path, **{"network": network, "method": method, **wrong})
    with pytest.raises(FunclError, match="does not fit"):
        Learner.load(tmp_path, network=MLP([8]), method=method)
    loaded = Learner.load(tmp_path, network=network, method=method)
    assert_same_predictions(learner.predict(x), loaded.predict(x))


# ---------------------------------------------------------------------- seeds that diverge


def poisoned(learner, seeds):
    """The learner with parameters of some repeats that are no longer finite."""
    progress = learner._progress
    bad = jnp.isin(jnp.arange(2), jnp.array(seeds))

    def poison(a):
        return jnp.where(bad.reshape(-1, *[1] * (a.ndim - 1)), jnp.nan, a)

    state = progress.learned.state
    state = state._replace(trainable=jax.tree.map(poison, state.trainable))
    other = again(learner)
    other._progress = replace(progress, learned=progress.learned._replace(state=state))
    return other


def test_a_seed_that_diverges_stops_alone_and_is_named(numbered, tmp_path):
    x, y = data(2)
    learner = poisoned(numbered, [1]).fit(x, y, task="month 2")
    assert learner.diverged == {1: "task 'month 2', before step 10"}
    p = learner.predict(x, task="month 2")
    assert p.members.shape[0] == 1
    assert np.all(np.isfinite(p.probs))
    assert_identical(
        again(numbered).fit(x, y, task="month 2").predict(x, task="month 2").members[:1], p.members
    )
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path)
    assert loaded.diverged == learner.diverged
    assert not loaded._progress.learned.alive[1]


def test_when_every_seed_diverges_nothing_is_lost(numbered):
    x, y = data(2)
    learner = poisoned(numbered, [0, 1])
    before = learner._progress
    with pytest.raises(FunclError, match=r"Every seed diverged .task 'month 2', before step 10"):
        learner.fit(x, y, task="month 2")
    assert learner._progress is before
    assert learner.diverged == {}
    learner._progress = replace(before, diverged={0: "task 'a'", 1: "task 'b'"})
    with pytest.raises(FunclError, match="nothing is left to predict with"):
        learner.predict(x, task="month 0")


# ---------------------------------------------------------------------- precision


def test_double_precision_has_to_be_switched_on(numbered):
    training = replace(TRAINING, precision="float64")
    learner = Learner(MLP([8]), FineTune(), training, heads="multi")
    with pytest.raises(FunclError, match=r"call jax.config.update.'jax_enable_x64', True."):
        learner.fit(*data(0), task="a")


def test_single_precision_while_double_is_on(numbered, float64):
    with pytest.raises(FunclError, match=r"say Training.precision='float64'."):
        numbered.fit(*data(0), task="month 0")


def test_double_precision(float64):
    training = replace(TRAINING, precision="float64", epochs=1)
    learner = Learner(MLP([]), FineTune(), training, heads="multi")
    with jax.numpy_dtype_promotion("standard"):  # integers of two widths meet
        p = learner.fit(*data(0), task="a").predict(data(0)[0])
    assert p.probs.dtype == np.float64
    np.testing.assert_allclose(p.probs.sum(-1), 1, rtol=0, atol=1e-14)


# ---------------------------------------------------------------------- what is refused


def refused(call):
    """The one sentence of a refusal."""
    with pytest.raises(FunclError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", ", True)", "]"))
    return text


X, Y = data(0)
BAD_FITS = {
    "one row short": (X, Y[:-1], "a", "Task 'a', y: 23 labels for 24 rows"),
    "a vector": (X[:, 0], Y, "a", "Task 'a', x: inputs need the shape"),
    "text as inputs": (X.astype(str), Y, "a", "Task 'a', x: inputs must be numbers"),
    "ragged": ([[1, 2], [3]], Y, "a", "cannot be read as one array"),
    "NaN": (np.where(X > 2, np.nan, X), Y, "a", "hold NaN or infinite values"),
    "infinite": (np.where(X > 2, np.inf, X), Y, "a", "hold NaN or infinite values"),
    "empty": (X[:0], Y[:0], "a", "Task 'a', x is empty"),
    "one-hot": (X, np.eye(2)[Y], "a", "y.argmax"),
    "fractions": (X, Y + 0.5, "a", "labels must be whole numbers or strings"),
    "one class": (X, 0 * Y, "a", "shows only the class 0, and a head needs two"),
    "other classes": (X, Y + 5, "month 0", "give the new classes a task name of their own"),
    "other features": (X[:, :2], Y, "a", "all tasks go through one network"),
    "another dtype": (
        X.astype(np.int16),
        Y,
        "a",
        "int16 with the scale 1 and the earlier",
    ),
    "a number as a name": (X, Y, 3, "name of a task must be a string with some text, not 3"),
    "no name": (X, Y, "", "name of a task must be a string with some text, not ''"),
}


@pytest.mark.parametrize(("x", "y", "task", "text"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_data_change_nothing(numbered, x, y, task, text):
    before, tasks = numbered._progress, numbered.tasks
    assert text in refused(lambda: numbered.fit(x, y, task=task))
    assert numbered._progress is before
    assert numbered.tasks == tasks


def test_a_task_smaller_than_the_coreset_is_refused_and_changes_nothing(named):
    learner, few = again(named), METHOD.coreset_size - 1
    labels = np.resize(NAMES[:2], few)
    text = refused(lambda: learner.fit(X[:few], labels, task="march"))
    assert f"coreset_size=4 is larger than task 'march' with its {few} examples" in text
    assert learner._progress is named._progress
    known = learner.tasks[0]
    learner.fit(X[:few], labels, task=known)  # a known task is remembered already
    assert learner._progress.lessons[-1].task == known


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"prior_variance": -1.0}, "prior_variance must be a positive number, not -1"),
        ({"draws": 0}, "draws must be a whole number of at least 1, not 0"),
        ({"context": "Coreset"}, "context must be a source of context points"),
    ],
)
def test_impossible_settings_are_refused_as_they_are_made(setting, text):
    assert text in refused(lambda: SFSVI(**setting))


def test_nothing_to_predict_is_an_empty_prediction(named):
    p = named.predict(X[:0])
    assert p.probs.shape == (0, 3)
    assert p.mean.shape == p.variance.shape == (0, 3)


def test_settings_of_a_learner_stay(named):
    with pytest.raises(AttributeError):
        named.training = TRAINING


def test_the_scale_of_inputs_stays():
    bits, y = (X > 0), Y
    learner = Learner(MLP([4]), FineTune(), TRAINING, heads="multi")
    learner.fit(bits, y, task="a")
    assert "uint8 with the scale 0.003922 and the earlier ones were uint8 with 1" in refused(
        lambda: learner.predict(255 * bits.astype(np.uint8), task="a")
    )
    counts = Learner(MLP([4]), FineTune(), TRAINING, heads="multi", scale=0.5)
    counts.fit(2 * bits.astype(np.uint8), y, task="a")
    assert_same_predictions(
        learner.predict(bits, task="a"), counts.predict(2 * bits.astype(np.uint8), task="a")
    )


def test_run_refuses_what_is_no_sequence_and_what_would_be_lost(named):
    assert "run learns a TaskSequence and not list" in refused(lambda: again(named).run([(X, Y)]))
    sequence = TaskSequence.from_arrays([(X, Y, X, Y)], heads="single")
    assert "has learnt" in refused(lambda: again(named).run(sequence))


def test_labels_outside_a_single_head(named):
    text = refused(lambda: named.fit(X, np.where(Y, "yes", "never"), task="march"))
    assert "outside the head, such as 'never'" in text
    assert "['no', 'yes', 'maybe']" in text
    assert named.tasks == ["january", "february"]


def test_stopping_in_the_middle_changes_nothing(numbered):
    def stop(report):
        raise KeyboardInterrupt

    learner = again(numbered)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(X, Y, task="month 2", on_report=stop)
    assert learner._progress is numbered._progress
    learner.fit(X, Y, task="month 2")
    assert learner.tasks[-1] == "month 2"


BAD_QUESTIONS = {
    "unknown task": (
        lambda learner: learner.predict(X, task="month 11"),
        "did you mean 'month 1'?",
    ),
    "no task": (
        lambda learner: learner.predict(X),
        "Say which task the inputs are of: predict(x, task=...)",
    ),
    "features": (
        lambda learner: learner.predict(X[:, :2], task="month 0"),
        "all tasks go through one network",
    ),
    "dtype": (
        lambda learner: learner.predict(X.astype(int), task="month 0"),
        "earlier ones were float32",
    ),
    "NaN": (
        lambda learner: learner.predict(X * np.nan, task="month 0"),
        "hold NaN or infinite values",
    ),
    "labels": (
        lambda learner: learner.evaluate(X, Y + 1, task="month 0"),
        "outside the head, such as 2",
    ),
    "rows": (lambda learner: learner.evaluate(X, Y[1:], task="month 0"), "23 labels for 24 rows"),
}


@pytest.mark.parametrize(("ask", "text"), BAD_QUESTIONS.values(), ids=BAD_QUESTIONS)
def test_bad_questions(numbered, ask, text):
    assert text in refused(lambda: ask(numbered))


def make(network=MLP([8]), method=METHOD, training=None, **options):  # noqa: B008
    return lambda: Learner(network, method, training, **options)


BAD_LEARNERS = {
    "no network": (make(None), "sfsvi trains a network: pass one, such as funcl.MLP([256])"),
    "widths": (make([64]), "network must be a value such as funcl.MLP([256]), not [64]"),
    "a class": (make(method=SFSVI), "method must be a value such as funcl.methods.SFSVI()"),
    "a name": (make(method="sfsvi"), "method must be a value such as funcl.methods.SFSVI()"),
    "a dict": (make(training={"epochs": 3}), "must be a value such as funcl.Training(epochs=50)"),
    "no seeds": (make(seeds=[]), "At least one seed is needed"),
    "zero seeds": (make(seeds=0), "must be a whole number of at least 1, not 0"),
    "seeds twice": (make(seeds=[1, 1]), "Seeds must differ from each other"),
    "vary": (make(vary=["inti"]), "did you mean 'init'?"),
    "heads": (make(heads="mutli"), "did you mean 'multi'?"),
    "classes of many heads": (make(heads="multi", classes=[0, 1]), "add heads='single'"),
    "classes twice": (make(heads="single", classes=[0, 1, 1]), "each of them once, not [0, 1, 1]"),
    "one class": (make(heads="single", classes=["a"]), "at least two classes"),
    "a negative data seed": (make(data_seed=-1), "data_seed must be a whole number from 0 to"),
}


@pytest.mark.parametrize(("call", "text"), BAD_LEARNERS.values(), ids=BAD_LEARNERS)
def test_learners_that_cannot_be(call, text):
    assert text in refused(call)


def test_what_has_to_come_first(tmp_path):
    learner = Learner(MLP([8]), METHOD)
    assert "Say which heads the tasks have before fit" in refused(
        lambda: learner.fit(X, Y, task="a")
    )
    assert "has learnt nothing yet" in refused(lambda: learner.predict(X))
    assert "has learnt nothing yet" in refused(lambda: learner.save(tmp_path / "model"))
    assert not (tmp_path / "model").exists()
    joint = Learner(MLP([8]), Joint(METHOD), heads="multi")
    assert "learns all tasks at once" in refused(lambda: joint.fit(X, Y, task="a"))


def test_classes_from_an_array_are_plain_values():
    assert make(heads="single", classes=np.arange(3))().classes == (0, 1, 2)
