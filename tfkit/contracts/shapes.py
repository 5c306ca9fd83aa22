"""Outputs have correct shapes and dtypes, are deterministic, and agree between precisions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tfkit.components.head.base import TokenHead
from tfkit.contracts.calls import PAD, answers_tokens, fresh, model, padded, run, tokens
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect, expect_equal, expect_finite
from tfkit.contracts.float64 import in_float64
from tfkit.contracts.options import VOCABULARY
from tfkit.generation.decoder import StepDecoder
from tfkit.models.base import Model

KEEPING = ("attention", "mixer", "feedforward", "norm", "residual", "activation")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@contract("hidden states keep their shape and dtype in float32, bfloat16 and float64", "built", every_option=True)
@torch.no_grad()
def check_shapes(case: Case) -> None:
    """Check that hidden states are [batch time d_model] in the dtype of the weights, and that logits match them."""
    ids = tokens(3, 7)
    exact: dict[str, Tensor] = {}
    for dtype in DTYPES:
        made = model(case, dtype)
        kept: list[tuple[str, torch.dtype]] = []
        stacks = [made.stack(plan.side) for plan in made.blueprint.stacks()]
        hooks = [
            layer.register_forward_hook(lambda module, arguments, out, kept=kept: kept.append(("a layer", out.dtype)))
            for layer in {layer for stack in stacks for layer in stack.layers}
        ]
        hooks += _watched(case, made)
        out = run(case, ids, on=made)
        for hook in hooks:
            hook.remove()
        exact = exact or out
        expect_finite(out, f"in {dtype}")
        expected = [3, 7, made.blueprint.last.d_model]
        expect(list(out["hidden"].shape) == expected, f"hidden has shape {list(out['hidden'].shape)}, not {expected}")
        for name, actual in [*kept, ("the model", out["hidden"].dtype)]:
            expect(actual == dtype, f"{name} returns {actual} for weights in {dtype}")
        for name, value in out.items():
            shape, wanted = list(value.shape), list(exact[name].shape)
            expect(shape == wanted, f"{name} has shape {shape} in {dtype}, but {wanted} in float64")
            numbers = value.is_floating_point() and shape[0] == 3
            expect(numbers, f"{name} has dtype {value.dtype} and shape {shape}")
    if isinstance(made.head, TokenHead) and case.slot != "head":
        shape = list(out["logits"].shape)
        expect(shape[-1] == VOCABULARY, f"logits have shape {shape}; expected a last axis of {VOCABULARY}")


def _watched(case: Case, made: Model) -> list[RemovableHandle]:
    """Register hooks that raise Broken if the part changes the shape of its input, which broadcasting could hide."""

    def keeps(module: nn.Module, arguments: tuple[Tensor, ...], out: object) -> None:
        taken = list(arguments[0].shape)
        result = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        expect(taken == result, f"the part maps {taken} to {result}")

    parts = (module for module in made.modules() if isinstance(module, case.part))
    return [part.register_forward_hook(keeps) for part in parts if case.slot in KEEPING]


@contract("two calls in eval mode return equal outputs", "shapes", every_option=True)
@torch.no_grad()
def check_determinism(case: Case) -> None:
    """Compare the outputs of two calls, which must not depend on randomness or on earlier calls."""
    ids = tokens(2, 6)
    first, _, again = run(case, ids), run(case, tokens(3, 5, seed=1)), run(case, ids)
    for name, value in first.items():
        expect(torch.equal(again[name], value), f"{name} differs between two calls in eval mode")


@contract("float32 agrees with float64, and float64 models compute only in float64", "determinism", every_option=True)
def check_precision(case: Case) -> None:
    """Compare float32, also with generation's copies of weights, with float64: with padding, a state, in training."""
    ids, made, single = tokens(3, 7), fresh(case), model(case, torch.float32)
    answers_tokens(case)  # fills a cache, so that no model is built below
    with torch.no_grad():
        exact = run(case, ids, on=made)
        for on, what in ((single, "in float32"), (StepDecoder(single).current(), "with the copies of generation")):
            for name, value in run(case, ids, on=on).items():
                expect_equal(value, exact[name], f"{name} {what} instead of float64", 1e-3)
        with in_float64("in float64"):
            run(case, ids, on=made)
            if case.declares("padding"):
                run(case, on=made, **padded([ids[0], ids[1, :4]], "left", PAD))
            if case.causal and made.caches and not case.opens:
                state = made.new_state()
                for step in (ids[:, :4], ids[:, 4:5]):
                    run(case, step, on=made, state=state)
    with in_float64("in float64, during training"):
        sums = [value.sum() for value in run(case, ids, on=made.train()).values()]
        torch.autograd.backward(sums)
