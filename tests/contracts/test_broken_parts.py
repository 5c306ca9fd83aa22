"""Each contract can fail: a part that breaks it, registered for the length of a test, is found and the fault told.

The parts outside the model are in test_broken_others.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from pydantic import field_validator
from torch import Tensor, nn

from tfkit.components.activation import Activation
from tfkit.components.attention import KeyValueState, MultiHead
from tfkit.components.embedding import Tokens
from tfkit.components.feedforward import MLP, FeedForward
from tfkit.components.head import LanguageModel
from tfkit.components.init import Init
from tfkit.components.mask import Mask
from tfkit.components.mixer import LSTM, Mixer
from tfkit.components.norm import LayerNorm, Norm
from tfkit.components.position import Sinusoidal
from tfkit.components.residual import Branch, PreNorm
from tfkit.contracts.cases import MODEL, Case, cases, loads, variants
from tfkit.contracts.check import CHECKS
from tfkit.contracts.verify import verify
from tfkit.core import component
from tfkit.core.component import Component
from tfkit.core.context import Collector, Context, Placement, Visibility
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.options import Width
from tfkit.core.shape import Shape
from tfkit.models.base import ModelOutput
from tfkit.models.build import build_model
from tfkit.models.encoder_decoder import EncoderDecoder
from tfkit.recipe.load import load_recipe

from ..generation.searching import best
from ..sampling import some_rows
from .broken import Register, expect_found

# --- the broken parts


class FirstTokenOnly(PreNorm):
    """The wrong shape."""

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        return super().forward(x, branches)[:, :1]


class GrowsWithWidth(LanguageModel):
    """A factor of its own that muP knows nothing of."""

    def finish(self, logits: Tensor) -> Tensor:
        return logits * self.shape.d_model / 16


class Raises(Activation):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("not today")


class AlwaysSingle(Norm):
    """The wrong dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * 0.5


class ThroughSingle(Activation):
    """Rounds float64 to float32 on the way."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float().tanh().to(x.dtype)


class OnlyItself(MultiHead):
    """Other results in a view of the class, which generation computes with."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) if type(self) is OnlyItself else x


class Idle(MLP):
    """A parameter that changes nothing."""

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        self.spare = nn.Parameter(torch.ones(3))


class FalselyInert(MLP):
    inert = frozenset({"up.bias"})


class Detached(LanguageModel):
    """Cuts the model off from its head."""

    def features(self, hidden: Tensor) -> Tensor:
        return super().features(hidden.detach())


class Averages(MLP):
    """Looks at all tokens, later ones and padding too."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x + x.mean(dim=1, keepdim=True), context)


class OverTheBatch(Norm):
    """A batch norm in disguise."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(dim=0, keepdim=True) + 1e-5).sqrt()


class RunningMean(MLP):
    """Causal, but knows neither padding nor segments nor a decode state."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return super().forward(x.cumsum(dim=1) / count, context)


class OpenMemory(MultiHead):
    """Attends to the padding of its memory."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if context.source is not None:
            context = replace(context, mask=Visibility((), context.mask.span))
        return super().forward(x, context)


class HandmadeSoftmax(MultiHead):
    """Not a number where nothing is visible."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        visible = context.mask.dense()
        blind = 0.0 if visible is None else torch.where(visible.any(-1, keepdim=True), 0.0, float("nan"))
        return super().forward(x, context) + torch.as_tensor(blind).to(x.dtype)


class StuckState(KeyValueState):
    def reorder(self, rows: Tensor) -> None:
        pass


class Stuck(MultiHead):
    """Beams that are never reordered."""

    def new_state(self) -> KeyValueState:
        return StuckState()


class KeepsAllState(KeyValueState):
    def rewind(self, length: int) -> None:
        pass


class TakesNothingBack(MultiHead):
    """Tokens that are taken back stay."""

    def new_state(self) -> KeyValueState:
        return KeepsAllState()


class ClaimsToTakeBack(LSTM):
    """Tokens cannot be taken back."""

    capabilities = LSTM.capabilities | {"rewind"}


class HoardingState(KeyValueState):
    def keep_last(self, count: int) -> None:
        super().keep_last(count + 2)


class Hoards(MultiHead):
    """Keys that a window has left behind are handed out with the others."""

    def new_state(self) -> KeyValueState:
        return HoardingState()


class Doubling(MLP):
    """Options that change each time they are read."""

    class Config(MLP.Config):
        d_ff: Width

        @field_validator("d_ff")
        @classmethod
        def _twice(cls, value: int) -> int:
            return 2 * value


class Noisy(Activation):
    """Random in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.rand_like(x)


