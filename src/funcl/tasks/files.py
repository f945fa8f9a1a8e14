"""Find, fetch and verify the data sets that live in files."""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from funcl.disk import cache_folder, locked
from funcl.errors import FunclError, unknown
from funcl.tasks import formats
from funcl.tasks.formats import Arrays, DamagedError
from funcl.tasks.sources import (
    DATASETS,
    IDX_FILES,
    Dataset,
    candidates,
    shared_folders,
)

if TYPE_CHECKING:
    from funcl.tasks.download import Progress

SILENCE = 30.0  # seconds without a byte after which a mirror is given up

Folder = str | PathLike[str]


@dataclass(frozen=True)
class Status:
    """Where a data set was found, how large it is in bytes, and whether it is what it should be.

    `verified` is None where nothing was found. `problem` says what is wrong, also where a good
    copy was found behind a bad one.
    """

    name: str
    where: Path | None
    size: int | None
    verified: bool | None
    problem: str | None


@dataclass(frozen=True)
class _Copy:
    """A copy of a data set on this machine: its arrays, or the problem with them."""

    files: frozenset[Path]
    trusted: bool
    arrays: Arrays
    problem: str | None = None

    @property
    def where(self) -> Path:
        """The .npz file, or the folder of the IDX files."""
        path = min(self.files)
        return path if path.suffix == ".npz" else path.parent


def read(name: str, data_dir: Folder | None = None) -> Arrays:
    """Return the verified arrays of a data set, downloaded if this machine does not have it.

    With `data_dir` only that folder counts. Otherwise the places are $FUNCL_DATA, the cache,
    and the folders where other programs keep data. A folder that the user names is trusted to
    be meant: a damaged copy in it is an error. Damaged copies elsewhere are passed over
    with a warning.
    """
    dataset = _dataset(name)
    copy = _find(dataset, _places(data_dir))
    if copy is None and data_dir is not None:
        raise FunclError(
            f"{data_dir} holds no {name}; put {_wanted(dataset)} there, or leave data_dir out to"
            " look elsewhere and download."
        )
    return (copy or _download(dataset, cache_folder("data"), None, SILENCE)).arrays


def fetch(
    name: str,
    *,
    data_dir: Folder | None = None,
    progress: "Progress | None" = None,
    timeout: float = SILENCE,
) -> Path:
    """Download a data set unless a good copy is here already, and return where it is.

    With `data_dir` only that folder counts, and the download goes there instead of the cache.
    What an earlier, interrupted download left there is used, and what is damaged is replaced.
    `progress` is called with a file's name, the bytes so far and its size (None if unknown);
    `timeout` is the longest silence, in seconds, before a mirror is given up.
    """
    dataset = _dataset(name)
    if data_dir is None:
        folder, places = cache_folder("data"), _places(None)
    else:
        folder = Path(data_dir).expanduser()
        places = [(folder, False)]
    copy = _find(dataset, places)
    return (copy or _download(dataset, folder, progress, timeout)).where


def verify(name: str, data_dir: Folder | None = None) -> Status:
    """Read the copy of a data set that `read` would use, and say whether it is sound."""
    dataset = _dataset(name)
    copy, problems = None, []
    try:
        for copy in _examine_all(dataset, _places(data_dir)):
            problems += [copy.problem] if copy.problem else []
            if copy.trusted or not copy.problem:
                break
    except FunclError as error:
        problems.append(str(error))
    return Status(
        name=name,
        where=copy.where if copy else None,
        size=sum(path.stat().st_size for path in copy.files) if copy else None,
        verified=copy.problem is None if copy else None,
        problem=" ".join(problems) or None,
    )


def status(data_dir: Folder | None = None) -> list[Status]:
    """Verify all data sets."""
    return [verify(name, data_dir) for name in DATASETS]


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def _wanted(dataset: Dataset) -> str:
    return f"{dataset.archive} or the IDX files {', '.join(IDX_FILES.values())} (.gz or not)"


