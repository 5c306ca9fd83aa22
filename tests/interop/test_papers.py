"""The original Transformer and PaLM against the formulas of their papers, written out in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

ORIGINAL = {
    "model.d_model": 12, "model.vocab_size": 19, "model.encoder.num_layers": 2, "model.decoder.num_layers": 3,
    "model.layer.attention.num_heads": 3, "model.layer.feedforward.d_ff": 20,
}  # fmt: skip
PALM = {
    "model.d_model": 16, "model.num_layers": 3, "model.vocab_size": 23, "model.layer.attention.num_heads": 4,
    "model.layer.attention.head_dim": 6, "model.layer.feedforward.d_ff": 20,
}  # fmt: skip
Weights = dict[str, Tensor]
# one source without padding, one with; the targets have any length
SOURCE = torch.tensor([[4, 8, 15, 16, 2], [3, 18, 5, 0, 0]])
LENGTHS = [5, 3]
TARGET = torch.tensor([[1, 7, 9, 11], [1, 13, 6, 17]])


def random_model(name: str, sizes: dict[str, int]) -> Model:
    """Build a shipped recipe at a small size in float64 with random weights."""
    model = build_model(load_recipe(name, overrides=sizes).blueprint(), dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.4)
    return model


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the maximum difference, relative to the largest value of the reference."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def normed(weights: Weights, name: str, x: Tensor) -> Tensor:
    """LayerNorm; PaLM's has no bias."""
    x = x - x.mean(dim=-1, keepdim=True)
    x = x / ((x**2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
    return x + weights[f"{name}.bias"] if f"{name}.bias" in weights else x


def mixed(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """Section 3.2: softmax(QK^T / sqrt(d_k)) V of one head."""
    scores = query @ key.T / math.sqrt(query.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    return torch.softmax(scores, dim=-1) @ value


# the original Transformer


def embedded(weights: Weights, ids: list[int]) -> Tensor:
    """Sections 3.4 and 3.5: rows of the table times sqrt(d_model), plus sines and cosines, which are in float32."""
    table = weights["encoder.embedding.tokens.weight"]
    width = table.shape[1]
    angles = torch.arange(len(ids)).double()[:, None] / 10000 ** (torch.arange(0, width, 2).double() / width)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return table[ids] * math.sqrt(width) + waves.float().double()


def attended(weights: Weights, name: str, x: Tensor, source: Tensor, causal: bool = False) -> Tensor:
    """Section 3.2.2: the heads side by side, projected."""
    parts = (
        x @ weights[f"{name}.query.weight"].T,
        *(source @ weights[f"{name}.{one}.weight"].T for one in ("key", "value")),
    )
    heads = zip(*(part.chunk(3, dim=1) for part in parts), strict=True)
    return torch.cat([mixed(*head, causal) for head in heads], dim=1) @ weights[f"{name}.output.weight"].T


def fed(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Section 3.3: max(0, x W1 + b1) W2 + b2."""
    inner = (x @ weights[f"{name}.up.weight"].T + weights[f"{name}.up.bias"]).clamp(min=0)
    return inner @ weights[f"{name}.down.weight"].T + weights[f"{name}.down.bias"]


def original(weights: Weights, source: list[int], target: list[int]) -> Tensor:
    """Figure 1: LayerNorm(x + Sublayer(x)) all the way up, the output the table itself."""
    memory = embedded(weights, source)
    for name in (f"encoder.layers.{index}" for index in range(2)):
        memory = normed(
            weights, f"{name}.attention_norm", memory + attended(weights, f"{name}.attention", memory, memory)
        )
        memory = normed(weights, f"{name}.feedforward_norm", memory + fed(weights, f"{name}.feedforward", memory))
    x = embedded(weights, target)
    for name in (f"decoder.layers.{index}" for index in range(3)):
        x = normed(weights, f"{name}.attention_norm", x + attended(weights, f"{name}.attention", x, x, causal=True))
        x = normed(weights, f"{name}.cross_attention_norm", x + attended(weights, f"{name}.cross_attention", x, memory))
        x = normed(weights, f"{name}.feedforward_norm", x + fed(weights, f"{name}.feedforward", x))
    return x @ weights["encoder.embedding.tokens.weight"].T


@pytest.fixture(scope="module", params=["transformer-base", "transformer-big"])
def model(request: pytest.FixtureRequest) -> Model:
    return random_model(request.param, ORIGINAL)


@torch.no_grad()
def test_the_original_with_padding(model: Model) -> None:
    real = torch.tensor([[place < length for place in range(5)] for length in LENGTHS]).long()
    ours = model(input_ids=SOURCE, attention_mask=real, decoder_input_ids=TARGET).logits
    for row, length in enumerate(LENGTHS):
        theirs = original(dict(model.state_dict()), SOURCE[row, :length].tolist(), TARGET[row].tolist())
        assert theirs.std() > 1e-2
        assert difference(ours[row], theirs) < 1e-9


@torch.no_grad()
def test_the_original_one_token_at_a_time(model: Model) -> None:
    state = model.new_state()
    steps = [
        model(input_ids=SOURCE[:1], decoder_input_ids=TARGET[:1, [at]], state=state).logits[0, 0] for at in range(4)
    ]
    theirs = original(dict(model.state_dict()), SOURCE[0].tolist(), TARGET[0].tolist())
    assert difference(torch.stack(steps), theirs) < 1e-9


@pytest.mark.full
@torch.no_grad()
def test_every_weight_of_the_original_is_read(model: Model) -> None:
    call = {"input_ids": SOURCE[:1], "decoder_input_ids": TARGET[:1]}
    before = model(**call).logits
    for name, value in model.named_parameters():
        kept = value.clone()
        value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(5)))
        assert difference(model(**call).logits, before) > 1e-9, name
        value.copy_(kept)


# PaLM


def turned(x: Tensor) -> Tensor:
    """Rotate the channels 2i and 2i + 1 [time, 2i] by position * 10000^(-2i / width)."""
    time, width = x.shape
    angles = torch.arange(time).double()[:, None] * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    even, odd = x[:, ::2], x[:, 1::2]
    pairs = (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin())
    return torch.stack(pairs, dim=-1).flatten(1)


def palm(ids: list[int], weights: Weights) -> Tensor:
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)) in each layer, then the tied head times 1/sqrt(d_model).

    Attention is multi-query: all heads share one key and one value head. The MLP is Swish(x W) * (x V).
    """
    table = weights["decoder.embedding.tokens.weight"]
    x = table[ids]
    for layer in (f"decoder.layers.{index}" for index in range(3)):
        normal = normed(weights, f"{layer}.norm", x)
        query, key, value = (normal @ weights[f"{layer}.attention.{one}.weight"].T for one in ("query", "key", "value"))
        heads = [mixed(turned(head), turned(key), value, causal=True) for head in query.chunk(4, dim=1)]
        gate, up = (normal @ weights[f"{layer}.feedforward.{one}.weight"].T for one in ("gate", "up"))
        inner = gate * torch.sigmoid(gate) * up
        x = x + torch.cat(heads, dim=1) @ weights[f"{layer}.attention.output.weight"].T
        x = x + inner @ weights[f"{layer}.feedforward.down.weight"].T
    return normed(weights, "decoder.final_norm", x) @ table.T / math.sqrt(x.shape[1])


@torch.no_grad()
def test_palm() -> None:
    model, ids = random_model("palm-8b", PALM), [3, 17, 3, 0, 22, 9, 11]
    assert difference(model(torch.tensor([ids])).logits[0], palm(ids, dict(model.state_dict()))) < 1e-9
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
