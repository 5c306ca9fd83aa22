"""The classes of a recorded model: calls with equal bodies are one class; numbers that differ are its arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from tfkit.functional.dropout import Dropout
from tfkit.plain.expressions import MARK, mark
from tfkit.plain.inputs import Unprintable
from tfkit.plain.lines import Forward
from tfkit.plain.record import is_leaf, persistent, weighs
from tfkit.plain.values import Scope, Value, within
from tfkit.plain.watch import Recording, rate

RESERVED = {"F", "nn", "torch", "Tensor"}
ROLES = {"width": "width", "rows": "rows", "": "value", "index": "value", "dim": "value", "shape": "value"}


@dataclass(frozen=True)
class Instance:
    """Call of a class: its group, and all numbers in it."""

    group: int
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class Listed:
    """A list of modules; `shared` if all are one."""

    children: tuple[Child, ...]
    shared: bool


@dataclass(frozen=True)
class Keyed:
    """Modules or weights by name, in an nn.ModuleDict or nn.ParameterDict."""

    kind: str
    names: tuple[str, ...]
    children: tuple[Child, ...]


Child = str | Instance | Listed | Keyed


@dataclass
class Pattern:
    """Modules with equal bodies but for numbers."""

    scope: Scope
    children: dict[str, Child]
    own: list[str]  # statements of __init__ for weights, in order
    body: Forward | None
    instances: list[tuple[tuple[str, ...], nn.Module | None]] = field(default_factory=list)
    comments: list[list[str]] = field(default_factory=list)
    name: str = ""
    arguments: dict[int, str] = field(default_factory=dict)  # argument name by the index of the number


def flat(child: Child) -> str:
    """Return a text that is equal for children that are made equally."""
    if isinstance(child, Instance):
        return f"«{child.group}:{''.join(child.numbers)}»"
    if isinstance(child, Listed):
        return f"[{','.join(map(flat, child.children))}]{child.shared}"
    if isinstance(child, Keyed):
        return f"{child.kind}{child.names}({','.join(map(flat, child.children))})"
    return child


def inside(child: Child) -> Iterator[str | Instance]:
    """Yield the texts and classes in a child, in the order of their numbers."""
    if isinstance(child, (str, Instance)):
        yield child
    else:
        for one in child.children:
            yield from inside(one)


def empty(tensor: Tensor) -> str:
    """Write an uninitialized tensor."""
    dtype = "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"
    return f"torch.empty({', '.join(mark(size, 'width') for size in tensor.shape) or '()'}{dtype})"


def numbers(text: str) -> tuple[str, ...]:
    """Return the marked numbers of a text."""
    return tuple(match[0] for match in MARK.finditer(text))


class Classes:
    """Classes and functions of a recording, in dependency order."""

    def __init__(self, recording: Recording, constant: Callable[[str, str], str]) -> None:
        self.recorder, self.root, self.result = recording.recorder, recording.root, recording.result
        self.model: nn.Module = recording.root.module  # type: ignore[assignment]
        self.constant = constant
        self.groups: list[Pattern] = []
        self.keys: dict[str, int] = {}
        self.made: dict[int, Instance | str] = {}
        self.scopes: dict[int, Scope] = {}
        for scope in self.root.under():
            if scope.module is not None:
                self.scopes.setdefault(id(scope.module), scope)
        self.of(self.root)
        for scope in self.root.under():
            one, first = self.of(scope), self.of(self.scopes.get(id(scope.module), scope))
            if isinstance(one, Instance) and isinstance(first, Instance) and one.group != first.group:
                raise Unprintable(f"{scope.path} is called in two ways, which cannot be printed as one class")
        self._names()
        for group in self.groups:
            self._arguments(group)

    def of(self, scope: Scope) -> Instance | str:
        """Return the constructor of a scope's module, grouped with equal ones."""
        if id(scope) not in self.made:
            self.made[id(scope)] = self._usual(scope) or self._grouped(scope)
        return self.made[id(scope)]

    def _grouped(self, scope: Scope) -> Instance:
        for step in scope.steps:
            if step.child is not None:
                self.of(step.child)
        children, own = ({}, []) if scope.module is None else self._members(scope.module, scope)
        results = [self.result] if scope.parent is None else scope.outs
        body = None
        if scope.steps or scope.parent is None:
            body = self._body(scope, results)
        made = "\n".join([*(f"{name}={flat(child)}" for name, child in children.items()), *own])
        lines = "\n".join([", ".join(body.parameters), *(line.text for line in body.lines)]) if body else ""
        # a function has no arguments beside its tensors
        key = made + "\0" + lines if scope.module is None else MARK.sub("⟦⟧", made + "\0" + lines)
        group = self.keys.setdefault(key, len(self.groups))
        if group == len(self.groups):
            self.groups.append(Pattern(scope, children, own, body))
        found = numbers(made) + numbers(lines)
        self.groups[group].instances.append((found, scope.module))
        self.groups[group].comments.append([line.comment for line in body.lines] if body else [])
        return Instance(group, found)

    def _body(self, scope: Scope, results: Sequence[Value]) -> Forward:
        def module(path: str) -> str:
            return f"self.{self.access(path, scope.path)}"

        def weight(value: Value) -> str:
            return module(next(path for path in value.paths if within(path, scope.path)))

        try:
            return Forward(scope, self.model, results, module, weight, self._shape)
        except Unprintable as error:
            raise Unprintable(f"{type(scope.module).__name__}: {error}") from error

    def _usual(self, scope: Scope) -> str | None:
        """Return torch's own module if the body is exactly a norm or a linear layer."""
        steps, own = scope.steps, {} if scope.module is None else dict(persistent(scope.module))
        if len(steps) != 1 or steps[0].name not in ("layer_norm", "rms_norm", "linear") or len(scope.inputs) != 1:
            return None
        step = steps[0]
        weights = [str(value.paths[0]).rsplit(".", 1)[-1] for value in step.values() if value.paths]
        if weights != list(own) or weights not in (["weight"], ["weight", "bias"]):
            return None
        sizes = ", ".join(mark(size, "width") for size in reversed(own["weight"].shape))
        plain = ", bias=False" if len(own) == 1 else ""
        if step.name == "linear":
            return f"nn.Linear({sizes}{plain})"
        eps = mark(step.kwargs.get("eps") or next(one for one in step.args if isinstance(one, float)), "eps")
        if step.name == "layer_norm":
            return f"nn.LayerNorm({sizes}, eps={eps}{plain})"
        return f"nn.RMSNorm({sizes}, eps={eps})" if plain else None

    def _members(self, module: nn.Module, scope: Scope) -> tuple[dict[str, Child], list[str]]:
        """Return the children of a class by name, and the statements that make its weights."""
        drops = {step.path for step in scope.steps if step.kind == "dropout"}
        children: dict[str, Child] = {}
        firsts: dict[nn.Module, str] = {}
        for name, child in module._modules.items():
            path = f"{scope.path}.{name}" if scope.path else name
            if child is not None and (weighs(child) or path in drops):
                first = firsts.setdefault(child, name)
                children[name] = self.child(child) if first == name else f"self.{first}"
        own = []
        for name, tensor in persistent(module):
            is_weight = isinstance(tensor, nn.Parameter)
            own.append(
                f"self.{name} = nn.Parameter({empty(tensor)})"
                if is_weight
                else f'self.register_buffer("{name}", {empty(tensor)})'
            )
        if scope.parent is None:
            own += list(self._ties())
        return children, own

    def child(self, module: nn.Module) -> Child:
        if id(module) in self.scopes:
            return self.of(self.scopes[id(module)])
        if isinstance(module, nn.ModuleList):
            made = tuple(map(self.child, module))
            return Listed(made, len(made) > 1 and len(set(map(id, module))) == 1)
        if isinstance(module, (Dropout, nn.Dropout)):
            return f"nn.Dropout({mark(rate(module), 'dropout')})"
        if isinstance(module, nn.Linear) and module.weight.dim() == 2:
            sizes = f"{mark(module.in_features, 'width')}, {mark(module.out_features, 'width')}"
            return f"nn.Linear({sizes}{'' if module.bias is not None else ', bias=False'})"
        if is_leaf(module) and not isinstance(module, nn.Linear):
            return f"nn.{type(module).__name__}({self._options(module)})"
        children: list[tuple[str, Child]] = [
            (name, self.child(one)) for name, one in module.named_children() if weighs(one)
        ]
        tensors: list[tuple[str, Child]] = [(name, empty(one)) for name, one in persistent(module)]
        if children and tensors:
            return self._grouped(Scope(module, "", self.root))
        if isinstance(module, nn.ParameterList):
            return f"nn.ParameterList([{', '.join(map(empty, module))}])"
        members = dict(tensors or children)
        return Keyed(f"nn.{'Parameter' if tensors else 'Module'}Dict", tuple(members), tuple(members.values()))

    def _options(self, module: nn.Module) -> str:
        """Write the arguments of a module of torch."""
        if isinstance(module, nn.Sequential):
            return ", ".join(flat(self.child(one)) for one in module)
        options = re.sub(r"=([a-z]\w*)", r'="\1"', module.extra_repr())
        if isinstance(module, nn.Embedding):
            sizes = f"{mark(module.num_embeddings, 'rows')}, {mark(module.embedding_dim, 'width')}"
            return ", ".join([sizes, *options.split(", ")[2:]])
        return options

    def _ties(self) -> Iterator[str]:
        """Yield the statements that share weights, without those shared in a list of modules, and that freeze some."""
        for first, *others in self.recorder.tied:
            for other in others:
                if not self._shared(first.split("."), other.split(".")):
                    yield f"self.{self.access(other, '')} = self.{self.access(first, '')}"
        for path, module in self.model.named_modules():
            for name, tensor in persistent(module):
                if not tensor.requires_grad and (isinstance(tensor, nn.Parameter) or isinstance(module, nn.Linear)):
                    yield f"self.{self.access(f'{path}.{name}', '')}.requires_grad_(False)"

    def _shared(self, one: Sequence[str], other: Sequence[str]) -> bool:
        """True if both paths go through one module that has two names, or is all modules of a list."""
        for end in range(1, min(len(one), len(other))):
            paths, folder = (".".join(one[:end]), ".".join(other[:end])), ".".join(one[: end - 1])
            if paths[0] != paths[1] and self.model.get_submodule(paths[0]) is self.model.get_submodule(paths[1]):
                parent = self.model.get_submodule(folder)
                siblings = one[: end - 1] == other[: end - 1]
                return siblings and (not isinstance(parent, nn.ModuleList) or len(set(map(id, parent))) == 1)
        return False

    def access(self, path: str, base: str) -> str:
        """Write the path of a module or weight relative to the class at `base`."""
        names = path.removeprefix(base).removeprefix(".").split(".")
        here, written = base, names[0]
        for name, following in pairwise(names):
            here = f"{here}.{name}" if here else name
            module = self.model.get_submodule(here)
            if isinstance(module, (nn.ModuleList, nn.ParameterList)):
                written += f"[{following}]"
            else:
                written += f".{following}" if self._is_class(module) else f'["{following}"]'
        return written

    def _is_class(self, module: nn.Module) -> bool:
        if id(module) in self.scopes:
            return True
        if isinstance(module, nn.Linear):
            return module.weight.dim() == 2
        ours = not type(module).__module__.startswith("torch.nn")
        both = bool(persistent(module)) and any(map(weighs, module.children()))
        return both if ours else is_leaf(module)

    def _shape(self, value: Value) -> str:
        """Write the shape of a value, [batch, time, d_model]; nothing if an axis is a multiple of the batch."""
        lengths = {size: name for name, size in self.recorder.lengths.items()}
        batch = self.recorder.lengths["batch"]
        lengths |= {batch * size: "tokens" for size in self.recorder.lengths.values()}
        if len(value.shape) < 2 or any(size % batch == 0 and size not in lengths for size in value.shape):
            return ""
        return f"[{', '.join(lengths.get(size) or mark(size, 'shape') for size in value.shape)}]"

    def _names(self) -> None:
        """Name the classes after their parts, or the stack and the place if there are several of a part."""
        kinds = Counter(type(group.scope.module).__name__ for group in self.groups)
        taken = {*RESERVED, *(kind for kind, count in kinds.items() if count == 1)}
        for group in self.groups:
            wanted = self._candidates(group)
            own = kinds[wanted[0]] == 1
            number = 2
            while wanted[0] in taken and not own:
                wanted = wanted[1:] or [f"{type(group.scope.module).__name__}{number}"]
                number += 1
            group.name = wanted[0]
            taken.add(group.name)

    def _candidates(self, group: Pattern) -> list[str]:
        """Return names for a class, best first."""
        scope, kind = group.scope, type(group.scope.module).__name__
        names = scope.path.split(".")
        side, place = names[0].title(), "" if names[-1].isdigit() else names[-1].title().replace("_", "")
        if scope.function:
            return [scope.function]
        if kind == "Stack":
            return [f"Transformer{side}"]
        if kind == "Layer":
            layers = [one for one in self.groups if one.name and type(one.scope.module).__name__ == "Layer"]
            others = {part for layer in layers for part in self._parts(layer)}
            return [f"{side}Layer", *(f"{part}Layer" for part in self._parts(group) if part not in others)]
        return [kind, place or kind, f"{place}{kind}", f"{side}{kind}"]

    def _parts(self, group: Pattern) -> list[str]:
        return [self.groups[one.group].name for one in group.children.values() if isinstance(one, Instance)]

    def _arguments(self, group: Pattern) -> None:
        """Name the numbers that differ between the instances of a class; equal columns of numbers are one argument."""
        if group.scope.module is None:
            return
        names: dict[tuple[str, ...], str] = {}
        taken = {*group.children, *(name for name, _ in persistent(group.scope.module))}
        taken |= set(group.body.names.values() if group.body else ())
        wanted = [name for child in group.children.values() for one in inside(child) for name in self._wanted(one)]
        for place, column in enumerate(zip(*(found for found, _ in group.instances), strict=True)):
            if len(set(column)) > 1 and column not in names:
                name = base = (wanted[place] if place < len(wanted) else "") or self._attribute(group, column)
                number = 2
                while name in taken:
                    name, number = f"{base}_{number}", number + 1
                names[column] = name
                taken.add(name)
            if len(set(column)) > 1:
                group.arguments[place] = names[column]

    def _wanted(self, one: str | Instance) -> list[str]:
        """Return the argument that each number of a child is, or "" if it is none yet."""
        if isinstance(one, str):
            return [""] * len(numbers(one))
        return [self.groups[one.group].arguments.get(place, "") for place in range(len(one.numbers))]

    def _attribute(self, group: Pattern, column: Sequence[str]) -> str:
        """Name a number by the option or attribute of the modules that has it, else by its role."""
        role, _ = column[0].strip("⟦⟧").split("|")
        found: set[str] | None = None
        for number, (_, module) in zip(column, group.instances, strict=True):
            options = dict(vars(module).get("config", ()))
            holders = {**options, **{name: one for name, one in vars(module).items() if name[0] != "_"}}
            same = {name for name, one in holders.items() if type(one) in (int, float) and f"|{one!r}⟧" in number}
            found = same if found is None else found & same
        return min(found or (), default=ROLES.get(role, role))
