"""SHA256SUMS: a manifest of checksums, to detect damaged and replaced files.

The format is that of `sha256sum`, which can verify it too. A file and its line cannot change atomically: the line of
the new content is added first, then the file is replaced, then the old line is removed. So a name may have two lines
temporarily, or since a crash, and both are valid.
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
except ImportError:  # Windows: two writers at once may lose each other's lines
    _fcntl: Any = None
else:
    _fcntl = fcntl

SUMS = "SHA256SUMS"
Sums = dict[str, tuple[str, ...]]  # valid hashes by name
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST = 2**20  # maximum bytes of a manifest
_CHUNK = 2**20  # bytes hashed at once, releasing the GIL
_PATIENCE = 60.0  # seconds to wait for another writer, who holds the lock for one or two renames


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file. Raise RunError if it cannot be read."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with files.regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def read_sums(folder: Path) -> Sums | None:
    """Read the manifest of a folder; return None if it is missing. Raise RunError for an invalid line."""
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
            raise RunError(f"{file}:{number}: not a SHA-256 and a name: {line[:80]!r}")
        sums[match[2]] = (*sums.get(match[2], ()), match[1])
    return sums


def trusted_sums(folder: Path) -> Sums:
    """Return the manifest of a folder without checking it, {} if it is missing or damaged."""
    try:
        return read_sums(folder) or {}
    except RunError:
        return {}


def check(folder: Path, name: str, remedy: str = "") -> None:
    """Raise RunError if a file differs from its folder's manifest. A folder without a manifest is trusted.

    `remedy` is appended to the message.
    """
    path, known = folder / name, None
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
        known = listed  # a writer may have replaced the file meanwhile: its line was added before


@contextlib.contextmanager
def checking(folder: Path, name: str, remedy: str = "") -> Iterator[None]:
    """Run `check` in a thread during the block. Raise its RunError at the end.

    A changed file is reported instead of an error of the block that it caused.
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
    """Create the manifest of a folder, with the current hashes of these files."""
    _write(folder, {name: (sha256_of(folder / name),) for name in names})


def renew(folder: Path, names: Iterable[str]) -> list[str]:
    """Record only these files, as they are; return the names that differ from the previous manifest."""
    initial = trusted_sums(folder)
    current = {name: (sha256_of(folder / name),) for name in names}
    with _exclusive(folder):
        before = trusted_sums(folder)
        concurrent = {
            name: sums for name, sums in before.items() if sums != initial.get(name)
        }  # by other processes, meanwhile
        after: Sums = current | concurrent
        if after != before:
            _write(folder, after)
    unchanged = {name for name, sums in after.items() if sums[0] in before.get(name, ())}
    return sorted((before.keys() | after.keys()) - unchanged)


def settle(folder: Path) -> None:
    """Reduce to one line per file: a killed process may have left two."""
    with _changing(folder) as sums:
        for name in [name for name, hashes in sums.items() if len(hashes) > 1 and (folder / name).is_file()]:
            current = sha256_of(folder / name)
            sums[name] = (current,) if current in sums[name] else sums[name]


def add(folder: Path, names: Iterable[str]) -> None:
    """Record the existing files among these that are unrecorded, if the folder has a manifest."""
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
    """Write as `files.whole`, keeping an existing manifest valid at every moment."""
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
    """Write as `files.write_text`, and record the checksum."""
    with recorded(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, data: object) -> None:
    """Write as `files.write_json`, and record the checksum."""
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
    """Yield the manifest of a folder, and write it if the block changed it; a no-op without a manifest."""
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
    """Hold the folder's lock, so that concurrent writers do not lose each other's lines."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # systems that cannot open folders, file systems without locks
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            _lock(handle)
        yield


def _lock(handle: int) -> None:
    """Lock a folder, or continue unlocked if another writer holds it past the timeout."""
    until = time.monotonic() + _PATIENCE
    while _fcntl is not None and time.monotonic() < until:
        try:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)
