"""Benchmark of attentions and mixers: time and peak memory by sequence length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch

from tests.benchmarks.rounds import Call, peak_bytes, print_wide, quickest, say
from tfkit.core.bounds import JsonObject, Tree
from tfkit.core.errors import UsageError
from tfkit.core.machine import readable_bytes
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

DEFAULT = ("full", "window", "chunk", "longformer", "performer", "linear", "lstm")


@dataclass(frozen=True)
class Setting:
    """Settings of the measured model: one layer without a feedforward, applied to random vectors."""

    d_model: int = 256
    num_heads: int = 4
    window: int = 256
    causal: bool = False
    backward: bool = False
    device: str = "cpu"


def layers(setting: Setting) -> Mapping[str, Tree]:
    """Return the parts that can be measured, by name."""
    heads, window = setting.num_heads, {"type": "window", "size": setting.window}
    grouped = next(count for count in range(max(1, heads // 4), 0, -1) if heads % count == 0)

    def attention(name: str, mask: object = None, **options: object) -> Tree:
        part = {"attention": {"type": name, "num_heads": heads, **options}}
        return part if mask is None else {**part, "mask": mask}

    mixers = ("mamba", "short_convolution") if setting.causal else ("fourier",)
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
        **{name: {"mixer": name} for name in ("lstm", "gru", "rnn", *mixers)},
    }


def chosen(names: Sequence[str] | None, setting: Setting) -> list[str]:
    """Return the requested attentions, or the defaults. Raise UsageError for unknown names or unequal heads."""
    known = layers(setting)
    wanted = names or [name for name in DEFAULT if name in known]
    for name in wanted:
        if name not in known:
            raise UsageError(f"unknown {'causal ' * setting.causal}attention '{name}'; available: {', '.join(known)}")
    if setting.d_model % setting.num_heads and any("attention" in known[name] for name in wanted):
        fault = f"{setting.num_heads} heads do not divide --d-model {setting.d_model}"
        raise UsageError(f"--heads: {fault}; use a divisor, or another --d-model")
    return list(wanted)


def measure(names: Sequence[str], lengths: Sequence[int], setting: Setting) -> Iterator[JsonObject]:
    """Yield the minimum time in seconds and the peak tensor memory of each attention, by length."""
    for name in names:
        calls = {length: prepared(layers(setting)[name], length, setting) for length in lengths}
        seconds = quickest(calls)
        peaks = {length: peak_bytes(setting.device, call) for length, call in calls.items()}
        figures = {"seconds": seconds, "peak_bytes": peaks}
        yield {"name": name, **figures, "doubling": {key: growth(values) for key, values in figures.items()}}


def prepared(layer: Tree, length: int, setting: Setting) -> Call:
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
            out = model(inputs_embeds=vectors, **more).hidden
            if setting.backward:
                out.sum().backward()
                model.zero_grad()

    return call


def growth(values: Mapping[int, float]) -> float | None:
    """Return the largest growth factor per doubling of the length, or None if there is only one length.

    If a length is not twice the previous one, the factor is converted to a factor per doubling.
    """
    factors = [
        (values[after] / max(values[before], 1e-12)) ** (math.log(2) / math.log(after / before))
        for before, after in pairwise(sorted(values))
    ]
    return max(factors, default=None)


def as_data(measured: Sequence[JsonObject], setting: Setting) -> JsonObject:
    """Return the results as plain data."""
    results = {one.pop("name"): one for one in measured}
    return {**asdict(setting), "threads": torch.get_num_threads(), "attentions": results}


def render(data: JsonObject) -> None:
    """Print one table for time and one for memory."""
    way = "forward and backward" if data["backward"] else "forward"
    device = f"{data['threads']} CPU threads" if data["device"] == "cpu" else data["device"]
    say(
        f"One {'causal' if data['causal'] else 'bidirectional'} layer, d_model {data['d_model']}, {data['num_heads']} "
        f"heads, windows and chunks of {data['window']}, one text, float32, {way}, {device}."
    )
    for title, key, formatted in (("time", "seconds", _duration), ("peak memory", "peak_bytes", readable_bytes)):
        cells = []
        for name, result in data["attentions"].items():
            factor = result["doubling"][key]
            figures = [formatted(value) for value in result[key].values()]
            cells.append([name, *figures, "-" if factor is None else f"{factor:.2f}x"])
        lengths = next(iter(data["attentions"].values()))[key]
        say("")
        print_wide(cells, ["length", *(f"{length:,}" for length in lengths), "doubling"], ["length"], title)
    say("\ndoubling: largest growth factor per doubling of the length, over adjacent lengths.", style="dim")


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
