"""Token shards: the encoded texts of a corpus on disk, written once, found by hash and memory-mapped.

A shard is a folder `$TFKIT_CACHE/tokens/KEY` (by default below `~/.cache/tfkit`) with ids and text offsets for each
field. `shard.json` holds their checksums and is written last; a folder without it is incomplete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from tfkit.core.errors import DataError, ExampleError, RunError
from tfkit.core.machine import readable_bytes
from tfkit.data.encoder import TokenIds, encoded
from tfkit.data.tokenizer import Tokenizer
from tfkit.storage.checksums import sha256_of
from tfkit.storage.files import (
    FolderBusy,
    FolderLock,
    read_json,
    read_text,
    remove,
    remove_leftovers,
    whole,
    write_json,
    write_text,
)

LOGGER = logging.getLogger("tfkit")
CACHE = "TFKIT_CACHE"  # environment variable that sets the cache folder
FILE = "shard.json"
AT_ONCE = 10_000  # number of texts per batch
EACH = 2**24  # minimum bytes of text per encoding process
SECONDS = 10.0  # seconds between progress messages
PATIENCE = 0.2  # seconds between checks of a shard that another process is writing
Example = Mapping[str, str]


def cache_folder() -> Path:
    """Return the folder for data that can be recomputed: $TFKIT_CACHE, or tfkit in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get(CACHE)
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfkit"


def key_of(*parts: object) -> str:
    """Return a hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()[:32]


def remembered(kind: str, key: str, make: Callable[[], str]) -> str:
    """Return the cached text for a key, or compute it with `make`. Damaged files are replaced."""
    file = cache_folder() / kind / f"{key}.json"
    with contextlib.suppress(RunError):
        checksum, _, text = read_text(file).partition("\n")
        if checksum == key_of(kind, key, text):
            return text
        LOGGER.warning("%s: has changed since it was written; recomputing it", file)
    text = make()
    write_text(file, f"{key_of(kind, key, text)}\n{text}")
    return text


@dataclass
class ShardSource:
    """Examples to encode: `name` for messages, `size` of the files in bytes, tokenizers by field."""

    name: str
    size: int
    examples: Callable[[], Iterable[Example]]
    tokenizers: Mapping[str, Tokenizer]
    processes: int = field(default=0)  # 0: chosen by the size and the number of CPUs

    def workers(self) -> int:
        most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.processes or max(1, min(most, self.size // EACH))


def shard(key: str, source: ShardSource) -> dict[str, TokenIds]:
    """Return the encoded texts of each field, memory-mapped, writing the shard if it is missing or damaged.

    If another process is writing the shard, wait for it. Raise DataError for invalid examples, RunError for failed
    writes.
    """
    folder = cache_folder() / "tokens" / key
    found = _opened(folder, source.tokenizers)
    while found is None:
        with _claimed(folder, source.name):
            found = _opened(folder, source.tokenizers, quiet=True)
            if found is None:
                _make(folder, source)
                found = _opened(folder, source.tokenizers)
    return found


@contextlib.contextmanager
def _claimed(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a shard's folder within the block."""
    reported = False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock.take(folder, "made")
            break
        except FolderBusy as error:
            if not reported:
                LOGGER.info("%s: waiting for its token shard (%s)", name, error)
            reported = True
            time.sleep(PATIENCE)
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"{folder}: cannot be written: {why}; set {CACHE} to a writable folder") from None
    try:
        yield
    finally:
        lock.release()


def _opened(folder: Path, fields: Iterable[str], quiet: bool = False) -> dict[str, TokenIds] | None:
    """Open a shard. Return None if it is missing or damaged; damage is logged unless `quiet`."""
    if not (folder / FILE).exists():
        return None
    try:
        entry = read_json(folder / FILE)
        known = entry["fields"]
        if entry["key"] != folder.name or entry["sum"] != key_of(folder.name, known):
            raise RunError(f"{folder / FILE}: belongs to other texts, or has changed since it was written")
        return {field: _mapped(folder, field, known[field]) for field in fields}
    except (RunError, KeyError, TypeError, ValueError, OSError) as error:
        if not quiet:
            why = error if isinstance(error, RunError) else f"{folder / FILE}: is damaged ({error!r})"
            LOGGER.warning("%s; writing the token shard again", why)
        return None


