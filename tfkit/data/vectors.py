"""Named arrays that models read instead of texts; they are validated on creation."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tfkit.core.errors import DataError, TfkitError, TfkitWarning, UsageError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.storage import files

MAGIC = b"\x93NUMPY"
NUMBERS = "fiub"  # dtype kinds of real numbers

Array = NDArray[np.float32]


class Vectors(str):
    """A named array: the string is the display name, `array` the model's input."""

    array: Array
    gaps: int = 0  # steps left out

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


def digest(examples: Iterable[Mapping[str, str]]) -> str:
    """Return the SHA-256 of examples, including the arrays of vectors."""
    found = hashlib.sha256()
    for example in examples:
        found.update(json.dumps(example).encode("ascii") + b"\n")
        for value in example.values():
            if isinstance(value, Vectors):
                found.update(f"{value.array.shape}".encode("ascii") + value.array.tobytes())
    return found.hexdigest()


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


def numbers(text: str, width: int) -> Array:
    """Parse numbers separated by commas or blanks, or a JSON list. Raise ValueError unless they are `width` numbers."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    values = np.zeros(0, dtype=np.float32)
    with contextlib.suppress(ValueError):
        values = np.asarray(words, dtype=np.float32)
    if len(values) != width or not np.isfinite(values).all():
        raise ValueError(f"must have {width:,} finite numbers, got {text[:60]!r}")
    return values


def steps(value: object, place: str) -> Vectors:
    """Convert numbers [steps] or rows [steps width] to vectors, leaving out steps with a missing value (NaN, null).

    A text has numbers between commas or blanks. Without steps, the name is empty. Raise DataError for other values.
    """
    array: Array = np.zeros((), np.float32)
    with contextlib.suppress(TypeError, ValueError), np.errstate(over="ignore"):
        value = value.strip("[] ").replace(",", " ").split() if isinstance(value, str) else value
        array = np.asarray(value, dtype=np.float32)
    if array.ndim not in (1, 2) or (len(array) and not array.size):
        raise DataError(f"{place}: expected a list of numbers, or of lists of numbers with one length")
    array = array.reshape(len(array), -1 if array.size else 1)  # [steps, width]
    missing = np.isnan(array).any(axis=1)
    vectors = Vectors("" if missing.all() else place, array[~missing])
    vectors.gaps = int(missing.sum())
    return vectors


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
            archive = "is compressed with gzip; unpack it" if begin.startswith(b"\x1f\x8b") else archive
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


def read_npz(path: str, names: Iterable[str]) -> dict[str, NDArray[np.generic]]:
    """Return arrays of a .npz file, never unpickling objects. Raise DataError if one is missing or does not fit."""
    free = free_memory()
    try:
        with files.regular(path) as file, zipfile.ZipFile(file) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
            if missing := [name for name in names if name not in sizes]:
                raise DataError(f"{path}: no array '{missing[0]}'; available: {', '.join(sizes)}")
            if free is not None and (size := sum(sizes[name] for name in names)) > free:
                text = f"{readable_bytes(size)}, but only {readable_bytes(free)} of memory are free"
                raise DataError(f"{path}: {', '.join(names)} have {text}; split the file")
            arrays = np.load(file, allow_pickle=False)
            found = {name: arrays[name] for name in names}
            if others := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
                raise DataError(f"{path}: {others[0]} is not an array; save it again with numpy.savez")
            return found
    except TfkitError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # errors of damaged archives and arrays have no common class
        raise DataError(f"{path}: cannot be read as a .npz file: {error}; save it again with numpy.savez") from None


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
