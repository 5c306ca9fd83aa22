"""The command line, by click's runner: what it prints, where, and with which exit status."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tfkit.run.run
import tfkit.training.scoring
from tfkit.cli.main import main
from tfkit.core.errors import RunError, UsageError
from tfkit.training.interrupt import Interrupted

from ..sampling import looped

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
DATA = """\
data:
  tokenizer: character
  train: {type: parallel_text, source: FOLDER/a.txt, target: FOLDER/b.txt}
  valid: {type: parallel_text, source: FOLDER/a.txt, target: FOLDER/b.txt}
objective: seq2seq
train: {device: cpu, steps: 3, evaluate_every: 3, checkpoint_every: 3, samples: 0, schedule: {type: constant, lr: 0.01}}
generate: {max_new_tokens: 4}
"""


def tfkit_command(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.txt").write_text("".join(f"the {n} cats\n" for n in range(8)))
    (folder / "b.txt").write_text("".join(f"die {n} Katzen\n" for n in range(8)))
    text = RECIPE.replace("vocab_size: 30", "vocab_size: tokenizer") + DATA.replace("FOLDER", str(folder))
    (folder / "tiny.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    result = tfkit_command("train", folder / "tiny.yaml", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


# check


def test_check_says_what_a_recipe_is(recipe: Path) -> None:
    result = tfkit_command("check", recipe)
    assert re.fullmatch(rf"{recipe}: ok \(encoder_decoder, [\d,]+ parameters\)\n", result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")


def test_check_prints_every_fault_of_every_file(recipe: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(RECIPE.replace("multi_head", "multihed").replace("d_ff", "dff"))
    result = tfkit_command("check", wrong, recipe)
    assert result.exit_code == 2
    assert f"{wrong}:11:23: model.layer.attention.type: unknown attention 'multihed'." in result.stderr
    assert "Did you mean 'multi_head'?" in result.stderr
    assert f"{wrong}:12:30: model.layer.feedforward.dff: unknown option. Did you mean 'd_ff'?" in result.stderr
    assert not any(line.startswith("tfkit:") for line in result.stderr.splitlines())
    assert result.stdout.startswith(f"{recipe}: ok")


def test_check_says_what_a_giant_would_need(recipe: Path) -> None:
    result = tfkit_command("check", recipe, "--set", "model.num_layers=10000", "--set", "model.d_model=131072")
    assert re.search(r"encoder_decoder, [\d,]{20,} parameters, \d+\.\d PiB of weights in float32", result.stdout)
    assert result.exit_code == 0


def test_check_takes_values_and_variants(recipe: Path) -> None:
    sizes = [
        re.findall(r"([\d,]+) parameters", tfkit_command("check", recipe, *options).stdout)
        for options in ((), ("--variant", "wide"), ("--set", "model.d_model=32"))
    ]
    assert sizes[0] != sizes[1] == sizes[2]
    wrong = tfkit_command("check", recipe, "--set", "model.d_model=wide")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("--set model.d_model=wide: model.d_model: expected a whole number")


def test_parts_of_ones_own_come_with_import(recipe: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts.py"
    parts.write_text(
        "from tfkit import register\n"
        "from tfkit.components.feedforward import MLP\n"
        "@register('feedforward', 'my_own_mlp')\n"
        "class Mine(MLP): ...\n"
    )
    recipe.write_text(RECIPE.replace("type: mlp", "type: my_own_mlp"))
    assert tfkit_command("check", recipe).exit_code == 2
    assert tfkit_command("check", recipe, "--import", parts).exit_code == 0


def test_a_vocabulary_that_is_not_known_yet_is_said_so(folder: Path) -> None:
    for command in ("check", "show"):
        out = " ".join(tfkit_command(command, folder / "tiny.yaml").stdout.split())
        assert "vocabulary unknown until the tokenizer is trained: costs assume 1 token" in out


def test_ids_that_no_token_has_are_told(folder: Path) -> None:
    sizes = ("--set", "model.vocab_size=600", "--set", "data.tokenizer={type: bpe, vocab_size: 200}")
    for command in ("check", "show"):
        out = " ".join(tfkit_command(command, folder / "tiny.yaml", *sizes).stdout.split())
        assert "the tokenizer has at most 200 tokens: 400 of 600 ids are never generated" in out


# show


def test_show_is_a_table_of_80_columns(recipe: Path) -> None:
    result = tfkit_command("show", recipe, "--length", "16")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.stdout
    assert lines[0].startswith("mine: encoder_decoder, d_model 16, vocabulary 30, layers 2 and 2")
    for text in ("layers 0-1 (2x)", "- cross_attention", "mask: causal", "16 x 16 query, key, value, output", "total"):
        assert text in " ".join(result.stdout.split())
    assert "At length 16 on both sides, batch 1, float32" in result.stdout


@pytest.mark.full
def test_show_never_cuts_a_figure(recipe: Path) -> None:
    result = tfkit_command("show", recipe, "--set", "model.d_model=16777216", "--set", "model.layer.feedforward.d_ff=9")
    total = json.loads(
        tfkit_command(
            "show", recipe, "--json", "--set", "model.d_model=16777216", "--set", "model.layer.feedforward.d_ff=9"
        ).stdout
    )["total"]
    line = next(line for line in result.stdout.splitlines() if line.startswith("total"))
    assert f"{total['parameters']:,}" in line
    assert f"{total['flops_per_token']:,}" in line


def test_show_as_data(recipe: Path) -> None:
    data = json.loads(tfkit_command("show", recipe, "--json", "--dtype", "bfloat16", "--batch", "2").stdout)
    assert (data["name"], data["type"], data["length"], data["batch"]) == ("mine", "encoder_decoder", 512, 2)
    assert data["weight_bytes"] == 2 * data["parameters"]
    assert sum(row["parameters"] for row in data["rows"]) == data["total"]["parameters"]
    layer = next(row for row in data["rows"] if row["name"] == "layer" and row["stack"] == "decoder")
    assert (layer["layers"], layer["times"], layer["mask"]) == ("0-1", 2, ["causal"])
    attention = next(part for part in layer["parts"] if part["name"] == "attention")
    assert attention["weights"]["query.weight"] == [16, 16]
    assert {key: attention["options"][0][key] for key in ("type", "num_heads", "num_kv_heads", "head_dim")} == {
        "type": "multi_head", "num_heads": 2, "num_kv_heads": 2, "head_dim": 8,
    }  # fmt: skip


def test_show_folds_layers_that_alternate(recipe: Path) -> None:
    kinds = "  layers: {a: {}, b: {feedforward: {d_ff: 8}}}\n  pattern: [a, b]\n"
    recipe.write_text(RECIPE.replace("num_layers: 2\n", f"num_layers: 12\n{kinds}"))
    out = tfkit_command("show", recipe).stdout
    assert "layers 0, 2, 4 ... (6x)" in out
    assert "layers 1, 3, 5 ... (6x)" in out


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--length", "0", "expected a whole number from 1 to 2,147,483,648, got '0'"),
        ("--batch", "x", "expected a whole number from 1 to 1,048,576, got 'x'"),
        ("--dtype", "int8", "'float32', 'bfloat16'"),
    ],
)
def test_show_says_what_a_value_should_be(recipe: Path, option: str, value: str, message: str) -> None:
    result = tfkit_command("show", recipe, option, value)
    assert result.exit_code == 2
    assert option in result.stderr
    assert message in result.stderr


def test_show_of_a_length_the_model_cannot_take() -> None:
    result = tfkit_command("show", "gpt2", "--length", "2000")
    assert result.exit_code == 2
    assert result.stderr == "tfkit: length 2,000 exceeds the decoder's max_length 1,024\n"


# runs


@pytest.mark.full
def test_train_then_show_evaluate_and_generate(run: Path) -> None:
    assert "model.safetensors" in {path.name for path in run.iterdir()}
    shown = tfkit_command("show", run)
    assert (shown.exit_code, shown.stdout.split(":")[0]) == (0, "run")
    assert "tokenizer is trained" not in shown.stdout
    measured = tfkit_command("evaluate", run, "--split", "valid", "--limit", "4")
    assert measured.exit_code == 0, measured.output
    assert all(re.fullmatch(r"\w+: -?[\d.e+-]+", line) for line in measured.stdout.splitlines())
    assert measured.stdout.startswith("loss: ")
    written = tfkit_command("generate", run, "the 1 cats", "the 2 cats", "--max-new-tokens", "3")
    assert (written.exit_code, len(written.stdout.splitlines())) == (0, 2)


def test_evaluate_tries_another_way_to_write_and_leaves_the_file(run: Path) -> None:
    tfkit_command("evaluate", run, "--split", "valid", "--limit", "4")
    before = (run / "evaluation.json").read_text()
    measured = tfkit_command("evaluate", run, "--split", "valid", "--limit", "2", "--set", "generate.max_new_tokens=1")
    assert measured.exit_code == 0 and measured.stdout.startswith("loss: "), measured.output
    assert (run / "evaluation.json").read_text() == before
    refused = tfkit_command("evaluate", run, "--set", "generate.strategi=beam")
    assert refused.exit_code == 2 and "unknown option. Did you mean 'strategy'?" in refused.stderr
    refused = tfkit_command("evaluate", run, "--set", "model.d_model=3")
    assert refused.exit_code == 2 and "only keys of data, objective, generate" in " ".join(refused.stderr.split())


def test_explain_says_where_a_run_has_its_strategy_from(run: Path) -> None:
    result = tfkit_command("explain", run, "generate.strategy")
    assert result.exit_code == 0 and "greedy" in result.stdout, result.output


def test_generate_answers_standard_input_line_by_line(run: Path) -> None:
    result = tfkit_command("generate", run, stdin="".join(f"the {n} cats\n" for n in range(40)))
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 40)
    result = tfkit_command("generate", run, stdin=b"the cats\n\xff\n")
    assert result.exit_code == 2
    assert result.stderr.startswith("tfkit: standard input, line 2: not UTF-8 text")


def test_train_refuses_a_run_that_is_there(run: Path, folder: Path) -> None:
    result = tfkit_command("train", folder / "tiny.yaml", "--out", run)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"tfkit: {run}: ")
    assert tfkit_command("train", folder / "tiny.yaml", "--out", run, "--resume").exit_code == 0
    assert tfkit_command("train", folder / "tiny.yaml", "--resume", "--force").exit_code == 2


@pytest.mark.parametrize("command", ["evaluate", "generate", "show", "check", "train"])
def test_what_is_not_there_is_said_in_a_line(command: str, tmp_path: Path) -> None:
    result = tfkit_command(command, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(tmp_path / "nowhere") in result.stderr


@looped("command", ["evaluate", "generate", "show", "look", "runs", "draw", "import", "check", "train", "train hf"])
def test_a_name_that_no_file_can_have_is_said_in_a_line(command: str) -> None:
    command, *hub = command.split()
    name = f"hf://{'a' * 300}/b" if hub else "a" * 300
    result = tfkit_command(command, name, *(["a text"] if command == "look" else []))
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    said = "96 letters" if hub else "neither a shipped" if command in ("check", "train") else "at most 255 bytes"
    assert said in result.stderr
    if command == "show":
        with pytest.raises(UsageError, match="at most 255 bytes"):
            tfkit.load_run(name)


def test_ctrl_c_ends_with_130(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped at step 7; --resume continues")

    monkeypatch.setattr(tfkit.run, "train", stopped)
    result = tfkit_command("train", recipe)
    assert (result.exit_code, result.stderr) == (130, "tfkit: stopped at step 7; --resume continues\n")


def test_evaluate_prints_what_it_cannot_write(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path, *_: object) -> None:
        raise RunError(f"{file}: cannot be written: Read-only file system")

    monkeypatch.setattr(tfkit.training.scoring, "write_json", refused)
    measured = tfkit_command("evaluate", run, "--split", "valid", "--limit", "4")
    assert measured.exit_code == 0 and measured.stdout.startswith("loss: "), measured.output
    why = f"{run / 'evaluation.json'}: cannot be written: Read-only file system"
    assert measured.stderr == f"tfkit: the scores are not saved: {why}\n"


def test_scores_that_were_accepted_though_they_are_none_lose_no_new_ones(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "run")
    (other / "evaluation.json").write_text("[]")
    measured = tfkit_command("evaluate", other, "--split", "valid", "--limit", "4", "--accept-changes")
    assert measured.exit_code == 0 and measured.stdout.startswith("loss: "), measured.output
    assert measured.stderr.endswith("evaluation.json: does not contain scores by split\n")


def test_embed_computes_nothing_that_it_cannot_write(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the 1 cats\n")
    monkeypatch.setattr(tfkit.run.run, "text_vectors", lambda *_: pytest.fail("computed"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "x.npy", tmp_path / "file" / "x.jsonl"):
        refused = tfkit_command("embed", run, texts, "--out", out)
        assert refused.exit_code == 2 and "cannot be written" in refused.stderr, refused.output


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: 8 bytes")]
)
def test_too_little_memory_is_told(error: Exception, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("tfkit.generation.writer.find", broken)
    told = tfkit_command("generate", run, "the 1 cats")
    assert told.exit_code == 2 and told.stderr.startswith("tfkit: out of memory: "), told.output


@pytest.mark.parametrize("name", ["generate", "evaluate", "predict", "embed"])
def test_every_command_computes_where_there_is_cuda(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(folder: object, trust: bool, device: str, *_: object) -> None:
        asked.append(device)
        raise RunError("enough is known")

    monkeypatch.setattr(tfkit.run, "load_run", noted)
    line = [name, str(run), *(["-"] if name == "embed" else [])]
    more = [[], ["--device", "cpu"]] + [["--quantize", "int8"]] * (name in ("generate", "evaluate"))
    for options in more:
        tfkit_command(*line, *options, stdin="a")
    assert asked == ["auto", "cpu", "cpu"][: len(more)]


@pytest.mark.parametrize(
    "line",
    [
        "train tiny.yaml", "evaluate run", "generate run the", "predict run -", "embed run -", "look run the",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("mps", "tfkit does not support mps: it does not support float64, "),
        ("gpu", "unknown device 'gpu'; use auto, cpu, cuda or cuda:1"),
        ("cuda:99", "cuda:99 is not available; torch sees "),
    ],
)
def test_a_device_that_will_not_do_takes_one_line(
    line: str, device: str, said: str, folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    spellings = [["--device", device], ["--set", f"train.device={device}"]][: 2 if "train " in line else 1]
    for options in spellings:
        refused = tfkit_command(*line.split(), *options, stdin="a")
        assert refused.exit_code == 2 and not refused.stdout
        assert refused.stderr.count("\n") == 1 and f"device: {said}" in refused.stderr
    assert not (folder / "runs").exists()


def test_a_training_takes_a_device(folder: Path, tmp_path: Path) -> None:
    elsewhere = ("--set", "train.device=cuda:99", "--device", "cpu")
    assert tfkit_command("train", folder / "tiny.yaml", *elsewhere, "--out", tmp_path / "run").exit_code == 0
    assert tfkit.load_run(tmp_path / "run").recipe.train.device == "cpu"


# the rest


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    result = tfkit_command("chek", "x")
    assert result.exit_code == 2
    assert "No such command 'chek'. Did you mean 'check'?" in result.stderr
    assert "Available: recipes, check, show, " in tfkit_command("zzz").stderr
    removed = tfkit_command("bench", "products")
    assert removed.exit_code == 2 and removed.stderr.count("\n") == 1 and "python -m tests.benchmarks" in removed.stderr


@looped("command", ["check", "show", "train", "evaluate", "generate"])
def test_every_command_has_help(command: str) -> None:
    result = tfkit_command(command, "--help")
    assert result.exit_code == 0
    assert all(option in result.stdout for option in ("--trust", "--import", "--set"))
