"""Loader of pretrained word vectors in the formats of word2vec and GloVe."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from tfkit.core.errors import DataError, RunError
from tfkit.storage.files import regular

Vector = np.ndarray[Any, np.dtype[np.float32]]
CHECKED = 2**23  # numbers that `tfkit check` reads
LARGEST = float(np.finfo(np.float32).max)
LONGEST = 2**12  # maximum bytes of a token, or of the first line, in a binary file


def load_vectors(path: str | Path, token_to_id: Callable[[str], int | None], into: Tensor) -> int:
    """Copy the vectors of known tokens into the rows of `into` [vocab_size width]. Return the number of rows filled.

    Text files have a token and its numbers on each line, separated by spaces; a first line "count width" (word2vec) is
    optional (GloVe has none). Files named .bin are in word2vec's binary format. The first of duplicate tokens wins.
    Raise DataError with file and line, leaving `into` unchanged, if the file is invalid.
    """
    found: dict[int, Sequence[float] | Vector] = {}
    for token, values in _rows(Path(path), into.shape[1]):
        row = token_to_id(token)
        if row is not None:
            found.setdefault(row, values)
    if found:
        rows = torch.tensor(list(found), device=into.device)
        with torch.no_grad():
            into[rows] = torch.from_numpy(np.asarray(list(found.values()), dtype=np.float64)).to(into)
    return len(found)


def check_vectors(path: str | Path, width: int) -> None:
    """Read up to CHECKED numbers of a file. Raise DataError with file and line if they are invalid."""
    for _ in islice(_rows(Path(path), width), CHECKED // width + 1):
        pass


def _rows(path: Path, width: int) -> Iterator[tuple[str, Sequence[float] | Vector]]:
    return (_binary_rows if path.suffix.lower() == ".bin" else _text_rows)(path, width)


def _text_rows(path: Path, width: int) -> Iterator[tuple[str, list[float]]]:
    promised, count, line = None, 0, 0
    for line, text in _lines(path):
        if line == 1 and (header := _header(text)) is not None:
            promised, stated = header
            if stated != width:
                raise DataError(f"{path}:1: vectors have width {stated}, but the token table has width {width}")
            continue
        yield _row(text, width, f"{path}:{line}")
        count += 1
    if not count:
        raise DataError(f"{path}: contains no vectors")
    if promised is not None and promised != count:
        raise DataError(f"{path}:{line}: the file ends after {count} vectors, but line 1 announces {promised}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with 1-based numbers."""
    try:
        with regular(path) as file, io.BufferedReader(file) as lines:
            for number, raw in enumerate(lines, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip(" \r\n")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: not UTF-8 text ({error.reason})") from None
                if text:
                    yield number, text
    except RunError as error:
        raise DataError(str(error)) from None


def _header(text: str) -> tuple[int, int] | None:
    fields = text.split(" ")
    is_header = len(fields) == 2 and all(field.isdecimal() and len(field) < 20 for field in fields)
    return (int(fields[0]), int(fields[1])) if is_header else None


def _binary_rows(path: Path, width: int) -> Iterator[tuple[str, Vector]]:
    """Yield the tokens and vectors of a binary file: token, space, `width` little-endian float32 numbers."""
    try:
        with regular(path) as raw, io.BufferedReader(raw, 2**20) as file:
            size = os.fstat(raw.fileno()).st_size
            count = _binary_count(file, path, width, size)
            for number in range(1, count + 1):
                place = f"{path}: vector {number:,} at byte {file.tell():,}"
                token = _binary_token(file, place)
                numbers = file.read(4 * width)
                if len(numbers) < 4 * width:
                    raise DataError(
                        f"{place}: the file ends within this vector, but line 1 announces {count:,} vectors"
                    )
                values = np.frombuffer(numbers, dtype="<f4")
                if not np.isfinite(values).all():
                    raise DataError(f"{place}: the vector of '{token}' is not finite")
                yield token, values
            if file.read(LONGEST).strip(b"\r\n"):
                raise DataError(f"{path}: contains more than the {count:,} vectors that line 1 announces")
    except RunError as error:
        raise DataError(str(error)) from None


def _binary_count(file: BinaryIO, path: Path, width: int, size: int) -> int:
    """Read the first line. Raise DataError if the file is too short for its count."""
    line = file.readline(LONGEST)
    header = _header(line.decode("ascii", "replace").rstrip(" \r\n"))
    if header is None or not line.endswith(b"\n"):
        raise DataError(f"{path}:1: not a word2vec file, whose first line is 'count width'; rename text files to .txt")
    count, stated = header
    if stated != width:
        raise DataError(f"{path}:1: vectors have width {stated}, but the token table has width {width}")
    if not count:
        raise DataError(f"{path}: contains no vectors")
    least = len(line) + count * (1 + 4 * width)  # including the space after each token
    if size < least:
        raise DataError(
            f"{path}:1: {count:,} vectors of width {width} need at least {least:,} bytes, but the file has {size:,}"
        )
    return count


def _binary_token(file: BinaryIO, place: str) -> str:
    """Read a token up to its space, skipping the line feed that some files have after each vector."""
    letters = bytearray()
    while (letter := file.read(1)) != b" ":
        if not letter or len(letters) == LONGEST:
            raise DataError(f"{place}: expected a token followed by a space")
        letters += letter
    try:
        return letters.lstrip(b"\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: the token is not UTF-8 text ({error.reason})") from None


def _row(text: str, width: int, place: str) -> tuple[str, list[float]]:
    token, *fields = text.split(" ")
    if len(fields) != width:
        raise DataError(f"{place}: {len(fields)} numbers after '{token}', but the token table has width {width}")
    try:
        values = [float(field) for field in fields]
    except ValueError as error:
        raise DataError(f"{place}: {str(error).rpartition(': ')[2]} is not a number") from None
    if not all(-LARGEST <= value <= LARGEST for value in values):
        raise DataError(f"{place}: the vector of '{token}' is not finite in float32")
    return token, values
