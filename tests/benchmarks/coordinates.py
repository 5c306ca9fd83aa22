"""Coordinate check of muP: changes of each part's output in a few training steps, by width.

Under muP the changes are independent of the width; under the standard parametrization those of the logits and of
late layers grow with it (Yang et al. 2022, arXiv 2203.03466, appendix D.1).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.rounds import say
from tfkit.core.bounds import JsonObject
from tfkit.core.errors import UsageError, optional
from tfkit.core.figures import Console, drawn
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe
from tfkit.reports.parts_table import rows as print_columns
from tfkit.storage.files import write_text
from tfkit.training.optimizer import regroup, set_rate
from tfkit.training.setup import steps_of

PARAMETRIZATIONS = ("mup", "standard")
DEPTHS = ("num_layers", "encoder.num_layers", "decoder.num_layers")
ROWS, LONGEST = 4, 32  # random ids: rows, and maximum tokens per row
UNKNOWN = 256  # vocabulary size if it depends on a tokenizer
Reader = Callable[[Sequence[str]], Recipe]  # loads a recipe with these `--set` overrides


@dataclass(frozen=True)
class PartChange:
    """Mean absolute change of a part's output after each training step."""

    parametrization: str
    factor: int
    part: str
    after: tuple[float, ...]


def coordinate_changes(read: Reader, factors: Sequence[int], steps: int) -> Iterator[PartChange]:
    """Train a recipe at multiples of its base widths, with and without muP; yield the change of each part.

    The ids are random, the optimizer and the peak learning rate are the recipe's. Raises UsageError for a recipe
    without `model.parametrization`, and for a model that reads no ids or has no logits; RecipeError for a width that
    the recipe does not allow.
    """
    chosen = read(()).blueprint(UNKNOWN if read(()).unknown_vocab else None).parametrization
    if chosen is None:
        raise UsageError("model.parametrization: needs a base, whose widths grow: {type: mup, base: {d_model: 64}}")
    widths = [(key, size) for key, size in chosen.written if key not in DEPTHS]
    for parametrization in PARAMETRIZATIONS:
        standard = ["model.parametrization=none"] if parametrization == "standard" else []
        for factor in factors:
            recipe = read([*(f"model.{key}={factor * size}" for key, size in widths), *standard])
            for part, after in _changes(recipe, steps).items():
                yield PartChange(parametrization, factor, part, after)


def _changes(recipe: Recipe, steps: int) -> dict[str, tuple[float, ...]]:
    """Return the change of each part after each step."""
    blueprint = recipe.labelled(2).blueprint(UNKNOWN if recipe.unknown_vocab else None)
    model = build_model(blueprint, seed=0).eval()  # without dropout, whose noise would hide the changes
    inputs = _inputs(model)
    schedule, length = recipe.train.schedule.build(), steps_of(recipe)
    rate = max(float(schedule.lr(step, length, blueprint.last.d_model)) for step in range(1, length + 1))
    optimizer = recipe.train.optimizer.build().make(model, rate)
    regroup(optimizer, model, recipe.train)
    set_rate(optimizer, rate)
    begun = _values(model, inputs)
    changes: dict[str, list[float]] = {part: [] for part in begun}
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model(**inputs).logits).backward()
        optimizer.step()
        for part, value in _values(model, inputs).items():
            changes[part].append(float((value - begun[part]).abs().mean()))
    return {part: tuple(after) for part, after in changes.items()}


def _inputs(model: Model) -> dict[str, Tensor]:
    """Draw random ids for each stack of the model; raise UsageError if a stack reads vectors."""
    draw = torch.Generator().manual_seed(1)
    names = ("input_ids", "decoder_input_ids")
    inputs = {}
    for name, plan in zip(names, model.blueprint.stacks(), strict=False):
        if plan.reads_vectors or plan.vocab_size is None:
            raise UsageError(f"the {plan.side} reads vectors; coordinates are measured with random ids")
        length = min(LONGEST, plan.max_length or LONGEST)
        inputs[name] = torch.randint(plan.vocab_size, (ROWS, length), generator=draw)
    return inputs


def _loss(logits: Tensor | None) -> Tensor:
    """Return a loss against random targets: classes, or numbers for scalar outputs."""
    if logits is None:
        raise UsageError("the model has no head that gives logits")
    draw = torch.Generator().manual_seed(2)
    if logits.dim() == 1:
        return F.mse_loss(logits, torch.randn(logits.shape, generator=draw))
    targets = torch.randint(logits.shape[-1], logits.shape[:-1], generator=draw)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@torch.no_grad()
def _values(model: Model, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of the embeddings, the layers and the head."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, arguments: object, output: Tensor) -> None:
        outputs[name] = output.clone()

    with contextlib.ExitStack() as hooks:
        for plan in model.blueprint.stacks():
            stack = model.stack(plan.side)
            named = [("embedding", stack.embedding), *((f"layer {i}", layer) for i, layer in enumerate(stack.layers))]
            for name, module in named:
                if module is not None:
                    hooks.enter_context(module.register_forward_hook(partial(keep, f"{plan.side} {name}")))
        logits = model(**inputs).logits
    return {**outputs, **({} if logits is None else {"logits": logits})}


def growth(changes: Sequence[PartChange]) -> list[JsonObject]:
    """Return a row per part and parametrization: the last change at each width, relative to the smallest width."""
    rows = []
    for parametrization in PARAMETRIZATIONS:
        own = [one for one in changes if one.parametrization == parametrization]
        for part in dict.fromkeys(one.part for one in own):
            by_factor = {one.factor: one.after[-1] for one in own if one.part == part}
            first = next(iter(by_factor.values()))
            ratios = {factor: after / first if first else 1.0 for factor, after in by_factor.items()}
            rows.append({"parametrization": parametrization, "part": part, "first": first, "ratios": ratios})
    return rows


def render(rows: Sequence[JsonObject], factors: Sequence[int]) -> None:
    """Print one table per parametrization."""
    for name in PARAMETRIZATIONS:
        own = [row for row in rows if row["parametrization"] == name]
        cells = [[row["part"], f"{row['first']:.3g}", *(f"{one:.2f}" for one in row["ratios"].values())] for row in own]
        print_columns(Console(), cells, ["muP" if name == "mup" else name, "change", *(f"x {one}" for one in factors)])
        say("")


def draw(changes: Sequence[PartChange], title: str, out: Path) -> None:
    """Write the picture to a file; a warning says if matplotlib is missing."""
    if text := drawn(str(out), lambda: picture(changes, title)):
        write_text(out, text)


def picture(changes: Sequence[PartChange], title: str) -> str:
    """Draw the changes as SVG: a panel per parametrization, a line per part; needs the extra `test`."""
    figure = optional("matplotlib.figure", "test", "figures need").Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, len(PARAMETRIZATIONS), sharey=True)
    parts = list(dict.fromkeys(one.part for one in changes))
    for axes, parametrization in zip(panels, PARAMETRIZATIONS, strict=True):
        for place, part in enumerate(parts):
            own = [one for one in changes if one.parametrization == parametrization and one.part == part]
            colour = f"C{place % 10}"
            axes.plot([one.factor for one in own], [one.after[-1] for one in own], marker="o", color=colour, label=part)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("width, times the base")
        axes.set_title("muP" if parametrization == "mup" else parametrization)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, frameon=False)
    panels[0].set_ylabel(f"mean change after {len(changes[0].after)} steps")
    stream = io.StringIO()
    with optional("matplotlib", "test", "figures need").rc_context({"svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()
