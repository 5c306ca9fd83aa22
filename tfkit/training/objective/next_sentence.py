"""Masked language modelling with next sentence prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from tfkit.core.component import Problem
from tfkit.core.errors import DataError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.loss import cross_entropy
from tfkit.models import Model
from tfkit.training.baseline import Baseline
from tfkit.training.objective.base import Loss, finished, token_loss
from tfkit.training.objective.masked_lm import MaskedLm, MaskedRows
from tfkit.training.objective.reading import cut_pair, head_of, inputs_of
from tfkit.training.objective.rows import Batch, Example, Item, mask_of, padded, wrapped

NEXT, OTHER = 0, 1  # BERT's class indices


class NextSentenceRows(MaskedRows):
    """Masked pairs of consecutive or random texts."""

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `first`, `second` (the next text) and `other` (a random text), without special tokens."""
        self.bind(tokenizer)
        found = self._encoded(examples, "text", tokenizer)
        texts = [text for text in found if len(text) and self.maskable[text].any()]
        self._left_out(len(found) - len(texts), len(found), "the text is empty, or has only unknown tokens")
        if len(texts) < 3:
            raise DataError(f"next_sentence requires at least three nonempty texts, got {len(texts)}")
        free = None if max_length is None else max(2, self._free(max_length))
        strangers = np.random.default_rng(len(texts)).integers(len(texts) - 2, size=len(texts) - 1)
        items: list[Item] = []
        for place, stranger in enumerate(strangers.tolist()):
            other = stranger if stranger < place else stranger + 2  # neither first nor second
            first = texts[place]
            item = {"first": first, "second": texts[place + 1], "other": texts[other]}
            items.append(item if free is None else _cut(item, free))
        return items

    def _free(self, longest: int) -> int:
        """Return the number of text tokens that a pair may have in a row of `longest` tokens."""
        free = longest - len(self._pair(np.zeros(0, np.int32), np.zeros(0, np.int32))[0])
        if free < 2:
            raise DataError(f"rows of {longest} tokens are too short for two texts; allow longer rows")
        return free

    def _pair(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Return the framed pair and its token types."""
        start, end = self.tokens.special.get("start"), self.tokens.special.get("end")
        before = wrapped(first, start, self.tokens.special.get("separator", end))
        after = wrapped(second, end=end)
        return np.concatenate((before, after)), np.repeat([0, 1], [len(before), len(after)]).astype(np.int32)

    def lengths(self, items: Sequence[Item]) -> np.ndarray[Any, Any]:
        """Return upper bounds of the row lengths, [items]."""
        extra = len(self._pair(np.zeros(0, np.int32), np.zeros(0, np.int32))[0])
        return np.asarray([extra + len(item["first"]) + max(len(item["second"]), len(item["other"])) for item in items])

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate masked `input_ids`, `token_type_ids`, and the classes `follows` [rows]."""
        classes = rng.integers(2, size=len(items))
        pairs = [
            self._pair(item["first"], item["second" if class_ == NEXT else "other"])
            for item, class_ in zip(items, classes, strict=True)
        ]
        ids, real = padded([row for row, _ in pairs], self.tokens.pad)
        types, _ = padded([kind for _, kind in pairs], 0)
        marked = np.zeros_like(types)
        marked[:, 0] = 1
        batch = self._hide(ids, real, rng)
        batch |= {"token_type_ids": torch.from_numpy(types), "marked": torch.from_numpy(marked)}
        batch["follows"] = torch.from_numpy(classes.astype(np.int64))
        return batch | mask_of(real)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Raise UsageError, because pairs cannot be packed."""
        raise UsageError("batches of next_sentence cannot be packed; set data.batch.pack: false")


@register("objective", "next_sentence")
class NextSentence(MaskedLm):
    """Loss = masked_lm - log p(next or random | both texts) (Devlin et al. 2018, arXiv 1810.04805).

    The corpus must consist of consecutive texts, such as sentences. In half of the pairs, the second text is random.
    Besides `head`, it trains the two-class classifier `heads.next_sentence`.
    """

    rows_type = NextSentenceRows
    gives = frozenset({"attention_mask", "token_type_ids", "global_attention_mask"})
    beside: ClassVar = {"next_sentence": ("classifier",)}
    capabilities = frozenset({"means"})  # no likelihood: a sum of two losses

    class Config(MaskedLm.Config):
        """Options of next_sentence."""

        def shortest(self, facts: RecipeFacts) -> int:
            ends = bool(facts.token("end"))
            return 2 + bool(facts.token("start")) + (bool(facts.token("separator")) or ends) + ends

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            head = facts.head("next_sentence")
            if head is not None and head.classes() == 1:
                text = "'next_sentence' has two classes: next sentence, and random sentence"
                yield Problem("num_classes", text, at="model.heads.next_sentence")
            if head is not None and head.has_independent_classes():
                text = "the classes of 'next_sentence' are exclusive; remove independent"
                yield Problem("independent", text, at="model.heads.next_sentence")

    def attach(self, model: Model) -> None:
        """Raise UsageError if the classifier has fewer than two classes."""
        classes = head_of(model, "next_sentence").output.out_features
        if classes < 2:
            raise UsageError(f"next_sentence has two classes, but model.heads.next_sentence has {classes}")

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute (mean cross-entropy of masked tokens + mean cross-entropy of pairs) * number of masked tokens."""
        real = batch.get("attention_mask")
        out = model(input_ids=batch["input_ids"], attention_mask=real, with_heads=False, **inputs_of(model, batch))
        total, count = token_loss(model, out.hidden, batch), len(batch["labels"])
        scores = model.heads["next_sentence"](out.hidden, real)
        total = total + cross_entropy(scores, batch["follows"]) * (count / len(scores))
        return finished(total, out.auxiliary_loss, count, training)

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return None, because the loss is a sum of two terms."""
        return None


def _cut(item: Item, free: int) -> Item:
    """Truncate the texts so that `first` fits in a row with either `second` or `other`."""
    first = min((cut_pair(item["first"], item[name], free)[0] for name in ("second", "other")), key=len)
    return {"first": first} | {name: item[name][: free - len(first)] for name in ("second", "other")}
