"""softmax(query keyᵀ) value: a fast kernel, and the eager reference that it must match."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from tfkit.core.context import Visibility
from tfkit.functional.attention_dropout import Draw, attend_with_dropout, is_faster
from tfkit.functional.band import TileMask, band_of, rows_at, with_rows
from tfkit.functional.dropout import drawn_mask, dropout, is_drawing
from tfkit.functional.precision import wide

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
    rows = TileMask(mask.among(places, mask.span.key()[:, 0]))
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Visibility | TileMask,
    scores: Scores,
    bias: Tensor | None = None,
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
