"""Checks of single settings, each with one sentence for a value that cannot work."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from funcl.errors import FunclError


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`.

    >>> whole("epochs", 0)
    Traceback (most recent call last):
    funcl.errors.FunclError: epochs must be a whole number of at least 1, not 0.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise FunclError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return number


def seed_number(name: str, value: Any) -> int:
    """A whole number that every generator takes and no two generators take for the same."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**32:
        raise FunclError(f"{name} must be a whole number from 0 to 2**32 - 1, not {value!r}.")
    return number


def real(name: str, value: Any, what: str = "a finite number", above: float = -math.inf) -> float:
    """A finite number above a bound; `what` describes it.

    >>> real("prior_variance", float("nan"), "a positive number", above=0)
    Traceback (most recent call last):
    funcl.errors.FunclError: prior_variance must be a positive number, not nan.
    """
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > above):
        raise FunclError(f"{name} must be {what}, not {value!r}.")
    return number
