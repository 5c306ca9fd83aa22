"""Which tokens of a vocabulary go on with a word that an earlier token began."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfkit.data.tokenizer.base import Tokenizer

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def continuations(tokenizer: Tokenizer) -> Flags:
    """[vocab_size], True for a token inside a word, as the vocabulary marks it: `##ing`, or no `▁` or `Ġ` in front.

    In a vocabulary without such marks (of characters) a word begins with the space before it. Signs that are no
    letters or digits stand for themselves.
    """
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    marks = [mark for mark in ("▁", "Ġ") if any(token.startswith(mark) for token in vocabulary)]
    inside = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    pieces = any(token.startswith("##") and len(token) > 2 for token in vocabulary)
    for token, id_ in vocabulary.items():
        if pieces:
            inside[id_] = token.startswith("##")
        else:
            inside[id_] = token[:1].isalnum() and not any(token.startswith(mark) for mark in marks)
    inside[list(tokenizer.special_ids.values())] = False
    return inside
