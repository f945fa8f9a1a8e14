"""Settings as plain values: every network, method and context source can be written as JSON and read back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from funcl.errors import FunclError, unknown

TYPE = "type"


def settings_types() -> dict[str, type]:
    """The classes whose values can be stored by name."""
    from funcl.memory.context import Coreset, Noise, Pixels
    from funcl.methods import METHODS, by_name
    from funcl.networks import MLP
    from funcl.train.training import Training

    classes = [MLP, Training, Noise, Pixels, Coreset, *(by_name(name) for name in METHODS)]
    return {cls.__name__: cls for cls in classes}


def to_plain(value: Any) -> Any:
    """Turn settings into numbers, strings, lists and dicts.

    >>> from funcl.networks import MLP
    >>> to_plain(MLP([64]))
    {'type': 'MLP', 'hidden': [64], 'activation': 'relu'}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {TYPE: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def from_plain(data: Any) -> Any:
    """The inverse of `to_plain` for the classes of the library.

    >>> from_plain({"type": "MLP", "hidden": [64], "activation": "relu"})
    MLP(hidden=(64,), activation='relu')
    """
    if isinstance(data, Mapping):
        if TYPE not in data:
            return {k: from_plain(v) for k, v in data.items()}
        types = settings_types()
        if data[TYPE] not in types:
            raise unknown("type of settings", data[TYPE], types)
        fields = {k: from_plain(v) for k, v in data.items() if k != TYPE}
        try:
            return types[data[TYPE]](**fields)
        except TypeError as mistake:
            raise FunclError(
                f"The stored settings of {data[TYPE]} do not fit: {mistake}."
            ) from None
    if isinstance(data, list):
        return tuple(from_plain(v) for v in data)
    return data


def is_storable(value: Any) -> bool:
    """Whether `from_plain(to_plain(value))` gives the value back."""
    try:
        return from_plain(to_plain(value)) == value
    except FunclError:
        return False
