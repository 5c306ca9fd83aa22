"""No masked or future token is read, and neither padding nor other texts of a batch have an effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor

from tfkit.contracts.calls import PAD, SOURCE, Arguments, changed, model, padded, run, special, tokens, tokenwise
from tfkit.contracts.cases import MIXING, Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import SAME, Broken, Compared, expect, expect_all, expect_equal, expect_finite, far
from tfkit.contracts.shapes import gradients
from tfkit.core.context import Span, Visibility
from tfkit.core.inputs import ASSUMED, Inputs

TIME = 6
# mask rules to test parts with, by topology
RULES: dict[str, tuple[object, ...]] = {
    "decoder": ({"type": "window", "size": 2}, "prefix"),
    "encoder": ({"type": "window", "size": 2}, [{"type": "window", "size": 2}, "global_tokens"], "reverse_causal"),
}


def claim(case: Case, capability: str) -> str:
    """Return the start of a message: why the part is expected to have a capability."""
    if case.part.capabilities == ASSUMED:
        return f"'{capability}' is expected of a part without declared capabilities"
    return f"declares '{capability}'"


@contract(
    "no output depends on a later token",
    "determinism",
    capability="causal",
    when=lambda case: case.causal,
    every_option=True,
)
@torch.no_grad()
def check_future(case: Case) -> None:
    """Change tokens one at a time: outputs of earlier tokens must not change, unless a mask reveals the token."""
    for place, before, after in changes(case, tokens(2, TIME)):
        expect_all(earlier(case, place, before, after), SAME)
        expect(far(after["hidden"][:, place:], before["hidden"][:, place:]) > 0, f"no output depends on token {place}")


Outputs = dict[str, Tensor]


def changes(
    case: Case, ids: Tensor, places: Sequence[int] = (), **more: Tensor
) -> Iterator[tuple[int, Outputs, Outputs]]:
    """Change tokens one at a time, by default all; yield the place, and the outputs before and after."""
    before = tokenwise(run(case, ids, **more))
    for place in places or range(ids.shape[1]):
        yield place, before, tokenwise(run(case, changed(ids, place), **more))


def earlier(case: Case, place: int, before: Outputs, after: Outputs) -> Compared:
    """Compare the outputs of earlier tokens that must not see a changed token."""
    blind = torch.arange(place)
    if case.opens:
        blind = blind[~reachable(case, before["hidden"].shape[1])[:place, place]]
    for name, value in before.items():
        what = f"{name} of a token before {place} depends on token {place}, which is in the future"
        yield what, after[name][:, blind], value[:, blind]


@contract(
    "tokens that a mask reveals are visible to earlier tokens", "future", slots=("mask",), when=lambda case: case.opens
)
@torch.no_grad()
def check_openings(case: Case) -> None:
    """Change tokens one at a time: the outputs of the earlier tokens that see them must change."""
    later = reachable(case).triu(1)
    expect(later.any(), f"it reveals no later token of {TIME}; with `opens`, a mask shows what limits hide")
    blind = (later & ~moved(case, 2, 0.0)).nonzero()
    if len(blind):
        raise Broken(f"token {int(blind[0, 0])} does not see token {int(blind[0, 1])}, which the mask reveals")


@contract(
    "a token sees exactly the tokens that the layers' mask rules reveal", "future", when=lambda case: not case.pair
)
@torch.no_grad()
def check_visibility(case: Case) -> None:
    """Change tokens one at a time, and compare which outputs change with the mask rules."""
    seen, reach = moved(case, 1, SAME), reachable(case)
    for place in range(TIME):
        hidden = seen[:, place] & ~reach[:, place]
        if hidden.any():
            raise Broken(f"token {int(hidden.nonzero()[0])} sees token {place}, which the mask hides")
    if case.slot == "mask":
        blind = (reach & ~moved(case, 1, 0.0)).nonzero()
        if len(blind):
            raise Broken(f"token {int(blind[0, 0])} does not see token {int(blind[0, 1])}, which the mask reveals")


@contract(
    "a window limits visibility, and a mask that reveals tokens extends it",
    "visibility",
    slots=MIXING,
    capability="masks",
    when=lambda case: not case.pair,
)
@torch.no_grad()
def check_masks(case: Case) -> None:
    """Repeat the comparison with additional mask rules in the layers."""
    for rule in RULES[case.topology]:
        masked = case.with_layer(mask=rule)
        words = " and ".join(one if isinstance(one, str) else one["type"] for one in _listed(rule))
        hidden = (moved(masked, 1, SAME) & ~reachable(masked)).nonzero()
        if len(hidden):
            query, key = (int(place) for place in hidden[0])
            raise Broken(f"{claim(case, 'masks')}, but token {query} sees token {key}, which a {words} mask hides")
        if masked.opens:
            more = reachable(masked) & ~reachable(case if rule == "prefix" else case.with_layer(mask=_listed(rule)[0]))
            opened = moved(masked, 1, 0.0) & more
            expect(opened.any(), f"{claim(case, 'masks')}, but a {words} mask reveals nothing")


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def moved(case: Case, batch: int, least: float) -> Tensor:
    """Return [query key], True where changing a key token changes the query's hidden state by more than `least`."""
    columns = [
        (after["hidden"][0] - before["hidden"][0]).abs().amax(dim=-1) > least
        for _, before, after in changes(case, tokens(batch, TIME))
    ]
    return torch.stack(columns, dim=1)  # [query key]


