"""Every part compiles into one graph and exports with any sizes: many in one model, since tracing takes seconds.

When a model of many fails, its parts are tried one by one, so that the message names the one at fault.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.components.feedforward.dense import MLP
from tfkit.contracts.calls import model, randomise, run, special, tokens
from tfkit.contracts.cases import Case, load, loads
from tfkit.contracts.check import CHECKS
from tfkit.contracts.expect import expect_equal
from tfkit.contracts.options import D_MODEL
from tfkit.contracts.saving import compiles, one_graph, quiet
from tfkit.core.component import Shape
from tfkit.core.context import Context
from tfkit.core.registry import REGISTRY
from tfkit.models.base import Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

from .broken import Register

pytestmark = pytest.mark.full

# what masks and positions ask of an attention; one that does not declare it stands in a layer by itself
ASKED = {"masks", "rotation", "bias", "temperature"}


def parts(slot: str, capability: str, topology: str = "decoder") -> list[Case]:
    """The parts of a slot that promise `capability` and that `topology` accepts."""
    found = [Case(slot, name, topology) for name in REGISTRY.names(slot)]
    return [case for case in found if case.declares(capability) and loads(case)]


def spelled(case: Case) -> dict[str, Any]:
    """The part with the options that its recipe was accepted with."""
    model_node = load(case).root.plain()["model"]
    where = model_node["layer"] if case.slot in model_node["layer"] else model_node
    return where["feedforward"]["activation"] if case.slot == "activation" else where[case.slot]


def bundled(topology: str, capability: str) -> list[Case]:
    """Every part of the stacks' slots that promises `capability` in a topology of one stack."""
    slots = ("attention", "feedforward", "norm", "residual", "position", "mask", "head")
    return [case for slot in slots for case in parts(slot, capability, topology)]


def bundle(cases: list[Case]) -> tuple[list[Case], Model]:
    """A model of as few layers as hold every case, and the cases."""
    columns: dict[str, list[Case]] = {}
    for case in cases:
        embeds = case.slot == "position" and "embed" in case.part.hooks()  # type: ignore[attr-defined]
        columns.setdefault("embedded" if embeds else case.slot, []).append(case)
    embedded, heads = columns.pop("embedded", []), columns.pop("head", [])
    apart = [case for case in columns.get("attention", []) if not case.part.capabilities >= ASKED]
    columns["attention"] = [case for case in columns.get("attention", []) if case not in apart]
    layers = {
        f"kind_{index}": {slot: spelled(found[index]) for slot, found in columns.items() if index < len(found)}
        for index in range(max(map(len, columns.values())))
    }
    looked_at = max(len(columns.get(slot, [])) for slot in ("attention", "position", "mask"))
    for kind in list(layers.values())[looked_at:]:  # the rest needs no attention, which takes longest to trace
        kind.update({"attention": None, "sublayers": ["feedforward", "feedforward"]})
    layers |= {f"apart_{index}": {"attention": spelled(case)} for index, case in enumerate(apart)}
    base = Case("norm", "layer_norm", cases[0].topology).recipe()["model"]
    del base["num_layers"]
    recipe = base | {
        "position": [spelled(case) for case in embedded] or None,
        "layers": layers,
        "pattern": list(layers),
        "heads": {case.name: spelled(case) for case in heads},
    }
    made = build_model(load_recipe({"tfkit": 1, "model": recipe}).blueprint())
    randomise(made)
    return cases, made.eval()


def arguments_of(made: Model, batch: int, time: int) -> dict[str, torch.Tensor]:
    """A call with padding, and with all that the mask rules read."""
    ids, real = tokens(batch, time), torch.ones(batch, time, dtype=torch.long)
    real[0, 0] = real[-1, -2:] = 0
    stack = made.stack(made.blueprint.last.side)
    needs = stack.plan.needs
    given = special(needs, ids, 0, torch.zeros(batch, dtype=torch.long))
    return given | {"input_ids": ids, "attention_mask": real}


