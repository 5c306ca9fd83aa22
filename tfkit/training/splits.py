"""Data splits of a recipe and corpora read from token shards, with faults named before training starts."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from pydantic import BaseModel

import tfkit
from tfkit.components.embedding.vectors import check_vectors
from tfkit.core.component import Component, Config
from tfkit.core.errors import DataError, ExampleError, Fault, UsageError, is_shipped, source_file
from tfkit.core.machine import readable_bytes
from tfkit.core.output import counted, json_line
from tfkit.core.slots import CorpusFacts, HeadFacts
from tfkit.data.chat import conversation_of, is_conversation
from tfkit.data.corpus import Corpus, Example
from tfkit.data.corpus.base import cells, mark, without_tag
from tfkit.data.corpus.division import has_column
from tfkit.data.encoder import TokenIds
from tfkit.data.shards import ShardSource, key_of, remembered, shard
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.vectors import Vectors, digest
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.agreement import is_stream
from tfkit.recipe.settings.sections import TOKENIZER, Batch, Data
from tfkit.recipe.text.faults import values_of
from tfkit.runs.record import hash_of
from tfkit.storage.checksums import sha256_of
from tfkit.training.metric import Metric, as_compared
from tfkit.training.objective import Item, Objective
from tfkit.training.objective.chat import ChatRows, rehearse
from tfkit.training.objective.labels import LabelledRows
from tfkit.training.objective.rows import Encoded, located

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


SHOWN = 10  # examples per split that `tfkit check` reads, and turns that it shows


def first_examples(recipe: Recipe) -> tuple[dict[str, list[Example]], list[Fault]]:
    """Read the first examples of each split, and the start of word vectors. Return the examples and the faults found.

    Splits with missing files, and corpora whose first examples are slow to read, are skipped.
    """
    splits = [] if recipe.data is None else recipe.data.splits()
    lacking = tuple(fault.path for fault in recipe.missing_files())
    examples: dict[str, list[Example]] = {}
    faults = [*missing_packages(recipe), *_vector_faults(recipe)]
    objective = None if recipe.objective is None else recipe.objective.build()
    if objective is not None:
        objective.rows.read_model(recipe.blueprint())
    for name, config in splits:
        path, corpus = _path(recipe, name), config.build()
        corpus.also = recipe.train.grouped_by(name)
        is_missing = any(at.startswith((f"{path}.", "data.split.")) for at in lacking)
        if is_missing or not corpus.in_order or any(fault.path == path for fault in faults):
            continue
        try:
            examples[name] = corpus.first(SHOWN)
            if objective is not None:
                with Split(config, objective).located():
                    read = objective.rows.extra if objective.rows.plan is None else objective.rows.vectors
                    read(examples[name])
        except DataError as error:
            faults.append(recipe.fault(path, str(error)))
            continue
        if (
            objective is not None
            and isinstance(objective.rows, ChatRows)
            and recipe.data
            and len(examples) == 1
            and not any(at.startswith(TOKENIZER) for at in lacking)
        ):
            try:
                rehearse(objective.rows, examples[name][:1], recipe.data.tokenizers().get(TOKENIZER))
            except DataError as error:
                why = error.why if isinstance(error, ExampleError) else str(error)
                faults.append(recipe.fault("objective", f"{corpus.where(1)}: {why}"))
    return examples, faults


def _path(recipe: Recipe, split: str) -> str:
    """Return the path of the corpus that a split is read from."""
    is_cut = recipe.data is not None and recipe.data.split is not None and split in recipe.data.split.cut
    return "data.train" if is_cut else f"data.{split}"


COMPARED = 2**23  # maximum bytes per split that `tfkit check` reads, for leaks and refused texts


def leaks(recipe: Recipe) -> Iterator[Fault]:
    """Yield a warning for examples, or groups of `data.split.by`, that are in two splits.

    Generated corpora, and running text that the objective joins to one stream, are not compared.
    """
    data, seen = recipe.data, dict[tuple[str, str], str]()
    by = data.split.by if data is not None and data.split is not None else None
    for name, config in [] if data is None or is_stream(data, recipe.objective) else data.splits():
        corpus, size, found = config.build(), size_of(files_of(config)), dict[tuple[str, str], dict[str, int]]()
        if size > COMPARED and _path(recipe, name) == f"data.{name}":
            text = f"is not searched for examples of other splits, as it has {readable_bytes(size)}"
            yield recipe.fault(f"data.{name}", f"{text}; the limit is {readable_bytes(COMPARED)}")
        if not 0 < size <= COMPARED or not corpus.in_order:
            continue
        corpus.also = (by,) if by and has_column(config, by) else ()
        for number, example in enumerate(corpus.stream(), start=1):
            keys = [("group", example[by])] if by in example else []
            for kind, key in [*keys, ("example", digest([{field: example[field] for field in corpus.fields}]))]:
                if (other := seen.setdefault((kind, key), name)) != name:
                    found.setdefault((kind, other), {})[key if kind == "group" else str(number)] = number
        for (kind, other), those in found.items():
            names = [repr(key) if kind == "group" else corpus.where(those[key]) for key in list(those)[:3]]
            text = f"{counted(len(those), kind)} of {name} {'is' if len(those) == 1 else 'are'} also in {other}"
            yield recipe.fault(f"data.{name}", f"{text}: {', '.join(names)}{', ...' if len(those) > 3 else ''}")


def missing_packages(recipe: Recipe) -> Iterator[Fault]:
    """Yield a fault for each callback and metric whose package is not installed."""
    train = recipe.train
    users = {"callbacks": train.callbacks, "metrics": train.metrics, "validate.metrics": train.validate.metrics}
    for key, configs in users.items():
        for number, config in enumerate(configs):
            try:
                config.build().ready()
            except UsageError as error:
                yield recipe.fault(f"train.{key}[{number}]", str(error))


def _vector_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield a fault for each file of pretrained vectors that cannot be read."""
    for plan in recipe.blueprint().stacks():
        path = None if plan.embedding is None else plan.embedding.vectors_file()
        if plan.embedding is not None and path is not None and os.path.exists(path):
            try:
                check_vectors(path, plan.embedding.table_width(plan.shape()))
            except DataError as error:
                yield recipe.fault(f"model.{plan.side}.embedding.vectors", str(error))


