"""The guides, run as a reader runs them: all blocks of a page, in order, in one empty folder.

`python -m tests.guides [NAME ...]` runs guides and writes the seconds and megabytes between their `measured` marks.
A guide with these marks is run whole by a slow test; its `session` blocks are commands of a shell.
`<!-- needs: NAME, NAME -->` names modules beyond the extra `test`; without them the page is skipped, by name.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from .documents import BLOCK, KINDS, ROOT, Block, rewrite

FOLDER = ROOT / "recipes" / "guides"
MEASURED = "<!-- measured -->\n"
SHELL = f'tfkit() {{ "{sys.executable}" -m tfkit "$@"; }}; python() {{ "{sys.executable}" "$@"; }}\nset -e\n'


class GuideFailed(AssertionError):
    """A block that does not do what the page says; the message has its command and output."""


def guides() -> dict[str, Path]:
    """The pages with `measured` marks, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.md")) if MEASURED in path.read_text("utf-8")}


def steps(path: Path) -> Iterator[Block]:
    """All blocks of a page in its order."""
    for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if match["what"] in KINDS:
            yield Block(path, match["what"], match["value"] or "", match["text"])


def missing(path: Path) -> list[str]:
    """The modules that a page needs and that are not installed."""
    named = re.findall(r"^<!-- needs: (.*) -->$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [name for name in ", ".join(named).split(", ") if name and find_spec(name) is None]


def run(path: Path, folder: Path) -> str:
    """Run a page in a folder and return its line of seconds and megabytes; raises GuideFailed."""
    start = time.perf_counter()
    for block in steps(path):
        if block.what == "file":
            (folder / block.value).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.value).write_text(block.text, encoding="utf-8")
        elif block.what == "python":
            expected = re.findall(r"print\(.*\)  # (.*)", block.text)
            shown = _done([sys.executable, "-c", block.text], folder, 0).splitlines()
            if shown != expected:
                raise GuideFailed(f"{block.label}: printed {shown}, the page says {expected}")
        elif block.what in ("run", "session"):
            commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block.text, re.MULTILINE)
            _done(["bash", "-c", SHELL + "\n".join(commands)], folder, int(block.value or 0))
    seconds = time.perf_counter() - start
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    cores = f"{seconds:,.0f} seconds on {os.cpu_count()} CPU cores"
    return f"All blocks of this page took {cores} and at most {most:,.0f} MB of memory."


def _done(command: list[str], folder: Path, status: int) -> str:
    environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, text=True, stdout=-1, stderr=-1)
    if done.returncode != status:
        raise GuideFailed(f"{command[-1]}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    for name in sys.argv[1:] or guides():
        if absent := missing(guides()[name]):
            print(f"{name}: not run, it needs {', '.join(absent)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            line = run(guides()[name], Path(folder))
        rewrite(guides()[name], "measured", line)
        print(f"{name}: {line}", flush=True)
