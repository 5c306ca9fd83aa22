"""Inputs of `generate`, `predict` and `embed`, and the file for their outputs."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from io import BufferedIOBase
from itertools import chain, islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, BinaryIO, TypedDict

import click

from tfkit.cli.options import gathered
from tfkit.cli.terminal import echo, echo_text, is_terminal, standard_input
from tfkit.core.errors import DataError, ExampleError, UsageError, installing
from tfkit.core.output import SPEECH, answer_line, json_line
from tfkit.storage import files

if TYPE_CHECKING:
    from tfkit.run import Run

LONGEST = 2**24  # maximum bytes of a line, so that an endless line cannot fill the memory
RECORDS, TABLES = (".jsonl", ".ndjson"), (".csv", ".tsv", ".npy", ".parquet")  # suffixes of outputs with ids
FORMATS = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", **dict.fromkeys(RECORDS, "JSON lines")}
FORMATS |= dict.fromkeys((".fasta", ".fa", ".faa", ".fna", ".ffn", ".fas"), "FASTA")
STDIN = "standard input"
Row = dict[str, object]


class ExtraInputs(TypedDict, total=False):
    """Vectors of each text by the name of the input, as an argument of generate, predict and embed."""

    inputs: Mapping[str, object]


@dataclass(frozen=True)
class Text:
    """Input text: its values (two for pairs), number, location and record id.

    Texts from the command line have no location.
    """

    values: tuple[str, ...]
    number: int
    place: str = ""
    id: str | int | float | None = None
    extra: Mapping[str, str] = field(default_factory=dict)  # extra inputs of the model in the record

    def named(self, noun: str) -> str:
        """Return the location, or the noun with the number, for messages."""
        return self.place or f"{noun} {self.number}"


@dataclass(frozen=True)
class TextOptions:
    """Texts from the command line or an input file, and the output file."""

    texts: tuple[str, ...] = ()
    file: str | None = None
    fields: tuple[str, ...] = ()
    output: str | None = None
    id_field: str | None = None
    chat: bool = False  # fields may be lists of messages
    given: Mapping[str, str] = field(default_factory=dict)  # extra inputs of the model for all texts, as typed
    widths: Mapping[str, int] = field(default_factory=dict)  # of the model's extra inputs
    tag: str | None = None  # column of the tags in training
    upper: bool = False  # sequences of FASTA are upper case in training

    @functools.cached_property
    def format(self) -> str | None:
        """Format of the records in the input file; None if each line is a text."""
        suffix = Path((self.file or "").lower().removesuffix(".gz")).suffix
        found = FORMATS.get(suffix, "JSON lines" if self.fields else None)
        return found if self.fields or found != "TSV" else None  # a tab separates pairs

    @property
    def are_records(self) -> bool:
        """True if outputs have ids: inputs are records, or the output file is one of records."""
        return self.format is not None or Path(self.output or "").suffix.lower() in (*RECORDS, *TABLES)

    def check(self, most_fields: int = 1, vectors: bool = False) -> None:
        """Raise UsageError for conflicting options, a TEXT that names a file, and a .npy output without `vectors`."""
        if self.texts and self.file is not None:
            raise UsageError(f"--input {self.file} and TEXT cannot be combined; use one of them")
        if self.fields and self.file is None:
            raise UsageError("--field names a column or key of a file; pass the file with --input")
        if self.id_field is not None and self.format is None:
            raise UsageError(f"--id {self.id_field} names a column or key of a file; add --input FILE --field NAME")
        if len(self.fields) > most_fields:
            reads = "one text; use --field once" if most_fields == 1 else f"at most {most_fields} texts"
            raise UsageError(f"--field {' --field '.join(self.fields)}: this run reads {reads}")
        self._check_output(vectors)
        for text in self.texts:
            if os.path.isfile(text):
                field = " --field NAME" * (TextOptions(file=text).format not in (None, "FASTA"))
                raise UsageError(f"'{text}' is a file; read it with --input {text}{field}, or pipe in the text")

    def _check_output(self, vectors: bool) -> None:
        """Raise UsageError if the output would overwrite the input or a file of a run, or cannot have its format."""
        if self.output is None or self.output == "-":
            return
        output, suffix = Path(self.output), Path(self.output).suffix.lower()
        written = [output, _target(self.output).with_suffix(".ids")] if suffix == ".npy" else [output]
        if self.file is not None and any(_same_file(str(one), self.file) for one in written):
            raise UsageError(f"--out {output} would overwrite the input file; choose another")
        if _is_of_run(output):
            raise UsageError(f"--out {output} would overwrite a file of a run; choose another")
        if suffix == ".gz" or (suffix == ".npy" and not vectors):
            raise UsageError(f"--out {output}: the answers cannot be {suffix}; use .csv, .jsonl, .parquet or .txt")
        if suffix == ".parquet" and find_spec("pyarrow") is None:
            raise UsageError(f"--out {output}: Parquet needs the package pyarrow: {installing('data')}")

    def read_by(self, run: Run) -> TextOptions:
        """Return a copy that reads texts as training did, and the model's extra inputs. Raise UsageError for others."""
        widths = {name: one.width for name, one in run.blueprint.extra_inputs.items()}
        for name in self.given.keys() - widths.keys():
            raise UsageError(f"--input {name}=: no part of this model reads it; {', '.join(widths) or 'none'} is read")
        data = run.recipe.data
        first = data and next((share.corpus for share in dict(data.train).get("of", ())), data.train)  # of a mixture
        options = dict(first or ())
        tag, upper = dict(options.get("fields", {})).get("tag"), options.get("case") == "upper"
        return replace(self, chat=self.chat, widths=widths, tag=tag, upper=upper)

    def inputs(self, texts: Sequence[Text]) -> ExtraInputs:
        """Return the extra inputs of texts as an argument `inputs`, if there are any. Raise UsageError or DataError."""
        from tfkit.generation.prompts import read_numbers

        found: dict[str, list[list[float]]] = {name: [] for name in self.widths}
        for (name, width), text in product(self.widths.items(), texts):
            value = self.given.get(name, text.extra.get(name))
            if value is None:
                raise UsageError(f"this model reads the input '{name}'; add --input {name}=N,N,... ({width:,} numbers)")
            found[name].append(read_numbers(value, width, f"{text.place or '--input'}: {name}"))
        return {"inputs": found} if found else {}

    def batches(self, together: int) -> Iterator[list[Text]]:
        """Yield the texts in batches. Raise DataError for invalid input.

        A file is validated completely before its first text is processed. Lines of standard input are processed as they
        arrive, one at a time if typed.
        """
        if self.texts:
            yield [Text((text,), number) for number, text in enumerate(self.texts, 1)]
            return
        if self.file is not None:
            yield from _batched(self._of_file(self.file), together)
            return
        from tfkit.generation.prompts import records

        lines = enumerate(records(STDIN, None, (), _lines(standard_input(), STDIN)), 1)
        texts = (self._text(number, *line) for number, line in lines)
        yield from _batched(texts, 1 if is_terminal(sys.stdin) else together)

    def arrays(self, run: Run, together: int) -> Iterator[list[Text]]:
        """Yield the arrays, images or sounds of --input in batches. Raise UsageError for other inputs."""
        if self.file is None or self.file == "-" or self.texts or self.fields or self.id_field:
            what = "a .npy file of arrays, an image or audio file, or a folder of them"
            raise UsageError(f"{run.folder}: this model reads vectors, not texts; use --input PATH, {what}")
        names, rows = enumerate(run.inputs(self.file), 1), f"{self.file}: "  # the ids of rows are their numbers
        ids = ((number, name, None if name.startswith(rows) else str(name)) for number, name in names)
        yield from _batched((Text((name,), number, str(name), id_) for number, name, id_ in ids), together)

    def all(self) -> list[Text]:
        """Return all texts."""
        return [text for together in self.batches(LONGEST) for text in together]

    def _of_file(self, file: str) -> list[Text]:
        from tfkit.generation.prompts import records

        name = STDIN if file == "-" else file
        names = (*(self.fields or ("text",)), *self.widths, self.id_field or "id", *filter(None, [self.tag]))
        found = records(name, self.format, names, _filled(file))
        texts = [self._text(number, *record) for number, record in enumerate(found, 1)]
        if not texts:
            raise DataError(f"{name}: contains no text")
        lacking = next((text for text in texts if text.id is None), None)
        if lacking is not None and any(text.id is not None for text in texts):
            raise DataError(
                f"{lacking.place}: the record has no id, but others have; add ids to all records, or to none"
            )
        for text in texts if str(self.output).lower().endswith(".npy") else ():
            if len(f"{text.id}.".splitlines()) > 1:
                raise DataError(f"{text.place}: the id {text.id!r} has a line break; use --out FILE.jsonl")
        return texts

    def _text(self, number: int, place: str, record: object) -> Text:
        """Convert a line or record of a file. Raise DataError for invalid records, UsageError without --field."""
        if self.format is None:
            return Text((str(record),), number, place)
        if not self.fields and self.format != "FASTA":
            keys = ", ".join(record) if isinstance(record, Mapping) else "no fields"
            why = f"contains {self.format}; name the text field with --field NAME; the first record has {keys}"
            raise UsageError(f"{self.file} {why}")
        from tfkit.generation.prompts import record_values

        if self.upper and self.format == "FASTA" and isinstance(record, Mapping):
            record = {**record, "sequence": record["sequence"].upper()}
        fields, extra = self.fields or ("sequence",), [name for name in self.widths if name not in self.given]
        values, id_ = record_values(record, (*fields, *extra), place, self.chat, self.id_field, self.tag)
        count = len(fields)
        return Text(values[:count], number, place, id_, dict(zip(extra, values[count:], strict=True)))