def described(value: str) -> str:
    """Describe the name, shape and range of an array field. Return "" for a text."""
    return value.described() if isinstance(value, Vectors) else ""


def turns(example: Example) -> list[Example]:
    """Return the first turns of a conversation by role, or else the example itself."""
    talk = conversation_of(example) if is_conversation(example.get("source", "")) else []
    contents = [(one["role"], one.get("content", one)) for one in talk[:SHOWN]]
    return [{role: text if isinstance(text, str) else json_line(text)} for role, text in contents] or [example]


class Split:
    """The examples of a split, and their conversion to items of the objective."""

    def __init__(self, config: CorpusFacts.Config, objective: Objective, sharded: bool = False) -> None:
        self.config, self.objective, self.sharded = config, objective, sharded
        self.corpus: Corpus = config.build()
        self._count: int | None = None

    @cached_property
    def examples(self) -> list[Example]:
        """The examples, read on first access. Raise DataError if they are invalid."""
        return self.corpus.examples()

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the fields in the examples."""
        first = self.corpus.first(1) if self.sharded else self.examples[:1]
        return tuple(first[0]) if first else ()

    def texts(self, fields: Sequence[str]) -> Iterator[str]:
        """Yield these fields of all examples, without tags."""
        return self.objective.rows.learned(map(without_tag, self._all), fields)

    @property
    def _all(self) -> Iterable[Example]:
        return self.corpus.stream() if self.sharded else self.examples

    def tags(self) -> list[str]:
        """Return the tags of all examples as tokens, sorted."""
        return sorted({mark(one["tag"]) for one in self._all}) if "tag" in self.corpus.fields else []

    def __len__(self) -> int:
        return len(self.examples) if self._count is None else self._count

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Prefix errors about examples with the file, and the line if known."""
        try:
            yield
        except ExampleError as error:
            raise DataError(f"{self.corpus.where(error.number)}: {error.why}") from None
        except DataError as error:
            raise DataError(f"{self.corpus.name()}: {error}") from None

    def items(self, tokenizer: Tokenizer, longest: int | None, batch: Batch) -> Sequence[Item]:
        """Convert the examples to items. Raise DataError for invalid examples and for items larger than a batch."""
        with self.located():
            items = self.objective.rows.prepare(self._held(tokenizer), tokenizer, longest)
            if batch.tokens is not None and not batch.pack:
                self._check_fit(items, tokenizer, longest, batch.tokens)
        return items

    def _held(self, tokenizer: Tokenizer) -> Sequence[Example]:
        """Return the examples in memory, or their ids in a token shard."""
        if not self.sharded or self.objective.rows.extra_inputs:
            return self.examples
        fields = self.objective.rows.fields
        encoders = {field: tokenizer.source if field == "source" else tokenizer for field in fields}
        found = Encoded(encoded_corpus(self.config, self.corpus, encoders))
        self._count = len(found)
        return found

    def _check_fit(self, items: Sequence[Item], tokenizer: Tokenizer, longest: int | None, most: int) -> None:
        """Raise DataError for the first example that exceeds the batch size."""
        if self._size(items) <= most:
            return
        for number, example in enumerate([] if self.sharded else self.examples, 1):
            size = 0
            with _quiet(), contextlib.suppress(DataError):  # the example has no items
                size = self._size(self.objective.rows.prepare([example], tokenizer, longest))
            if size > most:
                raise ExampleError(number, _too_large(size, most))
        raise DataError(_too_large(self._size(items), most))

    def _size(self, items: Sequence[Item]) -> int:
        """Return the number of tokens of the largest item."""
        return int(np.asarray(self.objective.rows.lengths(items)).max())

    @property
    def is_small(self) -> bool:
        """True if `tfkit check` reads all examples."""
        return 0 < size_of(files_of(self.config)) <= COMPARED

    def refusal(self, tokenizer: Tokenizer | None) -> str:
        """Return the error for the first refused text or label, or "". Warn of unknown tokens."""
        try:
            if tokenizer is not None and not isinstance(self.objective.rows, ChatRows):
                self._check_texts(tokenizer)
            if isinstance(self.objective.rows, LabelledRows):
                with self.located():
                    self.objective.rows.learn(self.examples)  # of train, the first split
                    self.objective.rows.read_labels(self.examples)
        except DataError as error:
            return str(error)
        return ""

    def _check_texts(self, tokenizer: Tokenizer) -> None:
        rows = self.objective.rows
        for field in set(rows.tokenized or rows.fields) - {"vectors"}:
            texts = [example.get(field, "") for example in self.examples]
            own = tokenizer.source if field == "source" else tokenizer
            with self.located(), located(texts, own):
                encoded = own.encode_batch(texts)
            role = own.special_ids.get("unknown", -1)
            if strange := [number for number, ids in enumerate(encoded) if role in ids]:
                what = ", ".join(map(repr, own.unknown(texts[strange[0]])[:3]))
                where, those = self.corpus.where(strange[0] + 1), counted(len(strange), "example")
                text = "%s: not in the vocabulary of the training split: %s; unknown tokens in %s"
                logging.getLogger("tfkit").warning(text, where, what, those)

    def check_classes(self, head: HeadFacts.Config | None, path: str) -> None:
        """Raise DataError if there are more labels than the head has classes."""
        classes = None if head is None else head.classes()
        if not isinstance(classes, int) or classes >= len(self.objective.rows.labels):
            return
        seen: set[str] = set()
        for number, example in enumerate(self.examples, 1):
            for label in self.objective.rows.labels_in(example):
                seen.add(label)
                if len(seen) > classes:
                    text = f"the label '{label}' is one too many for the {classes} classes of {path}"
                    with self.located():
                        raise ExampleError(number, f"{text}; use num_classes: labels")

    def check_references(self, metric: Metric) -> None:
        """Raise DataError if the metric cannot use the reference of an example."""
        answers = self.objective.answers
        if answers is None:
            return
        for number, example in enumerate(self.examples, 1):
            wanted = answers.wanted(example)
            try:
                for text in filter(None, cells(wanted).values()) if self.objective.rows.labelled else [wanted]:
                    metric.check_reference(as_compared(metric, example, text))
            except UsageError as error:
                with self.located():
                    raise ExampleError(number, str(error)) from None


def learned_from(data: Data, train: Split) -> str:
    """Describe the origin of the vocabulary, for messages."""
    configs = data.tokenizers().values()
    if not configs:
        return "no tokenizer"
    if any(config.part.learns for config in configs):
        return f"the tokenizer learned from {train.corpus.name()}"
    return f"the tokenizer is {' and '.join(config.described() for config in configs)}"


def _too_large(size: int, most: int) -> str:
    return f"{size} tokens exceed data.batch.tokens: {most}; raise it, or set data.batch.length"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log messages about dropped examples."""
    logger = logging.getLogger("tfkit")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
