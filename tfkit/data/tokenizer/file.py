"""A pretrained tokenizer from a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import Tokenizer, TokenizerPart
from tfkit.data.tokenizer.special import ROLES


class PretrainedTokens(BaseModel):
    """Special tokens of a pretrained tokenizer by role; roles may share a token (GPT-2's <|endoftext|>)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, title="PretrainedTokens")

    pad: str | None = Field(None, description="padding of shorter rows in a batch")
    start: str | None = Field(None, description="first token of a decoder's output")
    end: str | None = Field(None, description="end of a text")
    unknown: str | None = Field(None, description="replacement for unknown text")
    mask: str | None = Field(None, description="replacement for a masked token (masked_lm)")
    separator: str | None = Field(None, description="separator between two texts in a row")


@register("tokenizer", "file")
class File(TokenizerPart):
    """A tokenizer.json, used unchanged except that truncation and padding are disabled."""

    class Config(TokenizerPart.Config):
        """Options of `file`."""

        path: RecipePath = Field(description="a tokenizer.json")
        special_tokens: PretrainedTokens | None = Field(
            None, description="special tokens by role; none: inferred from common names"
        )

        def described(self) -> str:
            return self.path

        def has(self, role: str) -> bool | None:
            known = self.special_tokens is not None and role in ROLES
            return getattr(self.special_tokens, role) is not None if known else None

    learns: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer in the file, ignoring `texts`. Raise DataError if the file is invalid."""
        names = self.config.special_tokens
        if names is None:
            return Tokenizer.load(self.config.path)
        special = {role: text for role in ROLES if (text := getattr(names, role)) is not None}
        return Tokenizer.load(self.config.path, special)