def reachable(case: Case, time: int = TIME) -> Tensor:
    """Return [query key], True where mask rules let information flow from key to query through the layers."""
    stack, ids = case.blueprint.last, tokens(1, time)
    needed = special(case.needs, ids)
    reach = itself = torch.eye(time, dtype=torch.bool)
    for kind in stack.order:
        plan = stack.layers[kind]
        rules = [rule.build(stack.shape(plan=plan)) for rule in plan.mask]
        dense = Visibility(rules, Span(time, time, 0, ids.device), Inputs(ids, None, **needed)).dense()
        one = torch.ones_like(itself) if dense is None else dense[0].expand(time, time) | itself
        reach = (one.long() @ reach.long()) > 0
    return reach


LENGTHS = (7, 4, 0, 1, 6)
PACKED = ((4, 3, 2), (5, 4), (10,))  # text lengths in each packed row


@contract("padding and other rows of a batch have no effect", "future", capability="padding", every_option=True)
@torch.no_grad()
def check_padding(case: Case) -> None:
    """Compare single rows with a batch, padded on either side with different ids."""
    rows = [tokens(1, length, seed=index)[0] for index, length in enumerate(LENGTHS)]
    alone = apart(case, rows)
    whole = [tokens(1, 7, seed=seed)[0] for seed in range(3)]
    batch = run(case, torch.stack(whole))
    for index, row in enumerate(whole):
        for name, value in run(case, row[None]).items():
            expect_equal(batch[name][index : index + 1], value, f"{name} of a row in a batch instead of alone")
    for side, fill in product(("right", "left"), (PAD, 5)):
        expect_all(in_a_batch(case, rows, alone, side, fill))


Rows = Sequence[Tensor]


def apart(case: Case, rows: Rows, sources: Rows = ()) -> list[dict[str, Tensor]]:
    """Return the outputs of each row alone, none for an empty row."""
    more = [{"source": source[None]} for source in sources] or [{} for _ in rows]
    return [run(case, row[None], **own) if len(row) else {} for row, own in zip(rows, more, strict=True)]


def in_a_batch(
    case: Case, rows: Rows, alone: Sequence[dict[str, Tensor]], side: str, fill: int = PAD, sources: Rows = ()
) -> Compared:
    """Compare rows padded on a side, and their sources, with the outputs of each row alone."""
    call = padded(rows, side, fill)
    out = run(case, **call, **(source_of(sources, side, fill) if sources else {}))
    expect_finite(out, f"a batch padded on the {side}, with an empty row")
    for index, one in enumerate(alone):
        kept = call["real"][index].bool()
        for name, value in one.items():
            unpadded = out[name][index] if name == "pooled" else out[name][index][kept]
            what = f"{name} of {len(rows[index])} tokens, padded on the {side} with id {fill} instead of unpadded"
            yield what, unpadded, value[0]


