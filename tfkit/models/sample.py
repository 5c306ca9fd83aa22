"""A sample of a model: every distinct layer stands in it twice, as one module, however many layers equal it.

The second time gives what one more such layer costs; what the first costs besides is made once a forward (a mask, a
bias that all layers share). So a deep model is counted in the time of a few layers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.shape import Shape
from tfkit.core.skeleton import NoDraws
from tfkit.models.base import Model


@dataclass(frozen=True)
class SamplePlan(StackPlan):
    """The plan of a sampled stack; it tells the parts of a layer the place they have in the whole stack."""

    depth: int = 0  # of the whole stack
    firsts: tuple[int, ...] = ()  # of each distinct layer, the first layer that equals it

    @property
    def num_layers(self) -> int:
        return self.depth

    def shape(self, layer: int = 0, plan: LayerPlan | None = None) -> Shape:
        return super().shape(layer if plan is None else self.firsts[layer // 2], plan)


def sample(blueprint: Blueprint) -> Blueprint:
    """`blueprint` with every distinct layer twice."""
    encoder, decoder = (plan and _sample_stack(plan) for plan in (blueprint.encoder, blueprint.decoder))
    return replace(blueprint, encoder=encoder, decoder=decoder)


def build_sample(blueprint: Blueprint, dtype: torch.dtype = torch.float32) -> Model:
    """The sample of `blueprint` on `meta`, where nothing is allocated."""
    with NoDraws(), torch.device("meta"):
        model: Model = blueprint.type.build(sample(blueprint))
    return model.to(dtype)


def weights_of(blueprint: Blueprint) -> int:
    """Return the number of weights and buffer elements of a model, at least; layers that share are counted once."""
    model = build_sample(blueprint)
    total = _elements(model)
    for plan in blueprint.stacks():
        layers = model.stack(plan.side).layers
        for index, kind in enumerate(used_kinds(plan)):
            if not plan.layers[kind].shares():
                total += (plan.order.count(kind) - 1) * _elements(layers[2 * index])
    return total


def _elements(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))


def _sample_stack(plan: StackPlan) -> SamplePlan:
    kinds = used_kinds(plan)
    facts = {entry.name: getattr(plan, entry.name) for entry in fields(StackPlan)}
    facts["last_state"] = False  # encoder and decoder differ in depth here, and nothing is computed on the way
    facts["layers"] = tuple(replace(plan.layers[kind], shared=True) for kind in kinds)
    facts["order"] = facts["entries"] = tuple(index // 2 for index in range(2 * len(kinds)))
    return SamplePlan(**facts, depth=plan.num_layers, firsts=tuple(plan.order.index(kind) for kind in kinds))


def used_kinds(plan: StackPlan) -> list[int]:
    """The indices in `plan.layers` of the distinct layers that stand in the stack."""
    return sorted(set(plan.order))


@dataclass(frozen=True)
class WeightSets:
    """How many sets of weights there are of what layers share: one for each pattern entry.

    Where `per_layer` makes layers of one entry differ, the first kind of them has the set.
    """

    plan: StackPlan
    pairs: tuple[tuple[int, int], ...]  # of a kind and an entry, as they first appear

    def of(self, kind: int, name: str) -> int:
        """The sets that are counted with the layers of that kind, of their part `name`."""
        first: dict[int, int] = {}
        for other, entry in self.pairs:
            if self.shares(other, name):
                first.setdefault(entry, other)
        return list(first.values()).count(kind)

    def shares(self, kind: int, name: str) -> bool:
        """Whether layers of that kind and of one pattern entry have their part `name` in common."""
        layer = self.plan.layers[kind]
        return layer.shared or any(sublayer.config.shared for sublayer in layer.sublayers if sublayer.name == name)


def weight_sets(plan: StackPlan) -> WeightSets:
    """The sets of weights that layers of `plan` share."""
    return WeightSets(plan, tuple(dict.fromkeys(zip(plan.order, plan.entries, strict=True))))


def meta_inputs(model: Model, length: int, batch: int) -> dict[str, Tensor]:
    """Arguments of a call in which every stack reads `length` tokens; they hold no values."""
    blueprint = model.blueprint
    dtype = next((weight.dtype for weight in model.parameters()), torch.float32)
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    inputs: dict[str, Tensor] = {}
    for plan in blueprint.stacks():
        prefix = "decoder_" if paired and plan.side == "decoder" else ""
        width = plan.d_model if plan.embedding is None else plan.embedding.reads(plan.shape())
        if width is not None:
            vectors = torch.empty(batch, length, width, dtype=dtype, device="meta")
            inputs[f"{prefix}inputs_embeds"] = vectors.requires_grad_()
        else:
            inputs[f"{prefix}input_ids"] = torch.empty(batch, length, dtype=torch.long, device="meta")
    last = blueprint.last
    if last.memory_width is not None and not paired:
        memory = torch.empty(batch, length, last.memory_width, dtype=dtype, device="meta")
        inputs["encoder_hidden_states"] = memory
    return inputs | _rule_inputs(model, length, batch)


def _rule_inputs(model: Model, length: int, batch: int) -> dict[str, Tensor]:
    """What the model's parts ask of a call."""
    needed = {name for plan in model.blueprint.stacks() for name in plan.needs}
    sizes = {"global_attention_mask": (batch, length), "prefix_length": (batch,)}
    return {name: torch.empty(size, dtype=torch.long, device="meta") for name, size in sizes.items() if name in needed}
