"""The small files of an imported model go out as they came in, through training too, unless the tokenizer changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import DataError, RunError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.run import Run

from .made import model_folder, with_tokenizer

pytestmark = pytest.mark.full

transformers = pytest.importorskip("transformers", reason='the proofs need transformers: pip install "tfkit[test]"')
SMALL = {
    "chat_template.jinja": b"{% for one in messages %}{{ one.content }}{% endfor %}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}\r\n",
    "added_tokens.json": b'{"auto_map": 1}',
    "tokenizer.model": bytes(range(256)),
    "merges.txt": b"#version: 0.2\nw 1\n",
    "special_tokens_map.json": json.dumps({"bos_token": "<s>", "eos_token": "</s>", "sep_token": "w1"}).encode(),
    "generation_config.json": json.dumps({"eos_token_id": [3, 7], "temperature": 0.6, "top_k": 7}).encode(),
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = with_tokenizer(model_folder(tmp_path_factory.mktemp("kept") / "theirs", "llama"), model_max_length=33)
    (folder / "additional_chat_templates").mkdir()
    for name, content in SMALL.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def imported(theirs: Path) -> Path:
    import_model(str(theirs), theirs.parent / "run")
    return theirs.parent / "run"


def tuned(source: Path, out: Path, **data: Any) -> Run:
    """Train a step from a run's weights."""
    (out.parent / "lines").write_text("w1 w2 w3 w4\n" * 4)
    recipe = {
        "tfkit": 1,
        "extends": str(source / "recipe.yaml"),
        "data": {
            "tokenizer": {"type": "file", "path": str(source / "tokenizer.json")},
            "train": {"type": "text", "files": str(out.parent / "lines")},
            "batch": {"size": 2},
            **data,
        },
        "objective": "causal_lm",
        "train": {"device": "cpu", "steps": 1, "samples": 0, "keep": "last", "init_from": str(source)},
    }
    file = out.with_suffix(".yaml")
    file.write_text(json.dumps(recipe))
    return tfkit.train(file, out=out, progress=False)


def check_out(theirs: Path, out: Path) -> None:
    """Raise unless the small files are those that came in."""
    for name, content in SMALL.items():
        found = (out / name).read_bytes()
        same = json.loads(found) == json.loads(content) if name.endswith(".json") else found == content
        assert same, name
    before, after = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (theirs, out))
    assert before == after
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "w1"}], tokenize=False) == "w1"


def test_import_and_export(theirs: Path, imported: Path, tmp_path: Path) -> None:
    export_model(tfkit.load_run(imported), tmp_path / "out")
    check_out(theirs, tmp_path / "out")
    import_model(str(tmp_path / "out"), tmp_path / "again")
    for name in SMALL:
        assert (tmp_path / "again" / "huggingface" / name).is_file()


def test_import_train_and_export(theirs: Path, imported: Path, tmp_path: Path) -> None:
    once = tuned(imported, tmp_path / "once")
    sums = (tmp_path / "once" / "SHA256SUMS").read_text()
    assert all(f"huggingface/{name}" in sums for name in SMALL)
    twice = tuned(once.folder, tmp_path / "twice")
    made = export_model(twice, tmp_path / "out")
    assert made.family_config is not None and made.family_config.head_class == "LlamaForCausalLM"
    check_out(theirs, tmp_path / "out")
    call = torch.tensor([[5, 6, 7]])
    theirs_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(theirs_model(call).logits, twice.model(call).logits, rtol=1e-4, atol=1e-4)
    (tmp_path / "twice" / "huggingface" / "tokenizer.model").write_bytes(b"other")
    with pytest.raises(RunError, match=r"tokenizer\.model: has changed since it was written"):
        export_model(twice, tmp_path / "refused")


def test_nothing_stale_goes_out_with_another_tokenizer(imported: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((imported / "tokenizer.json").read_text("utf-8"))
    vocabulary["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "other.json").write_text(json.dumps(vocabulary))
    run = tuned(imported, tmp_path / "run", tokenizer={"type": "file", "path": str(tmp_path / "other.json")})
    assert not (tmp_path / "run" / "huggingface").exists()
    export_model(run, tmp_path / "out")
    assert not {"chat_template.jinja", "tokenizer.model", "merges.txt"} & {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 3


def test_a_file_of_boundless_size_is_refused(theirs: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(model_folder(tmp_path / "theirs", "llama"))
    with (folder / "tokenizer.model").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(DataError, match=r"tokenizer\.model: has 268,435,457 bytes; the maximum"):
        import_model(str(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()
