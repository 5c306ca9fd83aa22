"""`tfkit bench attention`: what is measured, and that memory grows with the length and not with its square."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pretend import pretending
from tfkit.cli.main import main
from tfkit.core.bounds import WRITTEN
from tfkit.core.errors import RunError, UsageError
from tfkit.core.extras import installing
from tfkit.functional import rule
from tfkit.interop.bench import cases, ctranslate, peers
from tfkit.interop.bench.decoders import DECODERS
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports import bench_decoding as bench_decoding_module
from tfkit.reports import bench_products, rounds
from tfkit.reports.bench import (
    DEFAULT,
    LEAST,
    MOST,
    BenchSetting,
    Measured,
    _quickest,
    _seconds,
    growth,
    layers,
    measure,
)
from tfkit.reports.bench_decoding import LENGTH, PROMPT, Size, Work, build, decoding, recipe, step_bytes
from tfkit.reports.bench_products import ProductShape

pytestmark = pytest.mark.full

SMALL = ["--d-model", "16", "--heads", "2", "--window", "16"]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "attention", *SMALL, *arguments])


def test_a_table_of_time_and_one_of_memory() -> None:
    result = bench("--lengths", "64,128", "--attentions", "full,window")
    assert result.exit_code == 0, result.output
    assert "peak memory" in result.output and "doubling" in result.output
    assert [line.split()[0] for line in result.output.splitlines() if line[:6] in ("full  ", "window")] == [
        "full", "window", "full", "window",
    ]  # fmt: skip


def test_the_same_as_data() -> None:
    result = bench("--lengths", "64,128,256", "--attentions", "performer", "--json", "--causal", "--backward")
    data = json.loads(result.stdout)
    found = data["attentions"]["performer"]
    assert (data["d_model"], data["causal"], data["backward"], data["window"]) == (16, True, True, 16)
    assert list(found["seconds"]) == list(found["peak_bytes"]) == ["64", "128", "256"]
    assert all(value > 0 for key in ("seconds", "peak_bytes") for value in found[key].values())
    assert 1.5 < found["doubling"]["peak_bytes"] < 2.3


def test_grouped_heads_share_keys_equally() -> None:
    shared = [layers(BenchSetting(num_heads=heads))["grouped"]["attention"]["num_kv_heads"] for heads in (2, 8, 9, 27)]
    assert shared == [1, 2, 1, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attentions", "fulll"), "linear, lstm, gru, rnn, fourier; did you mean 'full'?"),
        (("--attentions", "longformer", "--causal"), "unknown causal attention 'longformer'; available: full, "),
        (("--lengths", "64,many"), "expected a whole number from 1 to 2,147,483,648, got 'many'"),
        (("--lengths", ","), "expected at least one value"),
        (
            ("--lengths", "64", "--heads", "3", "--attentions", "full"),
            "tfkit: --heads: 3 heads do not divide --d-model 16;",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2 and said in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    "name", [name if name in ("full", "window") else pytest.param(name, marks=pytest.mark.slow) for name in DEFAULT]
)
@pytest.mark.slow
def test_memory_grows_with_the_length(name: str) -> None:
    setting = BenchSetting(d_model=32, num_heads=2, window=32)
    found = list(measure([name], [2048, 4096, 8192], setting))
    doubling = growth(found, lambda one: one.peak_bytes)
    assert doubling is not None and 1 < doubling <= 2.3, found
    square = found[-1].length ** 2
    assert found[-1].peak_bytes < square, "a length x length tensor, even of bytes, would be as large"


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_every_layer_can_be_measured(causal: bool) -> None:
    setting = BenchSetting(d_model=8, num_heads=2, window=4, causal=causal, backward=True)
    found = list(measure(list(layers(setting)), [16], setting))
    assert [one.attention for one in found] == list(layers(setting)) and all(one.peak_bytes > 0 for one in found)


def test_the_lengths_take_turns_until_their_times_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disturbed call is made again: 20 is slow but for its tenth and its twelfth call, 10 is steady."""
    order: list[int] = []
    calm = {10: [0.1] * MOST, 20: [0.4, 0.5, 0.6, 0.7, 0.8, 0.45, 0.55, 0.65, 0.75, 0.2, 0.9, 0.201, 0.1]}

    def seconds(call: Callable[[], None], device: str) -> float:
        call()
        return calm[order[-1]][order.count(order[-1]) - 1]

    monkeypatch.setattr("tfkit.reports.bench._seconds", seconds)
    found = _quickest({length: partial(order.append, length) for length in calm}, "cpu")
    assert found == {10: 0.1, 20: 0.2}
    assert order == [10, 20] * LEAST + [20] * 3


