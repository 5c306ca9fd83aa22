"""WordPiece as in BERT: words are split greedily into the longest known pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from pydantic import Field, model_validator
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveInt, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, some, within
from tfkit.data.tokenizer.special import check_room

_PREFIX = "##"
# private code points that stand for word-initial and word-internal characters during training
_FRONT, _INSIDE, _ROOM = 0xF0000, 0x100000, 0xFFFE


@register("tokenizer", "wordpiece")
class WordPiece(LearnedTokenizer):
    """WordPiece (Wu 2016, arXiv 1609.08144; as in BERT, arXiv 1810.04805): `##` marks a piece inside a word.

    Decoding inserts spaces between words, but not before punctuation, so it does not always restore the text exactly.
    """

    class Config(LearnedTokenizer.Config):
        """Options of `wordpiece`."""

        vocab_size: Vocabulary = Field(description="maximum number of tokens, including special tokens")
        lowercase: bool = Field(False, description="convert texts to lower case and strip accents (BERT uncased)")
        minimum_count: PositiveInt = Field(2, description="minimum number of occurrences of a pair to merge")

        @model_validator(mode="after")
        def _has_unknown(self) -> WordPiece.Config:
            if self.special_tokens.unknown is None:
                raise ValueError("words without known pieces need an unknown token; set special_tokens.unknown")
            check_room(self.vocab_size, self.special_tokens)
            return self

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the pieces of `texts`. Raise DataError if the characters alone exceed the vocabulary size."""
        config = self.config
        normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
        cutter = pre_tokenizers.BertPreTokenizer()
        pieces = self._pieces(_count(some(texts), normalizer, cutter))
        tokens = [*self.special.texts().values(), *pieces]
        backend = tokenizers.Tokenizer(
            models.WordPiece(
                vocab={token: index for index, token in enumerate(tokens)},
                unk_token=self.special.unknown or "",
                continuing_subword_prefix=_PREFIX,
                max_input_chars_per_word=100,
            )
        )
        within(config.vocab_size, backend, "the distinct characters and the special tokens")
        backend.normalizer, backend.pre_tokenizer = normalizer, cutter
        backend.decoder = decoders.WordPiece(prefix=_PREFIX, cleanup=True)
        return self.finish(backend)

    def _pieces(self, counts: Counter[str]) -> list[str]:
        """Train the pieces. Return them in the order in which they were found.

        The library's own trainer numbers word-internal pieces in hash order, which varies between runs
        (huggingface/tokenizers 1794). Its BPE trainer sorts the alphabet and is deterministic. Word-initial and
        word-internal characters are therefore mapped to distinct code points, merged with BPE, and mapped back.
        """
        characters = sorted({character for word in counts for character in word})
        if len(characters) > _ROOM:
            raise DataError(f"{len(characters)} distinct characters; wordpiece supports at most {_ROOM}")
        front = {character: chr(_FRONT + index) for index, character in enumerate(characters)}
        inside = {character: chr(_INSIDE + index) for index, character in enumerate(characters)}
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            vocab_size=self.config.vocab_size - len(self.special.texts()),
            min_frequency=self.config.minimum_count,
            initial_alphabet=sorted(front.values()),  # so that every single character is in the vocabulary
            show_progress=False,
        )
        written = (front[word[0]] + "".join(inside[character] for character in word[1:]) for word in counts)
        backend.train_from_iterator(_repeated(written, counts.values()), trainer)
        pieces = sorted(backend.get_vocab().items(), key=lambda item: item[1])
        read = {chr(_FRONT + index): character for index, character in enumerate(characters)}
        read |= {chr(_INSIDE + index): character for index, character in enumerate(characters)}
        return [
            (_PREFIX if ord(token[0]) >= _INSIDE else "") + "".join(read[character] for character in token)
            for token, _ in pieces
        ]


def _count(
    texts: Iterable[str], normalizer: normalizers.Normalizer, cutter: pre_tokenizers.PreTokenizer
) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text)))
    return counts


def _repeated(words: Iterable[str], counts: Iterable[int]) -> Iterator[str]:
    """Yield each word as often as it was counted, in lines of at most 1000 words."""
    for word, count in zip(words, counts, strict=True):
        whole, rest = divmod(count, 1000)
        for _ in range(whole):
            yield f"{word} " * 1000
        if rest:
            yield f"{word} " * rest
