"""Marian with two vocabularies, out and in again: weights, tokenizers of both sides, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_vocabularies import recipe
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.verifying import verify
from tfkit.recipe.load import load_recipe
from tfkit.run import Run, load_run, train

pytestmark = pytest.mark.full

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")

MARIAN = {
    "model.position": {"type": "sinusoidal", "layout": "halves"},
    "model.layer.dropout": 0.1,
    "model.embedding": {"type": "tokens", "dropout": 0.1, "scale": "sqrt_d_model"},
    "model.head": {"type": "language_model", "tied": True, "bias": "frozen"},
    "model.layer.residual": "post_norm",
    "model.max_length": 32,
}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "source_start"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("marian")
    changed: dict[str, Any] = {**MARIAN, "objective.source_start": request.param}
    return train(load_recipe(recipe(folder, **changed)), folder / "run", progress=False)


@pytest.mark.full
def test_it_goes_out_as_marian_and_comes_in_again(run: Run, tmp_path: Path) -> None:
    exported = export_model(run, tmp_path / "out")
    assert exported.family_config is not None and exported.family_config.family.part_name == "marian"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    sizes = (config["vocab_size"], config["decoder_vocab_size"])
    assert sizes == run.tokenizer.sizes and config["share_encoder_decoder_embeddings"] is False
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    reads = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    writes = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "out" / "tokenizer.target.json"))
    ids = reads("two cats", return_tensors="pt")["input_ids"]
    assert ids.tolist() == run.read(["two cats"])
    decoder_ids = torch.tensor([[run.tokenizer.special_ids["start"], *run.tokenizer.encode("zwei Katzen")]])
    assert writes.encode("zwei Katzen", add_special_tokens=False) == run.tokenizer.encode("zwei Katzen")
    with torch.no_grad():
        ours = run.model(input_ids=ids, decoder_input_ids=decoder_ids).logits
        torch.testing.assert_close(theirs(input_ids=ids, decoder_input_ids=decoder_ids).logits, ours)
        found = theirs.generate(ids, max_new_tokens=5, num_beams=1, do_sample=False)[0].tolist()
    assert run.generate("two cats", max_new_tokens=5) == [run.tokenizer.decode(found)]
    made = import_model(str(tmp_path / "out"), tmp_path / "back")
    assert made.family == "marian"
    back = load_run(tmp_path / "back")
    assert back.tokenizer.sizes == run.tokenizer.sizes
    assert back.read(["two cats"]) == run.read(["two cats"])
    assert back.generate("two cats", max_new_tokens=5) == run.generate("two cats", max_new_tokens=5)
    for name in ("tokenizer.source.json", "tokenizer.target.json"):
        assert (tmp_path / "back" / name).is_file()
    export_model(back, tmp_path / "again")
    again = [json.loads((tmp_path / folder / "tokenizer.target.json").read_text()) for folder in ("out", "again")]
    assert again[0]["model"] == again[1]["model"]


def test_verify_reads_the_text_as_they_do(run: Run, tmp_path: Path) -> None:
    export_model(run, tmp_path / "out")
    assert not verify(run, str(tmp_path / "out"), text="a cow").notes
