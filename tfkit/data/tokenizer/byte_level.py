"""Byte-level vocabularies, which represent each byte by a letter (Radford 2019, GPT-2's encoder)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tokenizers import pre_tokenizers


@cache
def byte_of_letter() -> dict[str, int]:
    """Map each letter of the byte alphabet to its byte."""
    return dict(_letters())


def token_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token, or the UTF-8 text of other tokens (special ones)."""
    byte_of = byte_of_letter()
    plain = all(letter in byte_of for letter in token)
    return bytes(byte_of[letter] for letter in token) if plain else token.encode()


def _letters() -> Iterator[tuple[str, int]]:
    """Yield the letter of each byte: its own character if printable, else the next from U+0100."""
    hidden = 0
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(256):
        if chr(byte) in alphabet:
            yield chr(byte), byte
        else:
            yield chr(256 + hidden), byte
            hidden += 1
