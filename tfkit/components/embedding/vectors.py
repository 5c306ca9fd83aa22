"""Pretrained word vectors from a text file, as word2vec and GloVe write them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from tfkit.core.errors import DataError, RunError
from tfkit.core.files import regular


def load_vectors(path: str | Path, token_to_id: Callable[[str], int | None], into: Tensor) -> int:
    """Copy the vectors of known tokens into the rows of `into` [vocab_size width]; gives the number of rows filled.

    word2vec (a first line "count width") or GloVe (none): a token and its numbers a line, parted by spaces. Of a token
    written twice the first counts. Raises DataError with the file and the line; `into` is then as it was.
    """
    found: dict[int, list[float]] = {}
    for token, values in _rows(Path(path), into.shape[1]):
        row = token_to_id(token)
        if row is not None:
            found.setdefault(row, values)
    if found:
        rows = torch.tensor(list(found), device=into.device)
        with torch.no_grad():
            into[rows] = torch.tensor(list(found.values()), dtype=into.dtype, device=into.device)
    return len(found)


def _rows(path: Path, width: int) -> Iterator[tuple[str, list[float]]]:
    """Each token with its numbers."""
    promised, count, line = None, 0, 0
    for line, text in _lines(path):
        if line == 1 and (header := _header(text)) is not None:
            promised, stated = header
            if stated != width:
                raise DataError(f"{path}:1: vectors of width {stated}, but the table is {width} wide")
            continue
        yield _row(text, width, f"{path}:{line}")
        count += 1
    if not count:
        raise DataError(f"{path}: has no vectors")
    if promised is not None and promised != count:
        raise DataError(f"{path}:{line}: ends after {count} vectors, line 1 promises {promised}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1."""
    try:
        with regular(path) as file, io.BufferedReader(file) as lines:
            for number, raw in enumerate(lines, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip(" \r\n")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: is not UTF-8 text ({error.reason})") from None
                if text:
                    yield number, text
    except RunError as error:
        raise DataError(str(error)) from None


def _header(text: str) -> tuple[int, int] | None:
    fields = text.split(" ")
    return (int(fields[0]), int(fields[1])) if len(fields) == 2 and all(field.isdecimal() for field in fields) else None


def _row(text: str, width: int, place: str) -> tuple[str, list[float]]:
    token, *fields = text.split(" ")
    if len(fields) != width:
        raise DataError(f"{place}: {len(fields)} numbers after '{token}', but the table is {width} wide")
    try:
        values = [float(field) for field in fields]
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field))
        raise DataError(f"{place}: '{wrong}' is not a number") from None
    if not all(map(math.isfinite, values)):
        raise DataError(f"{place}: the vector of '{token}' is not finite")
    return token, values


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
