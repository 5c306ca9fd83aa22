"""The sandboxed Jinja environment of chat templates, with limits on loops and on the length of the output."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import wraps
from typing import NoReturn

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from tfkit.core.errors import DataError

LOOPS = 100_000  # maximum number of loop iterations and macro calls per rendering, and maximum length of a range
TIMES, MORE = 100, 100_000  # maximum output in characters: TIMES * characters of the messages + MORE
PRODUCT = 100_000_000  # maximum product of a text's length and the largest argument of a filter or method on it
BITS = 4096  # maximum size of an integer in bits
WIDE = re.compile(r"%[-+ #0]*(\d*\.)?\d{6}|\{[^{}]*[:.][^{}]*\d{6}")  # matches a large width in a format string


class _JinjaCode(CodeGenerator):
    """Code generator that delegates the operator `~` to the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox with the options of transformers. Raises DataError if a template exceeds a limit."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _JinjaCode

    def __init__(self) -> None:
        self._left = threading.local()  # remaining budget of the current rendering, one per thread
        self.start([])
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], finalize=self._written
        )
        self.globals["range"] = self._range
        del self.globals["lipsum"]
        for name in self.filters.keys() - {"length", "count", "first", "last"}:
            self.filters[name] = self.guarded(self.filters[name])

    def start(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Reset the limits for rendering these messages."""
        characters = sum(len(text) for message in messages for text in message.values())
        self._left.most = self._left.characters = TIMES * characters + MORE
        self._left.given = {id(message) for message in messages}
        self._left.loops = self._left.numbers = LOOPS

    def text_of(self, template: Template, names: dict[str, object]) -> str:
        """Render a template. Raise DataError if the text is too long."""
        parts, length = [], 0
        for part in template.generate(names):
            length += len(part)
            if length > self._left.most:
                self._too_long()
            parts.append(part)
        return "".join(parts)

    def tick(self) -> None:
        """Count a loop iteration. Raise DataError beyond the limit."""
        self._left.loops -= 1
        if self._left.loops < 0:
            self._too_often()

    def joined(self, values: tuple[object, ...]) -> object:
        """Concatenate the operands of `~`. Raise DataError if the text is too long."""
        self._hold(values)
        return self._bounded(str_join(values))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute an operator. Raise DataError if the result is too large."""
        if operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(times, int) and len(one) * times > self._left.most:
                    self._too_long()
        elif operator == "%":
            self._check(left, [right])
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._fits(left.bit_length() * right)
        return self._bounded(super().call_binop(context, operator, left, right))

    def call(  # named as in Jinja, so that no keyword argument conflicts
        __self, __context: Context, __obj: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """Call a function or method. Raise DataError if the result is too large."""
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        __self._check(getattr(method, "__self__", None), [*args, *kwargs.values()])
        return __self._bounded(super().call(__context, __obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template, adding a `tick` to the body of every loop and macro."""
        tree = super()._parse(source, name, filename)
        blocks: list[nodes.For | nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.For)]
        for block in [*blocks, *tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]:
            call = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            block.body.insert(0, nodes.ExprStmt(call).set_lineno(block.lineno).set_environment(self))
        return tree

    def _range(self, *args: int) -> range:
        numbers = safe_range(*args)
        self._left.numbers -= len(numbers)
        return numbers if self._left.numbers >= 0 else self._too_often()

    def _written(self, value: object) -> object:
        """Count the characters of an output, including outputs captured in a variable."""
        self._hold(value)
        self._left.characters -= len(str(value))
        return value if self._left.characters >= 0 else self._too_long()

    def guarded(self, function: Callable[..., object]) -> Callable[..., object]:
        """Wrap a filter so that it raises DataError if its arguments or its result are too large."""

        @wraps(function)
        def guarded(*args: object, **kwargs: object) -> object:
            first = hasattr(function, "jinja_pass_arg")  # the first argument is Jinja's context, not a value
            self._check(args[first], [*args[first + 1 :], *kwargs.values()])
            return self._bounded(function(*args, **kwargs))

        return guarded

    def _check(self, value: object, args: list[object]) -> None:
        """Raise DataError if widths or counts in the arguments are too large."""
        self._hold([value, *args])
        if not isinstance(value, str | list | tuple):
            return
        several = [one for arg in args for one in (arg if isinstance(arg, tuple) else (arg,))]
        sizes = [one if isinstance(one, int) else len(one) if isinstance(one, str) else 0 for one in several]
        if max(sizes, default=0) * max(len(value), 1) > PRODUCT:
            self._too_long()
        if several and isinstance(value, str) and WIDE.search(value):
            self._too_long()

    def _hold(self, value: object) -> None:
        """Raise DataError if values are too long in total; a list may repeat one text many times."""
        size, inside = 0, [value]
        while inside:
            one = inside.pop()
            if isinstance(one, str | list | tuple | dict) and id(one) not in self._left.given:
                size += len(one)
                if size > self._left.most:
                    self._too_long()
                if not isinstance(one, str):
                    inside.extend((*one, *one.values()) if isinstance(one, dict) else one)

    def _bounded(self, value: object) -> object:
        if isinstance(value, str | list | tuple) and len(value) > self._left.most:
            self._too_long()
        if isinstance(value, int):
            self._fits(value.bit_length())
        return value

    def _fits(self, bits: int) -> None:
        if bits > BITS:
            raise DataError(f"the chat template computes a number of more than {BITS:,} bits")

    def _too_long(self) -> NoReturn:
        raise DataError(f"the chat template writes more than {self._left.most:,} characters")

    def _too_often(self) -> NoReturn:
        raise DataError(f"the chat template loops more than {LOOPS:,} times")
