"""Conversations: messages with roles, Jinja templates that render them, and control tokens in messages as text."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, NamedTuple

import tokenizers

from tfkit.core.bounds import TEMPLATE_MEMORY, TEMPLATE_TIME
from tfkit.core.errors import DataError, optional
from tfkit.core.synonyms import nearest
from tfkit.data.tokenizer import Tokenizer

Cuts = Sequence[tuple[int, bool]]
Message = dict[str, Any]  # role and content, and what the template reads: tool_calls, reasoning_content, ...
ROLES = ("system", "user", "assistant", "tool", "developer")
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names of one field, as in transformers
UNUSED = ("id", "name", "tool_call_id")  # fields that a template may ignore
NAMES = {  # variables of templates, by the role of the token
    "start": "bos_token", "end": "eos_token", "pad": "pad_token",
    "unknown": "unk_token", "mask": "mask_token", "separator": "sep_token",
}  # fmt: skip
DEFAULT = (  # each turn between a start and an end token
    "{% for message in messages %}{{ bos_token }}{{ message['role'] }}\n{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
logger = logging.getLogger("tfkit")
LONGEST = 100_000  # maximum number of characters in a template


class Conversation(list[Message]):
    """Messages, and the tools and documents that the model may use."""

    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None

    def fields(self) -> Iterator[tuple[str, str]]:
        """Yield the place and name of each field except roles and contents."""
        yield from (("", name) for name in ("tools", "documents") if getattr(self, name) is not None)
        for number, message in enumerate(self, 1):
            names = (name for name in message if name not in ("role", "content") and message[name] not in ([], {}, ""))
            yield from ((f"message {number}: ", name) for name in names)

    def with_texts(self) -> Conversation:
        """Return the conversation with contents that are lists of parts joined."""
        talk = Conversation(self)
        talk.tools, talk.documents = self.tools, self.documents
        for number, message in enumerate(self):
            if isinstance(message.get("content"), list):
                talk[number] = {**message, "content": "".join(part["text"] for part in message["content"])}
        return talk


def checked(value: object, place: str) -> Conversation:
    """Validate a parsed conversation: a list of messages, or a mapping with `messages`, `tools` and `documents`.

    Raise DataError, naming `place` and the message, if it is invalid.
    """
    parts = value if isinstance(value, Mapping) else {"messages": value}
    found = parts.get("messages")
    if not isinstance(found, list) or not found:
        raise DataError(f"{place}: messages is {'empty' if found == [] else 'not a list'}; list at least one message")
    talk = Conversation(_message(one, f"{place}: message {number}") for number, one in enumerate(found, 1))
    for name in ("tools", "documents"):
        listed = parts.get(name)
        if listed is not None and not (isinstance(listed, list) and all(isinstance(one, dict) for one in listed)):
            raise DataError(f"{place}: {name} is not a list of JSON objects")
        setattr(talk, name, listed)
    try:
        json.dumps([talk, talk.tools, talk.documents])
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None
    return talk


def _message(value: object, place: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f'{place}: expected {{"role": ..., "content": ...}}, got {value!r:.60}')
    message = {key: one for key, one in value.items() if one is not None}
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        hint = nearest(str(role), list(ROLES))
        known = f"use one of {', '.join(ROLES)}" if hint is None else f"did you mean '{hint}'?"
        raise DataError(f"{place}: {'has no role' if role is None else f'unknown role {role!r}'}; {known}")
    parts = content if isinstance(content, list) and content else [{"type": "text", "text": content}]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise DataError(f"{place}: the content has a part of type {kind!r}; only text is supported")
        text = part.get("text") if kind == "text" else None
        if len(message) > 2 - (content is None) or (role in ("system", "tool") and text == ""):
            text = text or "-"  # such a message needs no text
        if not isinstance(text, str) or not text.strip():
            what = "has no content" if content is None else "the content is empty or not a string"
            raise DataError(f"{place}: {what}; write the text of the {role}")
    return message


def written(messages: Sequence[Message]) -> str:
    """Serialize a conversation to text that `read` parses."""
    talk = messages if isinstance(messages, Conversation) else Conversation(messages)
    more = {name: getattr(talk, name) for name in ("tools", "documents") if getattr(talk, name) is not None}
    return json.dumps({"messages": talk, **more} if more else talk, ensure_ascii=False)


def as_example(talk: Conversation) -> dict[str, str]:
    """Return the fields of an example: the last message is the target, in JSON if it has more than a text."""
    last = talk.pop()
    text = last.get("content")
    plain = len(last) == 2 and isinstance(text, str) and not text.lstrip().startswith("[{")
    return {"source": written(talk), "target": str(text) if plain else written(Conversation([last]))}


def conversation_of(example: Mapping[str, str]) -> Conversation:
    """Return the conversation of an example, whose source may be a plain text. Inverse of `as_example`."""
    talk, last = read(example["source"]), read(example["target"])
    is_message = len(last) == 1 and last[0]["role"] == "assistant"
    talk += last if is_message else [{"role": "assistant", "content": example["target"]}]
    return talk


def is_conversation(text: str) -> bool:
    """True if the text may be a conversation in JSON."""
    return text.lstrip().startswith(("[{", '{"messages"'))


def read(text: str) -> Conversation:
    """Return the conversation if the text is one in JSON, else the text as one user message."""
    if is_conversation(text):
        try:
            return checked(json.loads(text), "the conversation")
        except (ValueError, RecursionError):
            pass
    return Conversation([{"role": "user", "content": text}])


class Rendered(NamedTuple):
    """A rendered conversation.

    `twin` differs from the text in the first characters of control tokens that are text of a message; `spans` are the
    replies that the template marks.
    """

    text: str
    twin: str
    spans: list[list[int]]


class ChatTemplate:
    """A sandboxed Jinja chat template with the variables and functions that transformers provides."""

    def __init__(self, text: str) -> None:
        """Compile the template. Raise ValueError if it is invalid, UsageError if jinja2 is missing."""
        if len(text) > LONGEST:
            raise ValueError(f"a chat template has at most {LONGEST:,} characters, got {len(text):,}")
        self.text = text
        self.dated = False  # True if it has written the current date
        self._ignored: set[str] = set()
        optional("jinja2", "chat", "chat templates need")
        try:
            self.rendered([], {}, [])
        except DataError as error:
            raise ValueError(str(error)) from None

    def render(self, messages: Sequence[Message], special: Mapping[str, str], reply: bool = False) -> str:
        """Render messages as one text, followed by the start of a reply if `reply`. Raise errors as `rendered` does."""
        return self.rendered([messages], special, [[(len(messages), reply)]])[0][0].text

    def rendered(
        self,
        talks: Sequence[Sequence[Message]],
        special: Mapping[str, str],
        cuts: Sequence[Cuts],
        date: str = "",
        control: Mapping[str, bool] | None = None,
    ) -> list[list[Rendered]]:
        """Render the first `count` messages of each conversation for each (count, reply) in its `cuts`.

        `special` are the special tokens by role, `date` is the current date if set, and `control` maps the tokenizer's
        control tokens to True if they are special. Raise DataError if the template rejects the messages, does not read
        one of their fields, or exceeds a limit.
        """
        names = {name: special[role] for role, name in NAMES.items() if role in special}
        listed = [self._request(talk, some) for talk, some in zip(talks, cuts, strict=True)]
        answer = _RENDERER.ask(self.text, {"talks": listed, "names": names, "date": date, "control": control or {}})
        self.dated = self.dated or (answer["dated"] and not date)
        return [[Rendered(*one) for one in texts] for texts in answer["texts"]]

    def _request(self, messages: Sequence[Message], cuts: Cuts) -> dict[str, object]:
        talk = messages if isinstance(messages, Conversation) else Conversation(messages)
        self._check_fields(talk)
        if not re.search(r"\btext\b", self.text):  # the template does not read contents in parts
            talk = talk.with_texts()
        return {"messages": talk, "tools": talk.tools, "documents": talk.documents, "cuts": cuts}

    def _check_fields(self, talk: Conversation) -> None:
        """Raise DataError for a field that the template does not read."""
        for place, field in talk.fields():
            if any(name in self.text for name in (THOUGHTS if field in THOUGHTS else (field, "tojson"))):
                continue
            if field not in UNUSED:
                raise DataError(f"{place}{field} is not read by the chat template; remove it")
            if field not in self._ignored:
                self._ignored.add(field)
                logger.warning("the chat template does not read the field '%s' of messages", field)


class _Renderer:
    """A subprocess that renders templates, started on first use and again after it has ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._template: str | None = None  # the compiled one

    def ask(self, template: str, request: dict[str, object]) -> Any:
        """Return the answer to a request. Raise DataError for a fault of the template."""
        with self._lock:
            process = self._started()
            known = {} if template == self._template else {"template": template}
            try:
                answer = _exchanged(process, json.dumps({**known, **request}).encode("ascii") + b"\n")
            except BaseException:  # Ctrl-C, for example; the answer would be read as that of the next request
                self.stop()
                raise
            if not answer:
                reason = _reason(process.wait())
                self.stop()
                raise DataError(f"the chat template {reason}")
            found = json.loads(answer)
            self._template = None if "fault" in found else template
        if "fault" in found:
            raise DataError(" ".join(found["fault"].split()))
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            paths = [path for path in sys.path if isinstance(path, str)]  # Python ignores others as well
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "tfkit.data.sandbox"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                )
            except OSError as error:
                raise DataError(f"chat templates need a process of {sys.executable!r}: {error}") from None
        return self._process

    def stop(self, fork: bool = False) -> None:
        """End the subprocess, or leave it to the parent process after a fork."""
        process, self._process, self._template = self._process, None, None
        if process is not None:
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()
            if fork:
                process.returncode = 0
            else:
                process.kill()
                process.wait()
        self._lock = Lock() if fork else self._lock


