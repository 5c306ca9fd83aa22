"""Automaton over tokens, which masks next tokens so that a match stays reachable."""

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

MOST_PREFIXES = 8192  # maximum number of cached prefixes
MOST_BYTES = 2**24  # maximum size of all cached masks, each of vocabulary size
LONGEST = 4  # maximum bytes of a UTF-8 character
Key = TypeVar("Key")
Value = TypeVar("Value")


class State(NamedTuple):
    """Progress of a text: the state of the automaton, and the bytes of an incomplete character.

    `first` is True until the prompt or the text has a visible character, `ended` after an end token.
    """

    place: int
    partial: bytes = b""
    first: bool = False
    ended: bool = False


@lru_cache(maxsize=8)
def guide_of(automaton: Automaton, tokenizer: Tokenizer, ends: frozenset[int]) -> Guide:
    """Return a cached Guide, or build it."""
    return Guide(automaton, tokenizer, ends)


class Guide:
    """Masks of the tokens allowed after the ids written so far. States and masks are cached."""

    def __init__(self, automaton: Automaton, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        """Raise UsageError if the tokenizer cannot write any match, or has no token to end one."""
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
        self.lock = Lock()  # guards the caches, as searches in several threads may share a guide
        if not any(self.can_begin(first) for first in (True, False)):
            raise UsageError("no allowed text can be written with this vocabulary")
        extensible = automaton.accepts & (automaton.table != DEAD).any(axis=1)
        if not self.ends and extensible.any():
            raise UsageError(
                "a complete text may be the beginning of a longer one, but the tokenizer has no end token; "
                "list the end tokens in `ends`"
            )

    def __reduce__(self) -> tuple[Callable[..., Guide], tuple[Automaton, Tokenizer, frozenset[int]]]:
        """Copy and pickle only the definition, as masks and states are derived."""
        return guide_of, (self.automaton, self.tokenizer, self.ends)

    def can_begin(self, first: bool) -> bool:
        """True if a match can start at the beginning of the text (`first`) or after a prompt."""
        return bool(self.allowed(State(START, first=first)).any())

    def writes(self, text: str, first: bool) -> bool:
        """True if tokens can spell `text`, at the beginning (`first`) or after a prompt."""
        data, reached = text.encode(), {0}
        for start in range(len(data)):
            pieces = self.pieces[first and start == 0]
            if start in reached:
                ends = range(start + 1, min(start + pieces.longest, len(data)) + 1)
                reached.update(end for end in ends if data[start:end] in pieces.spellings)
        return len(data) in reached

    def visible(self, ids: Iterable[int]) -> bool:
        """True if any of the tokens decodes to text."""
        return any(0 <= id_ < len(self.inner) and self.inner[id_] for id_ in ids)

    def state(self, first: bool, ids: Sequence[int]) -> State:
        """Return the state after the written `ids`; prefixes are cached, so appending a token takes one step."""
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
        """Return the state after one more token; its place is DEAD if no match can follow."""
        if id_ in self.ends:
            return state._replace(ended=True)
        if state.place == DEAD or not self.visible([id_]):
            return state
        text = (self.first if state.first else self.inner)[id_]
        parts = split(state.partial + text)
        place = DEAD if parts is None else self.automaton.next(state.place, parts[0])
        return State(place, b"" if parts is None else parts[1])

    def allowed(self, state: State) -> Tensor:
        """Return the mask of allowed next tokens, bool [vocab]. In the DEAD state, only end tokens are allowed."""
        if state not in self.masks:
            flags = np.zeros(len(self.inner), dtype=np.bool_)
            if not state.ended:
                flags |= self._inside_character(state) if state.partial else self._at_boundary(state)
                flags[list(self.ends)] = self.complete(state) or state.place == DEAD
            return _kept(self.masks, state, torch.from_numpy(flags), max(16, MOST_BYTES // len(flags)))
        return self.masks[state]

    def complete(self, state: State) -> bool:
        """True if the written text matches."""
        return bool(self.automaton.accepts[state.place]) and not state.partial

    def in_time(self, state: State, left: int) -> Tensor:
        """Return the mask of next tokens that allow a match within `left` tokens, the next token included."""
        allowed = self.allowed(state)
        if left > self.most:
            return allowed
        if state not in self.needed:
            _kept(self.needed, state, self._needed_after(state), max(16, MOST_BYTES // 4 // len(allowed)))
        soon = self.needed[state] < left
        soon[list(self.ends)] = True
        return allowed & torch.from_numpy(soon)

    def needs(self, state: State) -> int:
        """Return the minimum number of tokens to complete a match; FAR if impossible."""
        if self.complete(state):
            return 0
        if state.partial:
            return self._completing(state)
        after = self._needed_after(state)[self.allowed(state).numpy()]
        return int(after.min(initial=FAR)) + 1

    def _needed_after(self, state: State) -> Numbers:
        """Return the number of tokens needed to complete a match after each token, [vocab]."""
        needed = np.full(len(self.inner), FAR, dtype=np.int32)
        if state.partial:
            for id_ in self.pieces[False].continuing:
                needed[id_] = self._completing(self.step(state, id_))
            return needed
        pieces = self.pieces[state.first]
        places = pieces.places(state.place)
        needed[pieces.whole] = self.steps[places[pieces.whole]]
        for id_ in pieces.partial[0].tolist():
            cut = pieces.cut[id_]
            needed[id_] = self._completing(State(int(places[id_]), b"" if cut is None else cut[1]))
        return needed

    def _completing(self, state: State) -> int:
        """Return the number of tokens needed to complete the current character, if incomplete, and then a match."""
        if not state.partial:
            return int(self.steps[state.place])
        targets = self.automaton.table[state.place, self.pieces[False].classes_of(state.partial)]
        return length_of(state.partial[0]) - len(state.partial) + int(self.steps[targets].min())

    @cached_property
    def steps(self) -> Numbers:
        """Number of tokens needed to complete a match from each state, [states]; FAR if impossible.

        A character that is not a token counts as one token per byte.
        """
        pieces, table = self.pieces[False], self.automaton.table
        sources, targets = pieces.leads
        edges = [np.stack((sources, targets, np.ones_like(sources)))]
        if pieces.by_bytes:
            classes, costs = pieces.byte_classes
            places, columns = np.nonzero(table[:, classes] != DEAD)
            edges.append(np.stack((places.astype(np.int32), table[places, classes[columns]], costs[columns])))
        sources, targets, costs = np.concatenate(edges, axis=1)
        steps = np.where(self.automaton.accepts, 0, FAR).astype(np.int32)
        while True:
            nearer = steps.copy()
            np.minimum.at(nearer, sources, np.minimum(steps[targets] + costs, FAR))
            if (nearer == steps).all():
                return steps
            steps = nearer

    def _at_boundary(self, state: State) -> Flags:
        """Return the mask of allowed tokens at a character boundary."""
        pieces = self.pieces[state.first]
        places = pieces.places(state.place)
        flags = self.live[places] & pieces.whole
        ids, completing = pieces.partial
        flags[ids] = (self.live[self.automaton.table[places[ids]]] & completing).any(axis=1)
        return flags

    def _inside_character(self, state: State) -> Flags:
        """Return the mask of allowed tokens inside a character."""
        flags = np.zeros(len(self.inner), dtype=np.bool_)
        pieces = self.pieces[False]
        for id_ in pieces.continuing:
            after = self.step(state, id_)
            follows = (
                self.automaton.table[after.place, pieces.classes_of(after.partial)] if after.partial else after.place
            )
            flags[id_] = self.live[follows].any()
        return flags


def _live(automaton: Automaton, pieces: Pieces) -> tuple[Flags, int]:
    """Return the states from which tokens can complete a match, and an upper bound on the tokens needed.

    The bound assumes one token per character or byte; it is FAR if some state needs longer tokens.
    """
    by_token = automaton.distances(automaton.accepts, pieces.single)
    by_letter = automaton.distances(automaton.accepts, pieces.letters)
    everywhere = automaton.distances(automaton.accepts, np.ones(automaton.table.shape[1], dtype=np.bool_))
    live = by_letter < FAR
    if (live == (everywhere < FAR)).all():
        plain = (live == (by_token < FAR)).all()
        most = by_token[live].max() if plain else by_letter[live].max() * LONGEST
        return live, int(most) + (LONGEST - 1 if pieces.by_bytes else 0)  # plus the rest of an incomplete character
    return distances(live, *pieces.leads) < FAR, FAR


def _kept(cache: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Store a value in the cache, evicting the oldest entries beyond `most`. Return the value."""
    while len(cache) >= most:
        cache.pop(next(iter(cache)))
    cache[key] = value
    return value
