"""Settings as plain values and back."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from funcl import MLP, FunclError, Training
from funcl.config import from_plain, is_storable, settings_types, to_plain
from funcl.memory.context import Coreset, Noise, Pixels
from funcl.methods import SFSVI, FineTune, Joint, Separate
from funcl.networks import Foreign
from funcl.protocol import Method

VALUES = [
    MLP([16, 8], "tanh"),
    Training(epochs=3, first_learning_rate=0.1),
    Noise(7, per_task=True, low=0.0, high=1.0),
    Pixels(9, real=0.25),
    Coreset(3, per_task=False),
    SFSVI(context=Pixels(5), second_context=Noise(2), kl_scale=0.5, initial_log_variance=(-9, -8)),
    FineTune(),
    Joint(SFSVI(draws=2)),
    Separate(Joint(SFSVI(own_context=Noise(4)))),
    None,
    (1, 2.5, "x", True, None),
    {"network": MLP([4]), "seeds": (0, 1)},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_round_trip(value):
    plain = to_plain(value)
    assert json.loads(json.dumps(plain)) == plain
    assert is_storable(plain)
    assert from_plain(plain) == value


@pytest.mark.parametrize("name", sorted(settings_types()))
def test_every_known_class_by_its_defaults(name):
    cls = settings_types()[name]
    value = cls([4]) if cls is MLP else cls()
    assert from_plain(json.loads(json.dumps(to_plain(value)))) == value


def test_numpy_s_numbers_become_plain_ones():
    value = SFSVI(coreset_size=np.int64(4), prior_variance=np.float32(0.5), draws=np.int32(2))
    plain = json.loads(json.dumps(to_plain(value)))
    assert (plain["coreset_size"], plain["prior_variance"], plain["draws"]) == (4, 0.5, 2)
    assert from_plain(plain) == value


def first(key, input_shape, outputs):
    return ()


@dataclass(frozen=True)
class Mine(Method):
    strength: float = 1.0


@dataclass(frozen=True)
class Larger(SFSVI):
    pass


NAMESAKE = dataclass(frozen=True)(type("SFSVI", (Method,), {"__module__": __name__}))


@pytest.mark.parametrize(
    "value",
    [Mine(), Larger(), NAMESAKE(), Foreign(first, first), Joint(Mine()), object(), [Mine()]],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_part_of_the_library_is_told_by_its_full_name(value):
    plain = json.loads(json.dumps(to_plain(value)))
    assert not is_storable(plain)
    with pytest.raises(FunclError, match="is no known type of settings"):
        from_plain(plain)


def test_the_full_name_tells_foreign_things_apart():
    assert to_plain(Mine(2.0)) == {"type": f"{__name__}.Mine", "strength": 2.0}
    assert to_plain(Foreign(first, first))["apply_fn"] == {"type": f"{__name__}.first"}


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        ({"type": "SFSV"}, "'SFSV' is no known type of settings; did you mean 'SFSVI'"),
        ({"type": "SFSVI", "strength": 1}, "stored settings of SFSVI do not fit: .*strength"),
        ({"type": "Training", "epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"type": "MLP"}, "stored settings of MLP do not fit: .*hidden"),
        ({"type": ["MLP"]}, "is no known type of settings"),
    ],
)
def test_settings_that_do_not_fit(plain, text):
    with pytest.raises(FunclError, match=text):
        from_plain(plain)
