"""Faults with their places: of single values, and of Pydantic's errors, which are located in data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tfkit.core.component import Doubt, Problem, Unlearnable
from tfkit.core.errors import Fault, Place, RecipeError
from tfkit.core.keys import Kind, RateValue, SizeValue
from tfkit.core.synonyms import key_for, nearest, value_for
from tfkit.recipe.text.node import Node, inline
from tfkit.recipe.text.options import schema_at

MAX_FAULTS = 1_000  # more are not useful, and finding them takes time
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
    "too_long": "must have at most {max_length} values",
    "literal_error": "expected {expected}",
}


class InvalidValue(NamedTuple):
    """A value that Pydantic rejects, and the rest of its location: a union's tags, or a missing key."""

    node: Node
    detail: ErrorDetails
    rest: Sequence[int | str]


class Faults:
    """Collects faults while a recipe is resolved; raises RecipeError if there are too many."""

    def __init__(self, errors: Iterable[Fault] = (), has_weights: bool = False) -> None:
        """Create a collector; `has_weights`: the weights exist, so unlearnable ones are only warned about."""
        self.errors = list(errors)
        self.warnings: list[Fault] = []  # suspicious but valid
        self.has_weights = has_weights
        # parts (slot and name) of code that was not imported; None: unknown
        self.awaited: frozenset[tuple[str, str]] | None = frozenset()
        # a value that could not be parsed violates every check; one fault is enough
        self._unread: set[Place | None] = {fault.place for fault in self.errors}

    def add(
        self, node: Node, message: str, suggestion: str | None = None, at_key: bool = False, path: str | None = None
    ) -> None:
        """Add a fault at a node's value, or at its key."""
        place = node.key_place if at_key and node.key_place is not None else node.place
        if node.value is None and self._unread & {node.place, node.key_place}:
            return
        if node.place.line and node.place in self._unread:
            return
        self.errors.append(Fault(place, node.path if path is None else path, message, suggestion))
        if len(self.errors) > MAX_FAULTS:
            raise RecipeError(self.errors)

    def warn(self, node: Node, message: str, at_key: bool = False, path: str | None = None) -> None:
        """Add a warning at a node's value, or at its key, shown by `check` and `train`."""
        place = node.key_place if at_key and node.key_place is not None else node.place
        if len(self.warnings) < MAX_FAULTS:
            self.warnings.append(Fault(place, node.path if path is None else path, message))

    def unlearnable(self, node: Node, message: str) -> None:
        """Add a fault for weights that cannot learn; a warning if the weights exist already."""
        (self.warn if self.has_weights else self.add)(node, message)

    def unknown_key(self, node: Node, known: Sequence[str], what: str = "option") -> None:
        """Add a fault for an unknown key."""
        parent, _, name = node.path.rpartition(".")
        meant = key_for(name, parent, known)
        near = nearest(name, list(known))
        cut = near is not None and near.startswith(name)  # metric for metrics
        suggestion = near if meant is None or (cut and "." in meant) else meant or None
        hint = f"available: {', '.join(sorted(known))}" if known else "none is supported here"
        listing = "" if suggestion else f"; {hint}"
        self.add(node, f"unknown {what}{listing}", suggestion, at_key=True)

    def problems(self, node: Node, problems: Iterable[Problem]) -> None:
        """Add a part's problems at the options that they name."""
        for problem in problems:
            place, _ = find(node, problem.option.split(".") if problem.option else ())
            if isinstance(problem, Doubt):
                self.warn(place, problem.message)
            elif isinstance(problem, Unlearnable):
                self.unlearnable(place, problem.message)
            else:
                self.add(place, problem.message, problem.suggestion)

    def invalid(self, node: Node, error: ValidationError, model: type[BaseModel] | None = None) -> None:
        """Add Pydantic's errors in the data of `node` at the places of the values."""
        by_node: dict[str, list[InvalidValue]] = {}
        inside: list[str] = []
        for detail in error.errors(include_url=False):
            place, rest = find(node, detail["loc"])
            if detail["type"] == "too_short" and len(place.plain()) >= detail["ctx"]["min_length"]:
                continue  # Pydantic counts only the values without faults
            key = place.path + ("." + str(rest[0]) if detail["type"] == "missing" and rest else "")
            if detail["type"] == "extra_forbidden":
                known = schema_at(node, model, detail["loc"][:-1])
                self.unknown_key(place, list(known.model_fields) if known else [])
                inside.append(place.path)
            else:
                by_node.setdefault(key, []).append(InvalidValue(place, detail, rest))
        inside += by_node
        for key, several in by_node.items():
            is_nested = isinstance(several[0].node.value, dict) and any(path.startswith(f"{key}.") for path in inside)
            if not is_nested or any(not one.detail["type"].endswith("_type") for one in several):
                self._invalid_one(several)  # not the other forms of a mapping with faults of its own

    def _invalid_one(self, several: list[InvalidValue]) -> None:
        """Add the fault of one node: alternatives of a union are joined to one sentence."""
        node, first, rest = several[0]
        kind = first["type"]
        if kind == "missing":
            option = str(rest[0]) if rest else "?"
            return self.add(node, f"needs the option '{option}'{dropped_note(node, option)}")
        if kind == "value_error" and self._holds_unread(node):
            return None
        context = first.get("ctx", {})
        if kind == "unknown_part":
            if self._is_awaited(context):
                return None
            return self.add(node, first["msg"], context.get("suggestion"))
        phrases = list(dict.fromkeys(_meaning(one.detail) for one in several))
        got = "" if kind in ("value_error", "part_type") else f", got {shown(node.plain())}"
        suggestion = None
        if kind == "literal_error" and isinstance(node.value, str):
            suggestion = value_for(node.path, node.value) or nearest(
                node.value,
                [word.strip(" '") for word in str(context.get("expected", "")).replace(" or ", ",").split(",")],
            )
        self.add(node, _either(phrases) + got, suggestion)

    def _holds_unread(self, node: Node) -> bool:
        """True if a nested value could not be parsed, which may cause further contradictions."""
        if isinstance(node.value, (dict, list)):
            children = node.value.values() if isinstance(node.value, dict) else node.value
            return any(self._holds_unread(child) for child in children)
        return node.value is None and bool(self._unread & {node.place, node.key_place})

    def _is_awaited(self, unknown: Mapping[str, object]) -> bool:
        """True if an unknown part belongs to code that was not imported, which is already a fault."""
        if self.awaited is None:
            return not unknown["suggestion"]
        return (unknown["slot"], unknown["name"]) in self.awaited


