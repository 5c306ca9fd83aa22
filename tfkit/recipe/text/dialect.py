"""The YAML dialect of recipes: interpretation of unquoted scalars (YAML 1.2 core schema), and syntax errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tfkit.core.errors import Place
from tfkit.recipe.text.node import TOO_DEEP, Scalar, shorten

EMPTY = "an empty value; write a value, none, or {} for no change"
LONGEST_NUMBER = 100
_WORDS: dict[str, bool | None] = {
    "none": None,
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YAML_1_1_WORDS = {"yes", "no", "on", "off", "y", "n"}
_DECIMAL = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_LEADING_ZERO = re.compile(r"[-+]?0_?[0-9]")
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F]+(_[0-9a-fA-F]+)*|o[0-7]+(_[0-7]+)*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class Refused(ValueError):
    """An invalid or ambiguous unquoted scalar; the message says what to write instead."""


def resolve(text: str) -> Scalar:
    """Return the value of the unquoted scalar `text`; raise Refused if it is invalid or ambiguous."""
    if text in _WORDS:
        return _WORDS[text]
    if text in ("", "null", "Null", "NULL", "~"):
        raise Refused(EMPTY)
    word = text.lower()
    if word in _YAML_1_1_WORDS:
        raise Refused(f"'{text}' is ambiguous in YAML; write true or false, or quote it if it is text")
    if word == "none":
        raise Refused(f"'{text}': write none, or quote it if it is text")
    if _NOT_FINITE.fullmatch(text):
        raise Refused(f"{text}: numbers must be finite")
    return _number(text) if text[0] in "+-.0123456789" else text


def resolve_key(text: str) -> str:
    """Return the unquoted key `text`; raise Refused unless it is a word or a non-negative integer."""
    if text.lower() in _YAML_1_1_WORDS:
        return text  # not ambiguous as a key, since no key is a boolean
    value = resolve(text)
    if type(value) is int and text.isdecimal():
        return text  # a layer index
    if not isinstance(value, str):
        raise Refused(f"a key must be a word, not {shorten(text)}; if it is meant as text, quote it")
    return value


def _number(text: str) -> int | float | str:
    """Convert `text` to a number; return it unchanged if it is not one; raise Refused for an unusable number."""
    is_decimal, has_base = _DECIMAL.fullmatch(text), _OTHER_BASE.fullmatch(text)
    if not (is_decimal or has_base or _FLOAT.fullmatch(text)):
        return text
    # int() takes quadratic time, and rejects more than 4,300 digits
    if len(text) > LONGEST_NUMBER:
        raise Refused(f"a number with {len(text):,} characters; the limit is {LONGEST_NUMBER}; quote it if it is text")
    if is_decimal and _LEADING_ZERO.match(text):
        raise Refused(f"{text} starts with a zero; write {int(text)}, or '{text}' in quotes if it is text")
    if is_decimal or has_base:
        return int(text, 0 if has_base else 10)
    value = float(text)
    if math.isinf(value):
        raise Refused(f"{text} is too large for a float")
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise Refused(f"{text} is too small for a float: it would be 0")
    return value


_TAB = "a tab in the indentation; YAML needs spaces"
_DEPTH = (
    "maximum nesting depth"  # error of the C parser since PyYAML 6.0.4, which looks ahead and may reach the limit first
)
# fragment of a parser message (the C and Python parsers differ) -> message shown; the first match wins
_SENTENCES = (
    (_DEPTH, TOO_DEEP),
    ("found a tab character", _TAB),
    (
        "mapping values are not allowed",
        "a ':' is not allowed here; check the indentation of this line, or quote the text",
    ),
    ("could not find expected ':'", "expected ':' and a value after this key"),
    ("',' or ']'", "expected ',' or ']' in this list"),
    ("',' or '}'", "expected ',' or '}' in this mapping"),
    ("did not find expected key", "this does not match the lines above; check the indentation and the brackets"),
    ("expected <block end>", "this does not match the lines above; check the indentation and the brackets"),
    ("did not find expected '-'", "this does not match the list above; check the indentation"),
    ("document start", "unexpected text after the end of the recipe"),
    ("unknown escape", "unknown escape after '\\' in double quotes; use single quotes, or write '\\\\'"),
    ("invalid Unicode character escape", "invalid escape"),
    ("undefined tag handle", "tags are not allowed: a recipe is plain data"),
    ("expected node content", "missing value"),
    ("expected the node content", "missing value"),
)
# fragment of the parser's context -> message shown
_CONTEXTS = (
    ("scanning an alias", "'*' starts an alias; quote it if it is text"),
    ("scanning an anchor", "'&' starts an anchor; quote it if it is text"),
    ("scanning a directive", "'%' starts a directive; quote it if it is text"),
)


def syntax_fault(error: Exception, text: str, locate: Callable[[Any], Place]) -> tuple[Place, str, str]:
    """Return the place, path and message of a syntax error in `text`."""
    problem = str(getattr(error, "problem", None) or error)
    context = str(getattr(error, "context", None) or "")
    mark = getattr(error, "problem_mark", None)
    opened = getattr(error, "context_mark", None)
    if mark is None:
        return locate(SimpleNamespace(line=0, column=0)), "", f"this is not YAML: {problem.splitlines()[0]}"
    at_end = not text[mark.index :].strip()
    if opened is not None and "quoted scalar" in context and "unexpected" in problem:
        return locate(opened), "", "this quote is not closed"
    if opened is not None and at_end and "flow" in context and _DEPTH not in problem:
        return locate(opened), "", "this bracket is not closed"
    place = locate(mark)
    sentence = _sentence(problem, context, text[mark.index : mark.index + 1])
    if opened is not None and "flow" in context and place.line:
        sentence += f", opened at line {opened.line + 1}, column {opened.column + 1}"
    return place, "", sentence


def _sentence(problem: str, context: str, letter: str) -> str:
    if "cannot start any token" in problem:
        return _TAB if letter == "\t" else f"a value cannot start with '{letter}'; quote it"
    shown = [text for key, text in _CONTEXTS if key in context] + [text for key, text in _SENTENCES if key in problem]
    return shown[0] if shown else f"this is not YAML: {context + ', ' if context else ''}{problem}"
