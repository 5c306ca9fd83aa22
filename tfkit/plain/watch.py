"""Replacements while a forward is recorded: calls of modules, einops, dropout, rotations, the loop over experts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import einops
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.components.feedforward.experts import Choice, Experts
from tfkit.core.blame import described, shortened
from tfkit.core.blueprint import Blueprint
from tfkit.core.context import Context
from tfkit.functional.attend import announce
from tfkit.functional.band import band_of, places_of
from tfkit.functional.dropout import Dropout, dropout
from tfkit.functional.rotate import rotate
from tfkit.functional.view import with_tensors
from tfkit.models.build import build_model
from tfkit.plain.inputs import Unprintable, answer, tensors
from tfkit.plain.record import Recorder, is_leaf, persistent
from tfkit.plain.values import Operation, Scope, Size, Value

LOCK = threading.Lock()  # what is replaced is global to the process
EINOPS = (einops.rearrange, einops.repeat, einops.reduce)


@dataclass
class Recording:
    """One recorded forward: the scope of the model, and the tensor that it returns."""

    recorder: Recorder
    root: Scope
    result: Value


def record(blueprint: Blueprint, inputs: Sequence[str], lengths: Mapping[str, int]) -> Recording:
    """Build a model on `meta` and record a call with these inputs: its logits, else its first head or hidden states.

    `lengths` are the sizes of batch, time and source. Raise Unprintable if it cannot be recorded. Threads take turns.
    """
    recorder = Recorder(lengths)
    given = tensors(blueprint, inputs, lengths["batch"], lengths["time"], lengths["source"], "meta")
    with LOCK, _replaced(recorder), recorder, torch.no_grad():
        model = build_model(blueprint, device="meta").train()
        root = recorder.watch(model, given)
        try:
            out = model(**given)
        except (TypeError, ValueError, RuntimeError, NotImplementedError, LookupError, AttributeError) as error:
            place = described(error) or f"{type(error).__name__}: {shortened(error)}"
            raise Unprintable(f"the forward cannot be recorded on meta, without values: {place}") from error
        recorder.stack.pop()
    recording = Recording(recorder, root, recorder.values[id(answer(out))])
    _reduce(recording)
    return recording


@contextmanager
def _replaced(recorder: Recorder) -> Iterator[None]:
    """Replace functions, in the modules that imported them, and methods by calls that are recorded."""
    thread, before = threading.get_ident(), []

    def replace(owner: object, name: str, new: Callable[..., object]) -> None:
        old = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            here = threading.get_ident() == thread and recorder.stack
            return new(recorder, old, *args, **kwargs) if here else old(*args, **kwargs)

        before.append((owner, name, old))
        setattr(owner, name, call)

    replace(nn.Module, "__call__", _module)
    replace(Experts, "_chosen", _experts)
    by_id: dict[int, Callable[..., object]] = {id(dropout): _dropout, id(rotate): _function, id(places_of): _places}
    by_id |= dict.fromkeys(map(id, EINOPS), _einops)
    by_id |= dict.fromkeys(map(id, (band_of, announce)), lambda *_: None)  # a faster kernel computes the same
    for module in [one for name, one in list(sys.modules.items()) if not name.startswith(("torch.", "einops."))]:
        for name, one in list(vars(module).items()):
            if id(one) in by_id:
                replace(module, name, by_id[id(one)])
    try:
        yield
    finally:
        for owner, name, old in reversed(before):
            setattr(owner, name, old)


def _copy(x: Tensor) -> Tensor:
    """Return a new tensor without recording a call of torch's API."""
    with torch._C.DisableTorchFunction():
        out: Tensor = torch.ops.aten.alias(x)
    return out


def _module(recorder: Recorder, old: Callable[..., object], module: nn.Module, *args: Any, **kwargs: object) -> object:
    """Call a module: a scope if it has weights, a step if it is one of torch's, else part of its caller."""
    if module is recorder.model:
        return old(module, *args, **kwargs)
    if isinstance(module, (Dropout, nn.Dropout)):
        step = Operation("dropout", "dropout", path=recorder.path_of(module))
        return recorder.record(step, args, {}, _copy(args[0])) if rate(module) else args[0]
    if not recorder.weighs(module):
        return old(module, *args, **kwargs)
    if isinstance(module, nn.Linear) and type(module.weight) is not nn.Parameter:  # of one expert
        return F.linear(args[0], module.weight, module.bias)
    path = recorder.path_of(module)
    if is_leaf(module):
        stack, recorder.stack = recorder.stack, []
        with torch._C.DisableTorchFunction():
            out = _recurrent(module, *args) if isinstance(module, nn.RNNBase) else module.forward(*args, **kwargs)
        recorder.stack = stack
        return recorder.record(Operation("leaf", "leaf", path=path), args, kwargs, out)
    if type(module).__module__.startswith("torch.nn"):  # a sequence of one's own modules
        return old(module, *args, **kwargs)
    scope = Scope(recorder.twins.get(id(module), module), path, recorder.stack[-1])
    call = partial(old, module, *args, **kwargs)
    return recorder.enter(scope, call, args, Operation("call", "call", path=path))


def _recurrent(module: nn.RNNBase, x: Tensor, *state: object) -> tuple[Tensor, object]:
    """Return tensors of the shapes that a recurrence of torch returns; on meta, every step takes long."""
    out, last = module.forward(x.narrow(int(module.batch_first), 0, 1), *state)
    return out.new_empty(*x.shape[:-1], out.shape[-1]), last


def rate(module: Dropout | nn.Dropout) -> float:
    """Return the rate of a dropout module."""
    return module.rate if isinstance(module, Dropout) else module.p


