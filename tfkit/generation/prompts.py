"""Prompts as texts, ids or JSON lines, and tokens as named in recipes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfkit.core.errors import DataError, TfkitError, TfkitWarning, UsageError
from tfkit.core.options import NonNegativeInt
from tfkit.core.output import json_line
from tfkit.data.chat import checked, written
from tfkit.data.corpus.base import check_texts
from tfkit.data.corpus.records import parsed, pick
from tfkit.data.tokenizer import Tokenizer

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
                raise PromptError("prompt", place + 1, f"cannot be read: {error}") from None
        raise


def record_values(
    line: str, fields: Sequence[str], place: str, chat: bool = False
) -> tuple[tuple[str, ...], str | int | float | None]:
    """Return the values of `fields` in a JSON line, and the record's id or None. Raise DataError for invalid lines.

    With `chat`, a field may be a list of messages. As in training, the prompt ends before the last reply.
    """
    record = parsed(line, place)
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
    id_ = record.get("id")
    is_number = isinstance(id_, int | float) and not isinstance(id_, bool) and abs(id_) < math.inf
    if "id" in record and not isinstance(id_, str) and not is_number:
        raise DataError(f"{place}: id must be a text or a number, got {json_line(id_)[:40]}")
    return tuple(values.values()), id_


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
