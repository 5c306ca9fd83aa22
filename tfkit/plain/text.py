"""The text of classes: constructors and forwards, with constants and arguments in place of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from tfkit.core.output import printable
from tfkit.models.layer import Layer
from tfkit.plain.classes import Child, Classes, Instance, Keyed, Listed, Pattern, numbers
from tfkit.plain.expressions import MARK, wrapped
from tfkit.plain.lines import repeated

INDENT = 8


def text(classes: Classes) -> list[str]:
    """Write all classes and functions, one after the other."""
    lines: list[str] = []
    earlier: dict[tuple[object, ...], str] = {}
    for group in classes.groups:
        filler = Filler(classes, group)
        made = filler.constructor()
        body = filler.statements()
        same = (type(group.scope.module), *made)
        base = earlier.get(same) if len(made) > 3 and body else None
        earlier.setdefault(same, group.name)
        lines += ["", "", *_class(group, base, made, body)]
    return lines


class Filler:
    """Writes a group with constants and arguments in place of its numbers, in their order."""

    def __init__(self, classes: Classes, group: Pattern) -> None:
        self.classes, self.group = classes, group
        self.place = 0

    def constructor(self) -> list[str]:
        lines = [f"self.{name} = {self.child(child)}" for name, child in self.group.children.items()]
        lines += [self.fill(text) for text in self.group.own]
        first, count = (
            self.place,
            sum(len(numbers(line.text)) for line in self.group.body.lines) if self.group.body else 0,
        )
        used = dict.fromkeys(self.group.arguments.get(place) for place in range(first, first + count))
        return [*lines, *(f"self.{name} = {name}" for name in used if name)]

    def statements(self) -> list[str]:
        """Write the lines of forward."""
        body = self.group.body
        if body is None:
            return []
        lines = []
        for number, line in enumerate(body.lines):
            same = len({comments[number] for comments in self.group.comments}) == 1
            comment = (
                MARK.sub(lambda found: self.classes.constant(*found.groups()).lower(), line.comment) if same else ""
            )
            comment = "" if re.search(r"[^1\D]|\d\d", comment) else comment  # a number without a name
            lines += wrapped(
                self.fill(line.text, "self."), line.indent + (4 if body.scope.function else INDENT), comment
            )
        return lines

    def fill(self, text: str, prefix: str = "") -> str:
        return MARK.sub(lambda found: self._number(found[0], prefix), text)

    def _number(self, number: str, prefix: str = "") -> str:
        name, self.place = self.group.arguments.get(self.place), self.place + 1
        return f"{prefix}{name}" if name else self.classes.constant(*number.strip("⟦⟧").split("|"))

    def child(self, child: Child) -> str:
        """Write the expression that makes a child."""
        if isinstance(child, str):
            return self.fill(child)
        if isinstance(child, Instance):
            name, options = self.made(child)
            return f"{name}({', '.join(options)})"
        if isinstance(child, Keyed):
            members = zip(child.names, child.children, strict=True)
            inner = ", ".join(f'"{name}": {self.child(one)}' for name, one in members)
            return f"{child.kind}({{{inner}}})"
        return f"nn.ModuleList({self.listed(child)})"

    def made(self, made: Instance) -> tuple[str, list[str]]:
        """Return the name of a class and its arguments."""
        group, written = self.classes.groups[made.group], [self._number(number) for number in made.numbers]
        arguments = {name: written[place] for place, name in group.arguments.items()}
        return group.name, list(arguments.values())

    def listed(self, child: Listed) -> str:
        """Write the modules of a list: equal ones in a loop, with their arguments, or the classes in their order."""
        classes = [one for one in child.children if isinstance(one, Instance)]
        made = [self.made(one) for one in classes] if len(classes) == len(child.children) else []
        texts = [f"{name}({', '.join(options)})" for name, options in made] or list(map(self.child, child.children))
        count = self.classes.constant("num_layers", repr(len(texts)))
        if len(texts) == 1 or not (made or len(set(texts)) == 1):
            return f"[{', '.join(texts)}]"
        if len(set(texts)) == 1:
            return f"[{texts[0]}] * {count}" if child.shared else f"{texts[0]} for _ in range({count})"
        if len({name for name, _ in made}) == 1:
            names = ", ".join(dict.fromkeys(self.classes.groups[classes[0].group].arguments.values()))
            values = [", ".join(options) for _, options in made]
            values = [f"({value})" for value in values] if ", " in names else values
            return f"{made[0][0]}({names}) for {names} in {repeated(values)}"
        kinds = [f"lambda: {text}" if options else name for text, (name, options) in zip(texts, made, strict=True)]
        return f"kind() for kind in {repeated(kinds)}"


def _class(group: Pattern, base: str | None, made: Sequence[str], body: Sequence[str]) -> list[str]:
    """Write a class or a function; a `base` is a class with the same weights."""
    parameters = group.body.parameters if group.body is not None else []
    if group.scope.function:
        return [f"def {group.name}({', '.join(parameters)}):", *body]
    lines = [f"class {group.name}({base or 'nn.Module'}):"]
    if doc := "" if base else described(group.scope.module):
        lines += [f'    """{doc}"""', ""]
    if made and not base:
        arguments = ", ".join(["self", *dict.fromkeys(group.arguments.values())])
        lines += [f"    def __init__({arguments}):", "        super().__init__()"]
        lines += [part for line in made for part in wrapped(line, INDENT)]
        lines += [""] * bool(body)
    if body:
        lines += [f"    def forward({', '.join(['self', *parameters])}):", *body]
    return lines


def described(module: nn.Module | None) -> str:
    """Return the first sentence of what a module computes, with its paper; of a layer, that of its residual layout."""
    if type(module).__name__ == "Stack":
        return ""
    kind = type(module.residual if isinstance(module, Layer) else module)
    return quoted((vars(kind).get("__doc__") or "").strip().split("\n")[0])


def quoted(text: str) -> str:
    """Make a text safe within a docstring."""
    return printable(text).replace("\\", "/").replace('"', "'")
