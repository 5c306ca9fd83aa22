"""Linear attention, depthwise causal convolution, and the scan of a recurrence, at a cost linear in the length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from tfkit.functional.view import wide


class Columns:
    """Decode state: the last inputs of a causal convolution [rows width columns], and an optional recurrent state."""

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
        """Return the size of the state in bytes."""
        return sum(held.numel() * held.element_size() for held in (self.columns, self.carried) if held is not None)


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, state: Columns | None = None) -> Tensor:
    """Convolve each channel: out_t = sum_k weight[:, k] x_(t - size + 1 + k) + bias, with `weight` [width size].

    x and the result are [batch time width]. The first token is preceded by zeros or, with `state`, by the last inputs,
    and `state` is updated.
    """
    size = weight.shape[1]
    channels = x.transpose(1, 2)  # [batch width time]
    if state is None or state.columns is None:
        channels = F.pad(channels, (size - 1, 0))
    else:
        channels = torch.cat((state.columns, channels), dim=2)
    if state is not None:
        state.columns = channels[:, :, channels.shape[2] - size + 1 :]  # [batch width size-1]
    return F.conv1d(channels, weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)


SPAN = 64  # steps per chunk; time grows with its logarithm, and memory with its size


def linear_scan(decay: Tensor, given: Tensor, before: Tensor | None = None) -> Tensor:
    """Compute h_t = decay_t h_(t-1) + given_t for [batch time ...], starting from `before` [batch ...] or 0."""
    steps = []
    for one, more in zip(torch.split(decay, SPAN, dim=1), torch.split(given, SPAN, dim=1), strict=True):
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
        """Return the tensors, or [] before the first call."""
        return [part for part in (self.values, self.total, self.peak) if part is not None]

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        if self.values is not None and self.total is not None and self.peak is not None:
            self.values, self.total, self.peak = (
                part.index_select(0, rows) for part in (self.values, self.total, self.peak)
            )

    def bytes(self) -> int:
        """Return the size of the sums in bytes."""
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
    """Replace -inf with 0."""
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
