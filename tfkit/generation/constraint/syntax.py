"""Parser for the regular subset of Python's `re` syntax.

A pattern must match the whole text, as in `re.fullmatch`. Greedy and lazy quantifiers are therefore equivalent, and `^`
at the beginning and `$` at the end have no effect.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache

Spans = tuple[tuple[int, int], ...]  # half-open ranges of code points, ascending
CODE_POINTS = 0x110000
SURROGATES = (0xD800, 0xE000)  # not valid in text
DEEPEST = 50  # maximum nesting of groups

_TIMES = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_ESCAPE = re.compile(r"\\(?:[dDwWsSafnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|0[0-7]{0,2}|[1-3][0-7]{2})")
_GROUP = re.compile(r"\((?:\?:|\?P<[^\W\d]\w*>)?")
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
# unsupported syntax, with the reason
_REFUSED = (
    (re.compile(r"\(\?<?[=!]"), "is lookahead or lookbehind, which is not regular"),
    (re.compile(r"\(\?P=|\\[1-9]"), "refers back to a group, which is not regular"),
    (re.compile(r"\(\?>"), "is an atomic group, which is not regular; leave out '?>'"),
    (re.compile(r"\(\?\("), "is a condition on a group, which is not regular"),
    (re.compile(r"\(\?#"), "is a comment; leave it out"),
    (re.compile(r"\(\?[aiLmsux-]"), "sets a flag, which is not supported; write [aA] for (?i)a"),
    (re.compile(r"\\[bB]"), "is a word boundary, which is not supported; write the characters"),
)


class PatternError(ValueError):
    """An invalid or unsupported pattern. The message names the fault and its position."""


@dataclass(frozen=True)
class Characters:
    """One character out of a set."""

    spans: Spans


@dataclass(frozen=True)
class Chain:
    """A concatenation; without parts it matches the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    """An alternation."""

    ways: tuple[Node, ...]


@dataclass(frozen=True)
class Repeated:
    """A repetition from `least` to `most` times, None = unbounded."""

    part: Node
    least: int
    most: int | None


Node = Characters | Chain | Either | Repeated


def parse(pattern: str) -> Node:
    """Parse a pattern. Raise PatternError if it is invalid, not regular or unsupported."""
    return _Parser(pattern).parse()


