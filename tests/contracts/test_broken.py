"""Each contract can fail: parts that break one, registered for the length of a test, are found and the fault told."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from pydantic import field_validator
from torch import Tensor, nn

from tfkit.components.activation import Activation
from tfkit.components.attention import KeyValueState, MultiHead
from tfkit.components.embedding import Tokens
from tfkit.components.feedforward import MLP
from tfkit.components.head import LanguageModel
from tfkit.components.init import Init
from tfkit.components.mask import Mask
from tfkit.components.mixer import LSTM
from tfkit.components.norm import Norm
from tfkit.components.residual import PreNorm
from tfkit.contracts.check import CHECKS
from tfkit.core.component import Component
from tfkit.core.context import Collector, Context, Placement, Visibility
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.options import RecipePath, Width
from tfkit.data.corpus import Corpus, Example
from tfkit.data.corpus.text_files import TextCorpus
from tfkit.data.tokenizer import Character, Tokenizer
from tfkit.generation.logits import LogitsRule
from tfkit.generation.rules import Rules
from tfkit.generation.search import Candidate
from tfkit.generation.stop import StopRule
from tfkit.generation.strategy import Greedy, Sample, Strategy
from tfkit.models.single import EncoderDecoder
from tfkit.training.adapter import Adaptation, Lora
from tfkit.training.callback import Callback, Ema
from tfkit.training.metric import ExactMatch, Metric, Perplexity, TextMetric
from tfkit.training.objective import CausalLm, Loss, Seq2Seq
from tfkit.training.objective.completion import CausalRows
from tfkit.training.optimizer import AdamW, Optimizer
from tfkit.training.schedule import Constant

from ..sampling import some_rows
from .broken import Register, but, expect_found, failing

COUNTER = count()
HERE = r"\(broken.py:\d+, in failing\)"
WORST_FIRST = [Candidate((), -1.0, -1.0), Candidate((), -0.5, -0.5)]


# --- what takes more than an expression


class Idle(MLP):
    """A parameter that changes nothing."""

    def __init__(self, config: Any, shape: Any) -> None:
        super().__init__(config, shape)
        self.spare = nn.Parameter(torch.ones(3))


class OtherOnMeta(Idle):
    def __init__(self, config: Any, shape: Any) -> None:
        super().__init__(config, shape)
        if not self.up.weight.is_meta:
            del self.spare


class Unpicklable(MLP):
    def __init__(self, config: Any, shape: Any) -> None:
        super().__init__(config, shape)
        self.function = lambda x: x


class Seedless(MLP):
    def __init__(self, config: Any, shape: Any) -> None:
        super().__init__(config, shape)
        generator = torch.Generator()
        generator.seed()
        self.weight = nn.Parameter(torch.rand(shape.d_model, generator=generator))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) * self.weight


class Reads(MLP):
    """Decides by a value: a graph break, and impossible on meta and in an export."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) if x.sum().item() > 0 else super().forward(2 * x, context)


class Doubling(MLP):
    class Config(MLP.Config):
        d_ff: Width

        @field_validator("d_ff")
        @classmethod
        def _twice(cls, value: int) -> int:
            return 2 * value


