"""An automaton over the texts of tokens: which tokens may come next, so that a match can always be reached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, lru_cache
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.constraint.automaton import DEAD, FAR, START, Automaton, Flags, Numbers, distances
from tfkit.generation.constraint.pieces import Pieces, length_of, split
from tfkit.generation.constraint.token_texts import token_texts

MOST_PREFIXES = 8192  # of texts whose state is kept
MOST_BYTES = 2**24  # of the tokens of states, which are kept; each takes as many bytes as there are tokens
LONGEST = 4  # bytes of a character
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
        self.automaton, self.tokenizer, self.ends = automaton, tokenizer, frozenset(ends)
        self.inner, self.first = texts.inner, texts.first
        inner = Pieces(texts.inner, automaton, self.ends)
        self.pieces = {
            False: inner,
            True: inner if texts.first is texts.inner else Pieces(texts.first, automaton, self.ends),
        }
        self.live, self.most = _live(automaton, inner)
        self.states: dict[tuple[bool, tuple[int, ...]], State] = {}
        self.masks: dict[State, Tensor] = {}
        self.needed: dict[State, Numbers] = {}
        self.lock = Lock()  # of what is kept: searches in several threads may share a guide
        if not any(self.can_begin(first) for first in (True, False)):
            raise UsageError("no text that it allows can be written with the tokens of this vocabulary")
        going_on = automaton.accepts & (automaton.table != DEAD).any(axis=1)
        if not self.ends and going_on.any():
            raise UsageError(
                "a text may be complete and yet go on, and the tokenizer has no end token to tell; "
                "name what ends a text in `ends`"
            )

    def __reduce__(self) -> tuple[Callable[..., Guide], tuple[Automaton, Tokenizer, frozenset[int]]]:
        """Copy and pickle the definition alone; masks and states are derived."""
        return guide_of, (self.automaton, self.tokenizer, self.ends)

    def can_begin(self, first: bool) -> bool:
        """Whether a match can be written, as the first text of all or after another."""
        return bool(self.allowed(State(START, first=first)).any())

    def writes(self, text: str, first: bool) -> bool:
        """Whether that text can be written, as the first of all or after another."""
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
        """The state after the written `ids`; one token more costs one step."""
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
        """The state after one token more; at DEAD, where no match can follow any more."""
        if id_ in self.ends:
            return state._replace(ended=True)
        if state.place == DEAD or not self.visible([id_]):
            return state
        text = (self.first if state.first else self.inner)[id_]
        found = split(state.begun + text)
        place = DEAD if found is None else self.automaton.next(state.place, found[0])
        return State(place, b"" if found is None else found[1])

    def allowed(self, state: State) -> Tensor:
        """The tokens that may come next, bool [vocab]; after what matches nothing, only those that end a text."""
        if state not in self.masks:
            flags = np.zeros(len(self.inner), dtype=np.bool_)
            if not state.ended:
                flags |= self._begun(state) if state.begun else self._going_on(state)
                flags[list(self.ends)] = self.complete(state) or state.place == DEAD
            return _kept(self.masks, state, torch.from_numpy(flags), max(16, MOST_BYTES // len(flags)))
        return self.masks[state]

    def complete(self, state: State) -> bool:
        """Whether what is written is a match."""
        return bool(self.automaton.accepts[state.place]) and not state.begun

    def in_time(self, state: State, left: int) -> Tensor:
        """Of the tokens that may come next those after which `left` tokens, they included, can complete a match."""
        allowed = self.allowed(state)
        if left > self.most:
            return allowed
        if state not in self.needed:
            _kept(self.needed, state, self._needed_after(state), max(16, MOST_BYTES // 4 // len(allowed)))
        soon = self.needed[state] < left
        soon[list(self.ends)] = True
        return allowed & torch.from_numpy(soon)

    def needs(self, state: State) -> int:
        """How many tokens complete a match after what is written; FAR where none can."""
        if self.complete(state):
            return 0
        if state.begun:
            return self._completing(state)
        after = self._needed_after(state)[self.allowed(state).numpy()]
        return int(after.min(initial=FAR)) + 1

    def _needed_after(self, state: State) -> Numbers:
        """How many tokens complete a match after each token that may come next, [vocab]."""
        found = np.full(len(self.inner), FAR, dtype=np.int32)
        if state.begun:
            for id_ in self.pieces[False].continuing:
                found[id_] = self._completing(self.step(state, id_))
            return found
        pieces = self.pieces[state.first]
        places = pieces.places(state.place)
        found[pieces.whole] = self.steps[places[pieces.whole]]
        for id_ in pieces.begun[0].tolist():
            cut = pieces.cut[id_]
            found[id_] = self._completing(State(int(places[id_]), b"" if cut is None else cut[1]))
        return found

    def _completing(self, state: State) -> int:
        """How many tokens complete a match, of which each of the first goes on by one byte with a character begun."""
        if not state.begun:
            return int(self.steps[state.place])
        targets = self.automaton.table[state.place, self.pieces[False].classes_of(state.begun)]
        return length_of(state.begun[0]) - len(state.begun) + int(self.steps[targets].min())

    @cached_property
    def steps(self) -> Numbers:
        """How many tokens after others complete a match from each state, [states]; FAR where none do.

        Characters that are no token's count as many tokens as they have bytes.
        """
        pieces, table = self.pieces[False], self.automaton.table
        sources, targets = pieces.leads
        edges = [np.stack((sources, targets, np.ones_like(sources)))]
        if pieces.by_bytes:
            classes, costs = pieces.byte_classes
            places, columns = np.nonzero(table[:, classes] != DEAD)
            edges.append(np.stack((places.astype(np.int32), table[places, classes[columns]], costs[columns])))
        sources, targets, costs = np.concatenate(edges, axis=1)
        found = np.where(self.automaton.accepts, 0, FAR).astype(np.int32)
        while True:
            nearer = found.copy()
            np.minimum.at(nearer, sources, np.minimum(found[targets] + costs, FAR))
            if (nearer == found).all():
                return found
            found = nearer

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
            after = self.step(state, id_)
            follows = self.automaton.table[after.place, pieces.classes_of(after.begun)] if after.begun else after.place
            flags[id_] = self.live[follows].any()
        return flags


def _live(automaton: Automaton, pieces: Pieces) -> tuple[Flags, int]:
    """The states from which a match can be completed by tokens after others, and how many tokens that takes at most.

    The number is of tokens that write a character each, or a byte; where that is no way for all states it is FAR.
    """
    by_token = automaton.distances(automaton.accepts, pieces.single)
    by_letter = automaton.distances(automaton.accepts, pieces.letters)
    everywhere = automaton.distances(automaton.accepts, np.ones(automaton.table.shape[1], dtype=np.bool_))
    live = by_letter < FAR
    if (live == (everywhere < FAR)).all():
        plain = (live == (by_token < FAR)).all()
        most = by_token[live].max() if plain else by_letter[live].max() * LONGEST
        return live, int(most) + (LONGEST - 1 if pieces.by_bytes else 0)  # to complete a character that is begun
    return distances(live, *pieces.leads) < FAR, FAR


def _kept(cache: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Keep a value, and let the oldest go where there are too many."""
    while len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = value
    return value
