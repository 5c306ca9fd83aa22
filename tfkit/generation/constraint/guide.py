"""An automaton over the texts of tokens: which tokens may come next, so that a match can always be reached."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.constraint.automaton import DEAD, START, Automaton, Flags, Numbers, backwards
from tfkit.generation.constraint.syntax import CODE_POINTS
from tfkit.generation.constraint.token_texts import Texts, token_texts

MOST_PREFIXES = 8192  # of texts whose state is kept
MOST_BYTES = 2**24  # of the tokens of states, which are kept; each takes as many bytes as there are tokens
CONTINUING = range(0x80, 0xC0)  # bytes that go on with a character
LEADING = range(0xC2, 0xF5)  # bytes that begin one of several bytes
Key = TypeVar("Key")
Value = TypeVar("Value")


class State(NamedTuple):
    """How far a text is: the automaton's state, the bytes of a character that is begun, and what stands before.

    `first` says that nothing was written yet, by the prompt neither; `ended` that an end token was written.
    """

    place: int
    begun: bytes = b""
    first: bool = False
    ended: bool = False


@lru_cache(maxsize=8)
def guide_of(automaton: Automaton, tokenizer: Tokenizer, ends: frozenset[int]) -> Guide:
    """The guide, made once; raises UsageError as it does."""
    return Guide(automaton, tokenizer, ends)


class Guide:
    """Says which tokens may follow, given the ids that are written; what it keeps depends on these alone."""

    def __init__(self, automaton: Automaton, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        """Raises UsageError where no match can be written with the tokenizer, or none can be told to be complete."""
        texts = token_texts(tokenizer)
        self.automaton, self.ends = automaton, frozenset(ends)
        self.inner, self.first = texts.inner, texts.first
        inner = _Pieces(texts.inner, automaton, self.ends)
        self.pieces = {
            False: inner,
            True: inner if texts.first is texts.inner else _Pieces(texts.first, automaton, self.ends),
        }
        self.live = _live(automaton, self.pieces)
        self.states: dict[tuple[bool, tuple[int, ...]], State] = {}
        self.masks: dict[State, Tensor] = {}
        self.lock = Lock()  # of what is kept: searches in several threads may share a guide
        if not any(self.can_begin(first) for first in (True, False)):
            raise UsageError("no text that it allows can be written with the tokens of this vocabulary")
        going_on = automaton.accepts & (automaton.table != DEAD).any(axis=1)
        if not self.ends and going_on.any():
            raise UsageError(
                "a text may be complete and yet go on, and the tokenizer has no end token to tell; "
                "name what ends a text in `ends`"
            )

    def can_begin(self, first: bool) -> bool:
        """Whether a match can be written, as the first text of all or behind another."""
        return bool(self.allowed(State(START, first=first)).any())

    def writes(self, text: str, first: bool) -> bool:
        """Whether that text can be written, as the first of all or behind another."""
        data, reached = text.encode(), {0}
        for start in range(len(data)):
            pieces = self.pieces[first and start == 0]
            if start in reached:
                ends = range(start + 1, min(start + pieces.longest, len(data)) + 1)
                reached.update(end for end in ends if data[start:end] in pieces.spellings)
        return len(data) in reached

    def visible(self, ids: Iterable[int]) -> bool:
        """Whether one of the tokens writes something."""
        return any(0 <= id_ < len(self.inner) and self.inner[id_] for id_ in ids)

    def state(self, first: bool, ids: Sequence[int]) -> State:
        """The state behind the written `ids`; one token more costs one step."""
        known, whole = self.states, tuple(ids)
        if (first, whole) in known:
            return known[first, whole]
        before = known.get((first, whole[:-1]))
        rest = whole[-1:]
        if before is None:
            before, rest = State(START, first=first), whole
        for id_ in rest:
            before = self.step(before, id_)
        return _kept(known, (first, whole), before, MOST_PREFIXES)

    def step(self, state: State, id_: int) -> State:
        """The state behind one token more; at DEAD, where no match can follow any more."""
        if id_ in self.ends:
            return state._replace(ended=True)
        if state.place == DEAD or not self.visible([id_]):
            return state
        text = (self.first if state.first else self.inner)[id_]
        found = _split(state.begun + text)
        place = DEAD if found is None else self.automaton.next(state.place, found[0])
        return State(place, b"" if found is None else found[1])

    def allowed(self, state: State) -> Tensor:
        """The tokens that may come next, bool [vocab]; behind what matches nothing, only those that end a text."""
        if state not in self.masks:
            flags = np.zeros(len(self.inner), dtype=np.bool_)
            if not state.ended:
                flags |= self._begun(state) if state.begun else self._going_on(state)
                complete = bool(self.automaton.accepts[state.place]) and not state.begun
                flags[list(self.ends)] = complete or state.place == DEAD
            return _kept(self.masks, state, torch.from_numpy(flags), max(16, MOST_BYTES // len(flags)))
        return self.masks[state]

    def _going_on(self, state: State) -> Flags:
        """Tokens that may follow where no character is begun."""
        pieces = self.pieces[state.first]
        places = pieces.places(state.place)
        flags = self.live[places] & pieces.whole
        ids, completing = pieces.begun
        flags[ids] = (self.live[self.automaton.table[places[ids]]] & completing).any(axis=1)
        return flags

    def _begun(self, state: State) -> Flags:
        """Tokens that may follow within a character."""
        flags = np.zeros(len(self.inner), dtype=np.bool_)
        pieces = self.pieces[False]
        for id_ in pieces.continuing:
            behind = self.step(state, id_)
            follows = (
                self.automaton.table[behind.place, pieces.classes_of(behind.begun)] if behind.begun else behind.place
            )
            flags[id_] = self.live[follows].any()
        return flags


@dataclass(frozen=True)
class _Pieces:
    """The tokens' texts as classes of an automaton's characters, so that all of them can be followed at once.

    Tokens that hold a part of a character are used where each of its bytes is a token, so that it can be completed.
    """

    texts: Texts
    automaton: Automaton
    ends: Collection[int]

    @cached_property
    def cut(self) -> list[tuple[str, bytes] | None]:
        """Each token's whole characters and the bytes of one begun; None: not used, for it writes nothing or ends."""
        found: list[tuple[str, bytes] | None] = []
        for id_, text in enumerate(self.texts):
            cut = _split(text) if text and id_ not in self.ends else None
            found.append(None if cut and cut[1] and not self.by_bytes else cut)
        return found

    @cached_property
    def by_bytes(self) -> bool:
        """Whether each byte of characters of several bytes is a token."""
        single = {text[0] for id_, text in enumerate(self.texts) if len(text) == 1 and id_ not in self.ends}
        return single.issuperset(CONTINUING) and single.issuperset(LEADING)

    @cached_property
    def used(self) -> Flags:
        """Tokens that may come where no character is begun."""
        return np.array([cut is not None for cut in self.cut], dtype=np.bool_)

    @cached_property
    def whole(self) -> Flags:
        """Tokens of whole characters."""
        return np.array([cut is not None and not cut[1] for cut in self.cut], dtype=np.bool_)

    @cached_property
    def begun(self) -> tuple[Numbers, Flags]:
        """Tokens that begin a character, [tokens], and the classes of what it can become, [tokens classes]."""
        ids = np.flatnonzero(self.used & ~self.whole).astype(np.int32)
        completing = np.zeros((len(ids), self.automaton.table.shape[1]), dtype=np.bool_)
        for row, id_ in enumerate(ids.tolist()):
            cut = self.cut[id_]
            completing[row, self.classes_of(cut[1] if cut else b"")] = True
        return ids, completing

    @cached_property
    def continuing(self) -> list[int]:
        """Tokens that go on with a character."""
        return [
            id_
            for id_, text in enumerate(self.texts)
            if self.by_bytes and text and text[0] in CONTINUING and id_ not in self.ends
        ]

    @cached_property
    def spellings(self) -> frozenset[bytes]:
        """The bytes of all tokens that are used."""
        return frozenset(self.texts[id_] for id_ in (*np.flatnonzero(self.used).tolist(), *self.continuing))

    @cached_property
    def longest(self) -> int:
        """The length of the longest."""
        return max(map(len, self.spellings), default=0)

    @cached_property
    def letters(self) -> Flags:
        """The classes of which a character can be written by a token of its own, or by its bytes."""
        single = {ord(cut[0]) for cut in self.cut if cut is not None and len(cut[0]) == 1 and not cut[1]}
        found = np.zeros(self.automaton.table.shape[1], dtype=np.bool_)
        found[self.automaton.classes_of(np.array(sorted(single), dtype=np.int32))] = True
        if self.by_bytes:
            found[self.automaton.classes_within(0x80, CODE_POINTS)] = True
        return found

    @cached_property
    def _rows(self) -> tuple[Numbers, Numbers, Numbers]:
        """The classes of all characters, where each token's begin, and how many they are."""
        texts = [cut[0] if cut is not None else "" for cut in self.cut]
        points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.int32)
        lengths = np.array([len(text) for text in texts], dtype=np.int32)
        return self.automaton.classes_of(points), np.cumsum(lengths, dtype=np.int32) - lengths, lengths

    def places(self, place: int) -> Numbers:
        """Where each token's whole characters lead to from a place, [vocab]; DEAD for a token that is not used."""
        classes, starts, lengths = self._rows
        places = np.where(self.used, place, DEAD).astype(np.int32)
        going = np.flatnonzero(lengths)
        for count in range(int(lengths.max(initial=0))):
            going = going[(lengths[going] > count) & (places[going] != DEAD)]
            if not len(going):
                break
            places[going] = self.automaton.table[places[going], classes[starts[going] + count]]
        return places

    def classes_of(self, begun: bytes) -> Numbers:
        """The classes of the characters that begin with these bytes."""
        return self.automaton.classes_within(*_characters_of(begun))


