"""Base classes of corpora: an example maps field names to texts; fields and free memory are checked on reading."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeConfig
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.options import PositiveInt, RecipePath
from tfkit.core.slots import CorpusFacts
from tfkit.data.corpus.lines import beginnings
from tfkit.recipe.text.faults import path_values

LOGGER = logging.getLogger("tfkit")
SECONDS = 10.0  # seconds between log lines
OFTEN, SELDOM = 1_000, 100_000  # number of examples between checks of the clock, and between checks of the memory
SMALLEST = 250  # bytes; lower bound for an example with one short text
SPARED = 10  # reading stops if less than 1/SPARED of the initially free memory is left


def watched(examples: Iterator[Mapping[str, Any]], name: str, expected: int | None) -> Iterator[dict[str, str]]:
    """Yield the examples. Raise DataError if a field is not text, or if memory is about to run out.

    `expected` is the number of examples, or None if unknown.
    """
    free = free_memory()
    if free is not None and expected is not None and expected * SMALLEST > free:
        raise DataError(
            f"{name}: {expected:,} examples need at least {readable_bytes(expected * SMALLEST)}, but only "
            f"{readable_bytes(free)} are free; set limit to use fewer"
        )
    logged = time.monotonic()
    for number, example in enumerate(examples, start=1):
        if number % OFTEN == 0 and time.monotonic() - logged > SECONDS:
            logged = time.monotonic()
            LOGGER.info("%s: %s examples read%s", name, f"{number:,}", f" of {expected:,}" if expected else "")
        if number % SELDOM == 0:
            _check_memory(free, number, name)
        check_texts(example, f"{name}: example {number}")
        yield dict(example)


def check_texts(example: Mapping[str, Any], place: str) -> None:
    """Raise DataError if a field is not a string, or cannot be encoded as UTF-8."""
    for field, text in example.items():
        if not isinstance(text, str):
            raise DataError(f"{place}: {field} must be a string, got {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                half = f"a lone surrogate (half of a character, U+{ord(text[error.start]):04X})"
                raise DataError(f"{place}: {field} contains {half} and is not valid Unicode") from None


def _check_memory(free: int | None, number: int, name: str) -> None:
    """Raise DataError if little memory is left of the `free` bytes measured at the start."""
    left = free_memory()
    if free is not None and left is not None and left < free / SPARED:
        raise DataError(
            f"{name}: after {number:,} examples, only {readable_bytes(left)} of memory are left; set limit to use fewer"
        )


# bytes read when only the start of a file is checked; the second limit is used if the first cuts a record
BEGINNINGS = (2**20, 2**26)

Example = dict[str, str]
Record = tuple[str, Example]  # location ("train.en:12") and fields


def _known_encoding(name: str) -> str:
    try:
        with contextlib.suppress(UnicodeError):  # in utf-16, one byte is incomplete
            b"a".decode(name)
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is not a text encoding; use utf-8, latin-1, ...") from None
    return name


def _several(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Encoding = Annotated[str, AfterValidator(_known_encoding)]
_OneOrMany = RecipePath | Annotated[list[RecipePath], Field(min_length=1)]  # the input types in a recipe
RecipePaths = Annotated[
    tuple[RecipePath, ...], BeforeValidator(_several, json_schema_input_type=_OneOrMany), Field(min_length=1)
]
# example field -> name in the file; `translation.en` is a nested key
Fields = Annotated[dict[str, str], Field(min_length=1)]


class Corpus(CorpusFacts):
    """Base of corpora. Fields are `source` and `target` for pairs, else `text`, possibly with `label` or `tags`."""

    class Config(CorpusFacts.Config, RecipeConfig):
        """Options of every corpus."""

        limit: PositiveInt | None = Field(None, description="number of examples to use, from the start; none: all")

        def files_read(self) -> tuple[str, ...]:
            """Return the input files: by default, all options that are paths.

            A run records the hashes of these files, and --resume verifies them. If there are none, or one is a folder,
            the examples are hashed instead.
            """
            return path_values(self)

    # False if reading the first example takes as long as reading all; `tfkit check` then skips the corpus
    in_order: bool = True

    config: Config

    def __init__(self, config: Config) -> None:
        self.config, self.limit = config, config.limit

    def examples(self) -> list[Example]:
        """Read all examples, logging progress. Each example has all of `self.fields`.

        Raise DataError for invalid input, with file and line, and if the examples exceed the free memory.
        """
        return list(watched(islice(self.read(), self.limit), self.name(), self._expected()))

    def stream(self) -> Iterator[Example]:
        """Yield the examples one by one without storing them. Raise DataError for invalid input."""
        for number, example in enumerate(islice(self.read(), self.limit), start=1):
            check_texts(example, f"{self.name()}: example {number}")
            yield example

    def first(self, count: int) -> list[Example]:
        """Return the first examples, reading only the start of each file. Raise DataError for invalid input."""
        for most in BEGINNINGS:
            with beginnings(most) as bound:
                try:
                    examples = list(islice(self.read(), min(count, self.limit or count)))
                    break
                except DataError:
                    if not bound.is_cut or most == BEGINNINGS[-1]:
                        raise
        for number, example in enumerate(examples, start=1):
            check_texts(example, f"{self.name()}: example {number}")
        return examples

    def _expected(self) -> int | None:
        """Number of examples to be read, or None if unknown."""
        count = self.count()
        return self.limit if count is None else min(count, self.limit or count)

    def count(self) -> int | None:
        """Number of examples before `limit` is applied, or None if it is unknown before reading."""
        return None

    def read(self) -> Iterator[Example]:
        """Yield the examples, ignoring `limit`."""
        raise NotImplementedError

    def where(self, number: int) -> str:
        """Return the location of example `number` (from 1) for error messages."""
        return f"{self.name()}: example {number}"

    def name(self) -> str:
        """Return the input file or files for error messages."""
        return f"the corpus '{self.part_name}'"


class RecordCorpus(Corpus):
    """Base of corpora with one example per record; an empty field is an error unless `skip_empty` is set."""

    class Config(Corpus.Config):
        """Options of all record corpora."""

        skip_empty: bool = Field(False, description="drop records with an empty field; false: raise an error")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.skip_empty = config.skip_empty

    def read(self) -> Iterator[Example]:
        """Yield the complete examples; raise DataError if there are none."""
        none = True
        for _, example in self._filled():
            none = False
            yield example
        if none:
            raise DataError(f"{self.name()}: contains no example")

    def _filled(self) -> Iterator[Record]:
        """Yield the records, dropping those with empty fields. Raise DataError for empty fields unless `skip_empty`."""
        for place, example in self.records():
            check_texts(example, place)
            empty = [field for field, text in example.items() if not text.strip()]
            if not empty:
                yield place, example
            elif not self.skip_empty:
                raise DataError(f"{place}: {' and '.join(empty)} is empty; fill it in, or set skip_empty: true")

    def where(self, number: int) -> str:
        """Return the location of a record by reading the file again."""
        record = next(islice(self._filled(), number - 1, None), None)
        return super().where(number) if record is None else record[0]

    def records(self) -> Iterable[Record]:
        """Yield each record with its location."""
        raise NotImplementedError


class TextRecordCorpus(RecordCorpus):
    """Base of corpora that read records from text files."""

    class Config(RecordCorpus.Config):
        """Options of all record corpora that read text files."""

        encoding: Encoding = Field("utf-8", description="text encoding of the file: utf-8, latin-1, ...")

    file: str

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoding = config.encoding

    def name(self) -> str:
        """Return the file path."""
        return self.file
