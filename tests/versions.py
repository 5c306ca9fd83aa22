"""Run a short part of the tests on the other Pythons and with the oldest torch that are promised, where at hand.

At hand is a Python on PATH or among pyenv's, and a torch that it has already or that pip finds on this machine.
A Python without a torch runs the tests that need none. What cannot be run is printed, and is no failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
TORCH = next(line.removeprefix("torch") for line in PROJECT["dependencies"] if line.startswith("torch>"))
OLDEST, BEYOND = re.findall(r"2\.\d+", TORCH)
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
UNUSED = ("torch", "tfkit", "transformers", "ruff", "mypy", "types-PyYAML")  # by the tests below, or installed apart
SECONDS = 240  # to install packages in; a network that takes longer is as good as none

WITHOUT_TORCH = (
    "tests/test_imports.py", "tests/cli/test_process.py::test_help_imports_nothing_heavy", "tests/data",
    "tests/generation/test_pattern.py", "tests/recipe/test_compose.py", "tests/recipe/test_edit.py",
    "tests/recipe/test_source.py", "tests/training/test_baseline.py", "tests/training/test_metrics.py",
    "tests/training/test_schedules.py",
)  # fmt: skip
# what hangs on Python or torch: graphs, copies, threads, files, signals, random numbers, messages
WITH_TORCH = (
    "tests/contracts/test_compile.py", "tests/contracts/test_broken_parts.py", "tests/core", "tests/functional",
    "tests/data/test_corpus.py", "tests/data/test_tokenizer.py", "tests/generation/test_rules.py",
    "tests/generation/test_sample.py", "tests/generation/test_stream.py", "tests/generation/test_writer.py",
    "tests/recipe/test_errors.py", "tests/recipe/test_source.py", "tests/training/test_checkpoint.py",
    "tests/test_plugins.py", "tests/test_run.py",
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
    """The version of the torch that the Python imports, or nothing."""
    found = answer(python, "import torch; print(torch.__version__)")
    minor = [int(part) for part in re.findall(r"\d+", found)[:2]]
    low, high = ([int(part) for part in bound.split(".")] for bound in (OLDEST, BEYOND))
    return found if found and low <= minor < high else ""


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


def install_torch(python: str, wanted: str) -> None:
    """Install such a torch from a wheel on this machine, without the libraries of a GPU; raises Missing."""
    install(python, "--no-index", "--no-deps", f"torch{wanted}")
    needs = answer(python, r"from importlib.metadata import requires; print(*requires('torch'), sep='\n')").splitlines()
    install(python, *(line for line in needs if not re.search("extra ==|^(nvidia|cuda|triton)", line)))


def environment(version: str, folder: Path) -> str:
    """The Python of a new virtual environment with the oldest torch at hand, or none; raises Missing.

    On the Python that runs this, only the oldest torch of all is of use.
    """
    base = sys.executable if version == OWN else interpreter(version)
    inherits = version != OWN and bool(torch_of(base))
    venv = [base, "-m", "venv", *["--system-site-packages"] * inherits, str(folder)]
    attempt(venv, "no virtual environment can be made with it")
    python = str(folder / "bin" / "python")
    for wanted in (f"=={OLDEST}.*",) if version == OWN else (f"=={OLDEST}.*", TORCH):
        if not torch_of(python):
            with contextlib.suppress(Missing):
                install_torch(python, wanted)
    if version == OWN and not torch_of(python):
        raise Missing("there is no wheel of it on this machine")
    return python


def packages() -> list[str]:
    """What the tests need beside torch."""
    extras = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *extras["train"], *extras["data"], *extras["test"]]
    return [line for line in listed if re.split(r"[^\w-]", line)[0] not in UNUSED]


def tested(version: str, folder: Path) -> tuple[str, bool]:
    """The torch that the tests ran with on that Python, if any, and whether they passed; raises Missing."""
    python = environment(version, folder)
    torch = torch_of(python)
    install(python, *packages())
    install(python, "--no-deps", "--editable", ".")
    print(f"== Python {version}, {f'torch {torch}' if torch else 'the tests that need no torch'}", flush=True)
    caches = {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}  # none of theirs stays in the checkout
    commands = [
        [python, "-W", "error", "-m", "compileall", "-q", "tfkit", "tests"],
        [python, "-m", "pytest", "-p", "no:cacheprovider", *(WITH_TORCH if torch else WITHOUT_TORCH)],
    ]
    done = [subprocess.run(command, cwd=ROOT, env=os.environ | caches, check=False) for command in commands]
    return torch, not any(one.returncode for one in done)


def main() -> int:
    """Test what is at hand, and say at the end what was not; the exit status is 1 where a test fails."""
    skipped, failed = [], []
    for version in PYTHONS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                torch, passed = tested(version, Path(folder) / "environment")
            except Missing as error:
                skipped.append(f"{f'torch {OLDEST} on ' * (version == OWN)}Python {version}: {error}")
                continue
        skipped += [] if torch else [f"Python {version} with torch: there is no wheel of torch{TORCH} on this machine"]
        failed += [] if passed else [version]
    for line in [*(f"not run: {one}" for one in skipped), *(f"failed: Python {one}" for one in failed)]:
        print(line)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
