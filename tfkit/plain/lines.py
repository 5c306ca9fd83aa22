"""The lines of a forward: which steps are written into others, what variables are called, and loops over layers."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from torch import Tensor, nn

from tfkit.plain.expressions import MARK, Phrasing, mark
from tfkit.plain.record import LAYER
from tfkit.plain.values import Operation, Scope, Value, sized_in

# names that say nothing, and names that the text needs
WEAK = {"x", "y", "a", "b", "t", "out", "made", "turned", "joined", "found", "result", "rows", "tensor", "merged"}
TAKEN = {"self", "F", "nn", "torch", "rearrange", "repeat", "reduce", "math", "input", "range", "zip", "len", "layer"}
TAKEN |= {"batch", "time", "kind", "kinds", "row", "place", *keyword.kwlist}
SHORT, SHORT_WEAK, RETURNED = 26, 72, 96  # most characters of a step that is written into another one
NAME = 6  # characters of a name, about
END = 1 << 30  # index after all lines


@dataclass
class Line:
    """A statement, its indentation within the body, and the shape that it makes."""

    text: str
    indent: int = 0
    comment: str = ""


@dataclass(eq=False)
class Unit:
    """Steps that are one statement: a step, or the calls of all layers of a list."""

    steps: list[Operation]
    uses: list[Value] = field(init=False)
    outs: list[Value] = field(init=False)
    sized: set[Value] = field(init=False)  # values that are written more than once

    def __post_init__(self) -> None:
        first, last = self.steps[0], self.steps[-1]
        more = [value for step in self.steps[1:] for value in self.inputs(step)[1:]]
        self.uses = [*self.inputs(first), *dict.fromkeys(more)]
        self.outs = last.child.outs if last.child is not None and last.kind == "call" else last.outs
        self.sized = set(sized_in([first.args, first.kwargs])) | (set(self.uses) if first.kind == "experts" else set())
        if self.is_loop:
            self.sized.add(self.uses[0])

    @staticmethod
    def inputs(step: Operation) -> list[Value]:
        """Return the tensors that a step reads, without weights."""
        read = step.child.inputs if step.child is not None and step.kind == "call" else step.values()
        return [value for value in read if not value.paths]

    @property
    def is_loop(self) -> bool:
        return len(self.steps) > 1

    @property
    def is_block(self) -> bool:
        return self.is_loop or self.steps[0].kind == "experts"

    @property
    def only(self) -> Value | None:
        """The one tensor that it makes, if it is an expression."""
        return None if self.is_block or len(self.outs) != 1 or self.steps[0].many else self.outs[0]


def units(scope: Scope, model: nn.Module) -> list[Unit]:
    """Group the steps of a scope: calls of all layers of a list, each on the result of the one before, are a loop."""
    found, index = [], 0
    while index < len(scope.steps):
        count = _chain(scope.steps, index, model)
        found.append(Unit(scope.steps[index : index + count]))
        index += count
    return found


def _chain(steps: Sequence[Operation], index: int, model: nn.Module) -> int:
    first = steps[index].child
    if first is None or first.module is None or not LAYER.search(f".{first.path}"):
        return 1
    folder, count, before = first.path.rsplit(".", 1)[0], 0, None
    for step in steps[index:]:
        child = step.child
        fits = child is not None and child.path == f"{folder}.{count}" and len(child.outs) == 1 and child.inputs
        if not fits or child is None or before not in (None, child.inputs[0]):
            break
        count, before = count + 1, child.outs[0]
    return count if count == len(list(model.get_submodule(folder).children())) else 1


class Forward:
    """The forward of a scope. `results` are returned; `parameters` are its arguments, and `lines` the statements."""

    def __init__(
        self,
        scope: Scope,
        model: nn.Module,
        results: Sequence[Value],
        module: Callable[[str], str],
        weight: Callable[[Value], str],
        shape: Callable[[Value], str],
    ) -> None:
        self.scope, self.results, self.weight, self.shape = scope, list(results), weight, shape
        self.module = module
        self.units = units(scope, model)
        self.streams = {unit.uses[0] for unit in self.units if unit.is_loop}
        starts = scope.inputs if scope.parent is not None else scope.given
        self.names: dict[Value, str] = {}
        self.holder: dict[str, Value] = {}
        self.inline = self._inlined()
        self.makers = {unit.only: unit for unit in self.units if unit.only is not None}
        self.kept = [unit for unit in self.units if unit.only is None or unit.only not in self.inline]
        self.last = dict.fromkeys(self._deep(self.results), END)
        for index in reversed(range(len(self.kept))):
            unit = self.kept[index]
            for use in unit.uses:  # a loop reads all but the stream in every turn
                for value in self._deep([use]):
                    self.last.setdefault(value, index + (unit.is_loop and use is not unit.uses[0]))
        self.parameters = [self._new(value, -1) for value in starts]
        device = f"{self.parameters[0]}.device" if self.parameters else "None"
        self.writer = Phrasing(self.written, module, device)
        self.lines = [line for index, unit in enumerate(self.kept) for line in self._statement(unit, index)]
        self.lines.append(self._return())

    def written(self, value: Value) -> str:
        """Write a value: a weight, a variable, or the expression that makes it."""
        if value.paths:
            return self.weight(value)
        if value in self.inline:
            return self.writer.step(self.makers[value].steps[0])
        return self.names[value]

    def _inlined(self) -> set[Value]:
        """Choose the values that are used once and short, so that their expression is written where they are used."""
        count = Counter([*self.results, *(value for unit in self.units for value in unit.uses)])
        sized = {value for unit in self.units for value in unit.sized}
        lengths: dict[Value, int] = {}
        inline: set[Value] = set()
        guess = Phrasing(lambda value: "x" * lengths.get(value, NAME), self.module, "x.device")
        for unit in self.units:
            value = unit.only
            if value is None or count[value] != 1:
                continue
            length = len(MARK.sub("0.00", guess.step(unit.steps[0])))  # equal for layers that differ in a number
            weak = self._pick(value) in WEAK or not value.names
            returned = self.results == [value] and length < RETURNED
            short = length < (SHORT_WEAK if weak else SHORT)
            if returned or (short and value not in sized):
                inline.add(value)
                lengths[value] = length
        return inline

    def _deep(self, values: Sequence[Value]) -> Iterator[Value]:
        """Yield the variables that expressions of these values name."""
        for value in values:
            if value in self.inline:
                yield from self._deep(self.makers[value].uses)
            elif not value.paths:
                yield value

    def _statement(self, unit: Unit, index: int) -> Iterator[Line]:
        step = unit.steps[0]
        if unit.is_block:
            yield from self._loop(unit, index) if unit.is_loop else self._experts(step, index)
            return
        text = self.writer.step(step)
        names = [self._new(value, index) if value in self.last else "_" for value in unit.outs]
        target = ", ".join(names) + "," * (step.many and len(names) == 1)
        if step.nested is not None:
            left = iter(names)
            target = ", ".join(_nested(one, left) for one in step.nested)
        yield Line(f"{target} = {text}", comment=self._comment(unit.only, unit.uses, text))

    def _return(self) -> Line:
        values = ", ".join(map(self.written, self.results))
        only = self.results[0] if len(self.results) == 1 and self.results[0] in self.inline else None
        return Line(f"return {values}", comment=self._comment(only, list(self._deep(self.results)), values))

    def _comment(self, value: Value | None, uses: Sequence[Value], text: str) -> str:
        """Return the shape of a result if no tensor that it is made from has it."""
        if value is None or self.scope.module is None or text.startswith(("rearrange(", "repeat(", "self.")):
            return ""
        shape = self.shape(value)
        return "" if shape in [self.shape(one) for one in self._deep(uses)] else shape

    def _loop(self, unit: Unit, index: int) -> Iterator[Line]:
        """Write a loop over layers, and before it the tensors that each kind of layer reads."""
        first, layers = unit.uses[0], self.module(str(unit.steps[0].path).rsplit(".", 1)[0])
        more = [tuple(Unit.inputs(step)[1:]) for step in unit.steps]
        kinds = list(dict.fromkeys(more))
        texts = [", ".join(map(self.written, kind)) for kind in kinds]
        before = self.written(first)
        name = self._new(unit.outs[0], index)
        if before != name:
            yield Line(f"{name} = {before}")
        if len(kinds) == 1:
            yield Line(f"for layer in {layers}:")
            yield Line(f"{name} = layer({', '.join([name, *filter(None, texts)])})", 4)
            return
        listed = ", ".join(f"({text}{',' * (len(kind) == 1)})" for text, kind in zip(texts, kinds, strict=True))
        yield Line(f"kinds = [{listed}]")
        yield Line(f"for layer, kind in zip({layers}, {repeated([str(kinds.index(one)) for one in more])}):")
        yield Line(f"{name} = layer({name}, *kinds[kind])", 4)

    def _experts(self, step: Operation, index: int) -> Iterator[Line]:
        """Write the loop over experts, each applied to the rows that chose it."""
        rows, chosen, weights = map(self.written, step.args)
        name = self._new(step.outs[0], index)
        given = f"{rows}[row]" + (f" * {weights}[row, place, None]" if step.name == "input" else "")
        yield Line(f"{name} = {rows}.new_empty(*{chosen}.shape, {rows}.shape[-1])", comment="[tokens, active, width]")
        yield Line(f"for expert in range({mark(step.function, 'num_experts')}):")
        yield Line(f"row, place = torch.where({chosen} == expert)", 4)
        yield Line(f"{name}[row, place] = {self.module(str(step.path))}({given}, expert)", 4)

    def _pick(self, value: Value) -> str:
        """Choose a name from the variables that held the value here, in inner scopes, or in outer ones."""
        if value in self.streams:
            return "x"
        own = [name for scope, name in value.names if scope is self.scope and name not in TAKEN]
        inner = [name for scope, name in value.names if scope is not None and scope.depth > self.scope.depth]
        for pool in (own, inner):
            if strong := [name for name in pool if name not in WEAK and name not in TAKEN]:
                return strong[0]
        if self.scope.inputs[:1] == [value] and own:
            return own[0]
        usual = value.usual if value.usual and value.usual not in TAKEN and not value.usual.isdigit() else None
        given = value in self.scope.inputs and self.scope.parent is not None
        outer = [name.removeprefix("decoder_") for _, name in value.names if name not in WEAK | TAKEN] if given else []
        return next(name for name in (usual, *outer, *own, *inner, "x") if name and name not in TAKEN)

    def _new(self, value: Value, now: int) -> str:
        """Name a value that is made by line `now`; names whose values are not read after it are free."""
        base = name = self._pick(value)
        number = 2
        while name in self.holder and self.holder[name] is not value and self.last.get(self.holder[name], -1) > now:
            name, number = f"{base}_{number}", number + 1
        self.names[value], self.holder[name] = name, value
        return name


def _nested(one: object, names: Iterator[str]) -> str:
    if not isinstance(one, (tuple, list)):
        return next(names) if isinstance(one, Tensor) else "_"
    return f"({', '.join(_nested(each, names) for each in one)})"


def repeated(words: Sequence[str]) -> str:
    """Write a list of words with its repetitions, in the shortest way: [a] * 2 + [b, c] * 7."""
    words = list(words)
    written = [_runs(words)]
    for start in range(len(words)):
        for period in range(1, (len(words) - start) // 2 + 1):
            count = (len(words) - start) // period
            unit, rest = words[start : start + period], words[start + count * period :]
            if words[start:] == unit * count + rest and len(rest) <= period:
                once = f"({_runs(unit)})" if " + " in _runs(unit) else _runs(unit)
                parts = (_runs(words[:start]), f"{once} * {count}", _runs(rest))
                written.append(" + ".join(filter(None, parts)))
    return min(written, key=len)


def _runs(words: Sequence[str]) -> str:
    """Write a list of words with the repetitions of each."""
    groups = [(word, len(list(same))) for word, same in groupby(words)]
    joined = " + ".join(f"[{word}]" + (f" * {count}" if count > 1 else "") for word, count in groups)
    return min(joined, f"[{', '.join(words)}]" if words else "", key=len)