def _live(automaton: Automaton, pieces: dict[bool, _Pieces]) -> Flags:
    """The states from which a match can be completed by tokens behind others, [states]."""
    inner = pieces[False]
    live = automaton.reaching(automaton.accepts, inner.letters)
    everywhere = np.ones(automaton.table.shape[1], dtype=np.bool_)
    if (live == automaton.reaching(automaton.accepts, everywhere)).all():
        return live  # each character can be written by itself, wherever the automaton may be
    sources, targets = [], []
    pending = [START, *_targets(pieces[True], START)]
    seen = set(pending)
    for place in pending:  # which grows meanwhile
        for target in _targets(inner, place):
            sources.append(place)
            targets.append(target)
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return backwards(live, np.array(sources, dtype=np.int32), np.array(targets, dtype=np.int32))


def _targets(pieces: _Pieces, place: int) -> list[int]:
    """Where tokens of whole characters lead to from a place."""
    found: list[Any] = np.unique(pieces.places(place)[pieces.whole]).tolist()
    return [target for target in found if target != DEAD]


def _split(data: bytes) -> tuple[str, bytes] | None:
    """The whole characters at the beginning of UTF-8, and the bytes of one that is begun; None for what is none."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data), decoder.getstate()[0]
    except UnicodeDecodeError:
        return None


def _characters_of(begun: bytes) -> tuple[int, int]:
    """The characters that begin with these bytes: the first, and the one behind the last."""
    length = 2 if begun[0] < 0xE0 else 3 if begun[0] < 0xF0 else 4
    bits = begun[0] & (0x7F >> length)
    for byte in begun[1:]:
        bits = bits << 6 | byte & 0x3F
    shift = 6 * (length - len(begun))
    least = {2: 0x80, 3: 0x800, 4: 0x10000}[length]
    return max(bits << shift, least), min((bits + 1) << shift, CODE_POINTS)


def _kept(cache: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Keep a value, and let the oldest go where there are too many."""
    while len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = value
    return value
