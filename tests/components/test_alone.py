"""Parts without a model: built by tfkit.part, called with tensors, and equal to a textbook's classes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfkit
from tfkit.api import ALONE
from tfkit.contracts.options import required
from tfkit.core.registry import REGISTRY

from ..sampling import looped

WIDTH, TIME = 16, 5
SIZES = {"d_model": WIDTH, "vocab_size": 11, "max_length": 8}
PARTS = [(slot, name) for slot in ALONE for name in REGISTRY.names(slot)]


def made(slot: str, name: str, **options: Any) -> Any:
    sizes = SIZES if slot not in ("mask", "init") else {}
    heads = {"num_heads": 4} if slot == "position" else {}
    torch.manual_seed(0)
    return tfkit.part(slot, name, **{**required(slot, name), **sizes, **heads, **options})


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@looped(("slot", "name"), PARTS)
def test_every_part_of_a_model_is_called_alone(slot: str, name: str) -> None:
    part, x, ids = made(slot, name), states(2, TIME, WIDTH), torch.arange(10).view(2, 5)
    if slot in ("attention", "mixer", "feedforward", "norm", "activation"):
        assert part(x).shape == x.shape
    elif name in ("attention_residuals", "hyper_connections"):
        with pytest.raises(tfkit.UsageError, match="streams, which only a model creates"):
            part(x, torch.tanh)
    elif slot == "residual":
        assert part(x, torch.tanh, torch.sin, norm=nn.LayerNorm(WIDTH)).shape == x.shape
    elif slot == "embedding":
        vectors = {"features": x, "patches": states(2, TIME, 27)}
        assert part(vectors.get(name, ids)).shape == x.shape
        if name == "patches":  # of pictures, cut as a model cuts them
            pictures = states(2, 6, 9, 3)
            torch.testing.assert_close(part(pictures), part(part.cut(pictures)), rtol=0, atol=0)
    elif slot == "head":
        assert len(part(x)) == 2
    elif slot == "mask":
        marks = {"global_attention_mask": torch.eye(TIME)[:2]} if name == "global_tokens" else {}
        prefix = {"prefix_length": torch.tensor([1, 3])} if name == "prefix" else {}
        seen = tfkit.context(x, mask=part, causal=part.opens, **marks, **prefix).mask.dense()  # type: ignore[arg-type]
        assert seen is not None and seen.shape[1:] == (TIME, TIME)
    elif slot == "position":
        attention = tfkit.part("attention", "multi_head", num_heads=4, d_model=WIDTH)
        if part.hooks() <= {"embed"}:
            assert part.embed(torch.arange(TIME)[None]).shape == (1, TIME, WIDTH)
            assert made("embedding", "tokens")(ids, position=part).shape == x.shape
        else:
            assert not torch.equal(attention(x, position=part), attention(x))
    else:
        linear = nn.Linear(300, 200)
        before = linear.weight.clone()
        part(linear)
        assert not torch.equal(linear.weight, before)
    if isinstance(part, nn.Module):
        assert all(bool(weight.isfinite().all()) for weight in part.parameters())
        assert not any("part" in key for key in part.state_dict())


class SelfAttention(nn.Module):
    """A textbook's single head: no output projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        out: Tensor = scores.softmax(dim=-1) @ self.v(x)
        return out


