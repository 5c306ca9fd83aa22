"""`tfkit prove`: promises of a run, measured on its own weights and data; each of them can break."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfkit.cli import parts
from tfkit.cli.main import main
from tfkit.contracts import proving, saving
from tfkit.contracts.proving import Promise
from tfkit.models import ModelOutput, build_model
from tfkit.recipe.load import load_recipe
from tfkit.run import Run, load_run
from tfkit.runs import checkpoint
from tfkit.training.step import accumulate

from ..training.small import LINES, RECIPE, small, trained

MODEL = ("packed = apart", "padded left = right", "future leak", "cached = uncached", "saved = loaded")
TRAINING = ("accumulated = one batch", "resumed = unbroken", "bfloat16 near float32")
MASKED = {
    "model.type": "encoder",
    "model.head": {"type": "masked_lm", "tied": True},
    "objective": "masked_lm",
    "data.tokenizer": {"type": "word", "special_tokens": {"mask": "<mask>"}},
    "train.metrics": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run."""
    place = tmp_path_factory.mktemp("prove")
    trained(small(place), place / "run")
    return place / "run"


@pytest.fixture(autouse=True)
def without_export(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Leave transformers out, which takes seconds to import."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)


def proofs(run: Run) -> dict[str, Promise]:
    """The proofs of a run by their promise."""
    return {proof.name: proof for proof in parts._promises(run)}


def test_a_run_keeps_its_promises_and_stays_as_it_is(folder: Path) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    found = CliRunner().invoke(main, ["prove", str(folder), "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["holds"]
    measured = {proof["name"]: proof["value"] for proof in told["promises"]}
    assert list(measured) == [*MODEL, *TRAINING, "exported = own"]
    assert measured["future leak"] == measured["saved = loaded"] == measured["resumed = unbroken"] == 0
    assert all(proof["value"] <= proof["bound"] for proof in told["promises"][:-1])
    assert told["promises"][-1]["reason"] == "transformers is not installed"
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_examples_that_fit_are_found_behind_others(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join([" ".join(LINES * 2)] * 70 + LINES) + "\n")
    run = trained(small(tmp_path), tmp_path / "run")
    assert len(run.task(64).train.items) == len(LINES)
    assert all(proof.holds for proof in proofs(run).values())


def test_a_model_that_looks_around_breaks_four(folder: Path) -> None:
    run = load_run(folder)

    def look(module: Any, given: Any, out: ModelOutput) -> ModelOutput:
        assert out.hidden is not None
        return replace(out, hidden=out.hidden + out.hidden.mean(dim=1, keepdim=True))

    run.model.register_forward_hook(look)
    found = proofs(run)
    assert [name for name, proof in found.items() if not proof.holds] == list(MODEL[:4])


def _mean_of_means(*args: Any, **more: Any) -> Any:
    return replace(accumulate(*args, **more), factor=0.7)


@pytest.mark.parametrize(
    ("promise", "place", "name", "wrong"),
    [
        ("saved = loaded", saving, "load_weights", lambda *_: None),
        ("resumed = unbroken", checkpoint, "load_weights", lambda *_: None),
        ("accumulated = one batch", proving, "accumulate", _mean_of_means),
        ("bfloat16 near float32", proving, "ROUNDED", 1e-9),
    ],
)
def test_a_promise_breaks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, promise: str, place: Any, name: str, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(place, name, wrong)
    found = CliRunner().invoke(main, ["prove", str(folder)])
    assert found.exit_code == 1
    assert found.stdout.splitlines()[-1] == f"broken: {promise}"


def test_an_encoder_that_hides_tokens_at_random(tmp_path: Path) -> None:
    found = proofs(trained(small(tmp_path, MASKED), tmp_path / "run"))
    assert all(proof.holds for proof in found.values())
    assert found["future leak"].reason == "the encoder is bidirectional"
    assert found["accumulated = one batch"].value is not None


@pytest.mark.full
def test_a_translator(tmp_path: Path) -> None:
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(LINES) + "\n")
    texts = {"type": "parallel_text", **{side: str(tmp_path / side) for side in ("source", "target")}}
    data = {"objective": "seq2seq", "data.train": texts, "data.valid": texts}
    stacks = {"model.type": "encoder_decoder", "model.encoder": {"num_layers": 1}, "model.decoder": {"num_layers": 1}}
    changed = {**data, **stacks, "model.embedding": {"type": "tokens", "shared": True}, "train.samples": 0}
    found = proofs(trained(small(tmp_path, changed), tmp_path / "run"))
    assert all(proof.holds for proof in found.values())
    assert found["packed = apart"].reason == "an encoder-decoder reads one text per row"
    assert [name for name, proof in found.items() if not proof.applies] == ["packed = apart", "exported = own"]


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder_decoder"])
def test_a_run_without_data_reads_random_ids(folder: Path, kind: str) -> None:
    model = {key: value for key, value in RECIPE["model"].items() if key != "head"} | {"type": kind, "vocab_size": 9}
    if kind == "encoder_decoder":
        del model["num_layers"]
        model |= {"encoder": {"num_layers": 1}, "decoder": {"num_layers": 1}}
        model["embedding"] = {"type": "tokens", "shared": True}
    run = load_run(folder)
    run.recipe = load_recipe({"tfkit": 1, "model": model})
    run.__dict__["model"] = build_model(run.recipe.blueprint(), seed=0).eval()
    found = proofs(run)
    assert all(proof.holds for proof in found.values())
    assert {found[name].reason for name in TRAINING} == {"the run has no data"}
    assert found["padded left = right"].value is not None


def test_an_error_of_the_model_breaks_a_promise_in_words(folder: Path) -> None:
    run = load_run(folder)

    def fail(*_: Any) -> None:
        raise ValueError("no such number")

    run.model.register_forward_hook(fail)
    found = proofs(run)
    assert not found["future leak"].holds
    assert found["future leak"].reason == "ValueError: no such number"


def test_a_run_without_its_data_is_refused(folder: Path, tmp_path: Path) -> None:
    trained(small(tmp_path), tmp_path / "run")
    (tmp_path / "train.txt").unlink()
    found = CliRunner().invoke(main, ["prove", str(tmp_path / "run")])
    assert found.exit_code == 2
    assert "train.txt" in found.stderr


def test_a_difference_that_is_not_finite_is_null() -> None:
    assert Promise("x", 0.0, float("inf")).as_data()["value"] is None
    assert not Promise("x", 0.0, float("nan")).holds


@pytest.mark.slow
def test_an_export_is_the_run(folder: Path) -> None:
    pytest.importorskip("transformers", reason="the proof needs transformers, which the extra test brings")
    exported = proofs(load_run(folder))["exported = own"]
    assert exported.holds
    assert exported.value is not None
