"""Option values for parts under test: the part's own `example`, then samples and small values by option name.

New parts, shipped or from plugins, are therefore tested without further code. If the value of a required option is
unknown, the error says that the class needs an `example`.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tfkit.contracts.expect import Broken
from tfkit.core.component import Component, Shape
from tfkit.core.describe import OptionKind, kinds, kinds_of
from tfkit.core.options import PathMark, Slot
from tfkit.core.registry import REGISTRY

NOUNS = ("cat", "dog", "house", "river", "child", "teacher")
VERBS = ("sees", "finds", "likes", "calls")
LINES = tuple(
    f"the {noun} {VERBS[index % len(VERBS)]} a small {NOUNS[(index * 5 + 2) % len(NOUNS)]}"
    for index, noun in enumerate(NOUNS * 4)
)
# texts with characters outside the fitted vocabulary
ODD = (
    "", " ", "  two  spaces ", "a line\nand another\ttab", "Ünïcödé ßtraße", "漢字かな", "🙂👩‍👩‍👧",
    "e\u0301 \u200d \ufeff",
    "x" * 300, "<s> </s> <pad> <unk> [CLS]", "1234567890 !?,.;:()[]{}", "\x00\x07", "▁ ## ##a", "مرحبا بالعالم"
)  # fmt: skip


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="tfkit-contracts-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _written(name: str, lines: Iterable[str]) -> str:
    path = _folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def plain_text() -> str:
    """Write a text file with short lines and return its path."""
    return _written("plain.txt", LINES)


def _parallel_tsv() -> dict[str, object]:
    return {"file": _written("pairs.tsv", (f"{line}\t{line} too" for line in LINES))}


def _csv() -> dict[str, object]:
    rows = (f'"{line}, and more",{index}' for index, line in enumerate(LINES))
    return {"file": _written("rows.csv", ("sentence,number", *rows)), "fields": {"text": "sentence", "label": "number"}}


def _json_lines() -> dict[str, object]:
    rows = (json.dumps({"pair": {"en": line, "de": line[::-1]}}) for line in LINES)
    return {"file": _written("rows.jsonl", rows), "fields": {"source": "pair.en", "target": "pair.de"}}


def _chat() -> dict[str, object]:
    replies = [[{"role": "user", "content": line}, {"role": "assistant", "content": line[::-1]}] for line in LINES]
    return {"file": _written("chats.jsonl", (json.dumps({"messages": one}) for one in replies))}


def _table() -> Path:
    path = _folder() / "table" / "rows.parquet"
    path.parent.mkdir(exist_ok=True)
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"sentence": list(LINES)}), path)
    return path


def _parquet() -> dict[str, object]:
    return {"file": str(_table()), "fields": {"text": "sentence"}}


def _datasets() -> dict[str, object]:
    return {"folder": str(_table().parent), "fields": {"text": "sentence"}}


def _conllu() -> dict[str, object]:
    def rows(line: str) -> Iterator[str]:
        for number, word in enumerate(line.split(), 1):
            yield "\t".join((str(number), word, word, "X", "_", "_", "0", "dep", "_", "_"))
        yield ""

    return {"file": _written("treebank.conllu", (row for line in LINES for row in rows(line)))}


def _fasta() -> dict[str, object]:
    rows = (f">{number} family={number % 3}\n{'acgt' * number}a" for number in range(24))
    return {"file": _written("sequences.fasta", rows), "fields": {"label": "family"}}


def _npy() -> dict[str, object]:
    numpy, path = importlib.import_module("numpy"), _folder() / "rows.npy"
    numpy.save(path, numpy.arange(240.0).reshape(24, 2, 5))
    return {"file": str(path)}


def _arrays() -> dict[str, object]:
    numpy, path = importlib.import_module("numpy"), _folder() / "rows.npz"
    numpy.savez(path, values=numpy.arange(120.0), offsets=numpy.arange(25) * 5, age=numpy.arange(24))
    return {"file": str(path), "fields": {"label": "age"}}


def _images() -> dict[str, object]:
    """Write images in plain PPM format, which needs no library."""
    for number in range(24):
        _written(f"pictures/one/{number:02}.ppm", [f"P3 2 2 255 {' '.join([str(number)] * 12)}"])
    return {"folder": str(_folder() / "pictures")}


def _audio() -> dict[str, object]:
    wave, folder = importlib.import_module("wave"), _folder() / "sounds" / "one"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(24):
        with wave.open(str(folder / f"{number:02}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
            file.writeframes(bytes([number, 0]) * 800)
    return {"folder": str(folder.parent), "rate": 8000}


def _tokenizer_file() -> dict[str, object]:
    path = _folder() / "tokenizer.json"
    REGISTRY.get("tokenizer", "character").Config.model_validate({}).build().fit(LINES).save(path)
    return {"path": str(path)}


_MAKERS = (_parallel_tsv, _csv, _json_lines, _chat, _parquet, _datasets, _conllu)
FILES: dict[tuple[str, str], Callable[[], dict[str, object]]] = {
    ("corpus", make.__name__[1:]): make for make in (*_MAKERS, _fasta, _npy, _arrays, _images, _audio)
} | {("tokenizer", "file"): _tokenizer_file}


def file_options(part: type[Component]) -> dict[str, object]:
    """Return the file options of a shipped part with a specific input format, or no options."""
    make = FILES.get((part.part_slot, part.part_name))
    return make() if make is not None and part.__module__.startswith("tfkit.") else {}


Value = TypeVar("Value")

# values by option name, used for required options, and for other options as variants, one at a time
SIZES: dict[str, object] = {
    "after": 1,
    "alpha": 1.5,
    "before": 2,
    "beta": 0.5,
    "choices": ["the cat", "a"],
    "d_embedding": 8,
    "d_ff": 24,
    "d_output": 6,
    "dilation": 2,
    "ends": 4,
    "epsilon": 0.02,
    "factor": 2.0,
    "final": 0.001,
    "fraction": 0.5,
    "group_size": 4,
    "head_dim": 8,
    "kv_rank": 12,
    "inner_norm": "rms_norm",
    "k": 5,
    "label_smoothing": 0.1,
    "length": 4,
    "limit": 0.5,
    "lr": 0.01,
    "mask_id": 3,
    "max_distance": 20,
    "max_length": 40,
    "max_val": 2.0,
    "min_val": -2.0,
    "minimum_count": 1,
    "n_best": 2,
    "negative_slope": 0.2,
    "num_active": 2,
    "num_beams": 3,
    "num_buckets": 8,
    "num_classes": 3,
    "num_experts": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_shared": 2,
    "offset": 2,
    "p": 0.8,
    "pattern": "[a-z ]*",
    "peak": 0.01,
    "penalty": 1.3,
    "qk_norm": "rms_norm",
    "query_rank": 10,
    "rotary_head_dim": 4,
    "router": {"type": "sigmoid", "selection_bias": True, "num_groups": 2, "active_groups": 1, "normalized": True},
    "scale": 0.3,
    "scaling": {"type": "linear", "factor": 2.0},
    "seconds": 5.0,
    "segments": 2,
    "shared_expert": {"type": "glu", "d_ff": 8},
    "size": 3,
    "softcap": 5.0,
    "step_limits": [0.001, 0.5],
    "strings": ["the"],
    "temperature": 0.7,
    "theta": 100.0,
    "threshold": 0.1,
    "tokens": 4,
    "value": 0.05,
    "until": 3,
    "up_offset": 1.0,
    "value_dim": 6,
    "value_head_dim": 6,
    "vocab_size": 320,
    "warmup": 4,
    "weight_decay": 0.1,
    "weight_offset": 1.0,
}
# parts for required options whose value is a part, by slot
PARTS = {"feedforward": "mlp", "activation": "gelu", "norm": "layer_norm", "attention": "multi_head"}
# slots whose options do not depend on the model's shape
SHAPELESS = frozenset(
    "init model tokenizer corpus objective optimizer schedule adapter metric callback logits stop strategy".split()  # noqa: SIM905
)

D_MODEL = 16
VOCABULARY = 23
MAX_LENGTH = 32
PLAIN_SHAPE = Shape(D_MODEL, VOCABULARY, MAX_LENGTH, num_heads=4)


def required(slot: str, name: str) -> dict[str, object]:
    """Return the options of the part's example and its other required options; raise Broken if a value is unknown.

    An option is required if it has no default, or if the part's own check requires it (such as a window size).
    """
    part = REGISTRY.get(slot, name)
    known = file_options(part) | _example(part)
    options = known | _Tried().options(part.Config, known)
    if slot in SHAPELESS:
        return options
    config = Slot(slot).validate({"type": name, **options})
    missing = [problem.option for problem in config.check(PLAIN_SHAPE)]
    return options | {option: SIZES[option] for option in missing if option in SIZES and option not in options}


def _example(part: type[Component]) -> dict[str, object]:
    """Return the part's `example` options, with paths resolved relative to its source file."""
    if not isinstance(part.example, Mapping):
        raise Broken(f"example = {part.example!r}: expected a mapping of options")
    options = dict(part.example)
    for option, value in options.items():
        field = part.Config.model_fields.get(option)
        if field is not None and is_path(field) and isinstance(value, str):
            options[option] = str(Path(inspect.getfile(part)).parent / value)
    return options


