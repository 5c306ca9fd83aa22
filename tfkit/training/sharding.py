"""Corpora read from token shards: when shards are used, and the cache keys of shards and learned tokenizers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import tokenizers
from pydantic import BaseModel

import tfkit
from tfkit.core.component import Component, Config
from tfkit.core.plugins import is_shipped, source_file
from tfkit.core.slots import CorpusFacts
from tfkit.data.corpus import Corpus
from tfkit.data.shards import ShardSource, key_of, remembered, shard
from tfkit.data.token_ids import TokenIds
from tfkit.data.tokenizer import Tokenizer
from tfkit.recipe.load import Recipe
from tfkit.recipe.text.options import values_of
from tfkit.storage.checksums import sha256_of
from tfkit.training.changed import hash_of

LARGE = 2**26  # corpora of at least this many bytes are read from token shards by default


def is_sharded(recipe: Recipe, config: CorpusFacts.Config) -> bool:
    """True if the corpus is read from token shards, depending on `data.shards`, its size and the objective."""
    data, objective = recipe.data, recipe.objective
    if data is None or objective is None or "shards" not in objective.part.capabilities:
        return False
    if "vectors" in data.fields() or (recipe.train.teacher is not None and recipe.train.teacher.sequences is not None):
        return False
    files = files_of(config)
    return bool(files) and (size_of(files) >= LARGE if data.shards is None else data.shards)


def files_of(config: CorpusFacts.Config) -> tuple[str, ...]:
    """Return the files of a corpus, or () if one of them is missing."""
    files = config.files_read()
    return files if all(os.path.isfile(file) for file in files) else ()


def size_of(files: tuple[str, ...]) -> int:
    """Return the total size of the files in bytes."""
    return sum(os.path.getsize(file) for file in files)


def encoded_corpus(config: CorpusFacts.Config, corpus: Corpus, encoders: dict[str, Tokenizer]) -> dict[str, TokenIds]:
    """Return the token ids of each field from the shard of the corpus, creating the shard if necessary."""
    made = {field: tokenizer.to_json() for field, tokenizer in encoders.items()}
    source = ShardSource(corpus.name(), size_of(files_of(config)), corpus.stream, encoders)
    return shard(key_of(_identity(config), made), source)


def learned_once(config: Config, corpus: Config, fields: list[str], learn: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer that `learn` fits to these fields of a corpus, cached across runs."""
    key = key_of(_identity(config), _identity(corpus), fields, tokenizers.__version__)
    return Tokenizer.from_json(remembered("tokenizers", key, lambda: learn().to_json()))


def _identity(config: Config) -> list[object]:
    """Return a JSON value that identifies a part: its options, with hashes in place of files, and its code."""
    options = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    for file in files_of(config) if isinstance(config, CorpusFacts.Config) else ():
        options = options.replace(json.dumps(file), json.dumps(hash_of(file)))
    return [config.part.part_name, options, *(_code(part) for part in dict.fromkeys(_parts(config)))]


def _parts(owner: BaseModel) -> Iterator[type[Component]]:
    """Yield the part with these options and all parts nested in them."""
    if isinstance(owner, Config):
        yield owner.part
    for _, value, _ in values_of(owner, ""):
        yield from _parts(value) if isinstance(value, BaseModel) else ()


def _code(part: type[Component]) -> str:
    """Return tfkit's version for a shipped part, or else the hash of the part's source file."""
    code = None if is_shipped(part) else source_file(part)
    return tfkit.__version__ if code is None else sha256_of(Path(code))
