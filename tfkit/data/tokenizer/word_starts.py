"""Classification of tokens into word-initial and word-internal."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfkit.data.tokenizer.base import Tokenizer

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def continuations(tokenizer: Tokenizer) -> Flags:
    """Return the mask [vocab_size] of word-internal tokens, which start with `##`, or lack a leading `▁` or `Ġ`.

    In vocabularies without such marks (characters), letters and digits are word-internal, because the space before
    them starts the word; all other characters start a word.
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
