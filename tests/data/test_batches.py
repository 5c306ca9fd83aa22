"""Plans of batches: complete, within budget, little padding, the same again, and exact on resumption."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from tfkit.core.errors import DataError, UsageError
from tfkit.data.batches import CPU_TOKENS, BatchOrder, by_length, fitting, padding_share, plan, plan_packed
from tfkit.recipe.settings.sections import Batch

from ..sampling import looped

lengths_of_examples = st.lists(st.integers(0, 60), min_size=1, max_size=300).map(np.array)


def lognormal(examples: int, sides: int = 1, longest: int = 200) -> NDArray[np.int64]:
    """Lengths as sentences have them; a second side is near the first in length."""
    random = np.random.default_rng(0)
    first = random.lognormal(2.7, 0.4, examples)
    columns = [first, first * random.normal(1, 0.15, examples)][:sides]
    return np.clip(np.stack(columns, axis=1), 1, longest).astype(np.int64)


@given(lengths=lengths_of_examples, tokens=st.integers(60, 500), by_length=st.booleans(), epoch=st.integers(0, 3))
def test_every_example_stands_in_one_batch_within_the_budget(
    lengths: NDArray[np.int64], tokens: int, by_length: bool, epoch: int
) -> None:
    batches = plan(lengths, Batch(tokens=tokens, by_length=by_length), seed=7, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(batch) and len(batch) * lengths[batch].max() <= tokens for batch in batches)


@given(lengths=lengths_of_examples, size=st.integers(1, 50), by_length=st.booleans())
def test_size_counts_rows(lengths: NDArray[np.int64], size: int, by_length: bool) -> None:
    batches = plan(lengths, Batch(size=size, by_length=by_length), seed=7, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)


def test_the_longer_side_counts() -> None:
    lengths = np.array([[10, 1], [1, 10], [10, 10]])
    assert [len(batch) for batch in plan(lengths, Batch(tokens=20, by_length=False), 0, 0)] == [2, 1]


@looped("sides", [1, 2])
@looped("options", [{"tokens": 4096}, {"tokens": 2048}, {"size": 64}])
def test_batches_by_length_pad_little(sides: int, options: dict[str, Any]) -> None:
    lengths = lognormal(29000, sides)
    assert padding_share(plan(lengths, Batch(**options), 1, 0), lengths) < 0.1
    mixed = plan(lengths, Batch(**options, by_length=False), 1, 0)
    assert padding_share(mixed, lengths) > 0.3


def test_large_data_pads_little_too() -> None:
    lengths = lognormal(200_000)
    batches = plan(lengths, Batch(tokens=1024), 1, 0)
    assert padding_share(batches, lengths) < 0.1


def test_batches_come_in_random_order_and_another_each_epoch() -> None:
    lengths = lognormal(5000)
    config = Batch(tokens=1024)
    first, second = plan(lengths, config, 1, 0), plan(lengths, config, 1, 1)
    longest = np.array([lengths[batch].max() for batch in first])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3
    assert {frozenset(batch.tolist()) for batch in first} != {frozenset(batch.tolist()) for batch in second}


def test_a_plan_depends_on_seed_and_epoch_only() -> None:
    lengths, config = lognormal(500), Batch(tokens=256)
    again = [batch.tolist() for batch in plan(lengths, config, 3, 2)]
    assert [batch.tolist() for batch in plan(lengths, config, 3, 2)] == again
    assert [batch.tolist() for batch in plan(lengths, config, 4, 2)] != again
    # frozen: a change of this order breaks the resumption of runs that began before it
    small = plan(np.array([3, 1, 2, 5, 4]), Batch(size=2), seed=0, epoch=0)
    assert [batch.tolist() for batch in small] == [[0, 4], [1, 2], [3]]


@given(lengths=lengths_of_examples, room=st.integers(60, 128), epoch=st.integers(0, 3))
def test_packed_rows_hold_every_example_once(lengths: NDArray[np.int64], room: int, epoch: int) -> None:
    batches = plan_packed(lengths, Batch(tokens=512, pack=True, length=room), 5, epoch)
    rows = [row for batch in batches for row in batch]
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(lengths[row].sum() <= room for row in rows)
    assert all(len(batch) * room <= 512 for batch in batches)


def test_packing_leaves_little_space() -> None:
    lengths = lognormal(10_000)[:, 0]
    batches = plan_packed(lengths, Batch(size=8, pack=True), 1, 0, length=128)
    rows = sum(map(len, batches))
    assert 1 - lengths.sum() / (rows * 128) < 0.03
    assert batches == plan_packed(lengths, Batch(size=8, pack=True, length=128), 1, 0)


def test_packing_counts_the_longer_side() -> None:
    lengths = np.array([[10, 2], [2, 10], [5, 5], [5, 5]])
    rows = [row for batch in plan_packed(lengths, Batch(size=1, length=10), 0, 0) for row in batch]
    assert sorted(map(sorted, rows)) == [[0], [1], [2, 3]]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(UsageError, match="pack needs a row length"):
        plan_packed(np.array([1]), Batch(pack=True), 0, 0)
    with pytest.raises(UsageError, match="length 600 does not fit into a batch of 512 tokens"):
        plan_packed(np.array([1]), Batch(tokens=512), 0, 0, length=600)
    with pytest.raises(DataError, match=r"example 1 has 9 tokens, more than batch\.length: 8"):
        plan_packed(np.array([1, 9]), Batch(length=8), 0, 0)


def test_examples_that_are_too_long_are_named() -> None:
    with pytest.raises(DataError, match=r"example 1 has 31 tokens, more than batch.tokens: 30 \(and 1 more"):
        plan(np.array([3, 31, 30, 40]), Batch(tokens=30), 0, 0)
    with pytest.raises(DataError, match=r"example 2 has 6 tokens, more than batch\.length: 5"):
        plan(np.array([[3, 1], [5, 5], [1, 6]]), Batch(tokens=30, length=5), 0, 0)
    assert fitting(np.array([[3, 1], [5, 5], [1, 6]]), 5).tolist() == [0, 1]


def test_no_examples_and_odd_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="no example"):
        plan(np.array([]), Batch(), 0, 0)
    with pytest.raises(UsageError, match="float64"):
        plan(np.array([1.5]), Batch(), 0, 0)
    with pytest.raises(UsageError, match=r"shape \(1, 1, 1\)"):
        plan(np.array([[[1]]]), Batch(), 0, 0)


def test_the_default_budget() -> None:
    assert Batch().tokens == 4096
    assert Batch(size=3).tokens is None
    assert Batch.model_validate(Batch(size=3).model_dump()) == Batch(size=3)


@looped(
    ("options", "message"),
    [
        ({"tokens": 10, "size": 2}, "tokens: 10 and size: 2 are both set"),
        ({"tokens": 0}, "greater than or equal to 1"),
        ({"size": True}, "valid integer"),
        ({"token": 10}, "token"),
        ({"by_length": 1}, "valid boolean"),
        ({"tokens": 10, "length": 11}, "length: 11 does not fit in a batch of tokens: 10"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Batch.model_validate(options)
    assert message in str(caught.value)


def ordered(epoch: int = 0, batch: int = 0) -> BatchOrder[NDArray[np.int64]]:
    """The order of batches of some data, from there on."""
    lengths, config = lognormal(200), Batch(tokens=256)
    return BatchOrder(lambda number: plan(lengths, config, 1, number), epoch, batch)


def taken(order: BatchOrder[NDArray[np.int64]], count: int) -> list[tuple[int, int, list[int]]]:
    """The next batches as plain data."""
    return [(epoch, batch, examples.tolist()) for epoch, batch, examples in islice(order, count)]


def test_resumption_is_exact_at_every_batch() -> None:
    whole = taken(ordered(), 40)
    assert {epoch for epoch, _, _ in whole} >= {0, 1}
    for begin in range(30):
        order = ordered()
        taken(order, begin)
        assert taken(ordered(*order.state), 10) == whole[begin : begin + 10]
        epoch, batch, _ = whole[begin]
        assert taken(ordered(epoch, batch + 1), 5) == whole[begin + 1 : begin + 6]


def test_a_place_that_the_data_has_not_is_refused() -> None:
    with pytest.raises(DataError, match="batch 500 of epoch 2 comes next, but this data has only"):
        taken(ordered(2, 500), 1)
    with pytest.raises(UsageError, match="not be negative"):
        ordered(-1)


def test_padding_share_counts_all_sides() -> None:
    lengths = np.array([[4, 1], [2, 1]])
    assert padding_share([np.array([0, 1])], lengths) == pytest.approx(1 - 8 / 10)
    assert padding_share([np.array([0]), np.array([1])], lengths) == 0
    assert padding_share([], lengths) == 0


# --- texts that are only read


def test_every_text_stands_in_one_batch_beside_its_like() -> None:
    lengths = [3, 700, 5, 700, 5000, 4, 3]
    found = list(by_length(lengths, "cpu"))
    assert sorted(index for rows in found for index in rows) == list(range(7))
    assert found[0] == [4] and found[1] == [1] and found[2] == [3] and found[3] == [2, 5, 0, 6]
    assert all(len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= CPU_TOKENS for rows in found)
    assert [len(rows) for rows in by_length([4] * 5, "cuda", 2)] == [2, 2, 1]
    assert list(by_length([], "cpu")) == [] and list(by_length([0, 0], "cpu")) == [[0, 1]]
