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
        ('{"messages": [{"role": "user", "content": "a", "tool_calls": 1}]}', ":2: message 1: tool_calls is not supp"),
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
    with pytest.raises(DataError, match="message 1 contains the special token </s>; remove it"):
        ChatTemplate(DEFAULT).render([{"role": "user", "content": "a</s>"}], SPECIAL)


GROWS = "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = EACH %}{% endfor %}"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for x in range(100000) %}{% for y in range(100000) %}{% endfor %}{% endfor %}", "loops more than 100,000"),
        ("{% for x in range(900) %}{% for y in range(900) %}{% endfor %}{% endfor %}", "loops more than 100,000"),
        ("{% set a = 'a' * 9000 %}{% for x in a %}{% for y in a %}{% endfor %}{% endfor %}", "loops more than 100,000"),
        ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", "loops more"),
        ("{{ 'a' * 10000000000 }}", "writes more than 100,[0-9]* characters"),
        ("{{ [0] * 10000000000 }}", "writes more than"),
        ("{{ 10000000000 * 'a' }}", "writes more than"),
        ("{{ '%10000000000d' % 1 }}", "writes more than"),
        ("{{ '%10000000000d' | format(1) }}", "writes more than"),
        ("{{ '%*d' % (10000000000, 1) }}", "writes more than"),
        ("{{ '{:10000000000}'.format(1) }}", "writes more than"),
        ("{{ 'a' | center(10000000000) }}", "writes more than"),
        ("{{ 'a'.ljust(10000000000) }}", "writes more than"),
        ("{{ (messages[0].content * 9000).replace('', 'a' * 90000) }}", "writes more than"),
        (GROWS.replace("EACH", "n.x ~ n.x"), "writes more than"),
        (GROWS.replace("EACH", "n.x + n.x"), "writes more than"),
        (GROWS.replace("EACH", "[n.x, n.x]") + "{{ n.x }}", "writes more than"),
        (GROWS.replace("EACH", "{'a': n.x, 'b': n.x}") + "{{ n.x | tojson }}", "writes more than"),
        ("{{ (['a' * 90000] * 90000) | join }}", "writes more than"),
        ("{{ ''.join(['a' * 90000] * 90000) }}", "writes more than"),
        ("{% for x in range(9999) %}some words of a template, again{% endfor %}", "writes more than"),
        ("{% set x %}{% for x in range(9999) %}{{ 'a' * 90000 }}{% endfor %}{% endset %}", "writes more than"),
        ("{{ 10 ** 10000000000 }}", "a number of more than 4,096 bits"),
    ],
)
def test_a_template_neither_loops_nor_grows_without_end(text: str, said: str) -> None:
    with pytest.raises(DataError, match=f"the chat template .*{said}"):
        ChatTemplate(text).render([ASKED], SPECIAL)


@pytest.mark.full
def test_the_limits_are_those_of_one_rendering() -> None:
    template = ChatTemplate("{% for x in range(60000) %}{{ 'a' if loop.last }}{% endfor %}{{ '%5d' % 7 ~ 1 }}")
    assert [template.render([ASKED], SPECIAL) for _ in range(3)] == ["a    71"] * 3
