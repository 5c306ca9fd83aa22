"""Context of a call: masks, positions, states and inputs in a frozen bundle that is passed to every sublayer.

Nothing else is passed down, and no flag marks the kind of call: training, prefill, one-token decoding and packing
differ only in the context.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.core.inputs import Inputs
from tfkit.core.slots import MaskFacts, PositionFacts
from tfkit.core.store import Store

ALL = 2**40  # exceeds any number of keys


@dataclass(frozen=True)
class Span:
    """Positions of the queries (past to past + queries) and of the keys (first to keys) in the sequence.

    `first` is above 0 if the decode state has dropped keys outside every window. With a static cache, `at` [1] is the
    position of the only query; then all keys are from 0 to `keys`, and `past` is `keys`.
    """

    queries: int
    keys: int
    past: int
    device: torch.device
    first: int = 0
    at: Tensor | None = None

    def query(self) -> Tensor:
        """Return the positions of the queries, [1 query]."""
        return (torch.arange(self.past, self.past + self.queries, device=self.device) if self.at is None else self.at)[
            None
        ]

    def key(self) -> Tensor:
        """Return the positions of the keys, [1 key]."""
        return torch.arange(self.first, self.keys, device=self.device)[None]

    def of_queries(self, fact: Tensor) -> Tensor:
        """Select the values of the queries from those of all positions, [batch place] -> [batch query]."""
        return fact[:, self.past :] if self.at is None else fact.index_select(1, self.at)

    def own(self, x: Tensor) -> Tensor:
        """Select the keys or values of the queries' own tokens, [batch heads key dim] -> [batch heads query dim]."""
        return x[:, :, self.past - self.first :] if self.at is None else x.index_select(2, self.at)


@dataclass(frozen=True)
class Reach:
    """Maximum number of keys visible before and after the query; `aligned` n: only in its block of n keys."""

    before: int
    after: int
    aligned: int | None = None


def looks_back(rules: Sequence[MaskFacts]) -> int | None:
    """Return the maximum number of keys visible before the query; None if unbounded or extended by an opening."""
    if any(rule.opens for rule in rules):
        return None
    ends = [end[0] for end in [rule.reach() for rule in rules] if end is not None]
    before = min(ends, default=ALL)
    return None if before >= ALL else before


