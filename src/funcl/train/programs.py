"""Programs: compiled once per shape, timed, counted, and laid out over seeds and devices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from funcl.disk import cache_folder

PyTree = Any
SEED = PartitionSpec("seeds")
SHARED = PartitionSpec()
# On a GPU kernels are chosen by rule. A race between candidates could end otherwise in the next
# process, and with it the last bits of a resumed run; and it made compiling four times as long, for
# steps that were one part in twenty faster.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


class Layout:
    """Where the seed axis lives: mapped over or vmapped on a device, sharded over several."""

    def __init__(self, seeds: int, strategy: str, devices: Sequence[Any] | None = None):
        devices = list(devices or jax.local_devices())[: max(seeds, 1)]
        self.strategy = strategy
        self.mesh = Mesh(devices, ("seeds",)) if len(devices) > 1 else None
        self.padded = -(-seeds // len(devices)) * len(devices)

    def over_seeds(self, function: Callable, seeded: Sequence[bool]) -> Callable:
        """Apply a function of one seed to all; `seeded` says which arguments have the axis."""
        if self.strategy == "vmap":
            mapped = jax.vmap(function, in_axes=[0 if s else None for s in seeded])
        else:
            mapped = _one_after_the_other(function, seeded)
        if self.mesh is None:
            return mapped
        return jax.shard_map(
            mapped,
            mesh=self.mesh,
            in_specs=tuple(SEED if s else SHARED for s in seeded),
            out_specs=SEED,
            check_vma=False,
        )

    def place(self, tree: PyTree, seeded: bool) -> PyTree:
        """Put arrays where the programs expect them."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.device_put(tree, NamedSharding(self.mesh, SEED if seeded else SHARED))


def _one_after_the_other(function: Callable, seeded: Sequence[bool]) -> Callable:
    def mapped(*arguments: PyTree) -> PyTree:
        def one(chosen: tuple[PyTree, ...]) -> PyTree:
            rest = iter(chosen)
            return function(
                *(next(rest) if s else a for a, s in zip(arguments, seeded, strict=True))
            )

        return jax.lax.map(one, tuple(a for a, s in zip(arguments, seeded, strict=True) if s))

    return mapped


class CacheHits:
    """Counts what jax finds in its compilation cache."""

    def __init__(self) -> None:
        self.hits = 0
        jax.monitoring.register_event_listener(self._listen)

    def _listen(self, event: str, **_: Any) -> None:
        self.hits += event == "/jax/compilation_cache/cache_hits"


CACHE = CacheHits()


class Program:
    """A function that is compiled for each shape of its arguments, with the time that this took."""

    def __init__(self, function: Callable, products: str = "highest"):
        self.products = products  # the precision of matrix products
        self.traces = 0
        self.compile_seconds = 0.0
        self.from_cache = 0  # compilations that an earlier process had made
        self.peak_bytes = 0
        self._compiled: dict[Any, Callable] = {}

        def counted(*arguments: PyTree) -> PyTree:
            self.traces += 1
            return function(*arguments)

        self._jitted = jax.jit(counted)

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Run, compiling first where these shapes are new."""
        leaves, structure = jax.tree.flatten(arguments)
        shapes = (
            structure,
            tuple((x.shape, str(x.dtype)) if isinstance(x, Array) else type(x) for x in leaves),
        )
        if shapes not in self._compiled:
            start, found = time.perf_counter(), CACHE.hits
            options = GPU_OPTIONS if jax.default_backend() == "gpu" else {}
            with jax.default_matmul_precision(self.products):
                compiled = self._jitted.lower(*arguments).compile(options)
            self.compile_seconds += time.perf_counter() - start
            self.from_cache += CACHE.hits - found
            analysis = compiled.memory_analysis()
            if analysis is not None:
                self.peak_bytes = max(
                    self.peak_bytes,
                    analysis.temp_size_in_bytes
                    + analysis.argument_size_in_bytes
                    + analysis.output_size_in_bytes,
                )
            self._compiled[shapes] = compiled
        return self._compiled[shapes](*arguments)


def keep_compilations() -> None:
    """Use a compilation cache on disk, unless the user has set one up or switched it off."""
    if (
        jax.config.values["jax_compilation_cache_dir"]
        or os.environ.get("FUNCL_COMPILATION_CACHE") == "0"
    ):
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_folder("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
