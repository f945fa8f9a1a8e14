"""What every test runs under: one thread a process, strict types, its own cache, checked shapes."""

# ruff: noqa: E402
import os
import tempfile
from pathlib import Path

# Before jax is imported. Matrices are tiny here: threads would only wait for each other. Compiled
# programs are kept between runs; everything else that is cached lives as long as the session.
_stable = Path(os.environ.get("FUNCL_CACHE") or Path(__file__).parents[1] / ".cache")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tiny programs spend their time in the compiler, so it optimises less.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_stable / "funcl" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
# One CPU a worker: with two, batched linear algebra has been seen to hang, and workers to starve.
_worker = os.environ.get("PYTEST_XDIST_WORKER", "")
if _worker.startswith("gw") and hasattr(os, "sched_setaffinity"):
    _cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cpus[int(_worker[2:]) % len(_cpus)]})
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the session's folder
    _session = tempfile.TemporaryDirectory(prefix="funcl-tests-")
    os.environ["FUNCL_CACHE"] = _session.name

from jaxtyping import install_import_hook

install_import_hook("funcl.evaluate.scores", "beartype.beartype")

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile(
    "funcl",
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.differing_executors,
    ],
)
hypothesis.settings.load_profile("funcl")


@pytest.fixture
def float64():
    """Double precision inside one test."""
    with jax.enable_x64(True):
        yield
