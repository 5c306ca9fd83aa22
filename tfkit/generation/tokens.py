"""Tokens as named in recipes, by text or by id, and padded batches of ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, TypeVar

import numpy as np
import torch
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfkit.core.errors import UsageError
from tfkit.core.options import NonNegativeInt
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.prompts import Source

Entries = TypeVar("Entries", bound=tuple[object, ...])


def _listed(value: object) -> object:
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
    tuple[Text, ...], BeforeValidator(_listed, json_schema_input_type=Text | list[Text]), AfterValidator(_some)
]
Tokens = Annotated[
    tuple[Token, ...], BeforeValidator(_listed, json_schema_input_type=Token | list[Token]), AfterValidator(_some)
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
