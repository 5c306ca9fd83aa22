"""Cached decoding, positions, and cross-attention to a memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.contracts.calls import (
    PAD,
    SOURCE,
    TIME,
    Alone,
    Arguments,
    built,
    model,
    padded,
    run,
    states,
    tokens,
    tokenwise,
)
from tfkit.contracts.cases import MIXING, Case, loads
from tfkit.contracts.check import contract
from tfkit.contracts.expect import EQUAL, SAME, Broken, Compared, describe, expect, expect_all, expect_equal, far
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
    if case.slot in MIXING and case.place != "recipe":  # other parts of a recipe may not rewind
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


# a check of an attention alone, with each of its options
of_attention = partial(contract, slots=("attention",), every_option=True, once=True)
HIDDEN = 1  # the key hidden by a bias
HOT = 2  # the query with a temperature


@of_attention(
    "with a rotary position, the output depends only on relative positions", "determinism", capability="rotation"
)
def check_rotation(case: Case) -> None:
    """Compare outputs with a rotary position, without it, with shifted positions, and with doubled positions."""
    alone, places = Alone(case), torch.arange(TIME)[None]
    x = alone.states(2)
    rotary = built("position", "rotary", alone.shape)
    turned = alone(x, position=rotary)
    expect(far(turned, alone(x)) > SAME, "declares 'rotation', but a rotary position has no effect")
    shifted = "declares 'rotation', but the output does not depend only on relative positions: with all positions"
    expect_equal(alone(x, position=rotary, position_ids=places + 3), turned, f"{shifted} shifted by 3")
    apart = far(alone(x, position=rotary, position_ids=2 * places), turned)
    expect(apart > SAME, "declares 'rotation', but doubling all positions has no effect")
    _expect_bfloat16(case, rotary, "rotation")


def _expect_bfloat16(case: Case, position: Position, capability: str) -> None:
    """Raise Broken if the part fails with a float32 position and bfloat16 states."""
    alone = Alone(case, dtype=torch.bfloat16)
    try:
        result = alone(alone.states(2).bfloat16(), position=position).dtype
    except Exception as error:
        raise Broken(f"declares '{capability}', but in bfloat16 {describe(error, case.part)}") from error
    expect(result == torch.bfloat16, f"declares '{capability}', but converts bfloat16 to {result}")


class Hiding(Position):
    """A bias that effectively masks one key."""

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        hidden = -1e9 * (key_positions == HIDDEN).float()[:, None, None, :]
        return hidden.expand(-1, num_heads, query_positions.shape[1], -1)  # [batch heads query key]


@of_attention("a position's bias is added to the scores", "determinism", capability="bias")
def check_bias(case: Case) -> None:
    """Check that an ALiBi position changes the output, and that a bias of -1e9 hides a key."""
    alone = Alone(case)
    x = alone.states(2)
    sloped = alone(x, position=built("position", "alibi", alone.shape))
    expect(far(sloped, alone(x)) > SAME, "declares 'bias', but an ALiBi position has no effect")
    hiding = Hiding(Hiding.Config(), alone.shape)
    other = x.clone()
    other[:, HIDDEN] = alone.states(2, 1, seed=2)[:, 0]
    rest = torch.arange(TIME) != HIDDEN
    moved = far(alone(other, position=hiding)[:, rest], alone(x, position=hiding)[:, rest])
    expect(moved <= SAME, f"declares 'bias', but a bias of -1e9 on token {HIDDEN} does not hide it")
    _expect_bfloat16(case, hiding, "bias")


class Warming(Position):
    """A position with a fixed temperature for each query."""

    factors: Tensor

    def temperature(self, positions: Tensor) -> Tensor:
        return self.factors[positions]


@of_attention("a position's temperature multiplies the scores of its query", "determinism", capability="temperature")
def check_temperature(case: Case) -> None:
    """Check that a temperature affects only its query, and that temperature 0 makes all scores of a query equal."""
    alone = Alone(case)
    x = alone.states(2)
    plain, warming = alone(x), Warming(Warming.Config(), alone.shape)
    warming.factors = torch.ones(TIME, dtype=torch.float64)
    warming.factors[HOT] = 3.0
    warm = alone(x, position=warming)
    expect(far(warm[:, HOT], plain[:, HOT]) > SAME, "declares 'temperature', but a temperature has no effect")
    rest = torch.arange(TIME) != HOT
    moved = far(warm[:, rest], plain[:, rest])
    expect(moved <= SAME, f"declares 'temperature', but the temperature of query {HOT} changes the outputs of others")
    warming.factors = warming.factors.float()
    _expect_bfloat16(case, warming, "temperature")
    if case.declares("bidirectional") and case.declares("weights"):  # outputs may depend on the query's own token
        warming.factors = torch.zeros(TIME, dtype=torch.float64)
        alone = Alone(case, both_ways=True)
        context = alone.context(x, position=warming, observe={"attention"})
        with torch.no_grad():
            alone.part(x, context)
        weights = context.collector.observed["attention"][0]
        same = far(weights, weights[..., :1].expand_as(weights))
        expect(same <= SAME, "declares 'temperature', but a temperature of 0 does not make the scores of a query equal")


MEMORY, WIDTH = 4, 10  # length of the memory, and its width, which differs from d_model


@of_attention(
    "cross-attention reads every token of a memory with a different length and width",
    "determinism",
    capability="cross_attention",
)
def check_cross_attention(case: Case) -> None:
    """Change the tokens of the memory one at a time: every output must change."""
    alone, memory = Alone(case, memory_width=WIDTH), states(2, MEMORY, WIDTH, seed=3)
    x = alone.states(2)
    before = alone(x, memory=memory)
    expect(
        before.shape == x.shape,
        f"with a memory of {MEMORY} tokens, the output has shape {list(before.shape)}, not {list(x.shape)}",
    )
    for token in range(MEMORY):
        other = memory.clone()
        other[:, token] = states(2, 1, WIDTH, seed=4)[:, 0]
        moved = (alone(x, memory=other) - before).abs().amax(dim=-1)
        expect(
            bool((moved > SAME).all()),
            f"declares 'cross_attention', but an output does not depend on token {token} of the memory",
        )


@of_attention(
    "observed attention weights sum to 1 over the visible tokens", "determinism", slots=MIXING, capability="weights"
)
def check_weights(case: Case) -> None:
    """Check that weights sum to 1 (to 0 for fully masked rows), and that observing them has no effect."""
    alone = Alone(case)
    x = alone.states(2)
    real = torch.ones(2, TIME, dtype=torch.bool)
    if case.declares("padding"):
        real[0, -1], real[1] = False, False
    context = alone.context(x, attention_mask=real, observe={"attention"})
    with torch.no_grad():
        watched = alone.part(x, context)
    expect_equal(watched, alone(x, attention_mask=real), "declares 'weights', but observing changes the output")
    seen = context.collector.observed.get("attention", [])
    expect(len(seen) == 1, f"declares 'weights', but an observer of 'attention' receives {len(seen) or 'no'} tensors")
    weights = seen[0]
    expected = [2, *weights.shape[1:2], TIME, TIME]
    expect(
        list(weights.shape) == expected,
        f"declares 'weights', but their shape is {list(weights.shape)}, not [batch heads query key] = {expected}",
    )
    ones = torch.ones(TIME, TIME, dtype=torch.bool)
    visible = (ones.tril() if alone.shape.causal else ones) & real[:, None, :]  # [rows query key]
    hidden = weights.masked_select(~visible[:, None].expand_as(weights))
    expect(bool((hidden == 0).all()), "declares 'weights', but masked tokens have non-zero weights")
    expect(bool((weights >= 0).all()), "declares 'weights', but some are negative or NaN")
    total = weights.double().sum(dim=-1)
    off = total - visible.any(dim=-1).double()[:, None]
    off = off if case.variant else off.abs()  # with an option such as an attention sink, the sum may be less than 1
    expect(float(off.max()) <= EQUAL, f"declares 'weights', but the sum of a row is off by {float(off.max()):.1e}")
