"""softmax(query keyᵀ) value: fast kernels, with dropout too, and the eager reference that they must match.

The scores, softmax and dropout of a block fit into the processor's cache, and causal blocks skip keys that none of
their queries see. The backward pass stores two matrices per block, not three.
"""

# Axes: rows (batch * heads), query, block (some of the queries), key, dim, value_dim.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from tfkit.core.context import Visibility
from tfkit.functional.band import TileMask, band_of, rows_at, with_rows
from tfkit.functional.dropout import as_factors, drawn_mask, dropout, is_drawing
from tfkit.functional.linear import AutogradContext
from tfkit.functional.view import wide

BLOCK, BLOCKS = 64, 64  # queries of a block, and the largest number of blocks


class Draw(NamedTuple):
    """Dropout rate, and the mask [rows query key] of the attention weights to keep."""

    rate: float
    keep: Tensor


def is_faster(queries: int, is_causal: bool) -> bool:
    """True if attention in blocks is faster than eager mode for this number of queries."""
    return queries > (BLOCK if is_causal else 2 * BLOCK)


def attend_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, draw: Draw, is_causal: bool
) -> Tensor:
    """Compute dropout(softmax(query keyᵀ)) value, [batch heads query value_dim], from scaled queries.

    `allowed` [batch|1 heads|1 query|1 key] is a mask of visible keys, or a bias that needs no gradient. Alternatively,
    `is_causal` hides later keys. All tensors are float32 on a CPU. Second derivatives are not supported.
    """
    rows = (x.flatten(0, 1) for x in (query, key, value))
    out: Tensor = _attend(*rows, allowed, draw, is_causal, query.shape[:2])  # [rows query value_dim]
    return out.view(*query.shape[:2], *out.shape[1:])


_Backward = Callable[..., tuple[Tensor | None, ...]]
_once: Callable[[_Backward], _Backward] = torch.autograd.function.once_differentiable


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        allowed: Tensor | None,
        draw: Draw,
        is_causal: bool,
        shape: tuple[int, int],
    ) -> Tensor:
        out = query.new_empty(*query.shape[:2], value.shape[2])
        kept = []
        if allowed is not None:
            allowed = allowed.expand(-1, -1, query.shape[1], -1)  # [batch|1 heads|1 query key]
        for block, keys in _blocks(query.shape[1], key.shape[1], is_causal):
            scores = query[:, block] @ key[:, keys].mT  # [rows block key]
            if allowed is not None:
                _restrict(scores.view(*shape, *scores.shape[1:]), allowed[:, :, block])
            elif is_causal:
                hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu_(block.start + 1)
                scores.masked_fill_(hidden, float("-inf"))
            weights = torch.softmax(scores, dim=-1)
            dropped = weights * as_factors(draw.keep[:, block, keys], weights.dtype)
            kept += [weights, dropped]
            out[:, block] = dropped @ value[:, keys]
        out.mul_(1 / (1 - draw.rate))
        ctx.save_for_backward(query, key, value, out, *kept)
        ctx.rate, ctx.is_causal = draw.rate, is_causal
        return out

    @staticmethod
    @_once
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *kept = ctx.saved_tensors
        to_query, to_key, to_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        mean = (grad * out).sum(dim=-1, keepdim=True)  # [rows query 1], mean gradient of each query's weights
        grad = grad * (1 / (1 - ctx.rate))
        blocks = _blocks(query.shape[1], key.shape[1], ctx.is_causal)
        for (block, keys), weights, dropped in zip(blocks, kept[::2], kept[1::2], strict=True):
            to_scores = (grad[:, block] @ value[:, keys].mT).mul_(dropped)  # [rows block key]
            to_scores.addcmul_(weights, mean[:, block], value=-1)
            to_query[:, block] = to_scores @ key[:, keys]
            to_key[:, keys].baddbmm_(to_scores.mT, query[:, block])
            to_value[:, keys].baddbmm_(dropped.mT, grad[:, block])
        return to_query, to_key, to_value, None, None, None, None


_attend: Callable[..., Tensor] = _Attention.apply


