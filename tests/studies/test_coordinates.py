"""The coordinate check: under muP the changes stay of one size, under the standard parametrization they grow."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.models.test_parametrization import MODEL
from tfkit.cli.main import main
from tfkit.core.errors import UsageError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.studies.coordinates import PartChange, coordinate_changes, growth, picture

pytestmark = pytest.mark.full

BASE = {"type": "mup", "base": {"d_model": 32, "layer.feedforward.d_ff": 64}}
TRAIN = {"steps": 100, "schedule": {"type": "constant", "lr": 0.002}}


def changes(model: dict[str, Any], train: dict[str, Any] = TRAIN, factors: Sequence[int] = (1, 8)) -> list[PartChange]:
    def read(sets: Sequence[str]) -> Recipe:
        return load_recipe({"tfkit": 1, "model": {**MODEL, **model}, "train": train}, sets=sets)

    return list(coordinate_changes(read, factors, steps=3))


def test_changes_keep_their_size_under_mup_alone() -> None:
    found = growth(changes({"parametrization": BASE}))
    assert [row["part"] for row in found[:6]] == [
        "decoder embedding", *(f"decoder layer {place}" for place in range(4)), "logits",
    ]  # fmt: skip
    ratios = {(row["parametrization"], row["part"]): row["ratios"][8] for row in found}
    assert all(0.4 < ratio < 2.5 for (name, _), ratio in ratios.items() if name == "mup")
    assert ratios["standard", "logits"] > 4
    assert all(row["ratios"][1] == 1 for row in found)


def test_at_the_base_both_parametrizations_are_one() -> None:
    found = changes({"parametrization": BASE}, factors=(1,))
    half = len(found) // 2
    assert [one.after for one in found[:half]] == [one.after for one in found[half:]]
    assert all(len(one.after) == 3 and one.after[-1] > 0 for one in found)


def test_both_sides_of_an_encoder_decoder_are_measured() -> None:
    stack = {"num_layers": 1}
    model = {"type": "encoder_decoder", "encoder": stack, "decoder": stack, "num_layers": None, "parametrization": BASE}
    parts = {one.part for one in changes(model, factors=(1,))}
    assert parts == {f"{side} {name}" for side in ("encoder", "decoder") for name in ("embedding", "layer 0")} | {
        "logits"
    }


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({}, "model.parametrization: needs a base"),
        ({"parametrization": BASE, "type": "encoder", "head": "none"}, "the model has no head that gives logits"),
    ],
)
def test_what_cannot_be_measured_is_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        changes(model)


def test_the_command_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    file, out = tmp_path / "small.json", tmp_path / "coordinates.svg"
    file.write_text(json.dumps({"tfkit": 1, "model": {**MODEL, "parametrization": BASE}, "train": TRAIN}))
    command = ["bench", "coordinates", str(file), "--factors", "1,2", "--steps", "2"]
    found = CliRunner().invoke(main, [*command, "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert re.search(r"muP +change +x 1 +x 2", found.stdout)
    assert re.search(r"logits +[\d.e-]+ +1\.00 +\d\.\d\d", found.stdout)
    drawn = out.read_text()
    assert drawn.startswith("<svg") and "decoder layer 3" in drawn and "standard" in drawn
    as_json = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
    assert {row["parametrization"] for row in as_json} == {"mup", "standard"}
    assert as_json[0]["ratios"].keys() == {"1", "2"}


def test_the_picture_says_what_it_shows() -> None:
    shown = picture([PartChange(name, 1, "logits", (0.1, 0.2)) for name in ("mup", "standard")], "mine")
    assert "mean change after 2 steps" in shown and "mine" in shown