def source_of(rows: Rows, side: str, fill: int) -> Arguments:
    """Return the arguments of a batch of sources, padded on a side."""
    call = padded(rows, side, fill)
    return {"source": call["ids"], "source_real": call["real"], "source_shift": call["shift"]}


@contract(
    "padding of the source has no effect",
    "future",
    capability="padding",
    when=lambda case: case.pair,
    every_option=True,
)
@torch.no_grad()
def check_source_padding(case: Case) -> None:
    """Compare single sources with batches padded on either side."""
    rows = [tokens(1, length, seed=index)[0] for index, length in enumerate((6, 3, 0, 1))]
    ids = tokens(4, 5, seed=20)
    for side in ("right", "left"):
        out = run(case, ids, **source_of(rows, side, 5))
        expect_finite(out, f"a source padded on the {side}, with an empty row")
        for index, row in enumerate(rows):
            for name, value in run(case, ids[index][None], source=row[None]).items() if len(row) else ():
                expect_equal(out[name][index], value[0], f"{name} of a source padded on the {side}")


def packs(case: Case) -> bool:
    """True if rows can be packed; encoder-decoders and prefix masks need one text per row."""
    return not case.pair and "prefix_length" not in case.needs and not case.blueprint.extra_inputs


@contract("segments of a packed row are independent", "future", capability="packing", when=packs, every_option=True)
@torch.no_grad()
def check_packing(case: Case) -> None:
    """Compare packed texts with the same texts in separate rows."""
    rows = [[tokens(1, length, seed=10 * row + length)[0] for length in PACKED[row]] for row in range(len(PACKED))]
    expect_all(packed(case, rows))


def packed(case: Case, rows: Sequence[Rows]) -> Compared:
    """Compare texts that are packed into rows with each text alone."""
    width = max(sum(map(len, texts)) for texts in rows)
    names = ("ids", "segment_ids", "positions", "real", *case.needs)
    call = {name: torch.zeros(len(rows), width, dtype=torch.long) for name in names}
    places = []
    for row, texts in enumerate(rows):
        starts = accumulate(map(len, texts), initial=0)
        for number, (start, text) in enumerate(zip(starts, texts, strict=False), 1):
            place = (row, slice(start, start + len(text)))
            own = special(case.needs, text[None]) | {"ids": text, "positions": torch.arange(len(text))}
            for name, value in own.items():
                call[name][place] = value
            call["segment_ids"][place], call["real"][place] = number, 1
            places.append((number, text, place))
    if call["real"].all():
        del call["real"]  # which a model may not support
    full = run(case, **call)
    for number, text, place in places:
        for name, value in tokenwise(run(case, text[None])).items():
            yield f"{name} of segment {number} in a packed row instead of alone", full[name][place], value[0]


@contract("a text of one token and fully masked rows have finite outputs", "future", every_option=True)
def check_few(case: Case) -> None:
    """Run a text of one token and a fully padded row, and compute their gradients."""
    ids = tokens(3, 6)
    if case.causal and not case.opens:
        what = "the states of a text of one token instead of those of the first token of a longer text"
        expect_equal(run(case, ids[:, :1])["hidden"], run(case, ids)["hidden"][:, :1], what)
    made = model(case)
    call: Arguments = {"real": torch.tensor([[1] * 6, [0] * 6, [1] * 3 + [0] * 3])}
    if not case.declares("padding"):
        call = {}
    elif case.pair:
        call = {"source_real": torch.tensor([[1] * SOURCE, [0] * SOURCE, [1] * 3 + [0] * 3])}
    out = run(case, ids, **call)
    expect_finite(out, "with a fully masked row")
    expect_finite(
        {f"the gradient of {name}": grad for name, grad in gradients(case, made, out).items() if grad is not None},
        "with a fully masked row",
    )
    expect_finite(run(case, ids[:, :1]), "of a text of one token")
