"""`tfkit parts`, by click's runner: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import Result

from tfkit.core.component import Component
from tfkit.core.errors import PluginProblem
from tfkit.core.registry import CATALOGUES, REGISTRY, base_of

from ..sampling import each, looped
from .typed import typed

MINE = '''\
from tfkit import register
from tfkit.components.feedforward import MLP


@register("feedforward", "{name}")
class Mine(MLP):
    """Two projections that are all mine (Doe 2031, arXiv 3101.00001)."""
'''


def parts(*arguments: str | Path, columns: int = 80) -> Result:
    return typed("parts", *arguments, columns=columns)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(name=f"mine_{tmp_path.name}"))
    return file


@pytest.mark.full
def test_declarations_of_a_slot_and_of_all() -> None:
    """Every class attribute of a base class that is declared with a default is in the table, with its comment."""
    tables = json.loads(parts("--declarations", "--json").stdout)
    found = {one["declaration"]: one for one in tables["declarations"]}
    assert found["writes"]["slots"].startswith("attention, mixer") and found["inert"]["slots"] == "all"
    assert {name for slot in CATALOGUES for name in declared(slot)} <= found.keys()
    assert all(one["meaning"] for one in tables["declarations"])
    assert tables["hooks"][0]["hook_of_multi_head"] == "project(x, context)"
    shown = parts("mask", "--declarations").stdout
    assert "opens" in shown and "higher_is_better" not in shown and "list of whole numbers" in shown
    refused = parts("mask", "causal", "--declarations")
    assert refused.exit_code == 2 and "--declarations applies to a whole slot; remove causal" in refused.stderr


def declared(slot: str) -> set[str]:
    module, name = base_of(slot)
    kinds = [kind for kind in getattr(import_module(module), name).__mro__ if issubclass(kind, Component)]
    values = [entry for kind in kinds for entry in vars(kind).items() if not entry[0].startswith(("_", "part_"))]
    return {name for name, value in values if isinstance(value, (bool, frozenset, tuple, str, dict))}


def test_all_parts_are_listed_and_a_slot_says_how_a_recipe_writes_it() -> None:
    listed = parts().stdout
    for slot in CATALOGUES:
        assert f"{slot}: " in listed and all(name in listed for name in REGISTRY.names(slot))
    result = parts("attention")
    assert "in a recipe: model.layer.attention: {type: multi_head, num_heads: 8}" in result.stdout
    assert "arXiv 1706.03762" in result.stdout
    assert "rotary" not in result.stdout


def test_a_part_is_told_whole(tmp_path: Path) -> None:
    result = parts("attention", "multi_head")
    assert result.exit_code == 0
    for text in ("num_heads", "whole number from 1", "required", "It can:", "minimal recipe"):
        assert text in result.stdout
    recipe = tmp_path / "shown.yaml"
    recipe.write_text(result.stdout.partition("minimal recipe:\n")[2])
    checked = typed("check", recipe)
    assert (checked.exit_code, checked.stderr) == (0, "")


@looped("columns", [40, 80, 200])
def test_what_is_printed_fits_the_terminal(columns: int) -> None:
    for arguments in ((), ("position",), ("tokenizer", "bpe"), ("--matrix",)):
        lines = parts(*arguments, columns=columns).stdout.splitlines()
        assert max(map(len, lines)) <= columns


def test_the_same_as_data() -> None:
    everything = json.loads(parts("--json").stdout)
    assert [slot["slot"] for slot in everything] == list(CATALOGUES)
    slot = json.loads(parts("attention", "--json").stdout)
    assert slot == everything[list(CATALOGUES).index("attention")]
    about = json.loads(parts("attention", "multi_head", "--json").stdout)
    assert about["arxiv"] == ["1706.03762"]
    assert about["capabilities"]["cache"] is True
    assert about["recipe"].startswith("tfkit: 1\n")
    assert {"fields", "needs", "paper", "doc", "file", "checked", "asks"} <= about.keys()
    tables = json.loads(parts("--matrix", "--json").stdout)
    assert tables[0]["refused"]["rotary"]["multi_head"] is None


def test_what_is_asked_wrongly_is_said_in_a_line() -> None:
    plurals = [(slot, f"{slot}{end}") for slot in CATALOGUES for end in ("s", "es")] + [("corpus", "corpora")]
    cases = [
        *(((word,), f"tfkit: unknown slot '{word}'. Did you mean '{slot}'?\n") for slot, word in plurals
          if word not in CATALOGUES),
        (("zzz",), "unknown slot 'zzz'. Available: attention, mixer,"),
        (("rotary",), "unknown slot 'rotary'. It is a part: tfkit parts position rotary"),
        (("attention", "multihed"), "unknown attention 'multihed'. Did you mean 'multi_head'?"),
        (("norm", "zzz"), "unknown norm 'zzz'. Available: layer_norm, rms_norm"),
        (("atention", "multi_head"), "unknown slot 'atention'. Did you mean 'attention'?"),
        (("--check",), "--check requires a SLOT"),
        (("norm", "--matrix"), "--matrix prints the tables of all slots"),
        (("norm", "--matrix", "--check"), "--matrix and --check cannot be combined"),
        (("norm", "layer_norm", "more"), "unexpected extra argument"),
    ]  # fmt: skip

    def check(arguments: tuple[str, ...], message: str) -> None:
        result = parts(*arguments)
        assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr

    each(cases, check)


# parts of one's own


def test_parts_of_ones_own_are_marked_with_their_file(mine: Path) -> None:
    result = parts("feedforward", "--import", mine, columns=200)
    assert result.exit_code == 0
    assert "Two projections that are all mine (Doe 2031, arXiv 3101.00001)" in result.stdout
    assert f"[custom: {mine}]" in result.stdout
    name = next(name for name in REGISTRY.names("feedforward") if name.startswith("mine_"))
    assert f"type: {name}" in parts("feedforward", name, "--import", mine).stdout


def test_a_broken_file_is_reported_and_the_others_are_listed(mine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import tfkit\n1 / 0\n")
    result = parts(
        "feedforward", "--import", broken, "--import", tmp_path / "nowhere.py", "--import", mine, columns=200
    )
    assert result.exit_code == 2
    assert f"{broken}:2: cannot be imported: ZeroDivisionError" in result.stderr
    assert f"{tmp_path / 'nowhere.py'}: " in result.stderr
    assert "Traceback" not in result.stderr
    assert f"[custom: {mine}]" in result.stdout
    assert "glu" in result.stdout


def test_a_broken_plugin_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = PluginProblem("runes", "runes 1.0", "runes.py:3: cannot be imported: NameError: name 'x' is not defined")
    monkeypatch.setattr(REGISTRY, "problems", [broken])
    result = parts("norm")
    assert result.exit_code == 2
    assert "layer_norm" in result.stdout
    unknown = parts("norm", "layer_nrm")
    assert "runes.py:3: cannot be imported" in unknown.stderr
    assert "Did you mean 'layer_norm'?" in unknown.stderr


# contracts


SCHEDULE = """\
from tfkit import register
from tfkit.training.schedule import Constant


