"""The part can be built, its shapes and dtypes are right, and every parameter receives a gradient."""

from __future__ import annotations

import json
import tempfile
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tfkit.components.head.base import TokenHead
from tfkit.components.residual import Residual
from tfkit.contracts.calls import PAD, answers_tokens, fresh, model, padded, run, tokens
from tfkit.contracts.cases import MODEL, SUBLAYERS, Case, load
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect, expect_equal, expect_finite, in_float64, twins
from tfkit.core.component import Component
from tfkit.core.options import Slot
from tfkit.core.registry import CATALOGUES, base_of
from tfkit.generation.decoder import StepDecoder
from tfkit.models.base import Model
from tfkit.recipe.load import load_recipe

EVERY = tuple(CATALOGUES)


def foreign(part: type[Component]) -> str | None:
    """Return a message if the part does not extend the base class of its slot, else None."""
    module, name = base_of(part.part_slot)
    if issubclass(part, getattr(import_module(module), name)):
        return None
    return f"the class does not extend {name} (of {module}), which defines the interface of every {part.part_slot}"


@contract(
    "the part can be built from its options (parts of a model: in a small recipe)", slots=EVERY, every_option=True
)
def check_built(case: Case) -> None:
    """Build a small model with the part, or the part itself."""
    if case.slot in MODEL:
        model(case)
        return
    try:
        config = case.config
    except ValueError as error:
        raise Broken(f"the options are rejected: {error}") from None
    config.build()


@contract("options survive formatting, parsing, copying and pickling", "built", slots=EVERY, every_option=True)
def check_config(case: Case) -> None:
    """Compare the options with their formatted, parsed, copied and pickled forms."""
    config, slot = case.config, Slot(case.slot)
    options = config.spelled()
    again = slot.validate(json.loads(json.dumps(options)))
    expect(again == config, f"{options} is parsed as {again.spelled()}")
    expect(again.spelled() == options, f"after a round trip, {options} becomes {again.spelled()}")
    for how, other in twins(config, "options", case.part):
        expect(other == config, f"the {how} options are {other.spelled()}, not {options}")
    if case.slot in MODEL:
        expect(hash(again) == hash(config), "equal options have different hashes")
        recipe = load(case)
        text = recipe.resolved()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "resolved.yaml"
            path.write_text(text, encoding="utf-8")
            loaded = load_recipe(path)
        expect(
            loaded.blueprint() == recipe.blueprint(), f"the resolved recipe does not load to an equal model:\n{text}"
        )


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
        size = case.blueprint.last.vocab_size
        expect(shape[-1] == size, f"logits have shape {shape}; expected a last axis of {size}")


def _watched(case: Case, made: Model) -> list[RemovableHandle]:
    """Register hooks that raise Broken if the part changes the shape of its input, which broadcasting could hide.

    A residual layout may add the streams that it declares.
    """

    def keeps(module: nn.Module, arguments: tuple[Tensor, ...], out: object) -> None:
        taken = list(arguments[0].shape)
        result = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        expected = list(taken)
        if isinstance(module, Residual) and module.shape.streams is not None:
            expect(taken[2:-1] == [module.shape.streams], f"the part reads {taken}, not {module.shape.streams} streams")
            expected[2] += module.config.added(module.shape.sublayers)
        text = "" if expected == taken else f"; it declares that it returns {expected}"
        expect(expected == result, f"the part maps {taken} to {result}{text}")

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


def owned(case: Case, made: nn.Module) -> tuple[str, ...]:
    """Return the prefixes of weights that the contract judges: those of the part, if the other parts are a user's."""
    if case.place != "recipe":
        return ("",)
    return tuple(f"{prefix}." for prefix, module in made.named_modules() if isinstance(module, case.part))


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
    inert, judged = inert_names(made), owned(case, made)
    largest = max((float(grad.abs().max()) for grad in grads.values() if grad is not None), default=0.0)
    for name, grad in grads.items():
        if not name.startswith(judged):
            continue
        size = 0.0 if grad is None else float(grad.abs().max())
        expect(size == size and size != float("inf"), f"the gradient of {name} is not finite")
        if name not in inert:
            expect(size > 1e-9 * largest, f"{name} has no gradient, so it cannot change the output")
        elif isinstance(inert[name], case.part) and not case.variant and not case.place and case.slot in SUBLAYERS:
            expect(size < 1e-6 * largest, f"{name} is declared inert, but it changes the output")
