"""SHA256SUMS: a manifest of checksums that detects damaged and replaced files.

The manifest can also be verified with `sha256sum -c`. A file and its line cannot be changed together atomically, so
first a line with the new hash is added, then the file is replaced, then the old line is removed. A file may therefore
have two lines for a moment, or after a crash. Both are valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError, TfkitError
from tfkit.core.output import json_line
from tfkit.storage import files

try:
    import fcntl
except ImportError:  # Windows: concurrent writers may lose each other's lines
    _fcntl: Any = None
else:
    _fcntl = fcntl

SUMS = "SHA256SUMS"
Sums = dict[str, tuple[str, ...]]  # valid hashes by name
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST = 2**20  # maximum bytes of a manifest
_CHUNK = 2**20  # bytes hashed at a time, with the GIL released
UNCHECKED: set[Path] = set()  # folders whose files are trusted for the moment
_PATIENCE = 60.0  # seconds to wait for another writer, which holds the lock only for one or two renames


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file. Raise RunError if it cannot be read."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with files.regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def read_sums(folder: Path) -> Sums | None:
    """Read the manifest of a folder, or return None if it is missing. Raise RunError if a line is invalid."""
    file = folder / SUMS
    if not file.exists():
        return None
    sums: Sums = {}
    text = files.read_text(file, _LARGEST)
    if text and not text.endswith("\n"):
        raise RunError(f"{file}: truncated last line")
    for number, line in enumerate(text.split("\n")[:-1], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise RunError(f"{file}:{number}: expected a SHA-256 and a file name, got {line[:80]!r}")
        sums[match[2]] = (*sums.get(match[2], ()), match[1])
    return sums


def trusted_sums(folder: Path) -> Sums:
    """Return the manifest of a folder, or {} if it is missing or damaged."""
    try:
        return read_sums(folder) or {}
    except RunError:
        return {}


def check(folder: Path, name: str, remedy: str = "") -> None:
    """Raise RunError if a file differs from the manifest of its folder. A folder without a manifest is trusted.

    `remedy` is appended to the message.
    """
    path, known = folder / name, None
    if not UNCHECKED.isdisjoint(path.absolute().parents):
        return
    while (sums := read_sums(folder)) is not None:
        listed = sums.get(name, ())
        if not path.exists():
            if listed:
                raise RunError(f"{path}: is missing, but listed in {SUMS}{remedy}")
            return
        if sha256_of(path) in listed:
            return
        if listed == known:
            raise RunError(f"{path}: {_complaint(listed)}{remedy}")
        known = listed  # retry: a writer may have added a line and replaced the file in the meantime


@contextlib.contextmanager
def checking(folder: Path, name: str, remedy: str = "") -> Iterator[None]:
    """Run `check` in a thread during the block. Raise its RunError when the block ends.

    If the block fails too, the RunError takes precedence, because the changed file may be the cause.
    """
    with ThreadPoolExecutor(1, "sha256") as pool:
        checked = pool.submit(check, folder, name, remedy)
        try:
            yield
        except TfkitError:
            checked.result()
            raise
        checked.result()


def begin(folder: Path, names: Iterable[str]) -> None:
    """Create the manifest of a folder from the current hashes of these files."""
    _write(folder, {name: (sha256_of(folder / name),) for name in names})


def renew(folder: Path, names: Iterable[str]) -> list[str]:
    """Replace the manifest with the current hashes of these files. Return the names whose entry changed."""
    initial = trusted_sums(folder)
    current = {name: (sha256_of(folder / name),) for name in names}
    with _exclusive(folder):
        before = trusted_sums(folder)
        # recorded by other processes in the meantime
        concurrent = {name: sums for name, sums in before.items() if sums != initial.get(name)}
        after: Sums = current | concurrent
        if after != before:
            _write(folder, after)
    unchanged = {name for name, sums in after.items() if sums[0] in before.get(name, ())}
    return sorted((before.keys() | after.keys()) - unchanged)


def settle(folder: Path) -> None:
    """Reduce the manifest to one line per file, because a killed process may have left two."""
    with _changing(folder) as sums:
        for name in [name for name, hashes in sums.items() if len(hashes) > 1 and (folder / name).is_file()]:
            current = sha256_of(folder / name)
            sums[name] = (current,) if current in sums[name] else sums[name]


def add(folder: Path, names: Iterable[str]) -> None:
    """Record the given files that exist and are not yet recorded. Do nothing without a manifest."""
    with _changing(folder) as sums:
        for name in names:
            if name not in sums and (folder / name).is_file():
                sums[name] = (sha256_of(folder / name),)


def forget(folder: Path, names: Iterable[str]) -> None:
    """Drop files from the manifest before they are modified or deleted."""
    with _changing(folder) as sums:
        for name in names:
            sums.pop(name, None)


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[Path]:
    """Like `files.whole`, but keep an existing manifest valid at every moment."""
    with contextlib.ExitStack() as lock:
        settled: Sums | None = None
        with files.whole(path) as beside:
            yield beside
            if (path.parent / SUMS).exists():
                new = sha256_of(beside)
                lock.enter_context(_exclusive(path.parent))
                before = trusted_sums(path.parent)
                settled = before | {path.name: (new,)}
                if new not in before.get(path.name, ()):
                    _write(path.parent, before | {path.name: (*before.get(path.name, ()), new)})
        if settled is not None and settled != trusted_sums(path.parent):
            _write(path.parent, settled)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically and record its checksum."""
    with recorded(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, data: object) -> None:
    """Write a JSON file atomically and record its checksum."""
    write_text(path, json_line(data, 2) + "\n")


def _complaint(listed: tuple[str, ...]) -> str:
    if not listed:
        return f"not listed in {SUMS}: it was added later, or the list is damaged"
    return f"has changed since it was written (its SHA-256 differs from {SUMS}): it is damaged or was replaced"


def _write(folder: Path, sums: Mapping[str, Iterable[str]]) -> None:
    lines = [f"{one}  {name}\n" for name in sorted(sums) for one in sums[name]]
    files.write_text(folder / SUMS, "".join(lines))


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[Sums]:
    """Yield the manifest of a folder, and write it if the block has changed it. Without a manifest, yield {}."""
    if not (folder / SUMS).exists():
        yield {}
        return
    with _exclusive(folder):
        before = trusted_sums(folder)
        sums = dict(before)
        yield sums
        if sums != before:
            _write(folder, sums)


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder, so that concurrent writers do not lose each other's lines."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the system cannot open folders, or the file system has no locks
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            _lock(handle)
        yield


def _lock(handle: int) -> None:
    """Lock a folder. Continue without the lock if another writer holds it for too long."""
    until = time.monotonic() + _PATIENCE
    while _fcntl is not None and time.monotonic() < until:
        try:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)
