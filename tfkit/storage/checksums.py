"""SHA256SUMS: what each file of a folder was when it was written, so that damaged and replaced files are detected.

The format is that of `sha256sum`, which can check it too. A file and its line cannot change in one step: the line of
the new content is added first, then the file is replaced, then the old line goes. So a name may have two lines for a
moment, or since a crash, and each of them is right.
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
Sums = dict[str, tuple[str, ...]]  # of each name the hashes that are right
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST = 2**20  # bytes of a record
_CHUNK = 2**20  # bytes that are hashed at once, while other threads go on
_PATIENCE = 60.0  # seconds that another writer is waited for, who holds the lock while he renames a file or two


def sha256_of(path: Path) -> str:
    """The SHA-256 of a regular file; raises RunError naming the file."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with files.regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def read_sums(folder: Path) -> Sums | None:
    """The record of a folder, None where it has none; raises RunError for a line that is none."""
    file = folder / SUMS
    if not file.exists():
        return None
    sums: Sums = {}
    text = files.read_text(file, _LARGEST)
    if text and not text.endswith("\n"):
        raise RunError(f"{file}: ends in the middle of a line")
    for number, line in enumerate(text.split("\n")[:-1], 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise RunError(f"{file}:{number}: is no line of a SHA-256 and a name: {line[:80]!r}")
        sums[found[2]] = (*sums.get(found[2], ()), found[1])
    return sums


def believed(folder: Path) -> Sums:
    """The record of a folder for callers that do not check it: a missing or damaged one is empty."""
    try:
        return read_sums(folder) or {}
    except RunError:
        return {}


def check(folder: Path, name: str, remedy: str = "") -> None:
    """Raise RunError for a file that is not as its folder's record says; a folder without a record is believed.

    `remedy` follows the fault in the message.
    """
    path, known = folder / name, None
    while (sums := read_sums(folder)) is not None:
        listed = sums.get(name, ())
        if not path.exists():
            if listed:
                raise RunError(f"{path}: is missing, and {SUMS} lists it{remedy}")
            return
        if sha256_of(path) in listed:
            return
        if listed == known:
            raise RunError(f"{path}: {_complaint(listed)}{remedy}")
        known = listed  # a writer may have replaced the file in between: its line came before


@contextlib.contextmanager
def checking(folder: Path, name: str, remedy: str = "") -> Iterator[None]:
    """`check` in a thread of its own during the block; raises RunError at the end of it.

    What has changed is told rather than what the block stumbled over for it.
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
    """Start the record of a folder, with these files as they are."""
    _write(folder, {name: (sha256_of(folder / name),) for name in names})


def renew(folder: Path, names: Iterable[str]) -> list[str]:
    """Record these files as they are, and no others; returns the names whose record was different."""
    began = believed(folder)
    found = {name: (sha256_of(folder / name),) for name in names}
    with _alone(folder):
        before = believed(folder)
        written = {name: sums for name, sums in before.items() if sums != began.get(name)}  # by others, meanwhile
        after: Sums = found | written
        if after != before:
            _write(folder, after)
    right = {name for name, sums in after.items() if sums[0] in before.get(name, ())}
    return sorted((before.keys() | after.keys()) - right)


def settle(folder: Path) -> None:
    """Leave one line of each file: a process that was killed may have left two."""
    with _changing(folder) as sums:
        for name in [name for name, found in sums.items() if len(found) > 1 and (folder / name).is_file()]:
            now = sha256_of(folder / name)
            sums[name] = (now,) if now in sums[name] else sums[name]


def add(folder: Path, names: Iterable[str]) -> None:
    """Record those of these files that are there and not on record yet, where the folder has a record."""
    with _changing(folder) as sums:
        for name in names:
            if name not in sums and (folder / name).is_file():
                sums[name] = (sha256_of(folder / name),)


def forget(folder: Path, names: Iterable[str]) -> None:
    """Take these files off the record: they are about to be appended to, or to be removed."""
    with _changing(folder) as sums:
        for name in names:
            sums.pop(name, None)


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[Path]:
    """As `files.whole`; where the folder has a record, the file is on it, and right at every moment."""
    with contextlib.ExitStack() as lock:
        settled: Sums | None = None
        with files.whole(path) as beside:
            yield beside
            if (path.parent / SUMS).exists():
                new = sha256_of(beside)
                lock.enter_context(_alone(path.parent))
                before = believed(path.parent)
                settled = before | {path.name: (new,)}
                if new not in before.get(path.name, ()):
                    _write(path.parent, before | {path.name: (*before.get(path.name, ()), new)})
        if settled is not None and settled != believed(path.parent):
            _write(path.parent, settled)


def write_text(path: Path, text: str) -> None:
    """As `files.write_text`, on record."""
    with recorded(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, data: Any) -> None:
    """As `files.write_json`, on record."""
    write_text(path, json_line(data, 2) + "\n")


def _complaint(listed: tuple[str, ...]) -> str:
    if not listed:
        return f"is not listed in {SUMS}: it was put there later, or the list is damaged"
    return f"has changed since it was written (its SHA-256 is not the one in {SUMS}): it is damaged, or was exchanged"


def _write(folder: Path, sums: Mapping[str, Iterable[str]]) -> None:
    lines = [f"{one}  {name}\n" for name in sorted(sums) for one in sums[name]]
    files.write_text(folder / SUMS, "".join(lines))


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[Sums]:
    """The record of a folder, written when the block has changed it; where there is none, nothing is."""
    if not (folder / SUMS).exists():
        yield {}
        return
    with _alone(folder):
        before = believed(folder)
        sums = dict(before)
        yield sums
        if sums != before:
            _write(folder, sums)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two writers of its record do not lose each other's lines."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a system that opens no folders, a file system that knows no locks
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            _lock(handle)
        yield


def _lock(handle: int) -> None:
    """Lock a folder; goes on without where somebody holds it for so long that he must have been stopped."""
    until = time.monotonic() + _PATIENCE
    while _fcntl is not None and time.monotonic() < until:
        try:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)
