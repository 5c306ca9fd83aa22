"""The guides, run as a reader runs them: all blocks of a page, in order, in one empty folder.

`python -m tests.guides [NAME ...]` runs guides and writes the seconds and megabytes between their `measured` marks.
A guide with these marks is run whole by a slow test; its `session` blocks are commands of a shell.
`<!-- needs: NAME, NAME -->` names modules beyond the extra `test`; without them the page is skipped, by name.
`python -m tests.guides --notebook` writes `start.ipynb` from the page, `--notebook --run` executes it as well.
"""

from __future__ import annotations

import json
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

from tfkit.core.errors import installing

from .documents import BLOCK, KINDS, ROOT, Block, rewrite

FOLDER = ROOT / "recipes" / "guides"
NOTEBOOK = FOLDER / "start.ipynb"
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
            _done(["bash", "-c", SHELL + "\n".join(_commands(block.text))], folder, int(block.value or 0))
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


def _commands(text: str) -> list[str]:
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)


def notebook(path: Path) -> str:
    """A page as a notebook: its text, its files as `%%writefile`, its commands with `!`, and its code; no outputs."""
    text, _, after = path.read_text(encoding="utf-8").partition(MEASURED)
    cells, end = list[tuple[str, str]](), 0
    for match in BLOCK.finditer(text):
        what, value, own = match["what"], match["value"], match["text"].rstrip()
        code = {
            "file": f"%%writefile {value}\n{own}",
            "python": own,
            **dict.fromkeys(("run", "session"), "\n".join(f"!{one}" for one in _commands(own)).replace("\\\n", "")),
        }.get(what)
        if code is not None:
            cells += [("markdown", text[end : match.start()]), ("code", code)]
            end = match.end()
    cells.append(("markdown", text[end:] + after.partition("<!-- end of measured -->")[2]))
    rows = [(kind, re.sub("<!--.*?-->\n?", "", own).strip()) for kind, own in cells]
    found = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": own.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, own) in enumerate((row for row in rows if row[1]), 1)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    data = {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def needs() -> str:
    """What to install to execute a notebook; empty if it is there."""
    absent = [name for name in ("nbclient", "ipykernel") if find_spec(name) is None]
    return f"a notebook needs the packages {', '.join(absent)}: {installing('notebook')}" if absent else ""


def execute(text: str, folder: Path) -> None:
    """Execute a notebook in a folder; raises an error of nbclient for a cell or a command that fails."""
    import nbclient
    import nbformat

    made = nbformat.reads(text, 4)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.source = re.sub("^(!.*)$", r"\1\nassert _exit_code == 0", cell.source, flags=re.MULTILINE)
    (folder / ".bin").mkdir()
    (folder / ".bin" / "tfkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tfkit "$@"\n', encoding="utf-8")
    (folder / ".bin" / "tfkit").chmod(0o755)
    path = f"{folder / '.bin'}{os.pathsep}{os.environ['PATH']}"
    client = nbclient.NotebookClient(made, timeout=1200, resources={"metadata": {"path": str(folder)}})
    client.execute(env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"})


def main(words: list[str]) -> int:
    """Measure guides, or write and execute the notebook; returns the exit status."""
    if words[:1] == ["--notebook"]:
        NOTEBOOK.write_text(notebook(guides()[NOTEBOOK.stem]), encoding="utf-8")
        if words[1:] == ["--run"]:
            if needs():
                print(needs(), file=sys.stderr)
                return 2
            with tempfile.TemporaryDirectory() as folder:
                execute(NOTEBOOK.read_text(encoding="utf-8"), Path(folder))
        return 0
    for name in words or guides():
        if absent := missing(guides()[name]):
            print(f"{name}: not run, it needs {', '.join(absent)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            line = run(guides()[name], Path(folder))
        rewrite(guides()[name], "measured", line)
        print(f"{name}: {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
