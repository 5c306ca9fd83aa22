"""A run that stops and goes on is the unbroken run, bit for bit, whatever its state holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.training.small import ENCODER, PAIR, outcome, small, trained

from ..sampling import each

EMA = {"type": "ema", "decay": 0.9}
LORA = {"type": "lora", "rank": 2, "alpha": 4, "on": ["query", "value"], "dropout": 0.1}
TEACHER = {"run": "TEACHER", "cosine": 1, "hidden": {0: 0}, "projection": True}
HEAD = {"model.type": "encoder", "model.head": "discriminator"} | {
    key: value for key, value in ENCODER.items() if key.startswith("data")
}
GENERATOR = {
    "type": "encoder", "d_model": 8, "num_layers": 1, "embedding": "tokens", "position": "sinusoidal",
    "layer": {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 2},
              "feedforward": {"type": "mlp", "d_ff": 8}},
    "head": {"type": "masked_lm", "tied": True},
}  # fmt: skip
SIDES = {"source": "character", "target": "word"}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "groups": ({}, {"groups": [{"kind": "norm", "rate": 4.0}], "layer_decay": 0.5}),
    "average, best": ({}, {"callbacks": [EMA], "keep": "best"}),
    "average, last": ({}, {"callbacks": [EMA], "keep": "last"}),
    "adapter": ({}, {"adapter": LORA, "init_from": "TEACHER"}),
    "average of an adapter": ({}, {"adapter": LORA, "init_from": "TEACHER", "callbacks": [EMA]}),
    "two vocabularies": (
        {**PAIR, "model.embedding.shared": False, "data.tokenizer": SIDES}, {"samples": 1},
    ),
    "student": ({"model.d_model": 12, "model.layer.attention.num_heads": 2}, {"teacher": TEACHER}),
    "generator": ({**HEAD, "objective": {"type": "replaced_token", "generator": GENERATOR}}, {"metrics": []}),
}  # fmt: skip
FILES = {"average, last": "callbacks", "student": "beside", "generator": "beside"}  # of a checkpoint


@pytest.mark.full
def test_a_run_that_goes_on_is_the_unbroken_run(tmp_path: Path) -> None:
    teacher = trained(small(tmp_path, steps=1), tmp_path / "teacher").folder
    (tmp_path / "pairs.tsv").write_text("a cat\teine Katze\ntwo cats\tzwei Katzen\na dog\tein Hund\n")
    pairs = {"type": "parallel_tsv", "file": str(tmp_path / "pairs.tsv")}

    def check(kind: str) -> None:
        overrides, train = KINDS[kind]
        if kind == "two vocabularies":
            overrides = {**overrides, "data.train": pairs, "data.valid": pairs}
        named = {
            key: str(teacher) if value == "TEACHER" else {**value, "run": str(teacher)} if value is TEACHER else value
            for key, value in train.items()
        }

        def run(name: str, steps: int, **options: Any) -> dict[str, Any]:
            loaded = small(tmp_path, overrides, steps=steps, **named)
            return outcome(trained(loaded, tmp_path / name, **options).folder)

        whole = run("whole", 5)
        run("parts", 3)
        assert run("parts", 5, resume=True) == whole
        assert any(FILES.get(kind, "model") in name for name in whole)
        for name in ("whole", "parts"):
            shutil.rmtree(tmp_path / name)

    each(KINDS, check)


@pytest.mark.full
def test_scores_of_earlier_weights_are_moved_aside(tmp_path: Path) -> None:
    run = trained(small(tmp_path, steps=2, metrics=[]), tmp_path / "run")
    run.evaluate("valid")
    before = (run.folder / "evaluation.json").read_text()
    trained(small(tmp_path, steps=2, metrics=[]), run.folder, resume=True)
    assert (run.folder / "evaluation.json").read_text() == before, "no step was trained"
    trained(small(tmp_path, steps=4, metrics=[]), run.folder, resume=True)
    assert not (run.folder / "evaluation.json").exists()
    log = (run.folder / "train.log").read_text()
    assert all(line in log for line in before.splitlines())
    assert tfkit.load_run(run.folder).evaluate("valid")