def test_a_time_that_never_settles_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2.0**-number for number in range(MOST)])
    monkeypatch.setattr("tfkit.reports.bench._seconds", lambda call, device: next(times))
    assert _quickest({10: lambda: None}, "cpu") == {10: 2.0 ** (1 - MOST)}


def test_on_one_thread_other_work_takes_no_time() -> None:
    with threads(1):
        assert _seconds(lambda: time.sleep(0.2), "cpu") < 0.1
    with threads(2):
        assert _seconds(lambda: time.sleep(0.2), "cpu") >= 0.2


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


def test_growth_is_the_cost_of_doubling_between_any_lengths() -> None:
    found = [Measured("full", length, length**2.0, 0) for length in (100, 200, 800)]
    assert growth(found, lambda one: one.seconds) == pytest.approx(4)
    assert growth(found[:1], lambda one: one.seconds) is None


DOCUMENT = Path(__file__).parents[2] / "tfkit" / "generation" / "README.md"
DOCUMENTED = re.findall(
    r"(?m)^\$ tfkit (bench (?:decoding|training|forward) .*)$", DOCUMENT.read_text(encoding="utf-8")
)


@pytest.mark.slow
@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_documented_commands_measure(command: str) -> None:
    """With the libraries that are here, and briefly."""
    words = command.split()
    place = words.index("--against") + 1
    here = [name for name in words[place].split(",") if importlib.util.find_spec(name.replace("-", "_"))]
    if not here:
        pytest.skip("there is no library to compare with")
    words[place] = ",".join(here)
    short = ["--new", "2"] if "decoding" in words else []
    result = CliRunner().invoke(main, [*words, *short, "--rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert {"tfkit", *here} <= {row["way"] for row in json.loads(result.stdout)}


class Here:
    """A measured call without a process, which is quick."""

    def __init__(self, name: str, make: rounds.Make) -> None:
        self.call = make()
        self.supports = self.call is not None

    def ask(self, question: Callable[[rounds.Call], float]) -> float:
        return question(self.call) if self.call is not None else math.nan

    def end(self) -> None: ...


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MeasuredCall", Here)
    monkeypatch.setattr(bench_products, "LARGE", 64)
    monkeypatch.setattr(bench_decoding_module, "READ_BYTES", 1 << 16)


def spun(seconds: float) -> rounds.Call:
    return partial(time.sleep, seconds)


def killed() -> rounds.Call:
    os._exit(1)


def refused() -> rounds.Call:
    raise UsageError("there is none")


def failed() -> rounds.Call:
    raise ValueError("wrong")


def too_large() -> rounds.Call:
    torch.empty(2**62, dtype=torch.uint8)
    raise AssertionError


def state(pid: int | str | None) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_each_call_has_a_process_which_stands_still_while_another_is_measured() -> None:
    with rounds.measured_calls({"a": partial(spun, 0.1), "b": partial(spun, 0.2)}) as calls:
        if sys.platform == "linux":
            eventually(lambda: all(state(call.process.pid) == "T" for call in calls.values()))
        times = rounds.alternate(calls, 2)
        pids = {call.ask(process_of) for call in calls.values()}
    assert len(pids | {os.getpid()}) == 3
    assert {name: len(seconds or ()) for name, seconds in times.items()} == {"a": 2, "b": 2}
    assert min(times["a"] or ()) >= 0.1 and min(times["b"] or ()) >= 0.2
    assert not any(call.process.is_alive() for call in calls.values())


def process_of(call: rounds.Call) -> int:
    return os.getpid()


KILLED = """
import functools, os, signal, sys, time
from tfkit.reports import bench_decoding as bench_decoding_module
from tfkit.reports import bench_products, rounds

if __name__ == "__main__":
    with rounds.measured_calls({name: functools.partial(functools.partial, time.sleep, 0) for name in "ab"}) as calls:
        print(*(call.process.pid for call in calls.values()), flush=True)
        os.kill(os.getpid(), signal.Signals[sys.argv[1]])
        time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped on Linux only")
@pytest.mark.parametrize("sent", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_no_stopped_process_remains_when_the_parent_is_killed(sent: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    ran = subprocess.run([sys.executable, tmp_path / "killed.py", sent], capture_output=True, text=True, timeout=60)
    pids = ran.stdout.split()
    assert len(pids) == 2, ran.stderr
    eventually(lambda: all(state(pid) in ("ended", "Z") for pid in pids))


def test_what_a_process_refuses_or_its_end_is_said() -> None:
    with pytest.raises(UsageError, match="there is none"):
        rounds.MeasuredCall("a", refused)
    with pytest.raises(RunError, match=r"^cannot measure a: ValueError: wrong$"):
        rounds.MeasuredCall("a", failed)
    with pytest.raises(RunError, match=r"^cannot measure tfkit: out of memory: .*can't allocate memory"):
        rounds.MeasuredCall(rounds.OWN, too_large)
    with pytest.raises(RunError, match="the process that measures a ended; there may be too little memory"):
        rounds.MeasuredCall("a", killed)
    with rounds.measured_calls({"a": partial(spun, 0)}) as calls:
        calls["a"].process.kill()
        with pytest.raises(RunError, match="the process that measures a ended"):
            calls["a"].ask(rounds.timed)
        calls["a"].process.join()
        with pytest.raises(RunError, match="the process that measures a ended"):
            calls["a"].ask(rounds.timed)


def test_a_process_ends_in_order_or_by_a_kill() -> None:
    with rounds.measured_calls({"idle": partial(spun, 0), "busy": partial(spun, 60)}) as calls:
        for call in calls.values():
            call._signal(signal.SIGCONT)
        calls["busy"].pipe.send(rounds.timed)
        calls["idle"].pipe.close()
        calls["idle"].process.join(60)  # on a busy machine longer than it would be waited for
    assert [call.process.exitcode for call in calls.values()] == [0, -signal.SIGKILL]


def bench_decoding(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "decoding", "--new", "2", "--rounds", "2", "--batches", "1", *arguments])


def test_decoding_is_measured_beside_itself_in_int8_and_what_its_weights_take(here: None) -> None:
    rows = json.loads(bench_decoding("--models", "pair", "--json").stdout)
    assert [(row["model"], row["beams"], row["way"]) for row in rows] == [
        ("pair", 1, way) for way in ("tfkit", "tfkit int8", "tfkit bfloat16", "weights alone")
    ]  # fmt: skip
    assert all(row["ratio"] == 1 for row in rows if row["way"] == "tfkit")
    rows = [row for row in rows if row["way"] != "tfkit bfloat16" or row["ratio"] is not None]
    assert all(row["ratios"][0] <= row["ratio"] <= row["ratios"][1] and row["step_ms"] > 0 for row in rows)


def test_decoding_as_a_table_says_what_cannot_be_compared(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECODERS, "litgpt", lambda work, model: None)
    result = bench_decoding("--models", "small", "--against", "litgpt")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["small", "1", "1", "litgpt", "-", "-", "-", "-", "-"] in lines
    (own,) = [line for line in lines if line[3:4] == ["tfkit"] and "int8" not in line and "bfloat16" not in line]
    assert own[7] == "1.00x" and float(own[6].rstrip("%")) > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("decoding", "--models", "smal"), "unknown model 'smal'; available: small, gpt2, pair; did you mean 'small'?"),
        (("decoding", "--against", "fairseq"), f"unknown library 'fairseq'; available: {', '.join(DECODERS)}"),
        (("training", "--against", "openvino"), "unknown library 'openvino'; available: transformers, torch"),
        (("training", "--models", "x"), "unknown model 'x'; available: gpt, gpt50257, bert, bert-base, gpt2, pair"),
        (("forward", "--against", "onnxruntim"), "onnxruntime, openvino; did you mean 'onnxruntime'?"),
        (("decoding", "--new", "993"), "expected a whole number from 1 to 992, got '993'"),
        (("decoding", "--rounds", "0"), "expected a whole number from 1 to 2,147,483,648, got '0'"),
        (("forward", "--batches", "1,-1"), "got '-1'"),
        (("training", "--dropout", "0,nan"), "expected a finite number, got 'nan'"),
        (("training", "--dropout", "0,1"), "1.0 is not in the range 0<=x<1"),
        (("training", "--dropout", "0,x"), "'x' is not a valid float"),
        (("training", "--device", "cuda:9"), "--device: cuda:9 is not available; torch sees"),
        (("decoding", "--device", "cuda:9"), "--device: cuda:9 is not available; torch sees"),
        (("products", "--weights", "768"), "expected a whole number from 1 to 268,435,456, got ''"),
        (("products", "--weights", "4x0"), "expected a whole number from 1 to 268,435,456, got '0'"),
        (("products", "--rows", "0"), "expected a whole number from 1 to 2,147,483,648, got '0'"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 2 and said in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("which", "known"), [("decoding", DECODERS), ("training", peers.TRAINERS), ("forward", peers.READERS)]
)
def test_the_help_names_the_libraries(which: str, known: Mapping[str, object]) -> None:
    words = " ".join(CliRunner().invoke(main, ["bench", which, "--help"]).output.split())
    assert f"comma-separated: {', '.join(known)}." in words.replace("comma- separated", "comma-separated")


def test_a_text_fits_the_positions_of_the_models() -> None:
    assert PROMPT + WRITTEN.most == LENGTH


TINY = {
    name: cases.BenchCase(Size(name, 2, 16, 2, 32, 100, type_), 2, 12)
    for name, type_ in (("gpt", "decoder"), ("bert", "encoder"), ("pair", "encoder_decoder"))
}


@pytest.fixture
def tiny(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "TRAINED", TINY)
    monkeypatch.setattr(cases, "READ", {name: replace(case, trains=False) for name, case in TINY.items()})
    monkeypatch.setattr("tfkit.reports.bench_decoding.SIZES", {name: case.size for name, case in TINY.items()})


@pytest.mark.parametrize(
    ("which", "name", "module", "extra"),
    [
        ("decoding", "x-transformers", "x_transformers", "bench"),
        ("decoding", "litgpt", "litgpt", "litgpt"),
        ("decoding", "ctranslate2", "ctranslate2", "bench"),
        ("decoding", "ctranslate2", "transformers", "bench"),
        ("training", "transformers", "transformers", "bench"),
        ("forward", "onnxruntime", "onnxruntime", "bench"),
        ("forward", "openvino", "openvino", "bench"),
    ],
)
def test_a_missing_library_is_named_with_what_installs_it(
    tiny: None, monkeypatch: pytest.MonkeyPatch, which: str, name: str, module: str, extra: str
) -> None:
    if name == "ctranslate2" != module:
        pytest.importorskip(name)  # which is missed before
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(main, ["bench", which, "--models", "gpt", "--against", name])
    assert result.exit_code == 2
    message = f"this comparison needs the package {module}: {installing(extra)}"
    assert message in " ".join(result.stderr.split())


class Embedded(TorchDispatchMode):
    """Lists the shapes of the ids whose embeddings are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.embedding.default:
            self.shapes.append(tuple(args[1].shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gpt", "pair"])
def test_transformers_decodes_with_a_cache(name: str) -> None:
    pytest.importorskip("transformers")
    work = Work(TINY[name].size, 2, 1, 4)
    call = DECODERS["transformers"](work, build(work))
    with Embedded() as embedded:
        assert call is not None
        call()
    read = [shape[-1] for shape in embedded.shapes]  # a prompt or a source once, then one token a step
    assert max(read) == read[0] == PROMPT and set(read) == {1, PROMPT} and PROMPT not in read[2:]


def test_decoding_is_measured_beside_ctranslate2(tiny: None) -> None:
    pytest.importorskip("ctranslate2")
    ways = ["ctranslate2", "ctranslate2-int8"]
    result = bench_decoding("--models", "gpt,pair", "--beams", "1,2", "--against", ",".join(ways), "--json")
    assert result.exit_code == 0, result.output
    rows = [row for row in json.loads(result.stdout) if row["way"] in ways]
    assert [(row["model"], row["beams"], row["way"]) for row in rows] == [
        (model, beams, way) for model in ("gpt", "pair") for beams in (1, 2) for way in ways
    ]
    assert all(row["step_ms"] > 0 and row["ratio"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["gpt2 --batches 1,2", "pair --batches 1,2 --beams 1,4"])
def test_the_common_sizes_are_measured_beside_ctranslate2(words: str) -> None:
    pytest.importorskip("ctranslate2")
    result = bench_decoding("--models", *words.split(), "--against", "ctranslate2,ctranslate2-int8", "--json")
    assert result.exit_code == 0, result.output


def test_an_engine_that_writes_something_else_is_refused() -> None:
    work = Work(TINY["gpt"].size, 2, 1, 4)
    model = build(work)
    best = [candidates[0] for candidates in decoding(model, work, scored=True)()]
    texts = [(list(one.ids), one.log_probability) for one in best]
    ctranslate._check(work, model, texts)
    (ids, score), first = texts[1], texts[0]
    with pytest.raises(RunError, match=r"^gpt, prompt 2: CTranslate2's tokens differ from tfkit's$"):
        ctranslate._check(work, model, [first, ([*ids[:-1], ids[-1] + 1], score)])
    with pytest.raises(RunError, match=r"^gpt, prompt 2: .* log-probability differs from tfkit's by 0\.01 per token$"):
        ctranslate._check(work, model, [first, (ids, score - 0.04)])


def test_steps_of_training_are_measured_beside_other_libraries(tiny: None) -> None:
    words = ["--models", "gpt,bert,pair", "--dropout", "0,0.1", "--against", "transformers,torch", "--rounds", "2"]
    result = CliRunner().invoke(main, ["bench", "training", *words, "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["model"], row["dropout"], row["way"]) for row in rows] == [
        (model, dropout, way)
        for model in ("gpt", "bert", "pair")
        for dropout in (0, 0.1)
        for way in ("tfkit", "transformers", "torch")
    ]
    assert all(row["ms"] > 0 and row["ratios"][0] <= row["ratio"] <= row["ratios"][1] for row in rows)
    assert all(row["peak_bytes"] > 0 for row in rows)


def test_the_memory_of_a_step_is_printed(tiny: None) -> None:
    result = CliRunner().invoke(main, ["bench", "training", "--models", "bert", "--dropout", "0", "--rounds", "1"])
    heads, row = (line.split() for line in result.output.splitlines() if line.startswith(("model", "bert")))
    assert heads[-6:] == ["MFU", "peak", "MB", "x", "tfkit", "range"] and float(row[-3]) >= 0
    assert "gradients included" in result.output and "a large matrix product" in result.output


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("name", TINY)
def test_the_operations_of_a_step_are_those_of_its_matrices(name: str, trains: bool) -> None:
    case = replace(TINY[name], trains=trains)
    tokens, width, inner, vocab = case.rows * case.length, 16, 32, 100
    predicted = int((case.labels() >= 0).sum()) if trains else tokens
    attention = 2 * (4 * width * width + 2 * case.length * width)
    layer, head = attention + 2 * 2 * width * inner, 2 * width * vocab
    stacks = 2 * layer + 2 * (layer + attention) if name == "pair" else 2 * layer
    if name == "bert":
        head += 2 * width * width  # the layer before the logits
    assert case.flops() == (3 if trains else 1) * (tokens * stacks + predicted * head)


@pytest.mark.parametrize("way", ["tfkit", "transformers", "torch"])
@pytest.mark.parametrize("trains", [True, False])
def test_models_and_batches_are_on_the_device(way: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "transformers":
        pytest.importorskip(way)
    with pretending(monkeypatch) as device:
        case = replace(TINY["gpt"], device="cuda:0", trains=trains)
        call = cases._own(case) if way == "tfkit" else peers.TRAINERS[way](case, cases._build(case))
        call()
        assert device.holds(case.ids())
    assert not device.mixed


@pytest.mark.parametrize("way", ["tfkit", "transformers", "x-transformers"])
def test_decoding_is_on_the_device(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(way.replace("-", "_"))
    with pretending(monkeypatch) as device:
        work = Work(TINY["gpt"].size, 2, 1, 4, "cuda:0")
        call = decoding(build(work), work) if way == "tfkit" else DECODERS[way](work, build(work))
        assert call is not None
        call()
    assert not device.mixed


def test_the_share_of_the_rate_of_a_large_product(tiny: None) -> None:
    words = ["--models", "gpt,pair", "--rounds", "1", "--precision", "bfloat16", "--json"]
    for which in ("training", "forward"):
        result = CliRunner().invoke(main, ["bench", which, *words])
        assert result.exit_code == 0, result.output
        for row in json.loads(result.stdout):
            case = replace(TINY[row["model"]], rows=row["rows"], trains=which == "training", dropout=row["dropout"])
            rate = row["mfu"] * row["product_flops_per_second"]
            assert rate == pytest.approx(case.flops() / (row["ms"] / 1000))


def test_the_bytes_of_a_step_are_those_of_its_matrices() -> None:
    size, width, inner, vocab = TINY["pair"].size, 16, 32, 100
    weights = 2 * (4 * width * width + 2 * width * width + 2 * width * inner) + vocab * width
    found = {name: step_bytes(size, name) for name in ("tfkit", "tfkit int8", "tfkit bfloat16", "ctranslate2-int8")}
    assert found == {
        "tfkit": 4 * weights, "tfkit int8": weights, "tfkit bfloat16": 2 * weights, "ctranslate2-int8": weights,
    }  # fmt: skip


def test_engines_are_compared_on_a_cpu_in_float32(tiny: None) -> None:
    pytest.importorskip("openvino")
    words = ["--models", "gpt", "--against", "openvino", "--precision", "bfloat16"]
    result = CliRunner().invoke(main, ["bench", "forward", *words])
    assert result.exit_code == 2 and "are compared on a CPU and in float32 only" in result.stderr


def test_the_smallest_weight_is_measured_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_products, "ENOUGH", 0.0)
    made, make = [], bench_products._made
    monkeypatch.setattr(bench_products, "_made", lambda *how: made.append(how) or make(*how))
    result = CliRunner().invoke(main, ["bench", "products", "--weights", "1x1,1x9", "--rows", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)) == 2 and len(made) <= 2 * 5 * bench_products.COPIES


def test_the_ways_to_multiply_are_timed_and_nothing_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bench_products, "STREAMED", 1)
    words = ["bench", "products", "--weights", "24x40", "--rows", "4,128"]
    rows = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    assert f"rule {rule.rule_name()}" in shown.output
    lines = [line.split() for line in shown.output.splitlines() if line.startswith(("forward", "gradient "))]
    assert [[*line[:4], line[-1]] for line in lines] == [
        [row["product"], *(str(row[key]) for key in ("width", "out", "rows")), row["used"]] for row in rows
    ]
    assert all(row["fastest"] == min(row["seconds"], key=row["seconds"].__getitem__) for row in rows)
    assert not (tmp_path / "cache").exists()
    forced = CliRunner(env={"TFKIT_PRODUCTS": "reordered"}).invoke(main, [*words, "--json"])
    assert [row["used"] for row in json.loads(forced.stdout)] == ["reordered", "onednn", "onednn"]
    unknown = CliRunner(env={"TFKIT_PRODUCTS": "blas"}).invoke(main, words)
    assert unknown.exit_code == 2 and "TFKIT_PRODUCTS must be mkl" in unknown.stderr


@pytest.mark.parametrize(
    ("shape", "measured"),
    [
        (ProductShape(1000, 768, 768), ProductShape(1000, 768, 768)),
        (ProductShape(100_000, 768, 3072), ProductShape(910, 768, 3072)),
        (ProductShape(1, 50_000, 50_000), ProductShape(1, 50_000, 335)),
        (ProductShape(9, 200_000, 4096, transposed=True), ProductShape(9, 4096, 4096, transposed=True)),
        (ProductShape(0, 4, 4), ProductShape(1, 4, 4)),
        (ProductShape(1, 10**9, 1), ProductShape(1, 1 << 24, 1)),
        (ProductShape(1, 17_000_000, 17_000_000), ProductShape(1, 1 << 24, 1)),
    ],
)
def test_measured_shapes_are_bounded(shape: ProductShape, measured: ProductShape) -> None:
    assert shape.measured() == measured
    assert shape.measured().measured() == measured


def test_a_measurement_on_a_busy_machine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_products, "LONGEST", 0.0)
    monkeypatch.setattr(bench_products, "ENOUGH", 100.0)
    shape, before = ProductShape(4, 24, 40), torch.get_rng_state()
    assert list(bench_products.seconds_of(shape)) == shape.names()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_training_is_measured_with_large_vocabularies() -> None:
    words = ["--models", "gpt50257,bert", "--dropout", "0", "--against", "transformers", "--rounds", "1"]
    result = CliRunner().invoke(main, ["bench", "training", *words, "--json"])
    assert result.exit_code == 0, result.output
    peak = {(row["model"], row["way"]): row["peak_bytes"] for row in json.loads(result.stdout)}
    for model in ("gpt50257", "bert"):  # no logits are kept where none are needed
        assert peak[model, "tfkit"] < peak[model, "transformers"] / 2


def test_a_measured_step_trains(tiny: None) -> None:
    case = TINY["gpt"]
    model = build_model(load_recipe({"tfkit": 1, "model": recipe(case.size)}).blueprint(), seed=0)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    cases._step(case, model)()
    assert all(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_forward_passes_are_measured_beside_an_engine_with_equal_logits(tiny: None, engine: str) -> None:
    pytest.importorskip(engine)
    pytest.importorskip("onnxscript")
    words = ["--models", "bert,pair", "--batches", "2", "--against", engine, "--rounds", "1"]
    result = CliRunner().invoke(main, ["bench", "forward", *words])
    assert result.exit_code == 0, result.output
    assert result.output.count(engine) == 2


def test_an_engine_with_other_logits_is_refused(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    case = TINY["gpt"]
    model = build_model(load_recipe({"tfkit": 1, "model": recipe(case.size)}).blueprint(), seed=0).eval()
    with pytest.raises(RunError, match="the engine's logits differ from tfkit's"):
        peers._exported(case, model, lambda file: lambda inputs: model(**case.inputs()).logits + 1)
