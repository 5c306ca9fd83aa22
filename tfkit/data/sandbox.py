"""Rendering of chat templates, in a subprocess with bounded time and memory.

The process runs this module. It reads requests as lines of JSON, writes an answer for each, and exits at the end of its
input, and therefore also when its parent process exits.

Text from a message has a twin of the same length in which its characters are hidden. Each operation of a template is
computed for the text and for its twin, so that the twin of the output shows only what the template itself has written.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from datetime import datetime
from functools import wraps
from typing import IO, Any, NoReturn, SupportsIndex

from jinja2 import Template, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from markupsafe import Markup

from tfkit.core.bounds import TEMPLATE_MEMORY, TEMPLATE_TIME
from tfkit.data.chat import HIDDEN, MIXED, THOUGHTS

TIMES, MORE = 100, 100_000  # maximum output in characters: TIMES * characters of the messages + MORE


class Said(str):
    """Text that contains text of a message; `_twin` is its twin."""

    _twin: str

    def __new__(cls, text: str, twin: str | None = None) -> Said:
        said = super().__new__(cls, text)
        said._twin = hidden(text) if twin is None else twin
        return said

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self))

    def __mul__(self, times: SupportsIndex) -> str:
        return Said(str.__mul__(self, times), self._twin * times)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return Said(str.__getitem__(self, key), self._twin[key])

    def __iter__(self) -> Iterator[str]:
        return map(Said, str.__iter__(self), self._twin)


def hidden(text: str, sign: str = HIDDEN) -> str:
    """Hide all characters except white space, quotes and backslashes, which functions treat specially."""
    return re.sub(r"[^\s\"'\\]+", lambda found: sign * len(found[0]), text)


def joined(parts: Iterable[str]) -> str:
    """Concatenate texts and their twins."""
    texts = list(parts)
    text = "".join(texts)
    return Said(text, "".join(map(twins, texts))) if any(isinstance(one, Said) for one in texts) else text


def said(value: Any) -> Any:
    """Mark all texts in a value as texts of a message."""
    if isinstance(value, dict):
        return {Said(name): said(one) for name, one in value.items()}
    return [said(one) for one in value] if isinstance(value, list) else Said(value) if isinstance(value, str) else value


def twins(value: Any) -> Any:
    """Replace all texts in a value with their twins."""
    if isinstance(value, dict):
        return {twins(name): twins(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(twins, value))
    return value._twin if isinstance(value, Said) else value


def holds_said(value: object) -> bool:
    """True if a value may contain text of a message."""
    if isinstance(value, dict):
        value = (*value, *value.values())
    if isinstance(value, list | tuple):
        return any(map(holds_said, value))
    return not (type(value) in (str, int, float, bool) or value is None or isinstance(value, Undefined | Macro | range))


class _JinjaCode(CodeGenerator):
    """Code generator that delegates the operator `~` to the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(environment.finalize, (")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write(")))")


