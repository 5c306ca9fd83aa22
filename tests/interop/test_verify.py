"""`tfkit verify`: says equal where two models compute the same, and where they part where they do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tfkit
from tfkit.core.errors import DataError, RunError, UsageError
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.verifying import Difference, verify

from .made import command, model_folder, with_tokenizer

EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")
pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(model_folder(tmp_path_factory.mktemp("theirs") / "llama", "llama"))


@pytest.fixture(scope="module")
def run(theirs: Path) -> Path:
    import_model(str(theirs), theirs.parent / "run")
    return theirs.parent / "run"


def change(run: Path, to: Path, name: str) -> Path:
    """A copy of the run in which one tensor is another."""
    to.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (to / file.name).write_bytes(file.read_bytes())
    tensors = load_file(to / "model.safetensors")
    tensors[name] = tensors[name] + 0.5
    save_file(tensors, to / "model.safetensors")
    return to


def test_the_same_model_is_equal(run: Path, theirs: Path) -> None:
    result = command("verify", run, "--against", theirs)
    assert result.exit_code == 0, result.output
    for line in ("embedding", "layer 0", "layer 1", "hidden", "logits", "equal: no relative difference above 0.0001"):
        assert line in result.stdout
    assert "most likely token: equal at 96 of 96 positions" in result.stdout
    assert "input: 2 rows of 48 random tokens" in result.stdout


def test_another_weight_shows_where_it_first_matters(run: Path, theirs: Path, tmp_path: Path) -> None:
    other = change(run, tmp_path / "other", "decoder.layers.1.attention.query.weight")
    refused = command("verify", other, "--against", theirs)
    assert refused.exit_code == 2 and "model.safetensors: has changed since it was written" in refused.stderr
    result = command("verify", other, "--against", theirs, "--json", "--accept-changes")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    off = {one["place"]: one["relative"] > data["tolerance"] for one in data["differences"]}
    assert off == {"embedding": False, "layer 0": False, "layer 1": True, "hidden": True, "logits": True}
    assert data["equal"] is False
    assert data["top_token"]["of"] == 96
    shown = command("verify", other, "--against", theirs)
    assert (shown.exit_code, shown.stdout.splitlines()[-1].split(":")[0]) == (1, "not equal")
    assert command("verify", other, "--against", theirs, "--tolerance", "1e9").exit_code == 0


def test_a_text_is_read_by_both(run: Path, theirs: Path) -> None:
    verdict = verify(tfkit.load_run(run), str(theirs), text="w1 w2 w3")
    assert (verdict.input, verdict.predicted, verdict.equal, verdict.notes) == ("4 tokens of the text", 4, True, [])


def test_tokenizers_that_differ_are_told(run: Path, theirs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes((theirs / name).read_bytes())
    with_tokenizer(other, template="$A </s>")
    verdict = verify(tfkit.load_run(run), str(other), text="w1")
    assert verdict.notes == ["the tokenizers differ: [2, 6] in the run, [6, 3] in the folder"]
    assert verdict.equal


def test_a_text_needs_a_tokenizer_and_tokens(theirs: Path, tmp_path: Path) -> None:
    bare = model_folder(tmp_path / "gpt2", "gpt2", bos_token_id=None)
    import_model(str(bare), tmp_path / "bare")
    with pytest.raises(RunError, match="works on ids"):
        verify(tfkit.load_run(tmp_path / "bare"), str(bare), text="w1")
    with_tokenizer(bare, template="", bos_token=None)
    import_model(str(bare), tmp_path / "run")
    run = tfkit.load_run(tmp_path / "run")
    if run.read([""]) == [[]]:
        with pytest.raises(UsageError, match="the text has no tokens"):
            verify(run, str(bare), text="")


def test_another_architecture_is_not_equal(run: Path, tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other", "llama", num_hidden_layers=2)
    verdict = verify(tfkit.load_run(run), str(other))
    assert not verdict.equal
    assert verdict.notes == ["hidden states are not compared: the reference does not return one per layer"]
    small = model_folder(tmp_path / "small", "llama", vocab_size=20)
    result = command("verify", run, "--against", small)
    assert result.exit_code == 1 and "does not accept this run's inputs; is it the same model" in result.stderr


def test_more_logits_are_not_equal(run: Path, theirs: Path, tmp_path: Path) -> None:
    """Equal in all that is compared by numbers, a model with further tokens is another."""
    tensors = load_file(theirs / "model.safetensors")
    config = json.loads((theirs / "config.json").read_text())
    more = {name: torch.cat((tensors[name], tensors[name][:1])) for name in EMBEDDINGS if name in tensors}
    save_file(tensors | more, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 1}))
    result = command("verify", run, "--against", tmp_path)
    assert result.exit_code == 1, result.output
    assert "logits: [2, 48, " in result.stdout and "not equal: logits differs by inf" in result.stdout


def test_a_model_without_a_head_is_compared_by_its_states(theirs: Path, tmp_path: Path) -> None:
    config = json.loads((theirs / "config.json").read_text())
    base = tmp_path / "base"
    base.mkdir()
    tensors = load_file(theirs / "model.safetensors")
    kept = {name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}
    save_file(kept, base / "model.safetensors", {"format": "pt"})
    (base / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaModel"]}))
    import_model(str(base), tmp_path / "run")
    verdict = verify(tfkit.load_run(tmp_path / "run"), str(base))
    assert verdict.equal
    assert [one.place for one in verdict.differences] == ["embedding", "layer 0", "layer 1", "hidden"]
    assert verdict.predicted == 0


def test_an_encoder(tmp_path: Path) -> None:
    bert = model_folder(tmp_path / "bert", "bert")
    import_model(str(bert), tmp_path / "run")
    assert verify(tfkit.load_run(tmp_path / "run"), str(bert)).equal


def test_half_precision_is_compared_in_full(theirs: Path, tmp_path: Path) -> None:
    import_model(str(theirs), tmp_path / "half", dtype="bfloat16")
    run = tfkit.load_run(tmp_path / "half")
    verdict = verify(run, str(theirs))
    assert 1e-4 < max(one.relative for one in verdict.differences) < 0.5
    assert next(run.model.parameters()).dtype == torch.bfloat16


def test_code_of_a_folder_runs_only_when_trusted(run: Path, theirs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((theirs / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "code.Mine"}}))
    (other / "code.py").write_text("raise SystemExit('it ran')\n")
    result = command("verify", run, "--against", other)
    assert result.exit_code == 2
    assert "this model contains its own code; review it, then allow it with --trust" in result.stderr


def test_what_transformers_cannot_load(run: Path, theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((theirs / "config.json").read_bytes())
    with pytest.raises(DataError, match="transformers cannot load it: "):
        verify(tfkit.load_run(run), str(tmp_path))
    config = json.loads((theirs / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    with pytest.raises(DataError, match="the installed transformers has no class NoSuchModel"):
        verify(tfkit.load_run(run), str(tmp_path))


def test_without_transformers(run: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = command("verify", run, "--against", theirs)
    assert result.exit_code == 2
    assert 'pip install "huggingface-hub>=1" "transformers' in result.stderr


def test_what_is_not_finite_is_never_equal() -> None:
    wrong = Difference.of("logits", torch.tensor([float("nan"), 1.0]), torch.ones(2))
    assert wrong.relative == float("inf")