def _blocks(queries: int, keys: int, is_causal: bool) -> Iterator[tuple[slice, slice]]:
    """Yield each block of queries with the keys that it can see."""
    size = max(BLOCK, queries // BLOCKS)
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        yield slice(start, stop), slice(0, min(stop, keys) if is_causal else keys)


def _restrict(scores: Tensor, allowed: Tensor) -> None:
    """Hide keys in scores [batch heads block key], or add a bias, in place."""
    if allowed.dtype == torch.bool:
        scores.masked_fill_(~allowed, float("-inf"))
    else:
        scores.add_(allowed)


log = logging.getLogger("tfkit")


@dataclass(frozen=True)
class Scores:
    """Options of attention scores: softcap(query keyᵀ * scale) + bias is masked, then softmax and dropout are applied.

    `sinks` [heads] are the scores of an extra key whose value is zero and which every query sees.
    """

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    sinks: Tensor | None = None


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Visibility, scores: Scores, bias: Tensor | None = None
) -> Tensor:
    """Attend with the fastest kernel that supports the call; fully masked rows return zeros.

    `query` is [batch heads query dim], `key` [batch kv_heads key dim], `value` [batch kv_heads key value_dim], where
    heads is a multiple of kv_heads; `bias` is [batch|1 heads query key]. Return [batch heads query value_dim]. With a
    banded mask and no bias, time and memory are linear in the length.
    """
    if bias is None and scores.softcap is None and scores.sinks is None and mask.is_full:
        return _fused(query, key, value, None, scores)  # the common case of a decode step
    band = band_of(mask, query.shape[0]) if bias is None else None
    if band is None:
        return _whole(query, key, value, mask, scores, bias)
    whole = scores.dropout > 0 and is_drawing()  # a single chunk, so that draws are indexed by the row of the batch
    parts = band.parts(query, key, value, whole)
    out = band.tiles.joined([_whole(*part, scores) for part in parts], query.shape[0])
    if band.places is None or band.rows is None:
        return out
    return with_rows(out, band.places, _whole(rows_at(query, band.places), key, value, band.rows, scores))


def attend_rows(query: Tensor, places: Tensor, key: Tensor, value: Tensor, mask: Visibility, scores: Scores) -> Tensor:
    """Attend with only the queries at `places` [batch n]. Query and output have n positions."""
    rows = TileMask(mask.among(places, mask.span.key()))
    return _whole(query, key, value, rows, scores)


def _whole(
    query: Tensor, key: Tensor, value: Tensor, mask: Visibility | TileMask, scores: Scores, bias: Tensor | None = None
) -> Tensor:
    """Attend from all queries to all keys, without tiling."""
    if scores.softcap is not None:
        announce("no fused kernel supports softcap; attention runs in eager mode")
        return reference(query, key, value, mask, scores, bias)[0]
    if mask.is_causal and bias is None and scores.sinks is None:
        return _fused(query, key, value, None, scores, is_causal=True)
    if scores.sinks is not None:
        return _with_sinks(scores.sinks, query, key, value, mask, scores, bias)
    visible, sees = mask.seen()
    allowed = None if visible is None else visible[:, None]
    if bias is not None:
        allowed = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
        allowed = allowed.to(query.dtype)
    if allowed is not None and torch.compiler.is_exporting():
        allowed = allowed.expand(-1, -1, query.shape[2], -1)  # exported kernels broadcast only over batch and heads
    out = _fused(query, key, value, allowed, scores)
    return out if sees is None else out * sees[:, None]


def _with_sinks(
    sinks: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Visibility | TileMask,
    scores: Scores,
    bias: Tensor | None,
) -> Tensor:
    """Attend with a sink: a zero key whose score is its bias. A row that sees no other key returns zeros."""
    visible = mask.dense()
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    allowed = query.new_zeros(shape) if bias is None else bias.to(query.dtype).expand(shape)
    if visible is not None:
        allowed = allowed.masked_fill(~visible[:, None], float("-inf"))
    sink = repeat(sinks, "head -> batch head query 1", batch=shape[0], query=shape[2])
    allowed = torch.cat((allowed, sink.to(query.dtype)), dim=-1)
    return _fused(query, F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)), allowed, scores)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scores: Scores, is_causal: bool = False
) -> Tensor:
    if scores.dropout and is_drawing():
        return _drawn(query, key, value, allowed, scores, is_causal)
    group = query.shape[1] // key.shape[1]
    if group > 1 and query.shape[2] == 1:
        return _fused_step(query, key, value, allowed, scores)
    return F.scaled_dot_product_attention(
        query, key, value, allowed, scores.dropout, is_causal, scale=scores.scale, enable_gqa=group > 1
    )


