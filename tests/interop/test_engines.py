"""Other programs read exported folders, as interop/README.md says: CTranslate2's converter and lm-eval."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.interop.greedy import boundary_tokens, equal_prompts
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model

from .made import command, model_folder, with_tokenizer
from .test_export import LAYER, decoder, trained


def test_the_former_format_names_its_replacement(tmp_path: Path) -> None:
    result = command("export", "runs/x", tmp_path / "out", "--to", "ctranslate2")
    replacement = "`tfkit export RUN FOLDER`, then CTranslate2's own `ct2-transformers-converter --model FOLDER"
    assert result.exit_code == 2 and replacement in result.stderr, result.output


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_an_exported_run_is_converted_and_writes_the_same_tokens(family: str, tmp_path: Path) -> None:
    library = pytest.importorskip("ctranslate2", reason="its converter is run")
    from transformers import AutoTokenizer

    source = with_tokenizer(model_folder(tmp_path / "source", family), "$A </s>")
    run = tfkit.load_run(import_model(str(source), tmp_path / "run").run)
    exported, out = export_model(run, tmp_path / "exported").folder, str(tmp_path / "out")
    converter = [sys.executable, "-m", "ctranslate2.converters.transformers"]
    subprocess.run([*converter, "--model", str(exported), "--output_dir", out], check=True, capture_output=True)
    tokenizer, special, paired = AutoTokenizer.from_pretrained(exported), boundary_tokens(run), family == "t5"
    engine = (library.Translator if paired else library.Generator)(out, device="cpu")

    def write(ids: list[int], count: int) -> list[int]:
        read, search = [tokenizer.convert_ids_to_tokens(ids)], {"beam_size": 1, "end_token": special["ends"]}
        if paired:
            (result,) = engine.translate_batch(read, max_decoding_length=count, **search)
            return list(tokenizer.convert_tokens_to_ids(result.hypotheses[0]))
        (result,) = engine.generate_batch(read, max_length=count, include_prompt_in_result=False, **search)
        return list(result.sequences_ids[0])

    assert equal_prompts(run.model, special, write) == 20


TASK = (Path(tfkit.__file__).parent / "interop/README.md").read_text("utf-8").partition("```yaml\n")[2].partition("```")
OWN = {"layer": {**LAYER, "residual": "parallel"}}  # no family of transformers is built so


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, OWN], ids=["of a family", "with its own code"])
def test_an_exported_decoder_is_measured(tmp_path: Path, more: dict[str, Any]) -> None:
    pytest.importorskip("lm_eval", reason="it measures")
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
