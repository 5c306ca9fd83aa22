"""Sentence segmentation by punctuation."""

from __future__ import annotations

import re

# punctuation before a possible sentence start; "e.g. this" and "3.5" are not split
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z0-9])|\n\s*\n")


def first_sentence(text: str) -> tuple[str, str]:
    """Split a text after its first sentence, which ends at punctuation or a paragraph break."""
    end = _END.search(text := text.strip())
    return (text, "") if end is None else (text[: end.end()].strip(), text[end.end() :].strip())
