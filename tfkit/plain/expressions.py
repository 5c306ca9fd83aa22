"""Recorded steps as Python expressions: operators, functions of torch, methods, and lines that are not too long."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
import torch.nn.functional as F

from tfkit.plain.inputs import Unprintable
from tfkit.plain.values import Operation, Size, Value

WIDE = 120  # most characters in a line
BINARY = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "true_divide": "/", "truediv": "/", "floor_divide": "//",
    "floordiv": "//", "remainder": "%", "mod": "%", "matmul": "@", "pow": "**", "and": "&", "or": "|", "xor": "^",
    "lshift": "<<", "rshift": ">>", "bitwise_and": "&", "bitwise_or": "|", "logical_and": "&", "logical_or": "|",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
BINDING = ("== != < <= > >=", "|", "^", "&", "<< >>", "+ -", "* / // % @", "~", "**")  # weakest first
LEVELS = {sign: level for level, signs in enumerate(BINDING, 1) for sign in signs.split()}
ATOM = 10  # names, calls, numbers
UNARY = {"neg": "-", "invert": "~", "bitwise_not": "~", "logical_not": "~"}
PROPERTIES = ("T", "mT", "H", "real", "imag")
MODULES: tuple[tuple[ModuleType, str], ...] = (
    (F, "F"),
    (torch, "torch"),
    *((module, module.__name__) for module in (torch.fft, torch.special, torch.linalg)),
)
FACTORIES = {"arange", "zeros", "ones", "full", "empty", "eye", "linspace", "tensor", "constant"}
MARK = re.compile(r"⟦(\w*)\|([^⟧]*)⟧")


def mark(number: float, role: str = "") -> str:
    """Write a number that may differ between layers; `role` is what it is: an option or an axis."""
    return f"⟦{role}|{number!r}⟧"


def bare(text: str) -> str:
    """Return the text with its numbers unmarked."""
    return MARK.sub(r"\2", text)


class Phrasing:
    """Writes arguments and steps of one scope; `name` looks values up, `module` paths of modules."""

    def __init__(self, name: Callable[[Value], str], module: Callable[[str], str], device: str) -> None:
        self.name, self.module, self.device = name, module, device

    def argument(self, one: object, role: str = "") -> str:
        if isinstance(one, Value):
            return self.name(one)
        if isinstance(one, Size):
            return self.size(one)
        if isinstance(one, bool) or one is None:
            return str(one)
        if isinstance(one, float) and not math.isfinite(one):
            return f'float("{one}")'
        if isinstance(one, (int, float)):
            return mark(int(one) if isinstance(one, int) else one, role)
        if isinstance(one, str):
            return json.dumps(one, ensure_ascii=False)
        if isinstance(one, (list, tuple)):
            inner = ", ".join(self.argument(entry, role) for entry in one)
            return f"[{inner}]" if isinstance(one, list) else f"({inner}{',' * (len(one) == 1)})"
        if isinstance(one, slice):
            ends = ["" if end is None else self.argument(end, "index") for end in (one.start or None, one.stop)]
            first, last = (f" {end} " if re.search(r"[^\w⟦|⟧.-]", end) else end for end in ends)
            return f"{first.lstrip()}:{last.rstrip()}" + (f":{one.step}" if one.step is not None else "")
        if one is Ellipsis:
            return "..."
        if isinstance(one, (torch.dtype, torch.memory_format)):
            return str(one)
        raise Unprintable(f"an argument of type {type(one).__name__} cannot be written")

    def size(self, size: Size) -> str:
        """Write the size of an axis, or a sum or product of sizes."""
        sign, left, right = size.origin
        if sign == "value":
            return self.name(left)
        if sign == "shape":
            return f"{enclosed(self.name(left))}.shape[{right}]"
        if sign == "-" and not left:
            return f"-{self.size(right)}"
        sides = [self.size(side) if isinstance(side, Size) else str(side) for side in (left, right)]
        return f" {sign} ".join(f"({side})" if " " in side and sign != "+" else side for side in sides)

    def step(self, step: Operation) -> str:
        if step.kind == "constant":
            return f"{str(step.function)[:-1]}, device={self.device})"
        if step.child is not None:
            arguments = ", ".join(map(self.name, step.child.inputs))
            return f"{step.child.function or self.module(step.child.path)}({arguments})"
        role = "width" if step.name.endswith("_norm") or step.name.startswith("split") else ""
        args = [self.argument(one, role) for one in step.args]
        axis = "axis_" if step.kind == "einops" else ""
        kwargs = {name: self.argument(one, axis + name) for name, one in step.kwargs.items() if one is not None}
        if step.kind in ("leaf", "dropout"):
            return f"{self.module(str(step.path))}({_joined(args, kwargs)})"
        if step.kind == "einops":
            return f"{step.name}({_joined(args, kwargs)})"
        return self.operation(step, args, kwargs)

    def operation(self, step: Operation, args: list[str], kwargs: dict[str, str]) -> str:
        """Write an operation on tensors: with an operator if there is one."""
        name = step.name
        base = name.strip("_") if name.startswith("__") else name
        if base == "getitem":
            index = step.args[1] if isinstance(step.args[1], tuple) else (step.args[1],)
            return f"{enclosed(args[0])}[{', '.join(self.argument(one, 'index') for one in index)}]"
        if base in BINARY and len(args) == 2 and not kwargs:
            return _binary(BINARY[base], *args)
        if base[:1] == "r" and base[1:] in BINARY and len(args) == 2 and not kwargs:
            return _binary(BINARY[base[1:]], *args[::-1])
        if base in UNARY:
            return UNARY[base] + (args[0] if _level(args[0]) > LEVELS["~"] else f"({args[0]})")
        if name in PROPERTIES:
            return f"{enclosed(args[0])}.{name}"
        while args and args[-1] == "None":
            args.pop()
        return self.function(step, args, kwargs)

    def function(self, step: Operation, args: list[str], kwargs: dict[str, str]) -> str:
        """Write a function of torch, or else a method."""
        name = step.name
        if name == "dropout":
            return f"F.dropout({args[0]}, {[*args[1:2], kwargs.get('p', '0.5')][0]}, self.training)"
        if name == "scaled_dot_product_attention":
            return f"F.{name}({_joined(args[:3], _attention(args[3:], kwargs))})"
        kwargs |= {"training": "self.training"} if kwargs.get("training") == "True" else {}
        args = args[:5] if name == "layer_norm" else args  # without torch.layer_norm's choice of cuDNN
        if name == "arange" and len(args) == 2 and bare(args[0]) == "0":
            args = args[1:]
        if name in FACTORIES:
            kwargs["device"] = self.device
        for module, prefix in MODULES:
            short = re.sub(r"^(fft|special|linalg)_", "", name)
            if getattr(module, short, None) is step.function:
                prefix = "F" if prefix == "torch" and hasattr(F, short) and short not in ("tanh", "sigmoid") else prefix
                return f"{prefix}.{short}({_joined(args, kwargs)})"
        if hasattr(torch.Tensor, name):
            return f"{enclosed(args[0])}.{name}({_joined(args[1:], kwargs)})"
        if name == "log_sigmoid":
            return f"F.logsigmoid({_joined(args, kwargs)})"
        raise Unprintable(f"the function {name} of torch cannot be written")


def _joined(args: Sequence[str], kwargs: dict[str, str]) -> str:
    return ", ".join([*args, *(f"{name}={one}" for name, one in kwargs.items())])


def _attention(rest: Sequence[str], kwargs: dict[str, str]) -> dict[str, str]:
    """Write the options of scaled_dot_product_attention that are not the default."""
    named = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)), **kwargs}
    named = {name: one for name, one in named.items() if bare(one) not in ("None", "0.0", "False")}
    if "dropout_p" in named:
        named["dropout_p"] += " if self.training else 0.0"
    return named


def _binary(sign: str, left: str, right: str) -> str:
    """Write an operator; a side is enclosed if it binds less."""
    level = LEVELS[sign]
    chained = level not in (LEVELS["=="], LEVELS["**"])  # a + b + c is (a + b) + c
    left = left if _level(left) >= level + (not chained) else f"({left})"
    right = right if _level(right) > level else f"({right})"
    simple = sign == "**" and re.fullmatch(r"[\w.-]+", bare(left + right))
    return f"{left}**{right}" if simple else f"{left} {sign} {right}"


def _level(text: str) -> int:
    """Return how strongly the weakest operator outside of brackets binds; 0 for a condition."""
    flat, inner = bare(text), None
    while flat != inner:
        flat, inner = re.sub(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}|\"[^\"]*\"", "_", flat), flat
    words = flat.split(" ")
    found = min([LEVELS.get(word, 0) for word in words[1::2]], default=LEVELS["**"] if "**" in flat else ATOM)
    return min(found, LEVELS["~"]) if flat[:1] in ("-", "~") else found


def enclosed(text: str) -> str:
    """Put an expression into parentheses unless it is a name, a call or a number."""
    return text if _level(text) == ATOM else f"({text})"


def wrapped(text: str, indent: int, comment: str = "") -> list[str]:
    """Break a statement at its last bracket, as black does, if it is too long, and omit a comment that does not fit."""
    line = " " * indent + text
    if len(line) <= WIDE:
        whole = f"{line}  # {comment}" if comment else line
        return [whole if len(whole) <= WIDE else line]
    found = _last_bracket(text)
    if found is None:
        return [line]
    start, end = found
    inner = text[start + 1 : end]
    first, *more = _split(inner, " for ")
    generated = bool(more) and _level(first) == ATOM
    pieces = [first, *(f"for {one}" for one in more)] if generated else _split(inner)
    parts = [" " * (indent + 4) + (" " if generated else ", ").join(pieces)]
    if len(parts[0]) > WIDE:
        comma = "," * (not generated and (len(pieces) > 1 or text[start - 1 : start].isidentifier()))
        if generated and len(pieces[1]) + indent + 4 > WIDE:  # a sum of lists
            pieces = [first, *_split(pieces[1], " + ")]
            pieces[2:] = [f"+ {one}" for one in pieces[2:]]
        parts = [line for piece in pieces for line in wrapped(piece + comma, indent + 4)]
    return [line[: indent + start + 1], *parts, " " * indent + text[end:]]


def _last_bracket(text: str) -> tuple[int, int] | None:
    """Return the start and the end of the last bracket that is not within another and not empty."""
    stack, found = [], None
    for place, letter in enumerate(text):
        if letter in "([{":
            stack.append(place)
        elif letter in ")]}" and stack:
            start = stack.pop()
            if not stack and place > start + 1:
                found = start, place
    return found


def _split(text: str, separator: str = ",") -> list[str]:
    """Split a text where a separator is outside of brackets."""
    pieces, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if not depth and text.startswith(separator, place):
            pieces.append(text[begin:place].strip())
            begin = place + len(separator)
    return [piece for piece in [*pieces, text[begin:].strip()] if piece]
