"""Read the files of a data set, and tell whether they hold what they should."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np

from funcl.tasks.sources import DATASETS, Dataset

GZIP_MAGIC = b"\x1f\x8b"
IDX_MAGIC = b"\0\0\x08"  # an array of unsigned bytes; the number of its dimensions follows

Arrays = dict[str, np.ndarray]


class DamagedError(Exception):
    """A file does not hold what it should; the text says what is wrong with it."""


def read_arrays(path: Path, names: list[str]) -> Arrays:
    """Read the named arrays of an .npz file, or the one array of an IDX file."""
    if path.suffix == ".npz":
        return read_npz(path, names)
    return {names[0]: read_idx(path)}


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of bytes, compressed or not."""
    try:
        data = path.read_bytes()
        if data.startswith(GZIP_MAGIC):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedError(_reason(error)) from None
    if len(data) < 4 or data[:3] != IDX_MAGIC or data[3] not in (1, 3):
        begin = data[:4].hex(" ") or "nothing"
        raise DamagedError(f"it is no IDX file of images or labels (it begins with {begin})")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DamagedError("its header is cut short")
    shape = tuple(np.frombuffer(data[4:start], ">u4").tolist())
    size = math.prod(shape)
    if len(data) - start != size:
        raise DamagedError(f"{len(data) - start:,} bytes of values where its header says {size:,}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_npz(path: Path, names: list[str]) -> Arrays:
    """Read the named arrays of an .npz file."""
    try:
        # Opened here because NumPy leaves the file of a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in names if name in archive}
    except Exception as error:  # a damaged archive makes zipfile and NumPy raise almost anything
        raise DamagedError(_reason(error)) from None
    if missing := [name for name in names if name not in arrays]:
        raise DamagedError(f"it lacks the array {missing[0]}")
    return arrays


def check_array(dataset: Dataset, name: str, array: np.ndarray) -> None:
    """Raise DamagedError unless the array is, in its original order, the data set's `name`."""
    if find_different(dataset, {name: array}):
        raise DamagedError(f"its content is not {name} of {dataset.name}")


def check_dataset(dataset: Dataset, arrays: Arrays) -> Arrays:
    """Return the arrays of a data set if their rows are the right ones, else raise DamagedError.

    Rows that are right but not in the original order are sorted by label and then by the digest
    of the image, so that every copy gives the same training runs, whatever order it came in.
    """
    arrays = {name: _as_bytes(name, arrays[name], shape) for name, shape in dataset.shapes.items()}
    # Equal arrays have equal rows, and the digest of an array is found far sooner.
    different = find_different(dataset, arrays)
    for part in dataset.rows:
        inputs, labels = f"x_{part}", f"y_{part}"
        if inputs in different or labels in different:
            x, y = arrays[inputs], arrays[labels]
            if row_digest(x, y) != dataset.rows[part]:
                raise DamagedError(f"the {part} part does not hold the rows of {dataset.name}")
            order = _canonical_order(x, y)
            arrays |= {inputs: x[order], labels: y[order]}
    return arrays


def find_different(dataset: Dataset, arrays: Arrays) -> list[str]:
    """Return the names of those arrays that are not as in the original files."""
    return [name for name, array in arrays.items() if _digest(array) != dataset.arrays[name]]


def belongs_to_another(dataset: Dataset, arrays: Arrays) -> bool:
    """Say whether any of these is an array of another known data set."""
    others = [other for other in DATASETS.values() if other.name != dataset.name]
    return any(len(find_different(other, arrays)) < len(arrays) for other in others)


def row_digest(x: np.ndarray, y: np.ndarray) -> str:
    """Return the sha256 over the sorted sha256 digests of all rows: label byte, then image."""
    rows = np.concatenate([y.astype(np.uint8)[:, None], x.reshape(len(x), -1)], axis=1)
    return hashlib.sha256(
        b"".join(sorted(hashlib.sha256(row).digest() for row in rows))
    ).hexdigest()


def _canonical_order(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    keys = [
        (label, hashlib.sha256(image).digest()) for label, image in zip(y.tolist(), x, strict=True)
    ]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__))


def _as_bytes(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape:
        raise DamagedError(f"{name} has the shape {array.shape} where {shape} is right")
    if array.dtype.kind not in "ui":
        raise DamagedError(f"{name} has dtype {array.dtype} where bytes are right")
    narrow = array.astype(np.uint8, copy=False)
    if narrow is not array and not np.array_equal(narrow, array):
        raise DamagedError(f"{name} has values beyond a byte")
    return np.ascontiguousarray(narrow)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"it cannot be read ({text.rstrip('.')})"
