"""Sample texts and files for parts that read input; files are written to a temporary folder of this process."""

from __future__ import annotations

import atexit
import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from tfkit.core.component import Component
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


# --- files for shipped parts with a specific format


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


def _npy() -> dict[str, object]:
    numpy, path = importlib.import_module("numpy"), _folder() / "rows.npy"
    numpy.save(path, numpy.arange(240.0).reshape(24, 2, 5))
    return {"file": str(path)}


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


FILES: dict[tuple[str, str], Callable[[], dict[str, object]]] = {
    ("corpus", make.__name__[1:]): make
    for make in (_parallel_tsv, _csv, _json_lines, _chat, _parquet, _datasets, _conllu, _npy, _images, _audio)
} | {("tokenizer", "file"): _tokenizer_file}


def file_options(part: type[Component]) -> dict[str, object]:
    """Return the file options of a shipped part with a specific input format, or no options."""
    make = FILES.get((part.part_slot, part.part_name))
    return make() if make is not None and part.__module__.startswith("tfkit.") else {}
