"""The gated delta rule at a cost linear in the length: matrix products within chunks, a recurrence between them.

S_t = (I - b_t k_t k_tᵀ) diag(a_t) S_(t-1) + b_t k_t v_tᵀ and o_t = S_tᵀ q_t (Yang et al. 2024, arXiv 2412.06464, with
one decay a_t per head; Kimi Team 2025, arXiv 2510.26692, with one per channel).

Within a chunk, S_t is the decayed state before it plus sum_j diag(a_(j+1) ... a_t) k_j u_jᵀ. The writes u_t follow from
the earlier ones, u_t = b_t (v_t - reading of k_t just before t), a triangular system (the UT transform).
"""

# Axes: chunk, batch, head, time (in a chunk: query and key), dim (of keys), value (channels), part (of a chunk).
# Decays are logarithms [... time channel], with one channel or `dim`.

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

CHUNK = 64  # tokens per chunk; the work within chunks grows with it, the number of steps falls
CHUNKS = "batch head (chunk time) dim -> chunk batch head time dim"


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor,
    texts: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [batch head time value] and the state after the last token, [batch head dim value].

    `query` and `key` are [batch head time dim], `value` is [batch head time value], the write strength b is
    [batch head time 1], and `decay` is log a [batch head time 1|dim], at most 0. `state` is that before the first
    token; none: zeros. Tokens with unequal numbers in `texts` [batch time] do not see each other; `chunk` is a power
    of 2.
    """
    time = query.shape[2]
    size = min(chunk, 1 << (time - 1).bit_length())
    query, key, value, decay, strength = (
        rearrange(F.pad(x, (0, 0, 0, -time % size)), CHUNKS, time=size) for x in (query, key, value, decay, strength)
    )
    since, until = decay.cumsum(dim=-2).exp(), _following(decay).exp()  # [chunk batch head time channel]
    both = weighted_products(torch.stack((query, key)), key, decay)
    scores, overlap = both[0], both[1] * strength  # [chunk batch head query key]
    # what reads the state before the chunk, is written to the state after it, and remains of the former
    reads, erases, writes, remains = query * since, key * since, key * until, since[..., -1, :, None]
    if texts is not None:
        same, first, last, through = _shared(texts, size)
        scores, overlap = scores * same, overlap * same
        reads, erases, writes, remains = reads * first, erases * first, writes * last, remains * through
    solved = torch.linalg.solve_triangular(
        overlap, torch.cat((erases, value), dim=-1) * strength, upper=False, unitriangular=True
    )
    erased, added = solved.split((key.shape[-1], value.shape[-1]), dim=-1)
    if state is None:
        state = key.new_zeros((*key.shape[1:3], key.shape[-1], value.shape[-1]))
    out, state = _carried((reads, scores, erased, added, writes, remains), state)
    return out[:, :, :time], state


def _carried(chunks: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, Tensor]:
    """Pass the state [batch head dim value] through the chunks. Return the outputs and the last state."""
    if (
        state.is_meta
    ):  # no values: all chunks at once, at the same cost, since counting thousands of steps takes minutes
        chunks = tuple(each[None] for each in chunks)
        state = state.expand(chunks[0].shape[1], *state.shape)
    out = []
    # unbound, because the gradients of n indexed chunks would take n² steps
    for read, score, erased, added, write, remains in zip(*(each.unbind() for each in chunks), strict=True):
        new = added - erased @ state  # u: [batch head time value]
        out.append(read @ state + score @ new)
        state = remains * state + write.transpose(-1, -2) @ new
    if state.is_meta:
        return rearrange(out[0], "chunk batch head time value -> batch head (chunk time) value"), state[-1]
    return torch.cat(out, dim=2), state


def weighted_products(query: Tensor, key: Tensor, decay: Tensor) -> Tensor:
    """Return sum_d query_id key_jd exp(decay_(j+1)d + ... + decay_id) for j <= i, else 0: [... query key].

    Halves of the tokens are paired through the border between them, and then each half by itself, so that every
    exponent is at most 0 and no sum of decays is a difference of larger ones.
    """
    if decay.shape[-1] == 1 < key.shape[-1]:
        one = torch.ones_like(decay)
        return (query @ key.transpose(-1, -2)) * weighted_products(one, one, decay)
    half = key.shape[-2] // 2
    if not half:
        return (query * key).sum(dim=-1, keepdim=True)
    halves = "... (part time) dim -> ... part time dim"
    query, key, decay = (rearrange(x, halves, part=2) for x in (query, key, decay))
    later = query[..., 1, :, :] * decay[..., 1, :, :].cumsum(dim=-2).exp()
    earlier = key[..., 0, :, :] * _following(decay[..., 0, :, :]).exp()
    near, far = weighted_products(query, key, decay), later @ earlier.transpose(-1, -2)
    above = F.pad(near[..., 0, :, :], (0, half))
    return torch.cat((above, torch.cat((far, near[..., 1, :, :]), dim=-1)), dim=-2)


def _following(decay: Tensor) -> Tensor:
    """Return the sum of the decays after each token, [... time channel]."""
    return F.pad(decay[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(dim=-2).flip(-2)


def _shared(texts: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which tokens of a chunk share a text with each other, with the token before it, and with its last token.

    The shapes are [chunk batch 1 query key] and [chunk batch 1 time 1] twice; the fourth is [chunk batch 1 1 1], True
    if the token before the chunk shares a text with its last one.
    """
    missing = -texts.shape[1] % size
    texts = torch.cat((texts, texts[:, -1:].expand(-1, missing)), dim=1)
    texts = rearrange(texts, "batch (chunk time) -> chunk batch 1 time 1", time=size)
    last = texts[..., -1:, :]
    before = torch.cat((texts[:1, ..., :1, :], last[:-1]))
    return texts == texts.transpose(-1, -2), texts == before, texts == last, before == last
