"""Collection of faults with their places, also from Pydantic's errors, and facts about options from their types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeGuard

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tfkit.core.component import Config, Doubt, Problem, Unlearnable
from tfkit.core.errors import Fault, Place, RecipeError
from tfkit.core.keys import Kind, RateValue, SizeValue
from tfkit.core.options import PathMark, Slot
from tfkit.core.registry import REGISTRY, UnknownPart
from tfkit.core.synonyms import key_for, nearest, value_for
from tfkit.recipe.text.node import Node, inline


class OptionFacts(NamedTuple):
    """Facts about an option.

    `slot` and `default` are the slot and the default name of its part ("" if it is not a part); `path` is the kind of
    file path. `sections` are its nested mappings other than parts. `has_default` is true for a default other than none.
    """

    slot: str
    default: str
    path: PathMark | None
    sections: tuple[type[BaseModel], ...]
    has_default: bool

    def schema(self, node: Node) -> type[BaseModel] | None:
        """Return the Pydantic model that validates the mapping `node` (a section or part); None for a plain value."""
        if not self.slot:
            return self.sections[0] if self.sections else None
        for section in self.sections if "type" not in node.entries else ():
            if section.model_fields.keys() & node.entries:
                return section
        return config_class(node, self.slot)


@cache
def options_of(model: type[BaseModel]) -> Mapping[str, OptionFacts]:
    """Return the options of a part or section by name."""
    return {name: _option(field) for name, field in model.model_fields.items()}


def _option(field: FieldInfo) -> OptionFacts:
    metadata = [*field.metadata, *_types_in(field.annotation)]
    slot = next((mark.slot for mark in metadata if isinstance(mark, Slot)), "")
    sections = (one for one in metadata if isinstance(one, type) and issubclass(one, BaseModel))
    return OptionFacts(
        slot,
        field.default if slot and isinstance(field.default, str) else "",
        next((mark for mark in metadata if isinstance(mark, PathMark)), None),
        tuple(one for one in sections if not issubclass(one, Config)),
        not field.is_required() and field.default is not None,
    )


def _types_in(annotation: object) -> Iterator[object]:
    if isinstance(annotation, type):
        yield annotation
    yield from getattr(annotation, "__metadata__", ())
    for argument in getattr(annotation, "__args__", ()):
        yield from _types_in(argument)


def config_class(node: Node, slot: str) -> type[Config] | None:
    """Return the Config of the part that `node` names, or None if it is unknown."""
    kind = node if isinstance(node.value, str) else node.get("type")
    if kind is None or not isinstance(kind.value, str):
        return None
    try:
        return REGISTRY.get(slot, kind.value).Config
    except UnknownPart:
        return None


def schema_at(node: Node, model: type[BaseModel] | None, loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the Pydantic model for the mapping at `loc` below `node`, which `model` validates."""
    option = None
    for step in loc:
        if isinstance(step, int):
            node = node.value[step] if isinstance(node.value, list) and step < len(node.value) else node
            model = model if option is None else option.schema(node)
        elif model is not None and step in model.model_fields and step in node.entries:
            option, node = options_of(model)[step], node.entries[step]
            model = option.schema(node)
    return model


class NamedPath(NamedTuple):
    """A file path set in an option of `owner`, at the dotted key `at`."""

    at: str
    path: str
    mark: PathMark
    owner: BaseModel


def path_values(config: BaseModel) -> tuple[str, ...]:
    """Return the file paths in the options of a part, including nested parts."""
    return tuple(dict.fromkeys(named.path for named in named_paths(config)))


def named_paths(owner: BaseModel, at: str = "") -> Iterator[NamedPath]:
    """Yield the file paths in the options of the part or section at `at`, including nested parts."""
    for where, value, option in values_of(owner, at):
        if isinstance(value, BaseModel):
            yield from named_paths(value, where)
        elif option.path is not None and isinstance(value, str):
            yield NamedPath(where, value, option.path, owner)


def values_of(owner: BaseModel, at: str) -> Iterator[tuple[str, object, OptionFacts]]:
    """Yield the dotted key, value and facts of each option, with one entry per item of a list."""
    for name, option in options_of(type(owner)).items():
        value, place = getattr(owner, name), f"{at}.{name}"
        if isinstance(value, (list, tuple)):
            yield from ((f"{place}[{index}]", item, option) for index, item in enumerate(value))
        else:
            yield place, value, option


MAX_FAULTS = 1_000  # more faults would not help the user, and take time to find
REMOVED = {"study.reuse": "runs of other folders are no longer taken; remove the key"}  # keys of older versions
# Pydantic's error types -> recipe terms
MEANINGS: dict[str, str] = {
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "string_type": "expected a word or text",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have {min_length} or more values",
    "too_long": "must have at most {max_length} values",
    "literal_error": "expected {expected}",
}


