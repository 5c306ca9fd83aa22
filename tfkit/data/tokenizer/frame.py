"""Special tokens around a text and between two texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from tfkit.data.tokenizer.backend import panics_as_errors
from tfkit.data.tokenizer.base import Tokenizer


@dataclass(frozen=True)
class Frame:
    """Special tokens before a text, after it, and between two texts."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()

    @property
    def around(self) -> int:
        """Number of special tokens around a text."""
        return len(self.before) + len(self.after)

    @classmethod
    def of_roles(cls, special: Mapping[str, int]) -> Frame:
        """Return the frame of start, end and separator (default: end) tokens, skipping undefined roles."""
        start, end = special.get("start"), special.get("end")
        return cls(_as_tokens(start), _as_tokens(end), _as_tokens(special.get("separator", end)))

    @classmethod
    @panics_as_errors()
    def of_template(cls, tokenizer: Tokenizer) -> Frame:
        """Return the frame of the tokenizer's own template, which third-party files may have."""
        backend = tokenizer.backend
        # any text that is encoded as one token
        texts = chain("a", backend.get_vocab(with_added_tokens=False))
        text = next(text for text in texts if backend.encode(text, add_special_tokens=False).ids)
        one, two = backend.encode(text), backend.encode(text, text)
        places, both = one.sequence_ids, two.sequence_ids
        after = len(places) - places[::-1].index(0)
        end, start = len(both) - both[::-1].index(0), both.index(1)
        return cls(tuple(one.ids[: places.index(0)]), tuple(one.ids[after:]), tuple(two.ids[end:start]))


def _as_tokens(id_: int | None) -> tuple[int, ...]:
    return () if id_ is None else (id_,)