class MultiHeadSelfAttention(nn.Module):
    """A textbook's several heads, with an output projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (linear(x).view(batch, time, self.heads, -1).transpose(1, 2) for linear in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        out: Tensor = self.o((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, time, width))
        return out


@looped("causal", [False, True])
@looped("heads", [1, 4])
def test_a_textbooks_two_classes_are_one_line_each(heads: int, causal: bool) -> None:
    torch.manual_seed(0)
    book: nn.Module = SelfAttention(64) if heads == 1 else MultiHeadSelfAttention(64, heads)
    ours = (
        tfkit.part("attention", "multi_head", num_heads=1, output=False, d_model=64)
        if heads == 1
        else tfkit.part("attention", "multi_head", num_heads=4, d_model=64)
    )
    names = {"q": "query", "k": "key", "v": "value", "o": "output"}
    ours.load_state_dict({f"{names[key[0]]}{key[1:]}": value for key, value in book.state_dict().items()})
    book, ours, x = book.double(), ours.double(), states(3, 10, 64).double()
    want = book(x, torch.ones(10, 10).tril().bool() if causal else None)
    assert (ours(x, causal=causal) - want).abs().max() <= 1e-15


def test_attention_takes_memory_masks_padding_and_positions() -> None:
    attention = made("attention", "multi_head").eval()
    x, memory = states(2, TIME, WIDTH), states(2, 7, WIDTH)
    assert torch.equal(attention(x, memory=memory), attention(x, tfkit.context(x, memory=memory)))
    tril = torch.ones(TIME, TIME).tril().bool()
    assert torch.allclose(attention(x, mask=tril), attention(x, causal=True), atol=1e-6)
    window = tfkit.part("mask", "window", size=2, causal=True)
    near = tril & ~tril.tril(-2)
    assert torch.allclose(attention(x, mask=near.expand(2, -1, -1)), attention(x, causal=True, mask=window), atol=1e-6)
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert torch.allclose(attention(x, attention_mask=real)[0, :3], attention(x[:1, :3])[0], atol=1e-6)
    packed = attention(x, segment_ids=torch.tensor([[0, 0, 0, 1, 1]] * 2))
    assert torch.allclose(packed[:, 3:], attention(x[:, 3:]), atol=1e-6)
    seen = tfkit.context(x, causal=True, observe={"attention"})
    attention(x, seen)
    assert seen.collector.observed["attention"][0].shape == (2, 4, TIME, TIME)


def test_a_decode_state_serves_a_part_alone() -> None:
    attention = made("attention", "multi_head").eval()
    x, state, rotary = states(2, TIME, WIDTH), attention.new_state(), made("position", "rotary")
    steps = [attention(x[:, i : i + 1], causal=True, state=state, position=rotary) for i in range(TIME)]
    assert torch.allclose(torch.cat(steps, dim=1), attention(x, causal=True, position=rotary), atol=1e-6)


def test_a_part_alone_is_copied_and_moved_like_any_module() -> None:
    attention = copy.deepcopy(made("attention", "multi_head", output=False)).bfloat16()
    assert attention(states(2, TIME, WIDTH).bfloat16()).dtype == torch.bfloat16
    assert sorted(attention.state_dict()) == [
        *("key.bias", "key.weight", "query.bias", "query.weight", "value.bias", "value.weight")
    ]


def wrong(slot: str, type: str, **options: Any) -> str:
    with pytest.raises(tfkit.TfkitError) as caught:
        tfkit.part(slot, type, **options)
    return str(caught.value)


def test_wrong_options_and_sizes_are_refused_by_name_all_at_once() -> None:
    text = wrong("attention", "multi_head", num_heads=3, d_modle=64, dropuot=0.1, max_length=-1)
    assert text.count("tfkit.part: attention.") == 3
    assert "attention.d_modle: unknown option. Did you mean 'd_model'?" in text
    assert "attention.dropuot: unknown option. Did you mean 'dropout'?" in text
    assert "attention.max_length: must be at least 1, got -1" in text
    assert "3 heads do not divide d_model 64" in wrong("attention", "multi_head", num_heads=3, d_model=64)
    assert "needs the option 'num_heads'" in wrong("attention", "multi_head", d_model=64)
    assert "unknown attention 'multihed'. Did you mean 'multi_head'?" in wrong("attention", "multihed", d_model=64)
    assert "attention 'multi_head' requires its width" in wrong("attention", "multi_head", num_heads=4)
    assert "tied to the table" in wrong("head", "language_model", tied=True, d_model=4, vocab_size=3)
    assert "did you mean 'attention'" in wrong("atention", "multi_head")
    assert "use tfkit.build" in wrong("model", "decoder")
    assert "embedding= is only for a head" in wrong("norm", "layer_norm", d_model=4, embedding=nn.Identity())


def test_heads_that_do_not_fit_without_an_output_projection_are_refused() -> None:
    text = wrong("attention", "multi_head", num_heads=4, value_dim=3, output=False, d_model=16)
    assert "attention.output: 4 heads of 3 channels have width 12, not d_model 16" in text
    text = wrong("attention", "multi_head", num_heads=4, bias=["output"], output=False, d_model=16)
    assert "attention.bias: there is no output projection; remove" in text


@looped(
    ("slot", "name", "call", "message"),
    [
        ("attention", "multi_head", {"msak": None}, "unknown input msak: did you mean mask"),
        ("attention", "multi_head", {"mask": torch.ones(TIME, TIME)}, "True = visible; got"),
        ("attention", "multi_head", {"mask": torch.ones(2, 2).bool()}, r"\[5, 5\], True = visible"),
        ("attention", "multi_head", {"memory": torch.ones(2, 3, 4)}, "built for memory of width 16"),
        ("attention", "multi_head", {"memory": torch.ones(1, 3, WIDTH)}, "with the same batch size"),
        ("attention", "multi_head", {"attention_mask": torch.ones(2, 3)}, "attention_mask must be"),
        ("attention", "multi_head", {"prefix_length": torch.ones(2)}, "no part of this model reads"),
        ("attention", "multi_head", {"global_attention_mask": torch.ones(2, TIME)}, "no part of this model reads"),
        ("attention", "linear", {"mask": torch.ones(TIME, TIME).bool()}, "does not support mask: it does not declare"),
        ("attention", "linear", {"causal": True}, "was built for causal=False; build it with causal=True"),
        ("attention", "linear", {"observe": {"attention"}}, "does not support observe: it does not declare 'weights'"),
        ("mixer", "mamba", {"causal": False}, "was built for causal=True"),
        ("feedforward", "mlp", {"memory": torch.ones(2, 3, WIDTH)}, "does not support memory"),
        ("attention", "multi_head", {"mask": torch.ones(3, 5, 5).bool()}, "True = visible; got"),
        ("attention", "multi_head", {"mask": "window"}, r"mask must be a part created by tfkit.part"),
        ("attention", "multi_head", {"position": "rotary"}, r"position must be a part created by tfkit.part"),
        ("embedding", "tokens", {"mask": 1}, "unknown input mask")
    ]
)  # fmt: skip
def test_a_call_that_a_part_cannot_honour_is_refused_by_name(
    slot: str, name: str, call: dict[str, Any], message: str
) -> None:
    part = made(slot, name)
    x = states(2, TIME, WIDTH) if slot != "embedding" else torch.ones(2, TIME).long()
    with pytest.raises(tfkit.UsageError, match=message):
        part(x, **call)


def test_positions_that_do_nothing_in_a_layer_are_refused() -> None:
    attention, x = made("attention", "multi_head"), states(2, TIME, WIDTH)
    with pytest.raises(tfkit.UsageError, match="pass it to the embedding"):
        attention(x, position=made("position", "sinusoidal"))
    with pytest.raises(tfkit.UsageError, match="does not support position"):
        made("attention", "linear")(x, position=made("position", "alibi"))
    with pytest.raises(tfkit.UsageError, match="built for x of width 16"):
        attention(x[..., :3])
    with pytest.raises(tfkit.UsageError, match="x must be"):
        attention(x[0])
    with pytest.raises(tfkit.UsageError, match="ids must be from 0 to 10, got 11"):
        made("embedding", "tokens")(torch.tensor([[11]]))
    with pytest.raises(tfkit.UsageError, match="residual\\(x, f, norm=norm\\)"):
        made("residual", "pre_norm")(x, 3)
