"""argmax and top-k of long rows.

They stand in the blocks whose own largest are the largest, or after the last block. To find the largest of each block
is quick on a CPU, and to keep the best of all in order is not: of a vocabulary's logits it takes a quarter of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64  # numbers that are first asked for their largest alone
WIDE = 1 << 14  # of fewer numbers in a row, looking at all takes no longer


def argmax(x: Tensor) -> Tensor:
    """Where the largest of each row of x [rows width] stands, the first of equals, [rows]."""
    places = _candidates(x, 1)
    if places is None:
        return x.argmax(dim=1)
    return places.gather(1, x.gather(1, places).argmax(dim=1, keepdim=True))[:, 0]


def topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of x [rows width] and where they stand, both [rows count], the largest first."""
    places = _candidates(x, count)
    if places is None:
        return torch.topk(x, count)
    values, among = x.gather(1, places).topk(count)
    return values, places.gather(1, among)


def _candidates(x: Tensor, count: int) -> Tensor | None:
    """Places [rows some], among which the `count` largest are; None: all, with nothing to gain."""
    rows, width = x.shape
    blocks = width // BLOCK
    if x.device.type != "cpu" or width < WIDE or 2 * count > blocks:
        return None
    whole = blocks * BLOCK
    tops = x[:, :whole].reshape(rows, blocks, BLOCK).amax(dim=2)
    best = tops.argmax(dim=1, keepdim=True) if count == 1 else tops.topk(count).indices
    within = (best[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    return torch.cat((within, torch.arange(whole, width).expand(rows, -1)), dim=1)
