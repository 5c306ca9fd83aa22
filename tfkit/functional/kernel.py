"""Attention without a softmax: weights that are products of features, at a cost that grows with the length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from tfkit.functional.precision import wide

CHUNK = 128  # tokens that meet one another directly; those before them as one sum


@dataclass
class KernelSums:
    """The decode state of linear attention: for each feature, exp(-peak) times the sums over the keys so far.

    `values` are [rows head feature value_dim] of features times values, `total` [rows head feature] of features; `peak`
    [rows head feature] is the largest logarithm so far, so that no exponential overflows.
    """

    values: Tensor | None = None
    total: Tensor | None = None
    peak: Tensor | None = None

    def held(self) -> list[Tensor]:
        """The tensors, none before the first call."""
        return [part for part in (self.values, self.total, self.peak) if part is not None]

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        if self.values is not None and self.total is not None and self.peak is not None:
            self.values, self.total, self.peak = (
                part.index_select(0, rows) for part in (self.values, self.total, self.peak)
            )

    def bytes(self) -> int:
        """Bytes of the sums."""
        return sum(part.numel() * part.element_size() for part in self.held())


def kernel_attention(
    query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, causal: bool, past: KernelSums | None = None
) -> Tensor:
    """sum_j a_ij v_j / sum_j a_ij with a_ij = sum_f exp(query_if + key_jf): over all j, or over j <= i if `causal`.

    `query` and `key` [batch head time feature] are logarithms of features, -inf for a feature of zero; `value` is
    [batch head key value_dim]; of `real` [batch key] False is left out. With `past`, keys add to those before, and are
    kept there. Rows that see nothing give zeros. Each feature is taken relative to its peak over the keys, and each
    query to its largest term, so that no sum of a row that sees anything can be zero or too large.
    """
    key = wide(key)
    if real is not None:
        key = key.masked_fill(~real[:, None, :, None], float("-inf"))
    peak = key.detach().amax(dim=2)
    if past is not None and past.peak is not None:
        peak = torch.maximum(peak, past.peak)
    keys, queries = torch.exp(key - _finite(peak)[:, :, None]), _relative(query, peak)
    values = F.pad(wide(value), (0, 1), value=1.0)  # the total is one more value
    before = _before(past, peak)
    if causal:
        out = _causal(queries, keys, values, before, CHUNK if past is None else min(CHUNK, key.shape[2]))
    else:
        out = queries @ (_sums(keys, values) + before)
    if past is not None:
        sums = _sums(keys, values) + before
        past.values, past.total, past.peak = sums[..., :-1], sums[..., -1], peak
    return _mean(out).to(value.dtype)


def read(query: Tensor, past: KernelSums) -> Tensor:
    """The same over the keys of `past` alone; raises ValueError where it has none."""
    if past.values is None or past.total is None or past.peak is None:
        raise ValueError("no keys have been summed, there is nothing to read")
    sums = torch.cat((past.values, past.total[..., None]), dim=-1)
    return _mean(_relative(query, past.peak) @ sums).to(query.dtype)


def _finite(x: Tensor) -> Tensor:
    """0 for the logarithm of nothing."""
    return x.masked_fill(x == float("-inf"), 0)


def _relative(query: Tensor, peak: Tensor) -> Tensor:
    """Features of queries times the keys' peaks, relative to the largest of them."""
    logs = wide(query) + _finite(peak)[:, :, None]
    return torch.exp(logs - _finite(logs.detach().amax(dim=-1, keepdim=True)))


def _mean(out: Tensor) -> Tensor:
    """Sums of weighted values, the last of them the total of the weights -> their quotient; zeros for a total of 0."""
    total = out[..., -1:]
    return out[..., :-1] / total.masked_fill(total == 0, 1)


def _sums(keys: Tensor, values: Tensor) -> Tensor:
    """[... time feature] and [... time dim] -> [... feature dim]."""
    return keys.transpose(-1, -2) @ values


def _before(past: KernelSums | None, peak: Tensor) -> Tensor | float:
    """The sums of a past relative to the new peak, [batch head feature value_dim + 1]."""
    if past is None or past.values is None or past.total is None or past.peak is None:
        return 0.0
    kept = torch.exp(past.peak - peak).nan_to_num(0.0)[..., None]  # of a feature that no key ever had: nothing
    return torch.cat((past.values, past.total[..., None]), dim=-1) * kept


def _causal(queries: Tensor, keys: Tensor, values: Tensor, before: Tensor | float, chunk: int) -> Tensor:
    """Prefix sums over chunks: those before a query's own as one sum, its own chunk as a triangle."""
    time = queries.shape[2]
    split = "batch head (chunk time) dim -> batch head chunk time dim"
    queries, keys, values = (
        rearrange(F.pad(x, (0, 0, 0, -time % chunk)), split, time=chunk) for x in (queries, keys, values)
    )
    sums = _sums(keys, values)
    earlier = F.pad(sums.cumsum(dim=2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    earlier = earlier + (before[:, :, None] if isinstance(before, Tensor) else before)
    near = (queries @ keys.transpose(-1, -2)).tril() @ values
    out = rearrange(near + queries @ earlier, "batch head chunk time dim -> batch head (chunk time) dim")
    return out[:, :, :time]
