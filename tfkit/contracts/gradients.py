"""Every parameter receives a gradient, unless it is declared inert."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfkit.contracts.calls import model, run, tokens
from tfkit.contracts.cases import SUBLAYERS, Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.core.component import Component
from tfkit.models.base import Model


def loss_of(case: Case, out: dict[str, Tensor]) -> Tensor:
    """Reduce the outputs to a scalar: those of the head if they depend on every token, else all outputs."""
    outputs = {name: value for name, value in out.items() if name != "hidden"}
    if not outputs or (case.causal and "pooled" in outputs):
        outputs = out
    generator = torch.Generator().manual_seed(3)
    terms = [
        (value * torch.randn(value.shape, generator=generator).to(value.dtype)).sum() for value in outputs.values()
    ]
    return torch.stack(terms).sum()


def gradients(case: Case, made: Model, out: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Return the gradient of each trainable weight by name; None if it has no gradient."""
    named = {name: weight for name, weight in made.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(loss_of(case, out), list(named.values()), allow_unused=True)
    return dict(zip(named, grads, strict=True))


def inert_names(made: nn.Module) -> dict[str, Component]:
    """Map the full names of parameters declared inert to their parts."""
    return {
        f"{prefix}.{name}": module
        for prefix, module in made.named_modules()
        if isinstance(module, Component)
        for name in module.inert
    }


@contract(
    "every parameter has a finite, non-zero gradient unless it is declared inert", "determinism", every_option=True
)
def check_gradients(case: Case) -> None:
    """Compute the gradients of a random linear combination of the outputs."""
    made = model(case)
    grads = gradients(case, made, run(case, tokens(3, 7)))
    inert = inert_names(made)
    largest = max((float(grad.abs().max()) for grad in grads.values() if grad is not None), default=0.0)
    for name, grad in grads.items():
        size = 0.0 if grad is None else float(grad.abs().max())
        expect(size == size and size != float("inf"), f"the gradient of {name} is not finite")
        if name not in inert:
            expect(size > 1e-9 * largest, f"{name} has no gradient, so it cannot change the output")
        elif isinstance(inert[name], case.part) and not case.variant and case.slot in SUBLAYERS:
            expect(size < 1e-6 * largest, f"{name} is declared inert, but it changes the output")
