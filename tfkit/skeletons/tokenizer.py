"""my_part: a custom tokenizer, from texts to ids and back."""

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
    """The characters that are not rare are tokens; the others are unknown."""

    # The options of the part, as a recipe writes them: {type: my_part, minimum_count: 3}. Add yours here.
    class Config(LearnedTokenizer.Config):
        minimum_count: int = Field(1, ge=1, description="rarer characters are unknown")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        # Change this: what the tokens are. `some` refuses texts that are all empty.
        counts = Counter(character for text in some(texts) for character in text)
        known = sorted(character for character, count in counts.items() if count >= self.config.minimum_count)
        vocabulary = {token: index for index, token in enumerate([*self.special.texts().values(), *known])}
        # BPE without merges cuts a text into its characters.
        model = models.BPE(vocab=vocabulary, merges=[], unk_token=self.special.unknown, fuse_unk=False)
        backend = tokenizers.Tokenizer(model)
        backend.decoder = decoders.Fuse()
        return self.finish(backend)  # enters the special tokens
