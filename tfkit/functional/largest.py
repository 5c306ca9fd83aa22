"""Fast argmax and top-k of long rows on a CPU.

The largest elements are in the blocks with the largest maxima, or after the last whole block. Computing block maxima is
much faster than a full top-k: for the logits of a vocabulary, this takes a quarter of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64  # elements in a block
WIDE = 1 << 14  # narrower rows are searched directly


def argmax(x: Tensor) -> Tensor:
    """Return the index [rows] of the largest element in each row of x [rows width]. Ties go to the first element."""
    places = _candidates(x, 1)
    if places is None:
        return x.argmax(dim=1)
    return places.gather(1, x.gather(1, places).argmax(dim=1, keepdim=True))[:, 0]


def topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest elements of each row of x [rows width] and their indices, [rows count], descending."""
    places = _candidates(x, count)
    if places is None:
        return torch.topk(x, count)
    values, among = x.gather(1, places).topk(count)
    return values, places.gather(1, among)


def _candidates(x: Tensor, count: int) -> Tensor | None:
    """Return indices [rows n] that include the `count` largest elements, or None if a direct search is as fast."""
    rows, width = x.shape
    blocks = width // BLOCK
    if x.device.type != "cpu" or width < WIDE or 2 * count > blocks:
        return None
    whole = blocks * BLOCK
    tops = x[:, :whole].reshape(rows, blocks, BLOCK).amax(dim=2)
    best = tops.argmax(dim=1, keepdim=True) if count == 1 else tops.topk(count).indices
    within = (best[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    return torch.cat((within, torch.arange(whole, width).expand(rows, -1)), dim=1)
