"""Bidirectional maps of tensors: names are templates, layouts einops patterns; contradictory rules are found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, product

import torch
from einops import rearrange
from torch import Tensor

from tfkit.core.errors import UsageError

Names = str | tuple[str, ...]
Sizes = Mapping[str, int]

# words that a placeholder matches; other placeholders match numbers
WORDS = {
    "kind": "weight|bias",
    "side": "encoder|decoder",
    "projection": "query|key|value|output",
    "mixing": "attention|mixer",
    "sublayer": "attention|mixer|feedforward",
    "path": r"[\w.]+",
}


@dataclass(frozen=True)
class Rule:
    """Maps checkpoint tensors (`checkpoint`) to tfkit tensors (`own`) with another layout.

    Names are templates: `{layer}`, `{expert}` and other placeholders match a number, `{kind}` matches weight or bias,
    `{side}` matches encoder or decoder. `checkpoint_layout` and `own_layout` rearrange both sides to a common form, in
    which several tensors are concatenated along the first axis. The input axis is called `width`; a bias lacks it:

        Rule("h.{layer}.c_attn.{kind}", (query, key, value), "width slot -> slot width")     # transposed, three in one
        Rule("h.{layer}.qkv.{kind}", (query, key, value), "(head slot dim) width -> slot head dim width",
             "(slot head dim) in -> slot head dim in")               # query, key and value of each head are adjacent

    If only `checkpoint` has a placeholder, its tensors are numbered from 0 and stacked: `experts.{expert}.w1.weight`.
    """

    checkpoint: Names
    own: Names
    checkpoint_layout: str = ""
    own_layout: str = ""
    offsets: Mapping[str, int] = field(default_factory=dict)  # placeholder -> checkpoint number minus tfkit number
    axes: Mapping[str, int] = field(default_factory=dict)  # sizes of layout axes not implied by the shapes
    read_only: bool = False  # True if the rule is used only for reading; another one writes the tensors

    def __str__(self) -> str:
        return f"{' + '.join(self.checkpoint_names)} <-> {' + '.join(self.own_names)}"

    @property
    def checkpoint_names(self) -> tuple[str, ...]:
        return (self.checkpoint,) if isinstance(self.checkpoint, str) else self.checkpoint

    @property
    def own_names(self) -> tuple[str, ...]:
        return (self.own,) if isinstance(self.own, str) else self.own

    def of_side(self, side: str) -> Rule:
        """Return the rule for a stack on the given side, encoder or decoder."""
        own = tuple(re.sub(r"^(encoder|decoder)\.", f"{side}.", name) for name in self.own_names)
        return replace(self, own=own[0] if isinstance(self.own, str) else own)

    def bindings(self, names: Iterable[str]) -> Iterator[dict[str, str]]:
        """Yield the placeholder values of each matching tfkit name."""
        pattern = _compiled(self.own_names[0])
        for name in names:
            match = pattern.fullmatch(name)
            if match is not None:
                yield match.groupdict()

    def own_names_for(self, binding: Mapping[str, str]) -> list[str]:
        return [template.format_map(binding) for template in self.own_names]

    def checkpoint_names_for(self, binding: Mapping[str, str], stacked: int) -> list[str]:
        """Return the checkpoint names for placeholder values; an extra placeholder is numbered below `stacked`."""
        shifted = dict(binding) | {name: str(int(binding[name]) + by) for name, by in self.offsets.items()}
        names = []
        for template in self.checkpoint_names:
            own = [name for name in _placeholders(template) if name not in binding]
            numbers = range(stacked) if own else [0]
            names += [template.format_map(shifted | dict.fromkeys(own, str(number))) for number in numbers]
        return names

    @property
    def stacks(self) -> bool:
        """True if checkpoint names have an extra placeholder, so that several tensors form one tfkit tensor."""
        return any(set(_placeholders(name)) - set(_placeholders(self.own_names[0])) for name in self.checkpoint_names)

    def count(self, shape: torch.Size, sizes: Sizes) -> int:
        """Return the number of checkpoint tensors that form a tfkit tensor of this shape."""
        if not self.stacks or not shape:
            return 1
        if self.checkpoint_layout:
            return shape[0]
        return _rearranged(torch.empty(shape, device="meta"), self.own_layout, {**sizes, **self.axes}).shape[0]

    def to_own(self, checkpoint: list[Tensor], shapes: list[torch.Size], sizes: Sizes) -> list[Tensor]:
        """Convert to tfkit tensors with the given shapes. Raise ValueError if the layouts do not fit."""
        if self.stacks:
            checkpoint = [torch.stack(checkpoint)]
        sizes = {**sizes, **self.axes}
        common = _joined([_rearranged(tensor, self.checkpoint_layout, sizes) for tensor in checkpoint])
        forms = [_rearranged(torch.empty(shape, device="meta"), self.own_layout, sizes) for shape in shapes]
        pieces = torch.split(common, [form.shape[0] for form in forms])
        converted = [_rearranged(piece, _reversed(self.own_layout), sizes) for piece in pieces]
        for tensor, shape in zip(converted, shapes, strict=True):
            if tensor.shape != shape:
                raise ValueError(f"produces {list(tensor.shape)} instead of {list(shape)}")
        return [tensor.contiguous() for tensor in converted]

    def to_checkpoint(self, own: list[Tensor], sizes: Sizes) -> list[Tensor]:
        sizes = {**sizes, **self.axes}
        forms = [_rearranged(tensor, self.own_layout, sizes) for tensor in own]
        common = _joined(forms)
        if self.stacks:
            return [
                part.contiguous() for part in _rearranged(common, _reversed(self.checkpoint_layout), sizes).unbind()
            ]
        count = len(self.checkpoint_names)
        # if both sides have the same number of tensors, they map one to one, regardless of their sizes
        parts = forms if count == len(forms) else list(common.chunk(count))
        return [_rearranged(part, _reversed(self.checkpoint_layout), sizes).contiguous() for part in parts]


def read_only(*rules: Rule) -> tuple[Rule, ...]:
    """Return copies of the rules that are used only for reading."""
    return tuple(replace(rule, read_only=True) for rule in rules)


def spellings(*rules: Rule) -> tuple[Rule, ...]:
    """Combine alternative rules for the same tfkit tensors; only the first is used for writing."""
    return (*rules[:1], *read_only(*rules[1:]))


@cache
def _compiled(template: str) -> re.Pattern[str]:
    """Compile a template to a regular expression with one group per placeholder."""
    parts = re.split(r"\{(\w+)\}", template)
    text = "".join(
        re.escape(part) if index % 2 == 0 else f"(?P<{part}>{WORDS.get(part, '[0-9]+')})"
        for index, part in enumerate(parts)
    )
    return re.compile(text)


def matches(templates: Iterable[str], name: str) -> bool:
    """True if `name` matches one of the templates."""
    return any(_compiled(template).fullmatch(name) is not None for template in templates)


def _placeholders(template: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", template)


def _joined(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _rearranged(tensor: Tensor, layout: str, sizes: Sizes) -> Tensor:
    """Apply an einops pattern; for a bias, drop the axis `width` from it."""
    if not layout:
        return tensor
    before, _, after = layout.partition("->")
    axes = re.findall(r"\([^)]*\)|\S+", before)
    if tensor.dim() == len(axes) - 1:
        layout = re.sub(r"\bwidth\b", "", layout)
        before, _, after = layout.partition("->")
    named = set(re.findall(r"\w+", before + after))
    out: Tensor = rearrange(tensor, layout, **{name: size for name, size in sizes.items() if name in named})
    return out


def _reversed(layout: str) -> str:
    before, _, after = layout.partition("->")
    return f"{after.strip()} -> {before.strip()}" if layout else ""


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
