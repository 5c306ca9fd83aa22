"""Corpora that need no files: docstrings, made-up phrases, images with captions, named melodies."""

from __future__ import annotations

import ast
import hashlib
import itertools
import random
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache, lru_cache
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.options import Drawn, PositiveInt, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example
from tfkit.data.corpus.vectors import Milliseconds, VectorCorpus, spectra
from tfkit.data.vectors import Array, Vectors

if TYPE_CHECKING:
    from tfkit.data.phrases import Phrase

# punctuation before a possible sentence start; "e.g. this" and "3.5" are not split
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z0-9])|\n\s*\n")


def first_sentence(text: str) -> tuple[str, str]:
    """Split a text after its first sentence, which ends at punctuation or a paragraph break."""
    end = _END.search(text := text.strip())
    return (text, "") if end is None else (text[: end.end()].strip(), text[end.end() :].strip())


_TESTS = {"test", "tests", "idle_test"}
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
    yield from _topics(library() / "pydoc_data/topics.py")
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


@lru_cache(maxsize=1)
def _phrases(train: int, valid: int, test: int, seed: int) -> tuple[list[Phrase], ...]:
    """Return the phrases of all splits; cached because a recipe reads them split by split."""
    from tfkit.data import phrases

    return phrases.split(train, valid, test, seed)


@register("corpus", "phrases")
class Phrases(Corpus):
    """Generated English-German phrase pairs; no file is needed, and splits share no pair.

    The sizes of all splits and the seed determine each split: use the same values in train, valid and test.
    """

    example: ClassVar = {"train": 60, "valid": 20, "test": 20}

    class Config(Corpus.Config):
        """The split, and the sizes and the seed, which must be the same for all splits."""

        split: Literal["train", "valid", "test"] = Field("train", description="the split")
        train: PositiveInt = Field(30000, description="number of pairs in train")
        valid: PositiveInt = Field(500, description="number of pairs in valid")
        test: PositiveInt = Field(1000, description="number of pairs in test")
        seed: Seed = Field(1, description="seed of the pairs and their splits")

        @model_validator(mode="after")
        def _distinct(self) -> Phrases.Config:
            from tfkit.data.phrases import MOST

            total = self.train + self.valid + self.test
            if total > MOST:
                raise ValueError(
                    f"train, valid and test add up to {total:,} pairs, but only {MOST:,} distinct pairs exist"
                )
            return self

    config: Config
    fields = ("source", "target")
    in_order = False

    def read(self) -> Iterator[Example]:
        config = self.config
        splits = _phrases(config.train, config.valid, config.test, config.seed)
        for phrase in splits[("train", "valid", "test").index(config.split)]:
            yield {"source": phrase.english, "target": phrase.german}


COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.7, 0.2), "blue": (0.1, 0.2, 0.9), "yellow": (0.9, 0.8, 0.1)}
FORMS, RADII = ("circle", "square", "triangle"), {"small": 3, "large": 5}
# of the first shape to the second; inverse relations are left out, so that an image has only one sentence
RELATIONS = ("above", "left of")
PIXELS, HALF = 24, 12
THINGS = tuple(itertools.product(RADII, COLOURS, FORMS))
MELODIES = {
    "scale up": (0, 2, 4), "scale down": (4, 2, 0), "major triad up": (0, 4, 7), "major triad down": (7, 4, 0),
    "minor triad up": (0, 3, 7), "minor triad down": (7, 3, 0), "octave up": (0, 12, 0), "tritone": (0, 6, 0),
}  # fmt: skip
SPLITS = ("train", "valid", "test")


class DrawnCorpus(VectorCorpus):
    """Base of generated vector corpora; the same options always generate the same examples."""

    class Config(VectorCorpus.Config):
        split: Literal["train", "valid", "test"] = Field("train", description="the split; splits share no example")
        size: Drawn = Field(1000, description="number of examples")
        seed: Seed = Field(0, description="seed of the examples")

    example: ClassVar = {"size": 12}
    config: Config

    def count(self) -> int:
        return self.config.size

    def read(self) -> Iterator[Example]:
        """Yield the examples, each drawn with its own RNG."""
        for number in range(1, self.config.size + 1):
            place = f"{self.part_name} {self.config.split} {number}"
            yield self.draw(place, random.Random(f"{self.config.seed} {place}"))

    def draw(self, place: str, rng: random.Random) -> Example:
        raise NotImplementedError(f"{type(self).__name__} does not implement draw")


