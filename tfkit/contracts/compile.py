"""Compilation to a single graph, and export with dynamic sizes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tfkit.contracts.calls import as_read, model, outputs, special, tokens
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect_equal, where
from tfkit.core.blame import shortened
from tfkit.models.base import Model

P = ParamSpec("P")
T = TypeVar("T")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings: those of the tracer are about Python or torch, not about the part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
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
    arguments = special(case.needs, ids, 0, torch.zeros(batch, dtype=torch.long)) | {"input_ids": ids}
    if masked:
        arguments["attention_mask"] = real
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
        why = f"{shortened(error)}{where(error, case.part)}"
        raise Broken(f"declares 'compile', but the graph breaks{how}: {why}") from None
    for name, value in outputs(case, out).items():
        expect_equal(value, want[name], f"{name}{how}, compiled instead of uncompiled")


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
    any_size: dict[str, Any] = {name: {0: torch.export.Dim.DYNAMIC} for name in arguments}
    for name, value in arguments.items():
        if value.dim() > 1:
            any_size[name][1] = torch.export.Dim.DYNAMIC
    try:
        with quiet():
            program = torch.export.export(made, (), arguments, dynamic_shapes=any_size).module()
    except Exception as error:
        why = f"{shortened(error)}{where(error, case.part)}"
        raise Broken(f"declares 'export', but it cannot be exported with dynamic batch and length: {why}") from None
    for batch, time in ((3, 9), (5, 4)):
        arguments = call_of(case, batch, time, masked)
        want = outputs(case, made(**arguments))
        for name, value in outputs(case, program(**arguments)).items():
            expect_equal(value, want[name], f"{name} exported, for {batch} rows of length {time}")


@contract("the model exports with dynamic batch and length", "determinism", capability="export", once=True, slow=True)
def check_export(case: Case) -> None:
    """Export at one size and run at two others."""
    exports(case, model(case, torch.float32, num_layers=1))
