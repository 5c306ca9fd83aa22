"""Coordinate check of muP: the size of updates does not grow with the width."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.contracts.cases import SUBLAYERS, Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.contracts.options import D_MODEL, VOCABULARY
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.trees import Tree
from tfkit.models.build import build_model
from tfkit.models.base import Model
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Train
from tfkit.training.groups import regroup, set_rate

WIDER = 8  # width relative to the base
STEPS = 3
RATE = 0.002
MOST = 2.5  # maximum ratio of the changes; without muP, the ratio is 4 to 9


@contract(
    "under muP, training changes the logits of wide and narrow models equally, or muP refuses the part",
    "gradients",
    slots=(*SUBLAYERS, "norm", "residual", "embedding", "position", "head"),
    when=lambda case: case.topology == "decoder" and not case.variant and not case.place,
)
def check_coordinates(case: Case) -> None:
    """Train a narrow and a wide model for a few steps."""
    try:
        narrow, wide = (change_of(grown(case.recipe(), factor)) for factor in (1, WIDER))
    except (RecipeError, UsageError):
        return  # muP refuses the part, or the model does not predict tokens from ids
    ratio = wide / narrow
    expect(
        1 / MOST < ratio < MOST,
        f"at {WIDER} times the width, logits change {ratio:.2g} times as much; check which update grows with d_model",
    )


def grown(recipe: Tree, factor: int, parametrized: bool = True) -> dict[str, object]:
    """Return the recipe with `factor` times the width, under muP with the original sizes as base."""
    model = {**recipe["model"], "d_model": factor * D_MODEL}
    base: dict[str, int] = {"d_model": D_MODEL}
    feedforward = model["layer"].get("feedforward")
    if isinstance(feedforward, dict) and "d_ff" in feedforward:
        base["layer.feedforward.d_ff"] = feedforward["d_ff"]
        wide = {**feedforward, "d_ff": factor * feedforward["d_ff"]}
        model["layer"] = {**model["layer"], "feedforward": wide}
    if parametrized:
        model["parametrization"] = {"type": "mup", "base": base}
    return {**recipe, "model": model}


def change_of(recipe: dict[str, object]) -> float:
    """Return the mean absolute change of the logits after a few Adam steps; raise UsageError if there are none."""
    model = build_model(load_recipe(recipe).blueprint(), seed=0)
    ids = torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    regroup(optimizer, model, Train())
    set_rate(optimizer, RATE)
    before = _logits(model, ids).detach()
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = _logits(model, ids)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()
    return float((_logits(model, ids).detach() - before).abs().mean())


def _logits(model: Model, ids: Tensor) -> Tensor:
    """Return logits [batch time vocabulary]; raise UsageError if the model has none or needs other inputs than ids."""
    logits: Tensor | None = model(ids).logits
    if logits is None or logits.shape != (*ids.shape, VOCABULARY):
        raise UsageError("the model does not predict tokens")
    return logits
