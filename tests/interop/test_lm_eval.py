"""The adapter of lm-eval: its scores are those of the run, and those of lm-eval's own model on the exported folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import RunError, UsageError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.run import Run

from .test_export import LAYER, MODEL, decoder, trained

pytest.importorskip("lm_eval", reason="the adapter needs the extra eval")
from tfkit.interop.lm_eval.__main__ import main
from tfkit.interop.lm_eval.adapter import TfkitLM

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # of lm-eval's libraries
TEXT = "return the first value"
LIKE_GPT2 = {
    "position": "learned",
    "layer": {**LAYER, "residual": "pre_norm", "feedforward": {"type": "mlp", "d_ff": 48, "activation": "gelu_tanh"}},
    "embedding": {"type": "tokens", "dropout": 0.1},
}
PAIRS = [("return the ", "value"), ("a", " list of names"), ("x" * 70, "yes"), (" the end ", "of it")]


def asked(*arguments: Any) -> list[Any]:
    """Requests as lm-eval hands them over."""
    return [SimpleNamespace(args=each if isinstance(each, tuple) else (each,), task_name="t") for each in arguments]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("scored")
    (folder / "text").write_text(f"{TEXT}\n")
    test = {"type": "text", "files": str(folder / "text")}
    return trained(folder / "run", decoder(**LIKE_GPT2), test=test)


def test_a_continuation_scores_what_the_evaluation_says(run: Run) -> None:
    ((score, greedy),) = TfkitLM(run).loglikelihood(asked((TEXT[0], TEXT[1:])))
    assert score / len(TEXT[1:]) == pytest.approx(-run.evaluate("test")["loss"], abs=1e-5)
    assert not greedy
    written = run.candidates(TEXT, 4, logits=[], stop=[])[0][0]
    ((score, greedy),) = TfkitLM(run).loglikelihood(asked((TEXT, written.text)))
    assert score == pytest.approx(written.log_probability, abs=1e-5)
    assert greedy


def test_a_batch_scores_as_each_alone(run: Run) -> None:
    together, alone = TfkitLM(run), TfkitLM(run, batch_size=1)
    for one, other in zip(together.loglikelihood(asked(*PAIRS)), alone.loglikelihood(asked(*PAIRS)), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_long_text_is_scored_in_windows(run: Run) -> None:
    ids = run.tokenizer.encode(TEXT * 5)
    window = TfkitLM(run).max_length
    total, before = 0.0, [run.read([""])[0][0], *ids]
    for first in range(0, len(ids), window):
        count = min(window, len(ids) - first)
        read = torch.tensor([before[max(0, first + count - window) : first + count]])
        logits = run.model(read).logits[0, -count:].log_softmax(-1)
        total += logits.gather(1, torch.tensor(ids[first : first + count])[:, None]).sum().item()
    assert len(ids) > window
    assert TfkitLM(run).loglikelihood_rolling(asked(TEXT * 5)) == pytest.approx([total], abs=1e-4)


def test_a_pair_scores_its_target(tmp_path: Path) -> None:
    model = {key: value for key, value in MODEL.items() if key not in ("num_layers", "embedding")}
    model |= {"type": "encoder_decoder", "embedding": "tokens", "head": {"type": "language_model", "tied": True}}
    model |= {"encoder": {"num_layers": 1}, "decoder": {"num_layers": 1}}
    texts = {"type": "parallel_text", "source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    (tmp_path / "source").write_text("one two\n" * 8)
    (tmp_path / "target").write_text("eins zwei\n" * 8)
    run = trained(tmp_path / "run", model, "seq2seq", train=texts, valid=texts)
    target = run.tokenizer.encode("eins zwei")
    start = run.tokenizer.special_ids["start"]
    out = run.model(torch.tensor(run.read(["one two"])), decoder_input_ids=torch.tensor([[start, *target[:-1]]]))
    wanted = out.logits[0].log_softmax(-1).gather(1, torch.tensor(target)[:, None]).sum().item()
    found = TfkitLM(run).loglikelihood(asked(("one two", "eins zwei"), ("one", "eins")))
    assert found[0][0] == pytest.approx(wanted, abs=1e-5)
    assert TfkitLM(run).generate_until(asked(("one two", {"max_gen_toks": 5}))) == run.generate("one two", 5)
    with pytest.raises(UsageError, match="loglikelihood_rolling supports only decoders"):
        TfkitLM(run).loglikelihood_rolling(asked("one"))


def test_texts_end_before_a_stop_string(run: Run) -> None:
    model = TfkitLM(run)
    (whole,) = model.generate_until(asked(("return", {"max_gen_toks": 6})))
    assert whole == run.generate("return", 6, strategy="greedy", stop="end_token")[0]
    until = whole[3:5]
    found = model.generate_until(
        asked(("return", {"max_gen_toks": 6, "until": [until]}), ("the", {"max_new_tokens": 2}))
    )
    assert found == [whole[: whole.index(until)], run.generate("the", 2, strategy="greedy")[0]]
    drawn = {"max_gen_toks": 6, "do_sample": True, "temperature": 0.7, "top_k": 5}
    first, again = (torch.manual_seed(3) and model.generate_until(asked(*[("return", drawn)] * 4)) for _ in range(2))
    assert first == again
    assert len({whole, *first}) > 2


def test_the_exported_folder_scores_the_same(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="lm-eval's own model needs it")
    from lm_eval.models.huggingface import HFLM

    export_model(run, tmp_path / "out")
    ours = TfkitLM(run)
    # this run read joined texts, where an end token is before each; lm-eval takes the start token if there is one
    theirs = HFLM(str(tmp_path / "out"), device="cpu", prefix_token_id=ours.prefix_token_id, add_bos_token=False)
    requests = asked(*PAIRS, ("", "a name"))
    for one, other in zip(ours.loglikelihood(requests), theirs.loglikelihood(requests), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    texts = asked(TEXT, TEXT * 5)
    assert ours.loglikelihood_rolling(texts) == pytest.approx(theirs.loglikelihood_rolling(texts), abs=1e-4)
    requests = asked(("return", {"until": ["\n"], "max_gen_toks": 5}), ("the", {"until": ["\n"], "max_gen_toks": 5}))
    assert ours.generate_until(requests) == theirs.generate_until(requests)


def test_what_cannot_be_scored_is_refused(run: Run, tmp_path: Path) -> None:
    tokenizer = {"type": "character", "special_tokens": {"mask": "<mask>"}}
    reader = trained(
        tmp_path / "run", {"type": "encoder", **MODEL, "head": "masked_lm"}, "masked_lm", tokenizer=tokenizer
    )
    with pytest.raises(UsageError, match="lm-eval needs a model that continues texts"):
        TfkitLM(reader)
    with pytest.raises(UsageError, match="unknown argument 'runs'; use run=FOLDER"):
        TfkitLM(runs="x")
    with pytest.raises(UsageError, match="the run is missing; use run=FOLDER"):
        TfkitLM()
    with pytest.raises(RunError, match="no such folder"):
        TfkitLM(tmp_path / "nothing")
    with pytest.raises(UsageError, match="a continuation of 65 tokens cannot be scored; windows have 1 to 64"):
        TfkitLM(run).loglikelihood(asked(("a", "b" * 65)))
    with pytest.raises(
        UsageError, match="256 new tokens leave no room for a context within 64; set a smaller max_gen_toks"
    ):
        TfkitLM(run).generate_until(asked(("a", {"until": ["b"]})))
    with pytest.raises(UsageError, match="gen_kwargs: unknown option 'penalty'"):
        TfkitLM(run).generate_until(asked(("a", {"penalty": 2})))


@pytest.mark.slow
def test_the_command_measures_a_task_of_local_data(run: Run, tmp_path: Path) -> None:
    documents = [{"text": "return the ", "choices": ["value", "list"], "gold": gold} for gold in (0, 1)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    (tmp_path / "choices.yaml").write_text(
        "task: local_choices\ndataset_path: json\ntest_split: train\noutput_type: multiple_choice\n"
        f"dataset_kwargs: {{data_files: {tmp_path / 'data.jsonl'}}}\n"
        'doc_to_text: "{{text}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: gold\nmetric_list: [{metric: acc}]\n'
    )

    line = [sys.executable, "-m", "tfkit.interop.lm_eval", "--model", "tfkit", "--model_args", f"run={run.folder}"]
    line += ["--tasks", str(tmp_path / "choices.yaml"), "--output_path", str(tmp_path / "scores")]
    quiet = {
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(tfkit.__file__).parents[1]),
    }
    done = subprocess.run(line, env=os.environ | quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "scores").rglob("results*.json")
    assert json.loads(file.read_text())["results"]["local_choices"]["acc,none"] == 0.5


@pytest.mark.parametrize(
    ("tasks", "defaults"), [("FOLDER", False), ("FOLDER/a.yaml,b.yaml", False), ("FOLDER,piqa", True), ("piqa", True)]
)
def test_tasks_of_lm_eval_are_read_only_by_name(
    tasks: str, defaults: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **options: made.append(options))
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: sys.modules["lm_eval.tasks"].TaskManager())
    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "tfkit", "--tasks", tasks.replace("FOLDER", str(tmp_path))])
    assert main() == 0
    assert made == [{} if defaults else {"include_defaults": False}]


def test_the_command_reports_what_is_wrong_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: TfkitLM(tmp_path / "nothing"))
    assert main() == 2
    assert capsys.readouterr().err == f"tfkit: {tmp_path / 'nothing'}: no such folder\n"
