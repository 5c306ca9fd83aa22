"""Patterns of layers, and completion and validation of part nodes: default norms, paths relative to the recipe."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, groupby
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tfkit.core.bounds import LAYERS
from tfkit.core.component import Config, Shape
from tfkit.core.errors import Place, RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.core.output import some
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays import as_part, merge
from tfkit.recipe.text.faults import Faults, OptionFacts, config_class, options_of
from tfkit.recipe.text.node import Node, mapping, node_at, shorten, under
from tfkit.recipe.text.source import from_value

MAX_LAYERS = LAYERS.most
ITEM = re.compile(r"(?P<kinds>\w+(\+\w+)*)(\*(?P<count>\d+))?")


@dataclass(frozen=True)
class PatternEntry:
    """Layer of a pattern: the kinds merged over `layer`, and the index of its entry in the pattern's text."""

    kinds: tuple[str, ...]
    number: int


def expand(pattern: Node | None, num_layers: int | None, kinds: Sequence[str], faults: Faults) -> list[PatternEntry]:
    """Return one entry per layer, in order; empty if there is a fault."""
    if pattern is None or pattern.value is None:
        return [PatternEntry((), 0)] * (num_layers or 0)
    if not isinstance(pattern.value, list) or not pattern.value:
        faults.add(pattern, "expected a list of kinds, such as [local*5, global]")
        return []
    inner = [index for index, node in enumerate(pattern.value) if isinstance(node.value, list)]
    if len(inner) > 1:
        faults.add(pattern.value[inner[1]], "a pattern can have only one inner list, the kinds to repeat")
        return []
    numbers = count()
    parts: tuple[list[PatternEntry], ...] = ([], [], [])  # before, in and after the inner list
    start, once, failed = inner[0] if inner else -1, 0, False
    for index, node in enumerate(pattern.value):
        part = parts[0 if index < start else 1 if not inner or index == start else 2]
        for item in node.value if isinstance(node.value, list) else [node]:
            entries = _entries(item, next(numbers), kinds, faults)
            failed = failed or not entries
            once += len(entries)
            part += entries if once <= MAX_LAYERS else ()
    if failed:
        return []
    if inner and not pattern.value[start].items:
        faults.add(pattern.value[start], "an inner list needs kinds to repeat, such as [local*5, global]")
        return []
    if once > MAX_LAYERS:
        faults.add(pattern, f"a single pass of the pattern has {once:,} layers; a stack has at most {MAX_LAYERS:,}")
        return []
    before, cycle, after = parts
    if num_layers is None:
        if inner:
            faults.add(pattern, "an inner list repeats to fill num_layers; set num_layers")
            return []
        return cycle
    room = num_layers - len(before) - len(after)
    if room < len(cycle):
        faults.add(pattern, f"a single pass of the pattern has {once:,} layers, but num_layers is {num_layers:,}")
        return []
    turns = -(-room // len(cycle))
    return before + (cycle * turns)[:room] + after


def shortest(kinds: Sequence[str], once: int = 0) -> list[str | list[str]]:
    """Return the shortest pattern for layers of these kinds; the first `once` layers precede the inner list."""
    before, cycle = _counted(kinds[:once]), _counted(_cycle(kinds[once:]))
    return [*before, cycle] if before and cycle else [*_counted(_cycle(kinds))]


def _cycle(kinds: Sequence[str]) -> Sequence[str]:
    """Return the shortest prefix whose repetition yields `kinds`."""
    total = len(kinds)
    period = next((n for n in range(1, total) if all(kinds[i] == kinds[i % n] for i in range(total))), total)
    return kinds[:period]


def _counted(kinds: Sequence[str]) -> list[str]:
    """Run-length encode the kinds: `local*5`, `global`."""
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return [kind if times == 1 else f"{kind}*{times}" for kind, times in runs]


def _entries(node: Node, number: int, kinds: Sequence[str], faults: Faults) -> list[PatternEntry]:
    """Return an entry for each layer of a pattern's item; empty if there is a fault."""
    match = ITEM.fullmatch(node.value) if isinstance(node.value, str) else None
    if match is None:
        faults.add(node, "expected a kind, such as local, local*3 or global+first")
        return []
    names, times = tuple(match["kinds"].split("+")), int(match["count"] or 1)
    for name in names:
        if name not in kinds:
            known = some(kinds, 20) or "no kinds"
            text = f"unknown kind '{shorten(name)}'; `layers:` names {known}"
            faults.add(node, text, nearest(name, list(kinds)))
            return []
    if not 1 <= times <= MAX_LAYERS:
        faults.add(node, f"expected a count from 1 to {MAX_LAYERS:,} after *, got {times}")
        return []
    return [PatternEntry(names, number)] * times


NO_PARTS = "per_layer supports only numbers, words and booleans; to vary parts, use `layers:` and `pattern:`"
_IN_KIND = re.compile(r"\.layers\.(\w+)\.")
Kinds = tuple[str, ...]


def varies(node: Node) -> bool:
    """True if `node` or a nested value is a `{per_layer: [...]}`."""
    return next(_choices(node), None) is not None


def is_per_layer(node: Node) -> bool:
    """True if `node` itself is a `{per_layer: [...]}`."""
    return isinstance(node.value, dict) and "per_layer" in node.value


def _choices(node: Node) -> Iterator[Node]:
    """Yield every `{per_layer: [...]}` in `node`, including `node` itself."""
    if is_per_layer(node):
        yield node
    elif isinstance(node.value, (dict, list)):
        for child in node.value.values() if isinstance(node.value, dict) else node.value:
            yield from _choices(child)


class Turns:
    """Cursor over the layers of a stack that selects the current value of each `{per_layer: [...]}`.

    `texts` maps kinds to the source of their layers, and `layers` are the kinds of each layer in order. A list inside a
    kind has one value per layer of this kind; any other list has one value per layer.
    """

    def __init__(self, texts: Mapping[Kinds, Node], layers: Sequence[Kinds]) -> None:
        self.texts = texts
        self._choices = {kinds: list(_choices(node)) for kinds, node in texts.items()}
        self.lists = [choice for choices in self._choices.values() for choice in choices]
        self._counts = Counter(chain.from_iterable(layers))
        self._counts[""] = len(layers)
        self._turns = Counter[str]()

    def check(self, faults: Faults) -> bool:
        """Return True if each list has one value per layer it applies to; add faults otherwise."""
        before = len(faults.errors)
        for choice in self.lists:
            values, kind = choice.entries["per_layer"], self._kind(choice)
            if len(choice.entries) > 1 or not isinstance(values.value, list):
                faults.add(choice, "per_layer must be the only key and needs a list: {per_layer: [32, 64]}")
            elif len(values.value) != self._counts[kind]:
                text = f"kind '{kind}'" if kind else "`layer`"
                faults.add(values, f"has {len(values.value)} values, but {text} applies to {self._counts[kind]} layers")
            else:
                for value in (value for value in values.value if isinstance(value.value, (dict, list))):
                    faults.add(value, NO_PARTS)
        return len(faults.errors) == before

    def _kind(self, choice: Node) -> str:
        """Return the kind that contains the list, or ""."""
        match = _IN_KIND.search(f"{choice.path}.")
        return match[1] if match and match[1] in self._counts else ""

    def values(self, kinds: Kinds) -> tuple[object, ...]:
        """Return the `per_layer` values of the next layer, paired with their types because True == 1."""
        picked = map(self._picked, self._choices[kinds])
        return tuple([(type(node.value), node.value) for node in picked])

    def text(self, kinds: Kinds) -> Node:
        """Return the source of the next layer, which has these kinds."""
        return self._pick(self.texts[kinds])

    def step(self, kinds: Kinds) -> None:
        """Advance to the following layer; the current one has these kinds."""
        self._turns.update(("", *kinds))

    def _pick(self, node: Node) -> Node:
        if is_per_layer(node):
            return replace(self._picked(node), path=node.path, under=node.under)
        if isinstance(node.value, list):
            return replace(node, value=[self._pick(child) for child in node.value])
        if not isinstance(node.value, dict):
            return node
        return replace(node, value={key: self._pick(child) for key, child in node.value.items()})

    def _picked(self, choice: Node) -> Node:
        values = choice.entries["per_layer"].items
        return values[self._turns[self._kind(choice)]]


def stack_norm(keys: Mapping[str, Node]) -> Node | None:
    """Return the norm of a stack (R12): `layer.norm`, unless it differs per layer."""
    norm = node_at(mapping(keys.get("layer")), "norm")
    return None if norm is None or is_per_layer(norm) else norm


class Preparer:
    """Completes and validates parts. `norm` is the stack's norm (R12), None if there is no stack or norm.

    Relative paths start from `base` (`data.folder` for corpora), or from the recipe's folder if it is None.
    """

    def __init__(self, faults: Faults, norm: Node | None = None, base: Path | None = None) -> None:
        self.faults = faults
        self.norm = norm
        self.base = base

    def of_corpora(self, data: Node | None) -> Preparer:
        """Return a Preparer for the corpora in `data:`, whose paths are relative to `data.folder`."""
        base = node_at(mapping(data), "folder")
        is_set = base is not None and isinstance(base.value, str)
        return Preparer(self.faults, self.norm, _path(base)) if base is not None and is_set else self

    def config(self, node: Node, slot: str, shape: Shape | None = None, default: str = "") -> Config | None:
        """Return the Config of `node`, checked against `shape` if given; None after a fault."""
        return self.read(node, slot, shape, default)[0]

    def read(self, node: Node, slot: str, shape: Shape | None = None, default: str = "") -> tuple[Config | None, Node]:
        """Return the Config, as `config` does, and the completed node that was validated."""
        named = with_type(node, default)
        filled = self._filled(named, config_class(named, slot))
        config = validated(filled, slot, self.faults)
        if config is not None and shape is not None:
            self.faults.problems(filled, config.check(shape))
        return config, filled

    def _filled(self, node: Node, model: type[BaseModel] | None) -> Node:
        filled = node if model is None else self.fields(as_part(node), model)
        return filled if isinstance(node.value, dict) or len(filled.entries) > 1 else node

    def fields(self, node: Node, model: type[BaseModel]) -> Node:
        """Return the mapping of a part or section with its options completed."""
        if not isinstance(node.value, dict):
            return node
        children = dict(node.value)
        for name, option in options_of(model).items():
            child = children.get(name)
            if option.slot == "norm":
                child = self._norm(child, option)
            elif child is not None:
                of_corpora = "folder" in children and (option.slot == "corpus" or child.path == "data.split")
                preparer = self.of_corpora(node) if of_corpora else self
                child = preparer._option(with_type(child, option.default), option)
            if child is not None:
                children[name] = child
        return replace(node, value=children)

    def _option(self, child: Node, option: OptionFacts) -> Node:
        if isinstance(child.value, list):
            return replace(child, value=[self._option(item, option) for item in child.value])
        if isinstance(child.value, str) and option.path is not None:
            return replace(child, value=str(_path(child, self.base)))
        return self._filled(child, option.schema(child))

    def _norm(self, child: Node | None, option: OptionFacts) -> Node | None:
        """Resolve a norm option: true copies `layer.norm`, and another norm is merged over it."""
        if child is None:
            return self.norm if option.has_default else None
        if child.value is True:
            if self.norm is None:
                self.faults.add(child, "true means the stack's norm, but layer.norm is not set")
                return replace(child, value=None)
            return replace(as_part(self.norm), place=child.place, path=child.path)
        if child.value is None or child.value is False or self.norm is None:
            return child
        return merge(self.norm, child, self.faults.errors)


def with_type(node: Node, default: str) -> Node:
    """Add the default type to options without one (`train.schedule: {warmup: 5}`)."""
    if not default or not isinstance(node.value, dict) or not node.value or "type" in node.value or is_per_layer(node):
        return node
    word = Node(default, node.place, under(node.path, "type"), node.key_place)
    return replace(node, value={"type": word, **node.value})


def validated(node: Node, slot: str, faults: Faults) -> Config | None:
    """Return the Config of a completed part node, or None after a fault."""
    try:
        return Slot(slot).validate(node.plain())
    except ValidationError as error:
        faults.invalid(node, error, config_class(node, slot))
    except ValueError as error:
        faults.add(node, str(error))
    return None


def _path(node: Node, base: Path | None = None) -> Path:
    """Resolve the path at `node` relative to `base`, or else to the folder of the recipe.

    Paths from the command line are relative to the working directory. So are paths in a shipped recipe, unless the file
    ships with it.
    """
    here = folder(node) if base is None or node.is_change else base
    if node.place.is_shipped and node.folder is not None and os.path.isfile(node.folder / str(node.value)):
        here = node.folder
    return (here / str(node.value)).absolute()


def folder(node: Node) -> Path:
    """Return the base folder of paths at `node`: the file's folder, or the working directory for shipped recipes."""
    return Path() if node.place.is_shipped or node.folder is None else node.folder


Part = str | Mapping[str, object] | Config
Parts = Part | Sequence[Part]


def parts_of(slot: str, parts: Parts) -> tuple[Config, ...]:
    """Return the Configs of one or several parts, each a name, a mapping with a type, or a Config.

    Raise RecipeError with all faults, and UsageError for a Config of another slot.
    """
    faults, configs = Faults(), []
    for index, part in enumerate([parts] if isinstance(parts, (str, Mapping, Config)) else parts):
        path = f"{slot}[{index}]"
        if isinstance(part, Config):
            try:
                configs.append(Slot(slot).validate(part))
            except ValueError as error:
                raise UsageError(f"{path}: {error}") from None
            continue
        node, errors = from_value(part, Place(f"<{slot}>"), path)
        faults.errors += errors
        config = None if errors else Preparer(faults).config(node, slot)
        configs += [] if config is None else [config]
    if faults.errors:
        raise RecipeError(faults.errors)
    return tuple(configs)


def part_at(slot: str, part: Part, place: str, path: str) -> Config:
    """Return the Config of a part set at `place`, such as a command-line option; raise RecipeError if it is invalid."""
    node, errors = from_value(part, Place(place), path)
    faults = Faults(errors)
    config = None if errors else Preparer(faults).config(node, slot)
    if config is None:
        raise RecipeError(faults.errors)
    return config
