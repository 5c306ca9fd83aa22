"""Token texts as character classes of an automaton, and the state after each token."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tfkit.generation.constraint.automaton import DEAD, FAR, Automaton, Flags, Numbers
from tfkit.generation.constraint.syntax import CODE_POINTS
from tfkit.generation.constraint.token_texts import Texts

CONTINUING = range(0x80, 0xC0)  # UTF-8 continuation bytes
LEADING = range(0xC2, 0xF5)  # UTF-8 leading bytes of multi-byte characters
MOST_PAIRS = 2**20  # maximum number of state-token pairs followed at once


@dataclass(frozen=True)
class Pieces:
    """Token texts as character classes, so that all tokens can be followed at once.

    Tokens that end inside a character are used only if every byte is a token, so that the character can be completed.
    """

    texts: Texts
    automaton: Automaton
    ends: Collection[int]

    @cached_property
    def cut(self) -> list[tuple[str, bytes] | None]:
        """Whole characters and trailing partial bytes of each token; None for tokens that are not used."""
        cuts: list[tuple[str, bytes] | None] = []
        for id_, text in enumerate(self.texts):
            cut = split(text) if text and id_ not in self.ends else None
            cuts.append(None if cut and cut[1] and not self.by_bytes else cut)
        return cuts

    @cached_property
    def by_bytes(self) -> bool:
        """True if every byte of a multi-byte character is a token."""
        single = {text[0] for id_, text in enumerate(self.texts) if len(text) == 1 and id_ not in self.ends}
        return single.issuperset(CONTINUING) and single.issuperset(LEADING)

    @cached_property
    def used(self) -> Flags:
        """Mask of tokens usable at a character boundary."""
        return np.array([cut is not None for cut in self.cut], dtype=np.bool_)

    @cached_property
    def whole(self) -> Flags:
        """Mask of tokens that end at a character boundary."""
        return np.array([cut is not None and not cut[1] for cut in self.cut], dtype=np.bool_)

    @cached_property
    def partial(self) -> tuple[Numbers, Flags]:
        """Tokens that end inside a character, [tokens], and the classes that can complete them, [tokens classes]."""
        ids = np.flatnonzero(self.used & ~self.whole).astype(np.int32)
        completing = np.zeros((len(ids), self.automaton.table.shape[1]), dtype=np.bool_)
        for row, id_ in enumerate(ids.tolist()):
            cut = self.cut[id_]
            completing[row, self.classes_of(cut[1] if cut else b"")] = True
        return ids, completing

    @cached_property
    def continuing(self) -> list[int]:
        """Tokens that start with a continuation byte."""
        return [
            id_
            for id_, text in enumerate(self.texts)
            if self.by_bytes and text and text[0] in CONTINUING and id_ not in self.ends
        ]

    @cached_property
    def spellings(self) -> frozenset[bytes]:
        """Texts of all used tokens, as bytes."""
        return frozenset(self.texts[id_] for id_ in (*np.flatnonzero(self.used).tolist(), *self.continuing))

    @cached_property
    def longest(self) -> int:
        """Maximum number of bytes in a token."""
        return max(map(len, self.spellings), default=0)

    @cached_property
    def single(self) -> Flags:
        """Mask of classes that contain a single-character token."""
        single = {ord(cut[0]) for cut in self.cut if cut is not None and len(cut[0]) == 1 and not cut[1]}
        mask = np.zeros(self.automaton.table.shape[1], dtype=np.bool_)
        mask[self.automaton.classes_of(np.array(sorted(single), dtype=np.int32))] = True
        return mask

    @cached_property
    def letters(self) -> Flags:
        """Mask of classes that contain a character written by one token or by byte tokens."""
        mask = self.single.copy()
        if self.by_bytes:
            mask[self.automaton.classes_within(0x80, CODE_POINTS)] = True
        return mask

    @cached_property
    def _rows(self) -> tuple[Numbers, Numbers, Numbers]:
        """Classes of all token texts concatenated, with each token's offset and length."""
        texts = [cut[0] if cut is not None else "" for cut in self.cut]
        points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.int32)
        lengths = np.array([len(text) for text in texts], dtype=np.int32)
        return self.automaton.classes_of(points), np.cumsum(lengths, dtype=np.int32) - lengths, lengths

    @cached_property
    def byte_classes(self) -> tuple[Numbers, Numbers]:
        """Classes of multi-byte characters, with the minimum number of bytes per character."""
        edges = (0x80, 0x800, 0x10000, CODE_POINTS)
        costs = np.full(self.automaton.table.shape[1], FAR, dtype=np.int32)
        for length, (first, end) in enumerate(itertools.pairwise(edges), 2):
            classes = self.automaton.classes_within(first, end)
            costs[classes] = np.minimum(costs[classes], length)
        classes_ = np.flatnonzero(costs < FAR).astype(np.int32)
        return classes_, costs[classes_]

    @cached_property
    def _by_first(self) -> list[Numbers]:
        """Tokens of whole characters, grouped by the class of the first character; one token per class sequence."""
        classes, starts, lengths = self._rows
        unique: dict[bytes, int] = {}
        for id_ in np.flatnonzero(self.whole & (lengths > 0)).tolist():
            unique.setdefault(classes[starts[id_] : starts[id_] + lengths[id_]].tobytes(), id_)
        ids = np.array(list(unique.values()), dtype=np.int32)
        firsts = classes[starts[ids]]
        return [ids[firsts == class_] for class_ in range(self.automaton.table.shape[1])]

    @cached_property
    def leads(self) -> tuple[Numbers, Numbers]:
        """Transitions by tokens of whole characters, as source states [pairs] and target states [pairs]."""
        table = self.automaton.table
        pairs = [np.zeros(0, dtype=np.int64)]
        for class_, tokens in enumerate(self._by_first):
            begins = np.flatnonzero(table[:, class_] != DEAD).astype(np.int32)
            some = max(1, MOST_PAIRS // max(1, len(tokens)))
            for start in range(0, len(begins), some):
                pairs += [self._led(begins[start : start + some], tokens)]
        sources, targets = np.divmod(np.unique(np.concatenate(pairs)), len(table))
        return sources.astype(np.int32), targets.astype(np.int32)

    def _led(self, begins: Numbers, tokens: Numbers) -> NDArray[np.int64]:
        """Follow all `tokens` from all states in `begins`. Return transitions as source * states + target."""
        classes, starts, lengths = self._rows
        sources, active = np.repeat(begins, len(tokens)), np.tile(tokens, len(begins))
        places, count, edges = sources, 0, [np.zeros(0, dtype=np.int64)]
        while len(active):
            places = self.automaton.table[places, classes[starts[active] + count]]
            count += 1
            alive, done = places != DEAD, lengths[active] == count
            ends, goes = alive & done, alive & ~done
            edges.append(sources[ends].astype(np.int64) * len(self.automaton.table) + places[ends])
            sources, active, places = sources[goes], active[goes], places[goes]
        return np.unique(np.concatenate(edges))

    def places(self, place: int) -> Numbers:
        """Return the state after the whole characters of each token, [vocab]; DEAD for unused tokens."""
        classes, starts, lengths = self._rows
        places = np.where(self.used, place, DEAD).astype(np.int32)
        active = np.flatnonzero(lengths)
        for count in range(int(lengths.max(initial=0))):
            active = active[(lengths[active] > count) & (places[active] != DEAD)]
            if not len(active):
                break
            places[active] = self.automaton.table[places[active], classes[starts[active] + count]]
        return places

    def classes_of(self, partial: bytes) -> Numbers:
        """Return the classes of characters that start with these bytes."""
        return self.automaton.classes_within(*characters_of(partial))


def split(data: bytes) -> tuple[str, bytes] | None:
    """Split UTF-8 into whole characters and the bytes of a trailing partial character; None if invalid."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data), decoder.getstate()[0]
    except UnicodeDecodeError:
        return None


def length_of(first: int) -> int:
    """Return the length of a multi-byte character with this first byte."""
    return 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def characters_of(partial: bytes) -> tuple[int, int]:
    """Return the range of code points whose UTF-8 starts with these bytes."""
    length = length_of(partial[0])
    bits = partial[0] & (0x7F >> length)
    for byte in partial[1:]:
        bits = bits << 6 | byte & 0x3F
    shift = 6 * (length - len(partial))
    least = {2: 0x80, 3: 0x800, 4: 0x10000}[length]
    return max(bits << shift, least), min((bits + 1) << shift, CODE_POINTS)
