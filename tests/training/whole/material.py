"""Files that whole recipes are drawn over: small corpora in every form, right and wrong, and a trained run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tfkit

LINES = [f"{one} {two} sees {three}" for one in ("a", "the") for two in ("dog", "cat", "man") for three in ("it", "me")]
LONG = " ".join(LINES * 3)
TAGS = ["O", "B-thing", "O", "I-thing"]
COLUMNS = ("text", "second", "source", "target", "label", "number", "tags", "question", "context", "answer")


def rows() -> list[dict[str, str]]:
    """Examples that have every field."""
    return [
        {
            "text": line,
            "second": LINES[-1 - number],
            "source": line,
            "target": line[::-1],
            "label": ("good", "bad", "so so")[number % 3],
            "number": f"{number % 4}.5",
            "tags": " ".join(TAGS),
            "question": line.split()[1],
            "context": line,
            "answer": line.split()[1],
        }
        for number, line in enumerate(LINES)
    ]


def write(folder: Path) -> None:
    """All files, in `folder`."""
    files = {
        "text.txt": LINES,
        "paragraphs.txt": [*LINES[:3], "", *LINES[3:6], "", *LINES[6:]],
        "long.txt": [*LINES, LONG],
        "odd.txt": [*LINES[:5], "żółć ☃ 漢字", *LINES[5:]],
        "two.txt": LINES[:2],
        "target.txt": [line[::-1] for line in LINES],
        "short.txt": LINES[:4],
        "holes.txt": [*LINES[:3], "", *LINES[3:]],
        "pairs.tsv": [f"{line}\t{line[::-1]}" for line in LINES],
        "ragged.tsv": [f"{line}\t{line[::-1]}" for line in LINES[:3]] + ["alone"],
        "labelled.txt": [f"{row['label'].split()[0]} {row['text']}" for row in rows()],
        "numbered.txt": [f"{row['number']} {row['text']}" for row in rows()],
        "mixed.txt": [*(f"{row['number']} {row['text']}" for row in rows()[:4]), "none a dog"],
        "one_label.txt": [f"good {line}" for line in LINES],
        "labels.txt": [row["label"] for row in rows()],
        "tags.txt": [" ".join(TAGS)] * len(LINES),
        "plain_tags.txt": ["X Y X Y"] * len(LINES),
        "few_tags.txt": [*[" ".join(TAGS)] * 3, "O O", *[" ".join(TAGS)] * (len(LINES) - 4)],
        "tree.conllu": [line for text in LINES for line in sentence(text)],
        "rows.jsonl": [json.dumps(row) for row in rows()],
        "chat.jsonl": [json.dumps({"messages": conversation(row)}) for row in rows()],
        "broken.jsonl": [json.dumps(row) for row in rows()[:2]] + ["{"],
        "other.jsonl": [json.dumps(row | {"number": "many", "tags": "O"}) for row in rows()],
        "rows.csv": [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in rows())],
        "vectors.txt": [f"{word} " + " ".join(["0.1"] * 8) for word in ("dog", "cat")],
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "latin.txt").write_bytes("für\n".encode("latin-1") * 5)
    (folder / "empty.txt").write_text("")
    (folder / "folder").mkdir()
    _parquet(folder / "rows.parquet")
    _runs(folder)


def conversation(row: dict[str, str]) -> list[dict[str, str]]:
    """A question and an answer; those of one label have a second turn."""
    turns = [("user", row["question"]), ("assistant", row["answer"])]
    turns += [("user", row["label"]), ("assistant", "it")] * (row["label"] == "bad")
    return [{"role": role, "content": content} for role, content in turns]


def sentence(text: str) -> list[str]:
    """A sentence of a treebank."""
    words = [f"{number}\t{word}\t_\tNOUN" + "\t_" * 6 for number, word in enumerate(text.split(), 1)]
    return [*words, ""]


def _parquet(file: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows()), file)


def decoder() -> dict[str, Any]:
    """A small model that writes."""
    return {
        "type": "decoder",
        "d_model": 8,
        "vocab_size": "tokenizer",
        "max_length": 32,
        "num_layers": 1,
        "embedding": "tokens",
        "position": "sinusoidal",
        "layer": {
            "residual": "pre_norm",
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2},
            "feedforward": {"type": "mlp", "d_ff": 8},
        },
        "head": "language_model",
    }


def _runs(folder: Path) -> None:
    """A trained run, and its tokenizer."""
    data = {"tokenizer": "character", "train": {"type": "text", "files": str(folder / "text.txt")}}
    train = {"steps": 1, "device": "cpu", "schedule": {"type": "constant", "lr": 0.01}}
    recipe = {"tfkit": 1, "model": decoder(), "data": data, "objective": "causal_lm", "train": train}
    run = tfkit.train(recipe, out=folder / "run", progress=False)
    run.tokenizer.save(folder / "tokenizer.json")