class OnlyItself(MultiHead):
    """Other results in a view of the class, which generation computes with."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) if type(self) is OnlyItself else x


class FirstTokens(Mask):
    """Opens the first tokens to all that follow: none sees the future."""

    opens = True
    needs = frozenset({"prefix_length"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        assert inputs.prefix_length is not None
        return (key < inputs.prefix_length[:, None, None]) & (key <= query)


class Deaf(Placement):
    """Positions that an attention does not hear."""

    turned = 0

    def rotation(self, dim: int, of_keys: bool = False) -> Any | None:
        """Only what is turned first is turned."""
        rotate = super().rotation(dim, of_keys)

        def turn(x: Tensor) -> Tensor:
            self.turned += 1
            return rotate(x) if self.turned == 1 else x

        return None if rotate is None else turn


def deaf_to(name: str) -> Any:
    """An attention that ignores one thing that positions say."""
    kind = type("Muted", (Placement,), {name: lambda *_: None}) if name else Deaf

    def forward(old: Any, x: Tensor, context: Context) -> Tensor:
        heard = context.position
        return old(x, replace(context, position=kind(heard.parts, heard.query, heard.key)))

    return but(MultiHead, forward=forward)


def warm_in_single(old: Any, x: Tensor, context: Context) -> Tensor:
    warmth = context.position.temperature()
    muted = Placement((), context.position.query, context.position.key)
    return old(x, context) if warmth is None else old(x, replace(context, position=muted)) * warmth[:, :, None]


def unmasked(old: Any, x: Tensor, context: Context) -> Tensor:
    """Only the triangle of all mask rules."""
    rules = [rule for rule in context.mask.rules if getattr(rule, "triangle", False)]
    mask = Visibility(rules, context.mask.span, real=context.mask.real, segments=context.mask.segments)
    return old(x, replace(context, mask=mask))


def blind_rows(old: Any, x: Tensor, context: Context) -> Tensor:
    visible = context.mask.dense()
    blind = 0.0 if visible is None else torch.where(visible.any(-1, keepdim=True), 0.0, float("nan"))
    return old(x, context) + torch.as_tensor(blind).to(x.dtype)


def shows_scores(old: Any, x: Tensor, context: Context) -> Tensor:
    collector = Collector(context.collector.watch)
    out = old(x, replace(context, collector=collector))
    for weights in collector.observed.get("attention", []):
        context.collector.observe("attention", 2 * weights)
    return out


def open_memory(old: Any, x: Tensor, context: Context) -> Tensor:
    open_ = replace(context, mask=Visibility((), context.mask.span))
    return old(x, context if context.source is None else open_)


def one_source(old: Any, x: Tensor, context: Context) -> Tensor:
    source = context.source
    return old(x, context if source is None else replace(context, source=source[:, :1].expand_as(source)))


def encodes_again(old: Any, *arguments: Any, **more: Any) -> Any:
    if more.get("state") is not None:
        more["state"].memory = None
    return old(*arguments, **more)


def cumulative(old: Any, x: Tensor, context: Context) -> Tensor:
    """Causal, and without padding, segments or a decode state."""
    return old(x.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None], context)


class Backwards(Tokenizer):
    """Does in Python what its file does not have."""

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        return super().encode_batch([text if special else text[::-1] for text in texts], special)

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids)[::-1]


def fits(kind: Any = None, **changes: Any) -> Any:
    """A tokenizer part that fits another class of tokenizers."""
    kind = kind or but(Tokenizer, **changes)
    return but(Character, fit=lambda old, texts: kind.from_json(old(texts).to_json()))


def pads(old: Any, texts: Sequence[str], special: bool = False) -> list[list[int]]:
    found = old(texts, special)
    return [ids + [0] * (max(map(len, found)) - len(ids)) for ids in found]


def shuffled(old: Any) -> list[Example]:
    examples = list(old())
    random.Random(next(COUNTER)).shuffle(examples)
    return examples


class Optimist(Corpus):
    """Takes a missing file for an empty one."""

    class Config(Corpus.Config):
        file: RecipePath

    fields = ("text",)

    def read(self) -> Iterator[Example]:
        file = Path(self.config.file)
        yield from ({"text": line} for line in (file.read_text().splitlines() if file.exists() else ()))


def loss(change: Any) -> Any:
    """An objective with another loss."""
    return but(CausalLm, loss=lambda old, *given, **more: change(old(*given, **more)))


def forgets_the_source(old: Any, model: Any, *given: Any, **more: Any) -> Loss:
    hook = model.stack("encoder").register_forward_hook(lambda module, arguments, out: out.detach())
    try:
        return old(model, *given, **more)
    finally:
        hook.remove()


def rows(base: type[Any] = CausalLm, rows_type: type[Any] = CausalRows, **changes: Any) -> Any:
    """An objective with other rows."""
    return but(base, rows_type=but(rows_type, **changes))


class Unsegmented(CausalLm):
    """Packs texts that see one another."""

    class Config(CausalLm.Config):
        join: bool = False

    rows_type = but(
        CausalRows, collate_packed=lambda old, *given: {k: v for k, v in old(*given).items() if k != "segment_ids"}
    )


class Stubborn(torch.optim.SGD):
    """A learning rate of its own."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data -= 0.01 * (0 if weight.grad is None else weight.grad)


def grown(old: Any, training: Any, _: object) -> None:
    """Multiply a weight by the number of calls, which no state has."""
    old.__self__.calls += 1
    next(training.model.parameters()).mul_(old.__self__.calls)


