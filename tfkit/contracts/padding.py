"""Padding, other rows of a batch and other texts in a packed row have no effect."""

from __future__ import annotations

import torch

from tfkit.contracts.calls import PAD, SOURCE, Arguments, model, padded, run, tokens, tokenwise
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect_equal, expect_finite
from tfkit.contracts.gradients import gradients

LENGTHS = (7, 4, 0, 1, 6)
PACKED = ((4, 3, 2), (5, 4), (10,))  # text lengths in each packed row
WIDTH = 10  # length of a packed row


@contract("padding and other rows of a batch have no effect", "future", capability="padding", every_option=True)
@torch.no_grad()
def check_padding(case: Case) -> None:
    """Compare single rows with a batch, padded on either side with different ids."""
    rows = [tokens(1, length, seed=index)[0] for index, length in enumerate(LENGTHS)]
    alone = [run(case, row[None]) if len(row) else {} for row in rows]
    whole = [tokens(1, 7, seed=seed)[0] for seed in range(3)]
    batch = run(case, torch.stack(whole))
    for index, row in enumerate(whole):
        for name, value in run(case, row[None]).items():
            expect_equal(batch[name][index : index + 1], value, f"{name} of a row in a batch instead of alone")
    for side in ("right", "left"):
        for fill in (PAD, 5):
            call = padded(rows, side, fill)
            out = run(case, **call)
            expect_finite(out, f"a batch padded on the {side}, with an empty row")
            for index, one in enumerate(alone):
                kept = call["real"][index].bool()
                for name, value in one.items():
                    unpadded = out[name][index] if name == "pooled" else out[name][index][kept]
                    what = f"{name} of {LENGTHS[index]} tokens, padded on the {side} with id {fill} instead of unpadded"
                    expect_equal(unpadded, value[0], what)


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
    alone = [run(case, ids[index : index + 1], source=row[None]) if len(row) else {} for index, row in enumerate(rows)]
    for side in ("right", "left"):
        call = padded(rows, side, 5)
        more = {"source": call["ids"], "source_real": call["real"]}
        out = run(case, ids, **more)
        expect_finite(out, f"a source padded on the {side}, with an empty row")
        for index, one in enumerate(alone):
            for name, value in one.items():
                expect_equal(out[name][index : index + 1], value, f"{name} of a source padded on the {side}")


def packs(case: Case) -> bool:
    """True if rows can be packed; encoder-decoders and prefix masks need one text per row."""
    return not case.pair and "prefix_length" not in case.needs


@contract(
    "segments of a packed row are independent",
    "future",
    capability="packing",
    when=packs,
    every_option=True,
)
@torch.no_grad()
def check_packing(case: Case) -> None:
    """Compare packed texts with the same texts in separate rows."""
    packed = [
        [tokens(1, length, seed=10 * row + length)[0] for length in lengths] for row, lengths in enumerate(PACKED)
    ]
    ids = torch.stack([torch.cat([*texts, torch.full((WIDTH - sum(map(len, texts)),), PAD)]) for texts in packed])
    segments, positions, real, marks = (torch.zeros_like(ids) for _ in range(4))
    for row, texts in enumerate(packed):
        start = 0
        for number, text in enumerate(texts, start=1):
            place = slice(start, start + len(text))
            segments[row, place], real[row, place] = number, 1
            positions[row, place] = torch.arange(len(text))
            marks[row, start] = 1
            start += len(text)
    more = {"segment_ids": segments}
    if "global_attention_mask" in case.needs:
        more["global_attention_mask"] = marks
    full = run(case, ids, real=real, positions=positions, **more)
    for row, texts in enumerate(packed):
        start = 0
        for number, text in enumerate(texts, start=1):
            for name, value in tokenwise(run(case, text[None])).items():
                segment = full[name][row : row + 1, start : start + len(text)]
                expect_equal(segment, value, f"{name} of segment {number} in a packed row instead of alone")
            start += len(text)


@contract("a text of one token and fully masked rows have finite outputs", "future", every_option=True)
def check_few(case: Case) -> None:
    """Run a text of one token and a fully padded row, and compute their gradients."""
    ids = tokens(3, 6)
    if case.causal and not case.opens:
        first = run(case, ids)["hidden"][:, :1]
        expect_equal(
            run(case, ids[:, :1])["hidden"],
            first,
            "the states of a text of one token instead of those of the first token of a longer text",
        )
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
