"""Checkpoints: a folder with one safetensors file and a manifest in JSON. No pickle.

The arrays go to a file named by their digest; then the manifest, which names that file and its
sha256, replaces the old one in a single rename. Whatever interrupts a save, the folder holds a
complete checkpoint: the old one or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from funcl.disk import replace_file, writing
from funcl.errors import FunclError

SCHEMA = 1
MANIFEST = "manifest.json"
ADVICE = "make room or choose another folder; what was saved there before is untouched"

PyTree = Any


def save(folder: str | os.PathLike[str], arrays: Mapping[str, PyTree], payload: dict) -> None:
    """Write named pytrees of arrays, and a payload of plain values beside them."""
    folder = Path(folder)
    blob = safetensors.numpy.save(flatten(arrays))
    digest = hashlib.sha256(blob).hexdigest()
    name = f"arrays-{digest[:16]}.safetensors"
    manifest = {
        "schema": SCHEMA,
        "files": {name: {"sha256": digest, "bytes": len(blob)}},
        "payload": json.loads(json.dumps(payload)),  # as it will be read
    }
    manifest["sha256"] = _digest(manifest)
    with writing(folder, ADVICE):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / name, blob)
        replace_file(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        for old in folder.glob("arrays-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)


def load_manifest(folder: str | os.PathLike[str]) -> dict:
    """The payload of a checkpoint, after checking that all of it is there and unaltered."""
    return _checked(Path(folder))["payload"]


def load_arrays(
    folder: str | os.PathLike[str], templates: Mapping[str, PyTree]
) -> dict[str, PyTree]:
    """The pytrees of a checkpoint, in the structure of the templates (arrays or their shapes)."""
    folder = Path(folder)
    (name,) = _checked(folder)["files"]
    stored = safetensors.numpy.load((folder / name).read_bytes())
    flat, structure = jax.tree_util.tree_flatten_with_path(dict(templates))
    leaves = []
    for path, template in flat:
        label = jax.tree_util.keystr(path)
        array = stored.pop(label, None)
        if (
            array is None
            or array.shape != template.shape
            or str(array.dtype) != str(template.dtype)
        ):
            found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise FunclError(
                f"The checkpoint {folder} does not fit: {label} should be "
                f"{template.dtype}{list(template.shape)} and is {found}. "
                "Load it with the settings and the network that it was saved with."
            )
        leaves.append(array)
    if stored:
        raise FunclError(
            f"The checkpoint {folder} does not fit: it also holds {sorted(stored)[0]}. "
            "Load it with the settings and the network that it was saved with."
        )
    return jax.tree_util.tree_unflatten(structure, leaves)


def flatten(arrays: Mapping[str, PyTree]) -> dict[str, np.ndarray]:
    """Leaves by their path, as contiguous arrays off the device."""
    flat = jax.tree_util.tree_leaves_with_path(dict(arrays))
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in flat}


def _digest(manifest: dict) -> str:
    """Of everything in a manifest but the digest itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _checked(folder: Path) -> dict:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        schema = int(manifest["schema"])
    except (FileNotFoundError, NotADirectoryError):
        raise FunclError(f"{folder} holds no checkpoint: {MANIFEST} is missing there.") from None
    except OSError as mistake:
        raise FunclError(
            f"{path} cannot be read ({mistake.strerror}): check who may read it."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise FunclError(
            f"{path} is damaged or no manifest of funcl's; use an earlier copy of the folder."
        ) from None
    if schema > SCHEMA:
        raise FunclError(
            f"{folder} was saved by a newer funcl (format {schema}, this one reads up to "
            f"{SCHEMA}): upgrade funcl."
        )
    if manifest.get("sha256") != _digest(manifest):
        raise FunclError(
            f"{path} was altered after it was saved; use an earlier copy of the folder."
        )
    for name, facts in manifest["files"].items():
        try:
            blob = (folder / name).read_bytes()
        except OSError:
            raise FunclError(
                f"{folder / name} cannot be read; use an earlier copy of the folder."
            ) from None
        if len(blob) != facts["bytes"]:
            raise FunclError(
                f"{folder / name} is truncated: {len(blob):,} of {facts['bytes']:,} bytes; "
                "use an earlier copy of the folder."
            )
        if hashlib.sha256(blob).hexdigest() != facts["sha256"]:
            raise FunclError(
                f"{folder / name} was altered after it was saved; "
                "use an earlier copy of the folder."
            )
    return manifest
