"""Special tokens: their texts and roles, and how tokenizer files store the roles.

Tokenizers are saved as plain `tokenizer.json` files. The format has no place for roles of special tokens (pad, end), so
they are stored as names in a post-processing template that adds no tokens: `post_processor: {..., special_tokens:
{"tfkit.pad": {"ids": [0], "tokens": ["<pad>"]}}}`. Third-party files have no such template; their roles are inferred
from `COMMON_NAMES`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tfkit.core.options import NonNegativeInt

ROLES = ("pad", "start", "end", "unknown", "mask", "separator")
COMMON_NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "start": ("<s>", "[CLS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "unknown": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
    "separator": ("[SEP]", "<sep>", "</s>"),
}
SENTINEL = "<extra_id_{}>"  # T5's names for sentinel tokens, numbered from 0
_PREFIX = "tfkit."
_ROLES = "tfkit"  # marks the template that stores roles, even if it has none


class SpecialTokens(BaseModel):
    """Special tokens by role; their ids are assigned in this order from 0, and `none` omits a role."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, title="SpecialTokens")

    pad: str | None = Field("<pad>", description="padding of shorter rows in a batch")
    start: str | None = Field("<s>", description="first token of a decoder's output")
    end: str | None = Field("</s>", description="end of a text")
    unknown: str | None = Field("<unk>", description="replacement for unknown text")
    mask: str | None = Field(None, description="replacement for a masked token (masked_lm)")
    separator: str | None = Field(None, description="separator between two texts in a row")
    sentinels: NonNegativeInt = Field(
        0, le=1000, description="number of sentinel tokens <extra_id_0>, ... for masked spans (span_corruption)"
    )

    @field_validator(*ROLES)
    @classmethod
    def _apart_from_text(cls, text: str | None) -> str | None:
        if text is None:
            return None
        letters = sum(character.isalnum() for character in text)
        if any(character.isspace() for character in text) or letters in (0, len(text)):
            raise ValueError(
                f"a special token must contain letters and other characters, but no spaces, such as <pad>, so that no "
                f"word of a text equals it; got {text!r}"
            )
        return text

    @model_validator(mode="after")
    def _distinct(self) -> SpecialTokens:
        roles: dict[str, str] = {}
        for role, text in self.texts().items():
            if text in roles:
                raise ValueError(f"{roles[text]} and {role} are both {text!r}; use a different text for each")
            roles[text] = role
        return self

    def texts(self) -> dict[str, str]:
        """Special tokens by role, in the order of their ids, without roles that are none."""
        roles = {role: text for role in ROLES if (text := getattr(self, role)) is not None}
        return roles | {f"sentinel_{number}": SENTINEL.format(number) for number in range(self.sentinels)}


def infer_roles(backend: tokenizers.Tokenizer) -> dict[str, str]:
    """Infer roles in a third-party file from common token names; several roles may share a token."""
    tokens = backend.get_vocab(with_added_tokens=True)
    roles = {role: next((name for name in names if name in tokens), None) for role, names in COMMON_NAMES.items()}
    return {role: name for role, name in roles.items() if name is not None}


def with_roles(backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return a copy of `backend` that stores the roles and does not truncate or pad.

    Third-party files may truncate or pad silently. Their own template follows the template of roles, since the library
    panics if the order is reversed.
    """
    data = json.loads(backend.to_str())
    marks = {
        _PREFIX + role: {"id": _PREFIX + role, "ids": [backend.token_to_id(text)], "tokens": [text]}
        for role, text in special.items()
    }
    text, other = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    marks[_ROLES] = {"id": _ROLES, "ids": [], "tokens": []}
    template = {"type": "TemplateProcessing", "single": [text], "pair": [text, other], "special_tokens": marks}
    rest = [step for step in _steps(data["post_processor"]) if not _is_roles(step)]
    data["post_processor"] = {"type": "Sequence", "processors": [template, *rest]} if rest else template
    return tokenizers.Tokenizer.from_str(json.dumps({**data, "truncation": None, "padding": None}))


def roles_in(post_processor: Any) -> dict[str, str] | None:
    """Return the roles stored by `with_roles`, or None if there are none."""
    for step in filter(_is_roles, _steps(post_processor)):
        marks = step["special_tokens"].items()
        return {name.removeprefix(_PREFIX): mark["tokens"][0] for name, mark in marks if mark["tokens"]}
    return None


def _steps(post_processor: Any) -> list[dict[str, Any]]:
    """Return the steps of a post-processor, flattening a sequence."""
    if post_processor is None:
        return []
    return list(post_processor["processors"]) if post_processor["type"] == "Sequence" else [post_processor]


def _is_roles(step: dict[str, Any]) -> bool:
    return step["type"] == "TemplateProcessing" and _ROLES in step["special_tokens"]


def check_room(vocab_size: int | None, special: SpecialTokens, others: int = 1) -> None:
    """Raise ValueError if `vocab_size` has no room for the special tokens and `others` additional tokens."""
    least = len(special.texts()) + others
    if vocab_size is not None and vocab_size < least:
        raise ValueError(f"vocab_size: {vocab_size} is too small; the minimum is {least}")


def default_unknown(options: Mapping[str, object]) -> Mapping[str, object]:
    """Set the default unknown token to none, for a vocabulary that can represent any text."""
    special = options.get("special_tokens", {})
    if isinstance(special, SpecialTokens) and "unknown" not in special.model_fields_set:
        special = special.model_dump(exclude_unset=True)
    if isinstance(special, Mapping) and "unknown" not in special:
        return {**options, "special_tokens": {**special, "unknown": None}}
    return options


def unknown_problem(special: SpecialTokens, covers: str) -> str:
    """Return the message if an unknown token and the option `covers`, which replaces it, are both set, or neither."""
    if special.unknown is None:
        return f"an unknown token is needed without {covers}; set special_tokens.unknown"
    return f"{covers} needs no unknown token; set special_tokens.unknown: none, not {special.unknown!r}"
