"""Token classification: prediction of a tag for each word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tfkit.core.errors import ExampleError
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.objective.base import Prediction
from tfkit.training.objective.baseline import Baseline, Ids, unigram_baseline
from tfkit.training.objective.labels import Classifying, ClassRows, named
from tfkit.training.objective.reading import ReadingAnswers, first_of, joined, room_in
from tfkit.training.objective.rows import Batch, Example, Item, located

NO_ENTITY = "O"


class TaggedRows(ClassRows):
    """Texts with a tag index for each word."""

    fields = ("text", "tags")
    tagged = False  # a tag is no word of the text
    tokenized = ("text",)

    def labels_in(self, example: Example) -> Sequence[str]:
        return words_of(example.get("tags", ""))

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text`, `firsts` (mask of the first token of each word) and `tags`. Long texts are split.

        Words whose tag is not in the training corpus are excluded from the loss, but not from metrics.
        """
        tags = self._column(examples, "tags")
        self.learn(examples)
        items: list[Item] = []
        for example, item, words in self._pieces(examples, tokenizer, max_length):
            numbers = self._numbers(tags[example], examples[example]["text"], example + 1)[words]
            known = numbers >= 0
            if known.any():
                firsts = np.flatnonzero(item["firsts"])[known]
                marks = np.zeros_like(item["firsts"])
                marks[firsts] = 1
                items.append(item | {"firsts": marks, "tags": numbers[known]})
        self._tell_unknown([tag for line in tags for tag in words_of(line)], "tags")
        return self._usable(
            items, len(examples), "the texts are empty, or none of their tags is in the training corpus"
        )

    def _numbers(self, tags: str, text: str, number: int) -> Ids:
        words = words_of(text)
        if len(words) != len(words_of(tags)):
            raise ExampleError(number, f"{len(words_of(tags))} tags for {len(words)} words")
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.asarray([numbers.get(tag, -1) for tag in words_of(tags)], dtype=np.int32)

    def _pieces(
        self, examples: Sequence[Example], tokenizer: Tokenizer, longest: int | None
    ) -> Iterator[tuple[int, Item, Ids]]:
        """Yield (example index, piece, indices of the words in the piece). Words are not split."""
        self.bind(tokenizer)
        frame = self._frame
        room = None if longest is None else room_in(frame, longest)
        texts = [" ".join(words_of(text)) for text in self._column(examples, "text")]
        with located(texts, tokenizer):
            encoded = tokenizer.encode_with_places(texts)
        for number, (text, (ids, places)) in enumerate(zip(texts, encoded, strict=True)):
            words, firsts = first_tokens(text, places)
            for begin, stop in cuts(len(ids), firsts, room):
                row = joined(frame.before, ids[begin:stop], frame.after)
                inside = (firsts >= begin) & (firsts < stop)
                marks = np.zeros(len(row), dtype=np.int32)
                marks[firsts[inside] - begin + len(frame.before)] = 1
                yield number, {"text": row, "firsts": marks, "marked": first_of(len(row))}, words[inside]

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate inputs, `labels` [words] and their positions `predicted` [words] in the flattened rows."""
        batch = super().collate(items, rng)
        width = batch["input_ids"].shape[1]
        places = [np.flatnonzero(item["firsts"]) + row * width for row, item in enumerate(items)]
        labels = np.concatenate([item["tags"] for item in items]).astype(np.int64)
        predicted = np.concatenate(places).astype(np.int64)
        return batch | {"labels": torch.from_numpy(labels), "predicted": torch.from_numpy(predicted)}


class Tags(ReadingAnswers):
    """The most likely tag of each word."""

    rows: TaggedRows
    reference = "tags"
    metrics = ("accuracy", "macro_f1")
    of_tokens = True
    sample_texts: ClassVar = {
        "text": ("the cat sees a small dog", "a dog", "the child"),
        "tags": ("X N V X X N", "X N", "X N"),
    }

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return the `words` of each text with their `tags` and `probabilities`.

        Words without tokens get the tag O if it exists, else the first tag, with probability 0.
        """
        texts = [words_of(example["text"]) for example in examples]
        pieces = [
            piece for piece in self.rows._pieces(examples, tokenizer, model.blueprint.last.max_length) if len(piece[2])
        ]
        logits = self._logits(model, [item for _, item, _ in pieces])
        labels = self.rows.labels
        other = NO_ENTITY if NO_ENTITY in labels or not labels else labels[0]
        tags: list[list[str]] = [[other] * len(words) for words in texts]
        probabilities: list[list[float]] = [[0.0] * len(words) for words in texts]
        for (example, item, words), scores in zip(pieces, logits, strict=True):
            best = scores[torch.from_numpy(item["firsts"]).bool()].softmax(-1).max(dim=-1)
            names = named(labels, scores.shape[-1])
            for word, tag, chance in zip(words.tolist(), best.indices.tolist(), best.values.tolist(), strict=True):
                tags[example][word], probabilities[example][word] = names[tag], chance
        return [
            {"text": " ".join(words), "words": words, "tags": own, "probabilities": probabilities}
            for words, own, probabilities in zip(texts, tags, probabilities, strict=True)
        ]

    def text(self, prediction: Prediction) -> str:
        return " ".join(prediction["tags"])


