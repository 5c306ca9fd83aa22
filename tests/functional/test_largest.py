"""The largest of many numbers: always what torch finds among all."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.functional.largest import BLOCK, WIDE, argmax, topk

from ..sampling import looped


def different(rows: int, width: int) -> Tensor:
    """Numbers of which no two in a row are equal."""
    generator = torch.Generator().manual_seed(width)
    return torch.stack([torch.randperm(width, generator=generator) for _ in range(rows)]).float()


@looped("width", [1, 50, WIDE - 1, WIDE, WIDE + 1, WIDE + BLOCK - 1, 3 * WIDE])
@looped("rows", [1, 3])
@looped("count", [1, 7, 120, WIDE // BLOCK + 1])
def test_it_finds_what_torch_finds(width: int, rows: int, count: int) -> None:
    x, count = different(rows, width), min(count, width)
    (values, places), expected = topk(x, count), x.topk(count)
    assert torch.equal(values, expected.values) and torch.equal(places, expected.indices)
    assert torch.equal(argmax(x), x.argmax(dim=1))


@looped("place", [0, BLOCK, WIDE - 1, WIDE + 4])
def test_one_number_among_impossible_ones_is_found(place: int) -> None:
    x = torch.full((2, WIDE + 5), float("-inf"))
    x[1, place] = -3.0
    values, places = topk(x, 4)
    assert places[1, 0] == place and values[1].tolist() == [-3.0] + [float("-inf")] * 3
    assert all(len(set(row)) == 4 for row in places.tolist())
    assert argmax(x).tolist() == [0, place]


@looped("equals", [(3, 900), (63, 64), (WIDE - 1, WIDE), (WIDE + 1, WIDE + 2)])
def test_the_first_of_equals_is_the_largest(equals: tuple[int, int]) -> None:
    x = torch.zeros(1, WIDE + 5)
    x[0, list(equals)] = 1.0
    assert argmax(x).item() == equals[0]
    assert set(topk(x, 2)[1][0].tolist()) == set(equals)


def test_what_is_no_number_comes_first() -> None:
    x = torch.zeros(1, WIDE)
    x[0, 77] = float("nan")
    assert argmax(x).item() == topk(x, 1)[1].item() == x.argmax(dim=1).item() == 77
