"""Prompts as texts, ids or JSON lines, and tokens as named in recipes."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfkit.core.errors import DataError, ExampleError, TfkitError, TfkitWarning, UsageError
from tfkit.core.options import NonNegativeInt
from tfkit.data.chat import checked, written
from tfkit.data.corpus import fasta
from tfkit.data.corpus.base import check_texts, with_tag
from tfkit.data.corpus.records import Csv, Parquet, find, parsed, pick
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.vectors import numbers

Ids = Sequence[int]
Source = Ids | NDArray[np.float32]  # encoder input: ids, or vectors [time width]
Prompts = str | Sequence[str | Ids] | Ids


class PromptError(UsageError):
    """Invalid prompt: `name` is "prompt" or "source", `number` counts from 1, `what` is the fault."""

    def __init__(self, name: str, number: int, what: str) -> None:
        super().__init__(f"{name} {number} {what}")
        self.name = name
        self.number = number
        self.what = what


def prompt_ids(prompts: Prompts, read: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
    """Return the ids of each prompt, encoding texts with `read`. Ids may also be tensors or arrays.

    Raise UsageError for other types, and PromptError if a single prompt is invalid.
    """
    prompt_list = _listed(prompts)
    several = [prompt_list] if isinstance(prompt_list, str) or _are_ids(prompt_list) else prompt_list
    if not isinstance(several, list):
        raise UsageError(f"a prompt is a text or a list of ids, got {prompts!r}")
    rows = [_listed(prompt) for prompt in several]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str) and row != [] and not _are_ids(row):
            raise PromptError("prompt", number, f"is neither a text nor a list of ids: {row!r}")
    texts = {place: row for place, row in enumerate(rows) if isinstance(row, str)}
    encoded = dict(zip(texts, _read(list(texts.values()), list(texts), read), strict=True))
    return [encoded.get(place, row) for place, row in enumerate(rows)]


def _listed(value: object) -> Any:
    """Convert tensors, arrays, tuples and ranges to lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else value


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _read(
    texts: Sequence[str], places: Sequence[int], read: Callable[[Sequence[str]], list[list[int]]]
) -> list[list[int]]:
    """Encode texts. Raise PromptError for the first text that fails."""
    try:
        return read(texts)
    except TfkitError:
        for place, text in zip(places, texts, strict=True):
            try:
                read([text])
            except TfkitError as error:
                why = error.why if isinstance(error, ExampleError) else error
                raise PromptError("prompt", place + 1, f"cannot be read: {why}") from None
        raise


def records(
    file: str, kind: str | None, names: Sequence[str], lines: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, object]]:
    """Yield the records of a file with their locations, as corpora read them, or the `lines` if `kind` is None.

    `names` are the columns to read. JSON lines are parsed from `lines`. Raise DataError if the lines are FASTA.
    """
    if kind == "Parquet":
        yield from Parquet(Parquet.Config(file=file, fields={name: name for name in names})).rows()
    elif kind == "FASTA":
        yield from fasta.records(file)
    elif kind in ("CSV", "TSV"):
        rows = Csv(Csv.Config(file=file, fields={"text": 0}, delimiter="," if kind == "CSV" else "\t")).rows()
        header = next(rows)[1]
        columns = {name: header.index(name) for name in header}
        yield from ((place, {name: cells[n] for name, n in columns.items()}) for place, cells in rows)
    else:
        first = ""
        for number, (place, line) in enumerate(lines, 1):
            if number == 2:
                how = "save it as NAME.fasta, and read it with --input NAME.fasta"
                fasta.refuse_fasta(file, (first, line), how)
            first = line
            yield place, line if kind is None else parsed(line, place)


def record_values(
    record: object, fields: Sequence[str], place: str, chat: bool = False, id_field: str | None = None,
    tag: str | None = None,
) -> tuple[tuple[str, ...], str | int | float | None]:  # fmt: skip
    """Return the values of `fields` in a record, and its id: `id_field`, or `id` if present, else None.

    With `chat`, a field may be a list of messages. As in training, the prompt ends before the last reply. The value of
    `tag`, if the record has it, is written before the first text. Raise DataError for invalid records.
    """
    if chat and isinstance(record, dict) and isinstance(record.get(fields[0]), list):
        talk = checked({**record, "messages": record[fields[0]]}, place)
        if talk[-1]["role"] == "assistant" and len(talk) > 1:
            warnings.warn("the prompt ends before the last message if that is the assistant's", TfkitWarning, 2)
            talk.pop()
        record = {**record, fields[0]: written(talk)}
    values = pick(record, {name: name for name in fields}, place)
    check_texts(values, place)
    empty = [name for name, text in values.items() if not text.strip()]
    if empty:
        raise DataError(f"{place}: {' and '.join(empty)} {'are' if len(empty) > 1 else 'is'} empty")
    texts, name = tuple(values.values()), id_field or "id"
    if tag is not None and isinstance(record, Mapping) and tag in record:
        texts = (with_tag({"text": texts[0], "tag": str(record[tag])}, place)["text"], *texts[1:])
    if id_field is None and not (isinstance(record, Mapping) and name in record):
        return texts, None
    id_ = find(record, name, place)
    if isinstance(id_, str) or (isinstance(id_, int | float) and not isinstance(id_, bool) and abs(id_) < math.inf):
        return texts, id_
    raise DataError(f"{place}: {name} must be a text or a number, got {json.dumps(id_, default=str)[:40]}")


