"""Runs a sample of a model on `meta` and says what each of its parts does and keeps.

Paths name the parts: (side, "embedding"), (side, "layer", kind, turn, part), ("", head), where kind numbers the
distinct layers and turn is "0" or "1", since each stands in the sample twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from tfkit.core.slots import SublayerFacts
from tfkit.models.base import Model
from tfkit.models.sample import meta_inputs
from tfkit.models.stack import Stack
from tfkit.reports.meter import Meter, Path, Tally


def weigh_training(model: Model, length: int, batch: int) -> dict[Path, Tally]:
    """One forward in training mode, by part."""
    model.train()
    meter = Meter(model)
    for side, stack in stacks_of(model):
        meter.watch(stack, (side,))
        meter.watch(stack.embedding, ("embedding",))
        meter.watch(stack.final_norm, ("final_norm",))
        for kind, layer in enumerate(stack.layers[::2]):
            turns = iter("01")
            meter.watch(layer, lambda kind=kind, turns=turns: ("layer", str(kind), next(turns)))  # type: ignore[misc]
            for name, part in parts_of(layer).items():
                if name != "residual":  # the others run within it
                    meter.watch(part, (name,))
    for name, head in heads_of(model):
        meter.watch(head, ("", name))
    with meter:
        model(**meta_inputs(model, length, batch))
    return meter.tallies


def weigh_cache(model: Model, length: int, batch: int) -> dict[Path, int]:
    """Bytes of the decode state after `length` tokens: (side, "layer", kind, part)."""
    side = model.blueprint.last.side
    if not model.caches:
        return {}
    state = model.eval().new_state()
    with torch.no_grad(), Meter(model):
        model(**meta_inputs(model, length, batch), state=state, with_heads=False)
    return {
        (side, "layer", str(kind), name): held.bytes()
        for kind, layer in enumerate(state.layers[::2])
        for name, held in layer.items()
    }


def stacks_of(model: Model) -> Iterator[tuple[str, Stack]]:
    """The stacks by side, in the order of computation."""
    yield from ((plan.side, model.stack(plan.side)) for plan in model.blueprint.stacks())


def heads_of(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """The heads by name: `head`, `heads.<name>`."""
    if model.head is not None:
        yield "head", model.head
    yield from ((f"heads.{name}", head) for name, head in model.heads.items())


def parts_of(layer: nn.Module) -> dict[str, nn.Module]:
    """The parts of a layer by name; the residual layout answers for the layer's dropout too."""
    return {name: part for name, part in layer.named_children() if name != "dropout" and not is_empty(part)}


def idle_parameters(module: nn.Module) -> int:
    """Parameters within a module that one token does not pass, as its parts say."""
    return sum(part.idle_parameters() for part in module.modules() if isinstance(part, SublayerFacts))


def is_empty(module: nn.Module) -> bool:
    """Whether a module does nothing at all."""
    return isinstance(module, nn.Identity) or (isinstance(module, nn.ModuleList) and len(module) == 0)
