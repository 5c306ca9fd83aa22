"""Tensors that parts pass to later layers of the same stack, and the declarations of the parts that do.

    class Writer(Attention):
        writes = frozenset({"first_value"})  # in forward: context.store["first_value"] = value
    class Reader(Attention):
        reads = frozenset({"first_value"})  # in forward: context.store["first_value"]

A store lives for one call of one stack. It holds what that call computed: with a decode state, tensors of the new
tokens only, so that a part that needs past ones keeps them in its own state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tfkit.core import component
from tfkit.core.component import Component, Problem, Shape
from tfkit.core.errors import UsageError
from tfkit.core.inputs import extra_widths

if TYPE_CHECKING:  # recipes are read without torch
    from torch import Tensor


@dataclass(frozen=True)
class Stores:
    """Names that a part writes to and reads from `context.store`.

    A part that both reads and writes a name writes it if no earlier layer has. `offers` are written too, without a
    warning if nothing reads them. `keys` are read names whose tensors have one entry per key that the writer attends
    to, past ones included; writer and reader must then have equal masks and positions. `inputs` are the extra inputs of
    a call that it reads from `context.inputs`, with their widths.
    """

    writes: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    inputs: tuple[tuple[str, int], ...] = ()

    @property
    def written(self) -> frozenset[str]:
        """Names that a later layer can read."""
        return self.writes | self.offers


class StoreFacts(Component):
    """Declarations of parts that have a store: sublayers, residual layouts, norms and embeddings."""

    class Config(component.Config):
        part: ClassVar[type[StoreFacts]]

        def stores(self, shape: Shape) -> Stores:
            """Return the names that the part uses under these options, besides those of its class."""
            return Stores()

        def inputs(self, shape: Shape) -> Mapping[str, Mapping[str, int]]:
            """Return the extra inputs that the part reads under these options."""
            return self.part.inputs

        def check_writer(self, name: str, writer: component.Config, shape: Shape) -> Iterator[Problem]:
            """Yield problems with reading `name` as `writer` writes it."""
            yield from ()

    writes: ClassVar[frozenset[str]] = frozenset()  # names written to context.store
    reads: ClassVar[frozenset[str]] = frozenset()  # names read from context.store, written by an earlier layer
    # vectors passed in each call and read from context.inputs, [batch width]: {"condition": {"width": 16}}
    inputs: ClassVar[Mapping[str, Mapping[str, int]]] = {}


class Store:
    """Tensors by name. Tensors that no part of the stack reads are not kept (`wanted`; None: all are kept)."""

    def __init__(self, wanted: frozenset[str] | None = None, held: Mapping[str, Tensor] | None = None) -> None:
        self.wanted = wanted
        self._held = dict(held or {})

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._held:
            known = ", ".join(sorted(self._held)) or "nothing"
            why = "no earlier part wrote it, or none declares that it reads it"
            raise UsageError(f"context.store has no '{name}': {why}; it holds {known}")
        return self._held[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        if self.wanted is None or name in self.wanted:
            self._held[name] = value

    def apart(self) -> Store:
        """Return a copy, to which later writes do not matter."""
        return Store(self.wanted, self._held)


def of_config(config: component.Config | None, shape: Shape) -> Stores:
    """Return the names of a part; none if it has no store."""
    if not isinstance(config, StoreFacts.Config):
        return Stores()
    found, declared = config.stores(shape), config.inputs(shape)
    if declared:
        found = replace(found, inputs=extra_widths(declared, f"{config.part.part_slot} '{config.part.part_name}'"))
    # a subclass's own names are added to those of its base's options
    return replace(found, writes=found.writes | config.part.writes, reads=found.reads | config.part.reads)


class ExtraInput(NamedTuple):
    """An extra input of a model's calls: the width of its vectors, and the parts that read it."""

    width: int
    readers: tuple[str, ...]  # as in norm 'adaptive'


@dataclass(frozen=True, eq=False)
class StoreUse:
    """A part of a stack with its names; the embedding and the final norm have the kind -1.

    `key` is the part's name in its layer or stack: attention, attention_norm, residual, embedding, final_norm.
    """

    layer: int
    kind: int  # index in the stack's distinct layers
    key: str
    config: component.Config
    stores: Stores


def links(uses: Iterable[StoreUse]) -> Iterator[tuple[StoreUse, str, StoreUse | None]]:
    """Yield each name with its reader and the part that wrote it; None if no earlier part did."""
    latest: dict[str, StoreUse] = {}
    for use in uses:
        for name in sorted(use.stores.reads):
            if name in latest or name not in use.stores.writes:
                yield use, name, latest.get(name)
        latest |= {name: use for name in use.stores.written if name not in use.stores.reads or name not in latest}


def linked(uses: Iterable[StoreUse]) -> dict[tuple[int, str], Stores]:
    """Return, by kind and key, the names that parts write for later ones and read from earlier ones."""
    found: dict[tuple[int, str], Stores] = defaultdict(Stores)
    for reader, name, writer in links(uses):
        own = found[reader.kind, reader.key]
        found[reader.kind, reader.key] = replace(own, reads=own.reads | {name})
        if writer is not None:
            own = found[writer.kind, writer.key]
            found[writer.kind, writer.key] = replace(own, writes=own.writes | {name})
    return found


def extra_inputs(uses: Iterable[StoreUse]) -> dict[str, ExtraInput]:
    """Return the inputs of a call that parts declare, by name."""
    found: dict[str, ExtraInput] = {}
    for use in uses:
        for name, width in use.stores.inputs:
            before = found[name].readers if name in found else ()
            part = f"{use.config.part.part_slot} '{use.config.part.part_name}'"
            found[name] = ExtraInput(width, tuple(dict.fromkeys((*before, part))))
    return found
