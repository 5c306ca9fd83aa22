"""PaLM from the paper's formulas: nobody else's implementation, each step written out in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.models import Model, build_model

SMALL = {
    "model.d_model": 16,
    "model.num_layers": 3,
    "model.vocab_size": 23,
    "model.layer.attention.num_heads": 4,
    "model.layer.attention.head_dim": 6,
    "model.layer.feedforward.d_ff": 20,
}


@pytest.fixture
def palm() -> Model:
    """The shipped recipe at a small size, every tensor random."""
    model = build_model(tfkit.load_recipe("palm-8b", overrides=SMALL).blueprint(), seed=1).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return model


def layer_norm(x: list[float], weight: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    spread = sum((value - mean) ** 2 for value in x) / len(x)
    return [w * (value - mean) / math.sqrt(spread + 1e-5) for value, w in zip(x, weight, strict=True)]


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def times(x: list[float], weight: Tensor) -> list[float]:
    """x Wᵀ."""
    return [dot(x, row) for row in weight.tolist()]


def turned(x: list[float], position: int) -> list[float]:
    """Neighbouring channels 2i and 2i + 1 turned by position * 10000^(-2i / width)."""
    out = []
    for i in range(0, len(x), 2):
        angle = position * 10000.0 ** (-i / len(x))
        out.append(x[i] * math.cos(angle) - x[i + 1] * math.sin(angle))
        out.append(x[i + 1] * math.cos(angle) + x[i] * math.sin(angle))
    return out


def attention(rows: list[list[float]], tensors: dict[str, Tensor]) -> list[list[float]]:
    """Multi-query attention: each head has queries of its own, all have the same keys and values."""
    keys = [turned(times(row, tensors["attention.key.weight"]), place) for place, row in enumerate(rows)]
    values = [times(row, tensors["attention.value.weight"]) for row in rows]
    out = []
    for place, row in enumerate(rows):
        queries = times(row, tensors["attention.query.weight"])
        width = len(keys[0])
        joined: list[float] = []
        for begin in range(0, len(queries), width):
            query = turned(queries[begin : begin + width], place)
            scores = [dot(query, key) / math.sqrt(width) for key in keys[: place + 1]]
            weights = [math.exp(score - max(scores)) for score in scores]
            columns = zip(*values[: place + 1], strict=True)
            joined += [dot(weights, column) / sum(weights) for column in columns]
        out.append(times(joined, tensors["attention.output.weight"]))
    return out


def swiglu(x: list[float], tensors: dict[str, Tensor]) -> list[float]:
    """Swish(x W) * (x V), and the way down."""
    gate, up = times(x, tensors["feedforward.gate.weight"]), times(x, tensors["feedforward.up.weight"])
    inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
    return times(inner, tensors["feedforward.down.weight"])


def reference(ids: list[int], tensors: dict[str, Tensor], depth: int) -> list[list[float]]:
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)) in each layer, then the tied head times 1/sqrt(d_model)."""
    table = tensors["decoder.embedding.tokens.weight"]
    rows: list[list[float]] = [table[token].tolist() for token in ids]
    for layer in range(depth):
        prefix = f"decoder.layers.{layer}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        normed = [layer_norm(row, own["norm.weight"].tolist()) for row in rows]
        added = zip(rows, attention(normed, own), [swiglu(row, own) for row in normed], strict=True)
        rows = [[x + a + f for x, a, f in zip(*three, strict=True)] for three in added]
    final = [layer_norm(row, tensors["decoder.final_norm.weight"].tolist()) for row in rows]
    return [[logit / math.sqrt(len(row)) for logit in times(row, table)] for row in final]


def test_palm_is_what_its_paper_says(palm: Model) -> None:
    ids = [3, 17, 3, 0, 22, 9, 11]
    expected = torch.tensor(reference(ids, palm.state_dict(), depth=3), dtype=torch.float64)
    with torch.no_grad():
        logits = palm(torch.tensor([ids])).logits[0]
    assert float((logits - expected).abs().max()) < 1e-9 * float(expected.abs().max())


def test_palm_has_no_biases(palm: Model) -> None:
    assert not [name for name, _ in palm.named_parameters() if name.endswith("bias")]
