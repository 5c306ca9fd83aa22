"""Models of any parts write what a loop without a state writes, also by copies of their weights, and in threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from tfkit.contracts.options import D_MODEL, MAX_LENGTH, VOCABULARY, alternatives, required
from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.stepper import Stepper, evaluating
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

from .searching import best

PROMPTS = [[1, 2, 3, 4, 5], [7], [8, 9, 10]]
NEW = 6


def drawn(chance: random.Random, slot: str, name: str | None = None, within: int = 0) -> dict[str, Any]:
    """A part of that slot, by chance or the one of that name, with some of its options changed."""
    name = name or chance.choice(REGISTRY.names(slot))
    part = {"type": name, **required(slot, name)}
    for option, field in REGISTRY.get(slot, name).Config.model_fields.items():
        inner = slot_of(field)
        if inner is not None and within < 2 and chance.random() < 0.5:
            part[option] = drawn(chance, inner, within=within + 1)
        elif option not in part and chance.random() < 0.2:
            for value in islice(alternatives(option, field.annotation, field.default), 1):
                part[option] = value
    return part


def slot_of(field: Any) -> str | None:
    """The slot of an option that may be a part."""
    kinds = (field.annotation, *get_args(field.annotation))
    marks = [*field.metadata, *(mark for kind in kinds for mark in getattr(kind, "__metadata__", ()))]
    return next((mark.slot for mark in marks if isinstance(mark, Slot)), None)


def model(chance: random.Random, slot: str, name: str) -> Model | None:
    """A small decoder with that part in it, and others by chance; None where it is refused."""
    mixes = slot if slot in ("attention", "mixer") else chance.choice(["attention", "attention", "mixer"])
    layer = {
        kind: drawn(chance, kind, name if kind == slot else None) for kind in ("feedforward", "norm", "residual", mixes)
    }
    if slot == "activation":
        layer["feedforward"] = {"type": "mlp", "d_ff": 12, "activation": {"type": name, **required(slot, name)}}
        if chance.random() < 0.5:
            expert = {**layer["feedforward"], "inner_norm": drawn(chance, "norm")}
            layer["feedforward"] = {"type": "experts", "num_experts": 3, "num_active": 2, "expert": expert}
    position = drawn(chance, "position", name if slot == "position" else None)
    said = {
        "type": "decoder", "d_model": D_MODEL, "num_layers": 2, "vocab_size": VOCABULARY, "max_length": MAX_LENGTH,
        "embedding": "tokens", "position": position, "layer": layer,
        "head": {"type": "language_model", "bias": True}, "init": {"type": "normal", "std": 0.3},
    }  # fmt: skip
    try:
        return build_model(load_recipe({"tfkit": 1, "model": said}).blueprint(), seed=3).eval()
    except RecipeError:
        return None


def tries(slot: str, name: str, count: int) -> list[Model]:
    """Models with that part; the first of many draws that are accepted."""
    chance = random.Random(f"{slot} {name}")
    found = (model(chance, slot, name) for _ in range(60 * count))
    return [made for made, _ in zip((made for made in found if made is not None), range(count), strict=False)]


def looped(net: Model, prompt: list[int]) -> list[int]:
    """The plainest way: the whole forward for every token, one row, no padding."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(NEW):
            ids.append(int(net(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def followed(net: Model, ids: list[list[int]]) -> Tensor:
    """The logits of a decode state after each of some given tokens."""
    found = []
    with evaluating(net):
        stepper = Stepper(net, [row[:3] for row in ids])
        for place in range(3, len(ids[0])):
            found.append(stepper.logits())
            stepper.append(torch.tensor([row[place] for row in ids]))
    return torch.stack(found)


def check(net: Model) -> None:
    net = net.double()
    expected = [looped(net, prompt) for prompt in PROMPTS]
    assert best(net, PROMPTS, NEW) == expected
    assert best(net, PROMPTS, NEW, use_cache=False) == expected
    net, ids = net.float(), [[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2, 3]]
    ways = {quantize: StepDecoder(net, quantize).current() for quantize in (None, "int8")}  # type: ignore[arg-type]
    alone = {quantize: followed(way, ids) for quantize, way in ways.items()}
    assert all(bool(logits.isfinite().all()) for logits in alone.values())
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda quantize: (quantize, followed(ways[quantize], ids)), [None, "int8"] * 2))
    assert all(torch.equal(logits, alone[quantize]) for quantize, logits in together)


SLOTS = ("attention", "mixer", "feedforward", "norm", "residual", "position", "activation")
PARTS = [(slot, name) for slot in SLOTS for name in REGISTRY.names(slot)]
BOTH_WAYS = {("attention", "longformer"), ("mixer", "fourier")}  # they stand in no decoder
QUICK = {("feedforward", "experts"), ("activation", "prelu"), ("activation", "xielu"), ("attention", "multi_head")}


def share(slot: str, name: str) -> Any:
    """Every ninth part is tried in every run, and those that make most of their children."""
    quick = (slot, name) in QUICK or PARTS.index((slot, name)) % 9 == 0
    return pytest.param(slot, name, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("slot", "name"), [share(*part) for part in PARTS])
def test_a_part_writes_what_a_loop_without_a_state_writes(slot: str, name: str) -> None:
    found = tries(slot, name, 1)
    assert found or (slot, name) in BOTH_WAYS
    for net in found:
        check(net)


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "name"), PARTS)
def test_a_part_writes_what_a_loop_without_a_state_writes_whatever_is_beside_it(slot: str, name: str) -> None:
    for net in tries(slot, name, 12):
        check(net)
