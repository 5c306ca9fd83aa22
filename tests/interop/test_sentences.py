"""`tfkit export --to sentence-transformers`: a folder whose vectors are those of `tfkit embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import UsageError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.run import Run

from .made import command, model_folder, with_tokenizer
from .test_export import MODEL, decoder, modules, trained

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("sentences")
    import_model(str(with_tokenizer(model_folder(folder / "theirs", "bert"))), folder / "run")
    return tfkit.load_run(folder / "run")


def same_vectors(run: Run, folder: Path, texts: list[str], pooling: Any = "mean") -> None:
    library = pytest.importorskip("sentence_transformers", reason="the vectors are compared with the library's")
    model = library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    torch.testing.assert_close(torch.tensor(model.encode(texts)), run.embed(texts, pooling), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of the library
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_vectors_are_those_of_embed(bert: Run, tmp_path: Path, pooling: str) -> None:
    form = ("--to", "sentence-transformers", *(("--pooling", pooling) if pooling != "mean" else ()))
    result = command("export", bert.folder, tmp_path / "out", *form)
    assert result.exit_code == 0, result.output
    assert f'Load: sentence_transformers.SentenceTransformer("{tmp_path / "out"}")' in result.stdout
    same_vectors(bert, tmp_path / "out", ["w1 w2", "w3", "w1 " * 90], pooling)


@pytest.mark.full
@pytest.mark.usefixtures(modules.__name__)
@pytest.mark.filterwarnings("ignore")
def test_vectors_of_an_architecture_that_transformers_lacks(tmp_path: Path) -> None:
    tokenizer = {"type": "character", "special_tokens": {"mask": "<mask>"}}
    model = {"type": "encoder", **MODEL, "head": "masked_lm"}
    run = trained(tmp_path / "run", model, "masked_lm", tokenizer=tokenizer)
    assert export_model(run, tmp_path / "out", pooling="mean").family_config is None
    same_vectors(run, tmp_path / "out", ["return the value", "", "a list of " * 9, "the end"])


@pytest.mark.full
def test_an_export_replaces_all_of_an_earlier_one(bert: Run, tmp_path: Path) -> None:
    export_model(bert, tmp_path / "out")
    before = {path.name for path in (tmp_path / "out").iterdir()}
    export_model(bert, tmp_path / "out", force=True, pooling="first")
    added = {path.name for path in (tmp_path / "out").iterdir()} - before
    assert added == {"modules.json", "sentence_bert_config.json", "1_Pooling"}
    export_model(bert, tmp_path / "out", force=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == before


def test_only_encoders_of_texts_are_pooled(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", decoder())
    with pytest.raises(UsageError, match="sentence-transformers needs an encoder, and this run has a decoder"):
        export_model(run, tmp_path / "out", pooling="mean")
    recipe = tfkit.load_recipe({"tfkit": 1, "model": {"type": "encoder", **MODEL, "vocab_size": 20}})
    ids = tfkit.save(tfkit.build(recipe), recipe, None, tmp_path / "ids")
    with pytest.raises(UsageError, match="needs a tokenizer, and this run has none"):
        export_model(ids, tmp_path / "out", pooling="mean")
    result = command("export", run.folder, tmp_path / "out", "--pooling", "mean")
    assert result.exit_code == 2
    assert "--pooling is an option of --to sentence-transformers" in result.output
    assert not (tmp_path / "out").exists()
