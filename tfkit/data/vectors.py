"""Named arrays as inputs in place of texts, validated when read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfkit.core.errors import DataError, RunError, UsageError
from tfkit.storage import files

MAGIC = b"\x93NUMPY"
NUMBERS = "fiub"  # dtype kinds of real numbers

Array = NDArray[np.float32]


class Vectors(str):
    """A named array: its text is shown to people, `array` is the model's input."""

    array: Array

    def __new__(cls, name: str, array: Any) -> Vectors:
        """Convert to float32; raise DataError for values that are not finite numbers."""
        made = super().__new__(cls, name)
        made.array = finite(array, name)
        return made

    def __getnewargs__(self) -> tuple[str, Array]:  # type: ignore[override]
        return str(self), self.array

    def described(self) -> str:
        """Name, shape and value range."""
        sizes = " ".join(map(str, self.array.shape))
        span = f", {self.array.min():.3g} to {self.array.max():.3g}" if self.array.size else ""
        return f"{self} [{sizes}]{span}"


def finite(array: Any, place: str) -> Array:
    """Convert to float32; raise DataError for values that are not finite numbers."""
    values = np.asarray(array)
    if values.dtype.kind not in NUMBERS:
        raise DataError(f"{place}: the values are {values.dtype}, not real numbers")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(found).all():
        at = tuple(int(axis) for axis in np.argwhere(~np.isfinite(found))[0])
        raise DataError(f"{place}: the value at {list(at)} is {found[at]}; only finite numbers can be read")
    return found


def as_vectors(given: Any) -> list[Vectors]:
    """Convert a sequence of arrays to Vectors; raise UsageError for anything else."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    rows = [given] if isinstance(given, Vectors) else given
    if isinstance(rows, str) or not isinstance(rows, (Sequence, np.ndarray)):
        raise UsageError(f"this model reads vectors: give a list of arrays, one for each input, got {given!r}")
    found = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) and not isinstance(row, Vectors):
            raise UsageError(f"this model reads vectors: give arrays, got the text {row!r}")
        try:
            found.append(row if isinstance(row, Vectors) else Vectors(f"array {number}", row))
        except (DataError, ValueError) as error:
            raise UsageError(str(error)) from None
    return found


def read_npy(path: str) -> NDArray[Any]:
    """Memory-map a .npy file; raise DataError if it is not a numeric array with examples.

    Objects are never unpickled.
    """
    try:
        with files.regular(path) as file:
            begin = file.read(len(MAGIC))
        if begin != MAGIC:
            archive = "an archive of several (.npz)" if begin.startswith(b"PK") else "none"
            raise DataError(f"{path}: is expected to be one array as numpy.save writes it (.npy), and is {archive}")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except RunError as error:
        raise DataError(str(error)) from None
    except (OSError, ValueError, EOFError, SyntaxError, OverflowError) as error:
        why = "holds Python objects, which are never unpickled" if "object" in str(error).lower() else ""
        cut = "is cut off: it holds fewer numbers than its first line says" if "mmap length" in str(error) else ""
        raise DataError(f"{path}: {why or cut or f'cannot be read as an array: {error}'}; save it again") from None
    if array.dtype.kind not in NUMBERS:
        raise DataError(f"{path}: the values are {array.dtype}, not real numbers")
    if array.ndim == 0 or not array.shape[0]:
        raise DataError(f"{path}: there is no example in it (shape {list(array.shape)})")
    return array


def files_in(folder: str, suffixes: Sequence[str]) -> list[str]:
    """List the files with these suffixes, up to one folder deep, sorted; raise DataError if there are none."""
    if os.path.isfile(folder):
        return [folder]
    with contextlib.suppress(OSError):
        found = sorted(str(path) for path in _visible(Path(folder)) if path.suffix.lower() in suffixes)
        if found:
            return found
    what = (
        "there is no such folder" if not os.path.isdir(folder) else f"there is no file in it of {', '.join(suffixes)}"
    )
    raise DataError(f"{folder}: {what}")


def _visible(folder: Path) -> Iterator[Path]:
    """Yield files up to one folder deep, except hidden ones."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from (inner for inner in path.iterdir() if inner.is_file() and not inner.name.startswith("."))
        elif path.is_file():
            yield path
