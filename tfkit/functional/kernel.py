"""Linear attention, depthwise causal convolution, and the scan of a recurrence, at a cost linear in the length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.functional.view import wide


class Columns:
    """Decode state: the last inputs of a causal convolution [rows width columns], and an optional recurrent state.

    A mixer returns one from `new_state`, passes `context.state` to `causal_convolution`, and keeps the last state of
    its recurrence as `carried`.
    """

    def __init__(self) -> None:
        self.columns: Tensor | None = None
        self.carried: Tensor | None = None  # [rows ...]

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        for name in ("columns", "carried"):
            held = getattr(self, name)
            if held is not None:
                setattr(self, name, held.index_select(0, rows))

    def bytes(self) -> int:
        return sum(held.numel() * held.element_size() for held in (self.columns, self.carried) if held is not None)


def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Columns | None = None, texts: Tensor | None = None
) -> Tensor:
    """Convolve each channel: out_t = sum_k weight[:, k] x_(t - size + 1 + k) + bias, with `weight` [width size].

    x and the result are [batch time width]. The first token is preceded by zeros or, with `state`, by the last inputs,
    and `state` is updated. With `texts` [batch time], tokens of another number count as zeros; packed rows have no
    state.
    """
    size = weight.shape[1]
    if texts is not None and state is not None:
        raise UsageError(
            "packed rows cannot continue a decode state through a convolution; omit segment_ids or the state"
        )
    if texts is not None:
        out = x * weight[:, -1] if bias is None else x * weight[:, -1] + bias  # [batch time width]
        for back in range(1, min(size, x.shape[1])):
            same = texts[:, back:] == texts[:, :-back]
            out = out + F.pad(x[:, :-back] * same[..., None] * weight[:, -1 - back], (0, 0, back, 0))
        return out
    channels = x.transpose(1, 2)  # [batch width time]
    if state is None or state.columns is None:
        channels = F.pad(channels, (size - 1, 0))
    else:
        channels = torch.cat((state.columns, channels), dim=2)
    if state is not None:
        state.columns = channels[:, :, channels.shape[2] - size + 1 :]  # [batch width size-1]
    return F.conv1d(channels, weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)


SPAN = 64  # steps per chunk; time grows with its logarithm, and memory with its size


def linear_scan(decay: Tensor, given: Tensor, before: Tensor | None = None, span: int = SPAN) -> Tensor:
    """Compute h_t = decay_t h_(t-1) + given_t for [batch time ...], starting from `before` [batch ...] or 0.

    All states are returned, [batch time ...]; a decode state keeps the last one and passes it as `before`.
    """
    steps = []
    for one, more in zip(torch.split(decay, span, dim=1), torch.split(given, span, dim=1), strict=True):
        found = _doubled(one, more, before)
        before = found[:, -1]
        steps.append(found)
    return steps[0] if len(steps) == 1 else torch.cat(steps, dim=1)


def _doubled(decay: Tensor, given: Tensor, before: Tensor | None) -> Tensor:
    """Scan a chunk by combining each step with the steps 1, 2, 4, ... before it (Hillis and Steele 1986)."""
    if before is not None:
        first = given[:, :1] + decay[:, :1] * before[:, None]
        given = torch.cat((first, given[:, 1:]), dim=1)
    distance = 1
    while distance < given.shape[1]:
        given = given + decay * _later(given, distance)
        decay = decay * _later(decay, distance)
        distance *= 2
    return given


def _later(x: Tensor, by: int) -> Tensor:
    """Shift [batch time ...] towards later positions, filling with zeros."""
    return F.pad(x[:, :-by], (0, 0) * (x.dim() - 2) + (by, 0))


STRIDE = 64  # tokens per chunk of a decayed sum


def decayed_sum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    texts: Tensor | None = None,
    before: Tensor | None = None,
    stride: int = STRIDE,
) -> tuple[Tensor, Tensor]:
    """Compute out_t = h_t query_t for h_t = exp(decay_t) h_(t-1) + value_t key_tᵀ; return out and the last h.

    `query` and `key` are [batch time group state], `value` and out [batch time head dim], `decay` [batch time head],
    and h [batch group member dim state], as each group has several heads. h starts from `before` or 0, and again from 0
    where `texts` [batch time] changes; packed rows have no `before`. Tokens attend to their own chunk of `stride`
    tokens, and read earlier ones from h (Dao and Gu 2024, arXiv 2405.21060).
    """
    time, groups, stride = value.shape[1], key.shape[2], min(stride, value.shape[1])
    query, key, value, decay = (_in_chunks(x, stride) for x in (query, key, value, decay))
    texts = None if texts is None else _in_chunks(texts, stride)  # [batch chunk time]
    value = rearrange(value, "batch chunk time (group member) dim -> batch chunk group member time dim", group=groups)
    decay = rearrange(decay, "batch chunk time (group member) -> batch chunk group member time", group=groups)
    kept = _kept(decay, texts)  # [batch chunk group member time 1+source]
    scores = einsum(
        query, key, "batch chunk time group state, batch chunk source group state -> batch chunk group time source"
    )
    near = (scores[:, :, :, None] * kept[..., 1:]) @ value  # [batch chunk group member time dim]
    given = einsum(
        key,
        value * kept[..., -1, 1:, None],
        "batch chunk time group state, batch chunk group member time dim -> batch chunk group member dim state",
    )
    held = linear_scan(kept[..., -1, 0, None, None], given, before, span=1)  # after each chunk, as `given`
    first = torch.zeros_like(held[:, 0]) if before is None else before
    far = einsum(
        query,
        torch.cat((first[:, None], held[:, :-1]), dim=1),
        "batch chunk time group state, batch chunk group member dim state -> batch chunk group member time dim",
    )
    out = rearrange(
        near + far * kept[..., :1], "batch chunk group member time dim -> batch (chunk time) (group member) dim"
    )
    return out[:, :time], held[:, -1]


def _in_chunks(x: Tensor, stride: int) -> Tensor:
    """Split [batch time ...] into [batch chunk stride ...], padded with zeros at the end."""
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + (0, -x.shape[1] % stride))
    return rearrange(padded, "batch (chunk time) ... -> batch chunk time ...", time=stride)


def _kept(decay: Tensor, texts: Tensor | None) -> Tensor:
    """Return the share of what each source added that each token keeps, exp(sum of decay_k, source < k <= token).

    Maps [batch chunk group member time] to [... time 1+time]; the first source is the state before the chunk. Sums of
    few decays are not computed as differences of long ones, which would round.
    """
    time = decay.shape[-1]
    order = torch.ones(time, time + 1, dtype=torch.bool, device=decay.device)
    steps = repeat(decay, "... time -> ... time source", source=time + 1).masked_fill(~order.tril(), 0)
    seen = order.tril(1)
    if texts is not None:
        last = F.pad(texts[:, :-1, -1], (1, 0), value=-1)  # of the previous chunk
        sources = torch.cat((last[..., None], texts), dim=-1)
        seen = seen & (texts[..., :, None] == sources[..., None, :])[:, :, None, None]
    return steps.cumsum(dim=-2).masked_fill(~seen, float("-inf")).exp()


CHUNK = 128  # tokens per chunk: they attend to each other directly, and to earlier tokens through sums


@dataclass
class KernelSums:
    """Decode state of linear attention: sums over all keys so far, scaled by exp(-peak) per feature to avoid overflow.

    `values` [rows head feature value_dim] sums features times values, and `total` [rows head feature] sums features.
    `peak` [rows head feature] is the largest logarithm of a feature so far.
    """

    values: Tensor | None = None
    total: Tensor | None = None
    peak: Tensor | None = None

    def held(self) -> list[Tensor]:
        return [part for part in (self.values, self.total, self.peak) if part is not None]

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        if self.values is not None and self.total is not None and self.peak is not None:
            self.values, self.total, self.peak = (
                part.index_select(0, rows) for part in (self.values, self.total, self.peak)
            )

    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.held())


def kernel_attention(
    query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, causal: bool, past: KernelSums | None = None
) -> Tensor:
    """Attend: sum_j a_ij v_j / sum_j a_ij with a_ij = sum_f exp(query_if + key_jf), over all j, or j <= i if `causal`.

    `query` and `key` [batch head time feature] are logarithms of features, with -inf for a zero feature. `value` is
    [batch head key value_dim], and False in `real` [batch key] masks a key. With `past`, queries also attend to earlier
    keys, and the new keys are added to it. Queries with no visible keys yield zeros. Features are scaled by their peak
    over the keys, and queries by their largest term, so that sums neither vanish nor overflow.
    """
    key = wide(key)
    if real is not None:
        key = key.masked_fill(~real[:, None, :, None], float("-inf"))
    peak = key.detach().amax(dim=2)
    if past is not None and past.peak is not None:
        peak = torch.maximum(peak, past.peak)
    keys, queries = torch.exp(key - _finite(peak)[:, :, None]), _relative(query, peak)  # both [batch head time feature]
    values = F.pad(wide(value), (0, 1), value=1.0)  # the last channel sums to the total
    before = _before(past, peak)
    if causal:
        out = _causal(queries, keys, values, before, CHUNK if past is None else min(CHUNK, key.shape[2]))
    else:
        out = queries @ (_sums(keys, values) + before)  # [batch head query value_dim+1]
    if past is not None:
        sums = _sums(keys, values) + before
        past.values, past.total, past.peak = sums[..., :-1], sums[..., -1], peak
    return _mean(out).to(value.dtype)


def read(query: Tensor, past: KernelSums) -> Tensor:
    """Attend only to the keys of `past`. Raise ValueError if it is empty."""
    if past.values is None or past.total is None or past.peak is None:
        raise ValueError("no keys have been read yet")
    sums = torch.cat((past.values, past.total[..., None]), dim=-1)
    return _mean(_relative(query, past.peak) @ sums).to(query.dtype)


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x == float("-inf"), 0)


def _relative(query: Tensor, peak: Tensor) -> Tensor:
    """Multiply the query features by the peaks of the keys, scaled so that the largest product is 1."""
    logs = wide(query) + _finite(peak)[:, :, None]
    return torch.exp(logs - _finite(logs.detach().amax(dim=-1, keepdim=True)))


def _mean(out: Tensor) -> Tensor:
    """Divide sums of weighted values by the total weight in the last channel. Return zeros if the total is 0."""
    total = out[..., -1:]
    return out[..., :-1] / total.masked_fill(total == 0, 1)


def _sums(keys: Tensor, values: Tensor) -> Tensor:
    """Return keysᵀ values: [... time feature] and [... time dim] to [... feature dim]."""
    return keys.transpose(-1, -2) @ values


def _before(past: KernelSums | None, peak: Tensor) -> Tensor | float:
    """Return the past sums [batch head feature value_dim+1], rescaled to the new peak."""
    if past is None or past.values is None or past.total is None or past.peak is None:
        return 0.0
    kept = torch.exp(past.peak - peak).nan_to_num(0.0)[..., None]  # 0 for features that no key has
    return torch.cat((past.values, past.total[..., None]), dim=-1) * kept


def _causal(queries: Tensor, keys: Tensor, values: Tensor, before: Tensor | float, chunk: int) -> Tensor:
    """Attend in chunks: to earlier chunks through prefix sums, and to the query's own chunk with a triangular mask."""
    time = queries.shape[2]
    split = "batch head (chunk time) dim -> batch head chunk time dim"
    queries, keys, values = (
        rearrange(F.pad(x, (0, 0, 0, -time % chunk)), split, time=chunk) for x in (queries, keys, values)
    )
    sums = _sums(keys, values)  # [batch head chunk feature value_dim+1]
    earlier = F.pad(sums.cumsum(dim=2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    earlier = earlier + (before[:, :, None] if isinstance(before, Tensor) else before)
    near = (queries @ keys.transpose(-1, -2)).tril() @ values  # [batch head chunk time value_dim+1]
    out = rearrange(near + queries @ earlier, "batch head chunk time dim -> batch head (chunk time) dim")
    return out[:, :, :time]
