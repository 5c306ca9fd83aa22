"""What a model makes of a text does not depend on what stands beside it: padding, packed texts, or a decode state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.inputs import Inputs
from tfkit.models import Model, build_model
from tfkit.models.call import Call
from tfkit.models.stack import text_lengths
from tfkit.recipe.load import load_recipe

from ..sampling import looped

ATTENTION: dict[str, Any] = {"type": "multi_head", "num_heads": 2}
LATENT: dict[str, Any] = {"type": "latent", "num_heads": 2, "kv_rank": 8, "head_dim": 4, "rotary_head_dim": 4}
ORIGINAL = {"original_length": 4}
LISTS = {"short": [1.0, 1.5], "long": [3.0, 9.0]}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "ntk": {"alpha": 4.0},
    "dynamic": {"factor": 4.0, **ORIGINAL},
    "yarn": {"factor": 4.0, **ORIGINAL},
    "llama3": {"factor": 8.0, **ORIGINAL},
    "longrope": {**LISTS, **ORIGINAL},
}
SKIPS: dict[str, Any] = {"type": "learned", "offset": 2, "skip_padding": True}
POSITIONS: dict[str, Any] = {
    **{name: {"type": "rotary", "scaling": {"type": name, **options}} for name, options in SCALINGS.items()},
    **{name: name for name in ("none", "rotary", "sinusoidal", "learned", "alibi", "t5_bias")},
    "log_temperature": ["rotary", {"type": "log_temperature", "length": 2}],
    "counted": SKIPS,
    "counted and turned": [SKIPS, {"type": "rotary", "scaling": {"type": "dynamic", "factor": 4.0, **ORIGINAL}}],
    "counted and placed": ["sinusoidal", SKIPS, {"type": "sinusoidal", "skip_padding": True, "base": 50.0}, "alibi"],
}
LENGTHS = (9, 3, 6)


def model(position: str, attention: dict[str, Any] = ATTENTION, kind: str = "decoder") -> Model:
    layer = {"norm": "layer_norm", "attention": attention, "feedforward": {"type": "mlp", "d_ff": 16}}
    said = {
        "type": kind, "d_model": 8, "vocab_size": 23, "num_layers": 2, "max_length": 24, "embedding": "tokens",
        "position": POSITIONS[position], "layer": layer, "head": "language_model",
        "init": {"type": "normal", "std": 0.4}
    }  # fmt: skip
    return build_model(load_recipe({"tfkit": 1, "model": said}).blueprint(), seed=1).double().eval()


def texts() -> list[Tensor]:
    return [torch.arange(length)[None] * 7 % 22 + 1 for length in LENGTHS]


def alone(net: Model) -> list[Tensor]:
    return [net(text).hidden for text in texts()]


def agree(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def packed(net: Model) -> None:
    """All in one row, the texts' numbers in any order."""
    ids = torch.cat(texts(), dim=1)
    segments = torch.tensor(
        [[number for number, length in zip((5, 1, 3), LENGTHS, strict=True) for _ in range(length)]]
    )
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    found = net(ids, segment_ids=segments, position_ids=places).hidden.split(LENGTHS, dim=1)
    for part, expected in zip(found, alone(net), strict=True):
        agree(part, expected)


def padded(net: Model) -> None:
    """In a batch, filled up at the end, at the start or after the first token; positions count real tokens."""
    for first in (max(LENGTHS), 0, 1):  # number of tokens before the padding
        ids, real = torch.full((2, len(LENGTHS), max(LENGTHS)), 4)
        for row, text in enumerate(texts()):
            place = torch.arange(text.shape[1])
            place[first:] += max(LENGTHS) - text.shape[1]
            ids[row, place], real[row] = text[0], torch.zeros(max(LENGTHS)).index_fill(0, place, 1)
        for more in ({}, {"position_ids": (real.cumsum(dim=1) - 1).clamp(min=0)}):
            found = net(ids, attention_mask=real, **more).hidden
            for row, expected in enumerate(alone(net)):
                agree(found[row][real[row].bool()][None], expected)


