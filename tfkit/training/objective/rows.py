"""Base classes of rows, which convert examples to items (token ids) and items to batches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.errors import DataError, ExampleError, UsageError
from tfkit.core.output import counted
from tfkit.core.slots import ObjectiveFacts, RowsFacts
from tfkit.core.store import ExtraInput
from tfkit.data.corpus.base import TAGGED
from tfkit.data.encoder import TokenIds
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.vectors import Array, Vectors, numbers
from tfkit.training.objective.baseline import Ids, ItemColumn

logger = logging.getLogger("tfkit")

Item = dict[str, Ids]  # token ids of one training example, by name
Batch = dict[str, Tensor]  # inputs of the loss; collated on the CPU
Example = Mapping[str, str]

EXTRA = "inputs."  # prefix of extra inputs in items and batches
ENCODED_AT_ONCE = 10_000  # maximum texts per call, to bound the tokenizer's memory


@dataclass(frozen=True)
class TokenFacts:
    """Special token ids by role, and the vocabulary size."""

    special: Mapping[str, int] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenFacts:
        """Extract these properties from a tokenizer."""
        return cls(dict(tokenizer.special_ids), tokenizer.vocab_size)

    @property
    def pad(self) -> int:
        """Padding id. Any id works, because padding is masked in attention and excluded from the loss."""
        return self.special.get("pad", 0)

    def framed(self, text: Ids) -> Ids:
        """Add the start and end tokens that the tokenizer defines."""
        return wrapped(text, self.special.get("start"), self.special.get("end"))


class Encoded(Sequence[dict[str, str]]):
    """Examples read from token shards, of which only the ids of each field are available."""

    def __init__(self, texts: Mapping[str, TokenIds]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(next(iter(self.texts.values())))

    def __getitem__(self, place: object) -> NoReturn:
        raise UsageError("the examples are in token shards; read them with _ids, or remove the capability 'shards'")


class Items(Sequence[Item]):
    """Lazy items: item n is created by `make(n)`. `sizes` maps each name to its number of ids per item."""

    def __init__(self, make: Callable[[int], Item], sizes: Mapping[str, Ids]) -> None:
        self.make, self.sizes = make, sizes

    def __len__(self) -> int:
        return len(next(iter(self.sizes.values())))

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Item]: ...

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.make(number) for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.make(int(place) % len(self))


def sizes(items: Sequence[Item], name: str) -> Ids:
    """Return the number of ids called `name` in each item."""
    return items.sizes[name] if isinstance(items, Items) else np.asarray([len(item[name]) for item in items])


def column(items: Sequence[Item], name: str) -> ItemColumn:
    """Return the ids called `name` of all items as a lazy sequence."""
    return ItemColumn(items, name, int(sizes(items, name).sum()))


class Rows(RowsFacts):
    """Base class of data preparation for objectives. Call `bind` first, or `prepare`, which calls it.

    `prepare` supports token shards if it reads the examples with `_ids`.
    """

    def __init__(self, config: ObjectiveFacts.Config) -> None:
        self.config = config
        self.tokens = TokenFacts()
        self.labels: tuple[str, ...] = ()  # labels of the training corpus, if `labelled`
        self.plan: StackPlan | None = None  # the stack that reads vectors, if any
        self.extra_inputs: Mapping[str, ExtraInput] = {}  # of the model, read from the fields of these names

    def read_model(self, blueprint: Blueprint) -> None:
        """Switch to vector inputs if the model's first stack reads vectors, and read its extra inputs."""
        plan, self.extra_inputs = next(blueprint.stacks()), blueprint.extra_inputs
        if self.vectors_for is not None and plan.reads_vectors:
            self.plan, self.fields = plan, self.read_fields(("vectors",))  # type: ignore[misc]

    def bind(self, tokenizer: Tokenizer) -> None:
        """Bind to the tokenizer. Raise DataError if a required special token is missing."""
        self._check_roles(tokenizer, self.required)
        self.tokens = TokenFacts.of(tokenizer)

    def _check_roles(self, tokenizer: Tokenizer, required: Sequence[str]) -> None:
        missing = [role for role in required if role not in tokenizer.special_ids]
        if missing:
            present = ", ".join(tokenizer.special_ids) or "none"
            raise DataError(
                f"{self._name} requires a special token for {' and '.join(missing)}; the tokenizer has {present}. "
                f"Add one to the tokenizer's special_tokens, such as {{{missing[0]}: <{missing[0]}>}}"
            )

    @property
    def _name(self) -> str:
        return self.config.part.part_name

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Convert examples to items of at most the model's maximum length.

        Log why examples are dropped. Raise DataError if no example is left, or if a field is missing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no prepare")

    def lengths(self, items: Sequence[Item]) -> Ids:
        """Return the number of positions of each item in the model: [items] or [items sides]."""
        raise NotImplementedError(f"{type(self).__name__} has no lengths")

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate a batch with one row per item. All randomness comes from `rng`."""
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Collate several items per row of `length` tokens, as separate segments. Raise UsageError if unsupported."""
        raise UsageError(f"batches of {self._name} cannot be packed; set data.batch.pack: false")

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Add the special tokens that a trained model expects around a text."""
        return list(ids)

    def read(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Encode texts as inputs of a trained model, with special tokens."""
        found = tokenizer.encode_batch(texts)
        check_tags(found, tokenizer, texts)
        return [self.prompt(ids) for ids in found]

    def learned(self, examples: Iterable[Example], fields: Sequence[str]) -> Iterator[str]:
        """Yield the texts of examples that the tokenizer is trained on."""
        return (example[field] for example in examples for field in fields if field in example)

    def learn(self, examples: Sequence[Example]) -> None:
        """Learn the labels of the training examples, if the objective has labels."""

    def labels_in(self, example: Example) -> Sequence[str]:
        """Return the labels of an example, if the objective learns labels."""
        return ()

    def _column(self, examples: Sequence[Example], field: str) -> list[str]:
        """Return one field of all examples. Raise ExampleError if it is missing."""
        for number, example in enumerate(examples, 1):
            if field not in example:
                present = ", ".join(example) or "nothing"
                raise ExampleError(
                    number, f"{self._name} requires {' and '.join(self.fields)}; the example has {present}"
                )
        return [example[field] for example in examples]

    def extra(self, examples: Sequence[Example]) -> Sequence[Item]:
        """Return the extra inputs of each example, as part of its items. Raise ExampleError for unsuitable values."""
        found: list[Item] = [{}] * len(examples)
        for name, (width, readers) in self.extra_inputs.items():
            for place, example in enumerate(examples):
                try:
                    found[place] = found[place] | {EXTRA + name: numbers(example.get(name, ""), width)}
                except ValueError as error:
                    raise ExampleError(place + 1, f"{name}, which {' and '.join(readers)} reads, {error}") from None
        return found

    def _ids(self, examples: Sequence[Example], field: str, tokenizer: Tokenizer) -> TokenIds:
        """Return the ids of one field of all examples, encoded or read from token shards."""
        if isinstance(examples, Encoded):
            texts = examples.texts[field]
            check_tags((texts[number] for number in range(len(texts) * (field in TAGGED))), tokenizer)
            return texts
        return TokenIds.of(self._encoded(examples, field, tokenizer))

    def _encoded(self, examples: Sequence[Example], field: str, tokenizer: Tokenizer) -> list[Ids]:
        """Encode one field of all examples. Raise ExampleError if it is missing."""
        texts = self._column(examples, field)
        slices = (texts[start : start + ENCODED_AT_ONCE] for start in range(0, len(texts), ENCODED_AT_ONCE))
        with located(texts, tokenizer):
            found = [np.asarray(ids, dtype=np.int32) for part in slices for ids in tokenizer.encode_batch(part)]
        check_tags(found if field in TAGGED else (), tokenizer, texts)
        return found

    def vectors(self, examples: Sequence[Example]) -> Sequence[Item]:
        """Return items with `vectors` and the number of `positions`. Raise ExampleError for unsuitable arrays."""
        plan = self.plan
        if plan is None:
            raise UsageError(f"{self._name} requires a model whose first stack reads vectors")
        items: list[Item] = []
        extra = self.extra(examples)
        pictures = plan.embedding is not None and plan.embedding.part.reads_pictures
        for number, name in enumerate(self._column(examples, "vectors"), 1):
            if not isinstance(name, Vectors):
                raise ExampleError(number, f"{name!r} is a text, but this model reads vectors")
            array = name.array[..., None] if pictures and name.array.ndim == 2 else name.array
            if pictures and items and array.shape != items[0]["vectors"].shape:
                sizes = [list(one.shape) for one in (array, items[0]["vectors"])]
                text = f"the image has shape {sizes[0]}, but the first one has {sizes[1]}"
                raise ExampleError(number, f"{text}; use images of one size")
            try:
                positions = length_of(plan, array.shape)
            except ValueError as error:
                raise ExampleError(number, str(error)) from None
            longest = positions if plan.max_length is None else plan.max_length
            if positions > longest or (
                pictures and positions != longest
            ):  # images of another size have another patch grid
                text = f"requires {positions:,} positions, but the {plan.side}'s max_length is {plan.max_length:,}"
                raise ExampleError(number, f"{text}; set max_length: {positions}")
            items.append({"vectors": array, "positions": np.asarray([positions])} | extra[number - 1])
        return items

    def _usable(self, items: Sequence[Item], examples: int, why: str) -> Sequence[Item]:
        """Return `items`. Raise DataError if there are none."""
        if not len(items):
            raise DataError(f"{self._name}: none of {counted(examples, 'example')} can be used: {why}")
        return items

    def _left_out(self, number: int, of: int, why: str) -> None:
        """Log the number of dropped examples and the reason, if any."""
        if number:
            logger.warning("%s: %s of %s dropped: %s", self._name, f"{number:,}", counted(of, "example"), why)


