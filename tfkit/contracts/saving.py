"""Saving, dropout, muP, refused recipes, compilation and plain code of a part in a model."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.export import Dim
from torch.utils._pytree import tree_map

from tfkit.contracts.calls import arguments_of, as_read, extra, fresh, model, outputs, run, special, tokens
from tfkit.contracts.cases import IN_WORDS, SUBLAYERS, TOPOLOGIES, Case, blueprint, lacks, loads
from tfkit.contracts.check import contract
from tfkit.contracts.expect import SAME, Broken, expect, expect_equal, expect_finite, far, twins, where
from tfkit.contracts.options import D_MODEL, VOCABULARY
from tfkit.core.blame import shortened
from tfkit.core.bounds import Options, Tree
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.rooms import page
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Train
from tfkit.runs.weights import Weights, load_weights
from tfkit.training.optimizer import regroup, set_rate


@contract("a seed determines the weights, and building a model does not change the RNG state", "determinism", once=True)
@torch.no_grad()
def check_seed(case: Case) -> None:
    """Build two models with the same seed and one with a different seed."""
    plan, ids = blueprint(case), tokens(2, 6)
    before = torch.get_rng_state()
    first, second, other = (build_model(plan, seed=seed).eval() for seed in (3, 3, 4))
    expect(torch.equal(before, torch.get_rng_state()), "building a model changes the RNG state")
    for (name, weight), same in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        expect(torch.equal(weight, same), f"{name} differs between two models with the same seed")
    different = any(not torch.equal(weight, other.state_dict()[name]) for name, weight in first.state_dict().items())
    expect(different, "two seeds yield equal weights")
    outs = [run(case, ids, on=made) for made in (first, second, first)]
    for out in outs[1:]:
        for name, value in outs[0].items():
            expect(torch.equal(out[name], value), f"{name} differs between two models with the same seed")


@contract("initial weights are finite, and no matrix is constant", "built", slots=("init",))
def check_initial(case: Case) -> None:
    """Check the weights of a newly built model."""
    for name, weight in build_model(blueprint(case), seed=2).named_parameters():
        expect_finite({name: weight}, "as initialized")
        if weight.dim() > 1:
            expect(float(weight.detach().std()) > 0, f"{name} is constant")


@contract("a model survives pickling and copying", "determinism", once=True)
@torch.no_grad()
def check_copies(case: Case) -> None:
    """Copy a model after inference and a backward pass, and compare the outputs."""
    made, ids = fresh(case), tokens(2, 5)
    want = run(case, ids)
    with torch.inference_mode():
        run(case, ids, on=made)
    with torch.enable_grad():
        torch.autograd.backward([value.sum() for value in run(case, ids, on=made).values()])
    for how, twin in twins(made, "a model", case.part):
        for name, value in run(case, ids, on=twin).items():
            expect(torch.equal(value, want[name]), f"{name} of the {how} model differs")


@contract(
    "weights survive saving, tied ones are stored once, and names and shapes on `meta` are equal",
    "determinism",
    once=True,
)
@torch.no_grad()
def check_saving(case: Case) -> None:
    """Save the tensors, each once, and load them into a model with a different seed."""
    made, ids = model(case, torch.float32), tokens(2, 5)
    meta = build_model(blueprint(case), device="meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in meta.state_dict().items()}
    differing = sorted(name for name in shapes.keys() | there.keys() if shapes.get(name) != there.get(name))
    expect(not differing, f"a model on meta has different weights: {', '.join(differing)}")
    other = reloaded(made)
    for name, value in run(case, ids, on=other).items():
        expect(torch.equal(value, run(case, ids, on=made)[name]), f"{name} differs after saving and loading")


def reloaded(made: Model) -> Model:
    """Save the weights of a model, and load them into a model with a different seed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        Weights.of(made).save(path)
        other = build_model(made.blueprint, dtype=next(made.parameters()).dtype, seed=99).eval()
        load_weights(other, path)
    return other


