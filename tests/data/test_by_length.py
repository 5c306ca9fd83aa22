"""Batches of texts that are only read."""

from __future__ import annotations

from tfkit.data.by_length import CPU_TOKENS, by_length


def test_every_text_stands_in_one_batch_beside_its_like() -> None:
    lengths = [3, 700, 5, 700, 5000, 4, 3]
    found = list(by_length(lengths, "cpu"))
    assert sorted(index for rows in found for index in rows) == list(range(7))
    assert found[0] == [4] and found[1] == [1] and found[2] == [3] and found[3] == [2, 5, 0, 6]
    assert all(len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= CPU_TOKENS for rows in found)
    assert [len(rows) for rows in by_length([4] * 5, "cuda", 2)] == [2, 2, 1]
    assert list(by_length([], "cpu")) == [] and list(by_length([0, 0], "cpu")) == [[0, 1]]
