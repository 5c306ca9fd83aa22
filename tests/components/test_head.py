"""Heads against their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfkit
from tfkit.components.embedding import Tokens
from tfkit.components.head import MaskedLM
from tfkit.core.component import Shape
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY

from ..models.small import small
from ..sampling import looped

SHAPE = Shape(d_model=4, vocab_size=7)
HIDDEN = torch.randn(2, 3, 4)
ROWS = HIDDEN.reshape(-1, 4)
TARGETS = torch.tensor([0, 6, 3, 3, 1, 2])


def build(name: str, embedding: nn.Module | None = None, **options: Any) -> Any:
    config = REGISTRY.get("head", name).Config.model_validate(options)
    assert not list(config.check(SHAPE))
    return config.build(SHAPE, embedding).eval()


def embedding(**options: Any) -> Tokens:
    return Tokens(Tokens.Config.model_validate(options), SHAPE)


def nats(logits: Tensor) -> float:
    """Cross-entropy by its definition."""
    total = 0.0
    for row, target in zip(logits.double().reshape(-1, 7).tolist(), TARGETS.tolist(), strict=True):
        total += math.log(sum(math.exp(v) for v in row)) - row[target]
    return total


# --- language_model ---


@looped(
    ("options", "factor"),
    [
        ({}, 1.0),
        ({"bias": True, "scale": "1/sqrt_d_model"}, 0.5),
        ({"scale": 0.0625}, 0.0625),
        ({"bias": True, "scale": "sqrt_d_model"}, 2.0),
        ({"softcap": 0.5}, 1.0),
    ],
)
def test_language_model_equals_the_formula(options: dict[str, Any], factor: float) -> None:
    head, cap = build("language_model", **options), options.get("softcap")
    raw = factor * HIDDEN @ head.output.weight.T + (head.output.bias if "bias" in options else 0)
    torch.testing.assert_close(head(HIDDEN), raw if cap is None else cap * torch.tanh(raw / cap))
    assert (head.output.bias is None) == ("bias" not in options) and head.plain == (cap is None)
    assert head.loss(ROWS, TARGETS).item() == pytest.approx(nats(head(ROWS)), rel=1e-5)


def test_language_model_tied_reads_the_table_a_narrow_one_by_a_projection() -> None:
    for table in (embedding(), embedding(d_embedding=2)):
        head = build("language_model", table, tied=True)
        assert head.output.weight is table.tokens.weight
        narrow = HIDDEN @ head.projection.weight.T if table.width == 2 else HIDDEN
        torch.testing.assert_close(head(HIDDEN), narrow @ table.tokens.weight.T)
        untied = build("language_model", table)
        assert untied.output.weight is not table.tokens.weight
        assert set(untied.state_dict()) == {"output.weight"}


def test_a_frozen_bias_is_zero_and_never_trained() -> None:
    for table in (None, embedding()):
        head = build("language_model", table, tied=table is not None, bias="frozen")
        assert not head.output.bias.any() and not head.output.bias.requires_grad
        head.loss(ROWS, TARGETS).backward()
        assert head.output.bias.grad is None and head.output.weight.grad is not None


@pytest.mark.parametrize("name", ["language_model", "masked_lm"])
def test_tied_to_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="tied"):
        build(name, None, tied=True)
    part = REGISTRY.get("head", name)
    assert [problem.option for problem in part.Config().check(Shape(4))] == [""]
    with pytest.raises(UsageError, match="vocab_size"):
        part.Config().build(Shape(4), None)


# --- masked_lm ---


@pytest.mark.parametrize("width", [None, 2])
def test_masked_lm_equals_the_formula(width: int | None) -> None:
    table = embedding(d_embedding=width)
    head = build("masked_lm", table, tied=True, activation="relu", norm={"type": "layer_norm", "eps": 1e-12})
    x = (HIDDEN @ head.dense.weight.T + head.dense.bias).clamp(min=0)
    assert x.shape[-1] == (width or 4)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-12).sqrt()
    torch.testing.assert_close(head(HIDDEN), x @ table.tokens.weight.T + head.output.bias, rtol=1e-4, atol=1e-5)
    assert head.loss(ROWS, TARGETS).item() == pytest.approx(nats(head(ROWS)), rel=1e-5)


@looped(
    ("bias", "names"),
    [(True, ["dense", "output"]), (False, []), (["output"], ["output"]), ("frozen", ["dense", "output"])],
)
def test_masked_lm_biases(bias: Any, names: list[str]) -> None:
    head = build("masked_lm", norm=None, bias=bias)
    assert [name.removesuffix(".bias") for name in head.state_dict() if name.endswith("bias")] == names
    if bias == "frozen":
        assert head.dense.bias.requires_grad and not head.output.bias.requires_grad


def test_masked_lm_refuses_a_bias_of_no_projection() -> None:
    assert [problem.option for problem in MaskedLM.Config(bias=("up",)).check(SHAPE)] == ["bias"]


# --- classifier ---

REAL = torch.tensor([[True, True, False], [False, True, True]])


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("first", [HIDDEN[0, 0], HIDDEN[1, 1]]),
        ("last", [HIDDEN[0, 1], HIDDEN[1, 2]]),
        ("mean", [(HIDDEN[0, 0] + HIDDEN[0, 1]) / 2, (HIDDEN[1, 1] + HIDDEN[1, 2]) / 2]),
    ],
)
def test_classifier_pools_the_real_tokens(pool: Any, expected: list[Tensor]) -> None:
    head = build("classifier", num_classes=5, pool=pool)
    spoilt = HIDDEN.masked_fill(~REAL[..., None], float("nan"))
    out = head(spoilt, REAL)
    assert out.shape == (2, 5)
    torch.testing.assert_close(out, torch.stack(expected) @ head.output.weight.T + head.output.bias)


@pytest.mark.parametrize("pool", ["first", "mean", "last"])
def test_classifier_without_padding_takes_all(pool: Any) -> None:
    head = build("classifier", num_classes=5, pool=pool)
    torch.testing.assert_close(head(HIDDEN), head(HIDDEN, torch.ones(2, 3, dtype=torch.bool)))
    assert head(HIDDEN, torch.zeros(2, 3, dtype=torch.bool)).isfinite().all()


def test_classifier_with_an_activation_is_bert_s_pooler() -> None:
    head = build("classifier", num_classes=2, activation="tanh")
    pooled = torch.tanh(HIDDEN[:, 0] @ head.dense.weight.T + head.dense.bias)
    torch.testing.assert_close(head(HIDDEN), pooled @ head.output.weight.T + head.output.bias)
    assert set(build("classifier", num_classes=2, bias=False).state_dict()) == {"output.weight"}


# --- the others ---


def test_pooled_gives_a_vector_a_text() -> None:
    real = torch.tensor([[1, 1, 0], [0, 1, 1]])
    first = torch.stack([HIDDEN[0, 0], HIDDEN[1, 1]])
    assert torch.equal(build("pooled")(HIDDEN, real), first)
    assert not build("pooled").state_dict()
    head = build("pooled", activation="tanh")
    torch.testing.assert_close(head(HIDDEN, real), (first @ head.dense.weight.T + head.dense.bias).tanh())
    head = build("pooled", pool="mean", d_output=6, bias=False, normalized=True)
    mean = torch.stack([HIDDEN[0, :2].mean(0), HIDDEN[1, 1:].mean(0)]) @ head.dense.weight.T
    torch.testing.assert_close(head(HIDDEN, real), mean / mean.norm(dim=1, keepdim=True))
    assert set(head.state_dict()) == {"dense.weight"}


def test_a_text_that_is_pooled_ends_at_the_token_that_says_so() -> None:
    head = {"type": "pooled", "pool": "last", "until": 3}
    made = tfkit.build(small(type="encoder", d_model=4, num_layers=1, position="none", head=head)).eval()
    ids = torch.tensor([[1, 3, 3, 2], [4, 5, 6, 7], [4, 5, 6, 3]])
    out = made(ids, attention_mask=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]]))
    assert torch.equal(out.logits, torch.stack([out.hidden[0, 1], out.hidden[1, 1], out.hidden[2, 3]]))
    padded = made(torch.tensor([[3, 3, 4, 5, 3], [3, 3, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]))
    assert torch.equal(padded.logits, padded.hidden[:, 4]), "padding may be of the same id, on the left too"
    padded = made(torch.tensor([[4, 5, 3, 3, 3]]), torch.tensor([[1, 1, 0, 0, 0]]))
    assert torch.equal(padded.logits, padded.hidden[:, 1])
    with pytest.raises(UsageError, match="searches the input for token 3; pass input_ids"):
        made(inputs_embeds=torch.zeros(1, 2, 4))


def test_masked_lm_with_a_width_of_its_own() -> None:
    head = build("masked_lm", d_output=6, norm="layer_norm")
    assert head.dense.weight.shape == (6, 4)
    assert head.output.weight.shape == (7, 6)
    config = REGISTRY.get("head", "masked_lm").Config.model_validate({"tied": True, "d_output": 6})
    assert [problem.option for problem in config.check(SHAPE)] == ["d_output"]


def test_hidden_gives_what_it_reads() -> None:
    head = build("hidden")
    assert torch.equal(head(HIDDEN), HIDDEN) and not list(head.parameters())


def test_discriminator_gives_a_logit_a_token() -> None:
    head = build("discriminator", activation="relu")
    inner = (HIDDEN @ head.dense.weight.T + head.dense.bias).clamp(min=0)
    torch.testing.assert_close(head(HIDDEN), (inner @ head.output.weight.T + head.output.bias)[..., 0])
    assert head(HIDDEN).shape == (2, 3)
