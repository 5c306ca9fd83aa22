"""A static cache writes what a growing one writes, and its step is one graph for all tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.interop.leaving import NAMES, tiny
from tests.interop.parity import randomise
from tests.training.small import small as run_recipe
from tests.training.small import trained
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.search import step_of
from tfkit.generation.stepper import Stepper
from tfkit.models import Model, build_model, static
from tfkit.models.static import compiled_step, decode_step, static_fault
from tfkit.recipe.settings.sections import Generate

from .searching import best, small

if TYPE_CHECKING:
    from torch._dynamo.testing import CompileCounter  # two seconds to import

PROMPTS = [[5, 6, 7, 9, 4], [8, 9]]
TOKENS = 40
QUICK = ("gpt2", "t5-small", "mixtral-8x7b")
REFUSED = {"internlm3-8b": "its rotations depend on the length of the text"}
LAYER: dict[str, Any] = {"norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 16}}
MIXED = {**LAYER, "attention": "none", "sublayers": ["mixer", "feedforward"]}
ATTENTION = {"type": "multi_head", "num_heads": 2}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Count the graphs of compiled steps, which run as they were traced."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    step = torch.compile(decode_step, backend=counter, fullgraph=True)
    monkeypatch.setattr(static, "_compiled", lambda: step)
    yield counter
    torch._dynamo.reset()


def far(model: Model) -> float:
    """Largest difference of the logits from those of a growing cache, relative to the largest logit."""
    pair = model.blueprint.encoder is not None
    read = PROMPTS if all(not plan.without("padding") for plan in model.blueprint.stacks()) else [[5, 6], [8, 9]]
    given = ([[2], [2]], read) if pair else (read, None)
    growing, steady = (Stepper(model, *given, rooms=[TOKENS + 1] * 2, step=one) for one in (None, compiled_step))
    worst = 0.0
    with torch.inference_mode():
        for _ in range(TOKENS):
            logits, own = growing.logits(), steady.logits()
            assert bool(logits.isfinite().all())
            worst = max(worst, float((logits - own).abs().max() / logits.abs().max()))
            for stepper in (growing, steady):
                stepper.append(logits.argmax(dim=1))
    return worst


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_a_shipped_model_decodes_in_one_graph(name: str, graphs: CompileCounter) -> None:
    blueprint = tiny(name).blueprint()
    if blueprint.decoder is None or blueprint.head is None:
        pytest.skip("it writes no text")
    model = build_model(blueprint, seed=0).eval()
    randomise(model, 0.3 * (32 / blueprint.last.d_model) ** 0.5)
    fault = static_fault(model.stack(blueprint.last.side))
    if name in REFUSED:
        assert fault is not None and fault.startswith(REFUSED[name])
        return
    assert fault is None and far(model) < 1e-5
    assert graphs.frame_count == 1


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize("step", [decode_step, compiled_step])
def test_texts_are_equal(kind: str, step: static.Step, graphs: CompileCounter) -> None:
    model = small(kind)
    given = {"sources": [[5, 6, 7], [3]]} if kind == "encoder_decoder" else {}
    prompts = [[2], [2]] if given else [[5, 6, 7], [3]]
    for most in (25, [25, 4]):
        assert best(model, prompts, most, step=step, **given) == best(model, prompts, most, **given)
    drawn = {"type": "sample", "n_best": 3}
    both = [best(model, prompts, 9, strategy=drawn, seed=1, step=one, **given) for one in (None, step)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "layer",
    [
        {**LAYER, "attention": ATTENTION, "mask": {"type": "window", "size": 4}},
        {**LAYER, "attention": ATTENTION, "mask": {"type": "chunk", "size": 4}},
        {**LAYER, "attention": {"type": "linear", "num_heads": 2}},
        *({**MIXED, "mixer": {"type": mixer}} for mixer in ("lstm", "mamba", "short_convolution")),
        {**MIXED, "mixer": {"type": "mamba2", "head_dim": 4}},
    ],
    ids=lambda layer: (layer.get("mixer") or layer.get("mask") or layer["attention"])["type"],
)
def test_states_of_other_parts_are_of_one_size(layer: dict[str, Any]) -> None:
    model, prompts = small(layer=layer), [[5, 6, 7, 1, 2, 3], [3]]
    assert best(model, prompts, 25, step=decode_step) == best(model, prompts, 25)


@pytest.mark.full
def test_a_common_prefix_and_the_last_position() -> None:
    """Padding is after a prefix that was read once; rows that have ended stay at the last position."""
    prefixed = [[1] * 10 + [2] * 30 + [n] for n in range(5)] + [[4]]
    for model, prompts in ((small(max_length=128), prefixed), (small(), [[5] * 30, *([7, n] for n in range(8))])):
        texts = best(model, prompts, 25, step=decode_step)
        assert texts == best(model, prompts, 25) == [best(model, [prompt], 25)[0] for prompt in prompts]


@pytest.mark.parametrize("strategy", ["beam", "contrastive", "speculative"])
def test_a_strategy_that_moves_rows_is_refused(strategy: str) -> None:
    with pytest.raises(UsageError, match=f"cache: static cannot be used: {strategy} reorders or shortens texts"):
        best(small(), [[5, 6]], 3, strategy=strategy, step=decode_step)


def test_a_model_without_a_cache_and_quantized_weights_are_refused() -> None:
    scaled = {"type": "rotary", "scaling": {"type": "dynamic", "factor": 2.0, "original_length": 16}}
    with pytest.raises(UsageError, match="its rotations depend on the length of the text"):
        best(small(position=scaled), [[5, 6]], 3, step=decode_step)
    model = small()
    with pytest.raises(UsageError, match="a compiled step cannot use int8 weights"):
        best(model, [[5, 6]], 3, step=compiled_step, decoder=StepDecoder(model, "int8"))


def test_a_growing_cache_is_not_compiled() -> None:
    with pytest.raises(UsageError, match=r"set generate\.cache: static too"):
        step_of(Generate(compile=True))
    assert step_of(Generate()) is None and step_of(Generate(cache="static", compile=True)) is compiled_step


def test_a_missing_compiler_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    def uncompiled(*_: object) -> None:
        raise InductorError(InvalidCxxCompiler(), None)

    monkeypatch.setattr(static, "_compiled", lambda: uncompiled)
    with pytest.raises(RunError) as caught:
        best(small(), [[5, 6]], 3, step=compiled_step)
    start, found, end = re.split(r"(No working C\+\+ compiler found) .*;", str(caught.value))
    assert start == "generate.compile: torch cannot compile this model: InvalidCxxCompiler: " and found
    assert end == " generate.compile: false works without a compiler"


@pytest.mark.full
def test_the_recipe_chooses_the_cache(tmp_path: Path, graphs: CompileCounter) -> None:
    texts = {}
    for cache, compile_ in (("growing", False), ("static", False), ("static", True)):
        loaded = run_recipe(tmp_path, {"generate": {"cache": cache, "compile": compile_}})
        run = trained(loaded, tmp_path / f"{cache}-{compile_}")
        texts[cache, compile_] = run.generate(
            ["one two", "six"], max_new_tokens=8, logits={"type": "min_length", "tokens": 5}
        )
    assert len(set(map(str, texts.values()))) == 1 and all(texts["static", True]) and graphs.frame_count == 1
    with pytest.raises(RecipeError, match=r"generate\.compile: needs buffers of full size; set cache: static too"):
        run_recipe(tmp_path, {"generate.compile": True})
    with pytest.raises(RecipeError, match="static cannot be used: beam reorders or shortens texts"):
        run_recipe(tmp_path, {"generate": {"cache": "static", "strategy": "beam"}})
