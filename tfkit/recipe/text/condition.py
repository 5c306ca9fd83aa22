"""Conditions on values by name, such as `norm=rms_norm` or `valid.loss<2`: the grammar of `where`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tfkit.recipe.text.dialect import resolve

OPERATORS: dict[str, Callable[..., bool]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CONDITION = re.compile(r"\s*([^\s!<=>][^!<=>]*?)\s*(!=|<=|>=|=|<|>)\s*(.+?)\s*")


@dataclass(frozen=True)
class Condition:
    """A key, an operator and a value."""

    key: str
    sign: str
    value: object
    text: str = field(compare=False)

    @classmethod
    def of(cls, text: str) -> Condition:
        """Parse a condition; raise ValueError if it is malformed."""
        match = CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r}: write a key, one of {' '.join(OPERATORS)}, and a value: norm=rms_norm")
        value = scalar(match[3])
        if match[2] not in ("=", "!=") and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{text!r}: {match[2]} compares with a number, not with {match[3]!r}")
        return cls(match[1], match[2], value, text)

    def holds(self, values: Iterable[object]) -> bool:
        """True if any of the values satisfies the condition; for `!=`, if all values do."""
        answers = map(self._compared, values)
        return all(answers) if self.sign == "!=" else any(answers)

    def _compared(self, value: object) -> bool:
        if isinstance(value, bool) is not isinstance(self.value, bool):  # in Python, True == 1
            return self.sign == "!="
        try:
            return OPERATORS[self.sign](value, self.value)
        except TypeError:  # a word cannot be compared with a number
            return False


def scalar(text: str) -> object:
    """Return the value of a text as in a recipe, or the text itself if it is ambiguous there."""
    try:
        return resolve(text)
    except ValueError:
        return text
