"""Construction of models from Blueprints, on any device and dtype, reproducible with a seed."""

from __future__ import annotations

import torch

from tfkit.components.init import Init
from tfkit.core.blueprint import Blueprint
from tfkit.core.draws import drawn_from
from tfkit.core.errors import UsageError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.skeleton import NoDraws
from tfkit.functional.linear import replace_linears
from tfkit.models.base import Model
from tfkit.models.parametrization import rescale
from tfkit.models.sample import weights_of


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
