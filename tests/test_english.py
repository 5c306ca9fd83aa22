"""Names and sentences are plain engineering English: one name for each class, and no word of a short list."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from .documents import DOCUMENTS, ROOT
from .sampling import looped

SOURCES = sorted((ROOT / "tfkit").rglob("*.py"))
# what is written in its place
DENIED = {
    r"behind": "after (of position), or say what stands for what",
    r"such many|so many such": "n",
    r"lots": "draws",
    r"chances?": "probability",
    r"nothing is said|unless it is said": "by default; unless it is set",
    r"stands? together|go together": "can be combined",
    r"what to say of": "the message about",
    r"in the same breath|by four doors|trains well|it costs yours|as much again": "plain words",
    r"let a run": "generate, predict",
    r"unlike lengths?": "different lengths",
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# these words as they are used everywhere
USUAL = re.compile(r"(ahead or behind|left behind|leaves behind|by chance|where chance)")
EXEMPT = {"skeletons"}  # a class in each of its files is to be renamed by whoever writes it out


@pytest.mark.full
def test_no_two_classes_have_one_name() -> None:
    found = defaultdict(list)
    for file in SOURCES:
        if file.parent.name in EXEMPT:
            continue
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(file.relative_to(ROOT).as_posix())
    assert not {name: files for name, files in found.items() if len(files) > 1}


BEGINNINGS = re.compile(r"(What|Whether|How|Of|The same|Where|Who|Those)\b")


@pytest.mark.full
def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    nodes = [(file, node) for file in SOURCES for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    texts = [(file, ast.get_docstring(node) or "") for file, node in nodes if isinstance(node, DOCUMENTED)]
    assert not [f"{file}: {text}" for file, text in texts if BEGINNINGS.match(text)]


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """The comments and strings of a source file, with their lines; of a document, all its lines."""
    text = file.read_text("utf-8")
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type].startswith("FSTRING"):
            yield from enumerate(token.string.splitlines(), token.start[0])


def denied(file: Path) -> Iterator[str]:
    """Where a file says a word of the list, and what to write instead."""
    for line, text in prose(file):
        for word, instead in DENIED.items():
            if re.search(rf"\b({word})\b", USUAL.sub("", text), re.IGNORECASE):
                yield f"{file.relative_to(ROOT)}:{line}: {text.strip()[:80]}: write {instead}"


@pytest.mark.parametrize("room", sorted({file.relative_to(ROOT).parts[1] for file in SOURCES}))
def test_no_denied_word_is_in_the_package(room: str) -> None:
    files = [file for file in SOURCES if file.relative_to(ROOT).parts[1] == room]
    assert not [found for file in files for found in denied(file)]


@looped("document", DOCUMENTS)
def test_no_denied_word_is_in_a_document(document: Path) -> None:
    assert not list(denied(document))


def test_a_denied_word_is_found() -> None:
    assert re.search(r"\b(behind)\b", USUAL.sub("", "one token behind the other"))
    assert not re.search(r"\b(behind)\b", USUAL.sub("", "looks ahead or behind"))


def identifiers(file: Path) -> Iterator[tuple[int, str]]:
    """The names of a source file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text("utf-8")).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


@pytest.mark.full
def test_no_name_is_a_verb_of_speech() -> None:
    """A variable says what it holds (`parameters`, `message`), not that somebody wrote it."""
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in SOURCES
        for line, name in identifiers(file)
        if name in ("said", "_said")
    ]
    assert not found
