"""Base classes of corpora: an example maps field names to texts; fields and free memory are checked on reading."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeConfig
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.options import Names, NonNegativeInt, PositiveInt, RecipePath
from tfkit.core.output import counted
from tfkit.core.slots import CorpusFacts
from tfkit.data.corpus.division import divided
from tfkit.data.corpus.lines import beginnings
from tfkit.data.vectors import Vectors
from tfkit.recipe.settings import sections
from tfkit.recipe.settings.split import Partition
from tfkit.recipe.text.condition import Condition, scalar
from tfkit.recipe.text.faults import path_values

LOGGER = logging.getLogger("tfkit")
SECONDS = 10.0  # seconds between log lines
OFTEN, SELDOM = 1_000, 100_000  # number of examples between checks of the clock, and between checks of the memory
SMALLEST = 250  # bytes; lower bound for an example with one short text
SPARED = 10  # reading stops if less than 1/SPARED of the initially free memory is left


def watched(examples: Iterator[Mapping[str, str]], name: str, expected: int | None) -> Iterator[dict[str, str]]:
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
            left = free_memory()
            if free is not None and left is not None and left < free / SPARED:
                text = f"after {number:,} examples, only {readable_bytes(left)} of memory are left"
                raise DataError(f"{name}: {text}; set limit to use fewer")
        check_texts(example, f"{name}: example {number}")
        yield dict(example)


def check_texts(example: Mapping[str, object], place: str) -> None:
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


# bytes read when only the start of a file is checked; the second limit is used if the first cuts a record
BEGINNINGS = (2**20, 2**26)

Example = dict[str, str]
TAGGED = ("source", "text")  # fields that begin with the example's tag; the first that it has
Record = tuple[str, Example]  # location ("train.en:12") and fields


def _known_encoding(name: str) -> str:
    try:
        with contextlib.suppress(UnicodeError):  # in utf-16, one byte is incomplete
            b"a".decode(name)
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is not a text encoding; use utf-8, latin-1, ...") from None
    return name


Encoding = Annotated[str, AfterValidator(_known_encoding)]
_OneOrMany = RecipePath | Annotated[list[RecipePath], Field(min_length=1)]  # the input types in a recipe
RecipePaths = Annotated[
    tuple[RecipePath, ...],
    BeforeValidator(sections.one_or_many, json_schema_input_type=_OneOrMany),
    Field(min_length=1),
]


def _conditions(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        Condition.of(text)
    return value


Conditions = Annotated[
    tuple[str, ...],
    BeforeValidator(sections.one_or_many, json_schema_input_type=str | list[str]),
    AfterValidator(_conditions),
]

Name = TypeVar("Name", bound=str | int)


def names_of(fields: Mapping[str, Name | tuple[Name, ...]]) -> list[Name]:
    """Return the columns that `fields` names."""
    return [name for names in fields.values() for name in (names if isinstance(names, tuple) else (names,))]


def as_json(text: str) -> object:
    """Parse a JSON object or list; return None for any other text."""
    with contextlib.suppress(ValueError):
        return json.loads(text) if text.startswith(("{", "[")) else None
    return None


def cells(label: str) -> dict[str, str]:
    """Return the targets of a label that is a JSON object; any other label is one target without a name."""
    found = as_json(label)
    return {name: str(text).strip() for name, text in found.items()} if isinstance(found, dict) else {"": label}


def joined(targets: Mapping[str, str]) -> str:
    """Write targets as one label; a target without a name as it is."""
    return targets[""] if "" in targets else json.dumps(targets, ensure_ascii=False)


def several_labels(fields: dict[str, object]) -> dict[str, object]:
    """Raise ValueError if a field other than `label` has several columns, or if they repeat."""
    for field, names in fields.items():
        if isinstance(names, tuple) and not (field == "label" and names and len(set(names)) == len(names)):
            raise ValueError(f"{field}: only label takes a list of columns, each of them once")
    return fields


# example field -> name in the file; `translation.en` is a nested key; several names of `label` are its targets
Fields = Annotated[dict[str, str | Names], Field(min_length=1), AfterValidator(several_labels)]


class Corpus(CorpusFacts):
    """Base of corpora. Fields are `source` and `target` for pairs, else `text`, possibly with `label` or `tags`."""

    class Config(CorpusFacts.Config, RecipeConfig):
        where: Conditions = Field(
            (), description="conditions on a field, or on another column of the file: year>1990, or a list of them"
        )
        skip: NonNegativeInt = Field(0, description="number of examples to skip, of those that satisfy `where`")
        limit: PositiveInt | None = Field(None, description="maximum number of examples to use after those; none: all")

        def files_read(self) -> tuple[str, ...]:
            """Return the input files: by default, all options that are paths.

            A run records the hashes of these files, and --resume verifies them. If there are none, or one is a folder,
            the examples are hashed instead.
            """
            return path_values(self)

        def part_of(self, split: Partition, name: str) -> CorpusFacts.Config:
            return SplitCorpus.Config(of=self, split=split, name=name)

    # False if reading the first example takes as long as reading all; `tfkit check` then skips the corpus
    in_order: bool = True

    config: Config

    def __init__(self, config: Config) -> None:
        self.config, self.skip, self.limit = config, config.skip, config.limit
        self._conditions = [Condition.of(text) for text in config.where]
        self._asked: tuple[str, ...] = ()

    @property
    def also(self) -> tuple[str, ...]:
        """Names of further columns that `read` adds to each example, besides `fields`; set before reading."""
        names = dict.fromkeys((*self._asked, *(condition.key for condition in self._conditions)))
        return tuple(name for name in names if name not in self.fields)

    @also.setter
    def also(self, names: tuple[str, ...]) -> None:
        self._asked = names

    def examples(self) -> list[Example]:
        """Read all examples, logging progress. Each example has all of `self.fields`.

        Raise DataError for invalid input, with file and line, and if the examples exceed the free memory.
        """
        return self._tell_gaps(list(watched(self._selected(), self.name(), self._expected())))

    def stream(self) -> Iterator[Example]:
        """Yield the examples one by one without storing them. Raise DataError for invalid input."""
        for number, example in enumerate(self._selected(), start=1):
            check_texts(example, f"{self.name()}: example {number}")
            yield example

    def first(self, count: int) -> list[Example]:
        """Return the first examples, reading only the start of each file. Raise DataError for invalid input."""
        examples = self._begun(count)
        for number, example in enumerate(examples, start=1):
            check_texts(example, f"{self.name()}: example {number}")
        return self._tell_gaps(examples)

    def _tell_gaps(self, examples: list[Example]) -> list[Example]:
        """Log the number of steps of vectors that were left out because of missing values."""
        if gaps := sum(one.gaps for example in examples for one in example.values() if isinstance(one, Vectors)):
            of = f"{counted(gaps, 'step')} of {counted(len(examples), 'example')}"
            LOGGER.warning("%s: %s with a missing value (NaN), which are masked", self.name(), of)
        return examples

    def _begun(self, count: int) -> list[Example]:
        """Return the first examples; if `where` or `skip` leaves none in the start of a file, read more of it."""
        for most in BEGINNINGS:
            with beginnings(most) as bound:
                try:
                    return list(islice(self._selected(), count))
                except DataError:
                    if not bound.is_cut or (most == BEGINNINGS[-1] and not (self._conditions or self.skip)):
                        raise
        return list(islice(self._selected(), count))

    def _selected(self) -> Iterator[Example]:
        """Yield the examples that the options select. Raise DataError if there are examples, but none is selected."""
        none = True
        for _, example in islice(self._kept(), self.skip, None if self.limit is None else self.skip + self.limit):
            none = False
            yield example
        if none and (self._conditions or self.skip):
            where = f"where: {', '.join(self.config.where)}" if self.config.where else ""
            skip = f"skip: {self.skip}" if self.skip else ""
            raise DataError(f"{self.name()}: no example is left by {' and '.join(filter(None, (where, skip)))}")

    def _kept(self) -> Iterator[tuple[int, Example]]:
        """Yield the examples that satisfy `where`, with their numbers in `read`. Raise DataError for unknown names."""
        also = self.also
        unasked = [name for name in also if name not in self._asked]
        for number, example in enumerate(self.read(), start=1):
            if lacking := [name for name in also if name not in example]:
                known = ", ".join(self.fields)
                raise DataError(f"{self.place(number)}: no field '{lacking[0]}'; '{self.part_name}' has {known}")
            if all(condition.holds([scalar(example[condition.key])]) for condition in self._conditions):
                for name in unasked:
                    del example[name]
                yield number, example

    def _expected(self) -> int | None:
        """Number of examples to be read, or None if unknown."""
        count = None if self._conditions else self.count()
        return self.limit if count is None else min(max(0, count - self.skip), self.limit or count)

    def count(self) -> int | None:
        """Return the number of examples before `where`, `skip` and `limit`, or None if unknown before reading."""
        return None

    def read(self) -> Iterator[Example]:
        """Yield the examples with all of `fields` and `also`, ignoring `where`, `skip` and `limit`."""
        raise NotImplementedError

    def where(self, number: int) -> str:
        """Return the location of example `number` (from 1) for error messages."""
        kept = (found for found, _ in self._kept()) if self._conditions else count(1)
        return self.place(next(islice(kept, self.skip + number - 1, None), number))

    def place(self, number: int) -> str:
        """Return the location of example `number` (from 1) of `read`."""
        return f"{self.name()}: example {number}"

    def name(self) -> str:
        """Return the input file or files for error messages."""
        return str(dict(iter(self.config)).get("file", f"the corpus '{self.part_name}'"))


def mark(tag: str) -> str:
    """Return the token of a tag: de is written <de>; a tag without letters or digits at its ends is unchanged."""
    return f"<{tag}>" if tag[:1].isalnum() or tag[-1:].isalnum() else tag


def with_tag(example: Example, place: str) -> Example:
    """Write the tag before the source or text. Raise DataError if it is not one word."""
    tag, field = mark(example["tag"]), next(name for name in TAGGED if name in example)
    if not any(map(str.isalnum, tag)) or any(map(str.isspace, tag)):
        raise DataError(f"{place}: the tag {example['tag']!r} is not a word; use a name without spaces, such as en-de")
    return example | {field: f"{tag} {example[field]}"}


def without_tag(example: Mapping[str, str]) -> Mapping[str, str]:
    """Remove the tag that `with_tag` has written, if any."""
    if "tag" not in example:
        return example
    prefix = f"{mark(example['tag'])} "
    return {name: text.removeprefix(prefix) if name in TAGGED else text for name, text in example.items()}


class SplitCorpus(Corpus):
    """The examples of one split that `data.split` cuts from a corpus. Recipes cannot name it."""

    part_slot, part_name = "corpus", "part"

    class Config(Corpus.Config):
        of: sections.Corpus
        split: Partition
        name: str

        def files_read(self) -> tuple[str, ...]:
            return self.of.files_read() and (*self.of.files_read(), *self.split.lists.values())

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.of: Corpus = config.of.build()
        self.fields, self.in_order = self.of.fields, self.of.in_order

    def _begun(self, count: int) -> list[Example]:
        return list(islice(self._selected(), count))  # the division depends on all examples

    def read(self) -> Iterator[Example]:
        """Yield the examples of the split. A text on the border of two splits by place is cut."""
        self.of.also, cuts = self.also, self._cuts()
        for number, example in enumerate(self.of.stream(), start=1):
            if number in cuts:
                cut = cuts[number]
                yield example if cut is None else {**example, "text": example["text"][slice(*cut)]}

    def _cuts(self) -> dict[int, tuple[int, int] | None]:
        """Return the numbers of the examples, and the characters of those that are cut."""
        members = divided(self.config.of, self.config.split)
        return {member.number: member.cut for member in members if member.split == self.config.name}

    def place(self, number: int) -> str:
        return self.of.where(list(self._cuts())[number - 1])

    def name(self) -> str:
        return f"{self.of.name()} ({self.config.name})"


class RecordCorpus(Corpus):
    """Base of corpora with one example per record; an empty field is an error unless `skip_empty` is set."""

    class Config(Corpus.Config):
        skip_empty: bool = Field(False, description="drop records with an empty field; false: raise an error")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.file: str = dict(config).get("file", "")
        self.names: dict[str, Any] = dict(config).get("fields", {})  # name of each field in the file, if chosen
        self.fields = tuple(self.names) or self.fields

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
        also = self.also
        for place, example in self.records():
            check_texts(example, place)
            empty = [field for field, text in example.items() if not text.strip() and field not in also]
            if not empty:
                yield place, with_tag(example, place) if "tag" in self.fields else example
            elif not self.config.skip_empty:
                raise DataError(f"{place}: {' and '.join(empty)} is empty; fill it in, or set skip_empty: true")

    def place(self, number: int) -> str:
        """Return the location of a record by reading the file again."""
        record = next(islice(self._filled(), number - 1, None), None)
        return super().place(number) if record is None else record[0]

    def records(self) -> Iterable[Record]:
        """Yield each record with its location."""
        raise NotImplementedError


class TextRecordCorpus(RecordCorpus):
    """Base of corpora that read records from text files."""

    class Config(RecordCorpus.Config):
        encoding: Encoding = Field("utf-8", description="text encoding of the file: utf-8, latin-1, ...")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoding = config.encoding
