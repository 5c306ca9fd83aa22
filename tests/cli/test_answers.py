"""What the commands answer with --json, and what they say while they work."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from tfkit.cli.answers import answers_schema
from tfkit.cli.main import COMMANDS, main

from .typed import typed

SCHEMA = answers_schema()
# a command of each form of each answer; {w} and {p} are the runs of a writer and of a pair
ANSWERED = """
check {w}.yaml nothing.yaml --set model.d_modle=3
recipes bert
show gpt2
explain gpt2 model.layer.norm
diff gpt2 bert-base
draw gpt2 gpt2 --set model.layer.norm=rms_norm
draw gpt2 --out drawing.svg
train {w}.yaml --out trained --quiet
plan {w}.yaml --memory 80GB
evaluate {w} --split train --limit 2 --set generate.max_new_tokens=3
runs trained
generate {w} The --n-best 1 --num-beams 1
embed {w} words.txt
embed {w} words.txt --out vectors.npy
look {w} "The quick"
export {w} exported
import exported-gpt2 --out imported
verify {w} --against exported --trust
quantize {w} small --split train --limit 2
prove {w}
report {w}
report {w} --out page.html
study heads --dry-run
parts
parts norm
parts norm rms_norm
parts norm layer_norm --check
parts --matrix
parts --declarations
schema
schema --answers
schema --out schema.json
new mine
completion zsh
"""
FAULTY = (
    "parts --verify nothing.py --json", "--json check gpt2",
    "check nothing.yaml --json --set", "show nothing.yaml --json", "train {w} --json --out trained/ --hurry",
    "check gpt2 --json --jsonn", "generate {w} --json --temperature -1 a", "evaluate nothing --json",
    "predict {w} a --json", "draw gpt2 --out x.gif --json", "nothing --json", "compare {w} --json",
)  # fmt: skip


def schema_of(name: str) -> dict[str, Any]:
    return {**SCHEMA, "$ref": f"#/definitions/{name}"}


@pytest.mark.full
def test_answers_have_the_form_that_the_schema_says(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ..test_documents import theirs

    jsonschema.Draft7Validator.check_schema(SCHEMA)
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("The quick\n")
    theirs(tmp_path / "exported-gpt2")
    for line in ANSWERED.strip().splitlines():
        words = shlex.split(line.format(w=place / "writer", p=place / "pair"))
        result = typed(*words, "--json")
        assert result.exit_code == (2 if "nothing.yaml" in line else 0), f"{line}: {result.output}"
        lined = words[0] in ("generate", "predict", "embed")
        for text in result.stdout.splitlines() if lined else [result.stdout]:
            jsonschema.validate(json.loads(text), schema_of(words[0]))
    assert {*COMMANDS, "faults", "progress"} == set(SCHEMA["definitions"])


@pytest.mark.full
def test_faults_are_json_too(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for line in FAULTY:
        result = typed(*shlex.split(line.format(w=place / "writer")))
        assert (result.exit_code, result.stderr) == (2, ""), f"{line}: {result.output}"
        jsonschema.validate(json.loads(result.stdout), schema_of("faults"))


@pytest.mark.full
def test_progress_is_json_lines_on_standard_error_and_nothing_if_quiet(place: Path, tmp_path: Path):
    for options, answers in ((("--progress", "json"), False), (("--progress=json", "--quiet", "--json"), True)):
        result = typed("train", place / "writer.yaml", "--out", tmp_path / f"run{answers}", *options)
        assert result.exit_code == 0, result.output
        events = [json.loads(line) for line in result.stderr.splitlines()]
        for event in events:
            jsonschema.validate(event, schema_of("progress"))
        assert ("progress" in [event["event"] for event in events]) is not answers
        assert bool(answers and json.loads(result.stdout)) is answers
    assert "next: tfkit" in typed("train", place / "writer.yaml", "--out", tmp_path / "runTrue", "--resume").stdout


@pytest.mark.full
def test_a_shell_completes_recipes_runs_and_keys(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place)
    for line, word in (
        ("check bert-ba", "bert-base"), ("evaluate ./wri", "./writer"), ("explain wri", "writer"),
        ("check gpt2 --set model.layer.att", "model.layer.attention="), ("check gpt2 --set tr", "train."),
        ("com", "completion"), ("show gpt2 --le", "--length"),
    ):  # fmt: skip
        words = {"COMP_WORDS": f"tfkit {line}", "COMP_CWORD": str(len(line.split())), "_TFKIT_COMPLETE": "zsh_complete"}
        result = CliRunner(env=words).invoke(main, [], prog_name="tfkit")
        assert word in result.output.splitlines(), f"{line}: {result.output}"
        assert "file" not in result.output.splitlines(), "the script of bash forgets all words before a file"
    for shell in ("bash", "zsh", "fish"):
        assert "_TFKIT_COMPLETE" in typed("completion", shell).stdout
