"""Benchmarks at tiny sizes: they measure what they print, and compare equal models on equal devices."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.benchmarks import ctranslate, decoding, models, peers, products, rounds
from tests.benchmarks.__main__ import run
from tfkit.core.errors import RunError, UsageError

pytestmark = pytest.mark.full

TINY = {
    name: models.Case(decoding.Size(name, 2, 16, 2, 32, 100, type_), 2, 12)
    for name, type_ in (("gpt", "decoder"), ("bert", "encoder"), ("pair", "encoder_decoder"))
}


class Here:
    """A measured call without a process, which is quick."""

    def __init__(self, name: str, make: rounds.Make) -> None:
        self.call, self.end = make(), int
        self.supports = self.call is not None

    def ask(self, question: Callable[[rounds.Call], float]) -> float:
        return question(self.call)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a benchmark of tiny models in this process, and return what it prints."""
    monkeypatch.setattr(rounds, "MeasuredCall", Here)
    monkeypatch.setattr(rounds, "ENOUGH", 0.0)
    monkeypatch.setattr(products, "LARGE", 64)
    monkeypatch.setattr(products, "STREAMED", 1)
    monkeypatch.setattr(decoding, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(decoding, "SIZES", {name: case.size for name, case in TINY.items()})
    monkeypatch.setattr(models, "TRAINED", TINY)
    monkeypatch.setattr(models, "READ", {name: replace(case, trains=False) for name, case in TINY.items()})

    def output(line: str) -> str:
        run(line.split())
        return capsys.readouterr().out

    return output


def test_attention_costs_grow_with_the_length(measured: Callable[..., str]) -> None:
    line = "attention --d-model 16 --heads 2 --window 16 --lengths 256,512 --attentions window,performer"
    found = json.loads(measured(f"{line} --causal --backward --json"))["attentions"]
    assert list(found) == ["window", "performer"]
    for one in found.values():
        assert list(one["seconds"]) == list(one["peak_bytes"]) == ["256", "512"]
        assert 1.5 < one["doubling"]["peak_bytes"] < 2.3 and min(one["seconds"].values()) > 0
    assert "peak memory" in measured(line)
    with pytest.raises(UsageError, match="unknown attention 'ful'"):
        run(["attention", "--attentions", "ful"])


def test_decoding_compares_equal_texts(measured: Callable[..., str]) -> None:
    others = ["transformers", *["ctranslate2"] * (find_spec("ctranslate2") is not None)]
    line = f"decoding --models gpt,pair --new 3 --rounds 2 --batches 2 --against {','.join(others)}"
    rows = json.loads(measured(f"{line} --json"))
    own = ["tfkit", "tfkit int8", "tfkit bfloat16", "tfkit invariant", "weights alone"]
    assert [row["way"] for row in rows] == [*own, *others] * 2
    rows = [row for row in rows if row["ratio"] is not None]
    assert all(row["step_ms"] > 0 and row["ratios"][0] <= row["ratio"] <= row["ratios"][1] for row in rows)
    work = decoding.Work(TINY["gpt"].size, 2, 1, 4)
    model = decoding.build(work)
    best = [candidates[0] for candidates in decoding.decoding(model, work, scored=True)()]
    texts = [(list(one.ids), one.log_probability) for one in best]
    ctranslate.check(work, model, texts)
    (ids, score), second = texts
    for other, said in ((([*ids[:-1], 99], score), "tokens differ"), ((ids, score - 0.04), "log-probability differs")):
        with pytest.raises(RunError, match=f"prompt 1: CTranslate2's {said} from tfkit's"):
            ctranslate.check(work, model, [other, second])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["training --dropout 0.1", "forward --batches 2"])
def test_models_are_compared_with_other_libraries(what: str, measured: Callable[..., str]) -> None:
    line = f"{what} --models gpt,bert,pair --rounds 1 --against torch,transformers"
    rows = json.loads(measured(f"{line} --json"))
    ways = ("tfkit", "torch", "transformers")
    assert [(row["model"], row["way"]) for row in rows] == [(name, way) for name in TINY for way in ways]
    for row in rows:
        case = replace(TINY[row["model"]], trains=what[0] == "t", dropout=row["dropout"])
        assert row["mfu"] * row["product_flops_per_second"] == pytest.approx(case.flops() / row["ms"] * 1000)
        assert row.get("peak_bytes", 1) > 0
    assert "a large matrix product" in measured(line)


def test_a_measured_step_trains_and_an_engine_has_equal_logits() -> None:
    case = TINY["gpt"]
    model = models.build(case)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    models.step(case, model)()
    assert all(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    pytest.importorskip("onnxscript")
    with pytest.raises(RunError, match="the engine's logits differ from tfkit's"):
        peers.exported(case, model.eval(), lambda file: lambda inputs: model(**case.inputs()).logits + 1)


def test_operations_and_bytes_are_those_of_the_matrices() -> None:
    case, width, inner, vocab = TINY["gpt"], 16, 32, 100
    layer = 2 * (4 * width * width + 2 * case.length * width) + 4 * width * inner
    assert case.flops() == 3 * 24 * (2 * layer + 2 * width * vocab)
    weights = 2 * (4 * width * width + 2 * width * inner) + vocab * width
    assert [decoding.step_bytes(case.size, way) for way in ("tfkit", "ctranslate2-int8")] == [4 * weights, weights]


def test_products_of_all_ways_are_timed(measured: Callable[..., str]) -> None:
    rows = json.loads(measured("products --weights 24x40 --rows 4,128 --json"))
    assert [(row["product"], row["rows"]) for row in rows] == [("forward", 4), ("forward", 128), ("gradient", 128)]
    assert all(row["fastest"] == min(row["seconds"], key=row["seconds"].__getitem__) for row in rows)
    assert products.Shape(1, 50_000, 50_000).measured() == products.Shape(1, 50_000, 335)
    assert "gradient" in measured("products --weights 24x40 --rows 128")


def test_changes_keep_their_size_under_mup_alone(measured: Callable[..., str], tmp_path: Path) -> None:
    line = "coordinates width-transfer --variant mup --factors 1,8 --steps 3"
    rows = json.loads(measured(f"{line} --json --out {tmp_path / 'changes.svg'}"))
    ratios = {(row["parametrization"], row["part"]): row["ratios"]["8"] for row in rows}
    assert all(0.3 < ratio < 2.5 for (name, _), ratio in ratios.items() if name == "mup")
    assert max(ratio for (name, _), ratio in ratios.items() if name == "standard") > 2.5
    assert "decoder layer 1" in (tmp_path / "changes.svg").read_text()
    with pytest.raises(UsageError, match=r"model\.parametrization: needs a base"):
        run(["coordinates", "translate-numbers"])


@pytest.mark.slow
def test_calls_take_turns_in_their_processes() -> None:
    calls = {name: partial(partial, time.sleep, wait) for name, wait in (("a", 0.1), ("b", 0.2))}
    with rounds.measured_calls(calls) as running:
        times = rounds.alternate(running, 2)
        pids = {call.process.pid for call in running.values()}
    assert len(pids | {os.getpid()}) == 3 and not any(call.process.is_alive() for call in running.values())
    assert [len(one or ()) for one in times.values()] == [2, 2] and min(times["b"] or ()) >= 0.2
    with pytest.raises(RunError, match=r"^cannot measure a: ValueError: "):
        rounds.MeasuredCall("a", partial(int, "x"))
    with pytest.raises(RunError, match="the process that measures a ended"):
        rounds.MeasuredCall("a", partial(os._exit, 1))