class InvalidValue(NamedTuple):
    """A value that Pydantic rejects; `rest` is the part of its location below `node`: union tags, or a missing key."""

    node: Node
    detail: ErrorDetails
    rest: Sequence[int | str]


class Faults:
    """Collects faults while a recipe is resolved; raises RecipeError if there are too many."""

    def __init__(self, errors: Iterable[Fault] = (), has_weights: bool = False) -> None:
        """Create a collector. If `has_weights`, the weights exist already, and unlearnable ones only cause warnings."""
        self.errors = list(errors)
        self.warnings: list[Fault] = []  # valid, but probably a mistake
        self.has_weights = has_weights
        # parts (slot and name) of code that was not imported; None if they cannot be determined
        self.awaited: frozenset[tuple[str, str]] | None = frozenset()
        # places that already have a fault: later checks of these values would only add more
        self._unread: set[Place | None] = {fault.place for fault in self.errors}

    def add(
        self, node: Node, message: str, suggestion: str | None = None, at_key: bool = False, path: str | None = None
    ) -> None:
        """Add a fault at a node's value, or at its key."""
        place = node.key_place if at_key and node.key_place is not None else node.place
        is_unread = node.value is None and self._unread & {node.place, node.key_place}
        if is_unread or (node.place.line and node.place in self._unread):
            return
        self.errors.append(Fault(place, node.path if path is None else path, message, suggestion))
        if len(self.errors) > MAX_FAULTS:
            raise RecipeError(self.errors)

    def warn(self, node: Node, message: str, at_key: bool = False, path: str | None = None) -> None:
        """Add a warning at a node's value, or at its key; `check` and `train` print it."""
        place = node.key_place if at_key and node.key_place is not None else node.place
        if len(self.warnings) < MAX_FAULTS:
            self.warnings.append(Fault(place, node.path if path is None else path, message))

    def unlearnable(self, node: Node, message: str) -> None:
        """Add a fault for weights that cannot learn, or a warning if the weights exist already.

        A fault within `node`, such as a misspelled option, may be the cause, so that nothing is added.
        """
        if any(fault.path.startswith(f"{node.path}.") for fault in self.errors):
            return
        (self.warn if self.has_weights else self.add)(node, message)

    def unknown_key(self, node: Node, known: Sequence[str], what: str = "option") -> None:
        """Add a fault for an unknown key, with a suggestion or the list of known keys."""
        if node.path in REMOVED:
            return self.add(node, REMOVED[node.path], at_key=True)
        parent, _, name = node.path.rpartition(".")
        meant = key_for(name, parent, known)
        near = nearest(name, list(known))
        cut = near is not None and near.startswith(name)  # a prefix, such as metric for metrics
        suggestion = near if meant is None or (cut and "." in meant) else meant or None
        hint = f"available: {', '.join(sorted(known))}" if known else f"no {what} is allowed here"
        listing = "" if suggestion else f"; {hint}"
        self.add(node, f"unknown {what}{listing}", suggestion, at_key=True)

    def problems(self, node: Node, problems: Iterable[Problem]) -> None:
        """Add the problems that a part reports, each at the option it names."""
        for problem in problems:
            place, _ = find(node, problem.option.split(".") if problem.option else ())
            if isinstance(problem, Doubt):
                self.warn(place, problem.message)
            elif isinstance(problem, Unlearnable):
                self.unlearnable(place, problem.message)
            else:
                self.add(place, problem.message, problem.suggestion)

    def invalid(self, node: Node, error: ValidationError, model: type[BaseModel] | None = None) -> None:
        """Add faults for Pydantic's errors in the data of `node`, each at the place of its value."""
        by_node: dict[str, list[InvalidValue]] = {}
        inside: list[str] = []
        for detail in error.errors(include_url=False):
            place, rest = find(node, detail["loc"])
            if detail["type"] == "too_short" and len(place.plain()) >= detail["ctx"]["min_length"]:
                continue  # the list is long enough, but Pydantic does not count invalid items
            key = place.path + ("." + str(rest[0]) if detail["type"] == "missing" and rest else "")
            if detail["type"] == "extra_forbidden":
                known = schema_at(node, model, detail["loc"][:-1])
                self.unknown_key(place, list(known.model_fields) if known else [])
                inside.append(place.path)
            elif detail["type"] == "literal_error" and "[key]" in rest:  # a mapping that has only these keys
                self.unknown_key(place, re.findall(r"'(.+?)'", detail["ctx"]["expected"]))
            else:
                by_node.setdefault(key, []).append(InvalidValue(place, detail, rest))
        inside += by_node
        for key, several in by_node.items():
            is_nested = isinstance(several[0].node.value, dict) and any(path.startswith(f"{key}.") for path in inside)
            if not is_nested or any(not one.detail["type"].endswith("_type") for one in several):
                self._invalid_one(several)  # skips "expected a number" for a mapping whose own keys have faults

    def _invalid_one(self, several: list[InvalidValue]) -> None:
        """Add one fault for the errors of one node; the alternatives of a union are joined into one sentence."""
        node, first, rest = several[0]
        kind = first["type"]
        if kind == "missing":
            option = str(rest[0]) if rest else "?"
            if isinstance(node.value, list):
                return self.add(node, f"has too few values, got {shown(node.plain())}")
            lost = [one for one in node.dropped if one.path.rpartition(".")[2] == option]
            note = " (dropped with the other options of the previous type; it was set at "
            return self.add(node, f"needs the option '{option}'" + (f"{note}{lost[0].place})" if lost else ""))
        if kind == "value_error" and self._holds_unread(node):
            return None
        context = first.get("ctx", {})
        if kind == "unknown_part":
            # it may belong to code that was not imported, for which a fault already exists
            awaited = self.awaited is None or (context["slot"], context["name"]) in self.awaited
            if not awaited or (self.awaited is None and context["suggestion"]):
                self.add(node, first["msg"], context.get("suggestion"))
            return None
        phrases = list(dict.fromkeys(_meaning(one.detail) for one in several))
        got = "" if kind in ("value_error", "part_type") else f", got {shown(node.plain())}"
        suggestion = None
        if kind == "literal_error" and isinstance(node.value, str):
            words = str(context.get("expected", "")).replace(" or ", ",").split(",")
            suggestion = value_for(node.path, node.value) or nearest(node.value, [word.strip(" '") for word in words])
        # alternatives become one phrase: expected a number or 'sqrt_d_model'
        text = " or ".join([phrases[0], *(phrase.removeprefix("expected ") for phrase in phrases[1:])])
        self.add(node, text + got, suggestion)

    def _holds_unread(self, node: Node) -> bool:
        """True if the node or a nested value already has a fault, which may be the cause of this error."""
        if isinstance(node.value, (dict, list)):
            children = node.value.values() if isinstance(node.value, dict) else node.value
            return any(self._holds_unread(child) for child in children)
        return node.value is None and bool(self._unread & {node.place, node.key_place})


