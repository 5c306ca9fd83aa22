"""The contracts outside the model can fail too: broken tokenizers, corpora, objectives, optimizers and the like."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tfkit.contracts.cases import MODEL
from tfkit.contracts.check import CHECKS
from tfkit.core.component import Component
from tfkit.core.errors import UsageError
from tfkit.core.options import PositiveInt, RecipePath
from tfkit.data.corpus import Corpus, Example
from tfkit.data.corpus.text_files import TextCorpus
from tfkit.data.tokenizer import Character, Tokenizer
from tfkit.generation.logits import LogitsRule
from tfkit.generation.rules import Rules
from tfkit.generation.search import Candidate, Search
from tfkit.generation.stop import StopRule, WrittenRow
from tfkit.generation.strategy import Greedy, Sample, Strategy
from tfkit.models import Model
from tfkit.training.adapter import Adaptation, Lora
from tfkit.training.callback import Callback, Ema, Record, Tensors, Training
from tfkit.training.metric import ExactMatch, LossMetric, Metric, Perplexity, TextMetric
from tfkit.training.objective import Batch, CausalLm, Item, Loss, Seq2Seq
from tfkit.training.objective.causal_lm import CausalRows
from tfkit.training.optimizer import AdamW, Optimizer
from tfkit.training.schedule import Constant

from .broken import Register, expect_found

COUNTER = count()

# --- tokenizers


class Wrapped(Character):
    """Fits a tokenizer of the class `kind`."""

    kind: ClassVar[type[Tokenizer]]

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        return self.kind.from_json(super().fit(texts).to_json())


class _Beyond(Tokenizer):
    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        return [[id_ + 100 for id_ in ids] for ids in super().encode_batch(texts, special)]


class Beyond(Wrapped):
    kind = _Beyond


class _LosesTheEnd(Tokenizer):
    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        return [ids if special else ids[:-1] for ids in super().encode_batch(texts, special)]


class LosesTheEnd(Wrapped):
    """Loses text."""

    kind = _LosesTheEnd


class _Together(Tokenizer):
    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        found = super().encode_batch(texts, special)
        longest = max(map(len, found))
        return [ids + [0] * (longest - len(ids)) for ids in found]


class PadsBatches(Wrapped):
    """Gives other ids in a batch."""

    kind = _Together


class _ReadsSpecial(Tokenizer):
    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        return super().encode_batch(texts, True)


class ReadsSpecial(Wrapped):
    kind = _ReadsSpecial


class Moody(Character):
    """Other ids at each fit."""

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        return super().fit([*texts, chr(0x400 + next(COUNTER))])


class FromNothing(Character):
    def fit(self, texts: Iterable[str]) -> Tokenizer:
        return super().fit([*texts, "abc"])


class _Backwards(Tokenizer):
    """Does in Python what its file does not know of."""

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        return super().encode_batch([text if special else text[::-1] for text in texts], special)

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids)[::-1]


class Backwards(Wrapped):
    kind = _Backwards


# --- corpora


class Unnamed(TextCorpus):
    """Other fields than it says."""

    def read(self) -> Iterator[Example]:
        for example in super().read():
            yield {"words": example["text"]}


class Shuffled(TextCorpus):
    def read(self) -> Iterator[Example]:
        examples = list(super().read())
        random.Random(next(COUNTER)).shuffle(examples)
        yield from examples


class Limitless(TextCorpus):
    def examples(self) -> list[Example]:
        return list(self.read())


class Optimist(Corpus):
    """Takes a missing file for an empty one."""

    class Config(Corpus.Config):
        file: RecipePath

    fields = ("text",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.file = Path(config.file)

    def read(self) -> Iterator[Example]:
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            yield {"text": line}


# --- objectives


class Sideways(CausalLm):
    reads: ClassVar = "sideways"


class BeyondTheVocabulary(CausalLm):
    class Beyond(CausalRows):
        def prepare(self, *arguments: Any) -> list[Item]:
            return [{name: ids + 1000 for name, ids in item.items()} for item in super().prepare(*arguments)]

    rows_type = Beyond


class OwnChance(CausalLm):
    """Draws from random numbers of its own."""

    class Drawn(CausalRows):
        def collate(self, items: Sequence[Item], rng: Any) -> Batch:
            batch = super().collate(items, rng)
            return batch | {"input_ids": batch["input_ids"] * 0 + next(COUNTER) % 7}

    rows_type = Drawn


class Restless(CausalLm):
    """Never the same loss twice."""

    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        found = super().loss(model, batch, training)
        return Loss(found.total + next(COUNTER), found.count)


class NoNumber(CausalLm):
    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        found = super().loss(model, batch, training)
        return Loss(found.total * float("nan"), found.count)


class ForgetsTheSource(Seq2Seq):
    """Trains a decoder only."""

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        hook = model.stack("encoder").register_forward_hook(lambda module, arguments, out: out.detach())
        try:
            return super().loss(model, batch, training)
        finally:
            hook.remove()


class OneVocabularyRows(Seq2Seq.rows_type):  # type: ignore[name-defined,misc]
    """Reads sources with the tokenizer of the targets."""

    def prepare(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int | None) -> list[Item]:
        items: list[Item] = super().prepare(examples, Tokenizer.from_json(tokenizer.to_json()), max_length)
        return items


class OneVocabulary(Seq2Seq):
    """Declares two vocabularies and has one."""

    rows_type = OneVocabularyRows


class Mean(CausalLm):
    """A mean where a sum is asked for."""

    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        found = super().loss(model, batch, training)
        return Loss(found.total / found.count, found.count)


class Unsegmented(CausalLm):
    """Packs texts that see one another."""

    class Config(CausalLm.Config):
        join: bool = False

    class Mixed(CausalRows):
        def collate_packed(self, *arguments: Any) -> Batch:
            batch = super().collate_packed(*arguments)
            del batch["segment_ids"]
            return batch

    rows_type = Mixed


class TakesAll(CausalLm):
    """Has nothing to say of examples that are empty."""

    class All(CausalRows):
        def _usable(self, items: list[Item], examples: int, why: str) -> list[Item]:
            return items

    rows_type = All


# --- optimizers


class Idle(AdamW):
    class Stands(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return self.Stands(model.parameters(), lr=lr)


class OwnRate(Optimizer):
    """Has a learning rate of its own after the schedule's."""

    class Stubborn(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                for group in self.param_groups:
                    for weight in group["params"]:
                        if weight.grad is not None:
                            weight -= 0.01 * weight.grad

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return self.Stubborn(model.parameters(), lr=lr)


class Thaws(AdamW):
    """Moves what is frozen."""

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        frozen = [weight for weight in model.parameters() if not weight.requires_grad]
        made = super().make(model, lr)
        made.register_step_post_hook(lambda *arguments: [weight.data.mul_(0.999) for weight in frozen] and None)
        return made


class DecaysAll(Optimizer):
    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)


