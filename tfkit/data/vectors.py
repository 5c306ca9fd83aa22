"""Named arrays that models read instead of texts; they are validated on creation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfkit.core.errors import DataError, TfkitError, TfkitWarning, UsageError
from tfkit.storage import files

MAGIC = b"\x93NUMPY"
NUMBERS = "fiub"  # dtype kinds of real numbers

Array = NDArray[np.float32]


class Vectors(str):
    """A named array: the string is the display name, `array` the model's input."""

    array: Array

    def __new__(cls, name: str, array: ArrayLike) -> Vectors:
        """Convert to float32. Raise DataError for values that are not finite numbers."""
        vectors = super().__new__(cls, name)
        vectors.array = finite(array, name)
        return vectors

    def __getnewargs__(self) -> tuple[str, Array]:  # type: ignore[override]
        return str(self), self.array

    def described(self) -> str:
        """Return the name, shape and value range."""
        sizes = " ".join(map(str, self.array.shape))
        span = f", {self.array.min():.3g} to {self.array.max():.3g}" if self.array.size else ""
        return f"{self} [{sizes}]{span}"


def finite(array: ArrayLike, place: str) -> Array:
    """Convert to float32. Raise DataError for values that are not finite numbers."""
    values = np.asarray(array)
    if values.dtype.kind not in NUMBERS:
        raise DataError(f"{place}: the values are of type {values.dtype}, not real numbers")
    with np.errstate(over="ignore"):
        finite_values = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(finite_values).all():
        at = tuple(int(axis) for axis in np.argwhere(~np.isfinite(finite_values))[0])
        raise DataError(f"{place}: the value at {list(at)} is {finite_values[at]}; all values must be finite")
    return finite_values


def as_vectors(arrays: Any) -> list[Vectors]:
    """Convert a sequence of arrays to Vectors. Raise UsageError for anything else."""
    if hasattr(arrays, "detach"):
        arrays = arrays.detach().cpu().numpy()
    rows = [arrays] if isinstance(arrays, Vectors) else arrays
    if isinstance(rows, str) or not isinstance(rows, (Sequence, np.ndarray)):
        raise UsageError(f"this model reads vectors, got {arrays!r}; pass a list of arrays, one per input")
    vectors = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) and not isinstance(row, Vectors):
            raise UsageError(f"this model reads vectors, got the text {row!r}; pass arrays")
        try:
            vectors.append(row if isinstance(row, Vectors) else Vectors(f"array {number}", row))
        except (DataError, ValueError) as error:
            raise UsageError(str(error)) from None
    return vectors


def read_npy(path: str) -> NDArray[np.generic]:
    """Memory-map a .npy file, never unpickling objects.

    Raise DataError unless it is a numeric array with at least one example.
    """
    try:
        with files.regular(path) as file:
            begin = file.read(len(MAGIC))
        if begin != MAGIC:
            archive = "is an archive of several arrays (.npz)" if begin.startswith(b"PK") else "is not a .npy file"
            raise DataError(f"{path}: {archive}; expected a single array as written by numpy.save (.npy)")
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except TfkitError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # numpy's errors of damaged headers have no common class
        why = "contains Python objects, which are never unpickled" if "object" in str(error).lower() else ""
        cut = "is truncated: it has fewer values than its header declares" if "mmap length" in str(error) else ""
        raise DataError(f"{path}: {why or cut or f'cannot be read as an array: {error}'}; save it again") from None
    if array.dtype.kind not in NUMBERS:
        raise DataError(f"{path}: the values are of type {array.dtype}, not real numbers")
    if array.ndim == 0 or not array.size:
        raise DataError(f"{path}: contains no example, or empty ones (shape {list(array.shape)})")
    return array


def files_in(folder: str, suffixes: Sequence[str]) -> list[str]:
    """Return the sorted files with these suffixes in a folder and its subfolders. Other files are named in a warning.

    Raise DataError if there are none, and for links without a target, pipes and devices.
    """
    if os.path.isfile(folder):
        return [folder]
    found = []
    try:
        found = sorted(str(path) for path in _visible(Path(folder), 2))
    except OSError as error:
        if os.path.isdir(folder):
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from None
    read = [path for path in found if path.lower().endswith(tuple(suffixes))]
    if not read:
        what = "no such folder" if not os.path.isdir(folder) else f"contains no file of type {', '.join(suffixes)}"
        raise DataError(f"{folder}: {what}")
    if others := sorted(set(found).difference(read)):
        kinds = f"{len(others)} of other types, or deeper, are not read"
        warnings.warn(f"{folder}: {kinds}, the first {others[0]}", TfkitWarning, stacklevel=2)
    return read


def _visible(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the entries in a folder and its subfolders, except hidden ones; below `depth` levels, the folders."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and depth > 1:
            yield from _visible(path, depth - 1)
        elif path.is_dir() or path.is_file():
            yield path
        else:
            why = "is a pipe, a device or a socket" if path.exists() else files.why_missing(path)
            raise DataError(f"{path}: {why}; remove it, or replace it with a file")
