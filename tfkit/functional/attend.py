"""The only softmax(query keyᵀ) value: an eager float32 reference, and the fast kernel that must equal it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from tfkit.core.context import Visibility

log = logging.getLogger("tfkit")


@dataclass(frozen=True)
class Scores:
    """How raw scores become weights: scores = softcap(query keyᵀ * scale) + bias, then the mask, softmax, dropout."""

    scale: float
    softcap: float | None = None
    dropout: float = 0.0


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Visibility, scores: Scores, bias: Tensor | None = None
) -> Tensor:
    """Attention by the fastest kernel that can do it; rows that may see nothing give zeros.

    `query` is [batch heads query dim], `key` [batch kv_heads key dim], `value` [batch kv_heads key value_dim], where
    heads is a multiple of kv_heads; `bias` is [batch|1 heads query key]. Gives [batch heads query value_dim].
    """
    if scores.softcap is not None:
        announce("soft-capped scores have no fused kernel; attention runs in its eager form")
        return reference(query, key, value, mask, scores, bias)[0]
    if mask.is_causal and bias is None:
        return _fused(query, key, value, None, scores, is_causal=True)
    visible, sees = mask.seen()
    allowed = None if visible is None else visible[:, None]
    if bias is not None:
        allowed = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
        allowed = allowed.to(query.dtype)
    out = _fused(query, key, value, allowed, scores)
    return out if sees is None else out * sees[:, None]


def _fused(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scores: Scores, is_causal: bool = False
) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, allowed, scores.dropout, is_causal, scale=scores.scale, enable_gqa=grouped
    )


def reference(
    query: Tensor, key: Tensor, value: Tensor, mask: Visibility, scores: Scores, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same in plain float32 steps; gives the output and the weights [batch heads query key] before dropout."""
    group = query.shape[1] // key.shape[1]
    key = repeat(key, "batch head time dim -> batch (head group) time dim", group=group)
    value = repeat(value, "batch head time dim -> batch (head group) time dim", group=group)
    raw = query.float() @ rearrange(key.float(), "batch head time dim -> batch head dim time") * scores.scale
    if scores.softcap is not None:
        raw = scores.softcap * torch.tanh(raw / scores.softcap)
    if bias is not None:
        raw = raw + bias.float()
    visible, sees = mask.seen()
    if visible is not None:
        raw = raw.masked_fill(~visible[:, None], float("-inf"))
    weights = torch.softmax(raw, dim=-1)
    if sees is not None:
        weights = weights * sees[:, None]
    out = F.dropout(weights, scores.dropout) @ value.float()
    return out.to(value.dtype), weights


@cache
def announce(message: str) -> None:
    """Say once that a slower way is taken."""
    if not torch.compiler.is_compiling():
        log.info(message)