class Sampler:
    """Generator of option values: by name, else by type. The first of several types or values is chosen."""

    named: Mapping[str, object] = SIZES
    plain: Mapping[type, Sequence[object]] = {bool: (True,), int: (8,), float: (0.5,), dict: ({"text": "text"},)}

    def choose(self, values: Sequence[Value]) -> Value:
        return values[0]

    def options(self, model: type[BaseModel], given: Iterable[str] = ()) -> dict[str, object]:
        """Return values for the required options of a model, except those in `given`."""
        fields = model.model_fields.items()
        return {name: self.option(name, field) for name, field in fields if field.is_required() and name not in given}

    def option(self, name: str, field: FieldInfo) -> object:
        return self.named[name] if name in self.named else self.value(name, self.choose(list(kinds(field))))

    def part(self, slot: str) -> object:
        """Return a part in `slot`, with its required options."""
        name = REGISTRY.names(slot)[0]
        part = REGISTRY.get(slot, name)
        return {"type": name, **self.options(part.Config, part.example), **part.example}

    def text(self, name: str, is_path: bool = False) -> str:
        return f"{name}.txt" if is_path else name

    def value(self, name: str, kind: OptionKind) -> object:
        slot = next((mark.slot for mark in kind.marks if isinstance(mark, Slot)), None)
        if slot is not None:
            return self.part(slot)
        origin, inner = get_origin(kind.annotation) or kind.annotation, get_args(kind.annotation)
        if origin is Literal:
            return self.choose(inner)
        if origin in (tuple, list, set, frozenset):
            entries = inner[:1] if inner[1:] in ((), (Ellipsis,)) else inner
            return [self.value(name, self.choose(list(kinds_of(entry)))) for entry in entries]
        if origin is str:
            return self.text(name, any(isinstance(mark, PathMark) for mark in kind.marks))
        if isinstance(origin, type) and issubclass(origin, BaseModel):
            return self.options(origin)
        origin = dict if isinstance(origin, type) and issubclass(origin, Mapping) else origin
        return self.choose(self.plain.get(origin, (None,)))


