"""The registry: parts by slot and name.

The registry maps each slot to the module that registers its parts, and imports the module on first use. This lets
`recipe` validate a tokenizer or an optimizer without importing their packages, and makes newly registered parts
available everywhere. Installed plugins are imported when a slot is listed or an unknown name is looked up.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tfkit.core.errors import (
    PluginProblem,
    TfkitWarning,
    UsageError,
    distribution_of,
    failure,
    home_of,
    installed,
    is_shipped,
    origin,
)
from tfkit.core.rooms import pages
from tfkit.core.synonyms import nearest, part_for

if TYPE_CHECKING:
    from tfkit.core.component import Component

# slot -> module that registers tfkit's own parts for it on import
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
    "adapter": "tfkit.training.adapter",
    "metric": "tfkit.training.metric",
    "callback": "tfkit.training.callback",
    "logits": "tfkit.generation.logits",
    "stop": "tfkit.generation.stop",
    "strategy": "tfkit.generation.strategy",
}
# registered classes that recipes cannot name: mappings to other libraries' formats
MAPS: dict[str, str] = {slot: home for page in pages("maps") for slot, home in page.MAPS.items()}
HOMES = CATALOGUES | MAPS

# base class of a slot, if not named after the slot
BASES = {"feedforward": "FeedForward", "tokenizer": "TokenizerPart", "logits": "LogitsRule", "stop": "StopRule"}

PartClass = TypeVar("PartClass", bound="type[Component]")


class UnknownPart(UsageError):
    """The slot has no part of this name.

    `.suggestion` is tfkit's equivalent of another library's term, or the most similar name in the slot; `.note`
    mentions broken plugins that may define the part.
    """

    def __init__(self, slot: str, name: str, known: list[str], problems: list[PluginProblem]) -> None:
        self.slot, self.name, self.known = slot, name, known
        self.suggestion = part_for(slot, name) or nearest(name, known)
        self.note = "".join(f"; {problem}" for problem in problems)
        super().__init__(f"unknown {slot} '{name}'{self.note}")


class Registration(NamedTuple):
    """A registered part and the part that it replaced."""

    slot: str
    name: str
    part: type[Component]
    before: type[Component] | None


class Registry:
    """Parts by slot and name. `problems` are installed plugins that could not be loaded."""

    def __init__(self) -> None:
        self.problems: list[PluginProblem] = []
        self._parts: dict[str, dict[str, type[Component]]] = {slot: {} for slot in HOMES}
        self._loaded: set[str] = set()
        self._plugins_loaded = False
        self._recorders: list[list[Registration]] = []

    def register(self, slot: str, name: str) -> Callable[[PartClass], PartClass]:
        """Return a class decorator that registers a part under `name` in `slot`.

        Raise UsageError for an unknown slot, an invalid name, a class that is not a Component or has unknown
        declarations, and a name already taken (naming both places). Redefining a class at the same place (a reloaded
        module, a notebook cell) replaces it.
        """
        if slot not in HOMES:
            hint = nearest(slot, list(CATALOGUES))
            more = f". Did you mean '{hint}'?" if hint else ""
            raise UsageError(f"unknown slot '{slot}'; available: {', '.join(CATALOGUES)}{more}")
        if not name.isidentifier():
            raise UsageError(f"the name of a part must be an identifier, got {name!r}")

        def enter(part: PartClass) -> PartClass:
            self._enter(slot, name, part)
            return part

        return enter

    def _enter(self, slot: str, name: str, part: type[Component]) -> None:
        from tfkit.core.declarations import check_class, check_declarations

        check_class(slot, part, base_of(slot))
        foreign = not is_shipped(part)
        if foreign:
            check_declarations(part)
            self._load_catalogue(slot)  # loaded first, so that a duplicate name is reported for the new part
        current = self._parts[slot].get(name)
        if current is not None and home_of(current) != home_of(part):
            raise UsageError(f"{slot} '{name}' is registered twice: by {origin(current)} and by {origin(part)}")
        part.adopt(slot, name)
        self._parts[slot][name] = part
        for entries in self._recorders if foreign else ():
            entries.append(Registration(slot, name, part, current))

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Registration]]:
        """Record the custom parts registered in the block; on failure, unregister those that did not load."""
        entries: list[Registration] = []
        self._recorders.append(entries)
        try:
            yield entries
            for entry in entries:
                entry.part.Config.model_rebuild()  # fails for a type that is not defined
        except BaseException:
            wrong = [one for one in entries if not one.part.Config.__pydantic_complete__]
            self.take_back(one for one in reversed(entries) if one in wrong or one.part.__module__ not in sys.modules)
            raise
        finally:
            self._recorders = [others for others in self._recorders if others is not entries]

    def take_back(self, entries: Iterator[Registration]) -> None:
        """Unregister parts that have not been replaced since, and restore the parts that they replaced."""
        for slot, name, part, before in entries:
            if self._parts[slot].get(name) is not part:
                continue
            if before is None:
                del self._parts[slot][name]
            else:
                self._parts[slot][name] = before

    @contextlib.contextmanager
    def standing_in(self, parts: Iterable[type[Component]]) -> Iterator[None]:
        """Enter parts under names that are not registered, for the duration of the block."""
        entered = [part for part in parts if not self.has(part.part_slot, part.part_name)]
        try:
            for part in entered:
                self._parts[part.part_slot][part.part_name] = part
            yield
        finally:
            for part in entered:
                del self._parts[part.part_slot][part.part_name]

    def _load_catalogue(self, slot: str) -> None:
        if slot not in self._loaded:
            importlib.import_module(HOMES[slot])
            self._loaded.add(slot)

    def _load_plugins(self) -> None:
        """Import the installed plugins once; warn about broken ones and add them to `problems`."""
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for entry in installed():
            try:
                with self.recording():
                    entry.load()
            except (Exception, SystemExit) as error:
                problem = PluginProblem(entry.name, distribution_of(entry), failure(error, entry.module))
                self.problems.append(problem)
        for problem in self.problems:
            warnings.warn(str(problem), TfkitWarning, stacklevel=2)

    def load(self, slot: str) -> dict[str, type[Component]]:
        """Return the parts of `slot` by name, including those of plugins."""
        self._load_catalogue(slot)
        self._load_plugins()
        return self._parts[slot]

    def names(self, slot: str) -> list[str]:
        return sorted(self.load(slot))

    def get(self, slot: str, name: str) -> type[Component]:
        """Return the part `name` of `slot`. Raise UnknownPart if missing."""
        self._load_catalogue(slot)
        if name not in self._parts[slot] and name not in self.load(slot):
            raise UnknownPart(slot, name, self.names(slot), self.problems)
        return self._parts[slot][name]

    def registered(self) -> dict[str, dict[str, type[Component]]]:
        """Return the parts registered so far by slot, without importing anything."""
        return {slot: dict(parts) for slot, parts in self._parts.items()}

    def has(self, slot: str, name: str) -> bool:
        return slot in HOMES and (name in self._parts[slot] or name in self.load(slot))


def base_of(slot: str) -> tuple[str, str]:
    """Return the module and name of the base class of `slot`."""
    return HOMES[slot], BASES.get(slot, slot.capitalize())


REGISTRY = Registry()
register = REGISTRY.register