@register("objective", "token_classification")
class TokenClassification(Classifying):
    """Loss = -sum log p(tag | text) over words, predicted at their first token (Devlin et al. 2018: 1810.04805)."""

    rows_type: ClassVar[type[TaggedRows]] = TaggedRows
    answers_type = Tags
    heads = ("token_classifier",)
    capabilities = frozenset({"likelihood", "words", "tags", "soft_targets"})

    config: Classifying.Config
    rows: TaggedRows

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Compute the cross-entropy of `logits` [rows time classes] at the first token of each word."""
        return super().head_loss(logits.flatten(0, 1).index_select(0, batch["predicted"]), batch, training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the scores of a baseline that predicts the tag frequencies of the training texts."""
        train, valid = (np.concatenate([item["tags"] for item in items]) for items in (train_items, valid_items))
        found = unigram_baseline(train, valid, max(1, len(self.rows.labels)))
        return None if found is None else Baseline("most frequent tag", found.loss, found.accuracy)


def words_of(text: str) -> list[str]:
    """Split words or tags at spaces, tabs and newlines only, as tagged corpora do."""
    return [word for word in text.replace("\t", " ").replace("\n", " ").split(" ") if word]


def first_tokens(text: str, places: Sequence[tuple[int, int]]) -> tuple[Ids, Ids]:
    """Return the indices of the words of a single-spaced text that have tokens, and of their first tokens."""
    starts = np.cumsum([0] + [len(word) + 1 for word in text.split(" ")])
    words: list[int] = []
    firsts: list[int] = []
    for token, (begin, stop) in enumerate(places):
        # a token may include the preceding space; a token that consists only of a space belongs to no word
        last = begin + len(text[begin:stop].rstrip(" ")) - 1
        word = int(np.searchsorted(starts, last, side="right")) - 1
        if last >= begin and (not words or word > words[-1]):
            words.append(word)
            firsts.append(token)
    return np.asarray(words, dtype=np.int64), np.asarray(firsts, dtype=np.int64)


def cuts(length: int, firsts: Ids, room: int | None) -> Iterator[tuple[int, int]]:
    """Split `length` tokens into pieces of at most `room` tokens, at word boundaries unless a word is longer."""
    begin = 0
    while begin < length:
        stop = length if room is None else min(length, begin + room)
        if stop < length:
            before = firsts[(firsts > begin) & (firsts <= stop)]
            stop = int(before[-1]) if len(before) else stop
        yield begin, stop
        begin = stop
