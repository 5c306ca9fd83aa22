"""Weight conversion by a family's rules, which must cover all tensors on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.errors import DataError
from tfkit.core.output import some
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.tensors import Sizes, matches

# old suffixes of tensor names
SPELLINGS = {".gamma": ".weight", ".beta": ".bias"}


@dataclass
class ConvertedTensors:
    """Converted tensors, and the names of checkpoint tensors that no output uses (`unread`)."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


class RenamedTensors(Mapping[str, Tensor]):
    """Checkpoint tensors under the names used in a family's rules, loaded on access."""

    def __init__(self, family: type[Family], checkpoint: Mapping[str, Tensor]) -> None:
        self._names = names_of(family, checkpoint)
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> Tensor:
        return self._checkpoint[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def to_own(
    family: type[Family], checkpoint: Mapping[str, Tensor], required: Mapping[str, torch.Size], blueprint: Blueprint
) -> ConvertedTensors:
    """Convert checkpoint tensors to tfkit tensors with the `required` names and shapes.

    Raise DataError listing mismatches.
    """
    stored = names_of(family, checkpoint)
    names = dict(stored)
    for copy, owner in family.tied.items():  # some files hold only the copy of a tied tensor
        if owner not in names and copy in names and ("head.output.weight" not in required or "embed" in copy):
            names[owner] = names[copy]
    brought = ConvertedTensors()
    used: set[str] = set()
    plans: dict[str, StackPlan] = {plan.side: plan for plan in blueprint.stacks()}
    for rule in family.rules_of(blueprint):
        for binding in rule.bindings(required):
            own = rule.own_names_for(binding)
            if any(name in brought.tensors for name in own) or not all(name in required for name in own):
                continue
            sizes = {**family.sizes, **_sizes_of(plans, own[0])}
            needed = rule.checkpoint_names_for(binding, rule.count(required[own[0]], sizes))
            if not all(name in names for name in needed):
                continue
            tensors = [checkpoint[names[name]] for name in needed]
            try:
                converted = rule.to_own(tensors, [required[name] for name in own], sizes)
            except Exception as error:  # including the error class of einops
                shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(needed, tensors, strict=True))
                why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise DataError(f"{shapes} cannot become {', '.join(own)}: {why}") from None
            brought.tensors |= dict(zip(own, converted, strict=True))
            used.update(needed)
    for name in (name for name in required if name not in brought.tensors and matches(family.zeros, name)):
        brought.tensors[name] = next(iter(brought.tensors.values())).new_zeros(required[name])
    names = {name: given for name, given in names.items() if name in stored or name in used}
    _check_all(family, checkpoint, names, used, required, brought, blueprint)
    return brought


def to_checkpoint(family: type[Family], own: Mapping[str, Tensor], blueprint: Blueprint) -> dict[str, Tensor]:
    """Convert tfkit tensors to checkpoint tensors.

    Raise DataError for tensors without a rule and for names that two rules write.
    """
    result: dict[str, Tensor] = {}
    used: set[str] = set()
    plans: dict[str, StackPlan] = {plan.side: plan for plan in blueprint.stacks()}
    for rule in (rule for rule in family.rules_of(blueprint) if not rule.read_only):
        for binding in rule.bindings(own):
            names = rule.own_names_for(binding)
            if any(name in used for name in names) or not all(name in own for name in names):
                continue
            tensors = [own[name] for name in names]
            written = rule.to_checkpoint(tensors, {**family.sizes, **_sizes_of(plans, names[0])})
            checkpoint_names = rule.checkpoint_names_for(binding, len(written))
            if twice := sorted(result.keys() & set(checkpoint_names)):
                name = f"{family.prefix_of(twice[0], blueprint)}{twice[0]}"
                raise DataError(f"two rules of '{family.part_name}' write {name}; one is {rule}")
            result |= dict(zip(checkpoint_names, written, strict=True))
            used.update(names)
    missed = sorted(set(own) - used)
    if missed:
        raise DataError(f"no rule of '{family.part_name}' covers {some(missed, 12)}")
    return family.prefixed(result, blueprint)


def constants_of(family: type[Family], blueprint: Blueprint, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the constant tensors that the files require, under their names in the files."""
    constants = {name: value.to(dtype) for name, value in family.constants(blueprint).items()}
    return family.prefixed(constants, blueprint)


def _sizes_of(plans: Mapping[str, StackPlan], name: str) -> Sizes:
    """Return the axis sizes that layouts may refer to, for the sublayer that owns tfkit's tensor `name`."""
    side, _, rest = name.partition(".")
    plan = plans.get(side)
    if plan is None or not rest.startswith("layers."):
        return {}
    _, number, sublayer, *_ = rest.split(".")
    layer = plan.layers[plan.order[int(number)]]
    config = next((sub.config for sub in layer.sublayers if sub.name == sublayer), None)
    return {} if config is None else config.axes(plan.shape(plan=layer))


def names_of(family: type[Family], checkpoint: Iterable[str]) -> dict[str, str]:
    """Return a mapping from names in the rules to names in the file."""
    result = {}
    for name in checkpoint:
        plain = name
        for old, new in SPELLINGS.items():
            plain = plain.removesuffix(old) + new if plain.endswith(old) else plain
        result[plain.removeprefix(family.prefix)] = name
    return result


def _check_all(
    family: type[Family],
    checkpoint: Mapping[str, Tensor],
    names: Mapping[str, str],
    used: set[str],
    required: Mapping[str, torch.Size],
    brought: ConvertedTensors,
    blueprint: Blueprint,
) -> None:
    """Raise DataError for unmatched tensors on either side."""
    left = []
    depth = 1 + max(map(_number, required), default=-1) if family.ahead else 0  # deeper layers predict several tokens
    for plain, name in names.items():
        if plain in used or matches(family.ignored, plain):
            continue
        if matches(family.dropped, plain) or (family.ahead and (plain.startswith("mtp.") or _number(plain) >= depth)):
            brought.unread.append(name)
        elif not _is_tied(family, checkpoint, names, plain):
            left.append(name)
    missed = [_with_checkpoint_name(family, name, blueprint) for name in sorted(set(required) - set(brought.tensors))]
    problems = []
    if left:
        problems.append(f"no rule of '{family.part_name}' covers {some(sorted(left), 12)}")
    if missed:
        problems.append(f"missing in the files: {some(missed, 12)}")
    if problems:
        raise DataError("; ".join(problems))


def _with_checkpoint_name(family: type[Family], own: str, blueprint: Blueprint) -> str:
    """Return a tfkit name, followed by the checkpoint name it is read from."""
    for rule in family.rules_of(blueprint):
        for binding in rule.bindings([own]):
            return f"{own} ({', '.join(rule.checkpoint_names_for(binding, 1))})"
    return own


def _number(name: str) -> int:
    """Return the layer index in a name, or -1 outside the layers."""
    match = re.search(r"(?:^|\.)layers\.([0-9]+)\.", name)
    return -1 if match is None else int(match[1])


def _is_tied(family: type[Family], checkpoint: Mapping[str, Tensor], names: Mapping[str, str], plain: str) -> bool:
    """True if a tensor is tied to another. Raise DataError if the file stores different values for the two."""
    owner = family.tied.get(plain)
    if owner is None or owner not in names:
        return False
    if not torch.equal(checkpoint[names[plain]], checkpoint[names[owner]]):
        raise DataError(f"{names[plain]} and {names[owner]} are tied according to config.json, but differ in the files")
    return True