class Forgetful(Optimizer):
    """Keeps its momentum where no state_dict finds it."""

    class Hidden(torch.optim.SGD):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.momentum: dict[int, Tensor] = {}

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                for group in self.param_groups:
                    for weight in group["params"]:
                        past = self.momentum.get(id(weight), torch.zeros_like(weight))
                        self.momentum[id(weight)] = past = 0.9 * past + weight.grad
                        weight -= group["lr"] * past

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return self.Hidden(model.parameters(), lr=lr)


# --- adapters


class StartsAnywhere(Lora):
    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        adaptation = super().attach(model, seed)
        for weight in adaptation.parameters():
            torch.nn.init.ones_(weight)
        return adaptation


class Registers(Lora):
    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        model.adapter = super().attach(model, seed)
        return model.adapter


class NeverLearns(Lora):
    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        adaptation = super().attach(model, seed)
        for module in model.modules():
            module._forward_hooks.clear()
        return adaptation


class Forgets(Lora):
    def attach(self, model: nn.Module, seed: int) -> Adaptation:
        adaptation = super().attach(model, seed)
        model.register_forward_hook(lambda *_: [pair.up.data.mul_(1.1) for pair in adaptation.low_ranks] and None)
        return adaptation


# --- callbacks


class Decays(Callback):
    def validation(self, training: Training, scores: Record) -> None:
        with torch.no_grad():
            next(training.model.parameters()).mul_(0.5)


