"""Compilation to a single graph, and export with dynamic sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.export import Dim

from tfkit.contracts.calls import as_read, model, outputs, special, tokens
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect_equal, where
from tfkit.core.blame import shortened
from tfkit.models.base import Model

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
    arguments = special(case.needs, ids) | {"input_ids": ids, **({"attention_mask": real} if masked else {})}
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
    any_size = {name: dict.fromkeys(range(min(2, value.dim())), Dim.DYNAMIC) for name, value in arguments.items()}
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