def _einops(recorder: Recorder, old: Callable[..., Tensor], *args: object, **sizes: int) -> object:
    with torch._C.DisableTorchFunction():
        out = old(*args, **{name: int(size) for name, size in sizes.items()})
        out = torch.ops.aten.alias(out) if out is args[0] else out
    return recorder.record(Operation("einops", old.__name__, old), args, sizes, out)


def _dropout(recorder: Recorder, old: Callable[..., Tensor], x: Tensor, rate: float) -> object:
    return recorder.record(Operation("op", "dropout", F.dropout), (x, rate), {}, _copy(x)) if rate else x


def _places(recorder: Recorder, old: Callable[..., object], marked: Tensor) -> tuple[Tensor, Tensor]:
    """Find marked tokens as `places_of` does, whose number of places depends on values."""
    order, most = marked.int().argsort(dim=1, descending=True, stable=True), marked.sum(dim=1).max()
    with torch._C.DisableTorchFunction():
        first = order[:, : recorder.lengths["marked"]]
    index = (slice(None), slice(None, most))
    places: Tensor = recorder.record(Operation("op", "__getitem__"), (order, index), {}, first)
    return places, marked.gather(1, places)


def _function(recorder: Recorder, old: Callable[..., Tensor], *args: object) -> object:
    """Call a pure function, printed as one."""
    scope = Scope(None, recorder.stack[-1].path, recorder.stack[-1], function=old.__name__)
    return recorder.enter(scope, partial(old, *args), args, Operation("call", "call"))


def _experts(
    recorder: Recorder, old: Callable[..., Tensor], part: Experts, rows: Tensor, choice: Choice, context: Context
) -> Tensor:
    """Record the body of all experts once, with weights `[expert]`; it is printed in a loop."""
    here, config = recorder.stack[-1], part.config
    path = f"{here.path}.experts"
    with torch._C.DisableTorchFunction():
        given, index = torch.ops.aten.alias(rows), torch.zeros((), device=rows.device)
        each = rows.new_empty(rows.shape[0], choice.experts.shape[1], rows.shape[1])
    arguments = tuple(map(recorder.value, (rows, choice.experts, choice.weights)))
    step = Operation("experts", config.weigh, config.num_experts, arguments, path=path, scope=here)
    step.outs = [recorder.new(each, Value(here, step, names=[(here, "each")]))]
    scope = Scope(part.experts, path, here, always=True)
    for name, one in (("x", given), ("expert", index)):
        scope.given.append(recorder.new(one, Value(scope, names=[(scope, name)])))
    recorder.stack.append(scope)
    twin = _expert(recorder, part.experts, scope.given[1])
    out = twin.forward(given, context)
    recorder.stack.pop()
    scope.outs, step.child = [recorder.values[id(out)]], scope
    here.steps.append(step)
    weighed = each * choice.weights[..., None] if config.weigh == "output" else each
    return weighed.sum(dim=1)


def _expert(recorder: Recorder, experts: nn.Module, index: Value) -> nn.Module:
    """Return a view of stacked experts with the weights of one."""
    number = Size(0, ("value", index, None))
    own = {weight: weight[number] for weight in experts.parameters()}
    twin = with_tensors(experts, own)  # type: ignore[arg-type]
    for one, other in zip(experts.modules(), twin.modules(), strict=True):
        recorder.paths[id(other)] = recorder.paths[id(one)]
        recorder.twins[id(other)] = one
    recorder.kept.append(twin)
    return twin


def _reduce(recording: Recording) -> None:
    """Drop the steps that the result does not need, and find what each scope reads and what is read of it."""
    used, waiting = set[int](), [recording.result]
    while waiting:
        step = waiting.pop().step
        if step is not None and id(step) not in used:
            used.add(id(step))
            waiting += [*step.values(), *(step.child.outs if step.kind == "experts" and step.child else ())]
    _prune(recording.root, used)
    _dissolve(recording.root)
    scopes = list(recording.root.under())
    for scope in scopes:
        for step in scope.steps:
            for value in step.values():
                _carry(value, scope)
    _carry(recording.result, recording.root)
    for scope in scopes:
        if scope.always and not set(scope.inputs) <= set(scope.given):
            raise Unprintable(f"an expert at {scope.path} reads more than its rows")
        given = [one for one in scope.given if scope.always or one in scope.inputs]
        scope.inputs = list(dict.fromkeys([*given, *scope.inputs]))


def _prune(scope: Scope, used: Set[int]) -> None:
    for step in scope.steps:
        if step.child is not None:
            _prune(step.child, used)
    scope.steps = [
        one for one in scope.steps if id(one) in used or (one.kind == "call" and one.child and one.child.steps)
    ]


def _dissolve(scope: Scope) -> None:
    """Write a module that only calls one module of torch, such as a table or a projection, as that one."""
    for place, step in enumerate(scope.steps):
        if step.child is None:
            continue
        _dissolve(step.child)
        inner, module = step.child.steps, step.child.module
        if step.kind == "call" and len(inner) == 1 and inner[0].kind == "leaf" and module and not persistent(module):
            inner[0].scope = scope
            for value in inner[0].outs:
                value.scope = scope
            scope.steps[place] = inner[0]


def _carry(value: Value, scope: Scope) -> None:
    """Hand a value through the scopes between the one that makes it and the one that reads it."""
    if value.scope is None or value.scope is scope:
        return
    home, here = value.scope.chain(), scope
    while here not in home and here.parent is not None:
        here.inputs += [value] * (value not in here.inputs)
        here = here.parent
    for level in home[: home.index(here)]:
        level.outs += [value] * (value not in level.outs)
