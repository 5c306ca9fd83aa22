"""lm-eval measures exported decoders, by a task of local data, as interop/README.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.interop.huggingface.exporting import export_model

from .test_export import LAYER, decoder, trained

pytest.importorskip("lm_eval", reason="it measures")
pytestmark = pytest.mark.slow
TASK = (Path(tfkit.__file__).parent / "interop/README.md").read_text("utf-8").partition("```yaml\n")[2].partition("```")
OWN = {"layer": {**LAYER, "residual": "parallel"}}  # no family of transformers is built so


@pytest.mark.parametrize("more", [{}, OWN], ids=["of a family", "with its own code"])
def test_an_exported_decoder_is_measured(tmp_path: Path, more: dict[str, Any]) -> None:
    run = trained(tmp_path / "run", decoder(**more))
    export_model(run, tmp_path / "exported")
    documents = [{"text": "return the ", "choices": ["value", "list"], "gold": gold} for gold in (0, 1)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    (tmp_path / "mine.yaml").write_text(TASK[0])
    line = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--tasks", "mine.yaml", "--device", "cpu"]
    line += ["--model_args", "pretrained=exported,trust_remote_code=True", "--output_path", "scores"]
    quiet = {"HF_HOME": "home", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, cwd=tmp_path, env=os.environ | quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "scores").rglob("results*.json")
    assert json.loads(file.read_text())["results"]["mine"]["acc,none"] == 0.5