class _Parser:
    """Recursive-descent parser; `at` is the position of the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0

    def parse(self) -> Node:
        node = self.either()
        if self.at < len(self.pattern):
            raise self.error("closes no group; write \\) for a literal parenthesis")
        return node

    def either(self) -> Node:
        ways = [self.chain()]
        while self.takes("|"):
            ways.append(self.chain())
        return ways[0] if len(ways) == 1 else Either(tuple(ways))

    def chain(self) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.next not in "|)":
            if not self.is_edge(first=not parts):
                parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def is_edge(self, first: bool) -> bool:
        """Consume a `^` at the beginning or a `$` at the end of the pattern; elsewhere they are errors."""
        sign = self.next if self.next in "^$" else self.pattern[self.at : self.at + 2]
        if sign not in ("^", "$", "\\A", "\\Z"):
            return False
        after = self.pattern[self.at + len(sign) :]
        begins = sign in ("^", "\\A")
        if self.depth or not (first if begins else after[:1] in ("", "|")):
            raise self.error(
                f"marks the {'beginning' if begins else 'end'} of the text and is allowed only there", sign
            )
        self.at += len(sign)
        return True

    def repeated(self, part: Node) -> Node:
        """Wrap the part in the quantifier that follows it, if any."""
        start = self.at
        times = self.times()
        if times is None:
            return part
        least, most = times
        if most is not None and least > most:
            raise self.error(
                f"has a minimum of {least} above its maximum of {most}", self.pattern[start : self.at], start
            )
        if self.at < len(self.pattern) and self.next == "+":
            raise self.error("makes the repetition possessive, which is not regular; remove it")
        self.takes("?")  # lazy quantifiers are equivalent for a full match
        if self.at < len(self.pattern) and (self.next in "*+?" or self.bounds() is not None):
            raise self.error("repeats a repetition; put the inner repetition into a group (?:..)")
        return Repeated(part, least, most)

    def times(self) -> tuple[int, int | None] | None:
        """Consume a quantifier. Return its bounds, or None."""
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.takes(sign):
                return times
        match = self.bounds()
        if match is None:
            return None
        self.at = match.end()
        least, comma, most = match.groups()
        if not comma:
            return int(least), int(least)
        return int(least or 0), int(most) if most else None

    def bounds(self) -> re.Match[str] | None:
        """Match a `{..}` quantifier; other braces are literal characters."""
        match = _TIMES.match(self.pattern, self.at)
        return match if match is not None and match[0] != "{}" else None

    def atom(self) -> Node:
        sign = self.next
        for begins, why in _REFUSED:
            match = begins.match(self.pattern, self.at)
            # three octal digits are a character, fewer are a backreference
            if match is not None and not _ESCAPE.match(self.pattern, self.at):
                raise self.error(why, match[0])
        if sign == "(":
            return self.group()
        if sign in "*+?" or self.bounds() is not None:
            raise self.error(f"has nothing to repeat; write \\{sign} for the literal character")
        if sign == "[":
            return self.characters(_SET.match(self.pattern, self.at), "has no closing ]")
        if sign == "\\":
            return self.escaped()
        self.at += 1
        return Characters(_spans(".") if sign == "." else _itself(sign))

    def group(self) -> Node:
        start, opening = self.at, _GROUP.match(self.pattern, self.at)
        if opening is None or (opening[0] == "(" and self.pattern.startswith("(?", self.at)):
            raise self.error("is not a known kind of group", self.pattern[self.at : self.at + 3])
        self.at, self.depth = opening.end(), self.depth + 1
        if self.depth > DEEPEST:
            raise self.error(f"is nested more than {DEEPEST} groups deep", "(", start)
        node = self.either()
        if not self.takes(")"):
            raise self.error("opens a group that is never closed", opening[0], start)
        self.depth -= 1
        return node

    def escaped(self) -> Node:
        r"""Parse a class such as \d, a character such as \n or \x41, or an escaped sign."""
        following = self.pattern[self.at + 1 : self.at + 2]
        if not following:
            raise self.error("escapes nothing; write \\\\ for a literal backslash")
        if not following.isascii() or not following.isalnum():
            self.at += 2
            return Characters(_itself(following))
        return self.characters(_ESCAPE.match(self.pattern, self.at), "is not a known escape sequence", "\\" + following)

    def characters(self, match: re.Match[str] | None, unknown: str, shown: str | None = None) -> Node:
        if match is None:
            raise self.error(unknown, shown)
        try:
            spans = _spans(match[0])
        except (re.error, OverflowError) as error:
            raise self.error(f"is not a valid character set: {error}", match[0]) from None
        self.at = match.end()
        return Characters(spans)

    @property
    def next(self) -> str:
        return self.pattern[self.at]

    def takes(self, sign: str) -> bool:
        """Consume `sign` if it is next."""
        matches = self.pattern.startswith(sign, self.at)
        self.at += matches
        return matches

    def error(self, message: str, shown: str | None = None, at: int | None = None) -> PatternError:
        place = self.at if at is None else at
        shown = shown or self.pattern[place]
        named = f"'{shown}'" if shown.isprintable() else repr(shown)
        return PatternError(f"{named} at character {place + 1} {message}")


def _itself(sign: str) -> Spans:
    return ((ord(sign), ord(sign) + 1),)


@lru_cache(maxsize=256)
def _spans(one: str) -> Spans:
    """Return the characters of a set, class or escape, as matched by `re`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # `[[` may change its meaning in a future Python
        characters = re.compile(f"(?:{one})+")
    spans = []
    for match in characters.finditer(_everything()):
        first, last = match.span()
        spans += [(first, min(last, SURROGATES[0])), (max(first, SURROGATES[1]), last)]
    return tuple((first, last) for first, last in spans if first < last)


@cache
def _everything() -> str:
    """Return all Unicode characters."""
    return "".join(map(chr, range(CODE_POINTS)))
