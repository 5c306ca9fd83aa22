"""What every corpus shares: a list of examples, each a mapping of field names to texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from tfkit.core.component import Config as PartConfig
from tfkit.core.errors import DataError
from tfkit.core.options import PositiveInt, RecipePath
from tfkit.core.slots import CorpusFacts
from tfkit.data.corpus.lines import beginnings
from tfkit.data.corpus.watch import check_texts, watched
from tfkit.recipe.text.options import path_values

# bytes read of each file to check its beginning: the second where a fault may be that of a record cut off
BEGINNINGS = (2**20, 2**26)

Example = dict[str, str]
Record = tuple[str, Example]  # where it stands ("train.en:12") and what it holds


def _known_encoding(name: str) -> str:
    try:
        with contextlib.suppress(UnicodeError):  # one letter is not a whole one in utf-16
            b"a".decode(name)
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is no encoding of text; write utf-8, latin-1, ...") from None
    return name


def _several(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Encoding = Annotated[str, AfterValidator(_known_encoding)]
_OneOrMany = RecipePath | Annotated[list[RecipePath], Field(min_length=1)]  # as a recipe writes them
RecipePaths = Annotated[
    tuple[RecipePath, ...], BeforeValidator(_several, json_schema_input_type=_OneOrMany), Field(min_length=1)
]
# example field -> the name it has in the file; `translation.en` looks into a mapping
Fields = Annotated[dict[str, str], Field(min_length=1)]


class Corpus(CorpusFacts):
    """Base of the corpora; the fields are `source` and `target` of pairs, or `text` (with `label` or `tags`)."""

    class Config(PartConfig):
        """Options of every corpus; `limit` takes the first n examples."""

        limit: PositiveInt | None = Field(None, description="only the first n examples; none: all")

        def files_read(self) -> tuple[str, ...]:
            """The files that all examples come from: by default what its options say that are paths.

            A run records their hashes, and --resume checks that none has changed; where there are none, or one of them
            is a folder, the examples themselves are hashed.
            """
            return path_values(self)

    # False: the first example costs as much as all of them, so that `tfkit check` does not ask
    in_order: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.limit = config.limit

    def examples(self) -> list[Example]:
        """All examples, each with every one of `self.fields`; raises DataError naming the file and the line.

        DataError, too, for more than the memory of this machine holds; a log tells how far it is.
        """
        return list(watched(islice(self.read(), self.limit), self.name(), self._expected()))

    def first(self, count: int) -> list[Example]:
        """Return the first examples, reading only the beginning of each file; raise DataError as `examples` does."""
        for most in BEGINNINGS:
            with beginnings(most) as bound:
                try:
                    found = list(islice(self.read(), min(count, self.limit or count)))
                    break
                except DataError:
                    if not bound.is_cut or most == BEGINNINGS[-1]:
                        raise
        for number, example in enumerate(found, start=1):
            check_texts(example, f"{self.name()}: example {number}")
        return found

    def _expected(self) -> int | None:
        """How many examples there will be, None where only reading them can say."""
        count = self.count()
        return self.limit if count is None else min(count, self.limit or count)

    def count(self) -> int | None:
        """How many examples there are, whatever the limit, where that is known before they are read."""
        return None

    def read(self) -> Iterator[Example]:
        """The examples one by one, whatever the limit."""
        raise NotImplementedError

    def where(self, number: int) -> str:
        """Where example `number` (from 1) stands, for a message."""
        return f"{self.name()}: example {number}"

    def name(self) -> str:
        """The file (or files) that it reads, for a message."""
        return f"the corpus '{self.part_name}'"


class RecordCorpus(Corpus):
    """Base of the corpora whose file holds one example per record: an empty field is an error, unless it is set."""

    class Config(Corpus.Config):
        """Options of every corpus of records; `skip_empty` leaves out a record with an empty field."""

        skip_empty: bool = Field(False, description="leave out records with an empty field; false: they are an error")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.skip_empty = config.skip_empty

    def read(self) -> Iterator[Example]:
        """The examples whose fields are all there; raises DataError when there is none."""
        none = True
        for _, example in self._filled():
            none = False
            yield example
        if none:
            raise DataError(f"{self.name()}: there is no example in it")

    def _filled(self) -> Iterator[Record]:
        """The records without an empty field."""
        for place, example in self.records():
            check_texts(example, place)
            empty = [field for field, text in example.items() if not text.strip()]
            if not empty:
                yield place, example
            elif not self.skip_empty:
                raise DataError(f"{place}: {' and '.join(empty)} is empty; mend the line, or write skip_empty: true")

    def where(self, number: int) -> str:
        """The place of the record, which is read again to find it."""
        found = next(islice(self._filled(), number - 1, None), None)
        return super().where(number) if found is None else found[0]

    def records(self) -> Iterable[Record]:
        """What the file holds, record by record, each with its place."""
        raise NotImplementedError


class TextRecordCorpus(RecordCorpus):
    """Base of the corpora of records in a text file."""

    class Config(RecordCorpus.Config):
        """Options of every corpus of records in a text file."""

        encoding: Encoding = Field("utf-8", description="how the file writes its letters: utf-8, latin-1, ...")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoding = config.encoding
