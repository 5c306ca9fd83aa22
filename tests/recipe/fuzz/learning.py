"""Which parameters of a model can learn: those whose gradient is not zero for some weights and some inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tfkit.contracts.shapes import inert_names
from tfkit.core.blueprint import Blueprint
from tfkit.models.base import Model
from tfkit.models.build import build_model, meta_inputs

ROWS, TIME, SOURCE = 4, 20, 5
# how large random weights are, by tries: added to where they begin (a gate may shut something out there), or new ones
MOVES = (0.05, 0.5, 0.02, 0.2, 1.0, 0.1)
GAINS = (1.0, 3.0, 0.5, 2.0, 0.3, 5.0, 0.1, 4.0) * 3
SAME = 0.1  # relative difference of two gradients that are the same but for rounding


def dead(blueprint: Blueprint, tries: int = len(MOVES) + len(GAINS)) -> list[str]:
    """The parameters without a gradient in all of some tries, but for those that parts declare inert."""
    model = build_model(blueprint, dtype=torch.float64).train()
    begun = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = {name for name, weight in model.named_parameters() if weight.requires_grad} - inert_names(model).keys()
    for number in range(tries):
        if not wanted:
            break
        model.load_state_dict(begun)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in model.parameters():
                drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                if number < len(MOVES):
                    weight += MOVES[number] * drawn
                else:
                    weight.copy_(GAINS[number - len(MOVES)] * drawn / weight.shape[-1] ** 0.5)
        wanted -= _learning(model, wanted, _inputs(model, generator), number)
    return sorted(wanted)


def _learning(model: Model, names: set[str], inputs: Mapping[str, Tensor], seed: int) -> set[str]:
    """The parameters with a gradient that stays when all weights move a little, which what rounding leaves does not."""
    weights = {name: weight for name, weight in model.named_parameters() if name in names}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    first = torch.autograd.grad(_loss(model, inputs, seed), list(weights.values()), allow_unused=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])  # a router may have moved its selection bias
        for weight in model.parameters():
            weight *= 1 + 1e-9 * torch.randn(weight.shape, dtype=weight.dtype)
    second = torch.autograd.grad(_loss(model, inputs, seed), list(weights.values()), allow_unused=True)
    pairs = zip(weights, first, second, strict=True)
    return {
        name
        for name, one, other in pairs
        if one is not None and other is not None and 0 < one.norm() > (one - other).norm() / SAME
    }


def _loss(model: Model, inputs: Mapping[str, Tensor], seed: int) -> Tensor:
    """A random sum of all that heads give, of the hidden states where there is no head, and the auxiliary losses."""
    torch.manual_seed(seed)
    out = model(**inputs)
    values = [*out.heads.values(), out.hidden if out.logits is None else out.logits]
    terms = [(value * torch.randn(value.shape, dtype=value.dtype)).sum() for value in values if value is not None]
    return torch.stack([*terms, *([] if out.auxiliary_loss is None else [out.auxiliary_loss])]).sum()


def _inputs(model: Model, generator: torch.Generator) -> dict[str, Tensor]:
    """A call with random ids, vectors, types, marks and prefixes, as the model takes them."""
    plans = list(model.blueprint.stacks())
    times = [min(TIME, plan.max_length or TIME) for plan in plans]
    if sum("global_attention_mask" in plan.needs for plan in plans) > 1:  # one mask marks the tokens of both sides
        times = [min(times)] * len(times)
    inputs: dict[str, Tensor] = {}
    for name, like in meta_inputs(model, TIME, ROWS).items():
        number = -1 if name.startswith("decoder_") else 0
        plan, time = plans[number], times[number]
        if like.is_floating_point():
            vectors = torch.randn(like.shape, generator=generator, dtype=torch.float64)
            inputs[name] = vectors[:, : SOURCE if name == "encoder_hidden_states" else time]
        elif name == "prefix_length":
            inputs[name] = torch.full((ROWS,), min(3, *times))
        elif name == "global_attention_mask":
            (marked, *_) = [time for plan, time in zip(plans, times, strict=True) if name in plan.needs]
            inputs[name] = (torch.rand(ROWS, marked, generator=generator) < 0.3).long()
        else:
            inputs[name] = torch.randint(plan.vocab_size or 1, (ROWS, time), generator=generator)
            segments = getattr(plan.embedding, "segments", 0)
            if segments and plan.memory_width is None:  # a decoder beside an encoder takes no types
                types = torch.randint(segments, (ROWS, time), generator=generator)
                inputs[name.replace("input_ids", "token_type_ids")] = types
    return inputs
