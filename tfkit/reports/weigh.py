"""FLOPs and saved activations of each part, measured on a sample of the model on `meta`.

Paths identify the parts: (side, "embedding"), (side, "layer", kind, turn, part), ("", head). `kind` numbers the
distinct layers; `turn` is "0" or "1", because the sample has two layers of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from tfkit.core.slots import SublayerFacts
from tfkit.models.base import Model
from tfkit.models.sample import meta_inputs
from tfkit.models.stack import Stack
from tfkit.reports.meter import Meter, Path, Tally


def _next_turn(kind: int, turns: Iterator[str]) -> Path:
    return "layer", str(kind), next(turns)


def weigh_training(model: Model, length: int, batch: int) -> dict[Path, Tally]:
    """Tally a forward pass in training mode by part."""
    model.train()
    meter = Meter(model)
    for side, stack in stacks_of(model):
        meter.watch(stack, (side,))
        meter.watch(stack.embedding, ("embedding",))
        meter.watch(stack.final_norm, ("final_norm",))
        for kind, layer in enumerate(stack.layers[::2]):
            meter.watch(layer, partial(_next_turn, kind, iter("01")))
            for name, part in parts_of(layer).items():
                if name != "residual":  # the residual layout's forward calls all other parts
                    meter.watch(part, (name,))
    for name, head in heads_of(model):
        meter.watch(head, ("", name))
    with meter:
        model(**meta_inputs(model, length, batch))
    return meter.tallies


def weigh_cache(model: Model, length: int, batch: int) -> dict[Path, int]:
    """Return the bytes of the decode state after `length` tokens, by (side, "layer", kind, part)."""
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


def stacks_of(model: Model) -> list[tuple[str, Stack]]:
    """Return the stacks with their sides, in execution order."""
    return [(plan.side, model.stack(plan.side)) for plan in model.blueprint.stacks()]


def heads_of(model: Model) -> list[tuple[str, nn.Module]]:
    """Return the heads with their names: `head`, `heads.<name>`."""
    own = [] if model.head is None else [("head", model.head)]
    return own + [(f"heads.{name}", head) for name, head in model.heads.items()]


def parts_of(layer: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a layer by name; dropout belongs to the residual layout."""
    return {name: part for name, part in layer.named_children() if name != "dropout" and not is_empty(part)}


def idle_parameters(module: nn.Module) -> int:
    """Count the parameters that a single token does not use, according to the parts."""
    return sum(part.idle_parameters() for part in module.modules() if isinstance(part, SublayerFacts))


def is_empty(module: nn.Module) -> bool:
    """True for identity modules and empty module lists."""
    return isinstance(module, nn.Identity) or (isinstance(module, nn.ModuleList) and len(module) == 0)
