"""What a call of a model cannot take is refused in words, and costs the compiler and the exporter nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.models import Model

from ..sampling import looped
from .small import small


@cache
def model(kind: str = "decoder") -> Model:
    embedding = {"type": "tokens", **({"segments": 2} if kind == "encoder" else {})}
    return tfkit.build(small(type=kind, num_layers=1, max_length=12, embedding=embedding)).eval()


def ids(length: int = 5, rows: int = 2, value: int = 3) -> Tensor:
    return torch.full((rows, length), value)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("decoder", {"input_ids": ids(value=20)}, "ids of the decoder must be from 0 to 19, got 20"),
    ("decoder", {"input_ids": ids(value=-1)}, "ids of the decoder must be from 0 to 19, got -1"),
    ("decoder", {"input_ids": ids().bool()}, "input_ids must be integers .*, got shape .2, 5. of torch.bool"),
    ("decoder", {"input_ids": ids().to(torch.uint8)}, "input_ids must be integers .* of torch.uint8"),
    ("decoder", {"input_ids": [[1, 2]]}, "input_ids must be a tensor .batch time., got a list"),
    ("decoder", {"input_ids": ids(), "attention_mask": [[1] * 5] * 2}, "attention_mask must be a tensor"),
    ("encoder", {"input_ids": ids(), "token_type_ids": [[0] * 5] * 2}, "token_type_ids must be a tensor"),
    ("decoder", {"input_ids": ids(), "position_ids": [[0] * 5] * 2}, "position_ids must be a tensor .*, got a list"),
    ("encoder", {"input_ids": ids(), "token_type_ids": ids(value=2)}, "token_type_ids must be from 0 to 1, got 2"),
    ("encoder", {"input_ids": ids(), "token_type_ids": ids(4)}, "token_type_ids must be .* for 5 tokens, got shape"),
    ("encoder", {"input_ids": ids(), "attention_mask": ids(4)}, "attention_mask must be .* for 5 tokens, got"),
    ("decoder", {"input_ids": ids(), "attention_mask": ids(6)}, "attention_mask must be .* for 5 tokens, got shape"),
    ("decoder", {"input_ids": ids(), "attention_mask": ids(5, 3)}, r"attention_mask must be \[2 time\]"),
    ("decoder", {"input_ids": ids(), "position_ids": ids(4)}, "position_ids must be .* for 5 tokens"),
    ("decoder", {"input_ids": ids(), "position_ids": ids(value=12)}, "position 12 .* is beyond the 12 learned"),
    ("decoder", {"input_ids": ids(), "segment_ids": ids(4)}, "segment_ids must be .* for 5 tokens"),
    (
        "decoder",
        {"input_ids": ids(), "labels": ids()},
        "decoder: unknown input labels: compute the loss from out.logits",
    ),
    ("decoder", {"input_ids": ids(), "decoder_input_ids": ids()}, "use input_ids; only an encoder_decoder has"),
    ("decoder", {"input_ids": ids(), "atention_mask": ids()}, "did you mean attention_mask?"),
    (
        "encoder_decoder",
        {"input_ids": ids(), "decoder_input_ids": ids(value=20)},
        "ids of the decoder must be from 0 to",
    ),
    (
        "encoder_decoder",
        {"input_ids": ids(value=20), "decoder_input_ids": ids()},
        "ids of the encoder must be from 0 to",
    ),
    (
        "encoder_decoder",
        {"input_ids": ids(), "decoder_input_ids": ids(3), "attention_mask": ids(3)},
        "attention_mask must be .* for 5 tokens",
    ),
    (
        "encoder_decoder",
        {"input_ids": ids(), "decoder_input_ids": ids(3), "decoder_attention_mask": ids(5)},
        "decoder_attention_mask must be .* for 3 tokens",
    ),
]


@looped(("kind", "inputs", "message"), WRONG)
def test_a_wrong_input_is_refused_in_words(kind: str, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(tfkit.UsageError, match=message):
        model(kind)(**inputs)


def test_with_a_state_the_mask_may_be_that_of_everything_so_far() -> None:
    state = model().new_state()
    model()(ids(5), state=state)
    with pytest.raises(tfkit.UsageError, match="for 1, or 6 including the past tokens, got shape"):
        model()(ids(1), attention_mask=ids(4), state=state)
    model()(ids(1), attention_mask=ids(6), state=state)
    model()(ids(1), attention_mask=ids(1), state=state)


def test_ids_are_looked_at_only_where_a_look_up_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.models.stack.beyond", lambda *_: pytest.fail("the ids were read"))
    model()(ids())
    model("encoder")(ids(), token_type_ids=ids(value=1))
