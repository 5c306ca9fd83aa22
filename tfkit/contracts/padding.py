"""Padding, other rows of a batch and other texts in a packed row have no effect."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product

import torch
from torch import Tensor

from tfkit.contracts.calls import PAD, SOURCE, Arguments, model, padded, run, special, tokens, tokenwise
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Compared, expect_all, expect_equal, expect_finite
from tfkit.contracts.gradients import gradients

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
    return not case.pair and "prefix_length" not in case.needs


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
