"""Sentences of running text, by their punctuation."""

from __future__ import annotations

import re

# a full stop and what may begin a sentence; "e.g. this" and "3.5" do not part
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z0-9])|\n\s*\n")


def first_sentence(text: str) -> tuple[str, str]:
    """Split a text into its first sentence and the rest. A sentence ends with its punctuation or its paragraph."""
    found = _END.search(text := text.strip())
    return (text, "") if found is None else (text[: found.end()].strip(), text[found.end() :].strip())