@dataclass(frozen=True)
class TextOutput:
    """Destination of outputs: a file, standard output, or the rows of a table."""

    file: IO[str] | None = None
    rows: list[Row] | None = None

    def text(self, text: str, end: str = "\n") -> None:
        """Write a text."""
        if self.file is None:
            echo_text(text, end)
        else:
            self.file.write(text + end)

    def json(self, data: object) -> None:
        """Write data as a JSON line."""
        self.text(answer_line(data))

    def record(self, text: Text, answer: Row) -> None:
        """Write an output as a row or a JSON line with the record's id, by default its number."""
        write = self.json if self.rows is None else self.rows.append
        write({"id": text.number if text.id is None else text.id, **answer})


@contextlib.contextmanager
def output_to(path: str | None, tables: bool = False) -> Iterator[TextOutput]:
    """Open standard output for None and `-`, otherwise a file that is written atomically.

    With `tables`, the suffix of the file may name a format of rows; the ids of .npy are written next to it.
    """
    if path is None or path == "-":
        yield TextOutput()
        return
    with _written(path, tables) as output:
        yield output
    if tables and SPEECH.data:
        echo(answer_line({"file": path}))


@contextlib.contextmanager
def _written(path: str, tables: bool) -> Iterator[TextOutput]:
    file, rows = _target(path), list[Row]()
    suffix = Path(path).suffix.lower() if tables else ""
    ids = file.with_suffix(".ids") if suffix == ".npy" else file
    with files.whole(ids) if suffix == ".npy" else contextlib.nullcontext() as names, files.whole(file) as temporary:
        if suffix not in TABLES:
            with open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as f:
                yield TextOutput(f)
            return
        yield TextOutput(rows=rows)
        _write_table(temporary, suffix, rows)
        if names is not None:
            names.write_text("".join(f"{row['id']}\n" for row in rows), "utf-8", "backslashreplace", "\n")
            files.sync(temporary)  # slow
            ids.unlink(missing_ok=True)  # at no time are the ids those of other vectors


