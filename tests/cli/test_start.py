"""Commands that only read recipes answer without torch, in the same words, and start again where they need it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tfkit.cli.start import RESTARTED
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import load_recipe

from ..recipe.fuzz.oracle import mutant, neighbours

PART = """\
import tfkit
from tfkit.components.norm import RMSNorm

@tfkit.register("norm", "mine")
class Mine(RMSNorm): ...
"""
PROGRAM = """\
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from tfkit.cli import start

class Restarted(BaseException): ...

def execv(*_): raise Restarted

without, answers = sys.argv[1] == "without", {}
if without:
    os.execv = execv
    sys.meta_path.insert(0, start.StandIn(Path(find_spec("torch").origin).parent))
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            start.main(words)
        except SystemExit as end:
            answers[" ".join(words)] = [end.code, out.getvalue(), err.getvalue()]
        except BaseException:
            if not without:
                raise
json.dump(answers, sys.stdout)
"""
SETS = ("model.d_model=7", "model.layer.norm=nope", "train.freeze=[nope]", "train.steps=0", "train.device=gpu0")


def run(*words: str, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | more
    return subprocess.run(
        [sys.executable, *words], input=text, env=environment, capture_output=True, text=True, check=False
    )


def same(commands: list[list[str]], share: float) -> None:
    """Compare the answers with and without torch, of which a share must not need it."""
    found = {mode: run("-c", PROGRAM, mode, text=json.dumps(commands)) for mode in ("without", "with")}
    without, complete = (json.loads(done.stdout or done.stderr) for done in found.values())
    assert not {words: (got, complete[words]) for words, got in without.items() if got != complete[words]}
    assert len(without) >= share * len(complete)


@pytest.mark.full
def test_shipped_recipes_and_their_variants_get_the_same_words() -> None:
    variants = [(name, variant) for name in shipped_recipes() for variant in load_recipe(name).variant_entries]
    same([["check", name] for name in shipped_recipes()], 0.8)
    same([["check", name, "--variant", variant] for name, variant in variants], 0.6)  # many have short convolutions


@pytest.mark.full
def test_parts_and_explanations_are_the_same() -> None:
    parts = [["parts", slot, name] for slot in CATALOGUES for name in REGISTRY.names(slot)]
    keys = [["explain", name, key] for name in list(shipped_recipes())[::5] for key in ("model", "train", "nonsense")]
    same([["schema"], ["parts"], ["parts", "--json"], ["parts", "--matrix"], *parts, *keys], 0.8)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_faults_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    neighbours()
    commands = [["check", name, "--set", change] for name in shipped_recipes() for change in SETS]
    for number in range(400):
        broken = mutant(Random(f"start-{number}"))
        if broken.mapping is None and not broken.text.startswith(b"-"):
            Path(f"{number}.yaml").write_bytes(broken.text)
            commands.append(["check", f"{number}.yaml"])
    same(commands, 0.5)


@pytest.mark.full
def test_torch_is_imported_only_where_it_is_needed(tmp_path: Path) -> None:
    def answer(*words: str, **more: str) -> tuple[bool, int, str, list[str]]:
        """True if torch was imported; then the exit status and what was printed."""
        done = run("-X", "importtime", "-m", "tfkit", *words, **more)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        return "torch._tensor" in done.stderr, done.returncode, done.stdout, errors

    (tmp_path / "mine.py").write_text(PART, encoding="utf-8")
    code = ("--import", str(tmp_path / "mine.py"))
    light = (
        ["check", "--help"],
        ["check", "translate-numbers"],
        ["check", "nope"],
        ["explain", "gpt2", "model"],
        ["schema"],
        ["parts"],
    )
    needs = (["check", "gpt2", "lstm-encoder"], ["parts", "optimizer", "torch"], ["parts", "norm", "mine", *code])
    for expected, commands in ((False, light), (True, needs)):
        for words in commands:
            assert answer(*words) == (expected, *answer(*words, **{RESTARTED: "1"})[1:]), words


@pytest.mark.full
def test_the_library_never_sees_the_stand_in() -> None:
    done = run("-c", "import tfkit.cli.start, tfkit.cli.main, torch; print(torch.ones(2).sum().item())")
    assert done.stdout == "2.0\n"
