"""Benchmark of attentions and mixers: time and peak memory by sequence length."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.machine import readable_bytes
from tfkit.core.trees import JsonObject, Tree
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.rounds import chosen, print_wide

Layer = Tree
DEFAULT = ("full", "window", "chunk", "longformer", "performer", "linear", "lstm")
LEAST, MOST = 9, 50  # minimum and maximum number of timed calls per length
ENOUGH = 0.3  # minimum total seconds of calls per length
SETTLED = 1.03  # timing ends when the second fastest call takes at most this multiple of the fastest


@dataclass(frozen=True)
class BenchSetting:
    """Settings of the measured model: one layer without a feedforward, applied to random vectors."""

    d_model: int = 256
    num_heads: int = 4
    window: int = 256
    causal: bool = False
    backward: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Measured:
    """One attention at one length: its minimum time in seconds and its peak tensor memory in bytes."""

    attention: str
    length: int
    seconds: float
    peak_bytes: int


def layers(setting: BenchSetting) -> Mapping[str, Layer]:
    """Return the parts that can be measured, by name."""
    heads, window = setting.num_heads, {"type": "window", "size": setting.window}

    grouped = next(count for count in range(max(1, heads // 4), 0, -1) if heads % count == 0)

    def attention(name: str, mask: object = None, **options: object) -> Layer:
        part = {"attention": {"type": name, "num_heads": heads, **options}}
        return part if mask is None else {**part, "mask": mask}

    mixers = (
        ("lstm", "gru", "rnn", "mamba", "short_convolution") if setting.causal else ("lstm", "gru", "rnn", "fourier")
    )
    both_ways = {} if setting.causal else {"longformer": attention("longformer", [window, "global_tokens"])}
    return {
        "full": attention("multi_head"),
        "grouped": attention("multi_head", num_kv_heads=grouped),
        "multi_query": attention("multi_head", num_kv_heads=1),
        "window": attention("multi_head", window),
        "chunk": attention("multi_head", {"type": "chunk", "size": setting.window}),
        **both_ways,
        "performer": attention("performer"),
        "linear": attention("linear"),
        **{name: {"mixer": name} for name in mixers},
    }


def attentions(names: Sequence[str] | None, setting: BenchSetting) -> list[str]:
    """Return the requested attention names, or the defaults. Raise UsageError for unknown names or unequal heads."""
    known = layers(setting)
    wanted = names or [name for name in DEFAULT if name in known]
    found = chosen(wanted, list(known), "causal " * setting.causal + "attention")
    if setting.d_model % setting.num_heads and any("attention" in known[name] for name in found):
        fault = f"{setting.num_heads} heads do not divide --d-model {setting.d_model}"
        raise UsageError(f"--heads: {fault}; use a divisor, or another --d-model")
    return found


def measure(names: Sequence[str], lengths: Sequence[int], setting: BenchSetting) -> Iterator[Measured]:
    """Measure each attention at each length."""
    for name in names:
        calls = {length: prepared(layers(setting)[name], length, setting) for length in lengths}
        for call in calls.values():
            call()  # warm-up
        quickest = _quickest(calls, setting.device)
        for length, call in calls.items():
            yield Measured(name, length, quickest[length], peak_bytes(call, setting.device))


def prepared(layer: Layer, length: int, setting: BenchSetting) -> Callable[[], None]:
    """Return a function that runs a one-layer model."""
    recipe = {
        "type": "decoder" if setting.causal else "encoder",
        "d_model": setting.d_model,
        "num_layers": 1,
        "embedding": None,
        "layer": {"residual": "pre_norm", "norm": "layer_norm", **layer},
    }
    model = build_model(load_recipe({"tfkit": 1, "model": recipe}).blueprint(), device=setting.device)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, length, setting.d_model, generator=generator).to(setting.device)
    marked = torch.zeros(1, length, dtype=torch.long, device=setting.device)
    marked[:, 0] = 1
    more = {"global_attention_mask": marked} if "global_attention_mask" in model.blueprint.last.needs else {}

    def call() -> None:
        with torch.set_grad_enabled(setting.backward):
            out: Tensor = model(inputs_embeds=vectors, **more).hidden
            if setting.backward:
                torch.autograd.backward(out.sum())
                model.zero_grad()

    return call


def _quickest(calls: Mapping[int, Callable[[], None]], device: str) -> dict[int, float]:
    """Return the minimum time for each length, which is the statistic that other processes affect least.

    The lengths are timed in turns, so that a temporary slowdown affects all of them.
    """
    times: dict[int, list[float]] = {length: [] for length in calls}
    while unsettled := [length for length, seconds in times.items() if not _is_settled(seconds)]:
        for length in unsettled:
            times[length].append(_seconds(calls[length], device))
    return {length: min(seconds) for length, seconds in times.items()}


def _is_settled(seconds: Sequence[float]) -> bool:
    """True if more calls are unlikely to lower the minimum."""
    if len(seconds) < LEAST or len(seconds) >= MOST:
        return len(seconds) >= MOST
    first, second = sorted(seconds)[:2]
    return sum(seconds) >= ENOUGH and second <= SETTLED * first


def _seconds(call: Callable[[], None], device: str) -> float:
    """Time a call: in process time if it runs on a single CPU thread, else in wall-clock time."""
    alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    _wait(device)
    start = clock()
    call()
    _wait(device)
    return clock() - start


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Return the peak memory in bytes of the tensors that a call allocates."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _quiet(), torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        call()
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return int(most)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence stderr at the file descriptor, to which torch's profiler writes."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def growth(measured: Sequence[Measured], value: Callable[[Measured], float]) -> float | None:
    """Return the largest growth factor per doubling of the length, or None if there is only one length.

    If a length is not twice the previous one, the factor is converted to a factor per doubling.
    """
    ordered = sorted(measured, key=lambda one: one.length)
    factors = [
        (value(after) / max(value(before), 1e-12)) ** (math.log(2) / math.log(after.length / before.length))
        for before, after in pairwise(ordered)
    ]
    return max(factors, default=None)


def as_data(measured: Sequence[Measured], setting: BenchSetting) -> JsonObject:
    """Return the results as plain data."""
    results: dict[str, object] = {}
    for name in dict.fromkeys(one.attention for one in measured):
        rows = [one for one in measured if one.attention == name]
        results[name] = {
            "seconds": {str(one.length): one.seconds for one in rows},
            "peak_bytes": {str(one.length): one.peak_bytes for one in rows},
            "doubling": {
                "seconds": growth(rows, lambda one: one.seconds),
                "peak_bytes": growth(rows, lambda one: one.peak_bytes),
            },
        }
    facts = {name: getattr(setting, name) for name in BenchSetting.__dataclass_fields__}
    return {**facts, "threads": torch.get_num_threads(), "attentions": results}


def render(data: JsonObject, console: Console) -> None:
    """Print one table for time and one for memory."""
    way = "forward and backward" if data["backward"] else "forward"
    where = f"{data['threads']} CPU threads" if data["device"] == "cpu" else data["device"]
    console.print(
        f"One {'causal' if data['causal'] else 'bidirectional'} layer, d_model {data['d_model']}, {data['num_heads']} "
        f"heads, windows and chunks of {data['window']}, one text, float32, {way}, {where}.",
        highlight=False,
    )
    for title, key, formatted in (
        ("time", "seconds", _duration),
        ("peak memory", "peak_bytes", lambda n: readable_bytes(int(n))),
    ):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("length")
        lengths = next(iter(data["attentions"].values()))[key]
        for length in lengths:
            table.add_column(f"{int(length):,}", justify="right")
        table.add_column("doubling", justify="right")
        for name, result in data["attentions"].items():
            factor = result["doubling"][key]
            cells = [formatted(result[key][length]) for length in lengths]
            table.add_row(name, *cells, "-" if factor is None else f"{factor:.2f}x")
        console.print()
        print_wide(table, console)
    console.print("\ndoubling: largest growth factor per doubling of the length, over adjacent lengths.", style="dim")


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
