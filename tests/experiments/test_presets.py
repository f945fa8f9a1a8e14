import pytest

from funcl import tasks
from funcl.errors import FunclError
from funcl.experiments import presets
from funcl.experiments.presets import preset
from funcl.experiments.settings import with_settings
from funcl.memory.context import Coreset, Noise, Pixels
from funcl.methods import FineTune, Joint, Separate
from funcl.networks import MLP

NOISE = Noise(40, low=0.0, high=1.0)
BATCH = Pixels(40, real=1.0)
GREY = Pixels(10, real=0.0)

# The published table, typed by hand: sequence, variant, widths, prior variance, learning rate,
# epochs at task 1 and later, context at task 1 and later, coreset per task and how it is chosen.
PUBLISHED = [
    ("split-mnist", None, (256, 256), 1e-3, 5e-4, 60, 60, NOISE, Coreset(40), 40, "random"),
    ("split-fashion", None, (256, 256), 1e-3, 5e-4, 60, 60, NOISE, Coreset(40), 40, "random"),
    ("permuted-mnist", None, (100, 100), 1e-3, 5e-4, 10, 10, NOISE, Coreset(40), 200, "random"),
    ("split-mnist-sh", None, (256, 256), 1e-3, 5e-4, 80, 80, NOISE, Coreset(40), 200, "random"),
    ("split-mnist", "larger", (400,), 1e-3, 5e-4, 60, 60, NOISE, Coreset(40), 40, "random"),
    ("split-fashion", "larger", (200,) * 4, 1e-3, 5e-4, 60, 60, NOISE, Coreset(40), 40, "random"),
    (
        *("permuted-mnist", "larger", (500, 500), 1e-3, 1e-4, 20, 20),
        *(Noise(30, low=0.0, high=1.0), Coreset(30), 200, "random"),
    ),
    ("split-mnist-sh", "larger", (400,), 1e-3, 5e-4, 80, 80, NOISE, Coreset(40), 200, "random"),
    ("split-mnist", "no-coreset", (256, 256), 100.0, 5e-4, 20, 20, BATCH, BATCH, None, None),
    ("split-fashion", "no-coreset", (256, 256), 100.0, 5e-4, 60, 60, BATCH, BATCH, None, None),
    (
        *("permuted-mnist", "no-coreset", (100, 100), 1e-3, 1e-4, 10, 5),
        *(NOISE, Noise(40, per_task=True, low=0.0, high=1.0), None, None),
    ),
    ("split-mnist-sh", "no-coreset", (256, 256), 100.0, 5e-4, 80, 80, BATCH, BATCH, None, None),
    (
        *("permuted-mnist", "minimal", (300, 300), 10.0, 5e-4, 10, 10),
        *(GREY, Coreset(10), 10, "per-class"),
    ),
    (
        *("split-mnist-sh", "minimal", (300, 300), 10.0, 5e-4, 80, 80),
        *(GREY, Coreset(10), 10, "per-class"),
    ),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_presets_are_the_published_table(row):
    name, variant, widths, prior, rate, first, later, at_first, context, size, selection = row
    network, method, training = preset(name, "sfsvi", variant)
    assert network == MLP(widths)
    assert (method.prior_mean, method.prior_variance) == (0.0, prior)
    assert (training.rate(0), training.rate(1)) == (rate, rate)
    assert (training.epochs_of(0), training.epochs_of(1)) == (first, later)
    assert training.batch_size == 128
    assert not training.reshuffle
    assert training.optimiser == "adam"
    assert (method.first_context, method.context) == (at_first, context)
    assert (method.second_context, method.own_context) == (None, None)
    assert method.remembers == (size is not None)
    if size:
        assert (method.coreset_size, method.coreset_selection) == (size, selection)
    assert (method.draws, method.likelihood, method.kl_scale) == (5, "weights", "equal")
    assert (method.prediction, method.prediction_draws) == ("logits", 5)
    assert method.initial_log_variance == (-10.0, -8.0)


def test_the_toy_preset_is_the_published_one():
    network, method, training = preset("toy2d", "sfsvi")
    assert network == MLP([20, 20])
    assert (method.prior_variance, method.kl_scale) == (0.1, "equal")
    assert (training.epochs_of(0), training.epochs_of(4), training.batch_size) == (300, 300, 128)
    assert (training.rate(0), training.rate(4), training.reshuffle) == (5e-4, 5e-4, False)
    assert method.first_context == Noise(20, low=-4.0, high=4.0)
    assert method.context == Coreset(20)
    assert method.own_context == Noise(30, per_task=True, low=-4.0, high=4.0)
    assert (method.coreset_size, method.prediction, method.draws) == (40, "logits", 5)


def test_one_point_per_class_is_two_per_task_on_split_mnist():
    _, method, _ = preset("split-mnist-sh", "sfsvi", "minimal-one")
    assert (method.coreset_size, method.context, method.coreset_selection) == (
        2,
        Coreset(2),
        "per-class",
    )


def test_every_sequence_has_presets_for_every_method():
    assert sorted(presets.sequences()) == sorted(tasks.names())
    for name in presets.sequences():
        for method in presets.methods(name):
            for variant in (None, *presets.variants(name, method)):
                network, value, _ = preset(name, method, variant)
                assert isinstance(network, MLP)
                assert value.name == method


def test_fine_tuning_and_the_wrappers_share_network_and_training():
    network, sfsvi, training = preset("permuted-mnist", "sfsvi")
    assert preset("permuted-mnist", "finetune") == (network, FineTune(), training)
    assert preset("permuted-mnist", "joint") == (network, Joint(FineTune()), training)
    assert preset("permuted-mnist", "separate", "sfsvi") == (network, Separate(sfsvi), training)


def test_own_presets_say_how_they_were_chosen_and_published_ones_were_not():
    assert presets.tuning("split-mnist", "sfsvi", "larger") is None
    for name in ("split-digits", "permuted-digits"):
        record = presets.tuning(name, "sfsvi")
        assert record is not None
        assert {"grid", "validation", "choice"} <= record.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("split-mnits", "sfsvi"), "did you mean 'split-mnist'"),
        (("split-mnist", "sfsv"), "did you mean 'sfsvi'"),
        (("split-mnist", "sfsvi", "large"), "did you mean 'larger'"),
        (("toy2d", "sfsvi", "larger"), "has no variants"),
    ],
)
def test_unknown_names_suggest_the_nearest(arguments, message):
    with pytest.raises(FunclError, match=message):
        preset(*arguments)


