"""Inputs of `generate`, `predict` and `embed`, and the file for their outputs."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

import click

from tfkit.cli.options import Function
from tfkit.cli.terminal import echo_text, is_terminal, standard_input
from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.output import json_line

if TYPE_CHECKING:
    from tfkit.run import Run

LONGEST = 2**24  # maximum bytes of a line, so that an endless line cannot fill the memory
RECORDS = (".jsonl", ".ndjson")  # suffixes of JSON lines files
STDIN = "standard input"


@dataclass(frozen=True)
class Text:
    """Input text: its values (two for pairs), number, location and record id.

    Texts from the command line have no location.
    """

    values: tuple[str, ...]
    number: int
    place: str = ""
    id: str | int | float | None = None

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
    chat: bool = False  # fields may be lists of messages

    @property
    def are_typed(self) -> bool:
        """True if no text, file or output is given, so that texts may be typed at a terminal."""
        return not self.texts and self.file is None and self.output is None

    @property
    def are_records(self) -> bool:
        """True if inputs, and therefore outputs, are JSON lines with ids."""
        return bool(self.fields)

    def check(self, most_fields: int = 1) -> None:
        """Raise UsageError for conflicting options and for a TEXT that names a file."""
        if self.texts and self.file is not None:
            raise UsageError(f"--input {self.file} and TEXT cannot be combined; use one of them")
        if self.fields and self.file is None:
            raise UsageError("--field names a field of JSON lines; pass the file with --input")
        if len(self.fields) > most_fields:
            reads = "one text; use --field once" if most_fields == 1 else f"at most {most_fields} texts"
            raise UsageError(f"--field {' --field '.join(self.fields)}: this run reads {reads}")
        self._check_output()
        for text in self.texts:
            if os.path.isfile(text):
                field = " --field NAME" if text.endswith(RECORDS) else ""
                raise UsageError(f"'{text}' is a file; read it with --input {text}{field}, or pipe in the text")

    def _check_output(self) -> None:
        """Raise UsageError if the output would overwrite the input or a file of a run."""
        if self.output in (None, "-"):
            return
        if self.file is not None and _same_file(str(self.output), self.file):
            raise UsageError(f"--output {self.output} would overwrite the input file; choose another")
        if _is_of_run(Path(str(self.output))):
            raise UsageError(f"--output {self.output} would overwrite a file of a run; choose another")

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
        stream = standard_input()
        lines = (Text((line,), number, _place(STDIN, number)) for number, line in enumerate(_lines(stream, STDIN), 1))
        yield from _batched(lines, 1 if is_terminal(sys.stdin) else together)

    def arrays(self, run: Run, together: int) -> Iterator[list[Text]]:
        """Yield the arrays, images or sounds of --input in batches. Raise UsageError for other inputs."""
        if self.file is None or self.file == "-" or self.texts or self.fields:
            what = "a .npy file of arrays, an image or audio file, or a folder of them"
            raise UsageError(f"{run.folder}: this model reads vectors, not texts; use --input PATH, {what}")
        names = enumerate(run.inputs(self.file), 1)
        yield from _batched((Text((name,), number, str(name)) for number, name in names), together)

    def all(self) -> list[Text]:
        """Return all texts."""
        return [text for together in self.batches(LONGEST) for text in together]

    def _of_file(self, file: str) -> list[Text]:
        name = STDIN if file == "-" else file
        with _opened(file) as stream:
            texts = [self._text(name, number, line) for number, line in enumerate(_lines(stream, name), 1)]
        if not texts:
            raise DataError(f"{name}: contains no text")
        lacking = next((text for text in texts if text.id is None), None)
        if lacking is not None and any(text.id is not None for text in texts):
            raise DataError(
                f"{lacking.place}: the record has no id, but others have; add ids to all records, or to none"
            )
        return texts

    def _text(self, name: str, number: int, line: str) -> Text:
        """Parse a line of a file. Raise DataError for invalid lines, UsageError for JSON lines without --field."""
        place = _place(name, number)
        if not line.strip():
            raise DataError(f"{place}: empty line; remove it")
        if self.fields:
            from tfkit.generation.prompts import record_values

            values, id_ = record_values(line, self.fields, place, self.chat)
            return Text(values, number, place, id_)
        if name.endswith(RECORDS):
            raise UsageError(f"{name} contains JSON lines; name the text field with --field NAME; {_keys(line)}")
        return Text((line,), number, place)


@dataclass(frozen=True)
class TextOutput:
    """Destination of outputs: a file or standard output."""

    file: IO[str] | None = None

    def text(self, text: str, end: str = "\n") -> None:
        """Write a text."""
        if self.file is None:
            echo_text(text, end)
        else:
            self.file.write(text + end)

    def json(self, data: object) -> None:
        """Write data as a JSON line."""
        self.text(json_line(data))

    def record(self, text: Text, answer: dict[str, object]) -> None:
        """Write an output as a JSON line with the record's id, by default the line number."""
        self.json({"id": text.number if text.id is None else text.id, **answer})