def _exchanged(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Send a line and return the answer, or nothing if the process ends."""
    answer = bytearray()
    if process.stdin is not None and process.stdout is not None:
        rest = memoryview(request)
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[process.stdin.write(rest) :]
        while not answer.endswith(b"\n") and (block := os.read(process.stdout.fileno(), 2**20)):
            answer += block
    return bytes(answer)


def _reason(status: int) -> str:
    if status == -getattr(signal, "SIGPROF", 0):
        return f"takes more than {TEMPLATE_TIME.most} s of CPU"
    if status == errno.ENOMEM:
        return f"needs more than {TEMPLATE_MEMORY.most // 2**20} MiB of memory"
    return f"ended its process ({status})"


_RENDERER = _Renderer()
atexit.register(_RENDERER.stop)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: _RENDERER.stop(fork=True))

MARK = "\ufdef"  # replaces a control token while the text around it is encoded; not a character
Encoded = tuple[list[int], list[tuple[int, int]]]  # ids with their character spans


class ControlTokens:
    """Encoder of conversations for a tokenizer.

    Control tokens are the special tokens, and added tokens between signs, such as <think>.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokens = tokenizer.backend.get_added_tokens_decoder()
        added = {one.content: id_ for id_, one in tokens.items() if _acts(one)}
        self.special = {role: tokenizer.token(id_) for role, id_ in tokenizer.special_ids.items()}
        self.ids = {text: tokenizer.special_ids[role] for role, text in self.special.items()} | added
        plain = {one.content for one in tokens.values() if not one.special} - set(self.special.values())
        self.control = {text: text not in plain for text in self.ids}  # control tokens; True if they are special
        model = json.loads(tokenizer.to_json())["model"]
        unknown = model["vocab"][model["unk_id"]][0] if model.get("unk_id") is not None else model.get("unk_token")
        self._unknown = tokenizer.id(unknown) if unknown else tokenizer.special_ids.get("unknown")
        self._numbers = frozenset(self.ids.values()) - {self._unknown}
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or "(?!)")

    @staticmethod
    def of(tokenizer: Tokenizer) -> ControlTokens:
        """Return the encoder of a tokenizer, created once."""
        return _control_of(tokenizer)

    def encode(self, texts: Sequence[Rendered]) -> list[list[int]]:
        found = self.tokenizer.encode_batch([one.text for one in texts], special=True)
        pairs = zip(texts, found, strict=True)
        return [ids if self._are_written(one, ids) else self.encode_with_places(one)[0] for one, ids in pairs]

    def encode_with_places(self, rendered: Rendered) -> Encoded:
        """Return the ids of a conversation and their character spans. Raise DataError if a message acts as control."""
        text, twin = rendered.text, rendered.twin
        ((ids, places),) = self.tokenizer.encode_with_places([text], special=True)
        if self._are_written(rendered, ids):
            return ids, places
        if MARK in text:
            raise DataError(f"a message contains the code point U+{ord(MARK):04X}, which is not a character; remove it")
        found_ids = zip(*self.tokenizer.encode_with_places([twin], special=True)[0], strict=True)
        control = [(id_, a, b) for id_, (a, b) in found_ids if id_ in self._numbers and text[a:b] == twin[a:b]]
        starts, ends = [0, *(b for _, _, b in control)], [*(a for _, a, _ in control), len(text)]
        marked = MARK.join(text[a:b] for a, b in zip(starts, ends, strict=True))
        ((ids, places),) = self._text_only.encode_with_places([marked])
        shift, written = 0, iter(control)
        ids = [self._moved.get(id_, id_) for id_ in ids]
        for number, (a, b) in enumerate(places):
            if marked[a:b] == MARK:
                ids[number], *span = next(written)
                places[number], shift = (span[0], span[1]), span[1] - b
            elif ids[number] in self._numbers:
                raise DataError(f"the tokenizer reads {text[a + shift : b + shift]!r} in a message as a control token")
            else:
                places[number] = a + shift, b + shift
        return ids, places

    def _are_written(self, rendered: Rendered, ids: Sequence[int]) -> bool:
        """True if the control tokens are those that the template has written."""
        written = [self.ids[found[0]] for found in self._pattern.finditer(rendered.twin)]
        unknown = "" if self._unknown is None else self.tokenizer.token(self._unknown)
        literal = unknown and rendered.text.count(unknown) > rendered.twin.count(unknown)
        return not literal and [id_ for id_ in ids if id_ in self._numbers] == [
            id_ for id_ in written if id_ != self._unknown
        ]

    @cached_property
    def _moved(self) -> dict[int, int]:
        """Id of each added token in `_text_only`, which numbers them itself, and in the tokenizer."""
        added = self._text_only.backend.get_added_tokens_decoder()
        return {id_: self.tokenizer.id(one.content) for id_, one in added.items() if one.content != MARK}

    @cached_property
    def _text_only(self) -> Tokenizer:
        """A tokenizer without the control tokens, in which MARK is a token."""
        data = json.loads(self.tokenizer.to_json())
        model, hidden = data["model"], {name: f"{MARK}{id_}" for name, id_ in self.ids.items()}
        data["added_tokens"] = [one for one in data["added_tokens"] if one["content"] not in hidden]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {hidden.get(name, name): id_ for name, id_ in model["vocab"].items()}
        else:
            model["vocab"] = [[hidden.get(name, name), score] for name, score in model["vocab"]]
        if "unk_token" in model:
            model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & hidden.keys()]
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
        backend.add_tokens([tokenizers.AddedToken(MARK, normalized=False)])
        return Tokenizer(backend, {})


_control_of = lru_cache(maxsize=4)(ControlTokens)


def _acts(token: tokenizers.AddedToken) -> bool:
    """True if an added token acts as control; added words and runs of spaces are text."""
    text = token.content
    signs = not text[:1].isalnum() and not text[-1:].isalnum() and any(map(str.isalnum, text)) and " " not in text
    return bool(text.strip()) and (token.special or signs)