class Draws(Callback):
    def step(self, training: Training, record: Record) -> None:
        torch.rand(1)


class Evaluates(Callback):
    def checkpoint(self, training: Training, path: Path) -> None:
        training.model.eval()


class Undeclared(Ema):
    capabilities = frozenset()


class Renamed(Ema):
    def weights(self) -> Tensors:
        return {f"model.{name}": value for name, value in self.average.items()}


class StartsAgain(Ema):
    def load(self, state: Tensors) -> None:
        pass


# --- schedules


class Falls(Constant):
    """Below 0."""

    def lr(self, step: int, total: int, d_model: int) -> float:
        return self.peak * (1 - 2 * step / total)


class Counts(Constant):
    """Counts its calls, which a resumed run has not made."""

    calls = 0

    def lr(self, step: int, total: int, d_model: int) -> float:
        self.calls += 1
        return self.peak / self.calls


# --- metrics


class ComparesSounds(TextMetric):
    compares: ClassVar = "sounds"


class ReadsAnything(ExactMatch):
    def from_loss(self, nats_per_target: float) -> float:
        return 0.0


class Errors(ExactMatch):
    """Counts what is wrong, and calls more of it better."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        return 100.0 - super().compare(outputs, references)


class FirstCounts(ExactMatch):
    """Depends on the order of the rows."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        pairs = zip(outputs, references, strict=True)
        return sum((output == reference) / (place + 1) for place, (output, reference) in enumerate(pairs))


class TakesNothing(Metric):
    reads: ClassVar = "text"

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        return float(sum(map(str.__eq__, outputs, references)))


class Inverted(Perplexity):
    higher_is_better: ClassVar = True


# --- logits and stop rules


class OneRow(LogitsRule):
    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits[0]


class Nowhere(LogitsRule):
    """Leaves no token to go on with."""

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return torch.full_like(logits, float("-inf"))


class InPlace(LogitsRule):
    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits.mul_(0.5)


class Averages(LogitsRule):
    """Lets rows see one another."""

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits - logits.mean(dim=0, keepdim=True)


class SecondCall(StopRule):
    """Counts its calls, whichever row they are for."""

    calls = 0

    def done(self, row: WrittenRow) -> bool:
        self.calls += 1
        return self.calls > 2


class Adds(StopRule):
    def done(self, row: WrittenRow) -> bool:
        return len(row.ids) > 3

    def cut_text(self, text: str) -> str:
        return f"{text}."


# --- strategies

Found = list[list[Candidate]]


class OnePrompt(Greedy):
    """Forgets all prompts but the first."""

    def search(self, search: Search) -> Found:
        return super().search(search)[:1]


class WorstFirst(Strategy):
    def search(self, search: Search) -> Found:
        return [[Candidate((), -1.0, -1.0), Candidate((), -0.5, -0.5)] for _ in search.prompts]


class Boundless(Greedy):
    """Writes more than there is room for."""

    def search(self, search: Search) -> Found:
        return super().search(replace(search, room=[limit + 1 for limit in search.room]))


class Lawless(Greedy):
    """Knows no rules."""

    def search(self, search: Search) -> Found:
        return super().search(replace(search, rules=Rules()))


class GoesOn(Greedy):
    """Knows no stop rules."""

    def search(self, search: Search) -> Found:
        return super().search(replace(search, rules=replace(search.rules, stop=())))


class Lucky(Sample):
    """Draws from random numbers that anybody may use."""

    def search(self, search: Search) -> Found:
        return super().search(replace(search, streams=[random.Random(random.random()) for _ in search.prompts]))


