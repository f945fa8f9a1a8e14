"""Under which circumstances a number was measured: command, commit, hardware, versions."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "equinox")


def circumstances() -> dict[str, Any]:
    """The commit, the hardware and the versions of this process, for a result's JSON."""
    return {"commit": commit(), "hardware": hardware(), "versions": versions()}


def described(measured: Mapping[str, Any]) -> str:
    """Versions and commit of something measured, for a sentence about it."""
    found = ", ".join(f"{name} {number}" for name, number in measured["versions"].items())
    return found + (f", commit {measured['commit']}" if measured["commit"] else "")


def command() -> str:
    """The command line of this process, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the checkout that this package runs from, else of $FUNCL_COMMIT, else None.

    "+changes" says that the checkout's sources differ from the commit.
    """
    top = _git("rev-parse", "--show-toplevel")
    # A package installed into some project's environment must not name that project's commit.
    if top and Path(top) / "src" / PACKAGE.name == PACKAGE and (found := _git("rev-parse", "HEAD")):
        return found + ("+changes" if _git("status", "--porcelain", "--", str(PACKAGE)) else "")
    return os.environ.get("FUNCL_COMMIT") or None


def hardware() -> str:
    """The accelerators by name, or the processor and the number of cores open to this process."""
    import jax

    devices = jax.local_devices()
    if devices[0].platform != "cpu":
        return f"{len(devices)} × {devices[0].device_kind}"
    return f"{_processor()}, {_cores()} {'core' if _cores() == 1 else 'cores'}"


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what its numbers depend on."""
    import funcl

    found = {"python": platform.python_version(), "funcl": funcl.__version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    known = [model for model in models if model.lower() != "unknown"]
    return known[0] if known else platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