def _places(data_dir: Folder | None) -> list[tuple[Path, bool]]:
    """Return the folders to look in, in order, and whether it was the user who named them."""
    named = data_dir if data_dir is not None else os.environ.get("FUNCL_DATA")
    if not named:
        trusted = []
    else:
        folder = Path(named).expanduser()
        if not os.path.isdir(folder):
            origin = "data_dir" if data_dir is not None else "$FUNCL_DATA"
            raise FunclError(f"{folder}, named by {origin}, is not a folder; correct the path.")
        trusted = [(folder, True)]
    if data_dir is not None:
        return trusted
    return trusted + [(folder, False) for folder in (cache_folder("data"), *shared_folders())]


def _find(dataset: Dataset, places: list[tuple[Path, bool]]) -> _Copy | None:
    for copy in _examine_all(dataset, places):
        if not copy.problem:
            return copy
        if copy.trusted:
            raise FunclError(copy.problem)
        warnings.warn(f"Passed over: {copy.problem}", stacklevel=3)
    return None


def _examine_all(dataset: Dataset, places: list[tuple[Path, bool]]) -> Iterator[_Copy]:
    for folder, trusted in places:
        for files in candidates(dataset, folder):
            if copy := _examine(dataset, files, folder, trusted):
                yield copy


def _examine(dataset: Dataset, files: dict[str, Path], folder: Path, trusted: bool) -> _Copy | None:
    """Read and check one copy; None if it need not be one of this data set."""
    copy = _Copy(frozenset(files.values()), trusted, {})
    missing = [stem for name, stem in IDX_FILES.items() if name not in files]
    if missing and not trusted:
        return None  # a download that broke off, or was meant for something else
    arrays, blamed = {}, copy.where
    try:
        for blamed in sorted(copy.files):
            held = [name for name, path in files.items() if path == blamed]
            arrays |= formats.read_arrays(blamed, held)
        blamed = copy.where
        if missing:
            raise DamagedError(f"there is no {' and no '.join(missing)} beside the other files")
        return replace(copy, arrays=formats.check_dataset(dataset, arrays))
    except DamagedError as error:
        # IDX files that lie in no folder of their own look the same for every set.
        if copy.where == folder and formats.belongs_to_another(dataset, arrays):
            return None
        wrong = formats.find_different(dataset, arrays)
        if blamed == copy.where and len(wrong) == 1:
            blamed = files[wrong[0]]
        advice = "put a good copy of it there, or delete it"
        return replace(copy, problem=f"{blamed} is no sound {dataset.name}: {error}; {advice}.")


def _download(dataset: Dataset, folder: Path, progress: "Progress | None", timeout: float) -> _Copy:
    """Download what is missing of a data set into its place in `folder`."""
    if os.environ.get("FUNCL_OFFLINE", "0") not in ("", "0"):
        raise FunclError(
            f"{dataset.name} is not on this machine and $FUNCL_OFFLINE forbids a download; unset"
            f" it, or put {_wanted(dataset)} into a folder and name it in $FUNCL_DATA."
        )
    # Imported on demand: most runs find their data and need no network code.
    from funcl.tasks.download import ADVICE, download

    place = folder / dataset.name
    with locked(place, advice=ADVICE):
        for name, stem in IDX_FILES.items():
            target = place / f"{stem}.gz"
            if not _is_sound(dataset, name, target):
                download(
                    [mirror + target.name for mirror in dataset.mirrors],
                    target,
                    check=partial(_check_file, dataset, name),
                    timeout=timeout,
                    progress=progress,
                )
    copy = _find(dataset, [(folder, False)])
    if copy is None:
        raise FunclError(f"{place} holds files that hide the download; delete it and fetch again.")
    return copy


def _check_file(dataset: Dataset, name: str, path: Path) -> None:
    formats.check_array(dataset, name, formats.read_idx(path))


def _is_sound(dataset: Dataset, name: str, path: Path) -> bool:
    try:
        _check_file(dataset, name, path)
    except DamagedError:
        return False
    return True
