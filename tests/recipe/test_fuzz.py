"""Broken recipes by the thousand: each is a model that runs, or is refused with a place; never a traceback.

The same mutants come every time. Others: `FUZZ_SEED=7 FUZZ_MUTANTS=20000 pytest -m slow tests/recipe/test_fuzz.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tfkit.cli.main import WRONG, main

from .fuzz.mutators import HEAVY
from .fuzz.oracle import FILE, MEGABYTES, Mutant, check, mutant, neighbours

FEW = 60
MANY = int(os.environ.get("FUZZ_MUTANTS", 5_000))
SEED = os.environ.get("FUZZ_SEED")

pytestmark = pytest.mark.filterwarnings("ignore::tfkit.core.errors.TfkitWarning")
randoms = st.randoms(use_true_random=False)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A working folder with the recipes that a mutant may extend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        neighbours()
        yield


def examples(count: int) -> Any:
    """Settings for so many mutants: the same ones each time, unless the environment asks for others."""
    checks = list(HealthCheck)
    made = settings(
        max_examples=count,
        derandomize=SEED is None,
        deadline=None,
        database=None,
        suppress_health_check=checks,
        phases=[Phase.generate],  # a mutant is printed whole; making it small may take an hour
    )
    return made if SEED is None else lambda test: seed(int(SEED))(made(test))


def hold(broken: Mutant) -> None:
    try:
        check(broken)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{broken}") from error


@pytest.mark.full
@examples(FEW)
@given(randoms)
def test_a_few_mutants(random):
    hold(mutant(random))


@pytest.mark.slow
@pytest.mark.timeout(0)
@examples(MANY)
@given(randoms)
def test_many_mutants(random):
    hold(mutant(random))


@pytest.mark.full
@examples(25)
@given(randoms)
def test_the_command_line_says_the_same(random):
    broken = mutant(random)
    if broken.mapping is not None or broken.text.startswith(b"-"):
        return
    options = [f"--set={text}" for text in broken.sets] + [f"--variant={name}" for name in broken.variants]
    accepted = check(broken)
    result = CliRunner().invoke(main, ["check", FILE, *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), broken
    if accepted and result.exit_code == WRONG:  # check reads more: the data, and the variants of a study
        recipe = broken.load()
        assert recipe.data is not None or recipe.study is not None, (result.output, broken)
        accepted = False
    assert result.exit_code == (0 if accepted else WRONG), (result.output, broken)
    faults = [line for line in result.stderr.splitlines() if ": warning: " not in line]
    assert bool(faults) is not accepted, broken


# ------------------------------------------------------------------------------------------ processes of bounded memory

BOUNDED = """
import resource, sys
import tfkit.cli.check, tfkit.reports.counts
megabyte = 2**20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv.pop(1)) * megabyte,) * 2)
from tfkit.cli.main import main
main(["check", *sys.argv[1:]])
"""

GOOD = """\
tfkit: 1
model:
  type: decoder
  d_model: 8
  vocab_size: 20
  num_layers: 4
  embedding: tokens
  layer: {norm: layer_norm, attention: {type: multi_head, num_heads: 2}, feedforward: {type: mlp, d_ff: 16}}
  head: language_model
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks the system for its memory in a way of Linux")
@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(
            GOOD.replace("num_layers: 4", "num_layers: 10000"), 0, id="the most layers", marks=pytest.mark.slow
        ),
        pytest.param(GOOD.replace("d_ff: 16", "d_ff: " + "[" * 10_000), WRONG, id="deep", marks=pytest.mark.slow),
        pytest.param(
            GOOD + "".join(f"k{number}: 0\n" for number in range(70_000)), WRONG, id="wide", marks=pytest.mark.slow
        ),
        pytest.param(GOOD.replace("tokens", HEAVY[-1]), WRONG, id="aliases of aliases"),
    ],
)
def test_a_process_of_bounded_memory(text, status):
    Path(FILE).write_text(text)
    command = [sys.executable, "-c", BOUNDED, str(MEGABYTES), FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr[-1000:]
    assert "Traceback" not in done.stderr
    assert (f"{FILE}: ok" in done.stdout) == (status == 0)
    assert (FILE in done.stderr) == (status == WRONG)
