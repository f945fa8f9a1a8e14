import gzip
import hashlib
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from funcl.tasks import formats, sources


def idx(array):
    """Write an array in the IDX format."""
    return b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape) + array.tobytes()


class Mirror:
    """A server of files on this machine, with faults: one per request, then none."""

    def __init__(self, files):
        self.files = files
        self.faults = []
        self.always = None
        self.ranges = True
        self.requests = []
        self.released = threading.Event()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                mirror.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def answer(self, handler):
        fault = self.always or (self.faults.pop(0) if self.faults else None)
        name = handler.path.lstrip("/")
        asked = handler.headers["Range"]
        self.requests.append((name, asked))
        if fault == "missing":
            handler.send_error(404)
            return
        data = self.files[name]
        if fault == "corrupt":
            data = data[:-12] + bytes(12)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if start and start >= len(data):
            handler.send_error(416)
            return
        rest = data[start:]
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        if fault in ("truncate", "stall"):
            handler.wfile.write(rest[: len(rest) // 2])
            handler.wfile.flush()
            if fault == "stall":
                self.released.wait(10)
        else:
            handler.wfile.write(rest)

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(autouse=True)
def secluded(tmp_path, monkeypatch, request):
    """Keep tests away from this machine's data and proxies, except those that ask for real data."""
    monkeypatch.setenv("FUNCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("FUNCL_OFFLINE", raising=False)
    if "tiny" in request.fixturenames:
        monkeypatch.delenv("FUNCL_DATA", raising=False)
        monkeypatch.delenv("KERAS_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)


def made_up_arrays(seed):
    generator = np.random.default_rng(seed)
    return {
        "x_train": generator.integers(0, 256, (40, 5, 5), np.uint8),
        "y_train": generator.permutation(np.arange(40) % 10).astype(np.uint8),
        "x_test": generator.integers(0, 256, (20, 5, 5), np.uint8),
        "y_test": generator.permutation(np.arange(20) % 10).astype(np.uint8),
    }


def describe(name, arrays, mirrors=()):
    """Make the entry of a data set in the registry from its arrays."""
    return sources.Dataset(
        name=name,
        shapes={key: array.shape for key, array in arrays.items()},
        arrays={key: hashlib.sha256(array.data).hexdigest() for key, array in arrays.items()},
        rows={
            part: formats.row_digest(arrays[f"x_{part}"], arrays[f"y_{part}"])
            for part in ("train", "test")
        },
        folders=(name, "Tiny/raw", "."),
        mirrors=mirrors,
    )


class Tiny:
    """A small data set under the name "tiny", served by two mirrors."""

    def __init__(self):
        self.arrays = made_up_arrays(0)
        self.idx = {stem: idx(self.arrays[name]) for name, stem in sources.IDX_FILES.items()}
        self.files = {f"{stem}.gz": gzip.compress(data) for stem, data in self.idx.items()}
        self.mirrors = [Mirror(self.files), Mirror(self.files)]
        self.dataset = describe("tiny", self.arrays, tuple(mirror.url for mirror in self.mirrors))

    def write_npz(self, folder, **changes):
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "tiny.npz", **self.arrays | changes)
        return folder / "tiny.npz"

    def write_idx(self, folder, compressed=True):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in (self.files if compressed else self.idx).items():
            (folder / name).write_bytes(data)
        return folder

    def register_other(self, monkeypatch):
        """Make a second set known, "other", whose IDX files would have the same names."""
        monkeypatch.setitem(sources.DATASETS, "other", describe("other", made_up_arrays(1)))

    def assert_equal(self, arrays):
        assert set(arrays) == set(self.arrays)
        for name, array in self.arrays.items():
            np.testing.assert_array_equal(arrays[name], array)


@pytest.fixture
def tiny(monkeypatch):
    tiny = Tiny()
    for name in list(sources.DATASETS):
        monkeypatch.delitem(sources.DATASETS, name)
    monkeypatch.setitem(sources.DATASETS, "tiny", tiny.dataset)
    yield tiny
    for mirror in tiny.mirrors:
        mirror.close()
