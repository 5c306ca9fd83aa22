"""Checks of the declarations of a class at registration: unknown words are errors."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from pydantic import BaseModel

from tfkit.core.component import Component
from tfkit.core.errors import UsageError, is_shipped, origin
from tfkit.core.inputs import CAPABILITIES, CONTRACTS, INPUTS, extra_widths
from tfkit.core.layout import ResidualFacts
from tfkit.core.slots import FACTS, MaskFacts, PositionFacts
from tfkit.core.store import StoreFacts
from tfkit.core.synonyms import nearest

# declaration -> the words allowed in it, and the noun for one word
WORDS: dict[str, tuple[Collection[str], str]] = {
    "capabilities": (CAPABILITIES, "capability"),
    "needs": (INPUTS, "input of a call"),
    "exceptions": (CONTRACTS, "contract"),
}
HAVE_STORE = "sublayers, residual layouts, norms and embeddings"
ALIKE = 0.85  # minimum similarity to treat a name as a misspelling


def check_class(slot: str, part: object, base: tuple[str, str]) -> None:
    """Raise UsageError if `part` does not extend the base class of the slot; `base` is its module and name."""
    module, name = base
    expected = f"a part of the slot '{slot}' must be a class that extends {name} of {module}"
    if not isinstance(part, type):
        raise UsageError(f"{getattr(part, '__qualname__', repr(part))} is not a class; {expected}")
    if not issubclass(part, FACTS.get(slot, Component)):
        raise UsageError(f"{origin(part)} is not a part; {expected}")


def check_declarations(part: type[Component]) -> None:
    """Raise UsageError for unknown words in declarations and for misspelled declarations."""
    for problem in (*_wrong_values(part), *_misspelt_names(part), *_reserved_options(part)):
        raise UsageError(f"{origin(part)}: {problem}")


def _wrong_values(part: type[Component]) -> Iterator[str]:
    for name, (known, noun) in WORDS.items():
        declared = getattr(part, name)
        if isinstance(declared, str) or not isinstance(declared, Collection):
            form = "a mapping of names to reasons" if name == "exceptions" else "a set of words"
            yield f"{name} must be {form}, got {declared!r}"
            continue
        for word in declared:
            if word not in known:
                hint = nearest(str(word), list(known))
                suggestion = f"did you mean '{hint}'?" if hint else f"available: {', '.join(known)}"
                yield f"{name}: unknown {noun} '{word}'; {suggestion}"
    if issubclass(part, StoreFacts):
        for name in ("writes", "reads"):
            words: object = getattr(part, name)
            if isinstance(words, str) or not isinstance(words, Collection) or not all(map(_is_word, words)):
                yield f"{name} must be a set of words, such as frozenset({{'first_value'}}), got {words!r}"
        extra_widths(part.inputs, origin(part))
    elif issubclass(part, (PositionFacts, MaskFacts)) and (hasattr(part, "writes") or hasattr(part, "reads")):
        yield f"writes, reads: a position or a mask has no store; {HAVE_STORE} have one"
    elif isinstance(vars(part).get("inputs"), Mapping):
        yield f"inputs: only {HAVE_STORE} have inputs"
    if issubclass(part, ResidualFacts) and part.streams is not None and not isinstance(part.streams, int):
        yield f"streams must be a number or None, got {part.streams!r}; let Config.num_streams compute it from options"
    if not isinstance(part.exceptions, Mapping):
        yield f"exceptions must be a mapping of names to reasons, got {part.exceptions!r}"
        return
    for name, reason in part.exceptions.items():
        if not isinstance(reason, str) or not reason.strip():
            yield f"exceptions: the reason for '{name}' must be a text that is not blank, got {reason!r}"
    texts = part.picture
    if isinstance(texts, str) or not all(isinstance(text, str) and text.strip() for text in texts):
        yield f"picture must be a tuple of texts, a title and then the boxes inside it, got {texts!r}"


def _is_word(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _misspelt_names(part: type[Component]) -> Iterator[str]:
    """Yield attributes of custom classes whose names resemble an unset declaration of their base."""
    own = [kind for kind in part.__mro__ if issubclass(kind, Component) and not is_shipped(kind)]
    declared = {name for kind in own for name in _facts(kind)}
    facts = {name for kind in part.__mro__ if is_shipped(kind) for name in _facts(kind)}
    for name in sorted(declared - facts):
        for close in difflib.get_close_matches(name, sorted(facts - declared), n=1, cutoff=ALIKE):
            text = f"'{name}' is not a declaration of a part; did you mean '{close}'?"
            yield f"{text} If it is not meant as one, start its name with an underscore"


def _reserved_options(part: type[Component]) -> Iterator[str]:
    """Yield own options that hide an attribute of the base Config, or the recipe's `type`."""
    bases = [kind for kind in part.Config.__mro__ if issubclass(kind, BaseModel)]
    bases = [kind for kind in bases if is_shipped(kind) or kind.__module__.partition(".")[0] == "pydantic"]
    for name in part.Config.model_fields:
        if not any(name in kind.model_fields for kind in bases) and (
            name == "type" or any(hasattr(kind, name) for kind in bases)
        ):
            yield f"an option cannot be called '{name}', which every Config uses itself; rename it"


def _facts(kind: type) -> Iterator[str]:
    """Yield the public non-function attributes of a class, including annotations without a value."""
    for name, value in vars(kind).items():
        if not name.startswith("_") and not callable(value) and not hasattr(value, "__get__"):
            yield name
    for name, annotation in vars(kind).get("__annotations__", {}).items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            yield name
