"""The sentence encoder all-MiniLM-L6-v2, where its files are there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.interop.huggingface.importing import import_model

MINILM = os.environ.get("TFKIT_MINILM")  # its folder: config.json, tokenizer.json, model.safetensors
VALUES = os.environ.get("TFKIT_MINILM_VALUES")  # its outputs for a few sentences, computed elsewhere


@torch.no_grad()
def test_minilm_computes_the_known_values(tmp_path: Path) -> None:
    if not MINILM or not VALUES:
        pytest.skip("TFKIT_MINILM is the folder of all-MiniLM-L6-v2, TFKIT_MINILM_VALUES a file of its outputs")
    run = tfkit.load_run(import_model(MINILM, tmp_path / "minilm").run)
    assert sum(parameter.numel() for parameter in run.model.parameters()) == 22_713_216
    for item in json.loads(Path(VALUES).read_text())["items"]:
        assert run.read([item["text"]]) == [item["ids"]]
        hidden = run.model(torch.tensor([item["ids"]])).hidden[0]
        vector = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
        torch.testing.assert_close(hidden[0, :8], torch.tensor(item["last_hidden_first8_of_CLS"]), atol=1e-4, rtol=0)
        torch.testing.assert_close(vector[:8], torch.tensor(item["embedding_first8"]), atol=1e-4, rtol=0)
