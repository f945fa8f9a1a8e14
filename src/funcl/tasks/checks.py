"""Checks of arrays from outside; each failure is one sentence: what, where, what to do."""

import math
from typing import Any

import numpy as np

from funcl.errors import FunclError, unknown

HEADS = ("multi", "single")


def check_heads(heads: object) -> str:
    """Return `heads` if it is "multi" or "single"."""
    if heads not in HEADS:
        raise unknown("kind of heads", heads, HEADS)
    return str(heads)


def check_scale(scale: Any) -> float:
    """Return `scale` as a positive, finite float."""
    try:
        value = float(scale)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0) or isinstance(scale, bool):
        raise FunclError(
            f"scale must be a positive number that inputs are multiplied by, not {scale!r}."
        )
    return value


def check_inputs(values: Any, where: str, empty: bool = False) -> tuple[np.ndarray, float]:
    """Return inputs in the dtype they are stored in, and the scale that suits it.

    Nothing is copied unless the dtype has to change: booleans become uint8, integers wider than
    32 bits become int32, floats wider than 32 bits become float32. Bytes are taken for
    pixels and scaled by 1/255; everything else (booleans too) is left at its own scale. No rows
    at all are refused unless they may be `empty`.
    """
    array = _as_array(values, where)
    kind = array.dtype.kind
    if kind not in "buif":
        raise FunclError(
            f"{where}: inputs must be numbers, not dtype {array.dtype}; convert them to one"
            " numeric array with a row per example."
        )
    if array.ndim < 2:
        raise FunclError(
            f"{where}: inputs need the shape (rows, features, ...), not {array.shape};"
            " a single feature is a column, x[:, None]."
        )
    if len(array) == 0 and not empty:
        raise FunclError(f"{where} is empty: every task needs training and test rows.")
    if math.prod(array.shape[1:]) == 0:
        raise FunclError(f"{where}: rows of shape {array.shape[1:]} hold no feature.")
    if kind == "b":
        return array.astype(np.uint8), 1.0
    if kind == "f":
        return _to_float(array, where), 1.0
    return _to_integer(array, where), usual_scale(array.dtype)


def usual_scale(dtype: Any) -> float:
    """The scale of inputs about which nothing else is said: bytes are pixels."""
    return 1 / 255 if dtype == np.uint8 else 1.0


def check_labels(values: Any, where: str, rows: int) -> np.ndarray:
    """Return labels as a vector of integers or of strings, one for each of `rows` inputs."""
    array = _as_array(values, where)
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        other = next((v for v in values if not isinstance(v, str)), None)
        if other is not None:
            raise FunclError(
                f"{where}: labels must be all strings or all numbers, but {other!r} is no string."
            )
    if array.ndim != 1:
        hint = "; turn one-hot rows into labels by y.argmax(1)" if array.ndim == 2 else ""
        raise FunclError(
            f"{where}: labels need the shape (rows,), one per row, not {array.shape}{hint}."
        )
    if len(array) != rows:
        raise FunclError(
            f"{where}: {len(array):,} labels for {rows:,} rows of inputs; give one for each."
        )
    kind = array.dtype.kind
    if kind == "b":
        return array.astype(np.int64)
    if kind in "ui":
        return array
    if kind == "f":
        # Beyond 2**53 a float no longer tells neighbouring whole numbers apart.
        whole = (np.abs(array) < 2**53) & (array == np.round(array))
        if not whole.all():
            raise FunclError(
                f"{where}: labels must be whole numbers or strings, but {(~whole).sum():,} of"
                f" {rows:,} are not, such as {float(array[~whole][0])!r}."
            )
        return array.astype(np.int64)
    # Tables hand columns of strings over as objects.
    if kind in "UT" or (kind == "O" and all(isinstance(label, str) for label in array)):
        return array.astype(str)
    raise FunclError(
        f"{where}: labels must be whole numbers or strings, not dtype {array.dtype};"
        " convert them first."
    )


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written through; the caller's own array stays as it is."""
    view = array.view()
    view.setflags(write=False)
    return view


def _as_array(values: Any, where: str) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise FunclError(f"{where} is a masked array with masked values; fill or drop them first.")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FunclError(
            f"{where} cannot be read as one array ({str(error).rstrip('.')}); give rows that all"
            " have the same shape."
        ) from None


def _to_float(array: np.ndarray, where: str) -> np.ndarray:
    _refuse_rows(~np.isfinite(array), where, "hold NaN or infinite values; fill or drop them")
    if array.dtype.itemsize <= 4:
        return _native(array)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    _refuse_rows(~np.isfinite(narrow), where, "hold values beyond float32; rescale the inputs")
    return narrow


def _to_integer(array: np.ndarray, where: str) -> np.ndarray:
    if np.can_cast(array.dtype, np.int32):
        return _native(array)
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        beyond = (array < limits.min) | (array > limits.max)
        _refuse_rows(beyond, where, "hold values beyond int32; give the inputs as floats")
    return array.astype(np.int32)


def _native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _refuse_rows(bad: np.ndarray, where: str, problem: str) -> None:
    if bad.any():
        count = bad.reshape(len(bad), -1).any(1).sum()
        raise FunclError(f"{where}: {count:,} of {len(bad):,} rows {problem}.")
