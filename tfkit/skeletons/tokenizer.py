"""my_part: a custom tokenizer, which converts texts to ids and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import tokenizers
from pydantic import Field
from tokenizers import decoders, models

import tfkit
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, some


@tfkit.register("tokenizer", "my_part")
class MyPart(LearnedTokenizer):
    """Tokens are the characters of the training texts; rare ones are unknown."""

    # Options of the part, as written in a recipe: {type: my_part, minimum_count: 3}. Add your own here.
    class Config(LearnedTokenizer.Config):
        minimum_count: int = Field(1, ge=1, description="minimum number of occurrences; rarer characters are unknown")

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        # Change this: how the vocabulary is built. `some` raises an error if all texts are empty.
        counts = Counter(character for text in some(texts) for character in text)
        known = sorted(character for character, count in counts.items() if count >= self.config.minimum_count)
        vocabulary = {token: index for index, token in enumerate([*self.special.texts().values(), *known])}
        # BPE without merges splits a text into characters.
        model = models.BPE(vocab=vocabulary, merges=[], unk_token=self.special.unknown, fuse_unk=False)
        backend = tokenizers.Tokenizer(model)
        backend.decoder = decoders.Fuse()
        return self.finish(backend)  # adds the special tokens