class Seedless(MLP):
    """Weights that no seed governs."""

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        generator = torch.Generator()
        generator.seed()
        self.weight = nn.Parameter(torch.rand(shape.d_model, generator=generator))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) * self.weight


class Unpicklable(MLP):
    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        self.function = lambda x: x


class OtherOnMeta(MLP):
    """A model on meta has another weight."""

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        if self.up.weight.is_meta:
            self.spare = nn.Parameter(torch.ones(3))


class Reads(MLP):
    """Decides by a value: a graph break, and impossible on meta and in an export."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) if x.sum().item() > 0 else super().forward(2 * x, context)


class HalfDropout(MLP):
    """Drops, and forgets to scale what is kept."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out = super().forward(x, context)
        rate = self.dropout.rate
        return out * (1 - rate) if self.training else out


class NeverDrops(MLP):
    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        self.dropout = nn.Identity()


class AlwaysDrops(Tokens):
    """Drops in eval mode too."""

    def forward(self, *arguments: Any) -> Tensor:
        return nn.functional.dropout(super().forward(*arguments), self.config.dropout)


class FalseTriangle(Mask):
    """Says that it is the causal triangle, and hides more."""

    hides_future = True
    triangle = True

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return key == query


class Zeros(Init):
    def embedding(self, weight: Tensor) -> None:
        nn.init.zeros_(weight)

    def linear(self, weight: Tensor) -> None:
        nn.init.zeros_(weight)


class Forgetful(EncoderDecoder):
    """Encodes at every step."""

    def forward(self, *arguments: Any, **more: Any) -> ModelOutput:
        if more.get("state") is not None:
            more["state"].memory = None
        return super().forward(*arguments, **more)


class NeverBuilt(Activation):
    def __init__(self, config: Any, shape: Shape) -> None:
        raise KeyError("width")


class Quits(Activation):
    """Ends the program."""

    def forward(self, x: Tensor) -> Tensor:
        raise SystemExit(3)


class Cancels(Activation):
    """Loses its digits in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.tanh() + 1e6) - 1e6


class Remembers(Activation):
    """Carries something over from call to call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.tanh() * self.calls


class OnlyTheDirection(MultiHead):
    """Knows the triangle, and no other mask rule."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rules = [rule for rule in context.mask.rules if getattr(rule, "triangle", False)]
        mask = Visibility(rules, context.mask.span, real=context.mask.real, segments=context.mask.segments)
        return super().forward(x, replace(context, mask=mask))


class Deaf(MultiHead):
    """Declares what a position can say, and hears nothing of `deaf_to`."""

    deaf_to: ClassVar[str]

    def forward(self, x: Tensor, context: Context) -> Tensor:
        class Muted(Placement):
            pass

        setattr(Muted, self.deaf_to, lambda placement, *arguments: None)
        placement = Muted(context.position.parts, context.position.query, context.position.key)
        return super().forward(x, replace(context, position=placement))


class Unturned(Deaf):
    deaf_to = "rotation"


class Unbiased(Deaf):
    deaf_to = "bias"


class Lukewarm(Deaf):
    deaf_to = "temperature"


class WarmInSingle(MultiHead):
    """Lets a temperature decide what kind of number comes out."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        temperature = context.position.temperature()
        muted = Placement((), context.position.query, context.position.key)
        out = super().forward(x, replace(context, position=context.position if temperature is None else muted))
        return out if temperature is None else out * temperature[:, :, None]


class QueriesOnly(Placement):
    """A rotation that turns what it is handed first."""

    turned = 0

    def rotation(self, dim: int, of_keys: bool = False) -> Any | None:
        rotate = super().rotation(dim, of_keys)

        def turn(x: Tensor) -> Tensor:
            self.turned += 1
            return rotate(x) if self.turned == 1 else x

        return None if rotate is None else turn


class TurnsQueries(MultiHead):
    """Leaves the keys where they are."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        placement = QueriesOnly(context.position.parts, context.position.query, context.position.key)
        return super().forward(x, replace(context, position=placement))


class ForgetsTheMemory(MultiHead):
    """Reads one token of it."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if context.source is not None:
            context = replace(context, source=context.source[:, :1].expand_as(context.source))
        return super().forward(x, context)


class Unwatched(MultiHead):
    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, replace(context, collector=Collector()))


