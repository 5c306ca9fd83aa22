"""Each hook of `multi_head` in a small subclass: its formula, contracts, fused copies and static caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.generation.searching import best, small
from tfkit.components.attention import MultiHead
from tfkit.components.attention.multi_head import Projected
from tfkit.components.position import Rotary
from tfkit.contracts.calls import Alone, randomise, states
from tfkit.contracts.cases import Case
from tfkit.contracts.verify import verify
from tfkit.core.context import Context
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.stepper import Stepper, evaluating
from tfkit.models import Model
from tfkit.models.static import decode_step

from .broken import Register

HEADS, DIM = 4, 4  # of the part alone
CHECKS = (
    "built", "shapes", "determinism", "precision", "gradients", "future", "padding", "packing", "few", "cache",
    "reorder", "rotation", "bias", "temperature", "cross_attention", "weights",
)  # fmt: skip


class Weighted(MultiHead):
    """Adds weights of its own: one for each head, and one for each channel."""

    def __init__(self, config: MultiHead.Config, shape: Any) -> None:
        super().__init__(config, shape)
        self.by_head = nn.Parameter(torch.ones(self.kv_heads, 1, 1))


class Bent(MultiHead):
    def project(self, x: Tensor, context: Context) -> tuple[Tensor, ...]:
        query, *rest = super().project(x, context)
        return (query.tanh(), *rest)


class Interleaved(MultiHead):
    def split_heads(self, x: Tensor, dim: int) -> Tensor:
        return x.unflatten(-1, (dim, -1)).movedim(-1, 1)


class ScaledValues(Weighted):
    def normalize_heads(self, x: Tensor, of: Projected) -> Tensor:
        return x * self.by_head if of == "value" else super().normalize_heads(x, of)


class Unit(MultiHead):
    inert = frozenset()  # a key's bias changes its direction

    def normalize_heads(self, x: Tensor, of: Projected) -> Tensor:
        return x if of == "value" else 3 * F.normalize(x, dim=-1)


class HalfTurned(MultiHead):
    def rotate(self, x: Tensor, of: Projected, context: Context, of_keys: bool = False) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return torch.cat((super().rotate(first, of, context, of_keys), second), dim=1)


class Warm(Weighted):
    def scale(self, query: Tensor, context: Context) -> Tensor:
        return super().scale(query, context) * self.by_head


class Sharpened(Weighted):
    def keys_values(self, new: Sequence[Tensor], context: Context) -> tuple[Tensor, Tensor]:
        key, value = super().keys_values(new, context)
        return key * self.by_head, value


class Exclusive(MultiHead):
    """Exclusive self-attention: outputs without their component along the token's own value."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        out = super().attend(query, key, value, context)
        if context.source is not None:
            return out
        own = F.normalize(context.mask.span.own(value), dim=-1)
        return out - (out * own).sum(dim=-1, keepdim=True) * own


class Shut(MultiHead):
    def gated(self, out: Tensor, x: Tensor) -> Tensor:
        return out * x.mean(dim=-1).sigmoid()[:, None, :, None]


class Reversed(MultiHead):
    def join_heads(self, x: Tensor) -> Tensor:
        return super().join_heads(x.flip(1))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def exclusive(out: Tensor, value: Tensor) -> Tensor:
    along = (out * value).sum(dim=-1, keepdim=True) / (value * value).sum(dim=-1, keepdim=True)
    return out - along * value


def interleaved(x: Tensor) -> Tensor:
    return torch.stack([x[..., head::HEADS] for head in range(HEADS)], dim=1)


def apart(x: Tensor) -> Tensor:
    return torch.stack([x[..., head * DIM : (head + 1) * DIM] for head in range(HEADS)], dim=1)


# subclass -> the steps of the formula in plain torch that differ
HOOKS: dict[type[MultiHead], dict[str, Any]] = {
    Bent: {"query": lambda part, q: q.tanh()},
    Interleaved: {"split": interleaved},
    ScaledValues: {"values": lambda part, v: v * part.by_head},
    Unit: {"queries": lambda part, q: 3 * unit(q), "keys": lambda part, k: 3 * unit(k)},
    HalfTurned: {"turned": 2},
    Warm: {"queries": lambda part, q: q * part.by_head},
    Sharpened: {"keys": lambda part, k: k * part.by_head},
    Exclusive: {"out": lambda part, out, v, x: exclusive(out, v)},
    Shut: {"out": lambda part, out, v, x: out * (1 / (1 + (-x.mean(dim=-1)).exp()))[:, None, :, None]},
    Reversed: {"heads": (3, 2, 1, 0)},
}


def formula(part: Any, x: Tensor, turn: Callable[[Tensor], Tensor], **how: Any) -> Tensor:
    """Causal attention, written out; `how` has the steps that a subclass changes."""

    def same(part: Any, it: Tensor, *more: Tensor) -> Tensor:
        return it

    split = how.get("split", apart)
    query = how.get("queries", same)(part, split(how.get("query", same)(part, part.query(x))))
    key = how.get("keys", same)(part, split(part.key(x)))
    value = how.get("values", same)(part, split(part.value(x)))
    turned = how.get("turned", HEADS)
    query, key = (torch.cat((turn(it[:, :turned]), it[:, turned:]), dim=1) for it in (query, key))
    scores = (query @ key.mT / DIM**0.5).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
    out = how.get("out", same)(part, scores.softmax(dim=-1) @ value, value, x)
    return part.output(torch.cat([out[:, head] for head in how.get("heads", range(HEADS))], dim=-1))  # type: ignore[no-any-return]


def logits(net: Model, rows: int, static: bool = False) -> Tensor:
    """Logits of some steps of decoding, [rows steps vocab]."""
    ids = torch.arange(rows * 9).view(rows, 9) * 7 % 23
    found = []
    with evaluating(net):
        stepper = Stepper(net, ids[:, :5].tolist(), rooms=[9] * rows, step=decode_step if static else None)
        for step in range(5, 9):
            found.append(stepper.logits())
            stepper.append(ids[:, step])
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("kind", HOOKS, ids=lambda kind: kind.__name__)
def test_a_subclass_that_overrides_one_hook(kind: type[MultiHead], register: Register) -> None:
    name = register("attention", kind).part_name
    part, x = Alone(Case("attention", name)), states(2, 7)
    rotary = Rotary(Rotary.Config(), part.shape)
    turn = rotary.rotation(torch.arange(7)[None], DIM)
    with torch.no_grad():
        torch.testing.assert_close(part(x, position=rotary), formula(part.part, x, turn, **HOOKS[kind]))
    report = verify(kind, checks=(*CHECKS, "export") if kind is Exclusive else CHECKS, options=0)
    assert report.holds, str(report)
    model = small(position="rotary", layer=layer(name))
    randomise(model)
    plain, fused = logits(model, 3), StepDecoder(model)
    assert far(logits(fused.current(), 3), plain) < 1e-5
    assert far(logits(fused.current(), 3, static=True), plain) < 1e-5
    assert far(logits(StepDecoder(model, "int8").current(), 3), plain) < 0.2
    assert best(model, [[5, 6], [3]], 9, step=decode_step) == best(model, [[5, 6], [3]], 9)


def layer(name: str) -> dict[str, Any]:
    attention = {"type": name, "num_heads": 4}
    feedforward, window = {"type": "glu", "d_ff": 16}, {"type": "window", "size": 4}
    return {"norm": "layer_norm", "attention": attention, "feedforward": feedforward, "mask": window}


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
