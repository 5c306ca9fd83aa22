"""Initial values: which weights, how large, and each once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tfkit.components.attention import MultiHead
from tfkit.components.embedding import Tokens
from tfkit.components.feedforward import MLP, GatedLinearUnit
from tfkit.components.head import LanguageModel
from tfkit.components.norm import LayerNorm
from tfkit.core.component import Shape
from tfkit.core.registry import REGISTRY

SHAPE = Shape(d_model=64, vocab_size=300, depth=8)


class Block(nn.Module):
    """What a layer of the model room looks like to an init."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.init_gain = gain
        self.attention = MultiHead(MultiHead.Config(num_heads=2), SHAPE)
        self.feedforward = MLP(MLP.Config(d_ff=128), SHAPE)
        self.norm = LayerNorm(LayerNorm.Config(weight_offset=1.0), SHAPE)
        self.scalar = nn.Parameter(torch.tensor([5.0]))


def model(gain: float = 1.0, tied: bool = True) -> Any:
    embedding = Tokens(Tokens.Config(), SHAPE)
    block = Block(gain)
    head = LanguageModel(LanguageModel.Config(tied=tied, bias=True), SHAPE, embedding)
    return nn.ModuleDict({"head": head, "embedding": embedding, "block": block, "again": block})


def initialised(name: str, **options: Any) -> Any:
    built = model(options.pop("gain", 1.0))
    torch.manual_seed(0)
    REGISTRY.get("init", name).Config.model_validate(options).build()(built)
    return built


def spread(weight: Tensor) -> float:
    weight = weight.detach()
    assert abs(float(weight.mean())) < 4 * float(weight.std()) / math.sqrt(weight.numel())
    return float(weight.std())


@pytest.mark.parametrize("name", REGISTRY.names("init"))
def test_biases_are_zero_and_what_parts_made_stays(name: str) -> None:
    built = initialised(name)
    assert all(not m.bias.any() for m in built.modules() if isinstance(m, nn.Linear) and m.bias is not None)
    assert not built["block"].norm.weight.any()
    assert built["block"].scalar.item() == 5.0
    assert built["head"].output.weight is built["embedding"].tokens.weight


def test_xavier() -> None:
    built = initialised("xavier")
    up = built["block"].feedforward.up.weight
    bound = math.sqrt(6 / (64 + 128))
    assert up.abs().max() <= bound and spread(up) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    # as an embedding, though the head that shares it comes first
    assert spread(built["embedding"].tokens.weight) == pytest.approx(64**-0.5, rel=0.05)


def test_normal() -> None:
    built = initialised("normal", std=0.05)
    for weight in (built["block"].feedforward.down.weight, built["embedding"].tokens.weight):
        assert spread(weight) == pytest.approx(0.05, rel=0.05)


def test_scaled_residual() -> None:
    built = initialised("scaled_residual")
    block = built["block"]
    for weight in (block.feedforward.down.weight, block.attention.output.weight):
        assert spread(weight) == pytest.approx(0.02 / 4, rel=0.05)
    for weight in (block.feedforward.up.weight, block.attention.value.weight, built["embedding"].tokens.weight):
        assert spread(weight) == pytest.approx(0.02, rel=0.05)


def test_the_gain_of_a_layout_scales_what_sublayers_declare_once() -> None:
    built, plain = initialised("xavier", gain=0.25), initialised("xavier")
    weights = plain.state_dict()
    gained = {"attention.value", "attention.output", "feedforward.up", "feedforward.down"}
    for name, weight in built.state_dict().items():
        factor = 0.25 if name.split(".", 1)[-1].removesuffix(".weight") in gained else 1.0
        torch.testing.assert_close(weight, factor * weights[name])
    assert set(GatedLinearUnit.gain_scaled) == {"gate", "up", "down"}
