"""English text that comes with every Python installation: the documentation of the standard library."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveInt, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example
from tfkit.data.sentences import first_sentence

_TESTS = {"test", "tests", "idle_test"}
_TOPICS = "pydoc_data/topics.py"
# allowed word counts of summary and body: shorter ones are uninformative, longer ones are reference manuals
_SUMMARY, _BODY = range(3, 31), range(5, 201)


@register("corpus", "docstrings")
class Docstrings(Corpus):
    """The help topics and docstrings of Python's standard library, parsed without importing it.

    The texts depend only on the Python version, and no text occurs in two splits.
    With `form: summary`, the target is the first sentence of a docstring and the source is the rest. All pairs of a
    module are in one split, and no two pairs share a source or a target.
    """

    example: ClassVar = {"characters": 100_000}

    class Config(Corpus.Config):
        """The split (`valid` and `test` have 5% each), its seed, the form, and the maximum size of all splits."""

        split: Literal["train", "valid", "test"] = Field(
            "train",
            description="train, valid or test; valid and test each get one in twenty texts (form text) or modules",
        )
        seed: Seed = Field(0, description="seed of the assignment to splits")
        characters: PositiveInt = Field(2_000_000, description="maximum total number of characters in all splits")
        form: Literal["text", "summary"] = Field(
            "text",
            description="whole texts, or docstrings as pairs: the first sentence is the target, the rest the source",
        )

    config: Config
    fields: tuple[str, ...] = ("text",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.form == "summary":
            self.fields = ("source", "target")

    def read(self) -> Iterator[Example]:
        """Yield the texts of the split. Raise DataError if the library's sources are not installed."""
        room = self.config.characters
        seen: set[str] = set()
        for group, values in self._candidates():
            if not seen.isdisjoint(values):
                continue
            if sum(map(len, values)) > room:
                break
            seen.update(values)
            room -= sum(map(len, values))
            if _split_of(group, self.config.seed) == self.config.split:
                yield dict(zip(self.fields, values, strict=True))
        if not seen:
            raise DataError(
                f"{library()}: the sources of Python's standard library are missing, or too long for "
                f"characters: {self.config.characters}"
            )

    def _candidates(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (key, values) of each example; the hash of the key decides the split."""
        if self.config.form == "summary":
            for module, source, target in summaries():
                yield module, (source, target)
        else:
            yield from ((text, (text,)) for text in texts())


def library() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def texts() -> Iterator[str]:
    """Yield the help topics, then the docstrings of all modules, sorted by name."""
    yield from _topics(library() / _TOPICS)
    for file in sources():
        yield from _docstrings(file)


def summaries() -> Iterator[tuple[str, str, str]]:
    """Yield the module file, the rest and the first sentence of each docstring, with whitespace collapsed."""
    for file in sources():
        for text in _docstrings(file):
            target, source = (part.split() for part in first_sentence(text))
            if len(target) in _SUMMARY and len(source) in _BODY:
                yield file.relative_to(library()).as_posix(), " ".join(source), " ".join(target)


def sources() -> Iterator[Path]:
    """Yield the source files of the standard library except tests."""
    root = library()
    for name in sorted(sys.stdlib_module_names - _TESTS):
        for file in sorted((root / name).rglob("*.py")) if (root / name).is_dir() else [root / f"{name}.py"]:
            if file.is_file() and not _TESTS.intersection(file.relative_to(root).parts):
                yield file


@cache
def _topics(file: Path) -> tuple[str, ...]:
    """Return the texts of pydoc's topics, stored as a literal dict; cached because all splits need them."""
    tables = [one.value for one in _parse(file) if isinstance(one, ast.Assign) and isinstance(one.value, ast.Dict)]
    values = [value.value for table in tables for value in table.values if isinstance(value, ast.Constant)]
    return tuple(cleandoc(value) for value in values if isinstance(value, str))


@cache
def _docstrings(file: Path) -> tuple[str, ...]:
    """Return the docstrings of a source file in order; cached because all splits need them."""
    docs: list[str] = []
    pending: list[ast.AST] = [ast.Module(body=_parse(file), type_ignores=[])]
    while pending:
        node = pending.pop()
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if text := ast.get_docstring(node):
            docs.append(text)
        pending.extend(reversed(node.body))
    return tuple(docs)


def _parse(file: Path) -> list[ast.stmt]:
    """Parse a source file; return [] if it cannot be read or is for another Python version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about invalid escapes, which the user cannot fix
        try:
            return ast.parse(file.read_bytes()).body
        except (OSError, SyntaxError, ValueError):
            return []


def _split_of(text: str, seed: int) -> str:
    digest = hashlib.sha256(f"{seed}\n{text}".encode("utf-8", errors="surrogatepass")).digest()
    twentieth = (digest[0] * 256 + digest[1]) // (65536 // 20)
    return {0: "valid", 1: "test"}.get(twentieth, "train")
