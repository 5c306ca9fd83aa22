"""Classification of tokens as word-initial or word-internal."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfkit.data.tokenizer.base import Tokenizer

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def continuations(tokenizer: Tokenizer) -> Flags:
    """Return the mask [vocab_size] of word-internal tokens by the vocabulary's marks: `##ing`, or no leading `▁` or
    `Ġ`.

    Without marks (character vocabularies) every letter and digit is word-internal: the preceding space starts the word.
    Every other sign starts a word.
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
