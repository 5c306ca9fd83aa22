"""Time and peak memory of attentions and mixers against the length of the text, measured."""

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
from tfkit.core.registry import nearest
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.table import size

Layer = dict[str, Any]
DEFAULT = ("full", "window", "chunk", "longformer", "performer", "linear", "lstm")
WIDEST = 100  # columns of a table of six lengths
LEAST, MOST = 9, 50  # calls of one length that are timed
ENOUGH = 0.3  # seconds of them, before which there are more than LEAST
SETTLED = 1.03  # the second quickest call against the quickest, above which there are more too


@dataclass(frozen=True)
class BenchSetting:
    """What is measured: one layer without a feed-forward, in an encoder, on a text of random vectors."""

    d_model: int = 256
    num_heads: int = 4
    window: int = 256
    causal: bool = False
    backward: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Measured:
    """One attention at one length; seconds are those of the quickest call, bytes the most that tensors held at once."""

    attention: str
    length: int
    seconds: float
    peak_bytes: int


def layers(setting: BenchSetting) -> Mapping[str, Layer]:
    """The layers that can be measured, by name."""
    heads, window = setting.num_heads, {"type": "window", "size": setting.window}

    def attention(name: str, mask: Any = None, **options: Any) -> Layer:
        part = {"attention": {"type": name, "num_heads": heads, **options}}
        return part if mask is None else {**part, "mask": mask}

    mixers = (
        ("lstm", "gru", "rnn", "mamba", "short_convolution") if setting.causal else ("lstm", "gru", "rnn", "fourier")
    )
    both_ways = {} if setting.causal else {"longformer": attention("longformer", [window, "global_tokens"])}
    return {
        "full": attention("multi_head"),
        "grouped": attention("multi_head", num_kv_heads=max(1, heads // 4)),
        "multi_query": attention("multi_head", num_kv_heads=1),
        "window": attention("multi_head", window),
        "chunk": attention("multi_head", {"type": "chunk", "size": setting.window}),
        **both_ways,
        "performer": attention("performer"),
        "linear": attention("linear"),
        **{name: {"mixer": name} for name in mixers},
    }


def chosen(names: Sequence[str] | None, setting: BenchSetting) -> list[str]:
    """The names asked for, or those that are measured by default; raises UsageError for a name there is not."""
    known = layers(setting)
    for name in names or ():
        if name not in known:
            hint = nearest(name, list(known))
            raise UsageError(
                f"there is no attention '{name}' to measure{' in a causal layer' * setting.causal}; "
                + (f"did you mean '{hint}'?" if hint else f"there are: {', '.join(known)}")
            )
    return list(names or [name for name in DEFAULT if name in known])


def measure(names: Sequence[str], lengths: Sequence[int], setting: BenchSetting) -> Iterator[Measured]:
    """Each attention at each length, as it is measured."""
    for name in names:
        calls = {length: prepared(layers(setting)[name], length, setting) for length in lengths}
        for call in calls.values():
            call()  # what is made once is made now
        quickest = _quickest(calls, setting.device)
        for length, call in calls.items():
            yield Measured(name, length, quickest[length], _peak(call, setting.device))


def prepared(layer: Layer, length: int, setting: BenchSetting) -> Callable[[], None]:
    """A call of a model of that one layer."""
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
    """The seconds of the quickest call of each length: the one that other work on the machine disturbed least.

    The lengths take turns, so that a slow minute of the machine falls on all of them.
    """
    found: dict[int, list[float]] = {length: [] for length in calls}
    while unsettled := [length for length, seconds in found.items() if not _is_settled(seconds)]:
        for length in unsettled:
            found[length].append(_seconds(calls[length], device))
    return {length: min(seconds) for length, seconds in found.items()}


def _is_settled(seconds: Sequence[float]) -> bool:
    """Whether more calls of a length would tell no more."""
    if len(seconds) < LEAST or len(seconds) >= MOST:
        return len(seconds) >= MOST
    first, second = sorted(seconds)[:2]
    return sum(seconds) >= ENOUGH and second <= SETTLED * first


def _seconds(call: Callable[[], None], device: str) -> float:
    """The seconds of a call; on one thread those of the processor itself, without the time that other work takes."""
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


def _peak(call: Callable[[], None], device: str) -> int:
    """The most bytes that tensors made by a call held at once."""
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
    """Without what torch's profiler writes to the process's standard error, past Python."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def growth(measured: Sequence[Measured], value: Callable[[Measured], float]) -> float | None:
    """What doubling the length costs at most, as a factor; None for a single length.

    Between lengths that are not twice one another it is what each doubling in between would cost.
    """
    ordered = sorted(measured, key=lambda one: one.length)
    factors = [
        (value(after) / max(value(before), 1e-12)) ** (math.log(2) / math.log(after.length / before.length))
        for before, after in pairwise(ordered)
    ]
    return max(factors, default=None)


def as_data(measured: Sequence[Measured], setting: BenchSetting) -> dict[str, Any]:
    """What was measured, as plain data."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(one.attention for one in measured):
        rows = [one for one in measured if one.attention == name]
        found[name] = {
            "seconds": {str(one.length): one.seconds for one in rows},
            "peak_bytes": {str(one.length): one.peak_bytes for one in rows},
            "doubling": {
                "seconds": growth(rows, lambda one: one.seconds),
                "peak_bytes": growth(rows, lambda one: one.peak_bytes),
            },
        }
    facts = {name: getattr(setting, name) for name in BenchSetting.__dataclass_fields__}
    return {**facts, "threads": torch.get_num_threads(), "attentions": found}


def render(data: Mapping[str, Any], console: Console) -> None:
    """Print one table for time and one for memory."""
    way = "forward and backward" if data["backward"] else "forward"
    where = f"{data['threads']} CPU threads" if data["device"] == "cpu" else data["device"]
    console.print(
        f"One {'causal' if data['causal'] else 'bidirectional'} layer, d_model {data['d_model']}, {data['num_heads']} "
        f"heads, windows and chunks of {data['window']}, one text, float32, {way}, {where}.",
        highlight=False,
    )
    for title, key, written in (("time", "seconds", _duration), ("peak memory", "peak_bytes", lambda n: size(int(n)))):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("length")
        lengths = next(iter(data["attentions"].values()))[key]
        for length in lengths:
            table.add_column(f"{int(length):,}", justify="right")
        table.add_column("doubling", justify="right")
        for name, found in data["attentions"].items():
            factor = found["doubling"][key]
            cells = [written(found[key][length]) for length in lengths]
            table.add_row(name, *cells, "-" if factor is None else f"{factor:.2f}x")
        console.print()
        console.print(table, width=max(console.width, WIDEST), crop=False)  # figures are never cut
    console.print("\ndoubling: what twice the length costs at most, between two of these lengths.", style="dim")


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
