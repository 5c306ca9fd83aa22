"""A pretrained tokenizer from a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import Tokenizer, TokenizerPart
from tfkit.data.tokenizer.special import ROLES


class GivenTokens(BaseModel):
    """Special tokens of a pretrained tokenizer by role; roles may share a token (GPT-2's <|endoftext|>)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, title="GivenTokens")

    pad: str | None = Field(None, description="fills a row up to the longest in its batch")
    start: str | None = Field(None, description="begins what a decoder writes")
    end: str | None = Field(None, description="ends a text")
    unknown: str | None = Field(None, description="stands for what the vocabulary does not know")
    mask: str | None = Field(None, description="stands where a token is hidden (masked_lm)")
    separator: str | None = Field(None, description="stands between two texts in one row")


@register("tokenizer", "file")
class File(TokenizerPart):
    """A given tokenizer.json, taken as it is (truncation and padding written in it are switched off)."""

    class Config(TokenizerPart.Config):
        """Options of `file`; special_tokens: exactly those listed, or none = by their common names."""

        path: RecipePath = Field(description="the tokenizer.json")
        special_tokens: GivenTokens | None = Field(
            None, description="texts of the special tokens by role, exactly those; none: by their common names"
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
        """Return the tokenizer of the file, ignoring `texts`; raise DataError with the file."""
        names = self.config.special_tokens
        if names is None:
            return Tokenizer.load(self.config.path)
        given = {role: text for role in ROLES if (text := getattr(names, role)) is not None}
        return Tokenizer.load(self.config.path, given)