class _Tried(Sampler):
    """Generator of values for tests; raises Broken for plain values that only the author of the part can choose."""

    def part(self, slot: str) -> object:
        chosen = PARTS.get(slot) or REGISTRY.names(slot)[0]
        return {"type": chosen, **required(slot, chosen)}

    def option(self, name: str, field: FieldInfo) -> object:
        return plain_text() if is_path(field) and name not in self.named else super().option(name, field)

    def text(self, name: str, is_path: bool = False) -> str:
        raise Broken(
            f"cannot be tested: needs the option '{name}', for which no test value is known; "
            f"set an example in the class, such as example = {{'{name}': ...}}"
        )

    def value(self, name: str, kind: OptionKind) -> object:
        slotted = any(isinstance(mark, Slot) for mark in kind.marks)
        return super().value(name, kind) if slotted or get_origin(kind.annotation) is Literal else self.text(name)


def is_path(field: FieldInfo) -> bool:
    """True if an option is a path or a list of paths."""
    return any(isinstance(mark, PathMark) for mark in (*field.metadata, *_inner(field.annotation)))


def _inner(kind: object) -> Iterator[object]:
    """Yield a type and its arguments at all levels, such as the members of a union and the marks of Annotated."""
    yield kind
    for one in get_args(kind):
        yield from _inner(one)


def alternatives(option: str, annotation: object, default: object) -> Iterator[object]:
    """Yield alternatives to the default of an option."""
    if option in SIZES and SIZES[option] != default:
        yield SIZES[option]
    kinds = list(_inner(annotation))
    if bool in kinds:
        yield not default
    yield from (kind for kind in kinds if isinstance(kind, str) and kind != default)
