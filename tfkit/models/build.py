"""Blueprint -> modules, on any device and dtype, repeatable by a seed."""

from __future__ import annotations

import torch

from tfkit.components.init import Init
from tfkit.core.blueprint import Blueprint
from tfkit.models.base import Model
from tfkit.models.parametrization import rescale


def build_model(
    blueprint: Blueprint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, seed: int | None = 0
) -> Model:
    """The model that `blueprint` describes, initialised as it says.

    Weights are drawn on the CPU, so that a seed gives the same ones on every device, and the caller's own random state
    stays as it was; seed None draws from that state instead. On the `meta` device nothing is allocated.
    """
    if torch.device(device).type == "meta":
        with torch.device("meta"):
            model: Model = blueprint.type.build(blueprint)
        return model.to(dtype)
    if seed is None:
        return _made(blueprint).to(device=device, dtype=dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(blueprint)
    return model.to(device=device, dtype=dtype)


def _made(blueprint: Blueprint) -> Model:
    model: Model = blueprint.type.build(blueprint)
    init: Init = blueprint.init.build()
    init(model)
    if blueprint.parametrization is not None:
        rescale(model, init, blueprint)
    return model
