"""Division of a corpus into train, valid and test: by whole groups, by lists, or by place."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tfkit.core.errors import DataError
from tfkit.core.output import some
from tfkit.core.slots import CorpusFacts
from tfkit.data.corpus.lines import Lines
from tfkit.data.vectors import digest
from tfkit.recipe.settings.split import Partition


class Member(NamedTuple):
    """An example of a split, numbered from 1, or its characters `cut` if it is divided."""

    number: int
    split: str
    id: str
    cut: tuple[int, int] | None = None


def table(config: CorpusFacts.Config, split: Partition) -> str:
    """Return the division of a corpus as CSV, with the column id, or else numbers."""
    ids = (
        (one, one.id if one.cut is None else f"{one.id}:{one.cut[0]}-{one.cut[1]}") for one in divided(config, split)
    )
    rows = [("id", "split"), *((key, one.split) for one, key in ids)]
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    return text.getvalue()


def divided(config: CorpusFacts.Config, split: Partition) -> tuple[Member, ...]:
    """Return the division of a corpus, cached until its files change. Raise DataError if it is impossible."""
    files = filter(os.path.isfile, (*config.files_read(), *split.lists.values()))
    return _divided(config, split, tuple((status.st_size, status.st_mtime_ns) for status in map(os.stat, files)))


@lru_cache(maxsize=8)
def _divided(config: CorpusFacts.Config, split: Partition, stamps: tuple[tuple[int, int], ...]) -> tuple[Member, ...]:
    corpus: Any = config.build()
    if split.by_place:
        sizes = [len(one["text"]) if corpus.fields == ("text",) else 1 for one in corpus.stream()]
        return tuple(_placed(sizes, split, corpus.name()))
    columns = [split.by or ("id" if split.lists else ""), split.stratify or ""]
    has_ids, rows = has_column(config, "id"), list[tuple[str, str, str]]()
    corpus.also = tuple(filter(None, (*columns, "id" * has_ids)))
    for number, example in enumerate(corpus.stream(), start=1):
        if empty := [column for column in columns if column and not example[column].strip()]:
            raise DataError(f"{corpus.where(number)}: {empty[0]} is empty, but data.split reads it")
        group, stratum = (example.get(column, "") for column in columns)
        group = group or digest([{field: example[field] for field in corpus.fields}])
        rows.append((group, stratum, example["id"] if has_ids else str(number)))
    unique = split.by == "id" or len({row[2] for row in rows}) == len(rows)  # windows of a sequence have its id
    parts = _parts([row[:2] for row in rows], split, corpus.name())
    members = zip(parts, rows, strict=True)
    return tuple(Member(n, part, row[2] if unique else str(n)) for n, (part, row) in enumerate(members, start=1))


def has_column(config: CorpusFacts.Config, column: str) -> bool:
    """True if the corpus has the column."""
    corpus: Any = config.build()
    corpus.also = (column,)
    try:
        return bool(corpus.first(1))
    except DataError:
        return False


def _placed(sizes: Sequence[int], split: Partition, name: str) -> Iterator[Member]:
    """Yield the examples in order, train first; `sizes` are in characters or examples."""
    total, end = sum(sizes), 0
    shares = [share if share >= 1 else share * total for share in split.shares.values()]
    ends = [int(total - sum(shares[number:]) + 1e-6) for number in range(len(shares))] + [total]
    spans = dict(zip(("train", *split.cut), zip([0, *ends], ends, strict=False), strict=True))
    if empty := [part for part, (first, last) in spans.items() if first >= last]:
        raise DataError(f"{name}: data.split leaves nothing for {empty[0]}")
    for number, size in enumerate(sizes, start=1):
        begin, end = end, end + size
        for part, (first, last) in spans.items():
            if begin < last and first < end:
                cut = max(first - begin, 0), min(last, end) - begin
                yield Member(number, part, str(number), None if cut == (0, size) else cut)


def _parts(rows: Sequence[tuple[str, str]], split: Partition, name: str) -> list[str]:
    """Return the split of each example, given groups and strata: by lists, then evenly in pseudorandom order.

    The stratum of a group is its most frequent one.
    """
    sizes = Counter(group for group, _ in rows)
    parts = _listed(sizes, split, name)
    total = len(rows) - sum(sizes[group] for group in parts)
    targets = {part: round(share if share >= 1 else share * total) for part, share in split.shares.items()}
    targets = {"train": total - sum(targets.values())} | targets
    strata = dict(one for one, _ in sorted(Counter(rows).items(), key=lambda one: (one[1], one[0])))
    draws = {group: hashlib.sha256(f"{split.seed}\n{group}".encode()).digest() for group in sizes if group not in parts}
    empty = [part for part, target in targets.items() if target < 1]
    if empty or len(draws) < len(targets):
        kind = f"group{'s' * (len(draws) != 1)} of '{split.by}'" if split.by else "different examples"
        text = f"{len(draws):,} {kind} with {total:,} examples cannot be divided into {len(targets)} splits"
        raise DataError(f"{name}: data.split: {text}{f'; {empty[0]} would be empty' if empty else ''}")
    held, done = Counter[str](), 0
    for left, group in zip(
        range(len(draws), 0, -1), sorted(draws, key=lambda one: (strata[one], draws[one])), strict=True
    ):
        done += sizes[group]
        open_ = [part for part in targets if not held[part]]
        open_ = open_ if left <= len(open_) else [part for part in targets if held[part] < targets[part]]
        parts[group] = max(open_, key=lambda part: targets[part] * done - held[part] * total)
        held[parts[group]] += sizes[group]
    return [parts[group] for group, _ in rows]


def _listed(groups: Counter[str], split: Partition, name: str) -> dict[str, str]:
    """Return the split of each listed group."""
    lists = {part: [line.strip() for line in Lines(file) if line.strip()] for part, file in split.lists.items()}
    parts = {key: part for part, keys in lists.items() for key in keys}
    twice = [key for part, keys in lists.items() for key in keys if parts[key] != part]
    for keys, where in ((twice, "in two lists"), ([key for key in parts if key not in groups], f"not in {name}")):
        if keys:
            raise DataError(f"{' and '.join(split.lists.values())}: {where}: {some(map(repr, keys), 3)}")
    return parts
