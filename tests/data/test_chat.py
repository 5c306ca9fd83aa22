"""Conversations: what their files may hold, and templates that write what transformers writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfkit.core.errors import DataError
from tfkit.data.chat import DEFAULT, ChatTemplate, read, written
from tfkit.data.corpus import Conversations

from ..sampling import looped

ASKED, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
SPECIAL = {"start": "<s>", "end": "</s>", "pad": "<pad>"}


def corpus(folder: Path, *lines: str) -> Any:
    (folder / "chat.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Conversations.Config(file=str(folder / "chat.jsonl")).build()


def test_a_conversation_is_a_source_and_its_last_reply(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be ünïcödé."}, ASKED, SAID, {**ASKED, "content": "[{a"}, SAID]
    (example,) = corpus(tmp_path, json.dumps({"messages": messages, "id": 3})).examples()
    assert example["target"] == "hello" and read(example["source"]) == messages[:-1]
    assert read("[{a") == [{**ASKED, "content": "[{a"}] and read(written([ASKED])) == [ASKED]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ":2: not a JSON value"),
        ("[]", ":2: no field 'messages'"),
        ('{"message": []}', ":2: no field 'messages'"),
        ('{"messages": []}', ":2: messages is empty; list at least one message"),
        ('{"messages": "hi"}', ":2: messages is not a list"),
        ('{"messages": ["hi"]}', ':2: message 1: expected {"role"'),
        ('{"messages": [{"role": "usr", "content": "a"}]}', ":2: message 1: unknown role 'usr'; did you mean 'user'?"),
        ('{"messages": [{"content": "a"}]}', ":2: message 1: has no role; use one of system, user, assistant"),
        ('{"messages": [{"role": "user"}]}', ":2: message 1: has no content; write the text of the user"),
        ('{"messages": [{"role": "user", "content": " "}]}', "the content is empty or not a string"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "the content is empty or not a string"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
            "a part of type 'image'; only text is supp",
        ),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": "x"}', ":2: tools is not a list of JSON objects"),
        (
            json.dumps({"messages": [ASKED]}),
            ":2: expected two or more messages, the last (the target) with the role assistant",
        ),
        (json.dumps({"messages": [SAID]}), ":2: expected two or more messages"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        corpus(tmp_path, json.dumps({"messages": [ASKED, SAID]}), line).examples()
    assert str(caught.value).startswith(f"{tmp_path}/chat.jsonl:2: ") and said in str(caught.value)


TEMPLATES = {
    "default": DEFAULT,
    "chatml": "{% for m in messages %}\n    {{ '<|im_start|>' + m.role + '\\n' + m['content'] | trim }}"
    "{{ '<|im_end|>\\n' }}\n{% endfor %}\n{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "llama": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{{ bos_token }}"
    "<<{{ messages[0].content }}>>{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if loop.first and m.role != 'user' %}"
    "{{ raise_exception('users begin') }}{% endif %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "[{{ m | tojson }}]{{ eos_token }}{% endfor %}",
}


@looped("name", TEMPLATES)
@looped("reply", [False, True])
def test_a_template_writes_what_transformers_writes(name: str, reply: bool) -> None:
    pytest.importorskip("transformers", reason="its templates are compared with")
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "system", "content": " é <b> 'x'\n"}, ASKED, SAID, ASKED]
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    for some in (messages, messages[1:], messages[1:2]):
        (wanted,), _ = render_jinja_template(
            [some], chat_template=TEMPLATES[name], add_generation_prompt=reply, **tokens
        )
        assert ChatTemplate(TEMPLATES[name]).render(some, SPECIAL, reply) == wanted


def test_what_a_template_may_not_do_is_said() -> None:
    with pytest.raises(ValueError, match="line 2 of the chat template: "):
        ChatTemplate("a\n{% for %}")
    for text, said in (
        ("{{ raise_exception('no system') }}", "rejects the messages: no system"),
        ("{{ messages.append(1) }}", "rejects the messages: "),
        ("{{ ''.__class__.__mro__ }}", "rejects the messages: "),
        ("{{ 1 + 'a' }}", "fails on the messages: "),
        ("{% for x in range(10000000) %}{% endfor %}", "fails on the messages: Range too big"),
    ):
        with pytest.raises(DataError, match=said):
            ChatTemplate(text).render([ASKED], SPECIAL)
    with pytest.raises(DataError, match="message 1: tool_calls is not read by the chat template; remove it"):
        ChatTemplate(DEFAULT).render([{**ASKED, "tool_calls": [1]}], SPECIAL)


GROWS = "{% set n = namespace(x=['a'], y=['a']) %}{% for i in range(90000) %}EACH{% endfor %}{{ n.x == n.y }}"
TIME, MEMORY, WRITES = (
    "takes more than 2 s of CPU",
    "needs more than 256 MiB",
    "writes more than 10[0-9],[0-9]* characters",
)
BOUNDED = [  # template, fault, and True if it is a fault of compiling
    (GROWS.replace("EACH", "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}"), TIME, False),
    ("\n{{ [1] | slice(99999999) | list }}", TIME, True),
    (GROWS.replace("EACH", "{% set n.x = n.x + [[0] * 90000] %}"), MEMORY, False),
    ("{{ (1).to_bytes(999999999, 'big') }}", MEMORY, False),
    ("{{ '%10000000000d' % (messages | length) }}", MEMORY, False),
    ("{% for x in range(9999) %}some words of a template, again{% endfor %}", WRITES, False),
    ("a\n{{ " + "(" * 3000 + ")" * 3000 + " }}", "line 2 of the chat template cannot be read: nested too deeply", True),
    ("a\n" + "{% for i in x %}" * 100 + "{% endfor %}" * 100, "line 2 .*: too many levels of indentation", True),
    ("a\n{% break %}", "line 2 of the chat template: 'break' outside loop", True),
    ("a\n{{ [1, 2] | random }}", "line 2 of the chat template: No filter named 'random'", True),
    ("a\n{{ '1e400' | float | int }}", "line 2 of the chat template fails", False),
    ("a\n{% import 'x' as y %}", "line 2 of the chat template fails", False),
]


@pytest.mark.full
@pytest.mark.timeout(90)
@looped(("text", "said", "compiling"), BOUNDED)
def test_a_template_neither_runs_nor_grows_without_end(text: str, said: str, compiling: bool) -> None:
    kind: type[Exception] = ValueError if compiling else DataError
    with pytest.raises(kind, match=f"^[^\n]*{said}[^\n]*$"):
        template = ChatTemplate(text)
        assert not compiling
        template.render([ASKED], {**SPECIAL, "unknown": "7"})
    assert ChatTemplate("{{ messages[0].content }}").render([ASKED], {}) == "hi"  # in a new process


@pytest.mark.full
def test_the_limits_are_those_of_one_rendering() -> None:
    template = ChatTemplate("{% for x in range(90000) %}{{ 'a' if loop.last }}{% endfor %}{{ '%5d' % 7 ~ 1 }}")
    assert [template.render([ASKED], SPECIAL) for _ in range(30)] == ["a    71"] * 30
