"""Settings given as text, `name=value`: found by name and read after the type of their field."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from funcl.errors import FunclError, unknown

if TYPE_CHECKING:
    from funcl.networks.network import Network
    from funcl.protocol import Method
    from funcl.train.training import Training

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def with_settings(
    network: Network | None, method: Method, training: Training, settings: Mapping[str, Any]
) -> tuple[Network | None, Method, Training]:
    """Replace settings by their names, in the order given; the method's come before training's.

    A dot leads into a setting that has settings of its own. Values are texts or ready values.

    >>> from funcl.experiments.presets import preset
    >>> given = {"prior_variance": "0.01", "hidden": "100,100", "context.points": "20"}
    >>> network, method, training = with_settings(*preset("split-mnist", "sfsvi"), given)
    >>> network.hidden, method.prior_variance, method.context.points
    ((100, 100), 0.01, 20)
    """
    parts: list[Any] = [method, training, network]
    for name, value in settings.items():
        first, *_ = name.split(".")
        place = next((i for i, part in enumerate(parts) if first in _names(part)), None)
        if place is None:
            raise unknown("setting", name, [n for part in parts for n in _names(part)])
        parts[place] = _with(parts[place], name.split("."), value, name)
    method, training, network = parts
    return network, method, training


def _names(part: Any) -> list[str]:
    return [f.name for f in fields(part)] if is_dataclass(part) else []


def _with(part: Any, path: Sequence[str], value: Any, name: str) -> Any:
    field, *rest = path
    if field not in _names(part):
        if not _names(part):
            raise FunclError(
                f"{name}: {name.rsplit('.', len(path))[0]} is {part!r} and has no settings; "
                "give it a value that has some first, such as Noise."
            )
        raise unknown(f"setting of {type(part).__name__}", field, _names(part))
    if rest:
        return replace(part, **{field: _with(getattr(part, field), rest, value, name)})
    if isinstance(value, str):
        value = _value(value.strip(), get_type_hints(type(part))[field], name)
    return replace(part, **{field: value})


def _value(text: str, kind: Any, name: str) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    # A text fits any str, so that is tried last.
    for option in sorted(options, key=lambda option: option is str):
        if option is not type(None):
            try:
                return _single(text, option)
            except ValueError as mistake:
                if isinstance(mistake, FunclError):
                    raise
    wanted = " or ".join(_spelled(option) for option in options)
    raise FunclError(f"{name}={text} cannot be used: give {wanted}.")


def _single(text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in TRUTH:
            raise ValueError
        return TRUTH[text.lower()]
    if kind in (int, float, str):
        return kind(text)
    if get_origin(kind) in (tuple, list, Sequence):
        items = text.strip("()[] ").strip(",")
        inner = get_args(kind)[0]
        return tuple(_single(item.strip(), inner) for item in items.split(",") if items)
    return _named(text, kind)


def _named(text: str, kind: Any) -> Any:
    """A value with settings of its own, by the name of its class, with the class's defaults."""
    from funcl.config import settings_types

    known = {
        name: cls
        for name, cls in settings_types().items()
        if isinstance(kind, type) and issubclass(cls, kind)
    }
    if not known:
        raise ValueError
    if text not in known:
        raise unknown(kind.__name__.lower(), text, known)
    return known[text]()


def _spelled(kind: Any) -> str:
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if kind is type(None):
        return "none"
    if kind in plain:
        return plain[kind]
    arguments = [a for a in get_args(kind) if a is not Ellipsis]
    return f"numbers separated by commas ({', '.join('n' for _ in arguments) or 'n'})"
