"""Conversations: messages with roles, and the Jinja templates that render them as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

from tfkit.core.errors import DataError
from tfkit.core.extras import optional
from tfkit.core.synonyms import nearest

Message = dict[str, str]
ROLES = ("system", "user", "assistant")
DEFAULT = (  # each turn between a start and an end token
    "{% for message in messages %}{{ bos_token }}{{ message['role'] }}\n{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
LONGEST = 100_000  # maximum number of characters in a template


def checked(value: object, place: str) -> list[Message]:
    """Validate a parsed conversation and return its messages.

    Raise DataError, naming `place` and the message, if it is invalid.
    """
    if not isinstance(value, list) or not value:
        raise DataError(f"{place}: messages is {'empty' if value == [] else 'not a list'}; list at least one message")
    return [_message(one, f"{place}: message {number}") for number, one in enumerate(value, 1)]


def _message(value: object, place: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f'{place}: expected {{"role": ..., "content": ...}}, got {value!r:.60}')
    others = [str(key) for key in value if key not in ("role", "content")]
    if others:
        raise DataError(f"{place}: {others[0]} is not supported; a message has a role and a content")
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        hint = nearest(str(role), list(ROLES))
        known = f"use one of {', '.join(ROLES)}" if hint is None else f"did you mean '{hint}'?"
        raise DataError(f"{place}: {'has no role' if role is None else f'unknown role {role!r}'}; {known}")
    if not isinstance(content, str) or not content.strip():
        what = "has no content" if content is None else "the content is empty or not a string"
        raise DataError(f"{place}: {what}; write the text of the {role}")
    return {"role": role, "content": content}


def written(messages: Sequence[Message]) -> str:
    """Serialize messages to text that `read` parses."""
    return json.dumps(messages, ensure_ascii=False)


def read(text: str) -> list[Message]:
    """Return the messages if the text is a JSON list of messages, else the text as one user message."""
    if text.lstrip().startswith("[{"):
        try:
            return checked(json.loads(text), "the conversation")
        except ValueError:
            pass
    return [{"role": "user", "content": text}]


class ChatTemplate:
    """A sandboxed Jinja chat template with the variables and functions that transformers provides."""

    def __init__(self, text: str) -> None:
        """Compile the template. Raise ValueError if it is invalid, UsageError if jinja2 is missing."""
        if len(text) > LONGEST:
            raise ValueError(f"a chat template has at most {LONGEST:,} characters, got {len(text):,}")
        self.text = text
        self._jinja = optional("jinja2", "chat", "chat templates need")
        from tfkit.data.sandbox import Sandbox  # needs jinja2

        self._sandbox = Sandbox()
        self._sandbox.filters["tojson"] = self._sandbox.guarded(_as_json)
        self._sandbox.globals["raise_exception"] = self._refuse
        try:
            self._template = self._sandbox.from_string(text)
        except self._jinja.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno} of the chat template: {error.message}") from None

    def _refuse(self, message: str) -> NoReturn:
        raise self._jinja.TemplateError(message)

    def render(self, messages: Sequence[Message], special: Mapping[str, str], reply: bool = False) -> str:
        """Render messages as one text, followed by the start of a reply if `reply`.

        `special` are the special tokens by role. Raise DataError if a message contains a special token, or if the
        template rejects the messages or exceeds the limits on loops and output.
        """
        for number, message in enumerate(messages, 1):
            found = next((token for token in special.values() if token in message["content"]), None)
            if found is not None:
                raise DataError(f"message {number} contains the special token {found}; remove it")
        tokens = {"bos_token": special.get("start", ""), "eos_token": special.get("end", "")}
        names = {**tokens, "pad_token": special.get("pad", ""), "unk_token": special.get("unknown", "")}
        self._sandbox.start(messages)
        try:
            given = {"messages": messages, "add_generation_prompt": reply, **names}
            return self._sandbox.text_of(self._template, given)
        except self._jinja.TemplateError as error:
            raise DataError(f"the chat template rejects the messages: {error}") from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise DataError(f"the chat template fails on the messages: {error}") from None


def _as_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