def find(node: Node, loc: Sequence[int | str]) -> tuple[Node, Sequence[int | str]]:
    """Return the node at a Pydantic location, and the unresolved rest (a union's tags, a missing key)."""
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


def dropped_note(node: Node, option: str) -> str:
    """Describe where an option was dropped by a change of type."""
    for lost in node.dropped:
        if lost.path.rpartition(".")[2] == option:
            return f" (dropped with the other options of the previous type; it was set at {lost.place})"
    return ""


def shown(value: object) -> str:
    """Format a value as in a recipe, truncated."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = inline(value) if isinstance(value, (dict, list)) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _either(phrases: Sequence[str]) -> str:
    """Join alternatives to one sentence: expected a number or 'sqrt_d_model'."""
    return " or ".join([phrases[0], *(phrase.removeprefix("expected ") for phrase in phrases[1:])])


def _bound(value: Any) -> Any:
    """Format a limit: 1,000,000 and 0 instead of 1000000 and 0.0."""
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
    """Parse a size, a rate or a flag. Return the default (none, 0 or false) if missing or invalid."""
    value: Any = None if node is None else node.value
    match kind:
        case SizeValue():
            expected, fits = f"a whole number from 1 to {kind.limit:,}", is_whole(value) and 1 <= value <= kind.limit
        case RateValue():
            expected, fits = "a rate of at least 0 and below 1", type(value) in (int, float) and 0 <= value < 1
        case _:
            expected, fits = "true or false", isinstance(value, bool)
    if fits:
        return float(value) if isinstance(kind, RateValue) else value
    if node is not None and value is not None:
        faults.add(node, f"expected {expected}, got {shown(node.plain())}")
    return None if isinstance(kind, SizeValue) else 0.0 if isinstance(kind, RateValue) else False
