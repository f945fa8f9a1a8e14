"""Presets: the network, method and training of every known run, read from presets.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from funcl.errors import FunclError, unknown

if TYPE_CHECKING:
    from funcl.networks.network import Network
    from funcl.protocol import Method
    from funcl.train.training import Training

PARTS = ("network", "method", "training")
# Fine-tuning runs with the network and the training of the S-FSVI preset. Wrappers take over those
# of the method that they wrap, which their variant names; plainly it is fine-tuning.
PLAIN = "finetune"
WRAPPERS = ("joint", "separate")
FLAGSHIP = "sfsvi"
COMMON = ("published", "digits")  # entries that only others take over


def preset(
    sequence: str, method: str, variant: str | None = None
) -> tuple[Network, Method, Training]:
    """The settings of a known run, as published where there is a publication.

    >>> network, method, training = preset("split-mnist", "sfsvi", "larger")
    >>> network, method.prior_variance, training.epochs
    (MLP(hidden=(400,), activation='relu'), 0.001, 60)
    """
    _check(sequence, method, variant)
    if method in _read()[sequence]:
        return _build(_settings(sequence, method, variant))
    from funcl.methods import by_name

    if method in WRAPPERS:
        network, inner, training = preset(sequence, variant or PLAIN)
        return network, by_name(method)(inner), training  # pyright: ignore[reportCallIssue]
    network, _, training = preset(sequence, FLAGSHIP)
    return network, by_name(PLAIN)(), training


def sequences() -> list[str]:
    """The sequences that have presets."""
    return [name for name in _read() if name not in COMMON]


def methods(sequence: str) -> list[str]:
    """The methods that have a preset on a sequence."""
    if sequence not in sequences():
        raise unknown("preset for the sequence", sequence, sequences())
    return [*_read()[sequence], PLAIN, *WRAPPERS]


def variants(sequence: str, method: str) -> list[str]:
    """The names of a preset's variants, without the plain one.

    >>> variants("split-mnist", "sfsvi")
    ['larger', 'no-coreset']
    """
    if method not in methods(sequence):
        raise unknown(f"preset on {sequence} for the method", method, methods(sequence))
    if method in WRAPPERS:
        return list(_read()[sequence])
    return list(_read()[sequence].get(method, {}).get("variants", {}))


def tuning(sequence: str, method: str, variant: str | None = None) -> dict[str, Any] | None:
    """How a preset was chosen on validation data (grid, scores, choice); None where it was not."""
    _check(sequence, method, variant)
    if method not in _read()[sequence]:
        return None
    return _settings(sequence, method, variant).get("tuning")


def _check(sequence: str, method: str, variant: str | None) -> None:
    known = variants(sequence, method)
    if variant is not None and not known:
        raise FunclError(f"{method} on {sequence} has no variants: leave {variant!r} out.")
    if variant is not None and variant not in known:
        raise unknown(f"variant of {method} on {sequence}", variant, known)


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(files("funcl.experiments").joinpath("presets.toml").read_text("utf-8"))


def _settings(sequence: str, method: str, variant: str | None) -> dict[str, Any]:
    entry = _entry(f"{sequence}.{method}")
    return _merged(_without_record(entry), entry["variants"][variant]) if variant else entry


def _entry(name: str) -> dict[str, Any]:
    sequence, method = name.split(".")
    entry = _read()[sequence][method]
    if "like" not in entry:
        return entry
    base = _without_record(_entry(entry["like"]))
    return _merged(base, {k: v for k, v in entry.items() if k != "like"})


def _without_record(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What another entry takes over: the settings, and not how they were chosen."""
    return {part: settings for part, settings in entry.items() if part in PARTS}


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(merged[key], value) if both and "type" not in value else value
    return merged


def _build(settings: Mapping[str, Any]) -> tuple[Network, Method, Training]:
    from funcl.config import from_plain

    network, method, training = (from_plain(settings[part]) for part in PARTS)
    return network, method, training
