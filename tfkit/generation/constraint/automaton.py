"""A pattern as a deterministic finite automaton over characters (Thompson 1968; Rabin and Scott 1959)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tfkit.generation.constraint.syntax import (
    CODE_POINTS,
    Chain,
    Characters,
    Either,
    Node,
    PatternError,
    Repeated,
    Spans,
    parse,
)

Numbers = NDArray[np.int32]
Flags = NDArray[np.bool_]
DEAD, START = 0, 1
FAR = np.iinfo(np.int32).max // 2  # distance of unreachable states
MOST_STATES = 10_000  # maximum states per pattern
MOST_CELLS = 50_000_000  # maximum states times classes, for lists of texts
MOST_STEPS = 1_000_000  # maximum construction steps; this many take a second or two


@dataclass(frozen=True, eq=False)
class Automaton:
    """A transition table over character classes. DEAD is the sink, START the initial state.

    Characters that the pattern does not distinguish share a class. Code points are divided into spans that start at
    `begins` [spans] and have the class `classes` [spans]. `table` [states classes] has the next state, `accepts`
    [states] marks the final states.
    """

    begins: Numbers
    classes: Numbers
    table: Numbers
    accepts: Flags

    def classes_of(self, code_points: Numbers) -> Numbers:
        """Return the class of each character."""
        return self.classes[np.searchsorted(self.begins, code_points, side="right") - 1]

    def next(self, state: int, text: str) -> int:
        """Return the state after `text`, starting from `state`."""
        for class_ in self.classes_of(np.array([ord(character) for character in text], dtype=np.int32)).tolist():
            state = int(self.table[state, class_])
        return state

    def classes_within(self, first: int, last: int) -> Numbers:
        """Return the classes of the characters in [first, last)."""
        start = int(np.searchsorted(self.begins, first, side="right")) - 1
        return np.unique(self.classes[start : int(np.searchsorted(self.begins, last, side="left"))])

    def distances(self, goals: Flags, usable: Flags) -> Numbers:
        """Return each state's distance to the nearest goal, in characters of `usable` classes; FAR if unreachable."""
        table = self.table[:, usable]
        sources, columns = np.nonzero(table != DEAD)
        return distances(goals, sources.astype(np.int32), table[sources, columns])


def distances(goals: Flags, sources: Numbers, targets: Numbers) -> Numbers:
    """Return each node's distance to the nearest goal along directed edges; FAR if unreachable."""
    order = np.argsort(targets, kind="stable")
    sources, starts = sources[order], np.searchsorted(targets[order], np.arange(len(goals) + 1))
    result = np.where(goals, 0, FAR).astype(np.int32)
    pending = np.flatnonzero(goals).tolist()
    for place in pending:  # the loop extends the list
        for source in sources[starts[place] : starts[place + 1]].tolist():
            if result[source] == FAR:
                result[source] = result[place] + 1
                pending.append(source)
    return result


@lru_cache(maxsize=32)
def automaton_of(pattern: str) -> Automaton:
    """Compile a regular expression. Raise PatternError if it is invalid or too large."""
    machine, tree = _Machine(), parse(pattern)
    machine.end = machine.add(tree, machine.state())
    return machine.automaton()


@lru_cache(maxsize=32)
def automaton_of_texts(texts: tuple[str, ...]) -> Automaton:
    """Build the trie of literal texts. Raise PatternError if it is too large."""
    class_of = {ord(letter): class_ for class_, letter in enumerate(sorted(set("".join(texts))), 1)}
    rows: list[dict[int, int]] = [{}, {}]
    ends = set()
    for text in texts:
        place = START
        for letter in text:
            place = rows[place].setdefault(class_of[ord(letter)], len(rows))
            if place == len(rows):
                rows.append({})
        ends.add(place)
    if len(rows) * (len(class_of) + 1) > MOST_CELLS:
        raise PatternError(
            f"{len(texts)} texts with {len(class_of)} different characters are too many; list fewer or shorter texts"
        )
    begins = np.array(sorted({0, *class_of, *(point + 1 for point in class_of)}), dtype=np.int32)
    classes = np.array([class_of.get(point, 0) for point in begins.tolist()], dtype=np.int32)
    accepts = np.array([place in ends for place in range(len(rows))], dtype=np.bool_)
    return Automaton(begins, classes, _table(rows, len(class_of) + 1), accepts)


def _table(rows: list[dict[int, int]], width: int) -> Numbers:
    table = np.zeros((len(rows), width), dtype=np.int32)
    for number, row in enumerate(rows):
        table[number, list(row)] = list(row.values())
    return table


