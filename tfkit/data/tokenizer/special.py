"""Special tokens: texts, roles, and storage of the roles in tokenizer files.

The file is a plain `tokenizer.json` of the `tokenizers` library. The format cannot express the roles of special tokens
(pad, end), so they are stored as names in a post-processing template that adds nothing: `post_processor: {...,
special_tokens: {"tfkit.pad": {"ids": [0], "tokens": ["<pad>"]}}}`. Roles of third-party files, which have no such
template, are inferred from `COMMON_NAMES`.
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
SENTINEL = "<extra_id_{}>"  # T5's names of sentinel tokens, from 0
_PREFIX = "tfkit."
_ROLES = "tfkit"  # marks the template of roles, even if it is empty


class SpecialTokens(BaseModel):
    """Texts of special tokens by role; ids follow this order from 0, `none` omits one."""

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
                f"a special token needs letters and other signs but no space, such as <pad> or [PAD], so that no "
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
        """Defined special tokens by role, in id order."""
        roles = {role: text for role in ROLES if (text := getattr(self, role)) is not None}
        return roles | {f"sentinel_{number}": SENTINEL.format(number) for number in range(self.sentinels)}


def infer_roles(backend: tokenizers.Tokenizer) -> dict[str, str]:
    """Infer the roles of a third-party file from common names; roles may share a token."""
    tokens = backend.get_vocab(with_added_tokens=True)
    roles = {role: next((name for name in names if name in tokens), None) for role, names in COMMON_NAMES.items()}
    return {role: name for role, name in roles.items() if name is not None}


def with_roles(backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return a copy of `backend` with the roles stored and without truncation and padding.

    Third-party files may truncate or pad silently. Their own template is kept after that of the roles (in the other
    order, the library panics).
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
    """Return the roles stored by `with_roles`, or None."""
    for step in filter(_is_roles, _steps(post_processor)):
        marks = step["special_tokens"].items()
        return {name.removeprefix(_PREFIX): mark["tokens"][0] for name, mark in marks if mark["tokens"]}
    return None


def _steps(post_processor: Any) -> list[dict[str, Any]]:
    """Flatten a post-processor to a list of steps."""
    if post_processor is None:
        return []
    return list(post_processor["processors"]) if post_processor["type"] == "Sequence" else [post_processor]


def _is_roles(step: dict[str, Any]) -> bool:
    return step["type"] == "TemplateProcessing" and _ROLES in step["special_tokens"]


def check_room(vocab_size: int | None, special: SpecialTokens, others: int = 1) -> None:
    """Raise ValueError if `vocab_size` is too small for the special tokens and `others` more."""
    least = len(special.texts()) + others
    if vocab_size is not None and vocab_size < least:
        raise ValueError(f"vocab_size: {vocab_size} is too small; the minimum is {least}")


def default_unknown(options: Mapping[str, object]) -> Mapping[str, object]:
    """Set the default unknown token of a vocabulary that covers every text to none."""
    special = options.get("special_tokens", {})
    if isinstance(special, SpecialTokens) and "unknown" not in special.model_fields_set:
        special = special.model_dump(exclude_unset=True)
    if isinstance(special, Mapping) and "unknown" not in special:
        return {**options, "special_tokens": {**special, "unknown": None}}
    return options


def unknown_problem(special: SpecialTokens, covers: str) -> str:
    """Describe an unknown token next to the option `covers`, by which every text is known, or the lack of both."""
    if special.unknown is None:
        return f"an unknown token is needed without {covers}; set special_tokens.unknown"
    return f"{covers} needs no unknown token; set special_tokens.unknown: none, not {special.unknown!r}"
