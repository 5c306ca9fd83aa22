"""Adapters as peft's folders: the exported base with them computes what the run does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import UsageError
from tfkit.interop.huggingface.adapters import export_adapter
from tfkit.interop.huggingface.exporting import export_model
from tfkit.recipe.load import load_recipe
from tfkit.run import Run, train

SIZES = {"model.d_model": 16, "model.num_layers": 2, "model.vocab_size": "tokenizer", "model.max_length": 32}
TRAINED: dict[str, Any] = {
    "data": {
        "tokenizer": "word",
        "train": {"type": "docstrings", "limit": 8},
        "batch": {"size": 4, "length": 16},
    },
    "objective": {"type": "causal_lm", "block": 16},
    "train": {"steps": 3, "device": "cpu", "samples": 0, "schedule": {"type": "constant", "lr": 0.05}},
}


def run(tmp_path: Path, name: str, kind: str, **train_: Any) -> Run:
    heads = {"llama-2-7b": {"num_heads": 4, "num_kv_heads": 2}, "gpt2": {"num_heads": 4}}[kind]
    sizes = {f"model.layer.attention.{key}": value for key, value in heads.items()}
    more = {**TRAINED, "train": {**TRAINED["train"], **train_}}
    overrides = {**SIZES, **sizes, "model.layer.feedforward.d_ff": 24}
    return train(load_recipe({**load_recipe(kind).root.plain(), **more}, overrides), tmp_path / name, progress=False)


@pytest.fixture
def adapted(tmp_path: Path) -> Run:
    base = run(tmp_path, "base", "llama-2-7b")
    adapter = {"type": "lora", "rank": 2, "alpha": 6, "on": ["query", "value", "down"]}
    return run(tmp_path, "run", "llama-2-7b", adapter=adapter, init_from=str(base.folder), keep="last")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft of transformers
def test_peft_loads_the_adapter_and_computes_the_same(adapted: Run, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    export_model(tfkit.load_run(tmp_path / "base"), tmp_path / "theirs")
    folder = export_adapter(adapted, tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    ids = torch.randint(5, adapted.blueprint.last.vocab_size or 0, (2, 9))
    with torch.no_grad():
        plain = base(ids).logits
        wrapped = peft.PeftModel.from_pretrained(base, str(folder))
        logits, ours = wrapped(ids).logits, adapted.model(ids).logits
    assert float((plain - logits).abs().max()) > 1e-3
    torch.testing.assert_close(logits, ours, rtol=0, atol=2e-5)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 6.0, "CAUSAL_LM")
    assert len(config["target_modules"]) == 6 and "model.layers.1.mlp.down_proj" in config["target_modules"]


@pytest.mark.full
def test_the_merged_export_computes_the_same(adapted: Run, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export_model(adapted, tmp_path / "merged")
    ids = torch.randint(5, adapted.blueprint.last.vocab_size or 0, (2, 9))
    with torch.no_grad():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
        torch.testing.assert_close(theirs, adapted.model(ids).logits, rtol=0, atol=2e-5)


@pytest.mark.full
def test_what_peft_cannot_hold_is_refused(tmp_path: Path) -> None:
    base = run(tmp_path, "base", "gpt2")
    with pytest.raises(UsageError, match=r"base: has no low-rank adapter"):
        export_adapter(base, tmp_path / "out")
    fused = run(tmp_path, "fused", "gpt2", adapter="lora", init_from=str(base.folder))
    with pytest.raises(UsageError, match=r"'gpt2' has no separate projection for decoder\.layers\.0\.attention\.query"):
        export_adapter(fused, tmp_path / "out")
    more = {"type": "lora", "also": ["*norm*"]}
    also = run(tmp_path, "also", "gpt2", adapter=more, init_from=str(base.folder))
    with pytest.raises(UsageError, match=r"also trained parameters outside its adapter \(\*norm\*\); export it merged"):
        export_adapter(also, tmp_path / "out")
    assert not (tmp_path / "out").exists()
