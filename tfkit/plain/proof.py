"""Proof of a printed text: its outputs on random weights, compared with those of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import on_one_line
from tfkit.functional.linear import Linear
from tfkit.models.base import Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.plain.inputs import Unprintable, tensors

SIZES = ((2, 11, 13), (3, 7, 9), (2, 180, 150))  # batch, tokens, tokens of the source; the last is a long text
NOISE = 0.05  # standard deviation of the noise on every weight, so that none is zero or one


def difference(blueprint: Blueprint, text: str, name: str, inputs: Sequence[str]) -> float:
    """Return the largest difference between the outputs of the model and of class `name` in `text`.

    It is relative to the largest output of a call; other shapes and NaN count as infinite. Raise Unprintable if the
    text fails or has other weights.
    """
    first, last = next(blueprint.stacks()), blueprint.last
    calls = []
    for batch, time, source in SIZES:
        lengths = min(time, last.max_length or time), min(source, first.max_length or source)
        calls.append(tensors(blueprint, inputs, batch, *lengths, "cpu"))
    model = _noisy(blueprint)
    with torch.no_grad():
        wanted = [_answer(model(**call)) for call in calls]
        try:
            found = _run(text, name, model.state_dict(), calls)
        except Exception as error:
            reason = on_one_line(f"{type(error).__name__}: {error}", 300)
            raise Unprintable(f"the printed text fails: {reason}") from error
    return max(map(_relative, wanted, found))


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


def _answer(out: ModelOutput) -> Tensor | None:
    """Return the logits, else the output of the first additional head, else the hidden states."""
    return next(iter(out.heads.values()), out.hidden) if out.logits is None else out.logits


def _run(text: str, name: str, weights: Mapping[str, Tensor], calls: Sequence[dict[str, Tensor]]) -> list[object]:
    """Execute the text and call its class `name` with these weights; the global RNG is unchanged."""
    space: dict[str, object] = {"__name__": "printed"}
    with torch.random.fork_rng(devices=[]):
        exec(compile(text, f"<{name}>", "exec", dont_inherit=True), space)
        twin: nn.Module = space[name]()  # type: ignore[operator]
    twin.load_state_dict(weights)
    twin.eval()
    return [twin(**call) for call in calls]


def _relative(wanted: Tensor | None, found: object) -> float:
    """Return the largest difference, relative to the largest value; infinite for other shapes and NaN."""
    if wanted is None or not isinstance(found, Tensor) or found.shape != wanted.shape:
        return math.inf
    off = float((wanted - found).abs().max() / wanted.abs().max().clamp(min=1e-12))
    return 0.0 if torch.equal(wanted, found) else math.inf if math.isnan(off) else off
