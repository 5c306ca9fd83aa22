"""What is exported, transformers loads, and it computes the same: every task that ships, and what has no family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit.interop.huggingface.exporting import Exported, export_model
from tfkit.interop.huggingface.verifying import verify
from tfkit.models.build import build_model
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import load_recipe
from tfkit.run import Run
from tfkit.runs.folder import RunFolder, save_labels

from .made import SIZE, theirs_of, tokens, with_tokenizer
from .parity import randomise

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("modules")]

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
TASKS = sorted(name for name, path in shipped_recipes().items() if path.parent.name == "tasks")
QUICK = ("bert-docstrings", "trec")
TINY = {"model.d_model": 24, "model.layer.feedforward.d_ff": 40, "model.layer.attention.num_heads": 4}
LABELS = ("against", "for", "of two minds")
LAYER: dict[str, Any] = {
    "residual": "pre_norm",
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 4},
    "feedforward": {"type": "mlp", "d_ff": 24, "activation": "mish"},
}
STACK: dict[str, Any] = {
    "d_model": 16, "num_layers": 3, "vocab_size": SIZE, "max_length": 64, "embedding": "tokens",
    "position": "sinusoidal", "layer": LAYER,
}  # fmt: skip
EXPERTS = {
    "type": "experts", "num_experts": 4, "num_active": 2, "expert": {"type": "mlp", "d_ff": 8},
    "router": {"type": "sigmoid", "selection_bias": True},
}  # fmt: skip


def made(folder: Path, recipe: Any, labels: tuple[str, ...] = (), variant: str | None = None, **sizes: Any) -> Run:
    """A run with random weights and the tokenizer of the tests, as if it had been trained."""
    folder.mkdir()
    with_tokenizer(folder, template="")
    if labels:
        save_labels(RunFolder(folder), labels)
    run = Run(folder, load_recipe(recipe, overrides=sizes, variant=variant))
    run.model = build_model(run.blueprint, seed=0).eval()
    randomise(run.model, 0.2)
    return run


def alike(run: Run, folder: Path) -> Exported:
    """Export the run, and compare."""
    exported = export_model(run, folder)
    verdict = verify(run, str(folder), trust=True)
    assert verdict.equal, verdict.as_data()
    assert verdict.predicted or not verdict.notes or run.blueprint.head.part.part_name == "hidden"  # type: ignore[union-attr]
    return exported


def model(topology: str = "encoder", layer: Any = None, **keys: Any) -> dict[str, Any]:
    """A recipe of no family of theirs."""
    return {"tfkit": 1, "model": {"type": topology, **STACK, "layer": {**LAYER, **(layer or {})}, **keys}}


@pytest.mark.parametrize(
    "task", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
def test_a_task(task: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run", task, LABELS, **TINY)
    exported = alike(run, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    named = run.blueprint.head is not None and hasattr(run.blueprint.head, "num_classes")
    assert tuple(config.get("id2label", {}).values()) == (LABELS if named else ())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = theirs_of(tmp_path / "out", exported.auto_class, trust_remote_code=exported.family_config is None)
    if run.blueprint.encoder is not None and run.blueprint.decoder is not None:
        return
    # texts of two lengths as one batch, padded as their tokenizer does
    texts = ["w1 w2 w3 w4 w5 w6 w7", "w8 w9"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    if run.blueprint.decoder is not None:  # theirs counts padding on the left, unless positions are given
        batch["position_ids"] = (batch["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = theirs(**batch).logits
        for row, real in enumerate(batch["attention_mask"].bool()):
            ids = torch.tensor(run.read([texts[row]]))
            assert ids[0].tolist() == batch["input_ids"][row, real].tolist()
            ours = run.model(ids).logits[0]
            other = logits[row] if ours.dim() == 1 else logits[row, real]
            torch.testing.assert_close(other, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_task_in_another_variant(tmp_path: Path) -> None:
    alike(made(tmp_path / "run", "tinyshakespeare", variant="long", **TINY), tmp_path / "out")


HEADS: list[tuple[Any, str]] = [
    ({"type": "classifier", "num_classes": 3, "pool": "mean"}, "AutoModelForSequenceClassification"),
    ({"type": "classifier", "num_classes": 3, "independent": True}, "AutoModelForSequenceClassification"),
    ("regression", "AutoModelForSequenceClassification"),
    ({"type": "token_classifier", "num_classes": 3}, "AutoModelForTokenClassification"),
    ("span", "AutoModelForQuestionAnswering"),
    ({"type": "masked_lm", "tied": True}, "AutoModelForMaskedLM"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("head", "loader"), HEADS)
def test_a_head_of_ones_own_with_its_labels(head: Any, loader: str, tmp_path: Path) -> None:
    classes = isinstance(head, dict) and "num_classes" in head
    run = made(tmp_path / "run", model(head=head), LABELS if classes else ())
    exported = alike(run, tmp_path / "out")
    assert (exported.family_config, exported.auto_class) == (None, loader)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if classes:
        assert config["id2label"] == {str(number): name for number, name in enumerate(LABELS)}
        assert config["label2id"] == {name: number for number, name in enumerate(LABELS)}
    theirs: Any = theirs_of(tmp_path / "out", loader, trust_remote_code=True)
    assert not classes or theirs.config.num_labels == 3
    several = {"multi_label_classification": torch.ones(2, 3), "regression": torch.ones(2)}
    single = torch.zeros(2, dtype=torch.long) if "Sequence" in loader else torch.zeros(2, 9, dtype=torch.long)
    labels = several.get(config.get("problem_type", ""), single)
    told = (
        {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
        if head == "span"
        else {"labels": labels}
    )
    loss = theirs(input_ids=tokens(2, 9), **told).loss
    assert loss.dim() == 0 and torch.isfinite(loss)


MARKED = {"mask": [{"type": "window", "size": 8}, "global_tokens"]}
OWN: dict[str, dict[str, Any]] = {
    "all at once": model(
        "encoder_decoder",
        layer={"shared": True, "feedforward": EXPERTS},
        encoder={"layer": MARKED},
        head="masked_lm",
    ),
    "performer": model(layer={"shared": True, "attention": {"type": "performer", "num_heads": 4}}, head="masked_lm"),
    "experts": model("decoder", layer={"shared": True, "feedforward": EXPERTS}, head="language_model"),
    "longformer": model(
        layer={"attention": {"type": "longformer", "num_heads": 4}, **MARKED},
        head="masked_lm",
    ),
    "prefix": model("decoder", mask="prefix", head="language_model"),
    "pair": model("encoder_decoder", head="masked_lm"),
    "dense head": model("decoder", head="masked_lm"),
    "marked pair": model(
        "encoder_decoder",
        encoder={"layer": MARKED},
        head="language_model",
    ),
    "layers that differ": model(
        "decoder",
        layers={"local": {"mask": {"type": "window", "size": 3}}, "global": {"position": "none"}},
        pattern=["local", "global"],
        head="language_model",
    ),
    "vectors": model(embedding={"type": "features", "d_input": 6}, head="hidden", vocab_size=None),
}


@pytest.mark.parametrize(
    "name", [name if name == "all at once" else pytest.param(name, marks=pytest.mark.slow) for name in OWN]
)
def test_what_has_no_family(name: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run", OWN[name])
    assert alike(run, tmp_path / "out").family_config is None
