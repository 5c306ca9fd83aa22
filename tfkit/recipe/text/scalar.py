"""Unquoted words of a recipe: the core schema of YAML 1.2; ambiguities of YAML 1.1 are refused."""

from __future__ import annotations

import math
import re

from tfkit.recipe.text.node import Scalar, shorten

EMPTY = "an empty value; write {} for no change, none to leave out"
LONGEST_NUMBER = 100

_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_YAML_1_1_WORDS = {"yes", "no", "on", "off", "y", "n"}
_DECIMAL = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_LEADING_ZERO = re.compile(r"[-+]?0_?[0-9]")
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F]+(_[0-9a-fA-F]+)*|o[0-7]+(_[0-7]+)*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class Refused(ValueError):
    """An ambiguous unquoted word; the message explains the alternatives."""


def resolve(text: str) -> Scalar:
    """Return the value of the unquoted scalar `text`; raise Refused."""
    if text in ("", "null", "Null", "NULL", "~"):
        raise Refused(EMPTY)
    if text == "none":
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    _refuse_traps(text)
    return _number(text)


def resolve_key(text: str) -> str:
    """Return the key written as the unquoted `text`; raise Refused unless it is a word or a non-negative integer."""
    if text.lower() in _YAML_1_1_WORDS:
        return text  # unambiguous as a key: keys are always words
    value = resolve(text)
    if type(value) is int and text.isdecimal():
        return text  # the number of a layer
    if not isinstance(value, str):
        raise Refused(f"a key must be a word, not {shorten(text)}; if it is meant as text, quote it")
    return value


def _refuse_traps(text: str) -> None:
    word = text.lower()
    if word in _YAML_1_1_WORDS:
        raise Refused(f"'{text}' is ambiguous in YAML; write true or false, or quote it if it is text")
    if word == "none":
        raise Refused(f"'{text}': write none (no such thing), or quote it if it is text")
    if _NOT_FINITE.fullmatch(text):
        raise Refused(f"{text}: a number in a recipe is finite")


def _number(text: str) -> int | float | str:
    if _DECIMAL.fullmatch(text):
        return _decimal(text)
    if _OTHER_BASE.fullmatch(text):
        _refuse_long(text)
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return _float(text)
    return text


def _decimal(text: str) -> int:
    _refuse_long(text)
    if _LEADING_ZERO.match(text):
        number = int(text)
        raise Refused(f"{text} begins with a zero; write {number}, or '{text}' in quotes if it is text")
    return int(text)


def _float(text: str) -> float:
    _refuse_long(text)
    value = float(text)
    if math.isinf(value):
        raise Refused(f"{text} is too large for a float")
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise Refused(f"{text} is too small for a float: it would be 0")
    return value


def _refuse_long(text: str) -> None:
    # Python takes quadratic time for long ones, and refuses more than 4,300 digits.
    if len(text) > LONGEST_NUMBER:
        raise Refused(f"a number of {len(text):,} characters; quote it if it is text")
