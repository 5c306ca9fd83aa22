"""Run a short part of the tests on the other Pythons and with the oldest and newest releases that are promised.

On the Python that runs this: with the oldest torch at hand and the oldest promised release of every other dependency,
and with the newest torch at hand. On the others: with a torch where one is at hand, else the tests that need none.
At hand is a Python on PATH or among pyenv's, and a torch that pip finds on this machine. What cannot be run is printed,
and is no failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
TORCH = next(line.removeprefix("torch") for line in PROJECT["dependencies"] if line.startswith("torch>"))
OLDEST, BEYOND = re.findall(r"\d+(?:\.\d+)?", TORCH)
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
UNUSED = (
    "torch",
    PROJECT["name"],
    "transformers",
    "ruff",
    "mypy",
    "types-PyYAML",
)  # by the tests below, or installed apart
SECONDS = 240  # to install packages in; a network that takes longer is as good as none

WITHOUT_TORCH = (
    "tests/test_imports.py", "tests/cli/test_help.py::test_help_imports_nothing_heavy", "tests/data",
    "tests/recipe/test_compose.py", "tests/recipe/test_source.py",
    "tests/training/test_metrics.py", "tests/training/test_schedules.py",
    "--ignore=tests/data/test_arrays.py", "--ignore=tests/data/test_symbols.py", "--ignore=tests/data/test_tags.py",
)  # fmt: skip
# what hangs on torch: graphs, kernels, copies, threads, random numbers, files of weights
WITH_TORCH = (
    "tests/contracts/test_compile.py", "tests/functional", "tests/generation/test_decoder.py",
    "tests/generation/test_sample.py", "tests/generation/test_stream.py", "tests/models/test_counts.py",
    "tests/training/test_checkpoint.py", "tests/test_run.py",
)  # fmt: skip
# what hangs on the other libraries: YAML, options, tables, pictures, tokenizers, safetensors, statistics
WITH_OLDEST = (
    "tests/cli/test_help.py", "tests/core", "tests/data", "tests/functional", "tests/recipe/test_errors.py",
    "tests/recipe/test_source.py", "tests/studies/test_page.py", "tests/studies/test_statistics.py",
    "tests/training/test_checkpoint.py", "tests/training/test_metrics.py",
)  # fmt: skip


class Missing(Exception):
    """Something is not at hand; the message says what."""


def answer(python: str, code: str) -> str:
    """What the Python prints for the code; nothing where either fails (as a shim of pyenv may)."""
    try:
        return subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def torch_of(python: str) -> str:
    """Return the version of the torch that the Python imports, or nothing if it is none that is promised."""
    found = answer(python, "import torch; print(torch.__version__)")
    return found if found and numbers(OLDEST) <= numbers(found) < numbers(BEYOND) else ""


def numbers(version: str) -> list[int]:
    """Return the numbers of a version without its local part: 2.13.0+cpu -> [2, 13, 0]."""
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def torches(python: str) -> list[str]:
    """Return the promised releases of torch that pip finds on this machine for that Python, oldest first."""
    settings = answer(python, "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'])")
    first, *others = re.findall(r"file://[^\s']+", settings) or [""]
    indexes = ["--index-url", first, *(word for url in others for word in ("--extra-index-url", url))]
    command = [python, "-m", "pip", "index", "versions", "torch", *(indexes if first else ["--no-index"])]
    environment = os.environ | {"PIP_EXTRA_INDEX_URL": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    line = re.search("Available versions: (.*)", done.stdout)
    found = {version.strip() for version in line[1].split(",")} if line else set()
    return sorted((one for one in found if numbers(OLDEST) <= numbers(one) < numbers(BEYOND)), key=numbers)


def interpreter(version: str) -> str:
    """A Python of that version; raises Missing."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for python in (shutil.which(f"python{version}"), *sorted(map(str, versions.glob(f"{version}.*/bin/python")))):
        if python and answer(python, "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return python
    raise Missing(f"there is no python{version} on PATH or among pyenv's")


def attempt(command: list[str], what: str) -> None:
    """Run a command; raises Missing, with its last words, where that fails."""
    patience = {"PIP_DEFAULT_TIMEOUT": "15", "PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | patience, timeout=SECONDS, capture_output=True, text=True, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{what}: {error}") from error
    if done.returncode:
        raise Missing(": ".join([what, *(done.stdout + done.stderr).strip().splitlines()[-1:]]))


def install(python: str, *arguments: str) -> None:
    """Install packages with pip; raises Missing where that fails."""
    attempt([python, "-m", "pip", "install", "--quiet", *arguments], "pip cannot install what it needs")


@dataclass(frozen=True)
class Trial:
    """A Python, the torch that it gets, and whether every other dependency is the oldest that is promised."""

    python: str
    version: str
    torch: str = ""
    oldest: bool = False

    def __str__(self) -> str:
        others = ", the oldest promised release of every other dependency" if self.oldest else ""
        return (
            f"Python {self.version}, {f'torch {self.torch}' if self.torch else 'the tests that need no torch'}{others}"
        )


def trials(version: str) -> list[Trial]:
    """Return what can be run on a version of Python; raises Missing."""
    if version != OWN:
        python = interpreter(version)
        return [Trial(python, version, torch_of(python) or next(reversed(torches(python)), ""))]
    here = torch_of(sys.executable)
    known = torches(sys.executable) or [here]
    newer = [Trial(sys.executable, version, known[-1])] if numbers(known[-1]) > numbers(here) else []
    return [Trial(sys.executable, version, known[0], oldest=True), *newer]


def environment(trial: Trial, folder: Path) -> str:
    """Return the Python of a new virtual environment for a trial; raises Missing."""
    inherits = trial.version != OWN and bool(torch_of(trial.python))
    options = ["--system-site-packages"] * inherits
    attempt([trial.python, "-m", "venv", *options, str(folder)], "no virtual environment can be made with it")
    python = str(folder / "bin" / "python")
    if trial.torch and not inherits:
        install(python, f"torch=={trial.torch}")
    install(python, *packages(trial.oldest))
    install(python, "--no-deps", "--editable", ".")
    if trial.torch and not torch_of(python):
        raise Missing(f"torch {trial.torch} cannot be imported")
    return python


def packages(oldest: bool) -> list[str]:
    """Return what the tests need besides torch; of tfkit's dependencies, the oldest promised releases if asked."""
    extras = PROJECT["optional-dependencies"]
    own = [*PROJECT["dependencies"], *extras["train"], *extras["data"], *extras["study"]]
    if oldest:
        own = [re.sub(r">=(\d+)(\.[\d.]+)?.*", lambda found: f"=={found[1]}{found[2] or '.0'}.*", line) for line in own]
    return [line for line in [*own, *extras["test"]] if re.split(r"[^\w-]", line)[0] not in UNUSED]


def passed(trial: Trial, folder: Path) -> bool:
    """Run the trial's tests and print what they print; raises Missing where they cannot be run."""
    python = environment(trial, folder)
    tests = WITH_OLDEST if trial.oldest else WITH_TORCH if trial.torch else WITHOUT_TORCH
    caches = {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}  # none of theirs stays in the checkout
    commands = [
        [python, "-W", "error", "-m", "compileall", "-q", "tfkit", "tests"],
        [python, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", *tests],
    ]
    done = [
        subprocess.run(command, cwd=ROOT, env=os.environ | caches, capture_output=True, text=True, check=False)
        for command in commands
    ]
    print(f"== {trial}", *(text for one in done for text in (one.stdout, one.stderr) if text), sep="\n", flush=True)
    return not any(one.returncode for one in done)


def outcome(trial: Trial) -> str:
    """Return what is to be reported of a trial at the end, or nothing if its tests pass."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return "" if passed(trial, Path(folder) / "environment") else f"failed: {trial}"
        except Missing as error:
            return f"not run: {trial}: {error}"


def main() -> int:
    """Test what is at hand, and say at the end what was not; the exit status is 1 where a test fails."""
    planned, said = [], []
    for version in PYTHONS:
        try:
            planned += trials(version)
        except Missing as error:
            said.append(f"not run: Python {version}: {error}")
            continue
        if not planned[-1].torch:
            said.append(f"not run: Python {version} with torch: there is no wheel of torch{TORCH} on this machine")
    with ThreadPoolExecutor(2) as pool:  # one installs while another tests
        said += filter(None, pool.map(outcome, planned))
    for line in sorted(said, key=lambda line: line.startswith("failed")):
        print(line)
    return any(line.startswith("failed") for line in said)


if __name__ == "__main__":
    sys.exit(main())
