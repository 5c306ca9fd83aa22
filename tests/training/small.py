"""A run that is trained in a moment, from files that a test can change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tfkit

if TYPE_CHECKING:  # the recipe is read without torch, too
    from tfkit import Recipe, Run

LINES = ["one two three four", "two three", "four five six one two", "three one", "six six five", "one five two"]
RECIPE: dict[str, Any] = {
    "tfkit": 1,
    "model": {
        "type": "decoder",
        "d_model": 8,
        "num_layers": 1,
        "vocab_size": "tokenizer",
        "max_length": 16,
        "embedding": "tokens",
        "position": "sinusoidal",
        "layer": {
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2, "dropout": 0.1},
            "feedforward": {"type": "mlp", "d_ff": 8},
            "dropout": 0.2,
        },
        "head": {"type": "language_model", "tied": True},
        "init": "xavier",
    },
    "data": {"tokenizer": "word", "batch": {"size": 2}},
    "objective": {"type": "causal_lm", "join": False},
    "train": {
        "steps": 3,
        "device": "cpu",
        "schedule": {"type": "constant", "lr": 0.05},
        "evaluate_every": 1,
        "checkpoint_every": 2,
        "metrics": ["perplexity"],
    },
}

ENCODER = {"model.type": "encoder", "model.head": "masked_lm", "objective": "masked_lm"}
ENCODER |= {"data.tokenizer.special_tokens.mask": "<mask>"}
PAIR = {"model.type": "encoder_decoder", "model.embedding.shared": True, "objective": "seq2seq"}


def paired(folder: Path, **splits: list[str]) -> dict[str, Any]:
    """Write lines and their words backwards; return the values of a recipe that translates one into the other."""
    values: dict[str, Any] = {**PAIR}
    for split, lines in splits.items():
        sides = {"source": folder / f"{split}.txt", "target": folder / f"{split}.reverse.txt"}
        sides["source"].write_text("\n".join(lines) + "\n")
        sides["target"].write_text("\n".join(" ".join(line.split()[::-1]) for line in lines) + "\n")
        corpus = {"type": "parallel_text", **{side: str(file) for side, file in sides.items()}}
        values[f"data.{split}"] = corpus
    return values


def small(folder: Path, overrides: dict[str, Any] | None = None, **train: Any) -> Recipe:
    """The recipe, with its texts in `folder`; they are written where they are not there yet."""
    for split, lines in (("train", LINES), ("valid", LINES[:2])):
        if not (folder / f"{split}.txt").exists():
            (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    corpora = {split: {"type": "text", "files": str(folder / f"{split}.txt")} for split in ("train", "valid")}
    data = {**RECIPE["data"], **corpora}
    return tfkit.load_recipe({**RECIPE, "data": data, "train": {**RECIPE["train"], **train}}, overrides)


def trained(loaded: Recipe, out: Path | str | None, **options: Any) -> Run:
    """The run of a recipe, without a word."""
    return tfkit.train(loaded, out, progress=False, **options)


def outcome(folder: Path) -> dict[str, Any]:
    """All of a run that the same steps give again."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = folder / "evaluation.json"
    last = max((folder / "checkpoints").glob("step-????????"))
    return {
        "metrics": [
            {name: value for name, value in line.items() if not name.endswith(("_per_second", "waiting"))}
            for line in metrics
        ],
        "weights": (folder / "model.safetensors").read_bytes(),
        "evaluation": scores.read_bytes() if scores.exists() else b"",
        **{f"{last.name}/{file.name}": file.read_bytes() for file in last.glob("*.*")},
    }
