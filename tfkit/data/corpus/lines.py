"""Readers of text files, plain or compressed with gzip, tolerant of BOMs, CRLF and a missing final newline.

Lines end only at a line feed, unlike `str.splitlines`, which also splits at form feeds, U+0085 and U+2028. A carriage
return before the line feed and a byte-order mark are removed.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import DataError, RunError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.storage import files

CHUNK, CHUNKS = 2**20, 2**24  # bytes per read, for a line and for a whole file
DECODED = 3  # peak memory for bytes, text and lines, as a multiple of the file size


@dataclass
class Beginning:
    """A limit on the bytes read per file; `is_cut` is set when a file exceeds it."""

    most: int
    is_cut: bool = False


_BEGINNING: ContextVar[Beginning | None] = ContextVar("_BEGINNING", default=None)


@contextlib.contextmanager
def beginnings(most: int) -> Iterator[Beginning]:
    """Limit reads within the block to the first `most` bytes of each file, truncated to whole lines if possible."""
    bound = Beginning(most)
    token = _BEGINNING.set(bound)
    try:
        yield bound
    finally:
        _BEGINNING.reset(token)


def bound_of_files() -> Beginning | None:
    """Return the active limit of `beginnings`, or None."""
    return _BEGINNING.get()


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """Return the text of a file with LF line endings. Raise DataError with the file name, and the line if known."""
    data, is_cut = _read_bytes(path)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data) if is_cut else data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(path, error, encoding) from None
    text = _checked(path, text).removeprefix("\ufeff").replace("\r\n", "\n")
    if is_cut:
        text = text[: text.rfind("\n") + 1] or text
    if not text.strip():
        raise _no_text(path, not text)
    return text


def split_lines(text: str) -> list[str]:
    """Split the text of a file at LF and CR LF, and remove a byte-order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")


class Lines:
    """Iterable over the lines of a file, without line endings. The file is read lazily.

    Iteration raises the same errors as `read_text`; `is_cut` is set if a limit truncated the file.
    """

    def __init__(self, path: str | Path, encoding: str = "utf-8", keep_cut: bool = False) -> None:
        self.path, self.encoding, self.keep_cut, self.is_cut = path, encoding, keep_cut, False

    def __iter__(self) -> Iterator[str]:
        """Yield the lines. A truncated last line is dropped unless it is the only line, or `keep_cut` is set."""
        blank: list[str] | None = []  # empty lines before the first non-empty one
        for line in self._all():
            if blank is None:
                yield line
            elif line.strip():
                yield from (*blank, line)
                blank = None
            else:
                blank.append(line)
        if blank is not None:
            raise _no_text(self.path, not blank)

    def _all(self) -> Iterator[str]:
        pending: list[str] = []  # pieces of the current line
        lines = 0
        for text in self._decoded():
            first, *others = text.split("\n")
            pending.append(first)
            if not others:
                check_memory(self.path, sum(map(len, pending)))
            for next_line in others:
                yield "".join(pending).removesuffix("\r")
                lines += 1
                pending = [next_line]
        last = "".join(pending).removesuffix("\r")  # empty if the file ends with a newline
        if last and (self.keep_cut or not (self.is_cut and lines)):
            yield last

    def _decoded(self) -> Iterator[str]:
        decoder, lines, first = codecs.getincrementaldecoder(self.encoding)(), 0, True
        for data in self._chunks():
            try:
                text = decoder.decode(data, final=not data and not self.is_cut)
            except UnicodeDecodeError as error:
                raise _undecodable(self.path, error, self.encoding, lines) from None
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            lines += text.count("\n")
            yield _checked(self.path, text)

    def _chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the file or of its start, then an empty chunk."""
        bound = bound_of_files()
        if bound is not None:
            data, self.is_cut = _read_bytes(self.path)
            yield from (data, b"")
            return
        with _reading(self.path), files.unpacked(self.path) as file:
            while data := file.read(CHUNK):
                yield data
            yield b""


def read_pairs(first: str | Path, second: str | Path, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """Yield pairs of lines from two parallel files.

    Raise the same errors as `read_text`. If the line counts differ, raise DataError after the last pair.
    """
    both = Lines(first, encoding), Lines(second, encoding)
    sides = [iter(side) for side in both]
    count = 0
    while True:
        pair = [next(side, None) for side in sides]
        if pair[0] is None or pair[1] is None:
            break
        yield pair[0], pair[1]
        count += 1
    rest = [(line is not None) + sum(1 for _ in side) for line, side in zip(pair, sides, strict=True)]
    short = 0 if pair[0] is None else 1
    if any(rest) and not both[short].is_cut:
        counts = [f"{'more than ' * side.is_cut}{count + more}" for side, more in zip(both, rest, strict=True)]
        raise DataError(
            f"{first} has {counts[0]} lines, {second} has {counts[1]}; parallel files must have equal line counts"
        )


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a file. Raise DataError if it is missing, not a regular file, or larger than memory."""
    with _reading(path):
        check_memory(path, os.path.getsize(path), 0)
        return files.read_bytes(path)


