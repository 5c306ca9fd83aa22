"""Pre-training with pairs and replaced tokens: next sentence prediction, replaced token detection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from tfkit.core.component import Problem
from tfkit.core.errors import DataError, RecipeError, UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import NonNegativeFloat
from tfkit.core.registry import register
from tfkit.data.batches import by_length
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.loss import cross_entropy
from tfkit.functional.view import wide
from tfkit.models import Model, build_model
from tfkit.recipe.model import blueprint_of
from tfkit.training.objective.base import Answers, Loss, Prediction, finished, token_loss
from tfkit.training.objective.baseline import Baseline
from tfkit.training.objective.masked_lm import MaskedLm, MaskedRows
from tfkit.training.objective.reading import cut_pair, head_of, inputs_of
from tfkit.training.objective.rows import Batch, Example, Item, Rows, mask_of, padded, wrapped

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


class ReplacedRows(MaskedRows):
    """Rows of masked_lm, with the original tokens and random numbers for sampling replacements."""

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate as masked_lm, adding `original` ids, the mask `real`, and uniform `draws` for the masked tokens."""
        batch = super().collate(items, rng)
        ids, real = padded([item["text"] for item in items], self.tokens.pad)
        batch |= {"original": torch.from_numpy(ids), "real": torch.from_numpy(real)}
        batch["draws"] = torch.from_numpy(rng.random(len(batch["labels"])))
        return batch

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        return Rows.collate_packed(self, rows, length, rng)


