"""Each contract can fail: a part that breaks it, registered for the length of a test, is found and the fault told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from pydantic import field_validator
from torch import Tensor, nn

from tfkit.components.activation import Activation
from tfkit.components.attention import KeyValueState, MultiHead
from tfkit.components.embedding import Tokens
from tfkit.components.feedforward import MLP, FeedForward
from tfkit.components.head import LanguageModel
from tfkit.components.init import Init
from tfkit.components.mask import Mask
from tfkit.components.norm import Norm
from tfkit.components.residual import Branch, PreNorm
from tfkit.core import component
from tfkit.core.component import Component
from tfkit.core.context import Context, Inputs, Visibility
from tfkit.core.options import Width
from tfkit.core.registry import REGISTRY
from tfkit.core.shape import Shape
from tfkit.models.base import ModelOutput
from tfkit.models.encoder_decoder import EncoderDecoder

from .cases import SLOTS, Case, cases, loads, variants
from .checks import CHECKS


@pytest.fixture
def register() -> Iterator[Any]:
    """`register(slot, part)` enters a part and gives its name; afterwards the registry is as it was."""
    entered: list[tuple[str, str]] = []

    def enter(slot: str, part: type[Component]) -> str:
        # a name of its own each time, since models are kept by the name of their part
        name = f"broken_{part.__name__.lower()}_{next(NUMBER)}"
        REGISTRY.register(slot, name)(part)
        entered.append((slot, name))
        return name

    yield enter
    for slot, name in entered:
        del REGISTRY.load(slot)[name]


NUMBER = count()


# --- the broken parts


class FirstTokenOnly(PreNorm):
    """The wrong shape."""

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        return super().forward(x, branches)[:, :1]


class Raises(Activation):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("not today")


class AlwaysSingle(Norm):
    """The wrong dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * 0.5


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
        return x / x.pow(2).mean(dim=(0, 1), keepdim=True).sqrt()


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
        return super().forward(x, context) + blind


class StuckState(KeyValueState):
    def reorder(self, rows: Tensor) -> None:
        pass


class Stuck(MultiHead):
    """Beams that are never reordered."""

    def new_state(self) -> KeyValueState:
        return StuckState()


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


BROKEN = [
    ("shapes", "residual", FirstTokenOnly, r"hidden is \[3, 1, 16\]"),
    ("shapes", "activation", Raises, "it raises RuntimeError: not today"),
    ("shapes", "norm", AlwaysSingle, "gives torch.float32 when its weights are torch.float64|raises RuntimeError"),
    ("gradients", "feedforward", Idle, "feedforward.spare has no gradient"),
    ("gradients", "feedforward", FalselyInert, "up.bias is declared inert, but it changes the output"),
    ("gradients", "head", Detached, "has no gradient"),
    ("future", "feedforward", Averages, "a look into the future"),
    ("visibility", "feedforward", Averages, "sees token 1, which the mask hides"),
    ("visibility", "mask", FalseTriangle, "which the mask hides"),
    ("padding", "norm", OverTheBatch, "of a row alone and in a batch"),
    ("padding", "feedforward", RunningMean, "padded on the left"),
    ("padding", "attention", HandmadeSoftmax, "is not finite"),
    ("few", "attention", HandmadeSoftmax, "is not finite"),
    ("source_padding", "attention", OpenMemory, "of a source padded on the right"),
    ("packing", "feedforward", RunningMean, "of segment 2 of a packed row"),
    ("cache", "feedforward", RunningMean, "decoded in steps of"),
    ("reorder", "attention", Stuck, r"after the rows became \[2, 0, 0, 1\]|it raises"),
    ("encoder_runs_once", "model", Forgetful, "the encoder ran 4 times"),
    ("config", "feedforward", Doubling, "is read as"),
    ("determinism", "activation", Noisy, "differs between two calls in eval mode"),
    ("determinism", "feedforward", Seedless, "feedforward.weight differs between two models of one seed"),
    ("initial", "init", Zeros, "is the same number everywhere"),
    ("copies", "feedforward", Unpicklable, "pickle"),
    ("saving", "feedforward", OtherOnMeta, "a model on meta has other weights"),
    ("meta", "feedforward", Reads, "it raises RuntimeError"),
    ("dropout", "feedforward", HalfDropout, "the mean with dropout is off"),
    ("dropout", "feedforward", NeverDrops, "two calls in training mode are the same"),
    ("dropout", "embedding", AlwaysDrops, "in eval mode, with and without dropout"),
    ("compile", "feedforward", Reads, "the graph breaks"),
    ("export", "feedforward", Reads, "it cannot be exported"),
]


@pytest.mark.parametrize(
    ("check", "slot", "part", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_part_that_breaks_its_contract_is_found(
    register: Any, check: str, slot: str, part: type[Component], message: str
) -> None:
    name = register(slot, part)
    with pytest.raises(AssertionError, match=message) as caught:
        for case in cases(slot, name):
            CHECKS[check](case)
    assert name in str(caught.value), "the part is named"


def test_every_contract_has_a_part_that_breaks_it() -> None:
    # a refusal is the recipe's, not the part's; it is tested below
    assert set(CHECKS) - {check for check, *_ in BROKEN} == {"refusals"}


class LooksBack(MultiHead):
    capabilities = frozenset({"causal", "padding", "packing", "cache"})


class LooksBothWays(MultiHead):
    capabilities = frozenset({"bidirectional"})


@pytest.mark.parametrize(("part", "taken"), [(LooksBack, ["decoder"]), (LooksBothWays, ["encoder"])])
def test_a_part_is_refused_where_it_lacks_a_capability(register: Any, part: type[Component], taken: list[str]) -> None:
    name = register("attention", part)
    assert [case.topology for case in cases("attention", name)] == taken
    topologies = ("decoder", "encoder", "encoder_decoder")
    assert [topology for topology in topologies if loads(Case("attention", name, topology))] == taken
    CHECKS["refusals"](Case("attention", name, taken[0]))


def test_a_contract_that_is_not_promised_is_not_asked_for(register: Any) -> None:
    case = Case("attention", register("attention", LooksBothWays), "encoder")
    assert not CHECKS["padding"].applies(case)
    assert not CHECKS["cache"].applies(case)
    assert CHECKS["shapes"].applies(case)


class Wide(FeedForward):
    class Config(FeedForward.Config):
        num_wonders: int


def test_a_required_option_without_a_size_says_what_to_add(register: Any) -> None:
    name = register("feedforward", Wide)
    with pytest.raises(AssertionError, match=r"requires the option 'num_wonders'.*add 'num_wonders': .* to SIZES"):
        CHECKS["shapes"](cases("feedforward", name)[0])
    assert list(variants("feedforward", name)) == []


class Plain(Activation):
    """A sound part of a user's."""

    class Config(component.Config):
        alpha: float = 1.0
        odd: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.config.alpha * x)


def test_a_sound_part_passes_with_every_option_in_turn(register: Any) -> None:
    name = register("activation", Plain)
    tried = [*cases("activation", name), *variants("activation", name)]
    assert [dict(case.variant) for case in tried] == [{}, {"alpha": 1.5}, {"odd": True}]
    for case in tried:
        for check in ("shapes", "gradients", "future", "padding", "config"):
            CHECKS[check](case)


def test_the_registry_is_as_it_was() -> None:
    assert not [name for slot in SLOTS for name in REGISTRY.names(slot) if name.startswith("broken_")]