def from_a_state(net: Model) -> None:
    """A few tokens at a time; where the positions of the past move, that is refused, and the state stays as it was."""
    for text in texts():
        state, found, start = net.new_state(), [], 0
        for size in (2, 2, 1, 4):
            piece = text[:, start : start + size]
            if not piece.shape[1]:
                break
            try:
                found.append(net(piece, state=state).hidden)
            except UsageError as refused:
                assert "read the whole text with a new state" in str(refused)
                assert net.stack("decoder").moves and state.length == start >= 4
                state = net.new_state()
                found = [net(text[:, : start + piece.shape[1]], state=state).hidden]
            start += piece.shape[1]
            agree(torch.cat(found, dim=1), net(text[:, :start]).hidden)


WAYS = {"packed": packed, "padded": padded, "from a state": from_a_state}
QUICK = [("learned", "padded"), ("dynamic", "packed"), ("longrope", "packed"), ("dynamic", "from a state"),
         ("longrope", "from a state"),
         ("counted and turned", "padded"), ("counted and placed", "from a state"), ("yarn", "packed")]  # fmt: skip


def check(position: str, way: str, attention: dict[str, Any], kind: str) -> None:
    with torch.no_grad():
        WAYS[way](model(position, attention, kind))


@looped(("position", "way"), QUICK)
def test_a_text_is_as_it_is_alone(position: str, way: str) -> None:
    check(position, way, ATTENTION, "decoder")


@pytest.mark.slow
@pytest.mark.parametrize(
    "attention", [ATTENTION, LATENT, {**ATTENTION, "type": "differential"}], ids=lambda a: a["type"]
)
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_text_is_as_it_is_alone_in_any_combination(
    position: str, way: str, kind: str, attention: dict[str, Any]
) -> None:
    if way == "from a state" and kind == "encoder":
        pytest.skip("what sees both ways keeps no past")
    try:
        check(position, way, attention, kind)
    except RecipeError as refused:  # the rule table says so, by name
        pytest.skip(str(refused))


@pytest.mark.parametrize("real", [[[0, 0, 1, 1, 1]], [[1, 1, 1, 0, 0]]], ids=["left", "right"])
def test_each_position_of_a_list_counts_as_it_does_by_itself(real: list[list[int]]) -> None:
    """A part that skips padding adds nothing there; the others count real tokens as well."""
    stack, mask = model("counted and placed").stack("decoder"), torch.tensor(real)
    sinusoidal, learned, skipping, _ = stack.position
    out: list[Tensor] = []
    stack.embedding.register_forward_hook(lambda *called: out.append(called[2]))  # type: ignore[union-attr]
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    stack(Call(Inputs(ids, real=mask.bool())))
    counted = mask.cumsum(dim=1) * mask - 1
    places = torch.arange(5)[None] if mask[0, 0] else counted.clamp(min=0)
    placed = [sinusoidal.embed(places), learned.embed(counted), skipping.embed(counted)]  # type: ignore[operator]
    agree(out[0], stack.embedding.tokens(ids) + sum(placed))  # type: ignore[union-attr,operator]


def test_tokens_taken_back_were_read_by_the_positions_of_a_longer_text() -> None:
    net = model("longrope")
    state = net.new_state()
    with torch.no_grad():
        net(torch.tensor([[1, 2, 3, 4, 5, 6]]), state=state)
        state.rewind(3)
        with pytest.raises(UsageError, match="a text of 4 tokens changes the positions"):
            net(torch.tensor([[4]]), state=state)
        state.rewind(0)
        agree(net(torch.tensor([[1, 2, 3]]), state=state).hidden, net(torch.tensor([[1, 2, 3]])).hidden)


def test_lengths_of_texts_in_a_row() -> None:
    positions = torch.tensor([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 0]])
    segments = torch.tensor([[7, 7, -2, -2, -2, 0], [3, 3, 1, 1, 3, 3]])
    assert text_lengths(positions, segments).tolist() == [[2, 2, 3, 3, 3, 1], [5, 5, 4, 4, 5, 5]]
    assert text_lengths(positions, None).tolist() == [[3], [5]]
