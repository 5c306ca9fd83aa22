"""Incremental decoding equals a full forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tfkit.contracts.calls import PAD, SOURCE, Arguments, model, padded, run, tokens, tokenwise
from tfkit.contracts.cases import MIXING, Case, loads
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Compared, expect, expect_all, expect_equal
from tfkit.core.errors import UsageError
from tfkit.generation.decoder import StepDecoder

WINDOW = 3  # small enough that the state must drop keys


def decodes(case: Case) -> bool:
    """True if the model is causal and all its parts have a cache."""
    return case.blueprint.last.caches


def stepwise(
    case: Case,
    ids: Tensor,
    sizes: Sequence[int],
    real: Tensor | None = None,
    shift: Tensor | None = None,
    every_mask: bool = True,
    on: Any = None,
    **more: Any,
) -> dict[str, Tensor]:
    """Return the outputs for [batch time] ids, decoded with a state in steps of the given sizes."""
    state, outputs, start = (on or model(case)).new_state(), [], 0
    for end in itertools.accumulate(sizes):
        mask = real[:, :end] if real is not None and (every_mask or start == 0) else None
        outputs.append(tokenwise(run(case, ids[:, start:end], mask, shift=shift, state=state, on=on, **more)))
        start = end
    return {name: torch.cat([part[name] for part in outputs], dim=1) for name in outputs[0]}


@contract(
    "decoding with a state equals a forward pass over the whole text",
    "future",
    capability="cache",
    when=decodes,
    every_option=True,
)
@torch.no_grad()
def check_cache(case: Case) -> None:
    """Decode in steps of different sizes, also with generation's copies, left padding, dropped keys and rewinding."""
    ids = tokens(3, 7)
    more = memory_of(case, 3)
    plans = [[4, 3], [5, 1, 1], [7]] if case.opens else [[1] * 7, [4, 3], [5, 1, 1]]
    for sizes in plans:
        expect_all(decoded(case, ids, sizes, f"decoded in steps of {sizes}", **more))
    copies = StepDecoder(model(case, torch.float32)).current()
    expect_all(decoded(case, ids, plans[0], "decoded with the copies of generation", on=copies, **more), 1e-3)
    if case.declares("padding"):
        _left_padded(case)
    if not case.opens:
        _rewound(case)
    if case.slot in ("attention", "position"):
        _forgotten(case)


def decoded(case: Case, ids: Tensor, sizes: Sequence[int], how: str, on: Any = None, **more: Any) -> Compared:
    """Compare decoding in steps with a forward pass over the whole text."""
    steps = stepwise(case, ids, sizes, on=on, **more)
    for name, value in tokenwise(run(case, ids, **more)).items():
        yield f"{name} {how} instead of at once", steps[name], value


def _rewound(case: Case) -> None:
    """Rewind the state and decode other tokens; a state that cannot rewind must raise an error and remain usable."""
    ids, other, more = tokens(2, 7), tokens(2, 4, seed=70), memory_of(case, 2)
    state = model(case).new_state()
    run(case, ids[:, :4], state=state, **more)
    run(case, ids[:, 4:5], state=state, **more)
    text, start = torch.cat((ids[:, :3], other), dim=1), 3
    try:
        state.rewind(start)
    except UsageError:
        text, start = ids, 5
    if case.slot in MIXING:
        declared, does = "rewind" in case.part.able(case.config), start == 3
        expect(declared <= does, "declares 'rewind', but the state refuses to rewind")
        expect(does <= declared, "does not declare 'rewind', but the state can rewind")
    full = tokenwise(run(case, text, **more))
    rest = tokenwise(run(case, text[:, start:], state=state, **more))
    for name, value in full.items():
        how = "a rewind" if start == 3 else "a refused rewind"
        expect_equal(rest[name], value[:, start:], f"{name} decoded after {how} instead of at once")


def _forgotten(case: Case) -> None:
    """Decode beyond a window, so that the state drops keys: in steps, after a long prompt, and with left padding."""
    masked = case.with_layer(mask={"type": "window", "size": WINDOW})
    if not loads(masked):
        return
    ids, more = tokens(2, 11), memory_of(case, 2)
    for sizes in ([1, 1, 5, 1, 3], [8, 1, 1, 1]):
        expect_all(decoded(masked, ids, sizes, f"beyond a window, decoded in steps of {sizes}", **more))
    if case.declares("padding"):
        _left_padded(masked)


def memory_of(case: Case, rows: int) -> Arguments:
    """Return a different source for each row, some of them padded, if the model has an encoder."""
    if not case.pair:
        return {}
    real = torch.ones(rows, SOURCE, dtype=torch.long)
    real[1:, -2:] = 0
    return {"source": tokens(rows, SOURCE, seed=30), "source_real": real}


def _left_padded(case: Case) -> None:
    rows = [tokens(1, length, seed=40 + length)[0] for length in (9, 7, 4)]
    call = padded(rows, "left", PAD)
    more = memory_of(case, 3)
    full = tokenwise(run(case, **call, **more))
    kept = call["real"].bool()
    # the first step contains all padding and the whole prefix; later steps contain no padding
    for every_mask, sizes in ((True, [9, 1]),) if case.opens else ((True, [7, 1, 2]), (False, [7, 2, 1])):
        steps = stepwise(case, sizes=sizes, every_mask=every_mask, **call, **more)
        for name, value in full.items():
            how = "with the mask in every call" if every_mask else "with the mask in the first call only"
            what = f"{name} decoded in steps of {sizes} instead of at once, with left padding, {how}"
            expect_equal(steps[name][kept], value[kept], what)


@contract(
    "after reordering a decode state, each row continues the row it was copied from",
    "cache",
    capability="cache",
    when=decodes,
    every_option=True,
)
@torch.no_grad()
def check_reorder(case: Case) -> None:
    """Repeat, swap and drop rows of the state after five tokens."""
    ids, more = tokens(3, 5), memory_of(case, 3)
    for order in ([2, 0, 0, 1], [1]):
        rows = torch.tensor(order)
        new = tokens(len(order), 3, seed=50)
        whole = torch.cat((ids[rows], new), dim=1)
        chosen = {name: value[rows] for name, value in more.items()}
        full = tokenwise(run(case, whole, **chosen))
        state = model(case).new_state()
        run(case, ids, state=state, **more)
        state.reorder(rows)
        parts = [tokenwise(run(case, new[:, place : place + 1], state=state, **chosen)) for place in range(3)]
        for name, value in full.items():
            steps = torch.cat([part[name] for part in parts], dim=1)
            expect_equal(steps, value[:, 5:], f"{name} after reordering the rows to {order}, and at once")
    expect(state.bytes() >= 0, "the decode state reports a negative size in bytes")


@contract(
    "with a decode state, the encoder runs only once",
    "cache",
    capability="cache",
    when=lambda case: case.pair and decodes(case),
)
@torch.no_grad()
def check_encoder_runs_once(case: Case) -> None:
    """Count the calls of the encoder in four decoding steps."""
    run(case, tokens(2, 4))  # the first call runs the model again to classify the head
    calls: list[int] = []
    hook = model(case).stack("encoder").register_forward_hook(lambda *arguments: calls.append(1))
    try:
        stepwise(case, tokens(2, 4), [1, 1, 1, 1])
    finally:
        hook.remove()
    expect(len(calls) == 1, f"the encoder ran {len(calls)} times in 4 decoding steps")