@contextlib.contextmanager
def output_to(path: str | None) -> Iterator[TextOutput]:
    """Open standard output for None and `-`, otherwise a file that is written atomically."""
    if path is None or path == "-":
        yield TextOutput()
        return
    from tfkit.storage.files import whole

    if os.path.isfile(path):  # resolve links and write to their target: /dev/stdout may link to a file
        path = os.path.realpath(path)
    with (
        whole(Path(path)) as temporary,
        open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as f,
    ):
        yield TextOutput(f)


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
    "input_file",
    metavar="FILE",
    help="Read texts from FILE, one per line; -: standard input. "
    "For vectors: a .npy file, an image or audio file, or a folder of them.",
)
FIELD = click.option(
    "--field", "input_fields", multiple=True, metavar="NAME",
    help="Name of the field with the text, or with the messages of a chat, if FILE contains JSON lines; the output is "
    "then JSON lines with the same ids.",
)  # fmt: skip
OUTPUT = click.option("--output", metavar="FILE", help="Write to FILE, atomically.")


def takes_texts(function: Function) -> Function:
    """Add --input, --field and --output to a command, passed with the argument `texts` as `inputs`."""

    @functools.wraps(function)
    def with_texts(
        *args: object,
        texts: tuple[str, ...] = (),
        input_file: str | None = None,
        input_fields: tuple[str, ...] = (),
        output: str | None = None,
        **kwargs: object,
    ) -> object:
        return function(*args, inputs=TextOptions(texts, input_file, input_fields, output), **kwargs)

    decorated: Function = with_texts
    for option in (OUTPUT, FIELD, INPUT):
        decorated = option(decorated)
    return decorated


def _place(name: str, number: int) -> str:
    return f"{name}, line {number}" if name == STDIN else f"{name}:{number}"


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


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Open standard input for `-`, otherwise a regular file. Raise RunError if it cannot be read."""
    if file == "-":
        yield standard_input()
        return
    import io

    from tfkit.storage.files import regular

    with regular(file) as raw:
        yield io.BufferedReader(raw)


def _lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yield lines without the newline or a byte-order mark. Raise DataError for overlong lines or invalid UTF-8."""
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
        place = _place(name, number)
        if len(line) > LONGEST:
            raise DataError(f"{place}: longer than {LONGEST:,} bytes")
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 text ({error.reason})") from None
        if text.count("\0") * 4 > len(text):
            raise DataError(f"{place}: not UTF-8 text (null characters)")
        yield text.removeprefix("\ufeff") if number == 1 else text


def _batched(texts: Iterable[Text], count: int) -> Iterator[list[Text]]:
    several = iter(texts)
    while some := list(islice(several, count)):
        yield some


def _keys(line: str) -> str:
    """Return the keys of the first record, for messages."""
    import json

    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    return (
        f"the first line has {', '.join(record)}"
        if isinstance(record, dict) and record
        else "for example, --field text"
    )