@register("corpus", "shapes")
class Shapes(DrawnCorpus):
    """Two drawn shapes, 24 x 24 pixels, and a sentence: "a large red circle above a small blue square".

    A fifth of the 1,152 possible sentences is reserved for valid, and another fifth for test, so both contain only
    unseen combinations.
    """

    fields = ("vectors", "target")

    def draw(self, place: str, rng: random.Random) -> Example:
        while True:
            first, second, relation = rng.choice(THINGS), rng.choice(THINGS), rng.choice(RELATIONS)
            sentence = f"a {' '.join(first)} {relation} a {' '.join(second)}"
            # by its hash: three fifths of the sentences are train, one fifth each valid and test
            if SPLITS[max(0, hashlib.sha256(sentence.encode()).digest()[0] % 5 - 2)] == self.config.split:
                break
        picture = np.full((PIXELS, PIXELS, 3), 0.95, dtype=np.float32)
        for half, thing in enumerate((first, second)):
            radius = RADII[thing[0]]
            along = half * HALF + rng.randint(radius, HALF - 1 - radius)
            across = HALF + rng.randint(-2, 1)  # nearly aligned, so that only one relation holds
            row, column = (along, across) if relation == "above" else (across, along)
            _paint(picture, thing, radius, row, column)
        picture += np.random.default_rng(rng.getrandbits(32)).normal(0, 0.02, picture.shape).astype(np.float32)
        return {"vectors": Vectors(place, picture), "target": sentence}


def _paint(picture: Array, thing: tuple[str, str, str], radius: int, row: int, column: int) -> None:
    """Draw a shape centred on a pixel."""
    _, colour, form = thing
    down, right = np.mgrid[:PIXELS, :PIXELS]
    down, right = down - row, right - column
    if form == "circle":
        inside = down**2 + right**2 <= (radius + 0.3) ** 2
    elif form == "square":
        inside = np.maximum(abs(down), abs(right)) <= radius
    else:
        inside = (abs(down) <= radius) & (2 * abs(right) <= down + radius)
    picture[inside] = COLOURS[colour]


@register("corpus", "tones")
class Tones(DrawnCorpus):
    """Melodies of three tones in each of twelve keys, slightly detuned and with noise: log spectra [frames, width]."""

    fields = ("vectors", "label")

    class Config(DrawnCorpus.Config):
        """The sound and its frames; each frame has `rate * window_ms / 2000 + 1` frequencies."""

        rate: Annotated[int, Field(ge=4000, le=48_000)] = Field(8000, description="sample rate in samples per second")
        seconds: Annotated[float, Field(ge=0.3, le=10)] = Field(0.9, description="length of a melody in seconds")
        window_ms: Milliseconds = Field(64.0, description="length of a frame in milliseconds")
        hop_ms: Milliseconds = Field(32.0, description="time between the starts of consecutive frames in milliseconds")
        noise: Annotated[float, Field(ge=0, le=1)] = Field(0.05, description="standard deviation of the noise")

    config: Config

    def draw(self, place: str, rng: random.Random) -> Example:
        options, name = self.config, rng.choice(list(MELODIES))
        pitch, loudness = 220 * 2 ** ((rng.randrange(12) + rng.uniform(-0.1, 0.1)) / 12), rng.uniform(0.2, 0.6)
        length = int(options.rate * options.seconds / 3)
        time = np.arange(length) / options.rate
        fade = np.minimum(1, np.minimum(time, time[::-1]) / 0.01)
        tones = [np.sin(2 * np.pi * pitch * 2 ** (step / 12) * time) for step in MELODIES[name]]
        sound = loudness * np.concatenate([fade * (tone + 0.3 * tone**3) for tone in tones])
        sound += np.random.default_rng(rng.getrandbits(32)).normal(0, options.noise, sound.shape)
        frames = spectra(sound.astype(np.float32), options.rate, options.window_ms, options.hop_ms, place)
        return {"vectors": Vectors(place, frames), "label": name}
