"""The original Transformer against its paper: the formulas of Vaswani et al. 2017, in float64 and in loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

TINY = {
    "model.d_model": 12, "model.vocab_size": 19, "model.encoder.num_layers": 2, "model.decoder.num_layers": 3,
    "model.layer.attention.num_heads": 3, "model.layer.feedforward.d_ff": 20,
}  # fmt: skip
HEADS = 3
Weights = dict[str, Tensor]
# one text with padding after it, one without; what is written is as long as it likes
SOURCE = torch.tensor([[4, 8, 15, 16, 2], [3, 18, 5, 0, 0]])
LENGTHS = [5, 3]
TARGET = torch.tensor([[1, 7, 9, 11], [1, 13, 6, 17]])


def embedded(weights: Weights, ids: list[int]) -> Tensor:
    """Section 3.4 and 3.5: the rows of the one table times the root of the width, and sines and cosines added.

    They are those of float32, which a model of any precision adds.
    """
    table = weights["encoder.embedding.tokens.weight"]
    width = table.shape[1]
    rows = []
    for position, id_ in enumerate(ids):
        row = [float(value) * math.sqrt(width) for value in table[id_]]
        for pair in range(width // 2):
            angle = position / 10000 ** (2 * pair / width)
            sine, cosine = torch.tensor([math.sin(angle), math.cos(angle)], dtype=torch.float32).tolist()
            row[2 * pair] += sine
            row[2 * pair + 1] += cosine
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def normed(weights: Weights, name: str, x: Tensor) -> Tensor:
    """LayerNorm, each vector by itself."""
    out = torch.empty_like(x)
    for index, row in enumerate(x):
        mean = sum(map(float, row)) / len(row)
        variance = sum((float(value) - mean) ** 2 for value in row) / len(row)
        out[index] = (row - mean) / math.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return out


def attended(weights: Weights, name: str, x: Tensor, source: Tensor, sees: Callable[[int, int], bool]) -> Tensor:
    """Section 3.2: softmax(QK^T / sqrt(d_k)) V of each head, one query after another, joined and projected."""
    query, key, value = (weights[f"{name}.{part}.weight"] for part in ("query", "key", "value"))
    dim = len(query) // HEADS
    rows = []
    for place, vector in enumerate(x):
        joined: list[Tensor] = []
        for head in range(HEADS):
            part = slice(head * dim, (head + 1) * dim)
            visible = [other for other in range(len(source)) if sees(place, other)]
            scores = [float((query[part] @ vector) @ (key[part] @ source[other])) / math.sqrt(dim) for other in visible]
            total = sum(map(math.exp, scores))
            shares = [math.exp(score) / total for score in scores]
            mixed = [share * (value[part] @ source[other]) for share, other in zip(shares, visible, strict=True)]
            joined.append(torch.stack(mixed).sum(dim=0))
        rows.append(weights[f"{name}.output.weight"] @ torch.cat(joined))
    return torch.stack(rows)


def fed(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Section 3.3: max(0, x W1 + b1) W2 + b2."""
    rows = []
    for vector in x:
        inner = (weights[f"{name}.up.weight"] @ vector + weights[f"{name}.up.bias"]).clamp(min=0)
        rows.append(weights[f"{name}.down.weight"] @ inner + weights[f"{name}.down.bias"])
    return torch.stack(rows)


def logits(weights: Weights, source: list[int], target: list[int], layers: tuple[int, int] = (2, 3)) -> Tensor:
    """Figure 1: LayerNorm(x + Sublayer(x)) all the way up, the output the table itself."""
    memory = embedded(weights, source)
    for index in range(layers[0]):
        name = f"encoder.layers.{index}"
        mixed = attended(weights, f"{name}.attention", memory, memory, lambda place, other: True)
        memory = normed(weights, f"{name}.attention_norm", memory + mixed)
        memory = normed(weights, f"{name}.feedforward_norm", memory + fed(weights, f"{name}.feedforward", memory))
    x = embedded(weights, target)
    for index in range(layers[1]):
        name = f"decoder.layers.{index}"
        mixed = attended(weights, f"{name}.attention", x, x, lambda place, other: other <= place)
        x = normed(weights, f"{name}.attention_norm", x + mixed)
        mixed = attended(weights, f"{name}.cross_attention", x, memory, lambda place, other: True)
        x = normed(weights, f"{name}.cross_attention_norm", x + mixed)
        x = normed(weights, f"{name}.feedforward_norm", x + fed(weights, f"{name}.feedforward", x))
    return x @ weights["encoder.embedding.tokens.weight"].T


@pytest.fixture(scope="module", params=["transformer-base", "transformer-big"])
def model(request: pytest.FixtureRequest) -> Model:
    """The shipped recipe, tiny and in float64, every weight random."""
    blueprint = load_recipe(request.param, overrides=TINY).blueprint()
    made = build_model(blueprint, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.4)
    return made


def said(model: Model, **call: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(**call).logits
    return out


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_the_paper_s_formulas_with_padding(model: Model) -> None:
    real = torch.tensor([[place < length for place in range(5)] for length in LENGTHS]).long()
    ours = said(model, input_ids=SOURCE, attention_mask=real, decoder_input_ids=TARGET)
    for row, length in enumerate(LENGTHS):
        theirs = logits(dict(model.state_dict()), SOURCE[row, :length].tolist(), TARGET[row].tolist())
        assert theirs.std() > 1e-2
        assert apart(ours[row], theirs) < 1e-9


def test_the_paper_s_formulas_one_token_at_a_time(model: Model) -> None:
    state = model.new_state()
    steps = [
        said(model, input_ids=SOURCE[:1], decoder_input_ids=TARGET[:1, [place]], state=state)[0, 0]
        for place in range(4)
    ]
    theirs = logits(dict(model.state_dict()), SOURCE[0].tolist(), TARGET[0].tolist())
    assert apart(torch.stack(steps), theirs) < 1e-9


@pytest.mark.full
def test_every_weight_is_read(model: Model) -> None:
    before = said(model, input_ids=SOURCE[:1], decoder_input_ids=TARGET[:1])
    for name, value in model.named_parameters():
        kept = value.detach().clone()
        with torch.no_grad():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(5)))
            assert apart(said(model, input_ids=SOURCE[:1], decoder_input_ids=TARGET[:1]), before) > 1e-9, name
            value.copy_(kept)
