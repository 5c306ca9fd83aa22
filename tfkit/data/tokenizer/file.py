"""A tokenizer that someone else has trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from tfkit.core.options import RecipePath
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import Tokenizer, TokenizerPart
from tfkit.data.tokenizer.special import ROLES


class GivenTokens(BaseModel):
    """The text of each special token of a given file by its role; two roles may share one (GPT-2's <|endoftext|>)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, title="GivenTokens")

    pad: str | None = None
    start: str | None = None
    end: str | None = None
    unknown: str | None = None
    mask: str | None = None
    separator: str | None = None


@register("tokenizer", "file")
class File(TokenizerPart):
    """A given tokenizer.json, taken as it is (truncation and padding written in it are switched off)."""

    class Config(TokenizerPart.Config):
        """Options of `file`; special_tokens: exactly those written, or none = by their common names."""

        path: RecipePath
        special_tokens: GivenTokens | None = None

    learns: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer of the file; `texts` are not read. Raises DataError naming the file."""
        names = self.config.special_tokens
        if names is None:
            return Tokenizer.load(self.config.path)
        given = {role: text for role in ROLES if (text := getattr(names, role)) is not None}
        return Tokenizer.load(self.config.path, given)