class Replacements(Answers):
    """Probability that each token of a text was replaced."""

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return the `tokens` of each text, and in `replaced` the probability that each was replaced."""
        rows = [self.rows.prompt(ids) for ids in tokenizer.encode_batch([example["text"] for example in examples])]
        longest = model.blueprint.last.max_length
        rows = [row[:longest] or [self.rows.tokens.pad] for row in rows]
        predictions: list[Prediction] = [{}] * len(rows)
        device = next(model.parameters()).device
        with torch.inference_mode():
            for together in by_length([len(row) for row in rows], device.type):
                ids, real = padded([np.asarray(rows[row], dtype=np.int32) for row in together], self.rows.tokens.pad)
                mask = None if real.all() else torch.from_numpy(real).to(device)
                logits = model(input_ids=torch.from_numpy(ids).to(device), attention_mask=mask).logits
                for row, probabilities in zip(together, wide(logits).sigmoid().tolist(), strict=True):
                    tokens = [tokenizer.readable_token(id_) for id_ in rows[row]]
                    replaced = probabilities[: len(tokens)]
                    predictions[row] = {"text": examples[row]["text"], "tokens": tokens, "replaced": replaced}
        return predictions


@register("objective", "replaced_token")
class ReplacedToken(MaskedLm):
    """Loss = weight * -log p(replaced or not) of every token + the generator's masked_lm loss (Clark et al. 2020).

    The generator is a separate masked language model, written as a `model:` without vocab_size. It samples tokens for
    masked positions, and the trained model's discriminator head detects them. arXiv 2003.10555 (ELECTRA).
    """

    rows_type = ReplacedRows
    answers_type = Replacements
    heads = ("discriminator",)
    capabilities = frozenset({"means", "own_model", "shards"})  # no likelihood: a sum of two losses
    example: ClassVar = {
        "generator": {
            "type": "encoder",
            "d_model": 16,
            "num_layers": 1,
            "embedding": "tokens",
            "position": "sinusoidal",
            "layer": {
                "norm": "layer_norm",
                "attention": {"type": "multi_head", "num_heads": 2},
                "feedforward": {"type": "mlp", "d_ff": 16},
            },
            "head": {"type": "masked_lm", "tied": True},
        }
    }

    class Config(MaskedLm.Config):
        mask_share: float = Field(
            1.0, ge=0, le=1, description="fraction of the chosen tokens replaced by the mask token"
        )
        random_share: float = Field(
            0.0, ge=0, le=1, description="fraction of the chosen tokens replaced by a random token"
        )
        generator: dict[str, Any] = Field(
            description="`model:` of a smaller encoder with a masked_lm head, without vocab_size"
        )
        weight: NonNegativeFloat = Field(50.0, description="factor of the discriminator's loss")
        shared: bool = Field(True, description="share the token table between generator and model")

        @field_validator("generator")
        @classmethod
        def _right(cls, model: dict[str, Any]) -> dict[str, Any]:
            if "vocab_size" in model:
                raise ValueError("the generator uses the model's vocab_size; remove it")
            try:
                found = blueprint_of({**model, "vocab_size": 8})
            except RecipeError as error:
                raise ValueError(
                    "; ".join(f"{fault.path.removeprefix('model.')}: {fault.message}" for fault in error.faults)
                ) from None
            if found.decoder is not None or found.head is None or not hasattr(found.head.part, "loss"):
                raise ValueError("a generator must be a model of type encoder with a masked_lm head")
            if found.last.reads_vectors:
                raise ValueError("embedding: a generator reads token ids; use tokens")
            return model

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            plan = blueprint_of({**self.generator, "vocab_size": 8}).last
            for lacking in plan.without("padding"):
                yield Problem("generator", f"{lacking} cannot mask padding, which 'replaced_token' requires")
            for name in sorted(plan.needs):
                yield Problem("generator", f"'replaced_token' does not provide {name}, which the generator requires")
            if facts.blueprint is None:
                return
            most, own = plan.max_length, facts.blueprint.encoder
            if facts.reads_data and most is not None and (facts.longest is None or facts.longest.tokens > most):
                text = f"the generator accepts at most {most} tokens, but texts may be longer"
                yield Problem("generator.max_length", f"{text}; raise it to the model's, or set data.batch.length")
            if self.shared and own is not None and own.table_width not in (None, plan.table_width):
                text = f"the generator's token table is {plan.table_width} wide, the model's {own.table_width}"
                advice = f"set d_embedding: {own.table_width} in the generator's embedding, or shared: false"
                yield Problem("generator", f"{text}; {advice}")

    config: Config

    def attach(self, model: Model) -> None:
        """Build the generator. Raise UsageError if it cannot share the model's token table."""
        vocab_size = model.blueprint.last.vocab_size
        blueprint = blueprint_of({**self.config.generator, "vocab_size": vocab_size})
        parameter = next(model.parameters())
        if parameter.device.type == "meta":
            return
        generator = build_model(blueprint, device=parameter.device, dtype=parameter.dtype, seed=1)
        if self.config.shared:
            _share(generator, model)
        generator.train(model.training)
        self.module = generator

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Return the weighted discriminator loss per real token plus the generator loss per masked token."""
        if self.module is None:
            self.attach(model)
        generator: Any = self.module
        generator.train(model.training)
        mask = batch.get("attention_mask")
        guessed = generator(input_ids=batch["input_ids"], attention_mask=mask, with_heads=False)
        of_generator = token_loss(generator, guessed.hidden, batch) / max(1, len(batch["labels"]))
        with torch.no_grad():
            ids = self._replaced(generator, guessed.hidden, batch)
        out = model(input_ids=ids, attention_mask=mask, with_heads=False)
        logits = wide(head_of(model, None)(out.hidden, mask)[batch["real"]])  # [n], real tokens
        wrong = (ids != batch["original"])[batch["real"]]  # [n]
        of_model = F.binary_cross_entropy_with_logits(logits, wrong.to(logits.dtype))
        count = int(batch["real"].sum())
        total = (self.config.weight * of_model + of_generator) * count
        auxiliary = [one.auxiliary_loss for one in (guessed, out) if one.auxiliary_loss is not None]
        return Loss(total + sum(auxiliary) * count if training and auxiliary else total, count)

    def _replaced(self, generator: Any, hidden: Tensor, batch: Batch) -> Tensor:
        """Return the original ids with samples of the generator at masked positions."""
        features = hidden.flatten(0, 1)[batch["predicted"]]  # [m d_model]
        totals = wide(generator.head(features)).softmax(-1).cumsum(-1)  # [m vocab_size]
        points = batch["draws"][:, None].to(totals.dtype) * totals[:, -1:]
        drawn = torch.searchsorted(totals, points).clamp(max=totals.shape[-1] - 1)
        ids = batch["original"].clone().flatten()
        ids[batch["predicted"]] = drawn[:, 0]
        return ids.view_as(batch["original"])

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return None, because the loss is a sum of two terms."""
        return None


def _share(generator: nn.Module, model: Model) -> None:
    """Tie the generator's token embeddings to the model's. Raise UsageError if widths differ."""
    own: Any = generator.stack("encoder").embedding.tokens  # type: ignore[operator]
    embedding: Any = model.stack("encoder").embedding
    table = embedding.tokens.weight
    if own.weight.shape != table.shape:
        raise UsageError(
            f"replaced_token: the generator's token table is {own.weight.shape[1]} wide, the model's "
            f"{table.shape[1]}; set d_embedding: {table.shape[1]} in the generator's embedding, or shared: false"
        )
    before = own.weight
    for module in generator.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is before:
                setattr(module, name, table)
