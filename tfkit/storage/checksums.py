"""SHA256SUMS: a manifest of checksums that detects damaged and replaced files.

The manifest can also be verified with `sha256sum -c`. It is written once, when a folder is complete. While a file of a
complete folder changes, its line is absent. Files of earlier versions may have two lines; both are valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tfkit.core.errors import RunError, TfkitError
from tfkit.core.output import json_line
from tfkit.storage import files

SUMS = "SHA256SUMS"
Sums = dict[str, tuple[str, ...]]  # valid hashes by name
# files that change in complete folders: a killed process may have left them without a line
CHANGING = ("evaluation.json", "environment.json", "state.json", "metrics.jsonl", "train.log")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST = 2**20  # maximum bytes of a manifest
_CHUNK = 2**20  # bytes hashed at a time, with the GIL released
UNCHECKED: set[Path] = set()  # folders whose files are trusted for the moment


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
        if not listed and name in CHANGING and all((folder / other).exists() for other in sums):
            return
        if sha256_of(path) in listed:
            return
        if listed == known:
            raise RunError(f"{path}: {_complaint(listed)}{remedy}")
        known = listed  # retry: another process may just have changed the file


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


def hashes_of(folder: Path, names: Iterable[str]) -> Sums:
    """Return the SHA-256 of those of the files that exist."""
    return {name: (sha256_of(folder / name),) for name in names if (folder / name).is_file()}


def write(folder: Path, sums: Sums) -> None:
    """Write the manifest of a folder."""
    files.write_text(folder / SUMS, "".join(f"{one}  {name}\n" for name in sorted(sums) for one in sums[name]))


@contextlib.contextmanager
def changing(folder: Path, *names: str) -> Iterator[None]:
    """Remove the lines of files during the block, and record those that exist after it. No-op without a manifest."""
    before = trusted_sums(folder)
    if before.keys() & set(names):
        write(folder, {name: found for name, found in before.items() if name not in names})
    yield
    known: Sums | None = None
    # repeated if another process changes the files at the same time
    while before and (folder / SUMS).exists() and known != (now := hashes_of(folder, names)):
        write(folder, trusted_sums(folder) | now)
        known = now


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, and record its checksum in a complete folder."""
    with changing(path.parent, path.name):
        files.write_text(path, text)


def write_json(path: Path, data: object) -> None:
    """Write a JSON file atomically, and record its checksum in a complete folder."""
    write_text(path, json_line(data, 2) + "\n")


def _complaint(listed: tuple[str, ...]) -> str:
    if not listed:
        return f"not listed in {SUMS}: it was added later, or the list is damaged"
    return f"has changed since it was written (its SHA-256 differs from {SUMS}): it is damaged or was replaced"
