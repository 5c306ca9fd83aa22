"""The registry: which parts stand in which slot, found by name.

The registry knows where each slot's catalogue lives only by that module's name, and imports it when the slot is first
asked for. So `recipe` can validate a tokenizer or an optimizer without importing those rooms, and a part registered a
moment ago is known everywhere at once.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from tfkit.core.component import Component

# slot -> the module whose import registers what tfkit ships for it
CATALOGUES: dict[str, str] = {
    "attention": "tfkit.components.attention",
    "mixer": "tfkit.components.mixer",
    "position": "tfkit.components.position",
    "feedforward": "tfkit.components.feedforward",
    "norm": "tfkit.components.norm",
    "residual": "tfkit.components.residual",
    "embedding": "tfkit.components.embedding",
    "head": "tfkit.components.head",
    "mask": "tfkit.components.mask",
    "activation": "tfkit.components.activation",
    "init": "tfkit.components.init",
    "model": "tfkit.models",
    "tokenizer": "tfkit.data.tokenizer",
    "corpus": "tfkit.data.corpus",
    "objective": "tfkit.training.objective",
    "optimizer": "tfkit.training.optimizer",
    "schedule": "tfkit.training.schedule",
    "metric": "tfkit.training.metric",
}

PartClass = TypeVar("PartClass", bound="type[Component]")


def nearest(word: str, words: list[str]) -> str | None:
    """The one of `words` most like `word`, or None when none is near."""
    by_folded = {candidate.casefold(): candidate for candidate in words}
    found = difflib.get_close_matches(word.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


class UnknownPart(UsageError):
    """No part of that name stands in that slot; `.suggestion` is the nearest that does."""

    def __init__(self, slot: str, name: str, known: list[str]) -> None:
        self.slot, self.name, self.known = slot, name, known
        self.suggestion = nearest(name, known)
        super().__init__(f"unknown {slot} '{name}'")


class Registry:
    """Parts by slot and name."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, type[Component]]] = {slot: {} for slot in CATALOGUES}
        self._loaded: set[str] = set()

    def register(self, slot: str, name: str) -> Callable[[PartClass], PartClass]:
        """Class decorator that enters a part under `name` in `slot`.

        Raises UsageError for an unknown slot, a name that is no plain word, and a name already taken (naming both
        places). A class defined again at the same place (a reloaded module, a notebook cell) takes its old place.
        """
        if slot not in CATALOGUES:
            hint = nearest(slot, list(CATALOGUES))
            raise UsageError(
                f"unknown slot '{slot}'; the slots are {', '.join(CATALOGUES)}"
                + (f". Did you mean '{hint}'?" * bool(hint))
            )
        if not name.isidentifier():
            raise UsageError(f"a part's name is a plain word, got {name!r}")

        def enter(part: PartClass) -> PartClass:
            self._enter(slot, name, part)
            return part

        return enter

    def _enter(self, slot: str, name: str, part: type[Component]) -> None:
        there = self._parts[slot].get(name)
        if there is not None and origin(there) != origin(part):
            raise UsageError(f"{slot} '{name}' is registered twice: by {origin(there)} and by {origin(part)}")
        part.adopt(slot, name)
        self._parts[slot][name] = part

    def load(self, slot: str) -> dict[str, type[Component]]:
        """The parts of `slot` by name, its catalogue imported."""
        if slot not in self._loaded:
            importlib.import_module(CATALOGUES[slot])
            self._loaded.add(slot)
        return self._parts[slot]

    def names(self, slot: str) -> list[str]:
        """The names registered in `slot`, sorted."""
        return sorted(self.load(slot))

    def get(self, slot: str, name: str) -> type[Component]:
        """The part called `name` in `slot`; raises UnknownPart."""
        parts = self.load(slot)
        if name not in parts:
            raise UnknownPart(slot, name, self.names(slot))
        return parts[name]


def origin(part: type) -> str:
    """Where a part was defined: its qualified name and its file."""
    try:
        file = inspect.getsourcefile(part) or "<unknown file>"
    except TypeError:
        file = "<interactive>"
    return f"{part.__qualname__} ({file})"


REGISTRY = Registry()
register = REGISTRY.register
