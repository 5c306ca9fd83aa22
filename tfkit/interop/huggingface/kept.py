"""Original config and tokenizer files, kept in an imported run for later exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfkit.core.errors import DataError, RunError
from tfkit.interop.huggingface.strangers import file_in, mapping_in, text_in, without_code
from tfkit.run import Run
from tfkit.storage.checksums import sha256_of
from tfkit.storage.files import write_json
from tfkit.training.folder import ENVIRONMENT, RunFolder
from tfkit.training.kept import CONFIG, GENERATION, KEPT, TOKENIZER_CONFIG, TOKENS_MAP, copy_file, names_in, origin_of
from tfkit.training.vocabularies import tokenizer_files

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
