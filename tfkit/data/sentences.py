"""Sentence segmentation by punctuation."""

from __future__ import annotations

import re

# punctuation followed by a possible sentence start; "e.g. this" and "3.5" are not split
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z0-9])|\n\s*\n")


def first_sentence(text: str) -> tuple[str, str]:
    """Split a text into its first sentence, ended by punctuation or a paragraph break, and the remainder."""
    end = _END.search(text := text.strip())
    return (text, "") if end is None else (text[: end.end()].strip(), text[end.end() :].strip())
