"""Record corpora with named fields: JSON lines, CSV, Parquet, datasets of Hugging Face, conversations."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tfkit.core.errors import DataError, RunError, TfkitError, installing, with_article
from tfkit.core.inputs import TEXT_FIELDS
from tfkit.core.options import FolderPath, NonNegativeInt, RecipePath, as_tuple
from tfkit.core.output import some
from tfkit.core.registry import register
from tfkit.core.synonyms import nearest
from tfkit.data.chat import as_example, checked
from tfkit.data.corpus.base import (
    Example,
    Fields,
    Record,
    RecordCorpus,
    TextRecordCorpus,
    joined,
    names_of,
    several_labels,
)
from tfkit.data.corpus.lines import Lines, bound_of_files, read_bytes, read_text
from tfkit.data.vectors import steps
from tfkit.storage import files


def parsed(line: str, place: str) -> Any:
    """Parse a line of JSON. Raise DataError naming the location."""
    try:
        return json.loads(line)
    except RecursionError:
        raise DataError(f"{place}: not a JSON value (nested too deeply)") from None
    except ValueError as error:
        reason = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        if isinstance(error, json.JSONDecodeError) and error.pos >= len(line.rstrip(" \t\r,")):
            reason += f"; {ONE_LINE}"
        raise DataError(f"{place}: not a JSON value ({reason})") from None


ONE_LINE = "write one object per line, as `jq -c .` (of an array: `jq -c '.[]'`) does"


def pick(record: object, fields: Mapping[str, Any], place: str, also: Sequence[str] = ()) -> Example:
    """Extract `fields` (example field -> name in the record), and `also` under their own names, null as "".

    Several names become a JSON object. Raise DataError if one is missing, or if a field is null.
    """
    found = {}
    for field, name in fields.items():
        if isinstance(name, tuple):
            found[field] = joined({str(one): _target(record, one, place) for one in name})
        else:
            found[field] = _text(find(record, name, place), name, place, field)
    more = {name: find(record, name, place) for name in also}
    return found | {name: "" if value is None else _text(value, name, place, name) for name, value in more.items()}


def _target(record: object, name: str, place: str) -> str:
    """Return one of several targets, or "" if it is missing, null or NaN."""
    with contextlib.suppress(DataError):
        value = find(record, name, place)
        return "" if value is None or value != value else _text(value, name, place, "label")
    return ""


def find(record: object, name: str, place: str) -> object:
    """Look up `name` in a record, as a key or a dotted path."""
    if isinstance(record, Mapping) and name in record:
        return record[name]
    value = record
    for step in name.split("."):
        if isinstance(value, list) and step.isdecimal() and int(step) <= max(0, len(value) - 1):
            value = value[int(step)] if value else ""  # an empty list has an empty first element
            continue
        if not isinstance(value, Mapping) or step not in value:
            raise DataError(f"{place}: no field '{name}'; {_available(value, step)}")
        value = value[step]
    return value


def _available(value: object, name: str) -> str:
    if not isinstance(value, Mapping):
        return f"found {_kind(value)}; expected a mapping{f'; {ONE_LINE}' if isinstance(value, list) else ''}"
    hint = nearest(name, [str(name) for name in value])
    names = some((str(name)[:60] for name in value), 20) or "none"
    return f"available: {names}" + (f". Did you mean '{hint}'?" if hint else "")


IDS = ("text", "second", "source", "target")  # fields that read a list of numbers as text, for the tokenizer `ids`


def _text(value: object, name: str, place: str, field: str) -> str:
    if field == "vectors":
        return steps(value, place)
    if isinstance(value, str):
        return value
    if field in IDS and isinstance(value, list) and set(map(type, value)) <= {int, float}:
        return " ".join(map(str, value))
    if field not in TEXT_FIELDS and isinstance(value, list) and value and set(map(type, value)) <= {int, float}:
        return json.dumps(value)  # an extra input of the model
    if field == "label" and isinstance(value, list) and set(map(type, value)) <= {int, str}:
        return json.dumps(list(map(str, value)), ensure_ascii=False)  # the labels of an example with several
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    first = f" (the first element is {name}.0)" if isinstance(value, list) else ""
    raise DataError(f"{place}: field '{name}' is {_kind(value)}; expected text or a number{first}")


def _kind(value: object) -> str:
    names = {type(None): "null", list: "a list", dict: "a mapping", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), with_article(type(value).__name__))


@register("corpus", "json_lines")
class JsonLines(TextRecordCorpus):
    """JSON lines: one object per example; `fields: {source: translation.en}` names a key or a dotted path.

    Numbers are converted to text.
    """

    class Config(TextRecordCorpus.Config):
        file: RecipePath = Field(description="a file with one JSON object per line")
        fields: Fields = Field(description="name of each field in the file, or a dotted path")

    def records(self) -> Iterator[Record]:
        for number, line in enumerate(Lines(self.file, self.encoding), start=1):
            place = f"{self.file}:{number}"
            if line.strip():
                yield place, pick(parsed(line, place), self.names, place, self.also)


Several = Annotated[tuple[str | NonNegativeInt, ...], BeforeValidator(as_tuple)]
Columns = Annotated[dict[str, str | NonNegativeInt | Several], Field(min_length=1), AfterValidator(several_labels)]


@register("corpus", "csv")
class Csv(TextRecordCorpus):
    """CSV: one example per row, with equal numbers of cells; quoted cells may contain delimiters and line breaks."""

    class Config(TextRecordCorpus.Config):
        """The file; `fields` maps each field to a column name in the header, or to a column index from 0."""

        file: RecipePath = Field(description="a CSV file")
        fields: Columns = Field(description="column of each field: its name in the header, or its index from 0")
        delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="character between cells")
        header: bool = Field(True, description="the first line names the columns")

        @model_validator(mode="after")
        def _names_need_a_header(self) -> Csv.Config:
            names = [column for column in names_of(self.fields) if isinstance(column, str)]
            if names and not self.header:
                raise ValueError(f"without a header, use column indices (from 0), not names: {', '.join(names)}")
            if self.delimiter in '"\r\n':
                raise ValueError(f"{self.delimiter!r} cannot be a delimiter; use ',', ';' or \"\\t\"")
            return self

    config: Config

    def records(self) -> Iterator[Record]:
        """Yield the fields of each row. Raise DataError with the line of a ragged or badly quoted row."""
        rows = self.rows()
        first = next(rows)
        more = {name: name if self.config.header or not name.isdecimal() else int(name) for name in self.also}
        columns = _numbers([*names_of(self.names), *more.values()], first[1], first[0])
        for place, cells in rows if self.config.header else chain([first], rows):
            example = pick({name: cells[column] for name, column in columns.items()}, self.names, place)
            yield place, example | {name: cells[columns[column]] for name, column in more.items()}

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the location and the cells of each row, also of the header. Raise DataError as `records` does."""
        count = None
        for line, cells in self._rows():
            count = len(cells) if count is None else count
            if len(cells) == count:
                yield f"{self.file}:{line}", cells
            elif cells or not self.config.skip_empty:
                raise DataError(f"{self.file}:{line}: {len(cells)} columns, but the first row has {count}")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the number (from 1) of its first line."""
        lines = read_text(self.file, self.encoding).rstrip("\n").split("\n")
        reader = csv.reader((f"{line}\n" for line in lines), delimiter=self.config.delimiter, strict=True)
        limit = csv.field_size_limit(sys.maxsize)
        begin = 1
        try:
            for cells in reader:
                yield begin, cells
                begin = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{self.file}:{begin}: the row that starts here is not valid CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)


def _numbers(columns: Iterable[str | int], first: list[str], place: str) -> dict[str | int, int]:
    """Return the index of each column. Raise DataError for unknown columns."""
    numbers: dict[str | int, int] = {}
    for column in columns:
        if isinstance(column, str) and column not in first:
            hint, parted = nearest(column, first), _parted(first)
            names = some((name[:60] for name in first), 20)
            available = names + (parted or (f". Did you mean '{hint}'?" if hint else ""))
            raise DataError(f"{place}: no column '{column}' in the header; available: {available}")
        numbers[column] = first.index(column) if isinstance(column, str) else column
        if numbers[column] >= len(first):
            raise DataError(
                f"{place}: {len(first)} columns, but column {column} is selected (counted from 0){_parted(first)}"
            )
    return numbers


def _parted(first: list[str]) -> str:
    """Suggest a delimiter if the first row has only one cell."""
    delimiter = (
        next((letter for letter in ("\t", ";", ",", "|") if letter in first[0]), None) if len(first) == 1 else None
    )
    return "" if delimiter is None else f"; the file may need delimiter: {json.dumps(delimiter)}"


ROWS, FEW = 4096, 16  # rows per read: for a whole file, for its start
BUFFER = 2**16  # bytes per read of a file's start


@register("corpus", "parquet")
class Parquet(RecordCorpus):
    """Parquet: one row per example; `fields: {source: translation.en}` names a column, or a dotted path."""

    class Config(RecordCorpus.Config):
        file: RecipePath = Field(description="a Parquet file")
        fields: Fields = Field(description="name of each field in the file, or a dotted path")

    def records(self) -> Iterator[Record]:
        for place, row in self.rows():
            yield place, pick(row, self.names, place, self.also)

    def rows(self) -> Iterator[tuple[str, object]]:
        """Yield each row with its location: the columns of `fields`, or all columns if one is missing."""
        yield from ((f"{self.file}: row {number}", row) for number, row in enumerate(self._rows(), start=1))

    def count(self) -> int:
        """Return the row count from the metadata; a small file may declare a large count."""
        return int(self._file.metadata.num_rows)

    def _rows(self) -> Iterator[object]:
        """Yield the rows, reading them in blocks."""
        names = [*names_of(self.names), *self.also]
        with pyarrow_errors(self.file, "Parquet"):
            if bound_of_files() is None:
                yield from rows_of(self._file.iter_batches(ROWS), names)
                return
            with files.regular(self.file) as file:  # buffered reading skips unused pages
                start = import_module("pyarrow.parquet").ParquetFile(file, buffer_size=BUFFER)
                yield from rows_of(start.iter_batches(FEW), names)

    @cached_property
    def _file(self) -> Any:
        with pyarrow_errors(self.file, "Parquet"):
            pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
            return parquet.ParquetFile(pyarrow.BufferReader(read_bytes(self.file)))


@contextlib.contextmanager
def pyarrow_errors(file: str | Path, kind: str) -> Iterator[None]:
    """Convert errors of pyarrow, or a missing pyarrow, to DataError."""
    try:
        import_module("pyarrow")
    except ImportError:
        raise DataError(f"{file}: reading a {kind} file needs the package pyarrow: {installing('data')}") from None
    try:
        yield
    except TfkitError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # pyarrow's errors have no common class
        raise DataError(f"{file}: not a {kind} file: {error}") from None


def rows_of(batches: Iterable[Any], names: Sequence[str]) -> Iterator[object]:
    """Yield the rows of pyarrow's batches: the columns with these names, or all columns if one is missing."""
    for batch in batches:
        batch.validate(full=True)  # offsets outside of the file would end the process
        found = [{name, name.split(".")[0]}.intersection(batch.schema.names) for name in names]
        yield from (batch.select(sorted(set().union(*found))) if all(found) else batch).to_pylist()


