"""Default name of a run folder, built from the recipe, variants and overrides, such as `names-rotary-s3`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tfkit.recipe.load import Recipe

LONGEST = 80  # characters; longer names are truncated and end with a hash
# keys that do not define a run: duration, device, data and output
LEFT_OUT = re.compile(
    r"generate\b|imports\b|data\.(train|valid|test)\b"
    r"|train\.(steps|max_time|device|keep|patience|metrics|samples|changed_data|evaluate_every|checkpoint_every|validate)\b"
)


def run_name(recipe: Recipe) -> str:
    """Return the recipe name, followed by a word for each variant and each override that defines the run."""
    words = [_variant(text) for text in recipe.variants]
    words += [value_word(key, value) for key, value in recipe.changes.items() if not LEFT_OUT.match(key)]
    name = "-".join([recipe.name, *words])
    if len(name) <= max(LONGEST, len(recipe.name)):
        return name
    digest = _digest([list(recipe.variants), dict(recipe.changes)])
    return f"{name[: LONGEST - len(digest) - 1].rstrip('-')}-{digest}"


def _variant(text: str) -> str:
    """Abbreviate a variant: `rotary` to rotary, `heads=4` to heads4, `norm=rms_norm` to rms_norm."""
    name, equals, value = text.partition("=")
    return value_word(name.strip(), _plain(value.strip())) if equals else _cleaned(name)


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def value_word(key: str, value: Any) -> str:
    """Abbreviate the value of a dotted key to a word that starts with a letter."""
    key = key.rpartition(".")[2]
    if value is None:
        return f"{_cleaned(key)}_none"
    if isinstance(value, bool):
        return _cleaned(key) if value else f"no_{_cleaned(key)}"
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        rest = {name: option for name, option in value.items() if name != "type"}
        return _cleaned(value["type"]) + (f"_{_digest(rest)}" if rest else "")
    if isinstance(value, (int, float)):
        return "s" + str(value) if key == "seed" else f"{_cleaned(key)}{value}"
    if isinstance(value, str):
        word = _cleaned(value.rstrip("/").rpartition("/")[2])  # paths are reduced to their last component
        if word != value and word[:1].isalpha() and len(word) <= 24:
            return f"{word}_{_digest(value)}"
        return word if word[:1].isalpha() and len(word) <= 24 else f"{_cleaned(key)}_{_digest(value)}"
    return f"{_cleaned(key)}_{_digest(value)}"


def _cleaned(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+]+", "_", text).strip("._")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:6]
