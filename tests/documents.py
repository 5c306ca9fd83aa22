"""The documents of the repository: their marked blocks, and the tables in them that are written from the code.

A block is a fence below a mark. `<!-- file: NAME -->` is a file that the document's commands read,
`<!-- recipe: NAME -->` a shipped recipe, `<!-- python -->` code that runs, `<!-- run: STATUS -->` one command with all
that it prints, and `<!-- session -->` commands that run one after another, whose output is not compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    {ROOT / "README.md", *(path for top in ("recipes", "tests", "tfkit") for path in (ROOT / top).rglob("README.md"))}
)
BLOCK = re.compile(r"<!-- (?P<what>\w+)(: (?P<value>[^ ]+))? -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
KINDS = ("file", "recipe", "python", "run", "session")


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