class ShowsScores(MultiHead):
    """Hands out what is no share of anything."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        collector = Collector(context.collector.watch)
        out = super().forward(x, replace(context, collector=collector))
        for weights in collector.observed.get("attention", []):
            context.collector.observe("attention", 2 * weights)
        return out


class MixesSegments(MultiHead):
    """Keeps padding out, and texts of one row not apart."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, replace(context, mask=replace(context.mask, segments=None)))


class Says(MLP):
    """Looks ahead, by a convolution that it does not own up to."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x + torch.roll(x, -1, dims=1), context)


class OpensThePast(Mask):
    """An opening that opens nothing ahead."""

    opens = True
    needs = frozenset({"prefix_length"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        assert inputs.prefix_length is not None
        return (key < inputs.prefix_length[:, None, None]) & (key <= query)


class Silent(Activation):
    def forward(self, x: Tensor) -> None:
        return None


# check, slot, part, what is said
BROKEN: list[tuple[str, str, type[Component], str]] = [
    ("built", "activation", NeverBuilt, r"raises KeyError: 'width' \(test_broken_parts.py:\d+, in __init__\)"),
    ("shapes", "residual", FirstTokenOnly, r"the part maps \[3, 7, 16\] to \[3, 1, 16\]"),
    ("shapes", "activation", Raises, r"raises RuntimeError: not today \(test_broken_parts.py:\d+, in forward\)"),
    ("shapes", "activation", Silent, r"the part maps \[3, 7, 24\] to NoneType"),
    ("shapes", "activation", Quits, "raises SystemExit: 3"),
    ("shapes", "norm", AlwaysSingle, "returns torch.float32 for weights in torch.float64|raises RuntimeError"),
    ("determinism", "activation", Noisy, "differs between two calls in eval mode"),
    ("determinism", "activation", Remembers, "differs between two calls in eval mode"),
    ("precision", "attention", OnlyItself, "with the copies of generation instead of float64: off by"),
    ("precision", "activation", Cancels, "in float32 instead of float64: off by"),
    ("precision", "activation", ThroughSingle, "in float64, aten._to_copy.default uses float32; compute in"),
    ("gradients", "feedforward", Idle, "feedforward.spare has no gradient"),
    ("gradients", "feedforward", FalselyInert, "up.bias is declared inert, but it changes the output"),
    ("gradients", "head", Detached, "has no gradient"),
    ("coordinates", "head", GrowsWithWidth, "at 8 times the width, logits change"),
    ("future", "feedforward", Averages, "which is in the future"),
    ("future", "feedforward", Says, "hidden of a token before 1 depends on token 1"),
    ("visibility", "mask", FalseTriangle, "which the mask hides"),
    ("openings", "mask", OpensThePast, "it reveals no later token of 6"),
    ("masks", "attention", OnlyTheDirection, "declares 'masks', but token . sees token 0, which a window mask hides"),
    ("padding", "norm", OverTheBatch, "of a row in a batch instead of alone"),
    ("padding", "feedforward", RunningMean, "padded on the left"),
    ("padding", "attention", HandmadeSoftmax, "is not finite"),
    ("few", "attention", HandmadeSoftmax, "is not finite"),
    ("source_padding", "attention", OpenMemory, "of a source padded on the right"),
    ("packing", "feedforward", RunningMean, "of segment 2 in a packed row"),
    ("packing", "attention", MixesSegments, "of segment 2 in a packed row"),
    ("cache", "feedforward", RunningMean, "decoded in steps of"),
    ("cache", "attention", TakesNothingBack, "after a rewind|raises"),
    ("cache", "mixer", ClaimsToTakeBack, "declares 'rewind', but the state refuses to rewind"),
    ("cache", "attention", Hoards, "beyond a window|raises"),
    ("reorder", "attention", Stuck, r"after reordering the rows to \[2, 0, 0, 1\]|raises"),
    ("encoder_runs_once", "model", Forgetful, "the encoder ran 4 times"),
    ("rotation", "attention", Unturned, "declares 'rotation', but a rotary position has no effect"),
    ("rotation", "attention", TurnsQueries, "does not depend only on relative positions"),
    ("bias", "attention", Unbiased, "declares 'bias', but an ALiBi position has no effect"),
    ("temperature", "attention", Lukewarm, "declares 'temperature', but a temperature has no effect"),
    ("temperature", "attention", WarmInSingle, "declares 'temperature', but converts bfloat16 to torch.float32"),
    ("cross_attention", "attention", ForgetsTheMemory, "does not depend on token 1 of the memory"),
    ("weights", "attention", Unwatched, "an observer of 'attention' receives no tensors"),
    ("weights", "attention", ShowsScores, "the sum of a row is off by 1"),
    ("config", "feedforward", Doubling, "is parsed as"),
    ("seed", "feedforward", Seedless, "feedforward.weight differs between two models with the same seed"),
    ("initial", "init", Zeros, "is constant"),
    ("copies", "feedforward", Unpicklable, r"a model cannot be pickled: .*Unpicklable\.__init__\.<locals>\.<lambda>"),
    ("saving", "feedforward", OtherOnMeta, "a model on meta has different weights: decoder.layers.0.feedforward.spare"),
    ("meta", "feedforward", Reads, "raises RuntimeError"),
    ("dropout", "feedforward", HalfDropout, "the mean with dropout is off"),
    ("dropout", "feedforward", NeverDrops, "two calls in training mode return equal outputs"),
    ("dropout", "embedding", AlwaysDrops, "in eval mode, with dropout instead of without|differs between two calls"),
    (
        "compile",
        "feedforward",
        Reads,
        r"declares 'compile', but the graph breaks: .*\(test_broken_parts.py:\d+, in forward\)",
    ),
    ("export", "feedforward", Reads, "declares 'export', but it cannot be exported"),
]


@pytest.mark.parametrize(
    ("check", "slot", "part", "message"), some_rows(BROKEN), ids=lambda value: getattr(value, "__name__", None)
)
def test_a_part_that_breaks_its_contract_is_found(
    register: Register, check: str, slot: str, part: type[Component], message: str
) -> None:
    expect_found(register(slot, part), check, message)


def test_every_contract_of_a_model_has_a_part_that_breaks_it() -> None:
    concerned = {name for name, check in CHECKS.items() if set(check.slots) & set(MODEL)}
    # a refusal is the recipe's, not the part's; it is tested below
    assert concerned - {check for check, *_ in BROKEN} == {"refusals"}


def with_previous(x: Tensor) -> Tensor:
    return x + 0.5 * F.pad(x, (0, 0, 1, -1))


class ShiftedResidual(PreNorm):
    capabilities = frozenset({"causal", "padding"})

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        return super().forward(with_previous(x), branches)


class ShiftedNorm(LayerNorm):
    capabilities = frozenset({"causal", "padding"})

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(with_previous(x))


class ShiftedTokens(Tokens):
    capabilities = frozenset({"causal", "padding"})

    def forward(self, *inputs: Any) -> Tensor:
        return with_previous(super().forward(*inputs))


class ShiftedActivation(Activation):
    capabilities = frozenset({"causal", "padding"})

    def forward(self, x: Tensor) -> Tensor:
        return with_previous(x)


class Lengthwise(Sinusoidal):
    capabilities = frozenset({"causal", "padding"})


def test_a_model_whose_parts_lack_a_cache_reads_whole_texts(register: Register) -> None:
    parts = {"layer.residual": ShiftedResidual, "layer.norm": ShiftedNorm, "final_norm": ShiftedNorm}
    parts |= {"embedding": ShiftedTokens, "position": Lengthwise, "layer.feedforward.activation": ShiftedActivation}
    for key, part in parts.items():
        name = register(key.split(".")[-1].removeprefix("final_"), part).part_name
        recipe = load_recipe(Case("attention", "multi_head").recipe(), overrides={f"model.{key}": name})
        model = build_model(recipe.blueprint(), seed=1).eval()
        texts = [best(model, [[1, 2, 3]], 4, use_cache=cached) for cached in (True, False)]
        assert texts[0] == texts[1] and not model.caches, key
        with pytest.raises(UsageError, match=f"'{name}' has no cache"):
            model.new_state()


class LooksBack(MultiHead):
    capabilities = frozenset({"causal", "padding", "packing", "cache"})


class LooksBothWays(MultiHead):
    capabilities = frozenset({"bidirectional"})


@pytest.mark.parametrize(("part", "taken"), [(LooksBack, ["decoder"]), (LooksBothWays, ["encoder"])])
def test_a_part_is_refused_where_it_lacks_a_capability(
    register: Register, part: type[Component], taken: list[str]
) -> None:
    name = register("attention", part).part_name
    assert [case.topology for case in cases("attention", name)] == taken
    topologies = ("decoder", "encoder", "encoder_decoder")
    assert [topology for topology in topologies if loads(Case("attention", name, topology))] == taken
    CHECKS["refusals"](Case("attention", name, taken[0]))


@pytest.mark.parametrize(
    ("keys", "accepted"), [({}, True), ({"position": "rotary"}, False), ({"position": "alibi"}, False)], ids=str
)
def test_what_a_part_does_not_declare_is_refused(register: Register, keys: Any, accepted: bool) -> None:
    name = register("attention", LooksBothWays).part_name
    assert loads(Case("attention", name, "encoder").with_layer(**keys)) == accepted


def test_an_accepted_recipe_that_should_be_refused_is_told(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    part = register("attention", LooksBothWays)
    monkeypatch.setattr("tfkit.contracts.refusals.loads", lambda case: True)
    outcome = verify(part, ["built", "refusals"], options=False).find("refusals")
    assert outcome is not None and "does not declare causal, but a recipe that uses it" in outcome.failures[0].message


def test_a_contract_that_is_not_promised_is_not_asked_for(register: Register) -> None:
    report = verify(register("attention", LooksBothWays), ["built", "shapes", "padding", "cache"], options=False)
    assert [outcome.check.name for outcome in report.outcomes] == ["built", "shapes"]
    assert report.holds
    assert {"cache", "padding", "rotation", "weights"} <= set(report.undeclared)


class Shift(Mixer):
    """A mixer that says nothing of what it can do, and looks at the token before."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x + torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))