class Hidden(torch.optim.SGD):
    """Momentum that no state_dict has."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        momentum = self.__dict__.setdefault("momentum", {})
        for group in self.param_groups:
            for weight in group["params"]:
                momentum[weight] = 0.9 * momentum.get(weight, 0) + weight.grad
                weight.data -= group["lr"] * momentum[weight]


def thaws(old: Any, model: nn.Module, lr: float) -> Any:
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    made = old(model, lr)
    made.register_step_post_hook(lambda *_: [weight.data.mul_(0.999) for weight in frozen] and None)
    return made


def steps(kind: type[Any], **options: Any) -> Any:
    return but(Optimizer, make=lambda old, model, lr: kind(model.parameters(), lr=lr, **options))


def attaches(change: Any) -> Any:
    """An adapter of which something is changed after it was attached."""

    def attach(old: Any, model: nn.Module, seed: int) -> Adaptation:
        adaptation: Adaptation = old(model, seed)
        change(model, adaptation)
        return adaptation

    return but(Lora, attach=attach)


def grows(model: nn.Module, adaptation: Any) -> None:
    model.register_forward_hook(lambda *_: [pair.up.data.mul_(1.1) for pair in adaptation.low_ranks] and None)


def counted(name: str, answer: Any) -> dict[str, Any]:
    """A method whose answer depends on how often it was called."""

    def call(old: Any, *_: Any) -> Any:
        old.__self__.calls += 1
        return answer(old.__self__.calls)

    return {"calls": 0, name: call}


def searches(base: type[Any] = Greedy, **changes: Any) -> Any:
    """A strategy that searches something else."""

    def search(old: Any, search: Any) -> Any:
        return old(replace(search, **{name: change(search) for name, change in changes.items()}))

    return but(base, search=search)


def twice(old: Any, search: Any) -> Any:
    found = old(search)
    for row, candidates in enumerate(found):
        for token in candidates[0].ids:
            search.notify(row, token)
    return found


def keeps(**changes: Any) -> Any:
    """An attention with another decode state."""
    return but(MultiHead, new_state=lambda old: but(KeyValueState, **changes)())


class Wide(MLP):
    class Config(MLP.Config):
        num_wonders: int


# slot, base and method -> check, the changed method or another class, message
BROKEN: dict[tuple[str, Any, str], list[tuple[str, Any, str]]] = {
    ("model", EncoderDecoder, "forward"): [("encoder_runs_once", encodes_again, "the encoder ran 4 times")],
    ("residual", PreNorm, "forward"): [
        ("shapes", lambda old, *given: old(*given)[:, :1], r"maps \[3, 7, 16\] to \[3, 1, 16\]")
    ],
    ("activation", Activation, "forward"): [
        ("built", but(Activation, __init__=failing(KeyError("width"))), f"raises KeyError: 'width' {HERE}"),
        ("built", Component, r"the class does not extend Activation \(of tfkit.components.activation\)"),
        ("shapes", failing(RuntimeError("not today")), f"raises RuntimeError: not today {HERE}"),
        ("shapes", lambda old, x: None, r"the part maps \[3, 7, 24\] to NoneType"),
        ("shapes", failing(SystemExit(3)), "raises SystemExit: 3"),
        ("determinism", lambda old, x: x + 0.1 * torch.rand_like(x), "differs between two calls"),
        ("precision", lambda old, x: (x.tanh() + 1e6) - 1e6, "in float32 instead of float64"),
        ("precision", lambda old, x: x.float().tanh().to(x.dtype), "aten._to_copy.default uses float32"),
    ],
    ("norm", Norm, "forward"): [
        ("shapes", lambda old, x: x.float() * 0.5, "torch.float32 for weights in torch.float64|raises"),
        ("padding", lambda old, x: x / (x.pow(2).mean(dim=0, keepdim=True) + 1e-5).sqrt(), "a batch instead of alone"),
    ],
    ("head", LanguageModel, "finish"): [
        ("coordinates", lambda old, logits: logits * old.__self__.shape.d_model / 16, "at 8 times the width"),
    ],
    ("feedforward", MLP, "forward"): [
        ("built", Wide, "needs the option 'num_wonders'.* example = {'num_wonders': ...}"),
        ("built", but(Wide, example={"num_wonder": 3}), "num_wonder: unknown option|num_wonders"),
        ("built", but(Wide, example="num_wonders"), "example = 'num_wonders': expected a mapping"),
        ("config", Doubling, "is parsed as"),
        ("gradients", Idle, "feedforward.spare has no gradient"),
        ("gradients", but(MLP, inert=frozenset({"up.bias"})), "up.bias is declared inert, but it changes the output"),
        ("future", lambda old, x, context: old(x + x.mean(dim=1, keepdim=True), context), "which is in the future"),
        ("future", lambda old, x, context: old(x + x.roll(-1, dims=1), context), "a token before 1 depends on token 1"),
        ("padding", cumulative, "padded on the left"),
        ("packing", cumulative, "of segment 2 in a packed row"),
        ("cache", cumulative, "decoded in steps of"),
        ("seed", Seedless, "feedforward.weight differs between two models with the same seed"),
        ("copies", Unpicklable, r"a model cannot be pickled: .*Unpicklable\.__init__\.<locals>\.<lambda>"),
        ("saving", OtherOnMeta, "a model on meta has different weights: decoder.layers.0.feedforward.spare"),
        ("meta", Reads, "raises RuntimeError"),
        (
            "dropout",
            lambda old, *given: old(*given) * (1 - old.__self__.dropout.rate * old.__self__.training),
            "the mean with dropout is off",
        ),
        (
            "dropout",
            but(MLP, __init__=lambda old, *given: (old(*given), setattr(old.__self__, "dropout", nn.Identity()))),
            "return equal outputs",
        ),
        ("compile", Reads, r"declares 'compile', but the graph breaks: .*\(test_broken.py:\d+, in forward\)"),
        ("export", Reads, "declares 'export', but it cannot be exported"),
    ],
    ("embedding", Tokens, "forward"): [
        (
            "dropout",
            lambda old, *given: nn.functional.dropout(old(*given), old.__self__.config.dropout),
            "in eval mode, with dropout|differs",
        )
    ],
    ("mask", Mask, "visible"): [
        (
            "visibility",
            but(Mask, hides_future=True, triangle=True, visible=lambda old, query, key, inputs: key == query),
            "which the mask hides",
        ),
        ("openings", FirstTokens, "it reveals no later token of 6"),
    ],
    ("init", Init, "linear"): [
        (
            "initial",
            but(Init, embedding=lambda old, weight: weight.zero_(), linear=lambda old, weight: weight.zero_()),
            "is constant",
        )
    ],
    ("mixer", LSTM, "forward"): [
        ("cache", but(LSTM, capabilities=LSTM.capabilities | {"rewind"}), "but the state refuses to rewind")
    ],
    ("attention", MultiHead, "forward"): [
        ("precision", OnlyItself, "with the copies of generation instead of float64: off by"),
        ("masks", unmasked, "declares 'masks', but token . sees token 0, which a window mask hides"),
        ("padding", blind_rows, "is not finite"),
        ("few", blind_rows, "is not finite"),
        ("source_padding", open_memory, "of a source padded on the right"),
        ("cache", keeps(rewind=lambda *_: None), "after a rewind|raises"),
        ("cache", keeps(keep_last=lambda old, count: old(count + 2)), "beyond a window|raises"),
        ("reorder", keeps(reorder=lambda *_: None), r"after reordering the rows to \[2, 0, 0, 1\]|raises"),
        ("rotation", deaf_to("rotation"), "declares 'rotation', but a rotary position has no effect"),
        ("rotation", deaf_to(""), "does not depend only on relative positions"),
        ("bias", deaf_to("bias"), "declares 'bias', but an ALiBi position has no effect"),
        ("temperature", deaf_to("temperature"), "declares 'temperature', but a temperature has no effect"),
        ("temperature", warm_in_single, "converts bfloat16 to torch.float32"),
        ("cross_attention", one_source, "does not depend on token 1 of the memory"),
        ("weights", lambda old, x, context: old(x, replace(context, collector=Collector())), "receives no tensors"),
        ("weights", shows_scores, "the sum of a row is off by 1"),
    ],
    ("tokenizer", Character, "fit"): [
        (
            "ids",
            fits(encode_batch=lambda old, *given, **more: [[id_ + 100 for id_ in ids] for ids in old(*given, **more)]),
            "which the vocabulary of .* does not contain",
        ),
        (
            "round_trip",
            fits(
                encode_batch=lambda old, texts, special=False: [
                    ids if special else ids[:-1] for ids in old(texts, special)
                ]
            ),
            "'the cat sees a small house' is decoded to 'the cat sees a small hous'",
        ),
        ("batch", fits(encode_batch=pads), "has different ids in a batch and alone"),
        ("special_tokens", fits(encode_batch=lambda old, texts, special=False: old(texts, True)), "the special token"),
        ("refit", lambda old, texts: old([*texts, chr(0x400 + next(COUNTER))]), "fitted to the same texts differ"),
        ("no_text", lambda old, texts: old([*texts, "abc"]), "fit accepts an empty corpus"),
        ("saved_tokenizer", fits(Backwards), "the loaded tokenizer yields different ids for"),
    ],
    ("corpus", TextCorpus, "read"): [
        ("fields", lambda old: ({"words": one["text"]} for one in old()), "example 1 has words, not text"),
        ("repeatable", shuffled, "a second reading yields a different example number"),
        ("limit", but(TextCorpus, examples=lambda old: list(old.__self__.read())), "limit: 2 yields 24 examples"),
        ("missing_file", Optimist, "a missing file as file is not reported"),
    ],
    ("objective", CausalLm, "loss"): [
        ("says_what_it_reads", but(CausalLm, reads="sideways"), "reads = 'sideways'; use one of causal"),
        (
            "items",
            rows(
                prepare=lambda old, *given: [{name: ids + 1000 for name, ids in item.items()} for item in old(*given)]
            ),
            "'text' of an item is empty or has ids outside the vocabulary",
        ),
        (
            "batches",
            rows(
                collate=lambda old, *given: (
                    (batch := old(*given)) | {"input_ids": batch["input_ids"] * 0 + next(COUNTER) % 7}
                )
            ),
            "the same items and seed yield a different batch",
        ),
        ("loss", loss(lambda found: Loss(found.total + next(COUNTER), found.count)), "evaluations of one batch yield"),
        ("loss", loss(lambda found: Loss(found.total * float("nan"), found.count)), "the loss is nan"),
        (
            "vocabularies",
            rows(
                Seq2Seq,
                Seq2Seq.rows_type,
                prepare=lambda old, examples, tokenizer, longest: old(
                    examples, Tokenizer.from_json(tokenizer.to_json()), longest
                ),
            ),
            "is not encoded with its own tokenizer",
        ),
        ("loss_gradients", but(Seq2Seq, loss=forgets_the_source), "the loss does not depend on encoder"),
        ("loss_rows", loss(lambda found: Loss(found.total / found.count, found.count)), "a batch, but .* one by one"),
        ("packed_loss", Unsegmented, "the loss of . items is .* packed into a row, but .* one by one"),
        ("unusable", rows(_usable=lambda old, items, *_: items), "only empty examples: no error"),
    ],
    ("optimizer", AdamW, "make"): [
        ("step", steps(but(torch.optim.SGD, step=lambda *_: None)), "does not change .* a non-zero gradient"),
        ("learning_rate", steps(Stubborn), "a step with learning rate 0 changes"),
        ("frozen", thaws, "changes frozen weights"),
        ("decay", steps(torch.optim.AdamW, weight_decay=0.1), "decays; norms and biases must not"),
        ("optimizer_state", steps(Hidden), "the optimizer state is incomplete"),
    ],
    ("adapter", Lora, "attach"): [
        (
            "unadapted",
            attaches(lambda model, made: [nn.init.ones_(weight) for weight in made.parameters()]),
            "with an untrained adapter instead of none",
        ),
        ("unadapted", attaches(lambda model, made: setattr(model, "adapter", made)), "changes the names of"),
        (
            "adapted",
            attaches(lambda model, made: [one._forward_hooks.clear() for one in model.modules()]),
            "does not require grad|the loss is",
        ),
        ("merged", attaches(grows), "the logits after merging instead of before"),
    ],
    ("callback", Callback, "validation"): [
        (
            "observes",
            lambda old, training, _: next(training.model.parameters()).data.mul_(0.5),
            "validation changes decoder.embedding",
        ),
        ("observes", but(Callback, step=lambda *_: torch.rand(1)), "step changes torch's RNG"),
        ("observes", but(Callback, checkpoint=lambda old, training, path: training.model.eval()), "the mode of"),
        ("averages", but(Ema, capabilities=frozenset()), r"after start, weights\(\) is not None; declare"),
        (
            "averages",
            but(Ema, weights=lambda old: {f"model.{name}": value for name, value in old.__self__.average.items()}),
            "model.decoder.* is not a parameter",
        ),
        ("callback_state", but(Ema, load=lambda *_: None), "the state of a resumed callback differs"),
        ("callback_state", but(Callback, changes_weights=True, step=grown, calls=0), "changes decoder.* differently"),
    ],
    ("schedule", Constant, "lr"): [
        (
            "rates",
            lambda old, step, total, _: old.__self__.config.lr * (1 - 2 * step / total),
            "1 has the learning rate -",
        ),
        ("pure", but(Constant, **counted("lr", lambda calls: 0.1 / calls)), "in a second call"),
    ],
    ("metric", ExactMatch, "compare"): [
        ("built", but(ExactMatch, example={"bogus": 1}), r"the options are rejected: [\s\S]*bogus"),
        ("built", but(TextMetric, __init__=failing(FileNotFoundError("wonders.txt"))), f"wonders.txt {HERE}"),
        ("reads", but(TextMetric, compares="sounds"), "'sounds', which no objective declares; available: like"),
        ("reads", but(ExactMatch, from_loss=lambda *_: 0.0), "accepts the other kind of input"),
        ("perfect", lambda old, *given: 100.0 - old(*given), "score 0, but 33.*, which is better, with 1 wrong"),
        (
            "order",
            lambda old, *given: sum(
                (one == other) / (place + 1) for place, (one, other) in enumerate(zip(*given, strict=True))
            ),
            "the same pairs score",
        ),
        (
            "pairs",
            but(Metric, reads="text", score=lambda old, *given: float(sum(map(str.__eq__, *given)))),
            "2 outputs and 3 references score 2.0",
        ),
        ("loss_order", but(Perplexity, higher_is_better=True), "better than"),
    ],
    ("logits", LogitsRule, "forward"): [
        ("logits", lambda old, logits, *_: logits[0], r"logits of shape \[4, \d+\] become \[\d+\]"),
        ("logits", lambda old, logits, *_: torch.full_like(logits, float("-inf")), "row 0 allows no token"),
        ("in_place", lambda old, logits, *_: logits.mul_(0.5), "modifies its input logits"),
        ("rows", lambda old, logits, *_: logits - logits.mean(dim=0, keepdim=True), "row 0 has different logits alone"),
    ],
    ("stop", StopRule, "done"): [
        ("done", but(StopRule, **counted("done", lambda calls: calls > 2)), "depends on earlier calls"),
        (
            "cut",
            but(StopRule, done=lambda old, row: len(row.ids) > 3, cut_text=lambda old, text: f"{text}."),
            "into 't.', which is not a prefix",
        ),
    ],
    ("strategy", Greedy, "search"): [
        ("candidates", lambda old, search: old(search)[:1], "returns candidates for 1 of 3 prompts"),
        (
            "candidates",
            but(Strategy, search=lambda old, search: [WORST_FIRST for _ in search.prompts]),
            r"scores \[-1.0, -0.5\] are not in descending",
        ),
        ("candidates", searches(room=lambda search: [limit + 1 for limit in search.room]), "5 tokens; the limit is 4"),
        ("candidates", but(Greedy, check=failing(UsageError("not today"))), "neither .*: not today; not today"),
        ("ruled", searches(rules=lambda search: Rules()), "which a logits rule excludes"),
        ("ruled", searches(rules=lambda search: replace(search.rules, stop=())), "a stop rule ends the text after 2"),
        (
            "seeded",
            searches(Sample, streams=lambda search: [random.Random(random.random()) for _ in search.prompts]),
            "with the same seed find different texts",
        ),
        ("beside", searches(Sample, streams=lambda search: [search.streams[0]] * len(search.prompts)), "with 2 others"),
        (
            "stateless",
            searches(room=lambda search: search.room if search.use_cache else [1] * len(search.room)),
            "texts without a decode state",
        ),
        (
            "untouched",
            lambda old, search: (next(search.model.parameters()).mul_(1.01), old(search))[1],
            "changes the model's weights: ",
        ),
        ("untouched", lambda old, search: (search.model.train(), old(search))[1], "leaves the model in training mode"),
        ("told", twice, "for prompt 0, the listener receives"),
    ],
}
ROWS = [
    (slot, check, but(base, **{method: change}) if isinstance(change, FunctionType) else change, message)
    for (slot, base, method), rows_ in BROKEN.items()
    for check, change, message in rows_
]


@pytest.mark.parametrize(("slot", "check", "part", "message"), some_rows(ROWS))
def test_a_part_that_breaks_its_contract_is_found(
    register: Register, slot: str, check: str, part: type[Component], message: str
) -> None:
    expect_found(register(slot, part), check, message)


def test_every_contract_has_a_part_that_breaks_it() -> None:
    found = {check for _, check, *_ in ROWS}
    # a refusal is the recipe's, not the part's, and code the printer's (test_verify.py)
    assert set(CHECKS) - found == {"refusals", "plain"}
