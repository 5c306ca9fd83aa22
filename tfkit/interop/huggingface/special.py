"""Special tokens in config.json, generation_config.json and the tokenizer files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.strangers import file_in, mapping_in, without_code
from tfkit.training.kept import TOKENIZER_CONFIG, TOKENS_MAP

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
