"""Byte-level vocabularies, whose letters each stand for a byte (Radford 2019, GPT-2's encoder)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tokenizers import pre_tokenizers


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte that each letter of the alphabet stands for."""
    return dict(_letters())


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; those of its own text where it is none, such as a special token."""
    byte_of = byte_of_letter()
    plain = all(letter in byte_of for letter in token)
    return bytes(byte_of[letter] for letter in token) if plain else token.encode()


def _letters() -> Iterator[tuple[str, int]]:
    """The letter of each byte: itself where that can be seen, else the next one from 256 on."""
    hidden = 0
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(256):
        if chr(byte) in alphabet:
            yield chr(byte), byte
        else:
            yield chr(256 + hidden), byte
            hidden += 1
