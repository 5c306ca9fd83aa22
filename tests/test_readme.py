"""README is true: its recipes are the shipped ones, its commands print what it shows, its code runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tfkit.cli.main import main
from tfkit.core.registry import CATALOGUES, REGISTRY

from .interop.proofs import REFERENCES, between, text

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- (?P<what>\w+)(: (?P<value>[^ ]+))? -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(README)]


def blocks(what: str) -> list[dict[str, str]]:
    found = [block for block in BLOCKS if block["what"] == what]
    assert found, f"README has no block marked {what}"
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that README shows, as a reader would have made them."""
    for block in blocks("file"):
        (tmp_path / block["value"]).write_text(block["text"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def printed(text: str) -> list[str]:
    """The lines; how far off a broken part is depends on the numbers that torch draws."""
    return [re.sub(r"off by \d\.\de-\d\d", "off by ...", line.rstrip()) for line in text.splitlines()]


@pytest.mark.parametrize("block", blocks("recipe"), ids=lambda block: block["value"])
def test_a_recipe_shown_is_the_shipped_one(block):
    (shipped,) = (ROOT / "recipes").glob(f"*/{block['value']}.yaml")
    assert yaml.safe_load(block["text"]) == yaml.safe_load(shipped.read_text(encoding="utf-8"))


@pytest.mark.parametrize("block", blocks("run"), ids=lambda block: block["text"].splitlines()[0][2:50])
def test_a_command_prints_what_is_shown(block, folder):
    command, _, shown = block["text"].partition("\n")
    result = CliRunner().invoke(main, shlex.split(command.removeprefix("$ tfkit ")))
    assert result.exit_code == int(block["value"] or 0), result.output
    assert printed(result.output) == printed(shown)


@pytest.mark.parametrize("block", blocks("python"), ids=["python"])
def test_the_code_runs_and_prints_what_its_comments_say(block, capsys):
    exec(compile(block["text"], "README.md", "exec"), {})
    said = re.search(r"print\(.*\)  # (.*)", block["text"])
    assert said is not None and capsys.readouterr().out.strip() == said[1]


def test_an_attention_of_ones_own_is_short():
    (part,) = (block["text"] for block in blocks("file") if block["value"] == "fading.py")
    assert len([line for line in part.splitlines() if line.strip()]) < 25


def test_an_attention_of_ones_own_trains_and_generates(folder):
    recipe = {
        "tfkit": 1,
        "model": {
            "type": "decoder",
            "d_model": 16,
            "vocab_size": "tokenizer",
            "num_layers": 1,
            "embedding": "tokens",
            "layer": {
                "norm": "layer_norm",
                "attention": {"type": "fading", "num_heads": 2},
                "feedforward": {"type": "mlp", "d_ff": 16},
            },
            "head": {"type": "language_model", "tied": True},
        },
        "data": {"tokenizer": "character", "train": {"type": "text", "files": "words.txt"}, "batch": {"size": 4}},
        "objective": {"type": "causal_lm", "block": 8},
        "train": {"steps": 2},
    }
    (folder / "words.txt").write_text("to be or not to be\nthat is the question\n", encoding="utf-8")
    (folder / "own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    train = CliRunner().invoke(main, ["train", "own.yaml", "--import", "fading.py", "--out", "run"])
    assert train.exit_code == 0, train.output
    written = CliRunner().invoke(main, ["generate", "run", "to", "--max-new-tokens", "3", "--import", "fading.py"])
    assert written.exit_code == 0, written.output


def test_a_misspelt_part_of_ones_own_is_suggested(folder):
    wrong = ["check", "gpt2", "--import", "fading.py", "--set", "model.layer.attention.type=fadign"]
    result = CliRunner().invoke(main, wrong)
    assert result.exit_code == 2 and "Did you mean 'fading'?" in result.output


def test_the_two_commands_are_on_the_first_screen():
    first = "\n".join(README.splitlines()[:24])
    assert "tfkit train translate-numbers" in first and "&& pytest" in first


@pytest.mark.parametrize("slot", [slot for slot in CATALOGUES if slot != "activation"])
def test_every_part_is_listed(slot):
    (row,) = re.findall(rf"^\| {slot} \| (.*) \|$", README, re.MULTILINE)
    listed = [name for name in re.findall(r"`(\w+)`", row) if name != "none"]
    assert sorted(listed) == REGISTRY.names(slot)


def test_the_table_of_families_is_what_recipes_maps_and_proofs_say():
    _, table, behind = between(README)
    assert behind, "README has no table of families between its two marks"
    assert table == text(), "write it anew with: python -m tests.interop.proofs"


def test_every_family_is_in_the_table():
    _, table, _ = between(README)
    types = {name for family in REGISTRY.load("family").values() for name in family.model_types}
    assert set(re.findall(r"\[`([^`]+)`\]", table)) == types


def test_what_the_table_links_to_is_there():
    _, table, _ = between(README)
    links = re.findall(r"\]\(([^)]+)\)", table)
    assert links and [link for link in links if not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_a_test_of_that_recipe_or_of_its_part(name):
    tested = (ROOT / REFERENCES[name].file).read_text(encoding="utf-8")
    assert f'"{name}"' in tested or f'"{name.split("-")[0]}"' in tested