def _read_bytes(path: str | Path) -> tuple[bytes, bool]:
    """Return the bytes of a file or of its start, decompressed, and True if they were truncated."""
    bound, whole = bound_of_files(), io.BytesIO()
    with _reading(path), files.unpacked(path) as file:
        if bound is not None:
            data = file.read(bound.most + 1)
            is_cut = len(data) > bound.most
            bound.is_cut = bound.is_cut or is_cut
            return data[: bound.most], is_cut
        check_memory(path, os.path.getsize(path), 0)
        while chunk := file.read(CHUNKS):
            whole.write(chunk)
            check_memory(path, whole.tell())
    return whole.getvalue(), False


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Convert read errors within the block to DataError."""
    if os.path.isdir(path):
        raise DataError(f"{path}: is a folder; expected a file")
    try:
        yield
    except RunError as error:
        raise DataError(str(error)) from None
    except FileNotFoundError:
        raise DataError(f"{path}: {files.why_missing(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _no_text(path: str | Path, is_empty: bool) -> DataError:
    return DataError(f"{path}: the file {'is empty' if is_empty else 'has only blank lines'}")


def _undecodable(path: str | Path, error: UnicodeDecodeError, encoding: str, lines: int = 0) -> DataError:
    """Return the error with its line number; `lines` is the number of lines decoded before it."""
    line = lines + error.object[: error.start].decode(encoding, errors="replace").count("\n") + 1
    bad = error.object[error.start : error.end].hex(" ")
    hint = _wide(error.object) or "set the file's encoding (encoding: latin-1?)"
    return DataError(f"{path}:{line}: byte {bad} cannot be decoded as {encoding}; {hint}")


def _wide(data: bytes) -> str | None:
    """Return a hint if bytes are UTF-16, UTF-32 or no text, judged by the byte-order mark and null bytes."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "set encoding: utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "set encoding: utf-16"
    if b"\0" not in data:
        return None
    order = "le" if data[1::2].count(0) > data[::2].count(0) else "be"
    return f"it has null bytes; unpack or convert it if it is not text, or set encoding: utf-16-{order}"


def _checked(path: str | Path, text: str) -> str:
    """Return the text. Raise DataError if a quarter of it is null characters: another encoding."""
    if text.count("\0") * 4 > len(text):
        raise DataError(f"{path}: {_wide(text.encode(errors='replace'))}")
    return text


def check_memory(path: str | Path, size: int, held: int | None = None) -> None:
    """Raise DataError if decoding `size` bytes would exceed the free memory; `held` bytes (default: all) are read."""
    free = free_memory()
    if free is not None and size * DECODED - (size if held is None else held) > free:
        raise DataError(
            f"{path}: is {readable_bytes(size)} large, and reading it needs {DECODED} times as much memory, but only "
            f"{readable_bytes(free)} are free; split the file"
        )
