"""Masks of the next tokens that keep a match of a pattern reachable, computed by the library llguidance."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfkit.core.errors import UsageError, on_one_line
from tfkit.core.extras import optional
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.constraint.token_texts import TokenTexts, token_texts

CLOSING = 64  # tokens before the limit from which on a match must fit into as many characters
FUEL = 5_000_000  # maximum work to compile a pattern, and for a token; a second or two
STEP = 16  # steps of these limits, each of which compiles the pattern once
MOST_MATCHERS = 32  # maximum compiled limits per guide
LONGEST = 1 << 20  # maximum characters of the shortest match
EDGES = re.compile(r"\A(?:\^|\\A)|(?<!\\)(?:\$|\\Z)\Z")
ANCHOR = re.compile(r"\\[bB]|(?<!\\)[\^$]")
FAULT = re.compile(r"regex parse error:\n(?:.*\n)*? {4}( *)(\^+)\n(?:.*\n)*?error: (.*)")
Ids = list[int]
Flags = NDArray[np.bool_]


def library() -> Any:
    """Import llguidance. Raise UsageError if it is not installed."""
    return optional("llguidance", "constrain", "constraints need")


def check_pattern(pattern: str) -> None:
    """Raise ValueError, with the place of the fault, for a pattern that is invalid or matches nothing."""
    if re.search(r"(?<!\\)(?:\\\\)*\\\Z", pattern):
        raise ValueError("'\\' at the end escapes nothing; write \\\\ for a literal backslash")
    matcher = _compiled(library().LLTokenizer("byte"), pattern)
    matcher.compute_bitmask()
    if not matcher.is_error():
        return
    fault, start = matcher.get_error(), pattern.index(EDGES.sub("", pattern))
    found, anchor = FAULT.search(fault), ANCHOR.search(pattern, start)
    if found is not None and "\n" not in pattern:
        place, why = start + len(found[1]), found[3]
        shown = pattern[place : place + len(found[2])]
    elif "lookarounds" in fault and anchor is not None:
        shown, place, why = anchor[0], anchor.start(), "is a boundary inside of the pattern, which is not supported"
    elif "NoExtension" in fault:
        raise ValueError("matches no text at all")
    else:
        raise ValueError(on_one_line(fault.rpartition("error: ")[2].partition("\n")[0], 200))
    raise ValueError(f"'{shown}' at character {place + 1}: {why}")


def literal(text: str) -> str:
    """Return the pattern of a text."""
    return "".join(f"\\x{{{ord(sign):x}}}" for sign in text)


def _compiled(vocabulary: Any, *patterns: str) -> Any:
    """Return a matcher of the texts that match all patterns. Forced tokens are not written in one spelling only."""
    package = library()
    terms = " & ".join(f"/{package.regex_to_lark(EDGES.sub('', one), '')}/" for one in patterns)
    grammar = f'%llguidance {{"no_forcing": true}}\nstart: TEXT\nTEXT: {terms}'
    limits = package.LLParserLimits(initial_lexer_fuel=FUEL, step_lexer_fuel=FUEL, verbose_errors=False)
    return package.LLMatcher(vocabulary, package.LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)


@lru_cache(maxsize=4)
def _vocabulary_of(tokenizer: Tokenizer, ends: frozenset[int]) -> Any:
    """Return the tokens after other tokens, and after them those at the beginning of a text, as llguidance reads them.

    Tokens without a text are never allowed.
    """
    texts = token_texts(tokenizer).without(ends)
    tokens = SimpleNamespace(tokens=[*texts.inner, *texts.first], special_token_ids=(), is_tokenizer_wrapper=True)
    tokens.eos_token_id = tokens.bos_token_id = None
    return library().LLTokenizer(tokens, slices=[])


@lru_cache(maxsize=8)
def guide_of(pattern: str, tokenizer: Tokenizer, ends: frozenset[int]) -> Guide:
    """Return a cached Guide, or build it."""
    return Guide(pattern, tokenizer, ends)


class Guide:
    """Masks of the tokens allowed after the ids written so far.

    `first` is True for a text at the beginning, before which nothing visible was written; `begins` is True where tokens
    can write a match. `lock` guards the matchers, as searches in several threads may share a guide.
    """

    def __init__(self, pattern: str, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        """Raise UsageError if the tokenizer cannot write any match, or has no token to end one."""
        texts = token_texts(tokenizer).without(ends)
        self.pattern, self.tokenizer, self.ends = pattern, tokenizer, ends
        self.inner, self.first = texts.inner, texts.first
        self.longest = max(1, *(len(text.decode(errors="ignore")) for text in (*texts.inner, *texts.first)))
        self.spellings = {first: _spellings(texts, first) for first in (True, False)}
        self.speller = {first: _compiled(library().LLTokenizer("byte"), one) for first, one in self.spellings.items()}
        self.prefixes, self.fewest = _prefixes(texts), dict[bool, int]()
        self.vocabulary = _vocabulary_of(tokenizer, ends)
        self.matchers: dict[tuple[bool, int | None], tuple[Any, Ids]] = {}
        self.lock = Lock()
        self.begins = {first: _opens(pattern, one) for first, one in self.spellings.items()}
        if not any(self.begins.values()):
            raise UsageError("no allowed text can be written with this vocabulary")
        if not ends and _opens(pattern, f"(?:{EDGES.sub('', pattern)})(?s:.+)"):
            raise UsageError(
                "a complete text may be the beginning of a longer one, but the tokenizer has no end token; "
                "list the end tokens in `ends`"
            )

    def __reduce__(self) -> tuple[Callable[..., Guide], tuple[str, Tokenizer, frozenset[int]]]:
        """Copy and pickle only the definition, as matchers are derived."""
        return guide_of, (self.pattern, self.tokenizer, self.ends)

    def visible(self, ids: Iterable[int]) -> bool:
        """True if any of the tokens decodes to text."""
        return any(0 <= id_ < len(self.inner) and self.inner[id_] for id_ in ids)

    def writes(self, text: str, first: bool) -> bool:
        """True if tokens can spell `text`, at the beginning (`first`) or after a prompt."""
        speller, data = self.speller[first], list(text.encode())
        whole = speller.validate_tokens(data) == len(data) and speller.consume_tokens(data) and speller.is_accepting()
        speller.reset()
        return bool(whole)

    def needs(self, first: bool) -> int:
        """Return a lower bound on the tokens of a match."""

        def fits(tokens: int) -> bool:
            return _opens(self.pattern, self.spellings[first], _at_most(tokens * self.longest))

        if first not in self.fewest:
            self.fewest[first] = bisect_left(range(LONGEST), True, key=fits)
        return self.fewest[first]

    def complete(self, first: bool, ids: Sequence[int]) -> bool:
        """True if the written text matches."""
        matcher = self._matcher(first, self._read(first, ids)[0], None)
        return matcher is not None and bool(matcher.is_accepting())

    def allowed(self, first: bool, ids: Sequence[int], left: int | None = None) -> Tensor:
        """Return the mask of allowed next tokens, bool [vocab].

        If at most `left` tokens may follow, a match must remain reachable in as many characters, where there is one.
        End tokens are allowed after a match, and where no other token is.
        """
        if not self.ends.isdisjoint(ids):
            return torch.zeros(len(self.inner), dtype=torch.bool)
        tokens, characters = self._read(first, ids)
        limits: list[int | None] = [None]
        if left is not None and left <= CLOSING:
            limits = [(characters + left) // STEP * STEP, characters + left, None]
        for limit in limits:
            flags, complete = self._mask(first, tokens, limit)
            if complete or flags.any():
                break
        flags[list(self.ends)] = complete or not flags.any()
        return torch.from_numpy(flags)

    def _mask(self, first: bool, tokens: Ids, limit: int | None) -> tuple[Flags, bool]:
        """Return the tokens that lead to a match of at most `limit` characters, and True if the text is a match."""
        size = len(self.inner)
        matcher = self._matcher(first, tokens, limit)
        if matcher is None:
            return np.zeros(size, dtype=np.bool_), False
        begins = size if first and not tokens else 0
        flags, complete = _bits(matcher)[begins : begins + size], bool(matcher.is_accepting())
        self._check(first, limit)
        for id_ in self.prefixes.intersection(np.flatnonzero(flags).tolist()):
            flags[id_] = self._lives(matcher, begins + id_)
        return flags, complete

    def _lives(self, matcher: Any, token: int, depth: int = 3) -> bool:
        """True if more tokens can follow a prefix of others, or the text is a match then."""
        after = matcher.deep_copy()
        after.consume_token(token)
        allowed = {*np.flatnonzero(_bits(after)[: len(self.inner)]).tolist()}
        if after.is_accepting() or not depth or not allowed <= self.prefixes:
            return True
        return any(self._lives(after, id_, depth - 1) for id_ in allowed)

    def _read(self, first: bool, ids: Sequence[int]) -> tuple[Ids, int]:
        """Return the visible tokens as the vocabulary numbers them, and the characters of their text."""
        tokens, data = Ids(), b""
        for id_ in ids:
            if self.visible([id_]):
                begins = first and not tokens
                tokens.append(id_ + len(self.inner) * begins)
                data += (self.first if begins else self.inner)[id_]
        return tokens, len(data.decode(errors="ignore"))

    def _matcher(self, first: bool, tokens: Ids, limit: int | None) -> Any:
        """Return the matcher after the tokens, of matches of at most `limit` characters; None if none can follow."""
        if (first, limit) not in self.matchers:
            if len(self.matchers) >= MOST_MATCHERS:
                self.matchers.pop(next(iter(self.matchers)))
            limits = [] if limit is None else [_at_most(limit)]
            matcher = _compiled(self.vocabulary, self.pattern, self.spellings[first], *limits)
            self.matchers[first, limit] = matcher, Ids()
        matcher, done = self.matchers[first, limit]
        pairs = enumerate(zip(done, tokens, strict=False))
        common = next((place for place, (old, new) in pairs if old != new), min(len(done), len(tokens)))
        matcher.rollback(len(done) - common)
        whole = matcher.validate_tokens(tokens[common:]) == len(tokens) - common
        self.matchers[first, limit] = matcher, tokens if whole else tokens[:common]
        if whole:
            matcher.consume_tokens(tokens[common:])
        else:
            self._check(first, limit)
        return matcher if whole else None

    def _check(self, first: bool, limit: int | None) -> None:
        """Forget a matcher that cannot continue. Raise UsageError if its work was too much."""
        fault = self.matchers[first, limit][0].get_error()
        if fault:
            self.matchers.pop((first, limit))
        if fault and "NoExtension" not in fault:
            raise UsageError(f"a pattern in generate.logits is too large: {on_one_line(fault.splitlines()[0], 200)}")


def _words(texts: Iterable[bytes]) -> tuple[set[str], set[str]]:
    """Return the characters that are tokens, and the tokens with other characters."""
    words = {text.decode(errors="ignore") for text in texts}
    signs = {word for word in words if len(word) == 1}
    return signs, {word for word in words if not signs.issuperset(word)}


def _spellings(texts: TokenTexts, first: bool) -> str:
    """Return the pattern of all texts that tokens can spell, at the beginning (`first`) or after a prompt."""
    if len({text for text in texts.inner if len(text) == 1}) == 256:
        return "(?s:.*)"
    signs, words = _words(texts.inner)
    every = "|".join([*map(literal, words), *([f"[{''.join(map(literal, signs))}]"] if signs else [])])
    if not first:
        return f"(?:{every})*"
    words = {text.decode(errors="ignore") for text in texts.first} - {""}
    starts = (one for one in words if len(one) == 1 or one[0] not in words or not signs.issuperset(one[1:]))
    return f"(?:(?:{'|'.join(map(literal, starts))})(?:{every})*)?"


def _prefixes(texts: TokenTexts) -> frozenset[int]:
    """Return the tokens that are prefixes of others, if the vocabulary may be unable to write the rest."""
    if not _words(texts.inner)[1]:
        return frozenset()
    order = sorted({*texts.inner, *texts.first})
    found = {text for text, longer in pairwise(order) if longer.startswith(text)}
    return frozenset(id_ for id_, pair in enumerate(zip(texts.inner, texts.first, strict=True)) if found & {*pair})


def _bits(matcher: Any) -> Flags:
    """Return the tokens that a matcher allows next."""
    return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little").astype(np.bool_)


def _opens(*patterns: str) -> bool:
    """True if some text matches all patterns."""
    matcher = _compiled(library().LLTokenizer("byte"), *patterns)
    matcher.compute_bitmask()
    return not matcher.is_error()


def _at_most(characters: int) -> str:
    return f"(?s:.{{0,{characters}}})"
