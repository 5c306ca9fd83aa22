"""Tokenizer files of a run: a shared tokenizer.json, or separate files for source and target."""

from __future__ import annotations

from tfkit.core.errors import RunError
from tfkit.data.tokenizer import Tokenizer
from tfkit.training.folder import SOURCE_TOKENIZER, TARGET_TOKENIZER, TOKENIZER, TOKENIZERS, RunFolder


def tokenizer_files(folder: RunFolder) -> tuple[str, ...]:
    """Return the names of the tokenizer files that the run has."""
    return tuple(name for name in TOKENIZERS if (folder / name).is_file())


def check_tokenizer(folder: RunFolder) -> None:
    """Raise RunError if a tokenizer file of the run is missing."""
    found = tokenizer_files(folder)
    pair = (SOURCE_TOKENIZER, TARGET_TOKENIZER)
    for name in pair if any(name in pair for name in found) else (TOKENIZER,):
        if name not in found:
            raise RunError(f"{folder / name}: is missing")


def load_tokenizer(folder: RunFolder) -> Tokenizer:
    """Read the tokenizer of a run. Raise RunError for a missing file, DataError for an invalid one."""
    check_tokenizer(folder)
    if (folder / TARGET_TOKENIZER).is_file():
        return Tokenizer.load(folder / TARGET_TOKENIZER).beside(Tokenizer.load(folder / SOURCE_TOKENIZER))
    return Tokenizer.load(folder / TOKENIZER)


def save_tokenizer(tokenizer: Tokenizer, folder: RunFolder) -> None:
    """Write the tokenizer of a run. Raise DataError if it cannot be written."""
    if tokenizer.source is tokenizer:
        tokenizer.save(folder / TOKENIZER)
        return
    tokenizer.source.save(folder / SOURCE_TOKENIZER)
    tokenizer.save(folder / TARGET_TOKENIZER)
