"""Inputs besides ids from a column to the texts: data, training, generation, predictions, exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

import tfkit
from tfkit.cli.main import main
from tfkit.core.errors import TfkitError
from tfkit.core.registry import REGISTRY
from tfkit.generation.search import prepare
from tfkit.recipe.imports import import_parts
from tfkit.recipe.load import load_recipe
from tfkit.training.feed import Feed
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare as prepared

PART = '''
import torch
import tfkit
from tfkit.components.norm import Norm

@tfkit.register("norm", "vivid")
class Vivid(Norm):
    """LayerNorm, scaled and shifted by the input "mood"."""

    inputs = {"mood": {"width": 2}}

    def __init__(self, config, shape):
        super().__init__(config, shape)
        self.project = torch.nn.Linear(2, 2 * shape.d_model)

    def forward(self, x, context):
        scale, shift = self.project(context.inputs["mood"])[:, None].chunk(2, dim=-1)
        return (1 + scale) * torch.layer_norm(x, x.shape[-1:]) + shift
'''
LAYER = {
    "residual": "pre_norm", "norm": "vivid", "attention": {"type": "multi_head", "num_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 32},
}  # fmt: skip
ROLES = {"pad": "<pad>", "start": "<s>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
MOODS = [(0.1 * place, 1 - 0.1 * place) for place in range(11)]
TEXTS = [f"the {animal} {'sings' if mood[0] > 0.5 else 'sleeps now'}" for mood in MOODS for animal in ("cat", "dog")]


def recipe(folder: Path, corpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    model = {
        "type": "decoder", "d_model": 16, "num_layers": 2, "vocab_size": "tokenizer", "max_length": 8,
        "embedding": "tokens", "position": "learned", "layer": LAYER, "head": "language_model", **more.pop("model", {}),
    }  # fmt: skip
    data = {"tokenizer": {"type": "word", "special_tokens": ROLES}, "train": corpus, "batch": {"size": 8}}
    train = {"steps": 60, "schedule": {"type": "constant", "lr": 0.02}}
    objective = {"type": "causal_lm", "join": False}
    sections = {"model": model, "data": data | more.pop("data", {}), "objective": objective, "train": train}
    return {"tfkit": 1, "imports": [str(folder / "vivid_part.py")], **sections, **more}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, dict[str, Any]]]]:
    """A folder with the part and the same examples in three formats, and their corpora."""
    folder = tmp_path_factory.mktemp("vivid")
    (folder / "vivid_part.py").write_text(PART)
    rows = [(text, MOODS[place // 2]) for place, text in enumerate(TEXTS)]
    (folder / "a.csv").write_text("words,mood\n" + "".join(f"{text},{a} {b}\n" for text, (a, b) in rows))
    (folder / "a.jsonl").write_text("".join(json.dumps({"words": text, "mood": mood}) + "\n" for text, mood in rows))
    fields = {"text": "words", "mood": "mood"}
    corpora = {
        "csv": {"type": "csv", "file": str(folder / "a.csv"), "fields": fields},
        "json_lines": {"type": "json_lines", "file": str(folder / "a.jsonl"), "fields": fields},
    }
    try:
        from pyarrow import parquet, table

        parquet.write_table(table({"words": TEXTS, "mood": [list(mood) for _, mood in rows]}), folder / "a.parquet")
        corpora["parquet"] = {"type": "parquet", "file": str(folder / "a.parquet"), "fields": fields}
    except ImportError:
        pass
    with REGISTRY.recording() as entries:
        import_parts(str(folder / "vivid_part.py"))
    yield folder, corpora
    REGISTRY.take_back(iter(entries))


@pytest.fixture(scope="module")
def run(made: tuple[Path, dict[str, dict[str, Any]]]) -> Any:
    folder, corpora = made
    tfkit.train(recipe(folder, corpora["csv"]), out=folder / "run", progress=False, trust=True)
    return tfkit.load_run(folder / "run", trust=True)


def test_columns_go_along_with_their_examples(made: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    """Equal batches from every format; each row of a batch has the numbers of its own example."""
    folder, corpora = made
    batches = []
    for corpus in corpora.values():
        task = prepared(load_recipe(recipe(folder, corpus), trust=True), Reporter(False))
        batches.append(task.train.make(0, 0, task.train.plan(0)[0]))
        assert isinstance(task.train, Feed) and batches[-1]["inputs.mood"].shape == (8, 2)
        ids, words = batches[-1]["input_ids"], task.tokenizer
        for row, (first, second) in zip(ids.tolist(), batches[-1]["inputs.mood"].tolist(), strict=True):
            assert ("sings" in words.decode(row)) == (first > 0.5) and abs(first + second - 1) < 1e-6
    assert all(batch.keys() == batches[0].keys() for batch in batches)
    assert all(torch.equal(batch[name], batches[0][name]) for batch in batches for name in batch)


def test_recipes_that_do_not_fit(made: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path) -> None:
    folder, corpora = made
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"words": "a b", "mood": [1, 2]}\n{"words": "a b", "mood": [1, 2, 3]}\n')
    lines = {**corpora["json_lines"], "file": str(bad)}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (lines, {}, r"bad.jsonl:2: mood, which norm 'vivid' reads, must have 2 finite numbers, got '[1, 2, 3]'"),
        ({**lines, "fields": {"text": "words", "mood": "words"}}, {}, r"bad.jsonl:1: mood, which norm 'vivid' reads, "),
        (
            {**lines, "fields": {"text": "words"}},
            {},
            r"reads the input 'mood', which this corpus does not",
        ),
        (lines, {"objective": {"type": "causal_lm"}}, r"no mood of their own, which the model reads; set join: false"),
        (
            lines,
            {"data": {"batch": {"pack": True, "length": 8}}},
            r"which norm 'vivid' reads, belongs",
        ),
        (lines, {"data": {"shards": True}}, r"is held in memory with the texts; remove shards"),
        (lines, {"model": {"type": "encoder", "head": "masked_lm"}}, "which a part of a head does not have"),
        (lines, {"objective": "chat"}, r"'chat' does not pass the input 'mood', which norm 'vivid' reads"),
    ]
    for corpus, more, words in cases:
        file = tmp_path / "recipe.yaml"
        file.write_text(yaml.safe_dump(recipe(folder, corpus, **more)))
        result = CliRunner().invoke(main, ["check", str(file), "--trust"])
        assert words in f"{result.output}{result.stderr}{result.exception}", words


@pytest.mark.full
def test_texts_follow_their_inputs(run: Any, tmp_path: Path) -> None:
    """Batches, beams, drafts and a static cache, in Python and on the command line; cached = uncached."""
    moods = [[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]
    prompts, wanted = ["the dog", "the dog", "the"], [" sings", " sleeps now", None]
    for how in ({}, {"num_beams": 2}, {"strategy": "speculative"}, {"batch_size": 1}):
        found = run.generate(prompts, inputs={"mood": moods}, **how)
        assert found[:2] == wanted[:2] and found[2].endswith("sings"), how
    assert run.generate(["the dog"] * 3, inputs={"mood": moods[0]}) == [" sings"] * 3
    assert "".join(run.stream("the dog", inputs={"mood": moods[1]})) == " sleeps now"
    ids, extra = [run.read([text])[0] for text in prompts], {"mood": torch.tensor(moods)}
    with torch.no_grad():
        steppers = [prepare(run.model, ids, 4, inputs=extra, use_cache=cached).stepper() for cached in (True, False)]
        for token in (5, 6):
            both = [stepper.logits() for stepper in steppers]
            torch.testing.assert_close(*both, rtol=0, atol=1e-5)
            for stepper in steppers:
                stepper.append(torch.full((3,), token))
                stepper.keep(torch.tensor([2, 1, 0]))
    first, second = run.embed(["the dog"] * 2, inputs={"mood": moods[:2]})
    assert (first - second).abs().max() > 0.1 and run.evaluate("train")["loss"] < 1
    file = tmp_path / "in.jsonl"
    file.write_text('{"words": "the dog", "mood": [0.9, 0.1]}\n{"words": "the dog", "mood": "0.1, 0.9"}\n')
    table = tmp_path / "in.csv"
    table.write_text("mood,words,id\n0.9 0.1,the dog,a\n")
    calls: list[tuple[list[str], int, str]] = [
        (["generate", "the dog", "--input", "mood=0.9,0.1"], 0, "sings"),
        (["generate", "--input", str(file), "--field", "words"], 0, '"text": " sleeps now"'),
        (["embed", "--input", str(file), "--field", "words"], 0, '"vector"'),
        (["generate", "--input", str(table), "--field", "words"], 0, '{"id": "a", "text": " sings"}'),
        (["generate", "the dog"], 2, "this model reads the input 'mood'; add --input mood=N,N"),
        (["generate", "the dog", "--input", "mood=1"], 2, "mood must have 2 finite numbers, got '1'"),
        (["generate", "the dog", "--input", "tone=1"], 2, "--input tone=: no part of this model reads it"),
    ]
    for (command, *arguments), status, words in calls:
        result = CliRunner().invoke(main, [command, str(run.folder), *arguments, "--trust"])
        text = f"{result.output}{result.exception or ''}"
        assert words in text and (status == 0) == (result.exit_code == 0), (arguments, text)
    for inputs, words in ((None, "got none"), ({"mood": [1.0]}, "got shape [1, 1]"), ({"mood": "x"}, "map names")):
        with pytest.raises(TfkitError, match=re.escape(words)):
            run.generate(["the dog"], inputs=inputs)


@pytest.mark.full
@pytest.mark.parametrize("objective", ["seq2seq", "completion", "classification", "masked_lm"])
def test_other_objectives(made: tuple[Path, dict[str, dict[str, Any]]], objective: str, tmp_path: Path) -> None:
    """The answer depends on the input alone; evaluation generates or predicts with it."""
    folder, _ = made
    file, pair = tmp_path / "a.jsonl", objective in ("seq2seq", "completion")
    said, answer = ("source", "target") if pair else ("text", "label")
    ends = ["sings" if first > 0.5 else "sleeps" for first, _ in MOODS]
    rows = [{said: "the cat", answer: end, "mood": mood} for end, mood in zip(ends, MOODS, strict=True)]
    rows = (
        [{"text": f"the cat {row['label']}", "mood": row["mood"]} for row in rows] if objective == "masked_lm" else rows
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    corpus = {"type": "json_lines", "file": str(file), "fields": {name: name for name in rows[0]}}
    heads = {
        "classification": {"type": "classifier", "num_classes": "labels"},
        "masked_lm": {"type": "masked_lm", "norm": "layer_norm"},
    }
    kinds = {"seq2seq": "encoder_decoder", "completion": "decoder"}
    model = {"type": kinds.get(objective, "encoder"), "head": heads.get(objective, "language_model")}
    model |= {"special_ids": {"start": 1}} if objective == "seq2seq" else {}
    corpora = {"train": corpus, "valid": corpus}
    loaded = recipe(folder, corpus, model=model, data=corpora, objective=objective)
    tfkit.train(loaded, out=tmp_path / "run", progress=False, trust=True)
    run = tfkit.load_run(tmp_path / "run", trust=True)
    if pair:
        assert run.generate(["the cat"] * 2, inputs={"mood": [MOODS[9], MOODS[1]]}) == ["sings", "sleeps"]
        assert run.evaluate("valid")["exact_match"] > 0.8
    elif objective == "classification":
        found = run.predict(["the cat"] * 2, inputs={"mood": [MOODS[9], MOODS[1]]})
        assert [one["label"] for one in found] == ["sings", "sleeps"] and run.evaluate("valid")["accuracy"] > 0.8
    else:
        texts = run.predict(["the cat <mask>"] * 2, inputs={"mood": [MOODS[9], MOODS[1]]})
        assert [one["filled"] for one in texts] == ["the cat sings", "the cat sleeps"]
        assert "sings" in run.generate(["the cat <mask>"], inputs={"mood": MOODS[9]})[0]


@pytest.mark.full
def test_exports_take_the_input(run: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    result = CliRunner().invoke(main, ["export", str(run.folder), str(tmp_path / "hf"), "--trust"])
    assert result.exit_code == 0, result.output
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    ids, mood = torch.tensor(run.read(["the dog"] * 2)), torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    whole = run.model(ids, inputs={"mood": mood}).logits
    for model in (loaded, tfkit.as_pretrained(run)):
        torch.testing.assert_close(model(input_ids=ids, mood=mood).logits, whole, rtol=0, atol=1e-6)
        for beams in (1, 2):
            out = model.generate(ids, mood=mood, max_new_tokens=3, do_sample=False, num_beams=beams)
            assert [run.tokenizer.decode(row) for row in out.tolist()] == ["the dog sings", "the dog sleeps now"]
        with pytest.raises(Exception, match=r"inputs\['mood'\], which norm 'vivid' reads, must be a tensor"):
            model(input_ids=ids)
        with pytest.raises(ValueError, match="tone"):
            model.generate(ids, mood=mood, tone=mood)
    result = CliRunner().invoke(main, ["verify", str(run.folder), "--against", str(tmp_path / "hf"), "--trust"])
    assert "the input mood is random" in result.output and result.exit_code == 0
    from tfkit.interop.onnx.graphs import graphs_of

    with pytest.raises(TfkitError, match="norm 'vivid' reads the input 'mood', which ONNX graphs of tfkit do not have"):
        graphs_of(run.model)