@register("corpus", "chat")
class Conversations(TextRecordCorpus):
    """One conversation per line: `{"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}]}`.

    `source` is a JSON list of all messages but the last; `target` is the last message, which must be the assistant's.
    """

    fields = ("source", "target")

    class Config(TextRecordCorpus.Config):
        file: RecipePath = Field(description="a file with one conversation per line")

    def records(self) -> Iterator[Record]:
        for number, line in enumerate(Lines(self.file, self.encoding), start=1):
            place = f"{self.file}:{number}"
            if not line.strip():
                continue
            value = parsed(line, place)
            if not isinstance(value, dict) or "messages" not in value:
                raise DataError(f"{place}: no field 'messages'; expected {{\"messages\": [...]}}")
            messages = checked(value, place)
            if messages[-1]["role"] != "assistant" or len(messages) < 2:
                raise DataError(
                    f"{place}: expected two or more messages, the last (the target) with the role assistant"
                )
            yield place, as_example(messages)


STATE, SPLITS = "state.json", "dataset_dict.json"  # written by save_to_disk


@register("corpus", "datasets")
class Datasets(RecordCorpus):
    """A folder saved with `save_to_disk` of the `datasets` library, or a folder of Parquet files; one row per example.

    Nothing is downloaded, and the `datasets` library need not be installed.
    """

    class Config(RecordCorpus.Config):
        folder: FolderPath = Field(description="a folder saved with save_to_disk, or a folder with .parquet files")
        split: str | None = Field(None, description="the split to read (train, ...), if the folder has several")
        fields: Fields = Field(description="column of each field; a dotted path selects a nested value")

        def files_read(self) -> tuple[str, ...]:
            """Return the data files, or the folder if they cannot be listed."""
            with contextlib.suppress(DataError):
                return tuple(str(file) for file in data_files(Path(self.folder), self.split))
            return (self.folder,)

    config: Config

    def records(self) -> Iterator[Record]:
        for file in data_files(Path(self.config.folder), self.config.split):
            for number, row in enumerate(_rows(file, [*names_of(self.names), *self.also]), start=1):
                place = f"{file}: row {number}"
                yield place, pick(row, self.names, place, self.also)

    def name(self) -> str:
        return str(Path(self.config.folder, self.config.split or ""))


