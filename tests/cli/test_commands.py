"""The command line, by click's runner: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import tfkit.run.run
import tfkit.training.scoring
from tfkit.core.errors import RunError, UsageError
from tfkit.training.processes import Interrupted

from ..sampling import each, looped
from .typed import refused, typed
from .typed import typed as tfkit_command  # for the tests of other folders

__all__ = ["RECIPE", "tfkit_command"]

RECIPE = """\
tfkit: 1
model:
  type: encoder_decoder
  d_model: 16
  vocab_size: 30
  embedding: {type: tokens, shared: true}
  position: sinusoidal
  num_layers: 2
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
  head: {type: language_model, tied: true}
variants:
  wide: {model.d_model: 32}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    return file


# check and show


def test_check_says_what_a_recipe_is(recipe: Path) -> None:
    result = typed("check", recipe)
    assert re.fullmatch(rf"{recipe}: ok \(encoder_decoder, [\d,]+ parameters\)\n", result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    sizes = [
        re.findall(r"([\d,]+) parameters", typed("check", recipe, *options).stdout)
        for options in ((), ("--variant", "wide"), ("--set", "model.d_model=32"))
    ]
    assert sizes[0] != sizes[1] == sizes[2]
    giant = typed("check", recipe, "--set", "model.num_layers=10000", "--set", "model.d_model=131072").stdout
    assert re.search(r"encoder_decoder, [\d,]{20,} parameters, \d+\.\d PiB of weights in float32", giant)


def test_check_prints_every_fault_of_every_file(recipe: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(RECIPE.replace("multi_head", "multihed").replace("d_ff", "dff"))
    result = typed("check", wrong, recipe)
    assert result.exit_code == 2
    assert f"{wrong}:11:23: model.layer.attention.type: unknown attention 'multihed'." in result.stderr
    assert "Did you mean 'multi_head'?" in result.stderr
    assert f"{wrong}:12:30: model.layer.feedforward.dff: unknown option. Did you mean 'd_ff'?" in result.stderr
    assert not any(line.startswith("tfkit:") for line in result.stderr.splitlines())
    assert result.stdout.startswith(f"{recipe}: ok")


@looped("command", ["check", "show"])
def test_a_vocabulary_that_the_tokenizer_decides_is_told(command: str, place: Path) -> None:
    sizes = ("--set", "model.vocab_size=600", "--set", "data.tokenizer={type: bpe, vocab_size: 200}")
    for options, told in (
        ((), "vocabulary unknown until the tokenizer is trained: costs assume 1 token"),
        (sizes, "the tokenizer has at most 200 tokens: 400 of 600 ids are never generated"),
    ):
        assert told in " ".join(typed(command, place / "pair.yaml", *options).stdout.split())
    assert "tokenizer is trained" not in typed("show", place / "pair").stdout


def test_show_is_a_table_of_80_columns(recipe: Path) -> None:
    result = typed("show", recipe, "--length", "16")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and max(map(len, lines)) <= 80 and "\x1b" not in result.stdout
    assert lines[0].startswith("mine: encoder_decoder, d_model 16, vocabulary 30, layers 2 and 2")
    for text in ("layers 0-1 (2x)", "- cross_attention", "mask: causal", "16 x 16 query, key, value, output", "total"):
        assert text in " ".join(result.stdout.split())
    assert "At length 16 on both sides, batch 1, float32" in result.stdout


@pytest.mark.full
def test_show_never_cuts_a_figure(recipe: Path) -> None:
    wide = ("--set", "model.d_model=16777216", "--set", "model.layer.feedforward.d_ff=9")
    total = json.loads(typed("show", recipe, "--json", *wide).stdout)["total"]
    line = next(line for line in typed("show", recipe, *wide).stdout.splitlines() if line.startswith("total"))
    assert f"{total['parameters']:,}" in line and f"{total['flops_per_token']:,}" in line


def test_show_as_data(recipe: Path) -> None:
    data = json.loads(typed("show", recipe, "--json", "--dtype", "bfloat16", "--batch", "2").stdout)
    assert (data["name"], data["type"], data["length"], data["batch"]) == ("mine", "encoder_decoder", 512, 2)
    assert data["weight_bytes"] == 2 * data["parameters"]
    assert sum(row["parameters"] for row in data["rows"]) == data["total"]["parameters"]
    layer = next(row for row in data["rows"] if row["name"] == "layer" and row["stack"] == "decoder")
    assert (layer["layers"], layer["times"], layer["mask"]) == ("0-1", 2, ["causal"])
    attention = next(part for part in layer["parts"] if part["name"] == "attention")
    assert attention["weights"]["query.weight"] == [16, 16]
    options = {"type": "multi_head", "num_heads": 2, "num_kv_heads": 2, "head_dim": 8}
    assert options.items() <= attention["options"][0].items()


def test_show_folds_layers_that_alternate(recipe: Path) -> None:
    kinds = "  layers: {a: {}, b: {feedforward: {d_ff: 8}}}\n  pattern: [a, b]\n"
    recipe.write_text(RECIPE.replace("num_layers: 2\n", f"num_layers: 12\n{kinds}"))
    out = typed("show", recipe).stdout
    assert "layers 0, 2, 4 ... (6x)" in out and "layers 1, 3, 5 ... (6x)" in out


# runs


def test_evaluate_tries_another_way_to_write_and_leaves_the_file(pair: Path) -> None:
    measured = typed("evaluate", pair, "--split", "valid", "--limit", "4")
    assert all(re.fullmatch(r"\w+: -?[\d.e+-]+", line) for line in measured.stdout.splitlines())
    before = (pair / "evaluation.json").read_text()
    other = typed("evaluate", pair, "--split", "valid", "--limit", "2", "--set", "generate.max_new_tokens=1")
    assert other.exit_code == 0 and other.stdout.startswith("loss: "), other.output
    assert (pair / "evaluation.json").read_text() == before
    assert "greedy" in typed("explain", pair, "generate.strategy").stdout


def test_generate_answers_standard_input_line_by_line(pair: Path) -> None:
    result = typed("generate", pair, stdin="".join(f"the {n} cats\n" for n in range(40)))
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 40)
    assert refused("generate", pair, stdin=b"\xff\n").startswith("tfkit: standard input, line 1: not UTF-8 text")


def test_train_refuses_a_run_that_is_there(place: Path) -> None:
    assert refused("train", place / "pair.yaml", "--out", place / "pair").startswith(f"tfkit: {place / 'pair'}: ")
    assert typed("train", place / "pair.yaml", "--out", place / "pair", "--resume").exit_code == 0


def test_what_does_not_fit_is_refused_by_name(recipe: Path, pair: Path, place: Path) -> None:
    cases = [
        (("check", recipe, "--set", "model.d_model=wide"), "model.d_model=wide: model.d_model: expected a whole numb"),
        (("show", recipe, "--length", "0"), "--length': expected a whole number from 1 to 2,147,483,648, got '0'"),
        (("show", recipe, "--batch", "x"), "--batch': expected a whole number from 1 to 1,048,576, got 'x'"),
        (("show", recipe, "--dtype", "int8"), "'float32', 'bfloat16'"),
        (("show", "gpt2", "--length", "2000"), "tfkit: length 2,000 exceeds the decoder's max_length 1,024\n"),
        (("evaluate", pair, "--set", "generate.strategi=beam"), "unknown option. Did you mean 'strategy'?"),
        (("evaluate", pair, "--set", "model.d_model=3"), "only keys of data, objective, generate"),
        (("train", place / "pair.yaml", "--resume", "--force"), "--resume"),
        (("chek", "x"), "No such command 'chek'. Did you mean 'check'?"),
        (("bench", "products"), "`tfkit bench` was removed; run `python -m tests.benchmarks`"),
        (("zzz",), "Available: recipes, check, show, "),
    ]

    def check(words: tuple[object, ...], message: str) -> None:
        assert message in refused(*words)

    each(cases, check)


@looped("command", ["evaluate", "generate", "show", "look", "runs", "draw", "import", "check", "train", "train hf"])
def test_a_name_that_no_file_has_is_said_in_a_line(command: str, tmp_path: Path) -> None:
    command, *hub = command.split()
    more = ["a text"] if command == "look" else []
    if command in ("evaluate", "generate", "show", "check", "train") and not hub:
        (line,) = refused(command, tmp_path / "nowhere").splitlines()
        assert str(tmp_path / "nowhere") in line
    name = f"hf://{'a' * 300}/b" if hub else "a" * 300  # which no file can have
    (line,) = refused(command, name, *more).splitlines()
    assert ("96 letters" if hub else "neither a shipped" if command in ("check", "train") else "at most 255") in line
    if command == "show":
        with pytest.raises(UsageError, match="at most 255 bytes"):
            tfkit.load_run(name)


def test_ctrl_c_ends_with_130(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped at step 7; --resume continues")

    monkeypatch.setattr(tfkit.run, "train", stopped)
    result = typed("train", recipe)
    assert (result.exit_code, result.stderr) == (130, "tfkit: stopped at step 7; --resume continues\n")


def test_evaluate_prints_what_it_cannot_write(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shutil.copytree(pair, tmp_path / "run")
    (other / "evaluation.json").write_text("[]")
    lines = ("evaluate", other, "--split", "valid", "--limit", "4")
    measured = typed(*lines, "--accept-changes")
    assert measured.exit_code == 0 and measured.stdout.startswith("loss: "), measured.output
    assert measured.stderr.endswith("evaluation.json: does not contain scores by split\n")

    def full(file: Path, *_: object) -> None:
        raise RunError(f"{file}: cannot be written: Read-only file system")

    monkeypatch.setattr(tfkit.training.scoring, "write_json", full)
    measured = typed("evaluate", pair, *lines[2:])
    assert measured.exit_code == 0 and measured.stdout.startswith("loss: "), measured.output
    why = f"{pair / 'evaluation.json'}: cannot be written: Read-only file system"
    assert measured.stderr == f"tfkit: the scores are not saved: {why}\n"


def test_embed_computes_nothing_that_it_cannot_write(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("the 1 cats\n")
    monkeypatch.setattr(tfkit.run.run, "text_vectors", lambda *_: pytest.fail("computed"))
    for name in ("x.npy", "x.jsonl"):
        said = refused("embed", pair, tmp_path / "texts.txt", "--out", tmp_path / "texts.txt" / name)
        assert "cannot be written" in said


def test_too_little_memory_is_told(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: 8 bytes")):

        def broken(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("tfkit.generation.writer.find", broken)
        assert refused("generate", pair, "the 1 cats").startswith("tfkit: out of memory: ")


# devices


@looped("name", ["generate", "evaluate", "predict", "embed"])
def test_every_command_computes_where_there_is_cuda(name: str, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(folder: object, trust: bool, device: str, *_: object) -> None:
        asked.append(device)
        raise RunError("enough is known")

    monkeypatch.setattr(tfkit.run, "load_run", noted)
    line = [name, str(pair), *(["-"] if name == "embed" else [])]
    more = [[], ["--device", "cpu"]] + [["--quantize", "int8"]] * (name in ("generate", "evaluate"))
    for options in more:
        typed(*line, *options, stdin="a")
    assert asked == ["auto", "cpu", "cpu"][: len(more)]


@looped(
    ("device", "said"),
    [
        ("mps", "tfkit does not support mps: it does not support float64, "),
        ("gpu", "unknown device 'gpu'; use auto, cpu, cuda or cuda:1"),
        ("cuda:99", "cuda:99 is not available; torch sees "),
    ],
)
def test_a_device_that_will_not_do_takes_one_line(
    device: str, said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    lines = ["train pair.yaml", "evaluate pair", "generate pair the", "predict pair -", "embed pair -", "look pair the"]
    options = [(line, ["--device", device]) for line in lines] + [(lines[0], ["--set", f"train.device={device}"])]
    for line, option in options:
        told = refused(*line.split(), *option, stdin="a")
        assert told.count("\n") == 1 and f"device: {said}" in told, line
    assert not (place / "runs").exists()


def test_a_training_takes_a_device(place: Path, tmp_path: Path) -> None:
    elsewhere = ("--set", "train.device=cuda:99", "--device", "cpu")
    assert typed("train", place / "pair.yaml", *elsewhere, "--out", tmp_path / "run").exit_code == 0
    assert tfkit.load_run(tmp_path / "run").recipe.train.device == "cpu"