@contract("a model on `meta` runs and has the right shapes, so that costs can be counted", "shapes", once=True)
@torch.no_grad()
def check_meta(case: Case) -> None:
    """Run a forward pass on the meta device."""
    made = build_model(blueprint(case), device="meta").eval()
    arguments = tree_map(lambda value: value.to("meta"), arguments_of(case, tokens(2, 5)))
    want = run(case, tokens(2, 5))
    for name, value in outputs(case, made(**arguments)).items():
        shapes = f"{name} has shape {list(value.shape)} on meta, but {list(want[name].shape)} on the CPU"
        expect(value.shape == want[name].shape, shapes)


RATE = 0.25
ROWS = 1500  # number of copies of a row, to estimate the mean


@contract(
    "dropout is active in training, preserves the mean, and has no effect in eval mode",
    "determinism",
    when=lambda case: "dropout" in case.part.Config.model_fields,
)
@torch.no_grad()
def check_dropout(case: Case) -> None:
    """Compare the part with and without its `dropout` option."""
    dropping = case.with_(dropout=RATE)
    made = fresh(dropping)
    ids = tokens(2, 6)
    for name, value in run(dropping, ids).items():
        expect_equal(value, run(case, ids)[name], f"{name} in eval mode, with dropout instead of without", SAME)
    made.train()
    first, second = run(dropping, ids, on=made), run(dropping, ids, on=made)
    drops = any(far(first[name], second[name]) > 0 for name in first)
    expect(drops, f"with dropout: {RATE}, two calls in training mode return equal outputs")
    if case.slot in (*SUBLAYERS, "embedding"):
        _keeps_the_mean(dropping, made, ids[:1])


def _keeps_the_mean(case: Case, made: Model, ids: Tensor) -> None:
    """Check that the mean output with dropout, over many copies of a row, equals the output without dropout."""
    part = next(module for module in made.modules() if isinstance(module, case.part))
    seen: list[Tensor] = []
    hook = part.register_forward_hook(lambda module, arguments, out: seen.append(out))
    many = ids.expand(ROWS, -1)  # [ROWS time]
    run(case, many, on=made)
    made.eval()
    run(case, ids, on=made)
    hook.remove()
    dropped, want = seen[0], seen[-1][0]
    error = dropped.std(dim=0) / many.shape[0] ** 0.5
    allowed = 6 * error + 0.1 * want.pow(2).mean().sqrt()
    off = (dropped.mean(dim=0) - want).abs()
    expect(
        bool((off <= allowed).all()),
        f"the mean with dropout is off by {float(off.max()):.2f}; the largest output is {float(want.abs().max()):.2f}",
    )


WIDER = 8  # width relative to the base
STEPS = 3
STEP_RATE = 0.002
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
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_RATE)
    regroup(optimizer, model, Train())
    set_rate(optimizer, STEP_RATE)
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


# capability -> layer keys that require it, and the slots whose parts then need it
ASKING: dict[str, tuple[Options, tuple[str, ...]]] = {
    "rotation": ({"position": "rotary"}, ("attention",)),
    "bias": ({"position": "alibi"}, ("attention",)),
    "masks": ({"mask": {"type": "window", "size": 3}}, SUBLAYERS),
}


@contract("a recipe that needs an undeclared capability is refused", "built", slots=SUBLAYERS, once=True)
def check_refusals(case: Case) -> None:
    """Load recipes that require capabilities the part does not declare."""
    for recipe_case, capability, words in _requiring(case):
        expect(not loads(recipe_case), f"does not declare {capability}, but a recipe {words} is accepted")


def _requiring(case: Case) -> Iterator[tuple[Case, str, str]]:
    """Yield cases that must be refused, with the missing capability and a description of the recipe."""
    for topology in TOPOLOGIES[case.slot]:
        other = Case(case.slot, case.name, topology)
        if lacking := lacks(other):
            yield other, " and ".join(lacking), f"that uses it {IN_WORDS[topology]}"
    for capability, (keys, slots) in ASKING.items():
        if case.slot in slots and not case.declares(capability):
            text = " and ".join(f"{name}: {value}" for name, value in keys.items())
            yield case.with_layer(**keys), capability, f"with {text}"


P = ParamSpec("P")
T = TypeVar("T")


def quiet() -> AbstractContextManager[object]:
    """Suppress warnings: those of the tracer are about Python or torch, not about the part."""
    return warnings.catch_warnings(action="ignore")