def _mapped(folder: Path, field: str, known: Mapping[str, str]) -> TokenIds:
    """Memory-map the texts of a field. Raise RunError if a checksum does not match."""
    arrays = []
    for part, dtype in (("tokens", known["dtype"]), ("offsets", "int64")):
        file = folder / f"{field}.{part}"
        if sha256_of(file) != known[part]:
            raise RunError(f"{file}: has changed since it was written")
        empty = file.stat().st_size == 0
        arrays.append(np.zeros(0, dtype) if empty else np.memmap(file, np.dtype(dtype), "r"))
    return TokenIds(*arrays)


def _make(folder: Path, source: ShardSource) -> None:
    """Write the fields of a shard, then `shard.json`."""
    remove(folder / FILE)
    fields = list(source.tokenizers)
    names = [f"{field}.{part}" for field in fields for part in ("tokens", "offsets")]
    remove_leftovers(folder, (*names, FILE))
    processes = source.workers()
    by = "" if processes == 1 else f" with {processes} processes"
    LOGGER.info("%s: writing its token shard to %s%s", source.name, folder, by)
    known = {field: _write_field(folder, field, source, processes) for field in fields}
    key = folder.name
    write_json(folder / FILE, {"corpus": source.name, "key": key, "fields": known, "sum": key_of(key, known)})


def _write_field(folder: Path, field: str, source: ShardSource, processes: int) -> dict[str, str]:
    """Write the ids and offsets of a field. Return its entry in `shard.json`."""
    tokenizer = source.tokenizers[field]
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "int32"
    tokens, offsets = folder / f"{field}.tokens", folder / f"{field}.offsets"
    batches = _progress(field, source, encoded(_batches(field, source), tokenizer, processes))
    with whole(tokens) as ids, whole(offsets) as ends, ids.open("wb") as write_ids, ends.open("wb") as write_ends:
        _write(write_ids, write_ends, dtype, batches)
    return {"dtype": dtype, "tokens": sha256_of(tokens), "offsets": sha256_of(offsets)}


def _write(tokens: IO[bytes], offsets: IO[bytes], dtype: str, batches: Iterable[TokenIds]) -> None:
    end = 0
    offsets.write(np.zeros(1, np.int64).tobytes())
    for texts in batches:
        tokens.write(texts.tokens.astype(dtype).tobytes())
        offsets.write((texts.offsets[1:] + end).tobytes())
        end += int(texts.offsets[-1])


def _batches(field: str, source: ShardSource) -> Iterator[list[str]]:
    """Yield a field of the examples in batches of AT_ONCE. Raise ExampleError if an example lacks it."""
    examples = enumerate(source.examples(), 1)
    while batch := list(islice(examples, AT_ONCE)):
        for number, example in batch:
            if field not in example:
                raise ExampleError(number, f"{field} is missing; the example has {', '.join(example) or 'no field'}")
        yield [example[field] for _, example in batch]


def _progress(field: str, source: ShardSource, batches: Iterable[TokenIds]) -> Iterator[TokenIds]:
    began = reported = time.monotonic()
    texts = tokens = 0
    try:
        for batch in batches:
            yield batch
            texts, tokens = texts + len(batch), tokens + len(batch.tokens)
            if time.monotonic() - reported > SECONDS:
                reported = time.monotonic()
                rate = f"{tokens / (reported - began):,.0f} tokens/s"
                LOGGER.info("%s: %s: %s texts, %s tokens, %s", source.name, field, f"{texts:,}", f"{tokens:,}", rate)
    except ExampleError:
        raise
    except DataError as error:
        raise _located(field, source, texts) or error from None
    if not texts:
        raise DataError(f"{source.name}: contains no example")
    size = readable_bytes(tokens * (2 if source.tokenizers[field].vocab_size <= 2**16 else 4))
    LOGGER.info("%s: %s: %s texts, %s tokens, %s on disk", source.name, field, f"{texts:,}", f"{tokens:,}", size)


def _located(field: str, source: ShardSource, first: int) -> ExampleError | None:
    """Return the error for the first text after number `first` that cannot be encoded."""
    for number, example in enumerate(islice(source.examples(), first, first + AT_ONCE), first + 1):
        try:
            source.tokenizers[field].encode(example[field])
        except DataError as error:
            return ExampleError(number, str(error))
    return None
