"""Inputs of a call besides ids, which a part declares: an adaptive layer norm and a part with options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfkit
from tfkit.components.feedforward import FeedForward
from tfkit.components.norm import Norm
from tfkit.components.position import Position
from tfkit.core.errors import RecipeError, TfkitError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.models import Model
from tfkit.models.alone import context
from tfkit.reports.counts import count
from tfkit.reports.show import as_data

from .small import small

IDS = torch.arange(10)[None] * 7 % 20


class Told(Norm):
    class Config(tfkit.Config):
        width: int = 3

        def inputs(self, shape: Any) -> Any:
            return {"told": {"width": self.width}}

    def __init__(self, config: Any, shape: Any) -> None:
        super().__init__(config, shape)
        self.project = nn.Linear(config.width, 2 * shape.d_model)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        scale, shift = self.project(context.inputs["told"])[:, None].chunk(2, dim=-1)
        return (1 + scale) * torch.layer_norm(x, x.shape[-1:]) + shift


class Biased(FeedForward):
    inputs = {"bias": {"width": 8}}

    def forward(self, x: Tensor, context: Any) -> Tensor:
        return x.tanh() + context.inputs["bias"][:, None]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Both parts, for these tests only."""
    with REGISTRY.recording() as entries:
        tfkit.register("norm", "told_norm")(Told)
        tfkit.register("feedforward", "told_bias")(Biased)
    yield
    REGISTRY.take_back(iter(entries))


def made(**model: Any) -> Model:
    layer = {"norm": "told_norm", "feedforward": "told_bias"}
    recipe = small(layer, **{"final_norm": "told_norm", "init": {"type": "normal", "std": 0.3}, **model})
    net = tfkit.build(recipe, seed=1).double().eval()
    for name, weight in net.named_parameters():
        weight.data += 0.3 * ("project" in name)
    return net


def agree(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_rows_have_their_own_inputs() -> None:
    """Both parts in plain torch; a cache, a batch, padding, recomputation, an encoder-decoder."""
    net, given = made(position="none", num_layers=1), {"told": torch.randn(2, 3), "bias": torch.randn(2, 8)}
    both = torch.cat((IDS, IDS.flip(1)))
    out = net(both, inputs=given)
    stack = net.stack("decoder")
    x = net.get_parameter("decoder.embedding.tokens.weight")[both]
    layer, wide = stack.layers[0], {name: one.double() for name, one in given.items()}

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias = (net.get_parameter(f"decoder.{name}.project.{one}") for one in ("weight", "bias"))
        scale, shift = (wide["told"] @ weight.mT + bias).split(8, dim=1)
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return y * (1 + scale[:, None]) + shift[:, None]

    x = x + layer.attention(norm("layers.0.attention_norm", x), context(x, causal=True))  # type: ignore[operator]
    x = x + norm("layers.0.feedforward_norm", x).tanh() + wide["bias"][:, None]
    agree(out.hidden, norm("final_norm", x))
    net, state = made(), made().new_state()
    whole = net(both, inputs=given).logits
    pieces = [net(piece, inputs=given, state=state).logits for piece in both.split((4, 1, 5), dim=1)]
    agree(torch.cat(pieces, dim=1), whole)
    real = (torch.arange(10) >= torch.tensor([[0], [3]])).long()
    padded = net(both, attention_mask=real, inputs=given).logits[1, 3:]
    agree(padded, net(both[1:, 3:], inputs={name: one[1:] for name, one in given.items()}).logits[0])
    gradients = []
    for net.stack("decoder").recompute in (0, 2):
        net.zero_grad()
        net.train()(both, inputs=given).logits.square().sum().backward()
        gradients.append([weight.grad for weight in net.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    pair = made(type="encoder_decoder")
    twice = pair(both, decoder_input_ids=both, inputs=given).logits
    changed = pair(both, decoder_input_ids=both, inputs={**given, "told": given["told"].flip(0)}).logits
    assert twice.isfinite().all() and (twice - changed).abs().max() > 0.1


ROWS, BIAS = torch.randn(1, 3), torch.randn(1, 8)
CALLS: list[tuple[Any, str]] = [
    (None, r"inputs['told'], which norm 'told_norm' reads, must be a tensor [1 3], got none"),
    ({"bias": BIAS}, r"inputs['told'], which norm 'told_norm' reads, must be a tensor [1 3], got none"),
    ({"told": ROWS, "bias": BIAS[:, 1:]}, r"'told_bias' reads, must be a tensor [1 8], got shape [1, 7]"),
    ({"told": ROWS.repeat(2, 1), "bias": BIAS}, r"must be a tensor [1 3], got shape [2, 3]"),
    ({"told": [1.0], "bias": BIAS}, r"must be a tensor [1 3], got a list"),
    ({"told": ROWS, "bias": BIAS, "tone": ROWS}, r"no part of this model reads the input 'tone'; its parts read told"),
    (ROWS, r"inputs must be a mapping of names to tensors [batch width], got Tensor"),
]
NARROW = {"layers": {"a": {}, "b": {"norm": {"type": "told_norm", "width": 2}}}, "pattern": ["a", "b"]}
RECIPES: list[tuple[dict[str, Any], str]] = [
    (
        NARROW,
        r"layer 1 \(norm 'told_norm'\) reads 2 numbers .*'told', but layer 0 .norm 'told_norm'., see .* reads 3",
    ),
    ({"layer": {"attention": {"type": "multi_head", "num_heads": 2, "qk_norm": "told_norm"}}}, "uses context.inputs"),
]


def test_refusals_name_input_part_and_remedy() -> None:
    net = made()
    for given, words in CALLS:
        with pytest.raises(UsageError, match=re.escape(words)):
            net(IDS, inputs=given)
    with pytest.raises(UsageError, match="the input told, bias belongs to a row, but packed texts share a row"):
        net(IDS, inputs={"told": ROWS, "bias": BIAS}, segment_ids=torch.ones_like(IDS))
    for model, words in RECIPES:
        layer = {"residual": "pre_norm", "norm": "told_norm", "feedforward": "told_bias", **model.pop("layer", {})}
        with pytest.raises(RecipeError, match=words):
            tfkit.build(small(layer, final_norm="told_norm", **model))
    for declared in ({"text": {"width": 2}}, {"a": {"width": 0}}, {"a": {"width": 2, "per_token": True}}, ["a"]):
        with pytest.raises(UsageError, match="inputs"):
            tfkit.register("norm", "odd_norm")(type("Odd", (Norm,), {"inputs": declared}))
    with pytest.raises(UsageError, match=r"only sublayers, .* have inputs"):
        tfkit.register("position", "odd_place")(type("Odd", (Position,), {"inputs": {"a": {"width": 2}}}))
    with pytest.raises(TfkitError, match="reads the input 'told', which the printed forward does not take"):
        tfkit.code(small({"norm": "told_norm"}))
    shown = as_data(net.blueprint, count(net.blueprint))["inputs"]
    assert shown["told"] == {"width": 3, "readers": ("norm 'told_norm'",)}
