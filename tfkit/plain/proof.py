"""Proof of a printed text: its outputs on random weights, compared with those of the model."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import on_one_line
from tfkit.functional.linear import Linear
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.plain.inputs import Unprintable, answer, tensors

# batch, tokens, tokens of the source; one is a long text, and the first is also differentiated
SIZES = ((2, 11, 13), (3, 7, 9), (1, 1, 2), (1, 2, 1), (2, 180, 150))
NOISE = 0.05  # standard deviation of the noise on every weight, so that none is zero or one
FILE = "<printed>"  # file name of the text in tracebacks
CLOSE = 1e-6  # largest difference, relative to the largest value


def prove(blueprint: Blueprint, text: str, name: str, inputs: Sequence[str]) -> None:
    """Raise Unprintable, naming the part, unless class `name` in `text` has the model's outputs and gradients."""
    model, twin = _noisy(blueprint), _executed(text, name)
    with _failing("has other weights"):
        twin.load_state_dict(model.state_dict())
    for batch, time, source in SIZES:
        first, last = next(blueprint.stacks()), blueprint.last
        lengths = min(time, last.max_length or time), min(source, first.max_length or source)
        call = tensors(blueprint, inputs, batch, *lengths, "cpu")
        with torch.set_grad_enabled(batch == SIZES[0][0] and time == SIZES[0][1]):
            wanted = answer(model(**call))
            with _failing(f"fails for {batch} x {lengths[0]} tokens"):
                found = twin(**call)
            off = _relative(wanted, found)
            if off <= CLOSE and wanted.requires_grad:
                off = _gradients(model, twin, wanted, found)
        if not off <= CLOSE:
            where = _first_difference(model, twin, call)
            raise Unprintable(f"{where} computes something else as printed (difference {off:.0e}): {LIKELY}")


LIKELY = "it may depend on a length, on values, on training, or on earlier calls"


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise Unprintable for an error of the printed text."""
    try:
        yield
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILE]
        where = f" in {frames[-1].f_code.co_qualname}" if len(frames) > 1 else ""
        reason = on_one_line(f"{type(error).__name__}: {error}", 300)
        raise Unprintable(f"the printed text {what}{where}: {reason}") from error


def _noisy(blueprint: Blueprint) -> Model:
    """Build the model with noise on its weights, and with torch's own products, as in the text."""
    model = build_model(blueprint, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in model.state_dict().values():  # buffers too, such as a bias that is not trained
        if weight.is_floating_point():
            weight += NOISE * torch.randn(weight.shape, generator=generator)
    linears: list[nn.Module] = [module for module in model.modules() if type(module) is Linear]
    for linear in linears:
        linear.__class__ = nn.Linear
    return model


def _executed(text: str, name: str) -> nn.Module:
    """Execute the text and build its class, without changing the global RNG."""
    space: dict[str, Any] = {"__name__": "printed"}
    with _failing("fails"), torch.random.fork_rng(devices=[]):
        exec(compile(text, FILE, "exec", dont_inherit=True), space)
        twin: nn.Module = space[name]()
    return twin.eval()


def _relative(wanted: Tensor, found: object) -> float:
    """Return the largest difference, relative to the largest value; infinite for other shapes and for NaN."""
    if not isinstance(found, Tensor) or found.shape != wanted.shape or not bool(wanted.isfinite().all()):
        return math.inf
    wanted, found = wanted.detach(), found.detach()
    off = float((wanted - found).abs().max() / wanted.abs().max().clamp(min=1e-12)) if wanted.numel() else 0.0
    return math.inf if math.isnan(off) else off


def _gradients(model: nn.Module, twin: nn.Module, wanted: Tensor, found: Tensor) -> float:
    """Return the largest difference of the gradients of the sum of squares, relative to the largest."""
    every = []
    for module, out in ((model, wanted), (twin, found)):
        weights = [weight for _, weight in sorted(module.named_parameters()) if weight.requires_grad]
        try:
            given = torch.autograd.grad(out.square().sum(), weights, allow_unused=True, materialize_grads=True)
        except RuntimeError:  # an operation without a derivative, in both
            given = (torch.zeros(()),)
        every.append(torch.cat([gradient.flatten() for gradient in given]))
    return _relative(*every)


def _first_difference(model: nn.Module, twin: nn.Module, call: Mapping[str, Tensor]) -> str:
    """Name the first part whose output differs: its path and class."""
    outputs: list[dict[str, Tensor]] = []
    for module in (model, twin):
        found: dict[str, Tensor] = {}
        for path, part in module.named_modules():
            part.register_forward_hook(
                lambda _, __, out, path=path, found=found: found.update({path: found.get(path, out)})
            )
        module(**call)
        outputs.append(found)
    for path, out in outputs[0].items():
        other = outputs[1].get(path)
        if path and isinstance(out, Tensor) and isinstance(other, Tensor) and not _relative(out, other) <= CLOSE:
            return f"{path} ({type(model.get_submodule(path)).__name__})"
    return "the model"
