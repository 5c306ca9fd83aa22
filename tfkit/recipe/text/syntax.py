"""Readable messages for PyYAML's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfkit.core.errors import Place
from tfkit.recipe.text.node import TOO_DEEP

_TAB = "a tab stands in the indentation; YAML indents with spaces"
_DEPTH = "maximum nesting depth"  # of the C parser since PyYAML 6.0.4, which detects it first by look-ahead
# Parser message (C and Python differ) -> our message; the first match wins.
_SENTENCES = (
    (_DEPTH, TOO_DEEP),
    ("found a tab character", _TAB),
    ("mapping values are not allowed", "a ':' cannot stand here: check this line's indentation, or quote the text"),
    ("could not find expected ':'", "expected ':' and a value after this key"),
    ("',' or ']'", "expected ',' or ']' in this list"),
    ("',' or '}'", "expected ',' or '}' in this mapping"),
    ("did not find expected key", "this does not fit the lines above: check the indentation and the brackets"),
    ("expected <block end>", "this does not fit the lines above: check the indentation and the brackets"),
    ("did not find expected '-'", "this does not fit the list above: check the indentation"),
    ("document start", "unexpected text after the end of the recipe"),
    ("unknown escape", "unknown escape after '\\' in double quotes; use single quotes, or write '\\\\'"),
    ("invalid Unicode character escape", "this escape names no character"),
    ("undefined tag handle", "tags are refused: a recipe is plain data"),
    ("expected node content", "a value is missing here"),
    ("expected the node content", "a value is missing here"),
)
# Likewise, by the parser's context.
_CONTEXTS = (
    ("scanning an alias", "'*' begins an alias; quote the text"),
    ("scanning an anchor", "'&' begins an anchor; quote the text"),
    ("scanning a directive", "'%' begins a directive; quote the text"),
)


def syntax_fault(error: Exception, text: str, locate: Callable[[Any], Place]) -> tuple[Place, str, str]:
    """Return place, path and message for a syntax error in `text`."""
    problem = str(getattr(error, "problem", None) or error)
    context = str(getattr(error, "context", None) or "")
    mark = getattr(error, "problem_mark", None)
    opened = getattr(error, "context_mark", None)
    if mark is None:
        return locate(_Start), "", f"this is not YAML: {problem.splitlines()[0]}"
    at_end = not text[mark.index :].strip()
    if opened is not None and "quoted scalar" in context and "unexpected" in problem:
        return locate(opened), "", "this quote is never closed"
    if opened is not None and at_end and "flow" in context and _DEPTH not in problem:
        return locate(opened), "", "this bracket is never closed"
    place = locate(mark)
    sentence = _sentence(problem, context, text[mark.index : mark.index + 1])
    if opened is not None and "flow" in context and place.line:
        sentence += f", which opens at line {opened.line + 1}, column {opened.column + 1}"
    return place, "", sentence


class _Start:
    """Mark of the start of a text."""

    line = 0
    column = 0
    index = 0


def _sentence(problem: str, context: str, letter: str) -> str:
    if "cannot start any token" in problem:
        return _TAB if letter == "\t" else f"a value cannot begin with '{letter}'; quote it"
    for key, sentence in _CONTEXTS:
        if key in context:
            return sentence
    for key, sentence in _SENTENCES:
        if key in problem:
            return sentence
    return f"this is not YAML: {context + ', ' if context else ''}{problem}"
