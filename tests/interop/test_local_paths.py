"""Absolute paths of the author's machine stay out of all that is pushed or exported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfkit
from tests.training.small import LINES, RECIPE
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.core.registry import REGISTRY
from tfkit.interop.hub import _named
from tfkit.run import Run

from .made import command
from .test_push import HERE, Hub, place

__all__ = ["place"]  # a fixture
PART = '''"""A part of one's own."""
import torch
from tfkit.components.activation import Activation
from tfkit.core.registry import register

@register("activation", "{name}")
class Mine(Activation):
    """x * tanh(x)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(x)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a space in its name, texts of one name in two folders, a part and word vectors."""
    home = tmp_path_factory.mktemp("home") / "ann lee"
    for split in ("train", "valid"):
        (home / split).mkdir(parents=True)
        (home / split / "texts.txt").write_text("\n".join(LINES) + "\n")
    (home / "homely.py").write_text(PART.format(name="homely"))
    (home / "words.txt").write_text("one 1 0 0 0 0 0 0 0\n")
    return home


@pytest.fixture(scope="module")
def trained(home: Path) -> Iterator[Run]:
    """A run whose recipe, record, weights and settings name files by absolute paths."""
    recipe = json.loads(json.dumps(RECIPE))
    recipe["imports"] = [str(home / "homely.py")]
    recipe["model"]["layer"]["feedforward"]["activation"] = "homely"
    recipe["model"]["embedding"] = {"type": "tokens", "vectors": str(home / "words.txt")}
    for split in ("train", "valid"):
        recipe["data"][split] = {"type": "text", "files": str(home / split / "texts.txt")}
    file = home / "small.yaml"
    file.write_text(f"# the texts are in {home}/train\n" + json.dumps(recipe))
    run = tfkit.train(tfkit.load_recipe(file, trust=True), home / "run", progress=False)
    run.evaluate("valid")
    yield run
    REGISTRY.load("activation").pop("homely")


def named_in(folder: Path, home: Path) -> list[str]:
    """Files that hold the home folder's path, or its name, in any spelling."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path.name for path in files if b"ann lee" in path.read_bytes() or str(home.parent).encode() in path.read_bytes()
    ]


@pytest.mark.full
def test_a_pushed_run_names_no_folder_of_its_author(place: Hub, trained: Run, home: Path) -> None:
    assert {"recipe.yaml", "resolved.yaml", "environment.json", "model.safetensors"} <= {
        *named_in(trained.folder, home)
    }
    with pytest.warns(TfkitWarning, match=r"absolute paths are replaced: .*texts\.txt as train/texts\.txt"):
        tfkit.push(trained, HERE)
    there = place.root / "someone/small"
    assert named_in(there, home) == []
    known = json.loads((there / "environment.json").read_text())
    assert list(known["data"]["train"]) == ["train/texts.txt"]
    assert (known["imports"][0]["name"], known["imports"][0]["beside"]) == ("homely.py", "homely.py")
    found = tfkit.load_run(HERE, imports=[home / "homely.py"])
    assert found.generate(["one two"], 3, strategy="greedy") == trained.generate(["one two"], 3, strategy="greedy")
    assert tfkit.load_run(there / "model.safetensors", imports=[home / "homely.py"]).blueprint.last.d_model == 8


def test_a_part_that_did_not_come_along_is_asked_for(place: Hub, home: Path, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(PART.format(name="late"))
    recipe = json.loads(json.dumps(RECIPE))
    recipe["model"]["layer"]["feedforward"]["activation"] = "late"
    recipe["model"]["vocab_size"] = 20
    del recipe["data"], recipe["train"], recipe["objective"]
    recipe["imports"] = [str(tmp_path / "late.py")]
    loaded = tfkit.load_recipe(recipe, trust=True)
    run = tfkit.save(tfkit.build(loaded), loaded, None, tmp_path / "run")
    with pytest.warns(TfkitWarning, match="absolute paths are"):
        tfkit.push(run, HERE)
    there = place.root / "someone/small"
    known = json.loads((there / "environment.json").read_text())
    known["imports"][0]["used"] = {"activation": ["unheard_of"]}  # as where the part was never imported
    (there / "environment.json").write_text(json.dumps(known))
    (there / "SHA256SUMS").unlink()
    with pytest.raises(RunError, match=r"the parts in late\.py .*, which is missing: pass its new path to --import"):
        tfkit.load_run(HERE)


@pytest.mark.full
@pytest.mark.parametrize("form", ["huggingface", "onnx"])
def test_an_export_names_no_folder_of_its_author(form: str, trained: Run, home: Path, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="the extra onnx")
    result = command("export", trained.folder, tmp_path / "out", "--to", form, "--trust")
    assert result.exit_code == 0, result.output
    assert named_in(tmp_path / "out", home) == []
    assert "absolute paths are replaced: " in result.stdout
    assert f"{home / 'train' / 'texts.txt'} as train/texts.txt" in result.stdout


@pytest.mark.full
def test_settings_of_a_model_that_was_imported_from_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a model is made with transformers, which the extra test brings")
    from .made import model_folder, said

    source = model_folder(tmp_path / "home" / "ann lee" / "model", "gpt2")
    said(source, _name_or_path=str(source))
    assert command("import", source, "--out", tmp_path / "home" / "ann lee" / "run").exit_code == 0
    moved = Path(shutil.move(tmp_path / "home" / "ann lee" / "run", tmp_path / "run"))
    assert command("export", moved, tmp_path / "out").exit_code == 0
    assert named_in(tmp_path / "out", source.parent) == []


def test_endings_are_as_long_as_they_must_be() -> None:
    paths = ["/home/a/x/t.txt", "/home/a/y/t.txt", "C:\\data\\u.txt", "/runs/r/mine.py", "../mine.py", "/runs/mine.py"]
    assert _named(paths, Path("/runs/r")) == {
        "/home/a/x/t.txt": "x/t.txt",
        "/home/a/y/t.txt": "y/t.txt",
        "C:\\data\\u.txt": "u.txt",
        "/runs/r/mine.py": "mine.py",
        "../mine.py": "runs/mine.py",
        "/runs/mine.py": "runs/mine.py",
    }