def data_files(folder: Path, split: str | None) -> list[Path]:
    """Return the data files of a folder in order. Raise DataError if there are none."""
    if not folder.is_dir():
        raise DataError(f"{folder}: {'is a file' if folder.exists() else 'no such folder'}; expected a folder of data")
    found = sorted(folder.glob("*.parquet"))
    names = sorted({file.name.split("-")[0] for file in found if "-" in file.name})  # train-00000-of-00002.parquet
    try:
        if (folder / SPLITS).is_file():
            names = list(files.read_json(folder / SPLITS)["splits"])
        if split is not None and split not in names:
            raise DataError(f"{folder}: no split '{split}'; available: {', '.join(names) or 'none; remove split'}")
        if split is None and len(names) > 1:
            raise DataError(f"{folder}: several splits; set split to one of {', '.join(names)}")
        place = folder / str(split) if split is not None and (folder / SPLITS).is_file() else folder
        if (place / STATE).is_file():
            return [place / os.path.basename(one["filename"]) for one in files.read_json(place / STATE)["_data_files"]]
    except RunError as error:
        raise DataError(str(error)) from None
    except (KeyError, TypeError):
        raise DataError(f"{folder}: {SPLITS} or {STATE} does not have the format of save_to_disk") from None
    chosen = [file for file in found if split is None or file.name.split("-")[0] == split]
    if not chosen:
        raise DataError(f"{folder}: neither saved with save_to_disk ({STATE}) nor a folder with .parquet files")
    return chosen


def _rows(file: Path, names: Sequence[str]) -> Iterator[object]:
    with pyarrow_errors(file, "data set"), files.regular(file) as opened:
        if file.suffix == ".parquet":
            yield from rows_of(import_module("pyarrow.parquet").ParquetFile(opened).iter_batches(), names)
        else:
            yield from rows_of(import_module("pyarrow.ipc").open_stream(opened), names)
