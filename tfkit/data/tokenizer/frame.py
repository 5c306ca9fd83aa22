"""Which special tokens stand around a text, and between two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from tfkit.data.tokenizer.backend import panics_told
from tfkit.data.tokenizer.base import Tokenizer


@dataclass(frozen=True)
class Frame:
    """The tokens before a text, after it, and between it and a second one."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()

    @property
    def around(self) -> int:
        """The number of special tokens around a text."""
        return len(self.before) + len(self.after)

    @classmethod
    def of_roles(cls, special: Mapping[str, int]) -> Frame:
        """Start, end, and the separator (else the end), as far as there are such tokens."""
        start, end = special.get("start"), special.get("end")
        return cls(_as_tokens(start), _as_tokens(end), _as_tokens(special.get("separator", end)))

    @classmethod
    @panics_told()
    def of_template(cls, tokenizer: Tokenizer) -> Frame:
        """What a tokenizer's own template adds, that of a file from elsewhere."""
        backend = tokenizer.backend
        # any text serves that has a token
        texts = chain("a", backend.get_vocab(with_added_tokens=False))
        text = next(text for text in texts if backend.encode(text, add_special_tokens=False).ids)
        one, two = backend.encode(text), backend.encode(text, text)
        places, both = one.sequence_ids, two.sequence_ids
        after = len(places) - places[::-1].index(0)
        end, start = len(both) - both[::-1].index(0), both.index(1)
        return cls(tuple(one.ids[: places.index(0)]), tuple(one.ids[after:]), tuple(two.ids[end:start]))


def _as_tokens(id_: int | None) -> tuple[int, ...]:
    return () if id_ is None else (id_,)
