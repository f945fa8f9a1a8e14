"""Download one file: resumed where it broke off, from one mirror after another."""

import http.client
import os
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from funcl.disk import writing
from funcl.errors import FunclError
from funcl.tasks.formats import DamagedError

CHUNK = 1 << 16
ATTEMPTS_PER_MIRROR = 4
ADVICE = "make room or permit it, or name another folder in $FUNCL_CACHE"

Progress = Callable[[str, int, int | None], None]


class BrokenOffError(Exception):
    """A transfer ended before its time; the text says how."""


def download(
    urls: Sequence[str],
    target: Path,
    *,
    check: Callable[[Path], None],
    timeout: float,
    progress: Progress | None = None,
) -> None:
    """Put the file that all `urls` serve at `target`, which appears only when it is whole.

    What has arrived is kept beside it as .partial, and the next attempt asks for the rest. A
    mirror that broke off is tried again as long as it brings new bytes. `check` raises
    DamagedError for wrong content. `timeout` is the longest silence in seconds. `progress` is
    told the name, the bytes so far and the whole size (or None).
    """
    partial = target.with_name(f"{target.name}.partial")
    waiting = deque(urls)
    problems = {}
    for _ in range(ATTEMPTS_PER_MIRROR * len(urls)):
        if not waiting:
            break
        url = waiting.popleft()
        before = _size(partial)
        try:
            _receive(url, partial, timeout, progress)
            check(partial)
        except BrokenOffError as error:
            problems[url] = str(error)
            again = _size(partial) > before
        except DamagedError as error:
            problems[url] = f"served a wrong file: {error}"
            partial.unlink(missing_ok=True)
            # The fault may lie in bytes that were here before: it deserves another try then.
            again = before > 0
        else:
            with writing(target, ADVICE):
                os.replace(partial, target)
            return
        if again:
            waiting.append(url)
    listed = "; ".join(f"{url}: {problem}" for url, problem in problems.items())
    raise FunclError(
        f"{target.name} could not be downloaded ({listed}); try again later, or put the files into"
        " a folder and name it in $FUNCL_DATA."
    )


def _receive(url: str, partial: Path, timeout: float, progress: Progress | None) -> None:
    start = _size(partial)
    request = urllib.request.Request(url, headers={"User-Agent": "funcl"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            _store(response, partial, start, progress)
    except urllib.error.HTTPError as error:
        error.close()
        # 416: there are no bytes beyond those here, so the file is whole, or not ours at all.
        if not (error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start):
            raise BrokenOffError(f"answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, TimeoutError):
            raise BrokenOffError(f"no byte for {timeout:g} s") from None
        raise BrokenOffError(str(cause) or type(cause).__name__) from None


def _store(
    response: http.client.HTTPResponse, partial: Path, start: int, progress: Progress | None
) -> None:
    """Write a response to the partial file: behind what is there if it is the rest of it."""
    resumed = response.status == HTTPStatus.PARTIAL_CONTENT
    received = start if resumed else 0
    length = response.headers["Content-Length"]
    total = received + int(length) if length and length.isdigit() else None
    name = partial.name.removesuffix(".partial")
    # Unbuffered, so that a full disk shows where bytes are written and nowhere else.
    with writing(partial, ADVICE):
        file = partial.open("ab" if resumed else "wb", buffering=0)
    with file:
        while chunk := response.read1(CHUNK):
            unwritten = memoryview(chunk)
            while unwritten:
                with writing(partial, ADVICE):
                    unwritten = unwritten[file.write(unwritten) :]
            received += len(chunk)
            if progress:
                progress(name, received, total)
    if total is not None and received < total:
        raise BrokenOffError(f"broke off after {received:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
