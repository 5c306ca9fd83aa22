"""The documents of the repository: their marked blocks, and the tables in them that are written from the code.

A block is a fence below a mark. `<!-- file: NAME -->` is a file that the document's commands read,
`<!-- recipe: NAME -->` a shipped recipe, `<!-- code: NAME -->` a passage of its code, `<!-- python -->` code that runs,
`<!-- run: STATUS -->` one command with all that it prints, and `<!-- session -->` commands that run one after another,
whose output is not compared.
`python -m tests.documents` writes anew what the commands of all `run` blocks print.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    {
        *(ROOT / "README.md", ROOT / "AGENTS.md"),
        *(path for folder in ("guides", "reference") for path in (ROOT / "recipes" / folder).glob("*.md")),
        *(path for top in ("recipes", "tests", "tfkit") for path in (ROOT / top).rglob("README.md")),
    }
)
BLOCK = re.compile(r"<!-- (?P<what>\w+)(: (?P<value>[^ ]+))? -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
KINDS = ("file", "recipe", "code", "python", "run", "session")


@dataclass(frozen=True)
class Block:
    """A marked block of a document."""

    document: Path
    what: str
    value: str
    text: str

    @property
    def label(self) -> str:
        """Its document and beginning, for the name of a test."""
        name = self.document.relative_to(ROOT).parent.as_posix()
        return f"{name}: {self.value or self.text.splitlines()[0][2:50]}"


def blocks(what: str, document: Path | None = None) -> list[Block]:
    """The blocks with that mark, of one document or of all."""
    matches = [
        (path, match) for path in ([document] if document else DOCUMENTS) for match in BLOCK.finditer(_text(path))
    ]
    return [Block(path, what, match["value"] or "", match["text"]) for path, match in matches if match["what"] == what]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def between(document: str, name: str) -> tuple[str, str, str]:
    """The text before a table, the table, and the text after it."""
    before, begin, rest = document.partition(f"<!-- {name} -->\n")
    table, end, after = rest.partition(f"<!-- end of {name} -->")
    return before + begin, table.removesuffix("\n"), end + after


def rewrite(path: Path, name: str, table: str) -> None:
    """Write a table into a document, between its two marks."""
    before, _, after = between(path.read_text(encoding="utf-8"), name)
    path.write_text(f"{before}{table}\n{after}", encoding="utf-8")


def write_files(document: Path, folder: Path) -> None:
    """Write the files that a document shows, as a reader would have."""
    for block in blocks("file", document):
        (folder / block.value).write_text(block.text, encoding="utf-8")


def words_of(block: Block) -> list[str]:
    """The arguments of tfkit in the command of a `run` block."""
    return shlex.split(block.text.partition("\n")[0].removeprefix("$ tfkit "))


def rewrite_outputs() -> None:
    """Rewrite the output of all `run` blocks, in 100 columns."""
    for block in blocks("run"):
        with tempfile.TemporaryDirectory() as folder:
            write_files(block.document, Path(folder))
            command = [sys.executable, "-m", "tfkit", *words_of(block)]
            environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                command, cwd=folder, env=environment, check=False, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        lines = [block.text.partition("\n")[0], *(line.rstrip() for line in done.stdout.splitlines())]
        text = _text(block.document).replace(block.text, "\n".join(lines) + "\n")
        block.document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite_outputs()