@contextmanager
def one_graph(function: Callable[P, T]) -> Iterator[Callable[P, T]]:
    """Compile a function to a single graph; torch's compile caches are cleared before and after."""
    torch._dynamo.reset()
    try:
        with quiet():
            yield torch.compile(function, fullgraph=True, backend="eager")
    finally:
        torch._dynamo.reset()


def call_of(case: Case, batch: int, time: int, masked: bool) -> dict[str, Tensor]:
    """Return the inputs of a model call."""
    ids = tokens(batch, time)
    real = torch.ones(batch, time, dtype=torch.long)
    real[-1, -1] = 0
    arguments = special(case.needs, ids) | extra(case, ids, torch.float32) | {"input_ids": ids}
    arguments |= {"attention_mask": real} if masked else {}
    if case.pair:
        arguments["decoder_input_ids"] = tokens(batch, time + 1, seed=2)
    return as_read(case, arguments, torch.float32)


@torch.no_grad()
def compiles(case: Case, made: Model, masked: bool) -> None:
    """Raise Broken unless the model compiles to a single graph with equal outputs."""
    arguments = call_of(case, 2, 6, masked)
    want = outputs(case, made(**arguments))
    how = " with an attention_mask" * masked
    try:
        with one_graph(made) as compiled:
            out = compiled(**arguments)
    except torch._dynamo.exc.TorchDynamoException as error:
        raise broken(case, "compile", f"the graph breaks{how}", error) from None
    for name, value in outputs(case, out).items():
        expect_equal(value, want[name], f"{name}{how}, compiled instead of uncompiled")


def broken(case: Case, capability: str, what: str, error: Exception) -> Broken:
    """Describe an error of the tracer, with the line in the part's file."""
    return Broken(f"declares '{capability}', but {what}: {shortened(error)}{where(error, case.part)}")


@contract("the whole model compiles to a single graph", "determinism", capability="compile", once=True, slow=True)
def check_compile(case: Case) -> None:
    """Trace the model, without generating code."""
    made = model(case, torch.float32, num_layers=1)
    for masked in (False, True) if case.declares("padding") else (False,):
        compiles(case, made, masked)


@torch.no_grad()
def exports(case: Case, made: Model) -> None:
    """Raise Broken unless the model exports with dynamic batch and length, with equal outputs at other sizes."""
    masked = case.declares("padding")
    arguments = call_of(case, 2, 6, masked)
    rows = {"inputs": {name: {0: Dim.DYNAMIC} for name in arguments.get("inputs", {})}}
    any_size = {
        name: rows.get(name) or dict.fromkeys(range(min(2, value.dim())), Dim.DYNAMIC)
        for name, value in arguments.items()
    }
    try:
        with quiet():
            program = torch.export.export(made, (), arguments, dynamic_shapes=any_size).module()
    except Exception as error:
        raise broken(case, "export", "it cannot be exported with dynamic batch and length", error) from None
    for batch, time in ((3, 9), (5, 4)):
        arguments = call_of(case, batch, time, masked)
        want = outputs(case, made(**arguments))
        for name, value in outputs(case, program(**arguments)).items():
            expect_equal(value, want[name], f"{name} exported, for {batch} rows of length {time}")


@contract("the model exports with dynamic batch and length", "determinism", capability="export", once=True, slow=True)
def check_export(case: Case) -> None:
    """Export at one size and run at two others."""
    exports(case, model(case, torch.float32, num_layers=1))


RECORDED = 512  # maximum length, which leaves the printer a choice of lengths to record


@contract(
    "the model is printed as plain torch with equal outputs, or a reason is given",
    "determinism",
    when=lambda case: page("code") is not None,
    once=True,
    slow=True,
)
def check_plain(case: Case) -> str | None:
    """Print the model; the printer compares the outputs. Return the reason if a part cannot be printed."""
    recipe = case.recipe()
    recipe["model"]["max_length"] = RECORDED
    if printer := page("code"):
        try:
            printer.printed(load_recipe(recipe), usable=False)
        except printer.Unprintable as error:
            return str(error)
    return None