# ---------------------------------------------------------------- settings as text


def changed(**given):
    settings = {name.replace("__", "."): value for name, value in given.items()}
    return with_settings(*preset("split-mnist", "sfsvi"), settings)


def test_settings_are_read_after_their_fields():
    network, method, training = changed(
        prior_variance="0.01",
        kl_scale="normalized",
        hidden="100, 100",
        epochs="3",
        first_epochs="5",
        learning_rate="1e-3",
        reshuffle="true",
        context__points="20",
        initial_log_variance="-6,-4",
    )
    assert network == MLP([100, 100])
    assert (method.prior_variance, method.kl_scale) == (0.01, "normalized")
    assert (method.context, method.initial_log_variance) == (Coreset(20), (-6.0, -4.0))
    assert (training.epochs, training.first_epochs) == (3, 5)
    assert (training.learning_rate, training.reshuffle) == (1e-3, True)
    assert changed(kl_scale="0.5")[1].kl_scale == 0.5
    assert changed(first_epochs="none")[2].first_epochs is None


def test_a_context_source_is_named_and_then_set():
    _, method, _ = changed(own_context="Noise", own_context__points="7")
    assert method.own_context == Noise(7)


def test_settings_lead_into_a_wrapped_method():
    parts = preset("split-mnist", "separate", "sfsvi")
    _, method, _ = with_settings(*parts, {"method.prior_variance": "0.5"})
    assert method.method.prior_variance == 0.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prior_varianc", "1", "did you mean 'prior_variance'"),
        ("context__point", "1", "did you mean 'points'"),
        ("prior_variance", "small", "prior_variance=small cannot be used: give a number"),
        ("epochs", "1.5", "give a whole number"),
        ("epochs", "0", "epochs must be a whole number of at least 1"),
        ("reshuffle", "maybe", "give true or false"),
        ("first_epochs", "x", "give a whole number or none"),
        ("context", "Noisy", "did you mean 'Noise'"),
        ("own_context__points", "3", "has no settings"),
        ("hidden", "a,b", "separated by commas"),
    ],
)
def test_a_bad_setting_is_one_sentence(name, value, message):
    with pytest.raises(FunclError, match=message):
        changed(**{name: value})
