"""Tensors that grow in buffers, and the largest of many numbers: what plain torch gives."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tfkit.functional import view
from tfkit.functional.view import BLOCK, SLACK, SPARE, WIDE, GrowingBuffers, argmax, topk

from ..sampling import looped


def kept(whole: torch.Tensor, keeps: int | None) -> torch.Tensor:
    """What is left of a tensor of which only so many at the end are asked for again."""
    return whole if keeps is None else whole[:, max(0, whole.shape[1] - keeps) :]


@looped("keeps", [None, 0, 1, 3, 70, 300])
@looped("reserved", [0, 40, 900])
def test_it_gives_what_concatenation_gives(keeps: int | None, reserved: int) -> None:
    draw = random.Random(f"{keeps} {reserved}")
    for _ in range(6):
        held, whole = GrowingBuffers(1, keeps), torch.zeros(2, 0)
        held.reserve(reserved)
        for _ in range(60):
            new = torch.rand(2, draw.choice([1, 1, 1, 2, 5, draw.randint(1, 200)]))
            (found,) = held.append(new)
            assert torch.equal(found, torch.cat((kept(whole, keeps), new), dim=1))
            whole = torch.cat((whole, new), dim=1)
            if draw.random() < 0.2:
                whole = whole[:, : max(held.earliest(), whole.shape[1] - draw.randint(0, SLACK))]
                held.rewind(whole.shape[1])
            if draw.random() < 0.2:
                rows = torch.tensor([draw.randrange(len(whole)) for _ in range(draw.randint(1, 3))])
                held.reorder(rows)
                whole = whole[rows]
                assert held.rows == len(rows)
            assert held.length == whole.shape[1]
            assert torch.equal(held.held()[0], kept(whole, keeps))
            if len(whole) != 2:
                held.reorder(torch.zeros(2, dtype=torch.long))
                whole = whole[torch.zeros(2, dtype=torch.long)]


def test_several_tensors_grow_together_and_keep_their_kinds() -> None:
    held = GrowingBuffers(2)
    held.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 5, dtype=torch.float64))
    keys, values = held.append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 5, dtype=torch.float64))
    assert (keys.shape, values.shape) == ((1, 2, 4, 4), (1, 2, 4, 5))
    assert (keys.dtype, values.dtype) == (torch.float32, torch.float64)
    assert held.bytes() == 4 * 2 * (4 * 4 + 5 * 8)


def test_what_is_reserved_is_not_copied_on_the_way() -> None:
    held = GrowingBuffers(1)
    held.reserve(50)
    held.append(torch.zeros(1, 10))
    place = held.held()[0].data_ptr()
    for _ in range(40):
        held.append(torch.zeros(1, 1))
    assert held.held()[0].data_ptr() == place
    held.append(torch.zeros(1, 1))
    assert held.held()[0].data_ptr() != place


def test_what_is_read_once_has_no_room_and_what_grows_has_as_much_again() -> None:
    held = GrowingBuffers(1)
    held.append(torch.zeros(1, 10))
    assert held.held()[0].untyped_storage().nbytes() == 4 * 10
    held.append(torch.zeros(1, 1))
    assert held.held()[0].untyped_storage().nbytes() == 4 * 22


@looped("first", [1, 1000])
def test_memory_is_bounded_where_the_past_is_forgotten(first: int) -> None:
    held = GrowingBuffers(1, keeps=100)
    held.append(torch.zeros(1, first))
    for _ in range(1000):
        held.append(torch.zeros(1, 1))
    assert held.bytes() == 4 * 100
    assert held.held()[0].untyped_storage().nbytes() <= 4 * (100 + SLACK + SPARE)


def test_so_many_can_be_taken_back_however_far_the_text_is() -> None:
    held = GrowingBuffers(1, keeps=7)
    for length in range(1, 600):
        held.append(torch.full((1, 1), float(length)))
        assert held.earliest() <= max(0, length - SLACK)
    held.rewind(held.length - SLACK)
    assert held.held()[0].tolist() == [[float(number) for number in range(529, 536)]]


@looped("limit", [0, 1 << 22])
@looped("learned", [False, True])
def test_rows_are_reordered_in_a_new_buffer_or_where_they_are(
    limit: int, learned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "IN_PLACE", limit)
    held, new = GrowingBuffers(2), torch.rand(3, 2, 5, 4, requires_grad=learned)
    held.reserve(400)
    held.append(new, 2 * new)
    for rows in ([2, 0, 0], [1], [0, 0, 0, 0]):
        whole = held.held()[0].clone()
        held.reorder(torch.tensor(rows))
        assert torch.equal(held.held()[0], whole[rows])
        assert torch.equal(held.held()[1], 2 * whole[rows])
    keys, _ = held.append(*[torch.ones(4, 2, 100, 4)] * 2)
    assert keys.shape == (4, 2, 105, 4)
    if learned:
        (gradient,) = torch.autograd.grad(keys.sum(), new)
        assert gradient.sum() == 4 * 2 * 5 * 4


# --- the largest of many numbers


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
