"""run.json identifies a run and lists its starts; the name of the default folder lists changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sampling import looped
from tests.training.small import LINES, RECIPE, small, trained
from tfkit.core.errors import RunError
from tfkit.functional.linear import FORCED, rule_name
from tfkit.recipe.load import load_recipe
from tfkit.run import train
from tfkit.runs.folder import LONGEST, RUN, RunFolder, run_name
from tfkit.runs.history import read_history
from tfkit.training.loop import NotFinite

VARIANTS = {
    "rotary": {"model": {"position": "rotary"}},
    "norm": {"model.layer.norm": ["layer_norm", "rms_norm"]},
    "width": {"model.d_model": [8, 16]},
}


def changed(folder: Path, *sets: str, variant: Any = ()) -> Any:
    """The small recipe with variants to choose from, as `--set` and `--variant` change it."""
    (folder / "train.txt").write_text("\n".join(LINES))
    data = {**RECIPE["data"], "train": {"type": "text", "files": str(folder / "train.txt")}}
    return load_recipe({**RECIPE, "data": data, "variants": VARIANTS}, sets=sets, variant=variant)


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    recipe = changed(tmp_path, "train.seed=3", "train.metrics=[]", variant=["rotary", "width=16"])
    run = trained(recipe, tmp_path / "run")
    found = json.loads((run.folder / RUN).read_text())
    expected = {"recipe": "recipe", "variants": ["rotary", "width=16"], "seed": 3, "finished": "steps", "steps": 3}
    assert {key: found[key] for key in expected} == expected
    assert found["set"] == {"train.seed": 3, "train.metrics": []}
    assert found["parameters"] == sum(weight.numel() for weight in run.model.parameters())
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (found["tokens"], found["targets"]) == (last["tokens"], last["targets"])
    (start,) = found["starts"]
    assert (start["step"], start["device"]) == (0, "cpu") and start["threads"] >= 1
    assert start["machine"]["cores"] >= 1 and start["versions"]["torch"]
    assert found["seconds"] == start["seconds"] > 0


@pytest.mark.full
def test_each_resume_is_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, own = tmp_path / "run", rule_name()
    trained(small(tmp_path), run)
    trained(small(tmp_path, steps=4), run, resume=True)
    assert "float32 products" not in (run / "train.log").read_text()
    monkeypatch.setenv(FORCED, "transposed")
    trained(small(tmp_path, steps=5), run, resume=True)
    found = read_history(RunFolder(run))
    assert found is not None and found.steps == 5
    assert [(start.step, start.products) for start in found.starts] == [
        *((step, own) for step in (0, 3)),
        (4, "TFKIT_PRODUCTS=transposed"),
    ]
    assert found.seconds == pytest.approx(sum(start.seconds for start in found.starts), abs=0.01)
    said = f"products follow the rule TFKIT_PRODUCTS=transposed now, {own} before; results differ"
    assert said in (run / "train.log").read_text()
    (run / RUN).unlink()  # as in runs of older versions
    (run / "SHA256SUMS").unlink()
    assert read_history(RunFolder(run)) is None
    trained(small(tmp_path, steps=6), run, resume=True)
    found = read_history(RunFolder(run))
    assert found is not None and [start.step for start in found.starts] == [5]
    (run / RUN).write_text('{"recipe": "x", "seed": "three"}')
    with pytest.raises(RunError, match=r"run\.json: seed: "):
        read_history(RunFolder(run))


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFinite):
        trained(small(tmp_path, steps=30, schedule={"type": "constant", "lr": 1e17}), tmp_path / "run")
    found = read_history(RunFolder(tmp_path / "run"))
    assert found is not None
    assert found.diverged is not None
    assert found.finished == ""


@looped(
    ("variant", "sets", "name"),
    [
        ((), (), "recipe"),
        (("rotary",), ("train.seed=3",), "recipe-rotary-s3"),
        (("norm=rms_norm", "width=16"), (), "recipe-rms_norm-width16"),
        ((), ("model.d_model=16", "model.layer.dropout=0.3"), "recipe-d_model16-dropout0.3"),
        ((), ("model.layer.norm={type: rms_norm}", "model.layer.shared=true"), "recipe-rms_norm-shared"),
        ((), ("model.layer.shared=false", "model.layer.position=none"), "recipe-no_shared-position_none"),
        ((), ("train.steps=9", "train.samples=0", "generate.max_new_tokens=4"), "recipe"),
    ],
)
def test_the_default_name(variant: tuple[str, ...], sets: tuple[str, ...], name: str, tmp_path: Path) -> None:
    assert run_name(changed(tmp_path, *sets, variant=variant)) == name


def test_other_options_of_one_part_have_other_names(tmp_path: Path) -> None:
    names = {run_name(changed(tmp_path, f"model.layer.norm={{type: rms_norm, eps: {eps}}}")) for eps in (1e-5, 1e-6)}
    assert len(names) == 2
    assert all(name.startswith("recipe-rms_norm_") for name in names)


def test_a_name_is_never_long(tmp_path: Path) -> None:
    sets = [f"model.layer.{name}_norm={{type: rms_norm, eps: 1e-5}}" for name in ("attention", "feedforward")]
    sets += [f"train.schedule={{type: constant, lr: {1 / 3}}}", "train.seed=123456789", "model.layer.dropout=0.123456"]
    first, second = (run_name(changed(tmp_path, *sets, f"model.d_model={width}")) for width in (8, 16))
    assert len(first) == len(second) <= LONGEST
    assert first != second


@pytest.mark.full
def test_runs_of_other_seeds_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2, 2):
        train(changed(tmp_path, f"train.seed={seed}", "train.metrics=[]"), progress=False)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["recipe-s1", "recipe-s2", "recipe-s2-2"]