def test_a_part_that_declares_nothing_is_held_to_what_is_assumed(register: Register) -> None:
    report = verify(register("mixer", Shift), ["built", "shapes", "determinism", "future", "packing"], options=False)
    found = {outcome.check.name: outcome.status for outcome in report.outcomes}
    assert found["packing"] == "FAILED", "the first token of a text sees the last of another"
    assert found["future"] == "ok"


class Wide(FeedForward):
    class Config(FeedForward.Config):
        num_wonders: int

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x * self.config.num_wonders


class WideByExample(Wide):
    example = {"num_wonders": 3}


def test_a_required_option_without_a_value_says_what_to_do(register: Register) -> None:
    part = register("feedforward", Wide)
    report = verify(part)
    built = report.find("built")
    assert built is not None and len(report.outcomes) > 5
    assert all(outcome.because == "built" for outcome in report.outcomes if outcome is not built)
    message = "needs the option 'num_wonders'.* example = {'num_wonders': ...}"
    expect_found(part, "built", message)
    assert list(variants("feedforward", part.part_name)) == []


def test_an_example_gives_what_is_required(register: Register) -> None:
    report = verify(register("feedforward", WideByExample), ["built", "config", "shapes"])
    assert report.holds and len(report.outcomes) == 3


class WrongExample(Wide):
    example = {"num_wonder": 3}