@dataclass
class Visibility:
    """Visibility between queries and keys: rules over positions, converted to a tensor on demand and cached.

    visible = padding and segments and (all limits, or any opening). `real` and `segments` cover all positions from 0,
    independent of the span.
    """

    rules: Sequence[MaskFacts]
    span: Span
    inputs: Inputs = field(default_factory=Inputs)
    real: Tensor | None = None  # [batch place], True = not padding
    segments: tuple[Tensor, Tensor] | None = None  # text numbers of queries [batch query] and keys [batch place]
    kept: dict[Any, Any] = field(default_factory=dict, init=False)  # cache of the kernels, shared by all layers
    _full: bool | None = field(default=None, init=False)
    _dense: Tensor | None = field(default=None, init=False)
    _seen: tuple[Tensor | None, Tensor | None] | None = field(default=None, init=False)

    @property
    def is_causal(self) -> bool:
        """True for exactly the causal triangle over the whole sequence, for which kernels have a fast path."""
        plain = self.real is None and self.segments is None and self.span.past == 0
        return plain and len(self.rules) == 1 and self.rules[0].triangle

    @property
    def is_full(self) -> bool:
        """True if every key is visible to every query."""
        if self._full is None:
            last_only = self.span.queries == 1 and self.span.past == self.span.keys - 1
            unmarked = self.real is None and self.segments is None
            self._full = unmarked and all(last_only and self._shows_past(rule) for rule in self.rules)
        return self._full

    def _shows_past(self, rule: MaskFacts) -> bool:
        """True if the rule shows the query all cached keys: causal, or a window whose older keys were dropped."""
        if rule.triangle:
            return True
        end = rule.reach() if rule.solid else None
        return end is not None and end[0] >= self.span.past - self.span.first

    def dense(self) -> Tensor | None:
        """Return the mask [batch|1 query|1 key], True = visible; None = everything is visible."""
        if self._dense is None and not self.is_full:
            self._dense = self._make()
        return self._dense

    def seen(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the dense mask with fully masked rows opened, and the rows that see a key [batch|1 query|1 1].

        Softmax over a fully masked row is NaN; the output of such rows is zeroed instead. The second is None if no row
        can be fully masked.
        """
        if self._seen is None:
            dense = self.dense()
            triangle = all(rule.triangle for rule in self.rules)
            if dense is None or (triangle and self.real is None and self.segments is None):
                self._seen = dense, None  # a token always sees itself
            else:
                self._seen = opened(dense)
        return self._seen

    def band(self) -> Reach | None:
        """Return the reach if it is bounded on both sides and only marked tokens extend visibility; else None."""
        if self.span.at is not None:
            return None
        limits = [rule for rule in self.rules if not rule.opens]
        ends = [end for end in [rule.reach() for rule in limits] if end is not None]
        if len(ends) < max(1, len(limits)) or not all(rule.marks for rule in self.rules if rule.opens):
            return None
        before, after = (min(end[side] for end in ends) for side in (0, 1))
        if max(before, after) >= ALL:
            return None
        whole = self.span.past == 0 and self.starts() is None
        aligned = [rule.aligned for rule in limits if rule.aligned]
        return Reach(before, after, min(aligned) if aligned and whole else None)

    def marked(self) -> Tensor | None:
        """Return the tokens visible to and from all, [batch key]; None without such a rule."""
        if not any(rule.marks for rule in self.rules) or self.inputs.global_attention_mask is None:
            return None
        return self.inputs.global_attention_mask.bool()

    def starts(self) -> Tensor | None:
        """Return the position of each text's first token, [batch position]; None: 0 for all."""
        if not any(rule.counts_texts for rule in self.rules):
            return None
        if self.segments is not None:
            of_keys = self.segments[1]
            begins = F.pad(of_keys[:, 1:] != of_keys[:, :-1], (1, 0), value=True)  # [batch position]
            return (begins * torch.arange(self.span.keys, device=self.span.device)).cummax(dim=1).values
        return None if self.real is None else self.real.int().argmax(dim=1, keepdim=True).expand_as(self.real)

    def among(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the visibility of keys at places [batch|1 ... key] from queries at places [batch|1 ... query].

        Returns [batch|1 ... query key]; keys outside the sequence are hidden. Openings are ignored if there are
        additional axes.
        """
        dense = ((key >= self.span.first) & (key < self.span.keys))[..., None, :]  # [batch|1 ... 1 key]
        if self.real is not None:
            dense = dense & at(self.real, key)[..., None, :]  # [batch ... 1 key]
        if self.segments is not None:
            of_queries, of_keys = self.segments
            dense = dense & (at(of_queries, query - self.span.past)[..., :, None] == at(of_keys, key)[..., None, :])
        visible = self._ruled(query, key, openings=query.dim() == 2)
        dense = dense if visible is None else dense & visible
        return dense.expand(*dense.shape[:-2], query.shape[-1], -1)  # [batch|1 ... query key]

    def apart(self) -> Visibility:
        """Return a copy with independent caches."""
        twin = copy(self)
        twin.kept = dict(self.kept)
        return twin

    def _make(self) -> Tensor:
        visible = self._ruled(self.span.query(), self.span.key())
        together = [] if visible is None else [visible]
        first = self.span.first
        if self.real is not None:
            together.append(self.real[:, None, first:])  # [batch 1 key]
        if self.segments is not None:
            together.append(self.segments[0][:, :, None] == self.segments[1][:, None, first:])  # [batch query key]
        dense = _every(together)
        if dense is None:  # no limits, so everything is visible
            dense = torch.ones(1, 1, self.span.keys - first, dtype=torch.bool, device=self.span.device)
        return dense

    def _ruled(self, query: Tensor, key: Tensor, openings: bool = True) -> Tensor | None:
        """Apply all limits, or any opening, to places [batch|1 ... query] and [batch|1 ... key]; None = no limit."""
        visible = _every([self._visible_by(rule, query, key) for rule in self.rules if not rule.opens])
        if visible is not None and openings:
            for rule in self.rules:
                visible = visible | self._visible_by(rule, query, key) if rule.opens else visible
        return visible

    def _visible_by(self, rule: MaskFacts, query: Tensor, key: Tensor) -> Tensor:
        starts = self.starts() if rule.counts_texts else None
        if starts is not None:
            query, key = query - at(starts, query), key - at(starts, key)
        return rule.visible(query[..., :, None], key[..., None, :], self.inputs)


def opened(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Return the dense mask with fully masked rows opened, and the rows that see a key [... query 1]."""
    sees = dense.any(dim=-1, keepdim=True)  # [... query 1]
    return dense | ~sees, sees


def at(facts: Tensor, places: Tensor) -> Tensor:
    """Gather per-token values [batch time] at places [batch|1 ... n] -> [batch ... n]; clamp out-of-range places."""
    places = places.clamp(0, facts.shape[1] - 1)
    if places.shape[0] == 1:
        return facts[:, places[0]]  # [batch ... n]
    row = torch.arange(places.shape[0], device=places.device).view(-1, *[1] * (places.dim() - 1))  # [batch 1 ...]
    return facts.expand(places.shape[0], -1)[row, places]


def _every(masks: Sequence[Tensor]) -> Tensor | None:
    return reduce(operator.and_, masks) if masks else None


@dataclass(eq=False)
class Placement:
    """Results of a layer's position parts for this call, each computed once and cached.

    `query` and `key` [batch|1 time] count from 0 by default, without keys that a decode state has dropped. `lengths`
    has the text lengths of queries and keys, [batch|1 time|1] each, if a part `moves`; `counted` has positions that
    skip padding (padding is -1), for parts that require them.
    """

    parts: Sequence[PositionFacts]
    query: Tensor
    key: Tensor
    lengths: tuple[Tensor, Tensor] | None = None
    counted: tuple[Tensor, Tensor] | None = None
    moves: bool = field(init=False)  # True if rotations depend on the length: the cache then stores unrotated keys
    _kept: dict[object, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.moves = any(part.moves for part in self.parts)

    def of(self, parts: Sequence[PositionFacts]) -> Placement:
        """Return a Placement of `parts` at the same positions."""
        return Placement(parts, self.query, self.key, self.lengths, self.counted)

    def apart(self) -> Placement:
        """Return a copy with an independent cache."""
        twin = copy(self)
        twin._kept = dict(self._kept)
        return twin

    def embed(self) -> Tensor | None:
        """Return the position embeddings, [batch|1 query width], or None."""
        return _total([part.embed(self._seen_by(part)[0]) for part in self.parts])

    def rotation(self, dim: int, of_keys: bool = False) -> Any | None:
        """Return a callable that rotates queries and new keys [batch heads query dim], or None.

        With `of_keys` it rotates all keys so far, [batch heads key dim].
        """
        if (dim, of_keys) not in self._kept:
            turns = [self._rotation(part, dim, int(of_keys)) for part in self.parts]
            rotations = [turn for turn in turns if turn is not None]
            self._kept[dim, of_keys] = rotations[0] if rotations else None
        return self._kept[dim, of_keys]

    def _rotation(self, part: PositionFacts, dim: int, side: int) -> object | None:
        positions = self._seen_by(part)[side]
        if self.lengths is None or not part.moves:
            return part.rotation(positions, dim)
        return part.rotation_within(positions, self.lengths[side], dim)

    def bias(self, num_heads: int) -> Tensor | None:
        """Return the bias of the attention scores, [batch|1 heads query key], or None."""
        if num_heads not in self._kept:
            self._kept[num_heads] = _total([part.bias(*self._seen_by(part), num_heads) for part in self.parts])
        bias: Tensor | None = self._kept[num_heads]
        return bias

    def temperature(self) -> Tensor | None:
        """Return the factor of each query's scores, [batch|1 query], or None."""
        if "temperature" not in self._kept:
            factors = [part.temperature(self._seen_by(part)[0]) for part in self.parts]
            factors = [factor for factor in factors if factor is not None]
            self._kept["temperature"] = reduce(operator.mul, factors) if factors else None
        temperature: Tensor | None = self._kept["temperature"]
        return temperature

    def _seen_by(self, part: PositionFacts) -> tuple[Tensor, Tensor]:
        """Return the positions of queries and keys as the part counts them."""
        if self.counted is not None and part.skips_padding:
            return self.counted
        return self.query, self.key


def _total(terms: Sequence[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return reduce(operator.add, present) if present else None


OBSERVATIONS = ("attention", "hidden_states")


class Collector:
    """Collector of side outputs of sublayers: auxiliary losses and requested observations.

    `place` is the path of the observer in the model, such as `decoder.layers.3.attention`; empty for a standalone part.
    """

    def __init__(self, watch: frozenset[str] = frozenset(), place: str = "") -> None:
        self.watch = watch
        self.place = place
        self.losses: list[Tensor] = []
        self.observed: dict[str, list[Tensor]] = {}

    def at(self, name: str) -> Collector:
        """Return a view of this collector for the nested part `name`."""
        inner = Collector(self.watch, f"{self.place}.{name}" if self.place else name)
        inner.losses, inner.observed = self.losses, self.observed
        return inner

    def watches(self, name: str) -> bool:
        return name in self.watch

    def observe(self, name: str, value: Tensor) -> None:
        """Append `value` to the observations of this place, or of `name` for a standalone part."""
        self.observed.setdefault(self.place or name, []).append(value)

    def add_loss(self, loss: Tensor) -> None:
        """Add an auxiliary loss, such as a router's."""
        self.losses.append(loss)


@dataclass(frozen=True)
class Context:
    """Context of a call to one sublayer. In a nested `memory` context, `source` holds the states to attend to."""

    mask: Visibility
    position: Placement
    state: Any | None = None  # decode state of this sublayer, or None
    source: Tensor | None = None  # [batch key memory_width]; None = self-attention
    memory: Context | None = None  # for cross-attention: source, visibility and placement
    inputs: Inputs = field(default_factory=Inputs)
    collector: Collector = field(default_factory=Collector)
    store: Store = field(default_factory=Store)  # tensors of earlier layers, shared by all contexts of a stack's call

    def with_state(self, state: object) -> Context:
        """Return a copy with a sublayer's `state`; written out for speed, as every layer calls it in every step."""
        memory, inputs, collector = self.memory, self.inputs, self.collector
        return Context(self.mask, self.position, state, self.source, memory, inputs, collector, self.store)

    def apart(self, store: Store | None = None) -> Context:
        """Return a copy with its own caches, store and collector, for a second forward of the same sublayers."""
        store = self.store.apart() if store is None else store
        memory, collector = self.memory and self.memory.apart(store), Collector(self.collector.watch)
        collector.place = self.collector.place
        mask, position = self.mask.apart(), self.position.apart()
        return Context(mask, position, self.state, self.source, memory, self.inputs, collector, store)