def _drawn(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scores: Scores, is_causal: bool
) -> Tensor:
    """Attend with the draws of `drawing`, in blocks or in eager mode, because fused kernels accept no dropout mask."""
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = (repeat(x, "batch head key dim -> batch (head group) key dim", group=group) for x in (key, value))
    if _in_blocks(query, allowed, is_causal):
        weights = query.new_empty(()).expand(*query.shape[:3], key.shape[2])  # only its shape is used; not allocated
        keep = drawn_mask(weights, scores.dropout)
        if keep is not None:
            draw = Draw(scores.dropout, keep.flatten(0, 1))
            return attend_with_dropout(query * scores.scale, key, value, allowed, draw, is_causal)
    raw = (query * scores.scale) @ rearrange(key, "batch head key dim -> batch head dim key")  # [batch head query key]
    if is_causal:
        allowed = torch.ones(raw.shape[-2:], dtype=torch.bool, device=raw.device).tril()
    if allowed is not None:
        raw = raw.masked_fill(~allowed, float("-inf")) if allowed.dtype == torch.bool else raw + allowed
    return dropout(torch.softmax(raw, dim=-1).to(value.dtype), scores.dropout) @ value


def _in_blocks(query: Tensor, allowed: Tensor | None, is_causal: bool) -> bool:
    """True if attention with dropout can run in blocks of queries, and is faster that way."""
    return (
        is_faster(query.shape[2], is_causal)
        and query.device.type == "cpu"
        and query.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and (allowed is None or not allowed.requires_grad)
    )


def _fused_step(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scores: Scores) -> Tensor:
    """Decode step for grouped heads: fold the group into the query axis (half the time)."""
    shape, heads = query.shape, key.shape[1]
    if allowed is not None and allowed.shape[1] > 1:
        allowed = allowed.reshape(allowed.shape[0], heads, -1, allowed.shape[3])
    query = query.reshape(shape[0], heads, -1, shape[3])
    out = F.scaled_dot_product_attention(query, key, value, allowed, scores.dropout, scale=scores.scale)
    return out.reshape(shape[0], shape[1], 1, -1)


def reference(
    query: Tensor, key: Tensor, value: Tensor, mask: Visibility | TileMask, scores: Scores, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend in eager mode, in at least float32.

    Return the output, and the weights [batch heads query key] before dropout.
    """
    group = query.shape[1] // key.shape[1]
    key = repeat(key, "batch head time dim -> batch (head group) time dim", group=group)  # [batch heads key dim]
    value = repeat(value, "batch head time dim -> batch (head group) time dim", group=group)
    # [batch heads query key]
    raw = wide(query) @ rearrange(wide(key), "batch head time dim -> batch head dim time") * scores.scale
    if scores.softcap is not None:
        raw = scores.softcap * torch.tanh(raw / scores.softcap)
    if bias is not None:
        raw = raw + bias.to(raw.dtype)
    visible, sees = mask.seen()
    if visible is not None:
        raw = raw.masked_fill(~visible[:, None], float("-inf"))
    if scores.sinks is not None:
        sink = repeat(scores.sinks.to(raw.dtype), "head -> batch head query 1", batch=raw.shape[0], query=raw.shape[2])
        raw = torch.cat((raw, sink), dim=-1)
    weights = torch.softmax(raw, dim=-1)[..., : key.shape[2]]
    if sees is not None:
        weights = weights * sees[:, None]
    out = dropout(weights, scores.dropout) @ wide(value)  # [batch heads query value_dim]
    return out.to(value.dtype), weights


@cache
def announce(message: str) -> None:
    """Log once that a slower implementation is used."""
    if not torch.compiler.is_compiling():
        log.info(message)