class OneStream(Sample):
    """Draws the numbers of all prompts from one stream."""

    def search(self, search: Search) -> Found:
        return super().search(replace(search, streams=[search.streams[0]] * len(search.prompts)))


class Remembers(Greedy):
    """Writes less where nothing is remembered."""

    def search(self, search: Search) -> Found:
        return super().search(search if search.use_cache else replace(search, room=[1] * len(search.room)))


class Trains(Greedy):
    def search(self, search: Search) -> Found:
        next(search.model.parameters()).mul_(1.01)
        return super().search(search)


class LeavesTraining(Greedy):
    def search(self, search: Search) -> Found:
        search.model.train()
        return super().search(search)


class SaysTwice(Greedy):
    """Tells each token twice."""

    def search(self, search: Search) -> Found:
        found = super().search(search)
        for row, candidates in enumerate(found):
            for token in candidates[0].ids:
                search.notify(row, token)
        return found


class RefusesAll(Greedy):
    def check(self, search: Search) -> None:
        raise UsageError("not today")


BROKEN: list[tuple[str, str, type[Component], str]] = [
    ("ids", "tokenizer", Beyond, "which the vocabulary of .* does not contain"),
    ("round_trip", "tokenizer", LosesTheEnd, "'the cat sees a small house' is decoded to 'the cat sees a small hous'"),
    ("batch", "tokenizer", PadsBatches, "has different ids in a batch and alone"),
    ("special_tokens", "tokenizer", ReadsSpecial, "the text '<pad>' is parsed as the special token for pad"),
    ("refit", "tokenizer", Moody, "two tokenizers fitted to the same texts differ"),
    ("no_text", "tokenizer", FromNothing, "fit accepts an empty corpus"),
    ("saved_tokenizer", "tokenizer", Backwards, "the loaded tokenizer yields different ids for"),
    ("fields", "corpus", Unnamed, "example 1 has words, not text"),
    ("repeatable", "corpus", Shuffled, "a second reading yields a different example number"),
    ("limit", "corpus", Limitless, "limit: 2 yields 24 examples, not the first two of 24"),
    ("missing_file", "corpus", Optimist, "a missing file as file is not reported"),
    ("says_what_it_reads", "objective", Sideways, "reads = 'sideways'; use one of causal, bidirectional"),
    ("items", "objective", BeyondTheVocabulary, "'text' of an item is empty or has ids outside the vocabulary"),
    ("batches", "objective", OwnChance, "the same items and seed yield a different batch"),
    ("loss", "objective", Restless, "two evaluations of one batch yield .* and"),
    ("loss", "objective", NoNumber, "the loss is nan"),
    ("vocabularies", "objective", OneVocabulary, "is not encoded with its own tokenizer"),
    ("loss_gradients", "objective", ForgetsTheSource, "the loss does not depend on encoder"),
    ("loss_rows", "objective", Mean, "the loss of . items is .* in a batch, but .* one by one"),
    ("packed_loss", "objective", Unsegmented, "the loss of . items is .* packed into a row, but .* one by one"),
    ("unusable", "objective", TakesAll, "only empty examples: no error"),
    ("step", "optimizer", Idle, "a step does not change .* which has a non-zero gradient"),
    ("learning_rate", "optimizer", OwnRate, "a step with learning rate 0 changes"),
    ("frozen", "optimizer", Thaws, "changes frozen weights"),
    ("decay", "optimizer", DecaysAll, "decays; norms and biases must not"),
    ("optimizer_state", "optimizer", Forgetful, "the optimizer state is incomplete"),
    ("unadapted", "adapter", StartsAnywhere, "the logits with an untrained adapter instead of none: off by"),
    ("unadapted", "adapter", Registers, "changes the names of the model's weights"),
    ("adapted", "adapter", NeverLearns, "element 0 of tensors does not require grad|the loss is"),
    ("merged", "adapter", Forgets, "the logits after merging instead of before"),
    ("observes", "callback", Decays, "validation changes decoder.embedding.tokens.weight"),
    ("observes", "callback", Draws, "step changes torch's RNG"),
    ("observes", "callback", Evaluates, "checkpoint changes the mode of"),
    ("averages", "callback", Undeclared, r"after start, weights\(\) is not None; declare capabilities"),
    (
        "averages",
        "callback",
        Renamed,
        "contains model.decoder.embedding.tokens.weight, .* which is not a parameter",
    ),
    ("callback_state", "callback", StartsAgain, "the state of a resumed callback differs"),
    ("rates", "schedule", Falls, "step 1 of 1 has the learning rate -"),
    ("pure", "schedule", Counts, "in a second call"),
    (
        "reads",
        "metric",
        ComparesSounds,
        "declares compares = 'sounds', which no objective declares; available: like",
    ),
    ("reads", "metric", ReadsAnything, "declares reads = 'text', but accepts the other kind of input"),
    ("perfect", "metric", Errors, "perfect outputs score 0, but 33.*, which is better, with 1 wrong"),
    ("order", "metric", FirstCounts, "the same pairs score"),
    ("pairs", "metric", TakesNothing, "2 outputs and 3 references score 2.0; raise a UsageError"),
    ("loss_order", "metric", Inverted, "better than"),
    ("logits", "logits", OneRow, r"logits of shape \[4, \d+\] become \[\d+\]"),
    ("logits", "logits", Nowhere, "row 0 allows no token"),
    ("in_place", "logits", InPlace, "modifies its input logits"),
    ("rows", "logits", Averages, "row 0 has different logits alone than in a batch"),
    ("done", "stop", SecondCall, "depends on earlier calls"),
    ("cut", "stop", Adds, "into 't.', which is not a prefix"),
    ("candidates", "strategy", OnePrompt, "returns candidates for 1 of 3 prompts"),
    ("candidates", "strategy", WorstFirst, r"the candidates' scores \[-1.0, -0.5\] are not in descending order"),
    ("candidates", "strategy", Boundless, "generates 5 tokens; the limit is 4"),
    (
        "candidates",
        "strategy",
        RefusesAll,
        "supports neither a decoder nor an encoder-decoder: not today; not today",
    ),
    ("ruled", "strategy", Lawless, "which a logits rule excludes"),
    ("ruled", "strategy", GoesOn, "tokens, although a stop rule ends the text after 2"),
    ("seeded", "strategy", Lucky, "two searches with the same seed find different texts"),
    ("beside", "strategy", OneStream, "prompt . has different texts alone than with 2 others"),
    ("stateless", "strategy", Remembers, "finds different texts without a decode state"),
    ("untouched", "strategy", Trains, "changes the model's weights: "),
    ("untouched", "strategy", LeavesTraining, "leaves the model in training mode"),
    ("told", "strategy", SaysTwice, "for prompt 0, the listener receives"),
]