class _Machine:
    """Nondeterministic automaton under construction. `moves` consume a character; `leaps` are epsilon transitions."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[int, int]]] = []
        self.leaps: list[list[int]] = []
        self.sets: dict[Spans, int] = {}
        self.end = 0
        self.steps = 0

    def state(self) -> int:
        self.spend(15)
        self.moves.append([])
        self.leaps.append([])
        return len(self.moves) - 1

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise PatternError("is too large; reduce the repetitions, above all nested ones")

    def add(self, node: Node, start: int) -> int:
        """Add `node` after the state `start`. Return the end state."""
        if isinstance(node, Characters):
            end = self.state()
            self.moves[start].append((self.sets.setdefault(node.spans, len(self.sets)), end))
            return end
        if isinstance(node, Chain):
            for part in node.parts:
                start = self.add(part, start)
            return start
        if isinstance(node, Either):
            ends = [self.add(way, self.leap(start)) for way in node.ways]
            return self.joined(ends)
        return self.add_repeated(node, start)

    def add_repeated(self, node: Repeated, start: int) -> int:
        for _ in range(node.least):
            start = self.add(node.part, self.leap(start))
        if node.most is None:
            again = self.leap(start)
            self.leaps[self.add(node.part, again)].append(again)
            return self.leap(again)
        ends = [start]
        for _ in range(node.most - node.least):
            ends.append(self.add(node.part, self.leap(ends[-1])))
        return self.joined(ends)

    def leap(self, start: int) -> int:
        """Add an epsilon transition from `start` to a new state."""
        end = self.state()
        self.leaps[start].append(end)
        return end

    def joined(self, ends: Iterable[int]) -> int:
        """Add epsilon transitions from all `ends` to one new state."""
        end_state = self.state()
        for end in ends:
            self.leaps[end].append(end_state)
        return end_state

    def closed(self, states: Iterable[int]) -> frozenset[int]:
        """Return the epsilon closure, reduced to states with moves and the final state."""
        reached, pending = set(states), list(states)
        while pending:
            for state in self.leaps[pending.pop()]:
                if state not in reached:
                    reached.add(state)
                    pending.append(state)
        self.spend(len(reached))
        return frozenset(state for state in reached if self.moves[state] or state == self.end)

    def automaton(self) -> Automaton:
        """Convert to a deterministic automaton by the subset construction."""
        begins, classes, within = _split_spans(list(self.sets))
        numbers: dict[frozenset[int], int] = {frozenset(): DEAD, self.closed([0]): START}
        closures: dict[frozenset[int], int] = {}
        rows: list[dict[int, int]] = [{}]
        pending = [self.closed([0])]
        for states in pending:  # the loop extends the list
            reached: dict[int, set[int]] = {}
            for state in states:
                for set_, target in self.moves[state]:
                    for class_ in within[set_]:
                        reached.setdefault(class_, set()).add(target)
            self.spend(sum(map(len, reached.values())))
            row = {}
            for class_, targets in reached.items():
                key = frozenset(targets)
                if key not in closures:
                    closed = self.closed(key)
                    closures[key] = numbers.setdefault(closed, len(numbers))
                    if closures[key] == len(pending) + 1:
                        pending.append(closed)
                row[class_] = closures[key]
            rows.append(row)
            if len(numbers) > MOST_STATES + 1:
                raise PatternError(
                    f"needs more than {MOST_STATES} states; reduce the repetitions, above all nested ones"
                )
        accepts = np.array([False, *(self.end in states for states in pending)])
        return _trimmed(Automaton(begins, classes, _table(rows, int(classes.max()) + 1), accepts))


def _trimmed(automaton: Automaton) -> Automaton:
    """Redirect states that cannot reach a match to DEAD. Raise PatternError if nothing matches."""
    live = automaton.distances(automaton.accepts, np.ones(automaton.table.shape[1], dtype=np.bool_)) < FAR
    if not live[START]:
        raise PatternError("matches no text at all")
    table = np.where(live[automaton.table], automaton.table, DEAD).astype(np.int32)
    return Automaton(automaton.begins, automaton.classes, table, automaton.accepts)


def _split_spans(sets: list[Spans]) -> tuple[Numbers, Numbers, list[list[int]]]:
    """Split the code points at the edges of all sets. Return span starts, span classes, and the classes of each set."""
    cuts = {0, CODE_POINTS, *(edge for spans in sets for span in spans for edge in span)}
    begins = np.array(sorted(cuts)[:-1], dtype=np.int32)
    inside = np.zeros((len(sets) + 1, len(begins)), dtype=np.bool_)  # an extra row in case there are no sets
    for row, spans in enumerate(sets):
        inside[row] = np.searchsorted(np.array(spans, dtype=np.int32).ravel(), begins, side="right") % 2 == 1
    kinds, classes = np.unique(inside, axis=1, return_inverse=True)
    within = [np.flatnonzero(row).tolist() for row in kinds]
    return begins, classes.reshape(-1).astype(np.int32), within
