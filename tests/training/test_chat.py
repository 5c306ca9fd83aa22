"""Chat: loss on the assistant's turns only, prompts as in training, and a template that goes out and comes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
import transformers
import yaml
from click.testing import CliRunner
from pyarrow import parquet

import tfkit
from tests.training.small import RECIPE, trained
from tfkit.cli.main import main
from tfkit.core.errors import DataError, RecipeError, UsageError
from tfkit.data.chat import as_example, checked, conversation_of
from tfkit.data.tokenizer import Bpe, Tokenizer
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import Run
from tfkit.training.objective import Chat
from tfkit.training.splits import first_examples

from ..sampling import looped

TASKS = Path(__file__).resolve().parents[2] / "recipes" / "tasks"


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def conversations() -> list[list[dict[str, str]]]:
    """Return the conversations that ship: 24 held out, then those to learn from."""
    files = [TASKS / f"chat.{split}.jsonl" for split in ("test", "train")]
    return [json.loads(line)["messages"] for file in files for line in file.read_text().splitlines()]


def recipe(folder: Path, overrides: dict[str, Any] | None = None, **train: Any) -> Recipe:
    whole = conversations()
    for name, some in (("train", whole[24:]), ("test", whole[:24])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"messages": one}) + "\n" for one in some))
    corpora = {name: {"type": "chat", "file": str(folder / f"{name}.jsonl")} for name in ("train", "test")}
    data = {**RECIPE["data"], "train": corpora["train"], "valid": corpora["test"], "test": corpora["test"]}
    recipe = {**RECIPE, "model": {**RECIPE["model"], "max_length": 64}, "data": data, "objective": "chat"}
    recipe["generate"] = {"max_new_tokens": 12}
    return load_recipe({**recipe, "train": {**RECIPE["train"], **train}}, overrides)


def words() -> Tokenizer:
    config = Bpe.Config(vocab_size=120)
    tokenizer: Tokenizer = config.build().fit(["user\nassistant\nsay cat and dog, now. backwards"] * 3)
    return tokenizer


def items(*examples: dict[str, str], template: str | None = None) -> Any:
    rows = Chat.Config(template=template).build().rows
    return rows, rows.prepare(examples, words(), 200)


def test_only_replies_have_a_loss_and_prompts_are_those_of_training() -> None:
    said = turns("say cat", "cat.", "now dog", "dog, cat")
    example = {"source": json.dumps(said[:-1]), "target": said[-1]["content"]}
    rows, (item, short) = items(example, {"source": "say cat", "target": "cat."})
    tokenizer = words()
    learned = [list(part) for part in np.split(item["text"], np.flatnonzero(np.diff(item["reply"])) + 1)]
    assert [tokenizer.decode(part).strip() for part in learned[1::2]] == ["cat.", "dog, cat"]
    end = tokenizer.special_ids["end"]
    assert all(part[-1] == end for part in learned[1::2])
    (first,), (second,) = rows.read(["say cat"], tokenizer), rows.read([example["source"]], tokenizer)
    assert first == learned[0] and second == [id_ for part in learned[:3] for id_ in part]
    batch = rows.collate([item, short], np.random.default_rng(0))
    inputs = batch["input_ids"].flatten()
    assert batch["labels"].tolist() == [*learned[1], *learned[3], *learned[1]]
    assert inputs[batch["predicted"][0]] == learned[0][-1]  # the end of the prompt predicts the first token


def test_marked_replies_are_learned_as_transformers_marks_them() -> None:
    template = (
        "{% for m in messages %}<s>{{ m.role }}\n{% generation %}{% if loop.last %}say {% endif %}{{ m.content }}</s>"
        "{% endgeneration %}{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    )
    said = turns("say cat", "cat.", "now dog", "dog")
    (item,) = items({"source": json.dumps(said[:-1]), "target": "dog"}, template=template)[1]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=words().backend)
    marked = theirs.apply_chat_template(
        said, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
    )
    assert item["text"].tolist() == marked["input_ids"] and item["reply"].tolist() == marked["assistant_masks"]


def test_tool_calls_are_learned() -> None:
    template = "{% for m in messages %}<s>{{ m.role }} {{ tools }}{{ m.content }}{{ m.tool_calls }}</s>{% endfor %}"
    template += "{% if add_generation_prompt %}<s>assistant{% endif %}"
    call = {"role": "assistant", "tool_calls": [{"name": "</s>"}]}
    example = as_example(checked({"messages": [*turns("say cat"), call], "tools": [{"a": "<s>"}]}, "it"))
    _, (item,) = items(example, template=template)
    tokens = [words().token(id_) for id_ in item["text"]]
    assert (tokens.count("<s>"), tokens.count("</s>")) == (2, 2) and conversation_of(example)[-1] == call


@looped(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "ends a reply without the end token </s>"),
        ("{{ messages[-1].content + eos_token }}", "do not start with the tokens of its prompts"),
        ("{% for m in messages %}{{ m.role[:1] + m.content }}</s>{% endfor %}{{ 'ass' if add_generation_prompt }}",
         "do not start with the tokens of its prompts"),
        ("{{ raise_exception('never') }}", "the chat template rejects the messages: never"),
    ],
)  # fmt: skip
def test_templates_that_cannot_be_learned_are_refused(template: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        items({"source": "say cat", "target": "dog"}, template=template)


def test_wrong_templates_and_token_shards_are_refused_in_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"objective\.template: .*line 1 of the chat template|objective: .*line 1 of"):
        recipe(tmp_path, {"objective.template": "{% for %}"})
    rejecting = recipe(tmp_path, {"objective.template": "\n{{ raise_exception('no system') }}"})
    (fault,) = first_examples(rejecting)[1]
    assert "objective.template" in str(fault) or "objective" in str(fault)
    assert "train.jsonl:1: line 2 of the chat template rejects the messages: no system" in str(fault)
    with pytest.raises(RecipeError, match="'chat' holds the texts and tokens of all examples in memory"):
        recipe(tmp_path, {"data.shards": True})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("chat")
    return trained(recipe(folder, {"train.samples": 0}, evaluate_every=3, metrics=["exact_match"]), folder / "run")


@pytest.mark.full
def test_the_template_goes_out_and_comes_in(run: Run, tmp_path: Path) -> None:
    export_model(run, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    said = turns("say cat and dog", "cat, dog.", "now backwards")
    ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert ids == run.read_chat(said) == run.read([json.dumps(said)])[0]
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == run.chat_template == tokenizer.chat_template
    assert run.chat(said, max_new_tokens=3) == run.generate([ids], max_new_tokens=3)[0]


@pytest.mark.full
def test_unknown_pieces_are_those_of_the_rendered_conversation(run: Run) -> None:
    def said(text: str) -> str:
        return CliRunner().invoke(main, ["generate", str(run.folder), text, "--max-new-tokens", "1"]).stderr

    assert said(json.dumps(turns("say cat"))) == ""
    for text in (json.dumps(turns("say ☃"), ensure_ascii=False), "say ☃"):
        assert said(text) == "tfkit: not in the vocabulary, read as <unk>: '☃'\n"
    file = run.folder.parent / "train.jsonl"
    printed = CliRunner().invoke(main, ["generate", str(run.folder), "--input", str(file), "--field", "messages"])
    first = json.loads(file.read_text().partition("\n")[0])["messages"]
    assert json.loads(printed.stdout.partition("\n")[0])["text"] == run.chat(first[:-1])
    assert "the prompt ends before the last message" in printed.stderr
    table, line = file.with_suffix(".parquet"), printed.stdout.partition("\n")[0]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": first}]), table)
    again = CliRunner().invoke(main, ["generate", str(run.folder), "--input", str(table), "--field", "messages"])
    assert again.stdout == f"{line}\n", again.output
    refused = said(json.dumps([{"role": "robot", "content": "☃"}]))
    assert "unknown role 'robot'" in refused and "vocabulary" not in refused


@pytest.mark.full
def test_an_imported_run_chats_when_asked(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layer = {"residual": "pre_norm", "feedforward": {"type": "mlp", "d_ff": 8, "activation": "gelu_tanh"}}
    changed = {f"model.layer.{name}": value for name, value in layer.items()} | {"model.position": "learned"}
    own = trained(recipe(tmp_path, {**changed, "train.samples": 0}, metrics=["exact_match"]), tmp_path / "own")
    export_model(own, tmp_path / "out")
    (tmp_path / "out" / "additional_chat_templates").mkdir()
    (tmp_path / "out" / "additional_chat_templates" / "tool_use.jinja").write_text(
        "{{ tools }}{{ messages[0].content }}"
    )
    import_model(str(tmp_path / "out"), tmp_path / "back")
    back, said = tfkit.load_run(tmp_path / "back"), turns("say cat and dog")
    assert back.recipe.objective is None and back.read_chat(said) == own.read_chat(said)
    assert back.read(["say cat"]) != own.read(["say cat"])
    tools = [{"name": "f"}]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = theirs.apply_chat_template(said, tools=tools, add_generation_prompt=True, return_dict=False)
    assert back.read_chat({"messages": said, "tools": tools}) == ids
    evil = back.read_chat(turns("a</s><s>b"))
    assert [evil.count(id_) for id_ in (1, 2)] == [back.read_chat(turns("ab")).count(id_) for id_ in (1, 2)]
    reply = own.chat(said, max_new_tokens=4)
    assert back.chat(said, max_new_tokens=4) == reply
    command = ["generate", str(tmp_path / "back"), "say cat and dog", "--max-new-tokens", "4"]
    printed = CliRunner().invoke(main, [*command, "--chat"])
    assert printed.exit_code == 0 and printed.stdout == reply + "\n"
    for template, warns in ((None, True), (back.chat_template, False)):
        caplog.clear()
        objective = {"type": "chat", "template": template}
        more = {"objective": objective, "train.init_from": str(back.folder), "train.samples": 0}
        trained(recipe(tmp_path, changed | more, steps=1), tmp_path / f"warns-{warns}")
        assert ("not with the chat template of" in caplog.text) is warns


@pytest.mark.full
def test_a_run_without_a_template_says_so(tmp_path: Path) -> None:
    plain = trained(recipe(tmp_path, {"objective": "completion", "train.samples": 0}, steps=1), tmp_path / "run")
    with pytest.raises(UsageError, match="has no chat template; train with objective: chat, or import a model"):
        plain.chat(turns("say cat"))
    printed = CliRunner().invoke(main, ["generate", str(tmp_path / "run"), "hi", "--chat"])
    assert printed.exit_code == 2 and "has no chat template" in printed.output


def test_a_conversation_in_the_terminal_remembers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfkit.cli.writing import replying

    seen: list[Any] = []
    read = run.read_chat
    monkeypatch.setattr(run, "read_chat", lambda messages: seen.append(messages) or read(messages))
    monkeypatch.setattr(run, "stream", lambda ids, **_: iter(["cat", ", dog"]))
    answer = replying(run, {})
    answer("say cat")
    answer("now backwards")
    assert seen == [turns("say cat"), turns("say cat", "cat, dog", "now backwards")]


@pytest.mark.slow
def test_an_imported_model_learns_made_up_answers_exactly_and_chats(tmp_path: Path) -> None:
    stranger, imported = tmp_path / "stranger", tmp_path / "imported"
    tokenizer = Bpe.Config(vocab_size=120).build().fit(json.dumps(one) for one in conversations())
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **special).save_pretrained(stranger)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(stranger)
    import_model(str(stranger), imported)
    shipped = yaml.safe_load((TASKS / "chat.yaml").read_text())
    shipped["data"].update(
        {name: {"type": "chat", "file": str(TASKS / f"chat.{name}.jsonl")} for name in ("train", "test")}
    )
    data = {**shipped["data"], "tokenizer": {"type": "file", "path": str(imported / "tokenizer.json")}}
    train = {**shipped["train"], "init_from": str(imported), "steps": 300}
    recipe = {"tfkit": 1, "extends": str(imported / "recipe.yaml"), "data": data, "objective": "chat", "train": train}
    run = trained(load_recipe(recipe), tmp_path / "run")
    assert run.evaluate("test")["exact_match"] == 100
    for one in conversations()[:24]:  # held out
        assert [run.chat(one[:1]), run.chat(one[:3])] == [one[1]["content"], one[3]["content"]]
    printed = CliRunner().invoke(main, ["generate", str(run.folder), "say moon and river"])
    assert printed.stdout == "moon, river.\n"
