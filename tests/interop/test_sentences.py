"""`tfkit export --to sentence-transformers`: a folder whose vectors are those of `tfkit embed`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import DataError, UsageError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.run import Run
from tfkit.runs import kept as sentence_files

from ..sampling import each
from .made import command, model_folder, with_tokenizer
from .test_export import MODEL, decoder, trained

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


MODES = {"cls": "first", "lasttoken": "last", "mean": "mean", "max": "max"}
MODES |= {"mean_sqrt_len_tokens": "mean_sqrt", "weightedmean": "weighted_mean"}
ABOUT = {"prompts": {"query": "w5 w6 ", "document": ""}, "default_prompt_name": "query"}


def sentences(folder: Path, mode: str | None = None, *kinds: str, **files: Any) -> Path:
    """Write the files of sentence-transformers to a folder; `mode` as in its new files."""
    names = ("Transformer", "Pooling", *kinds)
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names) if number)]
    modules = [
        {"idx": number, "name": name, "type": f"sentence_transformers.models.{name}", "path": paths[number]}
        for number, name in enumerate(names)
    ]
    new = {"pooling_mode": mode, "include_prompt": True, "embedding_dimension": 32}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    written = {"modules": modules, "1_Pooling/config": new, "config_sentence_transformers": ABOUT}
    for name, content in (written | {"sentence_bert_config": {"max_seq_length": 16}} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_sentence_transformers_keeps_its_vectors(tmp_path: Path) -> None:
    folder = with_tokenizer(model_folder(tmp_path / "theirs", "bert"), template="<s> $A </s>")
    texts = ["w1 w2", "w3", "w1 w2 w3 " * 30]

    def by_hand(run: Run, mode: str) -> torch.Tensor:
        rows = []
        for text in texts:
            (ids,) = run.tokenizer.encode_batch([f"w5 w6 {text}"], template=True)
            ids = ids if len(ids) <= 16 else [*ids[:15], ids[-1]]
            with torch.no_grad():
                hidden = run.model(torch.tensor([ids])).hidden[0]
            ramp = torch.arange(1.0, len(ids) + 1)[:, None]
            rows.append(
                {
                    "cls": hidden[0], "lasttoken": hidden[-1], "mean": hidden.mean(0), "max": hidden.amax(0),
                    "mean_sqrt_len_tokens": hidden.sum(0) / len(ids) ** 0.5,
                    "weightedmean": (hidden * ramp).sum(0) / ramp.sum(),
                }[mode]
            )  # fmt: skip
        return torch.stack(rows)

    def check(mode: str, own: str, *kinds: str) -> None:
        config = {"word_embedding_dimension": 32, sentence_files.POOLINGS[own][1]: True}  # type: ignore[index]
        for old in ({}, {"1_Pooling/config": config}):
            made = import_model(str(sentences(folder, mode, *kinds, **old)), tmp_path / "run", force=True)
            run = tfkit.load_run(made.run)
            assert f"embed: pooling {own}, " in " ".join(made.notes)
            hand = by_hand(run, mode)
            hand = torch.nn.functional.normalize(hand, dim=-1) if kinds else hand
            torch.testing.assert_close(run.embed(texts), hand, rtol=0, atol=1e-5)
            form = () if old else ("--to", "sentence-transformers")
            assert command("export", made.run, tmp_path / "out", "--force", *form).exit_code == 0
            import_model(str(tmp_path / "out"), tmp_path / "again", force=True)
            torch.testing.assert_close(tfkit.load_run(tmp_path / "again").embed(texts), hand, rtol=0, atol=1e-5)
        same_vectors(run, tmp_path / "out", texts, None)

    each([(mode, own, *(["Normalize"] * (own != "max"))) for mode, own in MODES.items()], check)
    shown = command("show", tmp_path / "run").stdout
    assert "embed: pooling weighted_mean, normalized, at most 16 tokens, prompt query 'w5 w6 ' (default)" in shown
    run = tfkit.load_run(tmp_path / "run")
    assert not torch.equal(run.embed("w1", prompt=""), run.embed("w1", prompt="query"))
    torch.testing.assert_close(run.embed("w5 w6 w1", "first", prompt=""), run.embed("w1", "first"))
    with pytest.raises(UsageError, match="no prompt 'passage'; available: query"):
        run.embed("w1", prompt="passage")


def test_other_modules_of_sentence_transformers_are_refused(tmp_path: Path) -> None:
    folder = with_tokenizer(model_folder(tmp_path / "theirs", "bert"))

    def check(message: str, mode: Any = "mean", *kinds: str, **files: Any) -> None:
        with pytest.raises(DataError, match=message):
            import_model(str(sentences(folder, mode, *kinds, **files)), tmp_path / "run")

    dense = "Dense in '2_Dense', Normalize in '3_Normalize' is not supported; expected a Transformer in '', a Pooling"
    old = [{"type": "x.Transformer", "path": "0_Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}]
    check(dense, "mean", "Dense", "Normalize")
    check("Transformer in '0_Transformer'", modules=old)
    check(r"modules\.json: None in None, None in None", modules=[{}, 5])
    check(r"modules\.json: expected a list", modules={})
    check(r"pooling \['cls', 'mean'\] is not supported; expected one of mean, first", ["cls", "mean"])
    check(r"pooling \['other'\] is not supported", "other")
    check("include_prompt: false is not supported", **{"1_Pooling/config": {"include_prompt": False}})
    check("transformer_task 'fill-mask' is not supported", sentence_bert_config={"transformer_task": "fill-mask"})
    check("tokenizer_args .* is not supported", sentence_bert_config={"tokenizer_args": {"model_max_length": 8}})
    odd = {"prompts": ["x"], "default_prompt_name": {"a": 1}}
    check("default_prompt_name {'a': 1} is not supported", config_sentence_transformers=odd)
    check("max_seq_length '16' is not supported", sentence_bert_config={"max_seq_length": "16"})
    check("truncate_dim 8 is not supported; expected None", config_sentence_transformers={"truncate_dim": 8})
    check("truncation_side 'left' is not supported", tokenizer_config={"truncation_side": "left"})
    assert not (tmp_path / "run").exists()
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(DataError, match="no such file, but modules"):
        import_model(str(folder), tmp_path / "run")


@pytest.mark.full
@pytest.mark.usefixtures("modules")
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
