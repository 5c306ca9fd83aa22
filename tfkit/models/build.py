"""Construction of models from Blueprints, reproducible with a seed, and of samples that measure a deep one's cost.

The second copy has the marginal cost of a layer; the first also includes work that is done once per forward pass
(masks, shared biases).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.components.init import Init
from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.component import Shape
from tfkit.core.errors import UsageError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.skeleton import NoDraws, drawn_from
from tfkit.functional.linear import replace_linears
from tfkit.models.base import Model
from tfkit.models.parametrization import rescale
from tfkit.models.stack import Stack


@dataclass(frozen=True, kw_only=True)
class SamplePlan(StackPlan):
    """Plan of a sampled stack; parts are built with the layer indices of the full stack."""

    full: StackPlan  # the full stack
    firsts: tuple[int, ...] = ()  # for each kind, the index of its first layer in the full stack

    @property
    def num_layers(self) -> int:
        return self.full.num_layers

    def stored(self, layer: int) -> frozenset[str]:
        return self.full.stored(layer)

    def streams(self, layer: int) -> int | None:
        return self.full.streams(layer)

    def last_alike(self, layer: int) -> int:
        return self.full.last_alike(layer)

    def shape(self, layer: int = 0, plan: LayerPlan | None = None, shared: bool = False) -> Shape:
        if plan is None:
            return super().shape(layer)
        first = self.firsts[layer // 2]
        return self.full.shape(first, self.full.layers[self.full.order[first]], shared)


def sample(blueprint: Blueprint) -> Blueprint:
    """Return the Blueprint of the sample, with every distinct layer twice."""
    encoder, decoder = (plan and _sample_stack(plan) for plan in (blueprint.encoder, blueprint.decoder))
    return replace(blueprint, encoder=encoder, decoder=decoder)


def build_sample(blueprint: Blueprint, dtype: torch.dtype | None = torch.float32) -> Model:
    """Build the sample of `blueprint` on `meta`, without allocating memory; None keeps the dtypes of the parts."""
    with NoDraws(), torch.device("meta"):
        model: Model = blueprint.type.build(sample(blueprint))
    for plan in model.blueprint.stacks():
        if isinstance(plan, SamplePlan) and plan.streams(0) is not None:
            _fit_streams(model.stack(plan.side), plan)
    return model if dtype is None else model.to(dtype)


def _fit_streams(stack: Stack, plan: SamplePlan) -> None:
    """Let each layer, and the end of the stack, read as many streams as in the full stack."""

    def fitted(x: Tensor, layer: int) -> Tensor:
        size = x.shape[0], x.shape[1], plan.streams(layer) or 1, x.shape[-1]
        return x.new_empty(size).requires_grad_(x.requires_grad)

    for first, layer in zip(plan.firsts, stack.layers[::2], strict=True):
        layer.register_forward_pre_hook(lambda _, given, first=first: (fitted(given[0], first), *given[1:]))
    if (ends := stack.streams) is not None:
        leave = ends.leave
        ends.__dict__["leave"] = lambda x: leave(fitted(x, plan.num_layers))


def weights_of(blueprint: Blueprint) -> int:
    """Return a lower bound on the number of weights and buffer elements; shared layers are counted once."""
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
    facts["last_state"] = False  # a sampled encoder and decoder may differ in depth; the cost is the same
    facts["layers"] = tuple(replace(plan.layers[kind], shared=True) for kind in kinds)
    facts["order"] = facts["entries"] = tuple(index // 2 for index in range(2 * len(kinds)))
    return SamplePlan(**facts, full=plan, firsts=tuple(plan.order.index(kind) for kind in kinds))


def used_kinds(plan: StackPlan) -> list[int]:
    """Return the indices in `plan.layers` that the stack uses."""
    return sorted(set(plan.order))


@dataclass(frozen=True)
class WeightSets:
    """Counter for the weights of shared parts; each pattern entry has one set of weights.

    If `per_layer` splits an entry into several kinds, its set is counted with the first kind.
    """

    plan: StackPlan
    pairs: tuple[tuple[int, int], ...]  # (kind, entry) in order of first use

    def of(self, kind: int, name: str) -> int:
        """Return the number of weight sets of the part `name` to count with layers of this kind."""
        first: dict[int, int] = {}
        for other, entry in self.pairs:
            if self.shares(other, name):
                first.setdefault(entry, other)
        return list(first.values()).count(kind)

    def shares(self, kind: int, name: str) -> bool:
        """True if layers of this kind share the part `name` within a pattern entry."""
        layer = self.plan.layers[kind]
        return layer.shared or any(sublayer.config.shared for sublayer in layer.sublayers if sublayer.name == name)


def weight_sets(plan: StackPlan) -> WeightSets:
    """Return the counter of shared weights for `plan`."""
    return WeightSets(plan, tuple(dict.fromkeys(zip(plan.order, plan.entries, strict=True))))


def meta_inputs(model: Model, length: int, batch: int) -> dict[str, Any]:
    """Return the inputs of a call as meta tensors, with `length` tokens in every stack."""
    blueprint = model.blueprint
    dtype = next((weight.dtype for weight in model.parameters()), torch.float32)
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    inputs: dict[str, Any] = {}
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
    extra = {
        name: torch.empty(batch, one.width, dtype=dtype, device="meta") for name, one in model.extra_inputs.items()
    }
    needed = {name for plan in blueprint.stacks() for name in plan.needs}
    for name, size in (("global_attention_mask", (batch, length)), ("prefix_length", (batch,))):
        if name in needed:
            inputs[name] = torch.empty(size, dtype=torch.long, device="meta")
    return inputs | ({"inputs": extra} if extra else {})


def build_model(
    blueprint: Blueprint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, seed: int | None = 0
) -> Model:
    """Build and initialize the model that `blueprint` describes.

    Initial weights are drawn on the CPU and depend only on seed, name and shape. They are equal on every device, and in
    all models with the same seed in which name and shape agree. With `seed=None`, a seed is drawn from the global RNG;
    otherwise its state is unchanged. Nothing is allocated on the `meta` device.
    """
    device = _device(device)
    if device.type == "meta":
        with torch.device("meta"), NoDraws():
            model: Model = blueprint.type.build(blueprint)
        return model.to(dtype)
    _check_memory(blueprint, device, dtype)
    with drawn_from(int(torch.randint(2**62, ())) if seed is None else seed):
        model = _initialized(blueprint)
    replace_linears(model)
    return model.to(device=device, dtype=dtype)


def _device(name: torch.device | str) -> torch.device:
    """Return the torch.device for `name`. Raise UsageError if it is unknown or unavailable."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"device: unknown device {name!r}; use cpu, cuda, cuda:1 or meta") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device: {device} is not available; torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _check_memory(blueprint: Blueprint, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UsageError, before allocating anything, if the model is larger than the free memory."""
    try:
        count = weights_of(blueprint)
    except RuntimeError as error:  # a custom part that cannot be built on meta; the size is unknown
        if "overflow" in str(error).lower():
            raise UsageError("a tensor of this model would exceed 2^63 bytes; use a smaller model") from None
        return
    # weights are drawn in float32 on the CPU before they are moved
    for place, size in {device: dtype.itemsize, torch.device("cpu"): torch.float32.itemsize}.items():
        free = free_memory(place)
        if free is not None and count * size > free:
            raise UsageError(
                f"the model has {count:,} weights, which take {readable_bytes(count * size)}, but {place} has "
                f"{readable_bytes(free)} free; use a smaller model, or build it on the device 'meta'"
            )


def _initialized(blueprint: Blueprint) -> Model:
    model: Model = blueprint.type.build(blueprint)
    init: Init = blueprint.init.build()
    init(model)
    if blueprint.parametrization is not None:
        rescale(model, init, blueprint)
    return model
