"""The disk: where things are cached, files that are whole or not there, and what it refuses."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from funcl.errors import FunclError

try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are not kept apart there
    fcntl = None

ADVICE = "choose a folder that exists, may be written and has room"


def cache_folder(part: str) -> Path:
    """The folder for one kind of thing: `part` of $FUNCL_CACHE, else of the user's cache."""
    if folder := os.environ.get("FUNCL_CACHE"):
        return Path(folder).expanduser() / part
    caches = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache"
    return Path(caches) / "funcl" / part


@contextmanager
def writing(path: str | Path, advice: str = ADVICE) -> Iterator[None]:
    """Turn what the disk refuses into a sentence that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise FunclError(f"{path} could not be written ({reason}): {advice}.") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush to the disk, and rename: never half a file."""
    # Unlike those of tempfile, this file can be read by whoever may read the folder.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(folder: Path, busy: str | None = None, advice: str = ADVICE) -> Iterator[None]:
    """Make a folder and keep other processes out of it.

    Where another one holds it, wait; or, with `busy`, refuse with that sentence.
    """
    with writing(folder, advice):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    with lock:
        if fcntl:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            except BlockingIOError:
                raise FunclError(busy) from None
            except OSError:
                pass  # some network folders know no locks; work there is no worse than without
        yield