@register("schedule", "{name}")
class Mine(Constant):
    def lr(self, step, total, d_model):
        return {rate}
"""


def test_parts_are_held_to_their_contracts(tmp_path: Path) -> None:
    good, bad, gone = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "nowhere.py"
    good.write_text(SCHEDULE.format(name="good", rate="self.config.lr"))
    bad.write_text(SCHEDULE.format(name="bad", rate="-1.0"))
    for words, status, shown in (
        (("--verify", good), 0, "schedule good"),
        (("--verify", good, "--verify", bad), 1, "FAILED"),
        (("schedule", "good", "--verify", good, "--verify", bad), 0, "schedule good"),
        (("--verify", bad, "--verify", good, "--verify", gone), 2, "schedule good"),
        (("--verify", gone), 2, ""),
        (("schedule", "linear", "--check"), 0, "schedule linear"),
    ):
        result = parts(*words)
        assert (result.exit_code, ("schedule bad" in result.stdout)) == (status, bad in words and "good" not in words)
        assert shown in result.stdout and ("nowhere.py" in result.stderr) == (gone in words)
        assert "cosine" not in result.stdout


def test_a_file_without_what_is_asked_for_is_reported(mine: Path, tmp_path: Path) -> None:
    told = " ".join(parts("norm", "--verify", mine).stderr.split())
    assert told.startswith("tfkit: the modules of --verify register no norm, only feedforward 'mine_")
    plain = tmp_path / "plain.py"
    plain.write_text("import tfkit\n")
    result = parts("--verify", plain)
    assert result.exit_code == 2 and "plain.py" in result.stderr