class PackableRows(Rows):
    """Base class of rows whose packed and unpacked batches are collated by the same code."""

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate `input_ids` [rows longest], `labels` [n], their positions `predicted` [n], and `attention_mask`."""
        lengths = self.lengths(items)
        real = np.arange(lengths.max()) < lengths[:, None]
        return self._batch([[item] for item in items], None) | mask_of(real)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Pack several items per row. `position_ids` restart for each item, `segment_ids` separate items."""
        positions, segments = packed_places([self.lengths(row).tolist() for row in rows], length)
        places = {"position_ids": torch.from_numpy(positions), "segment_ids": torch.from_numpy(segments)}
        return {**self._batch(rows, length), **places}

    def _batch(self, rows: Sequence[Sequence[Item]], length: int | None) -> Batch:
        """Collate rows of one or more items, without position and segment ids."""
        raise NotImplementedError(f"{type(self).__name__} has no _batch")


class TextRows(Rows):
    """One row per text, framed with the start and end tokens that exist. Each token predicts the next."""

    fields = ("text",)

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text`, one token longer than the row."""
        self.bind(tokenizer)
        texts = self._ids(examples, "text", tokenizer)
        why = "the text is empty, or has a single token"
        if max_length is not None:
            why = f"the text is empty, or its row is shorter than 2 tokens or longer than {max_length + 1}"
        items = self._rows_of(texts, max_length, self.extra(examples))
        self._left_out(len(texts) - len(items), len(texts), why)
        return self._usable(items, len(texts), why)

    def _rows_of(self, texts: TokenIds, max_length: int | None, extra: Sequence[Item]) -> Items:
        """Return items of the framed texts that have at least two tokens and fit."""
        framed = texts.lengths + len(self.tokens.framed(np.zeros(0, np.int32)))
        kept = np.flatnonzero((texts.lengths > 0) & (framed >= 2) & (framed <= (max_length or 2**62) + 1))
        return Items(
            lambda place: {"text": self.tokens.framed(texts[kept[place]]), **extra[kept[place]]}, {"text": framed[kept]}
        )

    def lengths(self, items: Sequence[Item]) -> Ids:
        return sizes(items, "text") - 1

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate `input_ids`, `labels`, positions `predicted`, and `attention_mask` if padded."""
        return next_tokens([item["text"] for item in items], self.tokens.pad)

    def collate_packed(self, rows: Sequence[Sequence[Item]], length: int, rng: np.random.Generator) -> Batch:
        """Pack several texts per row. `position_ids` restart for each text, `segment_ids` separate texts."""
        positions, segments = packed_places([[len(item["text"]) - 1 for item in row] for row in rows], length)
        ids, real = padded(
            [np.concatenate([item["text"][:-1] for item in row]) for row in rows], self.tokens.pad, length
        )
        labels = np.concatenate([item["text"][1:] for row in rows for item in row]).astype(np.int64)
        batch = {"input_ids": ids, "position_ids": positions, "segment_ids": segments, "labels": labels}
        if not real.all():
            batch["predicted"] = np.flatnonzero(real)
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Return a prefix to continue, after the start token if there is one."""
        start = self.tokens.special.get("start")
        return list(ids) if start is None else [start, *ids]


def check_tags(encoded: Iterable[Sequence[int] | Ids], tokenizer: Tokenizer, texts: Sequence[str] = ()) -> None:
    """Raise ExampleError for the first text without a tag, if the tokenizer has tags."""
    known = {tokenizer.id(tag) for tag in tokenizer.tags}
    for number, ids in enumerate(encoded if known else (), 1):
        if not len(ids) or int(ids[0]) not in known:
            text = f"{texts[number - 1][:40]!r}" if texts else "the text"
            raise ExampleError(number, f"{text} does not begin with a tag from training: {', '.join(tokenizer.tags)}")


@contextlib.contextmanager
def located(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[None]:
    """Convert an encoding error to an ExampleError that names the first text that cannot be encoded."""
    try:
        yield
    except DataError:
        for number, text in enumerate(texts, 1):
            try:
                tokenizer.encode(text)
            except DataError as error:
                raise ExampleError(number, str(error)) from None
        raise


def length_of(plan: StackPlan, sizes: Sequence[int]) -> int:
    """Return the number of positions of an array of this shape in a stack. Raise ValueError if it is unsuitable."""
    if plan.embedding is not None:
        return plan.embedding.length_of(sizes, plan.shape())
    if len(sizes) != 2 or sizes[1] != plan.d_model:
        raise ValueError(f"the model reads vectors [time {plan.d_model}], got shape {list(sizes)}")
    return sizes[0]


def vector_batch(arrays: Sequence[Array]) -> Batch:
    """Collate `inputs_embeds` and, if lengths differ, `attention_mask`."""
    batch = {"inputs_embeds": pad_sequence([torch.from_numpy(array) for array in arrays], batch_first=True)}
    lengths = torch.tensor([len(array) for array in arrays])
    if lengths.min() < lengths.max():
        batch["attention_mask"] = torch.arange(int(lengths.max())) < lengths[:, None]
    return batch


def batch_of(rows: Rows, items: Sequence[Item], rng: np.random.Generator) -> Batch:
    """Collate a batch with one row per item, and the extra inputs of each."""
    return rows.collate(items, rng) | extra_batch(items)


def extra_batch(items: Sequence[Item]) -> Batch:
    """Collate the extra inputs of items, [rows width] each."""
    names = [name for name in next(iter(items), {}) if name.startswith(EXTRA)]
    return {name: torch.from_numpy(np.stack([item[name] for item in items])) for name in names}


def extra_of(batch: Batch) -> dict[str, dict[str, Tensor]]:
    """Return the extra inputs in a batch as an argument of the model."""
    found = {name.removeprefix(EXTRA): value for name, value in batch.items() if name.startswith(EXTRA)}
    return {"inputs": found} if found else {}


def wrapped(ids: Ids, start: int | None = None, end: int | None = None) -> Ids:
    """Add the given special tokens around `ids`."""
    before = [] if start is None else [start]
    after = [] if end is None else [end]
    return np.concatenate((np.asarray(before, np.int32), ids, np.asarray(after, np.int32)))


def padded(
    rows: Sequence[Ids], fill: int, length: int | None = None
) -> tuple[Ids, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Pad rows on the right to [rows longest] or [rows length]. Return them with the mask of real positions."""
    lengths = np.asarray([len(row) for row in rows])
    width = int(lengths.max(initial=0)) if length is None else length
    real = np.arange(width)[None, :] < lengths[:, None]
    ids = np.full(real.shape, fill, dtype=np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real


def mask_of(real: np.ndarray[Any, np.dtype[np.bool_]], prefix: str = "") -> Batch:
    """Return `attention_mask` [rows time], 1 = real token; without padding, nothing."""
    return {} if real.all() else {f"{prefix}attention_mask": torch.from_numpy(real)}


def next_tokens(rows: Sequence[Ids], pad: int, prefix: str = "") -> Batch:
    """Collate rows for teacher forcing: `input_ids` [rows longest], and the next tokens as `labels` [n].

    `predicted` [n] holds the positions of the labels in the flattened input_ids. Without padding, it and
    `attention_mask` are omitted. The names of inputs start with `prefix`.
    """
    ids, real = padded([row[:-1] for row in rows], pad)
    labels = np.concatenate([row[1:] for row in rows]).astype(np.int64)
    batch = {f"{prefix}input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
    if not real.all():
        batch["predicted"] = torch.from_numpy(np.flatnonzero(real))
    return batch | mask_of(real, prefix)


def packed_places(rows: Sequence[Sequence[int]], length: int) -> tuple[Ids, Ids]:
    """Return position ids and segment ids [rows length] for pieces of these lengths. Padding is segment 0."""
    positions = np.zeros((len(rows), length), dtype=np.int64)
    segments = np.zeros((len(rows), length), dtype=np.int64)
    for row, pieces in enumerate(rows):
        if sum(pieces) > length:
            raise UsageError(f"a packed row of {sum(pieces)} tokens exceeds its length of {length}")
        start = 0
        for number, piece in enumerate(pieces, 1):
            positions[row, start : start + piece] = np.arange(piece)
            segments[row, start : start + piece] = number
            start += piece
    return positions, segments
