"""Settings as plain values: networks, methods and context sources as JSON, and back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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

    What is no part of the library is told by its full name, so that nobody takes it for a part.

    >>> from funcl.networks import MLP
    >>> to_plain(MLP([64]))
    {'type': 'MLP', 'hidden': [64], 'activation': 'relu'}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {TYPE: _type_name(type(value)), **fields}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return {TYPE: _full_name(value if hasattr(value, "__qualname__") else type(value))}


def from_plain(data: Any) -> Any:
    """The inverse of `to_plain` for the classes of the library.

    >>> from_plain({"type": "MLP", "hidden": [64], "activation": "relu"})
    MLP(hidden=(64,), activation='relu')
    """
    if isinstance(data, Mapping):
        if TYPE not in data:
            return {k: from_plain(v) for k, v in data.items()}
        name, types = str(data[TYPE]), settings_types()
        if name not in types:
            raise unknown("type of settings", name, types)
        fields = {k: from_plain(v) for k, v in data.items() if k != TYPE}
        try:
            return types[name](**fields)
        except TypeError as mistake:
            raise FunclError(f"The stored settings of {name} do not fit: {mistake}.") from None
    if isinstance(data, list):
        return tuple(from_plain(v) for v in data)
    return data


def is_storable(data: Any) -> bool:
    """Whether plain values hold nothing but classes of the library, so that `from_plain` works.

    >>> is_storable({"type": "Separate", "method": {"type": "my.module.Mine"}})
    False
    """
    if isinstance(data, Mapping):
        known = TYPE not in data or str(data[TYPE]) in settings_types()
        return known and all(map(is_storable, data.values()))
    return not isinstance(data, list) or all(map(is_storable, data))


def _type_name(cls: type) -> str:
    return cls.__name__ if settings_types().get(cls.__name__) is cls else _full_name(cls)


def _full_name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
