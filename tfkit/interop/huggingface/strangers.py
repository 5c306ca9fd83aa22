"""Safe reading of untrusted folders, special tokens in their files, and files kept for later exports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfkit.core.errors import DataError, RunError
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.run import Run
from tfkit.runs.folder import ENVIRONMENT, RunFolder, tokenizer_files
from tfkit.runs.kept import CONFIG, GENERATION, KEPT, TOKENIZER_CONFIG, TOKENS_MAP, copy_file, names_in, origin_of
from tfkit.storage.checksums import sha256_of
from tfkit.storage.files import read_json, read_text, write_json

DEPTH = 32  # maximum nesting of JSON files
CODE = ("auto_map", "custom_pipelines")  # keys that reference code, which is never copied


def file_in(folder: Path, name: str) -> Path | None:
    """Return the file `name` in a folder, or None if it is missing.

    Raise DataError unless it is a regular file or a permitted link: to a file in the folder or, in a snapshot of the
    hub's cache, to a blob of its repository.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        home, real = folder.resolve(strict=True), path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise DataError(f"{path}: is a broken link") from None
    is_blob = home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"
    if not (real.is_relative_to(home) or is_blob):
        raise DataError(f"{path}: is a link to another folder and is not followed; copy the file instead")
    if not real.is_file():
        raise DataError(f"{path}: is not a regular file")
    return path


def text_in(path: Path) -> str:
    """Return the text of a file. Raise DataError if it cannot be read."""
    try:
        return read_text(path)
    except RunError as error:
        raise DataError(str(error)) from None


def mapping_in(path: Path) -> dict[str, object]:
    """Return the mapping in a JSON file.

    Raise DataError if it contains anything else, or a value that cannot be written as JSON again.
    """
    try:
        data = read_json(path)
    except RunError as error:
        raise DataError(str(error)) from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a mapping")
    _check(path, data)
    return data


def without_code(data: Mapping[str, object]) -> dict[str, object]:
    """Return `data` without references to code at any level, and without a tokenizer class defined in such code."""
    dropped = (*CODE, "tokenizer_class") if any(key in data for key in CODE) else ()
    return {
        key: without_code(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if key not in dropped
    }


def _check(path: Path, data: Any) -> None:
    """Raise DataError for excessive nesting or invalid Unicode."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise DataError(f"{path}: is nested more than {DEPTH} levels deep")
        keys = [key for part in level if isinstance(part, dict) for key in part]
        below = [entry for part in level for entry in (part.values() if isinstance(part, dict) else part)]
        for text in (text for text in [*keys, *below] if isinstance(text, str)):
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise DataError(f"{path}: {text!r:.60} contains a lone surrogate (half of a character)")
        level = [part for part in below if isinstance(part, (dict, list))]


# role -> keys in tokenizer files, in order of precedence
TOKEN_KEYS = {
    "pad": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
    "mask": ("mask_token",),
    "separator": ("sep_token",),
}
ID_KEYS = {"pad": "pad_token_id", "start": "bos_token_id", "end": "eos_token_id"}


def read_optional(path: Path) -> dict[str, object]:
    """Return a JSON file without references to code; empty if missing. Raise DataError unless it contains a mapping."""
    file = file_in(path.parent, path.name)
    return {} if file is None else without_code(mapping_in(file))


MOST = 2**31 - 1  # largest id


def token_ids(config: ConfigJson, generation: Mapping[str, object]) -> dict[str, list[int]]:
    """Return the pad, start and end ids by role; there may be several end ids."""
    by_role = {}
    for role, key in ID_KEYS.items():
        stored = generation.get(key) if generation.get(key) is not None else config.get(key)
        ids = stored if isinstance(stored, list) else [stored]
        if all(isinstance(id_, int) and 0 <= id_ <= MOST for id_ in ids) and ids:
            by_role[role] = list(ids)
    return by_role


def special_ids(config: ConfigJson, generation: Mapping[str, object], size: int | None) -> dict[str, int]:
    """Return the recipe's `special_ids`; an encoder-decoder starts with its decoder start token."""
    ids = {role: each[0] for role, each in token_ids(config, generation).items()}
    key = "decoder_start_token_id"
    begins = generation.get(key) if generation.get(key) is not None else config.get(key)
    if isinstance(begins, int):
        ids["start"] = begins
    return {role: id_ for role, id_ in ids.items() if size is None or id_ < size}


def role_texts(folder: Path) -> dict[str, str]:
    """Return the special tokens by role, as stated in the tokenizer files."""
    stored = read_optional(folder / TOKENS_MAP) | read_optional(folder / TOKENIZER_CONFIG)
    by_role = {}
    for role, keys in TOKEN_KEYS.items():
        texts = [_text(stored.get(key)) for key in keys]
        first = next((text for text in texts if text), None)
        if first is not None:
            by_role[role] = first
    return by_role


def _text(stored: object) -> str | None:
    """Return a token stored as text, or as a mapping that contains its text."""
    text = stored.get("content") if isinstance(stored, dict) else stored
    return text if isinstance(text, str) else None


SETTINGS = (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENS_MAP)  # JSON mappings that may reference code


def keep(source: Path, folder: Path) -> list[str]:
    """Copy the small original files without references to code.

    Return the names of the files from which references were removed.
    """
    (folder / KEPT).mkdir()
    coded = []
    for name in names_in(source):
        path = file_in(source, name)
        if path is None:
            continue
        data = mapping_in(path) if name in SETTINGS else {}
        if name.endswith((".jinja", ".json", ".txt")):
            text_in(path)
        if without_code(data) != data:
            coded.append(name)
            write_json(folder / KEPT / name, without_code(data))
        else:
            _copy(path, folder / KEPT / name)
    return coded


def kept_of(run: Run) -> Path:
    """Return the folder of original files. It does not exist if the run has none or its tokenizer has changed."""
    kept, came_from = run.folder / KEPT, origin(run)
    if kept.is_symlink():
        raise RunError(f"{kept}: is a link; expected a folder")
    now = fingerprint(run.folder)
    return kept if came_from and came_from.get("tokenizer", now) == now else run.folder / "nothing"


def origin(run: Run) -> Mapping[str, object]:
    """Return the family and class that a run, or its parent run, was imported as; empty if not imported."""
    folder = RunFolder(run.folder)
    return origin_of(folder.known) if (folder / ENVIRONMENT).is_file() else {}


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of the run's tokenizer, or both hashes joined with + for two tokenizers; empty for none."""
    return "+".join(sha256_of(folder / name) for name in tokenizer_files(RunFolder(folder)))


def restore(kept: Path, folder: Path) -> None:
    """Copy the kept tokenizer files that the export has not written itself."""
    for name in names_in(kept):
        path = None if name in (CONFIG, GENERATION) or (folder / name).exists() else file_in(kept, name)
        if path is not None and name in SETTINGS:
            write_json(folder / name, without_code(mapping_in(path)))
        elif path is not None:
            _copy(path, folder / name)


def _copy(source: Path, target: Path) -> None:
    try:
        copy_file(source, target)
    except RunError as error:
        raise DataError(str(error)) from None