def compare(out: ModelOutput, want: ModelOutput, how: str) -> None:
    expect_equal(out.hidden, want.hidden, f"hidden states {how}, and not")
    for name, logits in want.heads.items():
        expect_equal(out.heads[name], logits, f"logits of the head '{name}' {how}, and not")


def blame(cases: list[Case], check: str, error: Exception) -> None:
    """Hold each part by itself to the check, so that its name is told; raise `error` if none fails alone."""
    for case in cases:
        CHECKS[check](case)
    raise error


@torch.no_grad()
@pytest.mark.parametrize("topology", [pytest.param("decoder", marks=pytest.mark.slow), "encoder"])
def test_layers_positions_and_heads_compile_into_one_graph(topology: str) -> None:
    # what a decoder takes is compiled there; an encoder has the rest
    done = set() if topology == "decoder" else {(case.slot, case.name) for case in bundled("decoder", "compile")}
    cases, made = bundle([case for case in bundled(topology, "compile") if (case.slot, case.name) not in done])
    arguments = arguments_of(made, 2, 6)
    want = made(**arguments)
    try:
        with one_graph(made) as compiled:
            out = compiled(**arguments)
    except torch._dynamo.exc.TorchDynamoException as error:
        blame(cases, "compile", error)
    compare(out, want, "compiled")


def test_activations_compile_into_one_graph() -> None:
    cases = parts("activation", "compile")
    made = torch.nn.ModuleList([case.config.build(Shape(D_MODEL)) for case in cases]).eval()
    x = torch.randn(3, D_MODEL, generator=torch.Generator().manual_seed(1))

    def every(x: torch.Tensor) -> list[torch.Tensor]:
        return [activation(x) for activation in made]

    with one_graph(every) as compiled:
        for case, out, want in zip(cases, compiled(x), every(x), strict=True):
            expect_equal(out, want, f"{case} compiled, and not")


@functools.lru_cache
def factor(number: int) -> int:
    return number * 2


class Remembers(MLP):
    """Calls a function with a cache, of which torch warns while it traces."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) * factor(3)


def test_what_torch_warns_of_is_no_break(register: Register) -> None:
    case = Case("feedforward", register("feedforward", Remembers).part_name, "decoder")
    made = model(case, torch.float32, num_layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiles(case, made, masked=False)


def test_an_encoder_decoder_compiles_into_one_graph() -> None:
    case = Case("attention", "multi_head", "encoder_decoder")
    compiles(case, model(case, torch.float32, num_layers=1), masked=False)


@pytest.mark.slow
def test_an_encoder_decoder_exports_with_any_sizes() -> None:
    CHECKS["export"](Case("attention", "multi_head", "encoder_decoder"))


@pytest.mark.slow
@torch.no_grad()
def test_layers_positions_and_heads_export_with_any_sizes() -> None:
    cases, made = bundle(bundled("encoder", "export"))
    arguments = arguments_of(made, 2, 6)
    anything = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    sizes = {name: anything if value.dim() > 1 else {0: anything[0]} for name, value in arguments.items()}
    try:
        with quiet():
            program = torch.export.export(made, (), arguments, dynamic_shapes=sizes).module()
    except Exception as error:
        blame(cases, "export", error)
    for batch, time in ((3, 9), (5, 4)):
        arguments = arguments_of(made, batch, time)
        compare(program(**arguments), made(**arguments), f"exported, on {batch} rows of {time},")


@pytest.mark.slow
@torch.no_grad()
def test_decoding_from_a_state_compiles_without_a_break() -> None:
    case = Case("attention", "multi_head", "decoder")
    made = model(case, torch.float32, num_layers=1)
    ids = tokens(2, 6)
    want = run(case, ids, on=made)["logits"]
    state = made.new_state()
    with one_graph(made) as compiled:
        found = [compiled(input_ids=ids[:, start:end], state=state).logits for start, end in ((0, 5), (5, 6))]
    expect_equal(torch.cat(found, dim=1), want, "logits decoded by a compiled model instead of at once")
