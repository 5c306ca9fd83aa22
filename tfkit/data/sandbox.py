"""Rendering of chat templates, in a subprocess with bounded time and memory.

The process runs this module. It reads requests as lines of JSON, writes an answer for each, and exits at the end of its
input, and therefore also when its parent process exits.

A control token that a message contains is text. To find which ones the template has written, messages are rendered
again with a twin of the same length, in which the first characters of their control tokens are hidden.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, NoReturn
from unicodedata import normalize

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tfkit.core.bounds import TEMPLATE_MEMORY, TEMPLATE_TIME
from tfkit.data.chat import THOUGHTS, Message

HIDDEN = 0x2801  # the first of the Braille patterns, which are printable, so that no function escapes them
Given = Mapping[str, Any]  # variables of a template
INPUTS = ("messages", "tools", "documents")
TIMES, MORE = 100, 100_000  # maximum output in characters: TIMES * characters of the messages + MORE


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
    """A sandbox with the options of transformers."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
        self.length, self.spans = 0, list[tuple[int, int, str]]()
        self.date, self.dated = "", False
        self.filters["tojson"] = _as_json
        self.globals |= {"raise_exception": _refuse, "strftime_now": self._now}
        del self.globals["lipsum"], self.filters["random"]

    def render(self, template: Template, names: Mapping[str, object], most: int) -> tuple[str, list[tuple[int, int]]]:
        """Return the text and the spans of replies. Raise TemplateError if the text is too long."""
        self.length, self.spans, parts = 0, [], list[str]()
        for part in template.generate(names):
            self.length += len(part)
            if self.length > most:
                raise TemplateError(f"writes more than {most:,} characters")
            parts.append(part)
        text = "".join(parts)
        if any(text[start:end] != reply for start, end, reply in self.spans):
            raise TemplateError("{% generation %} is inside of a macro or a set block; move it out")
        return text, [(start, end) for start, end, _ in self.spans]

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
        return (datetime.fromisoformat(self.date) if self.date else datetime.now()).strftime(form)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _as_json(x: object, ensure_ascii: bool = False, indent: int | str | None = None, **form: Any) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, **form)


def _with_thoughts(message: Message) -> Message:
    """Name the reasoning of a message as the templates of all models do."""
    thought = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(one)
    elif isinstance(value, str):
        yield value


def _all_text(given: Given) -> str:
    return "".join(_texts_in([given[name] for name in INPUTS]))


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    """Change all texts in a value, except the roles of messages."""
    if isinstance(value, dict):
        return {name: one if name == "role" else _replaced(one, change) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


class _Twins:
    """Hides the first characters of control tokens in what messages, tools and documents say."""

    def __init__(self, control: Mapping[str, bool]) -> None:
        """`control` are the control tokens; True for those that no reply contains."""
        self.control = control
        signs = {token[0] for token in control}
        wide = (chr(code) for code in range(0xFE50, 0xFF5F))  # tokenizers may normalize these forms to signs
        signs |= {sign for sign in wide if normalize("NFKC", sign) in signs}
        self.table = {ord(sign): chr(HIDDEN + number) for number, sign in enumerate(sorted(signs))}
        self.back = {ord(other): chr(sign) for sign, other in self.table.items()}
        special = (re.escape(token) for token, is_special in control.items() if is_special)
        self.special = re.compile("|".join(special) or "(?!)")

    def twin_of(self, given: Given, text: str, render: Callable[[Given], str]) -> str:
        """Return the twin of a text. Raise TemplateError if the template reads a control token of a message."""
        for other in self.of(given) if self.may_act(given) else ():
            with suppress(TemplateError):  # the template may look for a sign that is hidden now
                twin = render(other)
                if twin.translate(self.back) == text:
                    return twin
        if self.needed(given):
            raise TemplateError("a message contains a control token that the template reads; remove it")
        return text

    def may_act(self, given: Given) -> bool:
        """True if a message may have written a control token, in a form that some tokenizer normalizes to it."""
        return not {ord(sign) for sign in _all_text(given)}.isdisjoint(self.table)

    def needed(self, given: Given) -> bool:
        """True if a text, or texts that are joined, contain a control token."""
        return any(token in _all_text(given) for token in self.control)

    def of(self, given: Given) -> Iterator[Given]:
        """Yield `given` with all first characters hidden, then with replies in which templates find their own signs."""
        every = {name: _replaced(given[name], lambda text: text.translate(self.table)) for name in INPUTS}
        yield {**given, **every}
        own = [
            _replaced(message, lambda text: self.special.sub(lambda one: one[0].translate(self.table), text))
            if message["role"] == "assistant"
            else hidden
            for message, hidden in zip(given["messages"], every["messages"], strict=True)
        ]
        yield {**given, **every, "messages": own}


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


def _texts(
    sandbox: Sandbox, template: Template, names: Mapping[str, object], talk: Given, twins: _Twins
) -> list[object]:
    """Render the first `count` messages for each [count, reply] in `cuts`."""
    messages = [_with_thoughts(message) for message in talk["messages"]]
    others = {name: talk[name] for name in ("tools", "documents")}
    most = TIMES * len(json.dumps([messages, others])) + MORE
    texts: list[object] = []
    for count, reply in talk["cuts"]:
        _start_clock()
        given = {**names, **others, "messages": messages[:count], "add_generation_prompt": reply}
        text, spans = sandbox.render(template, given, most)
        twin = twins.twin_of(given, text, lambda other: sandbox.render(template, other, most)[0])
        texts.append((text, twin, spans))
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
            twins = _Twins(request["control"])
            texts = [_texts(sandbox, template, request["names"], talk, twins) for talk in request["talks"]]
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
