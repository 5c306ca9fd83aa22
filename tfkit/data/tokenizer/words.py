"""Reversible pre-tokenization for word and subword tokenizers.

Each space is replaced by the mark "▁" and attached to the following piece, and the text gets a leading mark: "Ein Mann,
der" becomes "▁Ein" "▁Mann" "," "▁der". Joining pieces and replacing marks restores punctuation, double spaces and line
breaks exactly; only a literal "▁" is lost.
"""

from __future__ import annotations

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

MARK = "▁"
# runs of letters, digits or other characters, each with the mark before it; other whitespace one character at a time
_PIECES = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\p{L}\p{M}\p{N}▁\s]+|▁|\s"


def mark_words(backend: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Set the normalizer, pre-tokenizer and decoder that implement the scheme of this module."""
    lower: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    backend.normalizer = normalizers.Sequence([*lower, normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
