"""Text metrics for the fonts of picture.css: upper bounds on glyph widths, and line wrapping."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

BETWEEN = " · "
# maximum width in hundredths of the font size -> letters of that width
_LETTERS = {
    28: "'ijl",
    34: " ,./:;I\\|·",
    42: "!()-[]frt",
    50: '"*J_`',
    56: "?Lcsz",
    64: "$0123456789FTabdeghknopquvxy{}",
    70: "ABCEKPSVXYZ",
    79: "&DGHNOQRU",
    88: "#+<=>M^w~×→",
    102: "%@Wm",
}
_WIDTHS = {letter: width for width, letters in _LETTERS.items() for letter in letters}
_BOLDER = 13
_OTHER = 110  # width of other letters; lines that contain them have their length set in the SVG


@lru_cache(maxsize=2**14)
def width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper bound on the width of a line."""
    hundredths = sum(_WIDTHS.get(letter, 0 if unicodedata.combining(letter) else _OTHER) for letter in text)
    return (hundredths + len(text) * _BOLDER * bold) * size / 100


def is_measured(text: str) -> bool:
    """True if the width of every letter is known."""
    return all(letter in _WIDTHS for letter in text)


def lines(words: Iterable[str], most: float, size: float, bold: bool = False, apart: bool = False) -> list[str]:
    """Wrap groups of words to lines of at most `most`, preferring breaks between groups, then words, then letters.

    If `apart` is set, each group starts on a new line.
    """
    wrapped: list[str] = []
    for group in words:
        joined = f"{wrapped[-1]}{BETWEEN}{group}" if wrapped else group
        if wrapped and not apart and width(joined, size, bold) <= most:
            wrapped[-1] = joined
            continue
        wrapped += _broken(group, most, size, bold)
    return wrapped


def _broken(group: str, most: float, size: float, bold: bool) -> Iterator[str]:
    line = ""
    for word in group.split(" "):
        longer = f"{line} {word}" if line else word
        if width(longer, size, bold) <= most:
            line = longer
            continue
        if line:
            yield line
        line = word
        while width(line, size, bold) > most:
            end = next(place for place in range(len(line), 0, -1) if width(line[:place], size, bold) <= most)
            yield line[:end]
            line = line[end:]
    yield line