def test_an_example_that_does_not_fit_is_told(register: Register) -> None:
    expect_found(register("feedforward", WrongExample), "built", "num_wonder: unknown option|num_wonders")


class WordExample(Wide):
    example = "num_wonders"


def test_an_example_that_is_no_mapping_is_told(register: Register) -> None:
    expect_found(register("feedforward", WordExample), "built", "example = 'num_wonders': expected a mapping")


class Foreign(Component):
    """Has nothing of what an activation needs."""


def test_a_part_that_extends_no_base_is_told(register: Register) -> None:
    message = r"the class does not extend Activation \(of tfkit.components.activation\)"
    expect_found(register("activation", Foreign), "built", message)


class Plain(Activation):
    """A sound part of a user's."""

    class Config(component.Config):
        alpha: float = 1.0
        odd: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.config.alpha * x)


def test_a_sound_part_passes_with_every_option_in_turn(register: Register) -> None:
    part = register("activation", Plain)
    tried = [*cases("activation", part.part_name), *variants("activation", part.part_name)]
    assert [dict(case.variant) for case in tried] == [{}, {"alpha": 1.5}, {"odd": True}]
    report = verify(part, [name for name, check in CHECKS.items() if not check.slow])
    assert report.holds, str(report)


class FaultyOption(Plain):
    """Wrong with one option only."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] if self.config.odd else x.tanh()  # broadcast by what comes after it


def test_the_option_at_fault_is_named(register: Register) -> None:
    report = verify(register("activation", FaultyOption), ["built", "shapes"])
    outcome = report.find("shapes")
    assert outcome is not None
    assert [failure.where for failure in outcome.failures] == ["in a decoder, with odd: true"]
