"""How the tokenizers of words and subwords split a text so that decoding restores it.

A space becomes the mark "▁" at the front of what follows it, and a text begins with one: "Ein Mann, der" is
"▁Ein" "▁Mann" "," "▁der". Joining the pieces and turning marks into spaces gives the text back, whatever its
punctuation, its double spaces and its line breaks. The one thing that is lost is a "▁" in the text itself.
"""

from __future__ import annotations

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

MARK = "▁"
# letters with their accents, digits, or other signs, each with the space before it; else spaces alone
_PIECES = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\p{L}\p{M}\p{N}▁\s]+|▁|\s"


def mark_words(backend: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Give `backend` the normalizer, the cutting and the joining described above."""
    lower: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    backend.normalizer = normalizers.Sequence([*lower, normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