class Generation(Extension):
    """The tag `{% generation %}`, which marks the replies."""

    tags = {"generation"}
    environment: Sandbox

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag as a call of `mark`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Callable[[], str]) -> str:
        """Return the reply and store its span."""
        text, start = caller(), self.environment.length
        self.environment.spans.append((start, start + len(text), text))
        return text


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox with the options of transformers, which tracks text of messages."""

    intercepted_binops = frozenset(("%",))
    code_generator_class = _JinjaCode
    concat = staticmethod(joined)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"], finalize=self.text
        )
        self.length, self.spans = 0, list[tuple[int, int, str]]()
        self.date, self.dated = "", False
        self.filters["tojson"] = _as_json
        self.globals |= {"raise_exception": _refuse, "strftime_now": self._now}
        del self.globals["lipsum"], self.filters["random"]
        for name in self.filters.keys() - {"length", "count", "first", "last"}:
            self.filters[name] = self._tracked_filter(self.filters[name])

    def render(self, template: Template, names: Mapping[str, object], most: int) -> tuple[str, str, object]:
        """Return the text, its twin and the spans of replies. Raise TemplateError if the text is too long."""
        self.length, self.spans, parts = 0, [], list[str]()
        for part in template.generate(names):
            self.length += len(part)
            if self.length > most:
                raise TemplateError(f"writes more than {most:,} characters")
            parts.append(part)
        text = joined(parts)
        if any(text[start:end] != reply for start, end, reply in self.spans):
            raise TemplateError("{% generation %} is inside of a macro or a set block; move it out")
        return text, twins(text), [(start, end) for start, end, _ in self.spans]

    def text(self, value: object) -> str:
        """Convert an output to text."""
        return value if isinstance(value, str) else Said(str(value)) if holds_said(value) else str(value)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute a remainder, or format a text."""
        return self._tracked(lambda both, _: both[0] % both[1], [left, right], {})

    def call(  # named as in Jinja, so that no keyword argument conflicts
        __self, __context: Context, __obj: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """Call a function, or a method of a text."""
        subject = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        call = super().call
        if not isinstance(subject, str):
            return call(__context, __obj, *args, **kwargs)

        def method(values: Sequence[Any], named: Mapping[str, object]) -> object:
            return call(__context, __self.getattr(values[0], __obj.__name__), *values[1:], **named)

        return __self._tracked(method, [subject, *args], kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(nodes.ScopedEvalContextModifier):
            raise TemplateSyntaxError("autoescape is not supported", node.lineno)
        return tree

    def _compile(self, source: str, filename: str) -> Any:
        """Compile generated code. Faults are reported at the line of the template."""
        try:
            return super()._compile(source, filename)
        except SyntaxError as error:
            lines = re.findall(r"(\d+)=(\d+)", source.rpartition("debug_info = ")[2])
            line = max((int(own) for own, code in lines if int(code) <= (error.lineno or 0)), default=1)
            raise TemplateSyntaxError(error.msg, line) from None

    def _now(self, form: str) -> str:
        self.dated = True
        now = (datetime.fromisoformat(self.date) if self.date else datetime.now()).strftime(form)
        return Said(now) if isinstance(form, Said) else now

    def _tracked_filter(self, function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def tracked(*args: Any, **kwargs: object) -> object:
            first = hasattr(function, "jinja_pass_arg")  # the first argument is Jinja's context, not a value
            lazy = [isinstance(one, Iterator | MappingView) and not isinstance(one, LoopContext) for one in args]
            values = [list(one) if is_lazy else one for one, is_lazy in zip(args, lazy, strict=True)][first:]
            return self._tracked(lambda some, named: function(*args[:first], *some, **named), values, kwargs)

        return tracked

    def _tracked(self, function: Callable[..., object], values: list[Any], named: dict[str, Any]) -> object:
        """Call a function of texts. Its result gets a twin if the values contain text of a message."""
        value = function(values, named)
        value = "".join((value,)) if isinstance(value, Markup) else value
        parts = value if isinstance(value, list | tuple) else (value,)
        if not any(type(one) in (str, bytes) for one in parts) or not holds_said([values, named]):
            return value
        if isinstance(value, bytes):
            raise SecurityError("text of a message cannot be converted to bytes")
        try:
            other = function(twins(values), twins(named))
        except MemoryError:
            raise
        except Exception:  # the twin has no number to format, for example
            other = None
        subject = values[0]
        mixed = twins(subject) != hidden(subject) if isinstance(subject, str) else False
        return _paired(value, other, MIXED if mixed else HIDDEN)


def _paired(value: Any, other: object, sign: str) -> Any:
    """Give texts their twins from the other result, if it fits, else hide all characters."""
    if isinstance(value, list | tuple):
        fits = isinstance(other, list | tuple) and len(other) == len(value)
        others = other if fits and isinstance(other, list | tuple) else [None] * len(value)
        return type(value)(_paired(one, twin, sign) for one, twin in zip(value, others, strict=True))
    if type(value) is not str:
        return value
    return Said(value, other if isinstance(other, str) and len(other) == len(value) else hidden(value, sign))


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _as_json(
    x: object, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Mark a message as said, except for its role, and name its reasoning as the templates of all models do."""
    thought = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    more = {} if thought is None else {"thinking": thought, **message, "reasoning_content": thought}
    return {**said(more or message), "role": message["role"]}


def _line(error: BaseException) -> int:
    """Return the line of the template that raised an error, or at which its parser or compiler failed."""
    line, trace = 1, error.__traceback__
    while trace is not None:
        values = trace.tb_frame.f_locals
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        elif isinstance(node := values.get("node"), nodes.Node):
            line = node.lineno or line
        elif isinstance(parser := values.get("self"), Parser):
            line = parser.stream.current.lineno
        trace = trace.tb_next
    return line


def _texts(sandbox: Sandbox, template: Template, names: Mapping[str, object], talk: dict[str, Any]) -> list[object]:
    """Render the first `count` messages for each [count, reply] in `cuts`."""
    messages = [_with_thoughts(message) for message in talk["messages"]]
    others = {name: said(talk[name]) for name in ("tools", "documents")}
    most = TIMES * len(json.dumps([messages, others])) + MORE
    texts: list[object] = []
    for count, reply in talk["cuts"]:
        _start_clock()
        given = {**names, **others, "messages": messages[:count], "add_generation_prompt": reply}
        texts.append(sandbox.render(template, given, most))
    return texts


def _start_clock() -> None:
    """Let a signal end the process after TEMPLATE_TIME of CPU from now."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_PROF, TEMPLATE_TIME.most)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the end of the input."""
    sandbox, template = Sandbox(), Template("")
    for line in requests:
        _start_clock()
        sandbox.dated, what = False, "cannot be read"
        try:
            request = json.loads(line)
            if "template" in request:
                template = sandbox.from_string(request["template"])
            what = "fails on the messages"
            sandbox.date = request["date"]
            texts = [_texts(sandbox, template, request["names"], talk) for talk in request["talks"]]
            answer: object = {"texts": texts, "dated": sandbox.dated}
        except MemoryError:
            raise
        except TemplateSyntaxError as error:
            answer = {"fault": f"line {error.lineno} of the chat template: {error.message}"}
        except Exception as error:
            what = "rejects the messages" if isinstance(error, TemplateError) else what
            why = "nested too deeply" if isinstance(error, RecursionError) else error
            answer = {"fault": f"line {_line(error)} of the chat template {what}: {why}"}
        answers.write(json.dumps(answer).encode("ascii") + b"\n")
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (TEMPLATE_MEMORY.most, TEMPLATE_MEMORY.most))
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except MemoryError:
        os._exit(errno.ENOMEM)
