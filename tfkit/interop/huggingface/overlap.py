"""Detection of contradictory rules in a family: two rules for the same tensor, one of which is never applied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product

from tfkit.core.errors import UsageError
from tfkit.interop.huggingface.tensors import WORDS, Rule

# a name with each number replaced by #, and the numbers (None: any)
Form = tuple[str, tuple[str | None, ...]]


def check_rules(family: str, rules: Sequence[Rule], head_rules: Mapping[str, Sequence[Rule]]) -> None:
    """Raise UsageError if two rules write the same tfkit tensor or the same checkpoint tensor.

    If two rules match a tfkit tensor, the first applies; it must be the narrower one, or belong to a head. Two rules
    for the same checkpoint tensor must also write the same tfkit tensor, since a model might match both.
    """
    for first, second in combinations(_writing(rules), 2):
        _check_order(family, first, second)
        _check_apart(family, first, second)
    for of_head in map(_writing, head_rules.values()):
        for first, second in combinations(of_head, 2):
            _check_order(family, first, second)
            _check_apart(family, first, second)
        for first, second in product(of_head, _writing(rules)):
            _check_apart(family, first, second)


def _writing(rules: Sequence[Rule]) -> list[Rule]:
    return [rule for rule in rules if not rule.read_only]


def _check_order(family: str, first: Rule, second: Rule) -> None:
    own = next(_common(first.own_names, second.own_names), None)
    if own is not None and not _is_narrower(first, second):
        raise UsageError(
            f"family '{family}': two rules cover {own}: {first} comes first, so {second} is never written; "
            "put the narrower one first, or set read_only=True for the one that is only read"
        )


def _check_apart(family: str, first: Rule, second: Rule) -> None:
    checkpoint = next(_common(first.checkpoint_names, second.checkpoint_names), None)
    if checkpoint is not None and next(_common(first.own_names, second.own_names), None) is None:
        raise UsageError(
            f"family '{family}': two rules write {checkpoint}: {first} and {second}; select one in rules_of by "
            "the Blueprint, or set read_only=True for the one that is only read"
        )


def _is_narrower(first: Rule, second: Rule) -> bool:
    """True if `second` matches a strict superset of the tensors that `first` matches."""
    wider = _covers(first.own_names, second.own_names)
    return wider and not _covers(second.own_names, first.own_names)


def _covers(narrow: Sequence[str], wide: Sequence[str]) -> bool:
    """True if the templates `narrow` match every name that the templates `wide` match."""
    return all(any(_contains(template, other) for other in narrow) for template in wide)


def _contains(wide: str, narrow: str) -> bool:
    return all(
        any(form == other and _agree(numbers, others, strict=True) for other, others in _forms(wide))
        for form, numbers in _forms(narrow)
    )


def _common(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """Yield the templates of `one` that can match a name that a template of `other` also matches."""
    for first, second in product(one, other):
        pairs = product(_forms(first), _forms(second))
        if any(form == other and _agree(numbers, others) for (form, numbers), (other, others) in pairs):
            yield first


def _agree(some: Sequence[str | None], others: Sequence[str | None], strict: bool = False) -> bool:
    """True if the numbers can be equal or, if `strict`, are equal for all values of `others`."""
    pairs = zip(some, others, strict=True)
    return all(other is None or one == other or (one is None and not strict) for one, other in pairs)


@cache
def _forms(template: str) -> tuple[Form, ...]:
    """Return the forms of a template, one for each combination of the words that its placeholders allow."""
    parts = re.split(r"(\{\w+\}|[0-9]+)", template)
    words = [WORDS[part[1:-1]].split("|") if part[1:-1] in WORDS and part[0] == "{" else [part] for part in parts]
    return tuple(_form(chosen) for chosen in product(*words))


def _form(parts: Sequence[str]) -> Form:
    return (
        "".join("#" if part.startswith("{") or part.isdigit() else part for part in parts),
        tuple(None if part.startswith("{") else part for part in parts if part.startswith("{") or part.isdigit()),
    )