Entries = TypeVar("Entries", bound=tuple[object, ...])


def _listed_ids(value: object) -> object:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, (str, int)) else value


def _some(values: Entries) -> Entries:
    if not values:
        raise ValueError("the list is empty; remove the rule, or list at least one")
    return values


Text = Annotated[str, Field(min_length=1)]
Token = NonNegativeInt | Text
Texts = Annotated[
    tuple[Text, ...], BeforeValidator(_listed_ids, json_schema_input_type=Text | list[Text]), AfterValidator(_some)
]
Tokens = Annotated[
    tuple[Token, ...], BeforeValidator(_listed_ids, json_schema_input_type=Token | list[Token]), AfterValidator(_some)
]


def token_ids(tokens: Iterable[int | str], tokenizer: Tokenizer) -> list[int]:
    """Return the id of each token. Raise UsageError unless it is a single token of the vocabulary."""
    return [_id(token, tokenizer) for token in tokens]


def _id(token: int | str, tokenizer: Tokenizer) -> int:
    if isinstance(token, int):
        tokenizer.token(token)  # raises for unknown ids
        return token
    if token in tokenizer:
        return tokenizer.id(token)
    pieces = tokenizer.encode(token)
    if len(pieces) == 1 and pieces[0] != tokenizer.special_ids.get("unknown"):
        return pieces[0]
    written = ", ".join(repr(tokenizer.token(piece)) for piece in pieces)
    more = f"; it is encoded as {len(pieces)} tokens: {written}" if len(pieces) > 1 else ""
    raise UsageError(f"{token!r} is not in the vocabulary of {tokenizer.vocab_size} tokens{more}")


def without_token(tokenizer: Tokenizer, size: int) -> Tensor | None:
    """Return the mask of ids below `size` without a token, bool [size]; None if there are none."""
    gaps = [id_ for id_ in tokenizer.gaps if id_ < size]
    if not gaps and size <= tokenizer.vocab_size:
        return None
    mask = torch.arange(size) >= tokenizer.vocab_size
    mask[gaps] = True
    return mask


def breaks_of(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that separate texts: the start and end tokens."""
    return frozenset(id_ for role in ("start", "end") if (id_ := tokenizer.special_ids.get(role)) is not None)


def before_text(prompt: Sequence[int], breaks: Collection[int]) -> Sequence[int]:
    """Return the suffix of the prompt that generation continues: everything after the last start or end token."""
    place = next((place for place in range(len(prompt), 0, -1) if prompt[place - 1] in breaks), 0)
    return prompt[place:]


def end_ids(tokens: Iterable[int | str] | None, tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end a text: the named ones, else the tokenizer's end token, if any."""
    if tokens is not None:
        return token_ids(tokens, tokenizer)
    end = tokenizer.special_ids.get("end")
    return [] if end is None else [end]


def read_numbers(text: str, width: int, place: str) -> list[float]:
    """Parse the numbers of an extra input. Raise DataError naming the place."""
    try:
        return [float(one) for one in numbers(text, width)]
    except ValueError as error:
        raise DataError(f"{place} {error}") from None


def extra_rows(inputs: Mapping[str, object] | None, rows: int) -> dict[str, Tensor]:
    """Convert extra inputs to tensors [rows width]; a vector [width] serves for all rows. Raise UsageError."""
    try:
        found = {name: torch.as_tensor(one, dtype=torch.float32) for name, one in (inputs or {}).items()}
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"inputs must map names to numbers [rows width] or [width], got {inputs!r}") from None
    return {name: one.expand(rows, -1) if one.dim() == 1 else one for name, one in found.items()}


def padded_sources(rows: Sequence[Source], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return ids [rows longest] or vectors [rows longest width], padded on the right, and the mask of real tokens."""
    ids = [row for row in rows if not isinstance(row, np.ndarray)]
    if ids:
        return padded_ids(ids, device, left=False)
    vectors = pad_sequence([torch.from_numpy(row) for row in rows if isinstance(row, np.ndarray)], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(vectors.shape[1]) < lengths[:, None]
    return vectors.to(device), None if bool(real.all()) else real.to(device)


def padded_ids(rows: Sequence[Sequence[int]], device: torch.device, left: bool) -> tuple[Tensor, Tensor | None]:
    """Return ids [rows longest], padded with 0, and the mask of real tokens; None without padding."""
    longest = max(map(len, rows))
    fill = [longest - len(row) for row in rows]
    ids = [[0] * n + list(row) if left else list(row) + [0] * n for n, row in zip(fill, rows, strict=True)]
    if not any(fill):
        return torch.tensor(ids, device=device), None
    real = [[False] * n + [True] * (longest - n) if left else [True] * (longest - n) + [False] * n for n in fill]
    return torch.tensor(ids, device=device), torch.tensor(real, device=device)
