"""Corpora that are read from token shards: the choice, their hashes, and the tokenizer learned from one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import tokenizers

import tfkit
from tfkit.core.component import Config
from tfkit.core.plugins import is_shipped, source_file
from tfkit.data.corpus import Corpus
from tfkit.data.shards import ShardSource, key_of, remembered, shard
from tfkit.data.token_ids import TokenIds
from tfkit.data.tokenizer import Tokenizer
from tfkit.recipe.load import Recipe
from tfkit.storage.checksums import sha256_of
from tfkit.training.changed import hash_of

LARGE = 2**26  # bytes of files from which on a corpus is read from token shards by default


def is_sharded(recipe: Recipe, config: Config) -> bool:
    """True if the corpus is read from token shards, by `data.shards`, its size, and the objective."""
    data, objective = recipe.data, recipe.objective
    if data is None or objective is None or "shards" not in objective.part.capabilities:
        return False
    if "vectors" in data.fields() or (recipe.train.teacher is not None and recipe.train.teacher.sequences is not None):
        return False
    files = files_of(config)
    return bool(files) and (size_of(files) >= LARGE if data.shards is None else data.shards)


def files_of(config: Config) -> tuple[str, ...]:
    """Files of a corpus; none if one of them is no file."""
    files = config.files_read() if isinstance(config, Corpus.Config) else ()
    return files if all(os.path.isfile(file) for file in files) else ()


def size_of(files: tuple[str, ...]) -> int:
    """Bytes of the files."""
    return sum(os.path.getsize(file) for file in files)


def encoded_corpus(config: Config, corpus: Corpus, encoders: dict[str, Tokenizer]) -> dict[str, TokenIds]:
    """Return the ids of each field, from the token shard of the corpus; raise DataError and RunError."""
    made = {field: tokenizer.to_json() for field, tokenizer in encoders.items()}
    source = ShardSource(corpus.name(), size_of(files_of(config)), corpus.stream, encoders)
    return shard(key_of(_identity(config), made), source)


def learned_once(config: Config, corpus: Config, fields: list[str], learn: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer that `learn` fits to these fields of a corpus, from the cache if it was fitted before."""
    key = key_of(_identity(config), _identity(corpus), fields, tokenizers.__version__)
    return Tokenizer.from_json(remembered("tokenizers", key, lambda: learn().to_json()))


def _identity(config: Config) -> list[object]:
    """JSON value that determines what a part makes: its options with the hashes of its files, and its code."""
    options = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    for file in files_of(config) if isinstance(config, Corpus.Config) else ():
        options = options.replace(json.dumps(file), json.dumps(hash_of(file)))
    code = None if is_shipped(config.part) else source_file(config.part)
    own = tfkit.__version__ if code is None else sha256_of(Path(code))
    return [config.part.part_name, options, own]
