"""Training from token shards is training from memory, bit for bit, and starts again without reading the texts."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.small import ENCODER, LINES, PAIR, outcome, small, trained
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.data.encoder import TokenIds
from tfkit.data.tokenizer import Character
from tfkit.recipe.load import Recipe
from tfkit.training import splits
from tfkit.training.objective.rows import Encoded

KINDS: dict[str, dict[str, Any]] = {
    "joined": {"objective.join": True, "objective.block": 4},
    "rows": {},
    "packed": {"data.batch.pack": True, "data.batch.length": 16},
    "masked": ENCODER,
    "pairs": PAIR,
    "sides": {**PAIR, "model.embedding.shared": False},
    "completions": {"objective": {"type": "completion"}},
    "mixture": {"objective.join": True, "objective.block": 4},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def recipe(folder: Path, kind: str, **more: Any) -> Recipe:
    overrides = {**KINDS[kind], "train.samples": 0, **more}
    if kind in ("pairs", "sides", "completions"):
        for side, lines in (("source", LINES), ("target", LINES[::-1])):
            (folder / side).write_text("\n".join(lines) + "\n")
        corpus = {"type": "parallel_text", "source": str(folder / "source"), "target": str(folder / "target")}
        overrides |= {"data.train": corpus, "data.valid": corpus}
    if kind == "mixture":
        (folder / "other.txt").write_text("\n".join(LINES[::-1]) + "\n")
        texts = [{"type": "text", "files": str(folder / name)} for name in ("train.txt", "other.txt")]
        of = [{"corpus": texts[0]}, {"corpus": texts[1], "weight": 3}]
        overrides |= {"data.train": {"type": "mixture", "of": of, "size": 20, "repeat": True}}
    if kind == "sides":
        overrides |= {"data.tokenizer": {"source": {"type": "word"}, "target": {"type": "character"}}}
    return small(folder, overrides)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_shards_is_the_run_from_memory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    memory = outcome(trained(recipe(tmp_path, kind), tmp_path / "memory").folder)
    assert not cache.exists()
    loaded = recipe(tmp_path, kind, **{"data.shards": True})
    assert outcome(trained(loaded, tmp_path / "shards").folder) == memory
    assert len(list(cache.glob("tokens/*/shard.json"))) == (1 if "objective" in KINDS[kind] and kind != "masked" else 2)
    assert loaded.data is not None
    monkeypatch.setattr(loaded.data.train.part, "stream", lambda self: pytest.fail("the texts are read again"))
    assert outcome(trained(loaded, tmp_path / "again").folder) == memory


@pytest.mark.full
def test_large_files_are_read_from_shards_and_small_ones_from_memory(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = outcome(trained(recipe(tmp_path, "joined"), tmp_path / "small").folder)
    monkeypatch.setattr(splits, "LARGE", (tmp_path / "train.txt").stat().st_size)
    assert outcome(trained(recipe(tmp_path, "joined"), tmp_path / "large").folder) == whole
    assert len(list(cache.glob("tokens/*/shard.json"))) == 1  # of train.txt, not of valid.txt
    shutil.rmtree(cache)
    trained(recipe(tmp_path, "joined", **{"data.shards": False}), tmp_path / "held")
    assert not cache.exists()


@pytest.mark.full
def test_other_texts_and_other_tokenizers_are_other_shards(tmp_path: Path, cache: Path) -> None:
    def made(**more: Any) -> int:
        trained(recipe(tmp_path, "joined", **{"data.shards": True}, **more), tmp_path / "run", force=True)
        return len(list(cache.glob("tokens/*/shard.json")))

    assert made() == 2
    assert made(**{"objective.block": 8, "train.seed": 1}) == 2
    assert made(**{"data.tokenizer": "character"}) == 4
    (tmp_path / "valid.txt").write_text("one two\n")
    assert made() == 5
    assert made(**{"data.valid.limit": 1}) == 6


@pytest.mark.full
@pytest.mark.parametrize("kind", ["joined", "mixture"])
def test_a_run_goes_on_from_shards_or_from_memory(tmp_path: Path, kind: str) -> None:
    def at(steps: int, shards: bool) -> Recipe:
        return recipe(tmp_path, kind, **{"data.shards": shards, "train.steps": steps})

    whole = outcome(trained(at(4, False), tmp_path / "whole").folder)
    for first, then in ((True, False), (False, True)):
        folder = tmp_path / f"run-{first}"
        trained(at(2, first), folder)
        trained(at(4, then), folder, resume=True)
        assert outcome(folder)["weights"] == whole["weights"]


def test_what_is_held_in_memory_is_refused_by_name(tmp_path: Path) -> None:
    wrong = {**PAIR, "objective": {"type": "span_corruption"}, "data.tokenizer.special_tokens.sentinels": 5}
    with pytest.raises(RecipeError, match="'span_corruption' holds the texts and tokens of all examples in memory"):
        small(tmp_path, {**wrong, "data.shards": True})
    of = [{"corpus": {"type": "docstrings"}}, {"corpus": {"type": "text", "files": str(tmp_path / "train.txt")}}]
    with pytest.raises(RecipeError, match="'mixture' generates its examples and holds them in memory"):
        small(tmp_path, {"data.train": {"type": "mixture", "of": of}, "data.shards": True})
    with pytest.raises(RecipeError, match="'docstrings' generates its examples and holds them in memory"):
        small(tmp_path, {"data.train": {"type": "docstrings", "split": "train"}, "data.shards": True})


@pytest.mark.parametrize("name", REGISTRY.names("objective"))
def test_objectives_of_shards_make_the_items_of_memory(name: str) -> None:
    part = REGISTRY.get("objective", name)
    rows = part.Config.model_validate(part.example).build().rows
    special = {"mask": "<mask>", "separator": "<sep>"}
    words = Character.Config.model_validate({"special_tokens": special}).build().fit(LINES)
    examples = [{"text": line, "source": line, "target": line[::-1]} for line in [*LINES, ""]]
    texts = {field: TokenIds.of(words.encode_batch([example[field] for example in examples])) for field in examples[0]}
    if "shards" not in part.capabilities:
        return
    held, read = (rows.prepare(given, words, 40) for given in (examples, Encoded(texts)))
    assert len(held) == len(read) > 2
    for one, other in zip(held, read, strict=True):
        assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