def _target(path: str) -> Path:
    """Resolve links to files, so that their target is written: /dev/stdout may link to a file."""
    return Path(os.path.realpath(path) if os.path.isfile(path) else path)


def _write_table(file: Path, suffix: str, rows: Sequence[Row]) -> None:
    """Write rows as .csv or .tsv (mappings and vectors as a column per value, lists as JSON), .npy or .parquet.

    In Parquet, ids are texts unless all are integers.
    """
    cells: Callable[[Row], Row] = _cells if suffix in (".csv", ".tsv") else dict
    names = dict.fromkeys(chain(["id"], chain.from_iterable(map(cells, rows))))
    if cells is _cells:
        with open(file, "w", encoding="utf-8", errors="backslashreplace", newline="") as text:
            # csv quotes a lone CR only if lines end with CR LF
            stream = SimpleNamespace(write=lambda line: text.write(f"{line[:-2]}\n"))
            writer = csv.DictWriter(stream, names, delimiter="," if suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(map(cells, rows))
        return
    columns = {name: [row.get(name) for row in rows] for name in names}
    if suffix == ".npy":
        with open(file, "wb") as array:
            import_module("numpy").save(array, columns["vector"])
        return
    if not all(type(one) is int and abs(one) < 2**63 for one in columns["id"]):
        columns["id"] = [str(one).encode("utf-8", "backslashreplace").decode() for one in columns["id"]]
    import_module("pyarrow.parquet").write_table(import_module("pyarrow").table(columns), file)


def _cells(row: Row) -> Row:
    cells: Row = {}
    for name, value in row.items():
        value = dict(enumerate(value.tolist())) if hasattr(value, "tolist") else value
        if isinstance(value, dict):
            cells |= _cells({f"{name}.{key}": one for key, one in value.items()})
        else:
            cells[name] = value if isinstance(value, str) else "" if value is None else json_line(value)
    return cells


@contextlib.contextmanager
def located(texts: Sequence[Text]) -> Iterator[None]:
    """Add the location of the text to errors."""
    from tfkit.generation.prompts import PromptError

    try:
        yield
    except PromptError as error:
        text = texts[error.number - 1]
        the = f": the {error.name}" if text.place else ""
        raise UsageError(f"{text.named(error.name)}{the} {error.what}") from None
    except ExampleError as error:
        raise DataError(f"{texts[error.number - 1].named('text')}: {error.why}") from None


INPUT = click.option(
    "--input",
    "input_files",
    metavar="FILE|NAME=NUMBERS",
    multiple=True,
    help="Read texts from FILE: one per line, or from .csv, .tsv, .jsonl, .parquet or .fasta (all but .parquet also "
    "with .gz); -: standard input. For vectors: a .npy file, an image or audio file, or a folder of them. "
    "NAME=0.1,0.2,...: the input NAME of the model's parts, for all texts; else it is a field of FILE.",
)
FIELD = click.option(
    "--field", "fields", multiple=True, metavar="NAME",
    help="Column or key of FILE with the text, or with the messages of a chat (FASTA: the sequence by default); the "
    "output is then JSON lines with the same ids.",
)  # fmt: skip
ID = click.option(
    "--id", "id_field", metavar="NAME", help="Column or key with the ids.  [default: id, else the text's number]"
)
OUT = click.option(
    "--out", "--output", "output", metavar="FILE",
    help="Write atomically to FILE, including the ids if it ends in .csv, .tsv, .jsonl, .ndjson or .parquet. embed "
    "also writes .npy, with the ids in a .ids file next to it, one per line.",
)  # fmt: skip


def _text_options(
    input_files: Sequence[str], fields: tuple[str, ...], id_field: str | None, output: str | None,
    texts: tuple[str, ...] = (),
) -> TextOptions:  # fmt: skip
    """Part the values of --input: a file, and inputs NAME=NUMBERS."""
    pairs = [value.partition("=") for value in input_files if value.partition("=")[0].isidentifier()]
    given = {name: text for name, sign, text in pairs if sign and not os.path.exists(f"{name}={text}")}
    names = [value for value in input_files if value.partition("=")[0] not in given]
    if len(names) > 1:
        raise UsageError(f"--input {names[1]}: {names[0]} is given too; use one file")
    return TextOptions(texts, next(iter(names), None), fields, output, id_field, given=given)


# decorator of a command, which receives these options and its argument `texts` as `inputs`
takes_texts = gathered("inputs", _text_options, INPUT, FIELD, ID, OUT)


def _is_of_run(path: Path) -> bool:
    """True if the path is a file that tfkit writes, inside a run folder."""
    from tfkit.runs.folder import CARD, CHECKPOINTS, OURS, RunFolder

    with contextlib.suppress(OSError, ValueError):  # unwritable paths fail later
        path = Path(os.path.realpath(path))
    written = path.name in (*OURS, CARD)
    folders = [path.parent] if written else [one.parent for one in path.parents if one.name == CHECKPOINTS]
    return any(RunFolder(folder).holds_run for folder in folders)


def _same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def _lines(stream: BinaryIO | BufferedIOBase, name: str) -> Iterator[tuple[str, str]]:
    """Yield the location and text of each line. Raise DataError for overlong lines or invalid UTF-8."""
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
        place = f"{name}, line {number}" if name == STDIN else f"{name}:{number}"
        if len(line) > LONGEST:
            raise DataError(f"{place}: longer than {LONGEST:,} bytes")
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 text ({error.reason})") from None
        if text.count("\0") * 4 > len(text):
            raise DataError(f"{place}: not UTF-8 text (null characters)")
        yield place, text.removeprefix("\ufeff") if number == 1 else text


def _filled(file: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file or of standard input as `_lines` does. Raise DataError for empty lines."""
    with contextlib.nullcontext(standard_input()) if file == "-" else files.unpacked(file) as stream:
        for place, line in _lines(stream, STDIN if file == "-" else file):
            if not line.strip():
                raise DataError(f"{place}: empty line; remove it")
            yield place, line


def _batched(texts: Iterable[Text], count: int) -> Iterator[list[Text]]:
    several = iter(texts)
    while some := list(islice(several, count)):
        yield some