@pytest.mark.parametrize(
    ("check", "slot", "part", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_part_that_breaks_its_contract_is_found(
    register: Register, check: str, slot: str, part: type[Component], message: str
) -> None:
    expect_found(register(slot, part), check, message)


def test_every_contract_outside_the_model_has_a_part_that_breaks_it() -> None:
    concerned = {name for name, check in CHECKS.items() if not set(check.slots) & set(MODEL)}
    assert concerned == {check for check, *_ in BROKEN}


class NeedsMore(LossMetric):
    class Config(LossMetric.Config):
        num_wonders: PositiveInt


class RefusesIt(NeedsMore):
    example = {"num_wonders": 0}


class Unready(TextMetric):
    """Asks for what is not there."""

    def __init__(self, config: Any) -> None:
        raise FileNotFoundError("wonders.txt")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (NeedsMore, "needs the option 'num_wonders'"),
        (RefusesIt, "the options are rejected: .*num_wonders"),
        (Unready, r"raises FileNotFoundError: wonders.txt \(test_broken_others.py:\d+, in __init__\)"),
    ],
)
def test_a_part_that_is_never_built_is_told(register: Register, part: type[Component], message: str) -> None:
    expect_found(register("metric", part), "built", message.replace(".*", r"[\s\S]*"))
