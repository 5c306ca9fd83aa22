"""T5 and its relatives whose output is the token table, or another tensor, and what their files say of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import nn

import tfkit
from tfkit.core.errors import DataError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import ImportedModel, import_model
from tfkit.interop.huggingface.verifying import verify

from .made import SIZE, T5, said
from .parity import randomise

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
GATED = {**T5, "num_layers": 1, "vocab_size": SIZE, "feed_forward_proj": "gated-gelu"}


def saved(folder: Path, family: str, own: bool = False) -> Path:
    """A model of theirs with an output of its own, or without."""
    config = getattr(transformers, f"{family}Config")(**GATED, tie_word_embeddings=False)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    if own:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    randomise(model, 0.15)
    model.save_pretrained(folder)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is own
    return folder


def tied(made: ImportedModel) -> bool:
    model = tfkit.load_run(made.run).model
    return model.head.output.weight is model.stack("encoder").embedding.tokens.weight  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("T5", False),
        ("UMT5", True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("T5", True), ("MT5", False), ("MT5", True), ("UMT5", False))
        ),
    ],
)
def test_the_output_is_what_the_files_hold(family: str, own: bool, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", family, own)
    made = import_model(str(theirs), tmp_path / "run")
    assert tied(made) is not own
    assert any("lm_head.weight differs from the token table" in note for note in made.notes) is own
    run = tfkit.load_run(made.run)
    assert verify(run, str(theirs)).equal
    exported = export_model(run, tmp_path / "back")
    assert exported.family_config is not None and exported.family_config.family.part_name == family.lower()
    assert verify(run, str(tmp_path / "back")).equal
    again = import_model(str(tmp_path / "back"), tmp_path / "again")
    assert tied(again) is not own


@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
def test_an_output_that_is_missing_is_named(family: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", family)
    said(theirs, tie_word_embeddings=False, scale_decoder_outputs=False)
    with pytest.raises(DataError, match=r"missing in the files: head\.output\.weight \(lm_head\.weight\)"):
        import_model(str(theirs), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_the_table_may_be_stored(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", "T5")
    tensors = load_file(theirs / "model.safetensors")
    tensors["lm_head.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, theirs / "model.safetensors", {"format": "pt"})
    assert tied(import_model(str(theirs), tmp_path / "run"))
