"""Texts that match a pattern: the bytes of each token, and the tokens that keep a match reachable (llguidance)."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import UsageError, on_one_line, optional
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.backend import token_bytes

Texts = Sequence[bytes]
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte token in vocabularies with byte fallback
_AHEAD = ("BPEDecoder", "CTC")  # decoders in which a token's text depends on the next token


@dataclass(frozen=True)
class TokenTexts:
    """Bytes of each token by id: after other tokens (`inner`) and at the start of a text (`first`).

    A token may be part of a character. Special tokens and unassigned ids have no bytes.
    """

    inner: Texts
    first: Texts

    def without(self, ids: Collection[int]) -> TokenTexts:
        """Return the texts with none for some tokens."""
        return TokenTexts(
            *([b"" if id_ in ids else text for id_, text in enumerate(one)] for one in (self.inner, self.first))
        )


@lru_cache(maxsize=4)
def token_texts(tokenizer: Tokenizer) -> TokenTexts:
    """Return the texts of all tokens. Raise UsageError if a token's text depends on its neighbours."""
    kinds = _decoders(json.loads(tokenizer.to_json())["decoder"])
    ahead = next((kind for kind in kinds if kind in _AHEAD), None)
    if ahead is not None:
        raise UsageError(
            f"constraints do not work with this tokenizer: with {ahead}, a token's text depends on the next token"
        )
    special = {id_ for id_, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    if "ByteLevel" in kinds:
        tokens = (tokenizer.backend.id_to_token(id_) or "" for id_ in range(tokenizer.vocab_size))
        texts = [token_bytes("" if id_ in special else token) for id_, token in enumerate(tokens)]
        return TokenTexts(texts, texts)
    return _decoded(tokenizer, special, bytes_too="ByteFallback" in kinds)


def _decoders(step: JsonObject | None) -> list[str]:
    """Return the decoder types of a pipeline in order."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [kind for inner in step["decoders"] for kind in _decoders(inner)]
    return [str(step["type"])]


def _decoded(tokenizer: Tokenizer, special: Collection[int], bytes_too: bool) -> TokenTexts:
    """Decode each token, alone and after another token, in vocabularies that are not byte-level."""
    decode = tokenizer.backend.decode_batch
    tokens = [None if id_ in special else tokenizer.backend.id_to_token(id_) for id_ in range(tokenizer.vocab_size)]
    decodable = [id_ for id_, token in enumerate(tokens) if token]
    alone = dict(zip(decodable, decode([[id_] for id_ in decodable]), strict=True))
    anchor = next((id_ for id_, text in alone.items() if text[-1:].isalnum() and text.isascii()), None)
    if anchor is None:
        raise UsageError("constraints do not work with this tokenizer: none of its tokens ends in a letter")
    after = decode([[anchor, id_] for id_ in decodable])
    first, inner = ([b""] * tokenizer.vocab_size for _ in range(2))
    for id_, text in zip(decodable, after, strict=True):
        byte = _BYTE.fullmatch(tokens[id_] or "") if bytes_too else None
        if byte is not None and int(byte[1], 16) >= 0x80:
            first[id_] = inner[id_] = bytes([int(byte[1], 16)])
        else:
            first[id_], inner[id_] = alone[id_].encode(), text[len(alone[anchor]) :].encode()
    whole = [id_ for id_ in decodable if not _BYTE.fullmatch(tokens[id_] or "")]
    expected = alone[anchor].encode() + b"".join(inner[id_] for id_ in whole)
    if decode([[anchor, *whole]])[0].encode() != expected:
        raise UsageError("constraints do not work with this tokenizer: a token's text depends on its neighbours")
    return TokenTexts(inner, first)


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
            doubled = (1 << power for power in range(LONGEST.bit_length()))  # from below: high limits need much work
            most = next(filter(fits, doubled), 0)
            self.fewest[first] = bisect_left(range(most), True, lo=most // 2, key=fits)
        return self.fewest[first]

    def complete(self, first: bool, ids: Sequence[int]) -> bool:
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
        opening = {text[:1] for text in texts.first}  # without a space, where tokens lose it at the beginning
        lost = [chr(sign) for sign in range(128) if first and bytes([sign]) not in opening]
        return f"(?s:[^{''.join(map(literal, lost))}].*)?" if lost else "(?s:.*)"
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
