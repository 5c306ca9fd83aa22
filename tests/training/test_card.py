"""The model card of a run: what it says, that an edited one stays, and that it is on record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.components.feedforward import MLP
from tfkit.reports.counts import count
from tfkit.run import Run
from tfkit.runs.card import is_ours, signed
from tfkit.storage.checksums import check, read_sums

from .small import small, trained

pytestmark = pytest.mark.full

CARD = "README.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("card")
    return trained(small(folder, steps=6), folder / "run")


@pytest.mark.full
def test_a_card_says_costs_data_and_scores(run: Run) -> None:
    text = (run.folder / CARD).read_text()
    total = count(run.blueprint).total
    assert f"vocab_size {run.blueprint.last.vocab_size}" in text  # not that of a recipe without its tokenizer
    assert f"{total.parameters:,} parameters. {total.flops_per_token:,} FLOPs per token" in text
    assert re.search(
        r"^6 steps on \d+ tokens in \d+ s on cpu, peak memory [\d,]+ MiB\. Best validation loss: ", text, re.MULTILINE
    )
    digest = json.loads((run.folder / "environment.json").read_text())["data"]["train"]
    assert f"| train | train.txt | {next(iter(digest.values()))[:12]} |" in text
    scores = json.loads((run.folder / "evaluation.json").read_text())["valid"]
    assert f"| valid | perplexity | {scores['perplexity']:.4g} |" in text
    assert str(run.folder.parent) not in text
    assert CARD in (read_sums(run.folder) or {})
    check(run.folder, CARD)


@pytest.mark.full
def test_an_edited_card_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(small(tmp_path, steps=2), folder)
    before = (folder / CARD).read_text()
    trained(small(tmp_path, steps=4), folder, resume=True)
    assert "4 steps on" in (folder / CARD).read_text() != before
    edited = (folder / CARD).read_text().replace("4 steps on", "Four steps on")
    (folder / CARD).write_text(edited)
    trained(small(tmp_path, steps=6), folder, resume=True)
    assert (folder / CARD).read_text() == edited
    trained(small(tmp_path, steps=2), folder, force=True)
    assert (tmp_path / "run.old" / CARD).read_text() == edited != (folder / CARD).read_text()
    assert tfkit.load_run(folder).generate("one", 1)


def test_a_link_and_a_damaged_card_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "card").write_text(signed(["# mine"]))
    assert is_ours(tmp_path / "card")
    (tmp_path / "link").symlink_to(tmp_path / "card")
    (tmp_path / "bytes").write_bytes(b"\xff" + (tmp_path / "card").read_bytes())
    assert not any(is_ours(tmp_path / name) for name in ("link", "bytes", "nothing"))


def test_a_saved_model_has_a_card(tmp_path: Path, run: Run) -> None:
    saved = tfkit.save(run.model, run.recipe, run.tokenizer, tmp_path / "saved")
    text = (saved.folder / CARD).read_text()
    assert run.cost in text
    assert "## Training" not in text
    check(saved.folder, CARD)


def test_a_part_without_a_measurable_cost_ends_a_training_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = MLP.forward

    def needs_numbers(self: MLP, x: Any, context: Any) -> Any:
        x.sum().item()  # nothing has a value on meta
        return forward(self, x, context)

    monkeypatch.setattr(MLP, "forward", needs_numbers)
    run = trained(small(tmp_path), tmp_path / "run")
    text = (run.folder / CARD).read_text()
    assert " parameters.\n" in text and "FLOPs" not in text
    assert "finished" in json.loads((run.folder / "environment.json").read_text())
