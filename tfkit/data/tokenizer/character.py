"""Character-level tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from tfkit.core.registry import register
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, some


@register("tokenizer", "character")
class Character(LearnedTokenizer):
    """One token for each character in the texts, in code point order after the special tokens.

    With `special_tokens: {unknown: none}`, encoding an unseen character raises an error.
    """

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the characters of `texts`."""
        characters: set[str] = set()
        for text in some(texts):
            characters.update(text)
        tokens = [*self.special.texts().values(), *sorted(characters)]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(self._model(vocabulary))
        if self.special.unknown is None:
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return self.finish(backend)

    def _model(self, vocabulary: dict[str, int]) -> models.Model:
        """Return BPE without merges, ten times as fast as WordLevel, unless unknown characters must raise an error."""
        if self.special.unknown is None:
            return models.WordLevel(vocab=vocabulary, unk_token="")
        return models.BPE(vocab=vocabulary, merges=[], unk_token=self.special.unknown, fuse_unk=False)
