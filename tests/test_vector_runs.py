"""Runs of models that read arrays: trained, resumed, loaded and evaluated, with and without a tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import tfkit
from tfkit.cli.main import main
from tfkit.core.errors import DataError, RecipeError, RunError, TfkitError, UsageError
from tfkit.run import Run, load_run, train

from .sampling import looped

LAYER = {
    "residual": "pre_norm",
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 16},
}
TRAIN = {
    "steps": 30, "device": "cpu", "schedule": {"type": "constant", "lr": 0.02}, "evaluate_every": 30,
    "checkpoint_every": 15, "samples": 1,
}  # fmt: skip


def recipe(folder: Path, **changed: Any) -> dict[str, Any]:
    """Patches of grey pictures, dark and light ones, in a file."""
    if not (folder / "x.npy").exists():
        rng = np.random.default_rng(0)
        np.save(folder / "x.npy", rng.random((24, 4, 4)) / 4 + np.arange(24).reshape(-1, 1, 1) % 2 / 2)
        (folder / "y.txt").write_text("dark\nlight\n" * 12)
    corpus = {"type": "npy", "file": str(folder / "x.npy"), "labels": str(folder / "y.txt")}
    model = {
        "type": "encoder", "d_model": 8, "num_layers": 1, "max_length": 5, "position": "learned", "layer": LAYER,
        "embedding": {"type": "patches", "size": 2, "channels": 1, "class_token": True},
        "head": {"type": "classifier", "num_classes": "labels", "pool": "first"},
    }  # fmt: skip
    data = {"train": corpus, "valid": corpus, "batch": {"size": 8}}
    whole = {"tfkit": 1, "model": model, "data": data, "objective": "classification", "train": TRAIN}
    return {**whole, **changed}


def command(*arguments: Any) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pictures")
    return train(recipe(folder), out=folder / "run", progress=False)


@pytest.mark.full
def test_a_run_of_pictures_learns_loads_and_predicts(run: Run) -> None:
    loaded, pictures = load_run(run.folder), np.load(run.folder.parent / "x.npy")
    assert not (run.folder / "tokenizer.json").exists()
    assert loaded.evaluate("valid")["accuracy"] == 100.0
    for given in (pictures[:2], list(pictures[:2]), torch.from_numpy(pictures[:2])):
        assert [one["label"] for one in loaded.predict(given)] == ["dark", "light"]
    out = command("predict", run.folder, "--input", run.folder.parent / "x.npy").splitlines()
    assert [line.split("\t")[0] for line in out] == ["dark", "light"] * 12
    table = run.folder.parent / "answers.csv"
    command("predict", run.folder, "--input", run.folder.parent / "x.npy", "--out", table)
    lines = table.read_text().splitlines()
    assert lines[0].startswith("id,vectors,label") and [line.split(",")[0] for line in lines[1:]] == [
        *map(str, range(1, 25))
    ]


@pytest.mark.full
def test_pictures_are_looked_at_by_patch(run: Run, tmp_path: Path) -> None:
    picture = np.load(run.folder.parent / "x.npy")[0]
    with torch.no_grad():
        vectors = torch.as_tensor(picture, dtype=torch.float32)[None, ..., None]
        observed = run.model(inputs_embeds=vectors, observe={"attention"}).observed
    (seen,) = run.attention(picture).maps
    torch.testing.assert_close(seen.weights, observed[seen.place][0])
    assert seen.queries == seen.keys == ("[class]", "0:0", "0:1", "1:0", "1:1")
    said = CliRunner().invoke(main, ["look", str(run.folder), "--input", str(run.folder.parent / "x.npy")])
    assert (said.exit_code, "has 24 inputs; only the first is shown" in said.stderr) == (0, True), said.output
    for words in (["a text"], [], ["a text", "--input", "x.npy"]):
        refused = CliRunner().invoke(main, ["look", str(run.folder), *words])
        assert refused.exit_code == 2 and "--input" in refused.stderr and not refused.stdout


@pytest.mark.full
def test_a_run_is_resumed_exactly_and_not_with_other_data(tmp_path: Path) -> None:
    whole = train(recipe(tmp_path), out=tmp_path / "whole", progress=False)
    half = recipe(tmp_path, train={**TRAIN, "steps": 15})
    train(half, out=tmp_path / "part", progress=False)
    train(recipe(tmp_path), out=tmp_path / "part", resume=True, progress=False)
    name = "model.safetensors"
    assert (tmp_path / "part" / name).read_bytes() == (whole.folder / name).read_bytes()
    np.save(tmp_path / "x.npy", np.zeros((24, 4, 4)))
    with pytest.raises(RunError, match=r"x.npy has changed since this run started"):
        train(recipe(tmp_path, train={**TRAIN, "steps": 40}), out=tmp_path / "part", resume=True, progress=False)


@pytest.mark.full
@looped(
    ("given", "said"),
    [
        ("text", "this model reads vectors, got 'text'; pass a list of arrays, one per input"),
        (3, "this model reads vectors"),
        (np.zeros((1, 4, 5)), "patches of 2 x 2 do not tile an image of 4 x 5"),
        (np.zeros((1, 2, 2)), "requires 2 positions, but the encoder's max_length is 5"),
        (np.full((1, 4, 4), np.nan), r"array 1: the value at \[0, 0\] is nan"),
    ],
)
def test_wrong_inputs_are_refused(given: Any, said: str, run: Run) -> None:
    with pytest.raises(TfkitError, match=said):
        run.predict(given)
    with pytest.raises(UsageError, match="reads arrays, but embed requires texts"):
        run.embed(["text"])
    refused = CliRunner().invoke(main, ["embed", str(run.folder), "--input", str(run.folder.parent / "x.npy")])
    assert refused.exit_code == 2 and "reads arrays, but embed requires texts" in refused.stderr
    (run.folder.parent / "x.txt").write_text("text\n")
    for words, why in ((["text"], "use --input PATH, a .npy file of arrays"), (["--input"], "is not a .npy file")):
        words += [str(run.folder.parent / "x.txt")] * ("--input" in words)
        done = CliRunner().invoke(main, ["predict", str(run.folder), *words])
        assert done.exit_code == 2 and why in done.output


# --- contradictions, reported with their place before anything is computed


@looped(
    ("sets", "said"),
    [
        (["data.tokenizer=word"], "data.tokenizer: 'classification' on vectors reads no text; remove the tokenizer"),
        (
            ["model.embedding=tokens", "model.vocab_size=9"],
            "data.train contains vectors; use embedding: features or embedding: patches",
        ),
        (["model.vocab_size=tokenizer"], "needs a data.tokenizer to take the size from"),
        (["data.train=copying"], "reads vectors, but 'classification' trains on token ids"),
        (["objective=masked_lm"], "'masked_lm' needs the fields text; this corpus has label, vectors"),
        (["data.train.file=y.npy"], "no such file: .*y.npy"),
    ],
)
def test_sections_that_contradict_are_refused(sets: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        train(tfkit.load_recipe(recipe(tmp_path), sets=sets), out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@looped(
    ("name", "value", "said"),
    [
        ("x.npy", np.zeros((24, 4, 6)), r"x.npy: row 1: requires 7 positions, but the encoder's max_length is 5"),
        ("x.npy", np.zeros((24, 3, 4)), r"x.npy: row 1: patches of 2 x 2 do not tile an image of 3 x 4"),
        ("x.npy", np.zeros((23, 4, 4)), r"y.txt has 24 labels, but .*x.npy has 23 examples"),
    ],
)
def test_data_that_do_not_fit_are_refused(name: str, value: Any, said: str, tmp_path: Path) -> None:
    given = recipe(tmp_path)
    np.save(tmp_path / name, value)  # in the place of the pictures
    with pytest.raises(DataError, match=said):
        train(given, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


# --- a decoder that writes what the encoder has seen


@pytest.mark.full
def test_captions_are_written_of_arrays_and_files(tmp_path: Path) -> None:
    given = recipe(tmp_path)
    (tmp_path / "y.txt").write_text("it is dark\nit is light\n" * 12)
    corpus = {**given["data"]["train"], "field": "target"}
    embedding = {"type": "patches", "size": 2, "channels": 1}
    model = {
        "type": "encoder_decoder", "d_model": 8, "layer": LAYER, "head": "language_model",
        "encoder": {"num_layers": 1, "max_length": 4, "embedding": embedding, "position": "learned"},
        "decoder": {"num_layers": 1, "vocab_size": "tokenizer", "embedding": "tokens", "position": "sinusoidal"},
    }  # fmt: skip
    data = {"tokenizer": "word", "train": corpus, "valid": corpus, "batch": {"size": 8}}
    settings = {**TRAIN, "steps": 60, "metrics": ["exact_match"]}
    given |= {"model": model, "data": data, "objective": "seq2seq", "train": settings}
    made = train(given, out=tmp_path / "run", progress=False)
    pictures, want = np.load(tmp_path / "x.npy")[:2], ["it is dark", "it is light"]
    assert made.generate(pictures) == want and "".join(made.stream(pictures[:1])) == want[0]
    assert made.generate(pictures, num_beams=2) == want
    assert made.evaluate("valid")["exact_match"] == 100.0
    lines = command("generate", tmp_path / "run", "--input", tmp_path / "x.npy").splitlines()
    assert lines == want * 12
    command("look", tmp_path / "run", "--input", tmp_path / "x.npy", "--out", tmp_path / "page.html")
    data = json.loads(re.findall('id="data">(.*?)</script>', (tmp_path / "page.html").read_text())[0])
    assert data["first"]["place"] == "decoder.layers.0.cross_attention"
    cross = next(one for one in data["maps"] if one["place"] == data["first"]["place"])
    assert cross["keys"] == ["0:0", "0:1", "1:0", "1:1"] and cross["queries"][1:] == ["▁it", "▁is", "▁dark"]
    assert made.attention(pictures[1], "it is light").maps[-1].queries[1:] == ("▁it", "▁is", "▁light")


@pytest.mark.full
def test_shapes_are_shown_and_texts_need_a_tokenizer() -> None:
    out = command("check", "digits")
    assert "[8 8 1], 0 to 1" in out and 'label "' in out
    with pytest.raises(RecipeError, match="data: needs the option 'tokenizer'"):
        tfkit.load_recipe("trec", overrides={"data.tokenizer": None})


# --- as good as plain torch


class PlainViT(nn.Module):
    """The model of recipes/tasks/digits.yaml in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(1, 64, 2, stride=2), nn.Parameter(torch.randn(1, 1, 64) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 17, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.2, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, nn.LayerNorm(64), enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), 1, 64), patches), dim=1) + self.positions
        out: torch.Tensor = self.head(self.layers(x)[:, 0])
        return out


def plain_accuracy(steps: int) -> float:
    """Percent of the test digits that plain torch gets right after the steps of the recipe."""
    from tfkit.data.corpus import Digits

    splits = {}
    for split in ("train", "test"):
        examples = Digits(Digits.Config(split=split)).examples()
        pictures = np.stack([getattr(one["vectors"], "array")[None, ..., 0] for one in examples])  # noqa: B009
        splits[split] = torch.from_numpy(pictures), torch.tensor([int(one["label"]) for one in examples])
    torch.manual_seed(0)
    model, (x, y) = PlainViT(), splits["train"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=100)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 100)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [100])
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = model.eval()(splits["test"][0]).argmax(dim=1)
    return 100 * float((found == splits["test"][1]).float().mean())


@pytest.mark.slow
def test_digits_are_read_as_well_as_by_plain_torch(tmp_path: Path) -> None:
    made = train("digits", out=tmp_path / "run", progress=False)
    found = made.evaluate("test")["accuracy"]
    assert found >= 97.0 and found >= plain_accuracy(made.recipe.train.steps) - 1.0
