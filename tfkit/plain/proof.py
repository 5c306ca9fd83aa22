"""Proof of a printed text: its logits on random weights, compared with those of the model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.functional.linear import Linear
from tfkit.models.base import Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.plain.inputs import Unprintable, tensors

SIZES = ((2, 11, 13), (3, 7, 9), (2, 180, 150))  # batch, tokens, tokens of the source; the last is long
NOISE = 0.05  # added to every weight, so that none is zero or one


def difference(blueprint: Blueprint, text: str, name: str, inputs: Sequence[str]) -> float:
    """Return the largest difference between the outputs of the model and of class `name` in `text`.

    It is relative to the largest output of the model, for calls of several sizes, and infinite for outputs that are not
    finite. Raise Unprintable if the text fails or has other weights.
    """
    model = _noisy(blueprint)
    twin = _executed(text, name)
    twin.load_state_dict(_agreeing(model, twin))
    worst = 0.0
    for batch, time, source_time in SIZES:
        first, last = next(blueprint.stacks()), blueprint.last
        lengths = (min(time, last.max_length or time), min(source_time, first.max_length or source_time))
        given = tensors(blueprint, inputs, batch, *lengths, "cpu")
        with torch.no_grad():
            wanted = _answer(model(**given))
            with _of_text():
                found = twin(**given)
        worst = max(worst, _relative(wanted, found))
    return worst


def _noisy(blueprint: Blueprint) -> Model:
    """Build the model with noise on its weights, and with torch's own products, as in the text."""
    model = build_model(blueprint, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                weight.add_(NOISE * torch.randn(weight.shape, generator=generator))
    linears: list[nn.Module] = [module for module in model.modules() if type(module) is Linear]
    for linear in linears:
        linear.__class__ = nn.Linear
    return model


def _executed(text: str, name: str) -> nn.Module:
    """Execute the text and build its class `name`, without changing the global RNG."""
    space: dict[str, object] = {"__name__": "printed"}
    with _of_text(), torch.random.fork_rng(devices=[]):
        exec(compile(text, f"<{name}>", "exec", dont_inherit=True), space)
        twin: nn.Module = space[name]()  # type: ignore[operator]
        return twin.eval()


@contextmanager
def _of_text() -> Iterator[None]:
    """Raise any error of the printed text as Unprintable."""
    try:
        yield
    except Exception as error:
        raise Unprintable(f"the printed text fails: {type(error).__name__}: {error}") from error


def _agreeing(model: nn.Module, twin: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the model. Raise Unprintable if the twin's have other names or shapes."""
    weights = model.state_dict()
    own, others = ({(key, weight.shape) for key, weight in one.state_dict().items()} for one in (model, twin))
    if different := sorted({key for key, _ in own ^ others}):
        raise Unprintable(f"the printed text has other weights than the model: {', '.join(different)}")
    return weights


def _answer(out: ModelOutput) -> Tensor | None:
    """Return the logits, else the output of the first additional head, else the hidden states."""
    return next(iter(out.heads.values()), out.hidden) if out.logits is None else out.logits


def _relative(wanted: Tensor | None, found: object) -> float:
    """Return the largest difference, relative to the largest value; infinite for other shapes and for NaN."""
    if wanted is None or not isinstance(found, Tensor) or found.shape != wanted.shape:
        return math.inf
    off = float((wanted - found).abs().max() / wanted.abs().max().clamp(min=1e-12))
    return 0.0 if torch.equal(wanted, found) else math.inf if math.isnan(off) else off