def find(node: Node, loc: Sequence[int | str]) -> tuple[Node, Sequence[int | str]]:
    """Return the node at a Pydantic location, and the rest of the location (union tags, a missing key)."""
    for index, step in enumerate(loc):
        value = node.value
        if isinstance(value, dict) and step in value:
            node = value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            node = value[step]
        elif not isinstance(value, (dict, list)):
            return node, loc[index:]
    remaining = [step for step in loc if not isinstance(step, int)]
    last = remaining[-1:] if remaining and not (isinstance(node.value, dict) and remaining[-1] in node.value) else []
    return node, last


def shown(value: object) -> str:
    """Format a value in recipe syntax, truncated to 60 characters."""
    text = inline(value) if value is None or isinstance(value, (bool, dict, list)) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bound(value: Any) -> Any:
    """Format a limit for a message: 1000000 as 1,000,000 and 0.0 as 0."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return f"{value:,}" if isinstance(value, int) else value


def _meaning(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(context.get("error", detail["msg"]))
    template = MEANINGS.get(detail["type"])
    bounds = {name: _bound(value) for name, value in context.items()}
    return str(detail["msg"]) if template is None else template.format(**bounds)


def is_whole(value: object) -> TypeGuard[int]:
    """True for an integer other than a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def plain(kind: Kind, node: Node | None, faults: Faults) -> Any:
    """Parse a size, a rate or a flag. Return None, 0 or False if it is missing or invalid."""
    value: Any = None if node is None else node.value
    match kind:
        case SizeValue():
            expected, fits = f"a whole number from 1 to {kind.limit:,}", is_whole(value) and 1 <= value <= kind.limit
        case RateValue():
            expected, fits = "a rate from 0 to below 1", type(value) in (int, float) and 0 <= value < 1
        case _:
            expected, fits = "true or false", isinstance(value, bool)
    if fits:
        return float(value) if isinstance(kind, RateValue) else value
    if node is not None and value is not None:
        faults.add(node, f"expected {expected}, got {shown(node.plain())}")
    return None if isinstance(kind, SizeValue) else 0.0 if isinstance(kind, RateValue) else False
