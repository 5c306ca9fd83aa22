"""The fastest way to multiply by a weight, measured once per shape and machine and stored in the cache folder.

Times are stored by processor, torch version and number of threads, one JSON line per shape. All processes use the first
line of a shape, so that equal runs have equal results.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, NamedTuple

import torch

from tfkit.core.errors import RunError, UsageError
from tfkit.core.machine import machine
from tfkit.core.trees import JsonObject
from tfkit.functional.ways import WAYS, Product, Way, available, suits
from tfkit.storage.files import open_log, read_bytes
from tfkit.storage.folders import cache_folder
from tfkit.storage.locks import lock

FORCED = "TFKIT_PRODUCTS"  # environment variable: the name of a way
FILE = "products.jsonl"
DIRECT = ("mkl", "onednn")  # ways without a copy of the weight
FEW = 64  # maximum number of rows for which copies are faster
STREAMED = 32 << 20  # minimum bytes of each way's weights for few rows, so that processor caches do not hold them
COPIES = 64  # maximum number of weights for few rows
MOST_BYTES = 64 << 20  # maximum bytes of a measured weight; larger ones behave alike
MOST_PRODUCTS = 1 << 31  # maximum multiplications per measured product, about 40 ms
PASSES, ENOUGH = 3, 0.1  # minimum number of timed rounds, and their minimum total seconds
LONGEST = 3.0  # maximum seconds per shape, if other programs are running
PATIENCE = 20.0  # maximum seconds to wait for the measurements of another process
MARGIN = 0.9  # a way must take less than this fraction of torch's time, as times within a model differ from those alone
_LOCK = threading.Lock()


class ProductShape(NamedTuple):
    """A product of [rows width] and a weight [out width], which is stored as [width out] if `transposed`."""

    rows: int
    width: int
    out: int
    transposed: bool = False

    def measured(self) -> ProductShape:
        """Return the shape to measure: rows are rounded down to a power of two, and large products are reduced."""
        limit = MOST_BYTES // 4
        width, out = min(self.width, limit), min(self.out, limit)
        if width * out > limit:
            width, out = (limit // out, out) if width > out else (width, limit // width)
        rows = max(1, min(self.rows, MOST_PRODUCTS // (width * out)))
        return ProductShape(1 << (rows.bit_length() - 1), max(1, width), max(1, out), self.transposed)

    def names(self) -> list[str]:
        """Return the ways to measure that this build of torch has."""
        few = self.rows <= FEW and not self.transposed
        return [name for name in (WAYS if few else DIRECT) if suits(name, self.width, self.out)]


def forced() -> str | None:
    """Return the way that TFKIT_PRODUCTS names, if set. Raise UsageError if it is unknown or unavailable."""
    name = os.environ.get(FORCED) or None
    if name is not None and name not in WAYS:
        raise UsageError(f"{FORCED} must be {', '.join(list(WAYS)[:-1])} or {list(WAYS)[-1]}, got {name!r}")
    if name is not None and not available(name):
        raise UsageError(f"{FORCED}={name}: this torch ({torch.__version__}) lacks its kernels")
    return name


@functools.cache
def fastest(rows: int, width: int, out: int, transposed: bool, copies: bool, threads: int) -> str:
    """Return the name of the fastest way for a shape; `copies` allows ways that copy the weight.

    `threads` is torch's number of threads, on which the result depends.
    """
    name = forced()
    if name is not None:
        usable = suits(name, width, out) and (copies or name in DIRECT)
        return name if usable else "onednn" if name == "reordered" else "mkl"
    shape = ProductShape(rows, width, out, transposed).measured()
    if len(shape.names()) == 1:
        return shape.names()[0]
    with _LOCK:
        seconds = remembered(shape, threads)
    return quickest(seconds, copies)


def quickest(seconds: Mapping[str, float], copies: bool) -> str:
    """Return the fastest way, which is torch's own unless another one is clearly faster."""
    best = min((name for name in seconds if copies or name in DIRECT), key=lambda name: seconds[name])
    return best if seconds[best] < MARGIN * seconds["mkl"] else "mkl"


@functools.cache
def remembered(shape: ProductShape, threads: int) -> Mapping[str, float]:
    """Return the stored seconds of each way, measured now if there are none. One process measures at a time.

    If they cannot be stored, each process measures.
    """
    key = {
        "processor": machine()["processor"],
        "instructions": torch.backends.cpu.get_cpu_capability(),  # a virtual machine may hide the processor's model
        "torch": torch.__version__,
        "threads": threads,
        **shape._asdict(),
    }
    names = shape.names()
    known = _stored(key, names)
    if known is not None:
        return known
    with _log() as file:
        if file is None:
            return measure(shape)
        lock(file.fileno(), PATIENCE)
        known = _stored(key, names)  # another process may have measured meanwhile
        if known is None:
            seconds = measure(shape)
            with contextlib.suppress(OSError):
                # one write is atomic; a killed process may have left an incomplete line
                os.write(file.fileno(), f"\n{json.dumps({**key, 'seconds': seconds})}\n".encode())
            known = _stored(key, names) or seconds
    return known


def measure(shape: ProductShape) -> dict[str, float]:
    """Return the minimum seconds per product for each way, in alternating rounds after a warm-up round."""
    x = torch.full((shape.rows, shape.width), 0.5, dtype=torch.float32, device="cpu")
    count = min(COPIES, math.ceil(STREAMED / (4 * shape.width * shape.out))) if shape.rows <= FEW else 1
    products = {name: [_made(WAYS[name], shape) for _ in range(count)] for name in shape.names()}
    times: dict[str, list[float]] = {name: [] for name in products}
    end = time.perf_counter() + LONGEST
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        while len(times["mkl"]) <= PASSES or count * sum(map(sum, times.values())) < ENOUGH:
            if len(times["mkl"]) > 1 and time.perf_counter() > end:
                break  # the machine is busy
            for name, own in products.items():
                start = time.perf_counter()
                for product in own:
                    product(x, shape.rows)
                times[name].append((time.perf_counter() - start) / count)
    return {name: min(seconds[1:]) for name, seconds in times.items()}


def _made(way: Way, shape: ProductShape) -> Product:
    rows, columns = (shape.width, shape.out) if shape.transposed else (shape.out, shape.width)
    weight = torch.full((rows, columns), 0.5, dtype=torch.float32, device="cpu")
    if shape.transposed:
        return way(weight.t(), None)
    return way(weight, torch.full((shape.out,), 0.5, dtype=torch.float32, device="cpu"))


def _stored(key: JsonObject, names: list[str]) -> dict[str, float] | None:
    """Return the seconds in the first valid line with this key."""
    for line in _lines():
        if {name: line.get(name) for name in key} == key and _is_valid(seconds := line.get("seconds"), names):
            return seconds
    return None


def _is_valid(seconds: object, names: list[str]) -> bool:
    return (
        isinstance(seconds, dict)
        and set(seconds) == set(names)
        and all(type(value) is float and 0 < value < math.inf for value in seconds.values())
    )


def _lines() -> Iterator[JsonObject]:
    try:
        text = read_bytes(cache_folder() / FILE).decode("utf-8", errors="replace")
    except (RunError, RuntimeError):
        return
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(line)
            if isinstance(data, dict):
                yield data


def _log() -> contextlib.AbstractContextManager[IO[str] | None]:
    """Open the file for appending; None if it cannot be written."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        return open_log(folder / FILE)
    except (OSError, RunError, RuntimeError):  # RuntimeError: there is no home folder
        return contextlib.nullcontext()


def _renew_lock() -> None:
    """Replace the lock in a forked child, where no thread would release it."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
