"""`tfkit parts`, by click's runner: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tfkit.cli.main import main
from tfkit.core.plugins import PluginProblem
from tfkit.core.registry import CATALOGUES, REGISTRY

from ..sampling import looped

MINE = '''\
from tfkit import register
from tfkit.components.feedforward import MLP


@register("feedforward", "{name}")
class Mine(MLP):
    """Two projections that are all mine (Doe 2031, arXiv 3101.00001)."""
'''


def parts(*arguments: str | Path, columns: int = 80) -> Result:
    command = ["parts", *map(str, arguments)]
    result = CliRunner().invoke(main, command, env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(name=f"mine_{tmp_path.name}"))
    return file


def test_all_parts_are_listed() -> None:
    result = parts()
    assert result.exit_code == 0
    for slot in CATALOGUES:
        assert f"{slot}: " in result.stdout
        for name in REGISTRY.names(slot):
            assert name in result.stdout


def test_a_slot_says_how_a_recipe_writes_it() -> None:
    result = parts("attention")
    assert result.exit_code == 0
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
    checked = CliRunner().invoke(main, ["check", str(recipe)])
    assert (checked.exit_code, checked.stderr) == (0, "")


@pytest.mark.parametrize("columns", [40, 80, 200])
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


@looped("slot", list(CATALOGUES))
def test_a_plural_is_answered_with_the_slot(slot: str) -> None:
    for plural in {f"{slot}s", f"{slot}es", "corpora" if slot == "corpus" else f"{slot}s"} - set(CATALOGUES):
        result = parts(plural)
        assert result.exit_code == 2
        assert result.stderr == f"tfkit: unknown slot '{plural}'. Did you mean '{slot}'?\n"
        assert result.stdout == ""


@looped(
    ("arguments", "message"),
    [
        (("zzz",), "unknown slot 'zzz'. Available: attention, mixer,"),
        (("rotary",), "unknown slot 'rotary'. It is a part: tfkit parts position rotary"),
        (("attention", "multihed"), "unknown attention 'multihed'. Did you mean 'multi_head'?"),
        (("norm", "zzz"), "unknown norm 'zzz'. Available: layer_norm, rms_norm"),
        (("atention", "multi_head"), "unknown slot 'atention'. Did you mean 'attention'?"),
        (("zzz", "--json"), "unknown slot 'zzz'."),
        (("--check",), "--check requires a SLOT"),
        (("norm", "--matrix"), "--matrix prints the tables of all slots"),
        (("norm", "--matrix", "--check"), "--matrix and --check cannot be combined"),
        (("norm", "--check", "--json"), "--check does not support --json"),
        (("norm", "layer_norm", "more"), "unexpected extra argument"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_line(arguments: tuple[str, ...], message: str) -> None:
    result = parts(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


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
    file = tmp_path / "held.py"
    file.write_text(SCHEDULE.format(name="held", rate="self.config.lr"))
    result = parts("--verify", file)
    assert result.exit_code == 0, result.output
    assert "schedule held" in result.stdout


def test_a_part_that_breaks_its_contract_ends_with_1(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(SCHEDULE.format(name="good", rate="self.config.lr"))
    bad.write_text(SCHEDULE.format(name="bad", rate="-1.0"))
    result = parts("--verify", good, "--verify", bad)
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "schedule good" in result.stdout
    only = parts("schedule", "good", "--verify", good, "--verify", bad)
    assert only.exit_code == 0
    assert "schedule bad" not in only.stdout
    broken = parts("--verify", bad, "--verify", good, "--verify", tmp_path / "nowhere.py")
    assert broken.exit_code == 2
    assert "schedule good" in broken.stdout
    assert "nowhere.py" in broken.stderr


def test_only_what_is_asked_for_is_held_to_its_contracts(mine: Path) -> None:
    result = parts("norm", "--verify", mine)
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert told.startswith("tfkit: the modules of --verify register no norm, only feedforward 'mine_")


def test_a_file_that_cannot_be_verified_is_reported(tmp_path: Path) -> None:
    result = parts("--verify", tmp_path / "nowhere.py")
    assert result.exit_code == 2
    assert "nowhere.py" in result.stderr
    plain = tmp_path / "plain.py"
    plain.write_text("import tfkit\n")
    result = parts("--verify", plain)
    assert result.exit_code == 2
    assert "plain.py" in result.stderr


def test_shipped_parts_are_checked_by_name() -> None:
    result = parts("schedule", "linear", "--check")
    assert result.exit_code == 0, result.output
    assert "schedule linear" in result.stdout
    assert "cosine" not in result.stdout


@pytest.mark.full
def test_help_imports_no_torch() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom tfkit.cli.main import main\n"
        "result = CliRunner().invoke(main, ['parts', '--help'])\n"
        "assert result.exit_code == 0 and '--verify' in result.output\n"
        "print([name for name in ('torch', 'pydantic', 'rich') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
