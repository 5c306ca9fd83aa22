"""Bytes that each token decodes to within a text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tfkit.core.errors import UsageError
from tfkit.core.trees import JsonObject
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.byte_level import token_bytes

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
        texts = _of_bytes(tokenizer, special)
        return TokenTexts(texts, texts)
    return _decoded(tokenizer, special, bytes_too="ByteFallback" in kinds)


def _decoders(step: JsonObject | None) -> list[str]:
    """Return the decoder types of a pipeline in order."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [kind for inner in step["decoders"] for kind in _decoders(inner)]
    return [str(step["type"])]


def _of_bytes(tokenizer: Tokenizer, special: Collection[int]) -> list[bytes]:
    """Decode the tokens of a byte-level vocabulary."""
    tokens = ("" if id_ in special else tokenizer.backend.id_to_token(id_) or "" for id_ in range(tokenizer.vocab_size))
    return [token_bytes(token) for token in tokens]


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
