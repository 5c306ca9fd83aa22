"""Byte-level vocabularies, in which each byte is represented by a letter (as in GPT-2, Radford et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tokenizers import pre_tokenizers


@cache
def byte_of_letter() -> dict[str, int]:
    """Return letter -> byte for the alphabet of byte-level tokens."""
    return dict(_letters())


def token_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; other tokens, such as special tokens, are encoded as UTF-8."""
    byte_of = byte_of_letter()
    plain = all(letter in byte_of for letter in token)
    return bytes(byte_of[letter] for letter in token) if plain else token.encode()


def _letters() -> Iterator[tuple[str, int]]:
    """Yield the letter of each byte: the character with this code if printable, else the next one from U+0100."""
    hidden = 0
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(256):
        if chr(byte) in alphabet:
            yield chr(byte), byte
        else:
            yield chr(256 + hidden), byte
            hidden += 1
