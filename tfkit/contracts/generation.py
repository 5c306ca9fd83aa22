"""Logits rules and stop rules: rows are independent, inputs are not modified, results are deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.contracts.samples import LINES
from tfkit.contracts.training import letters
from tfkit.generation.logits import LogitsRule
from tfkit.generation.logits.base import PADDING
from tfkit.generation.stop import StopRule, WrittenRow

LOGITS, STOP = ("logits",), ("stop",)
ROWS, TIME = 4, 7
WRITTEN = (0, 3, 1, 5)  # number of generated tokens per row


def rule_of(case: Case) -> Any:
    """Build the rule, bound to a vocabulary of letters."""
    rule: LogitsRule | StopRule = case.config.build()
    rule.bind(letters())
    return rule


def call(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, the ids of each row (some repeated, the last row shorter), and the number of generated tokens."""
    tokenizer = letters()
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, tokenizer.vocab_size, generator=generator)
    texts = ["the the", "a cat a", "banana ", "see see"]
    ids = torch.tensor([tokenizer.encode(texts[row % len(texts)]) for row in range(rows)])
    ids[-1, :2] = PADDING
    return logits, ids, torch.tensor(WRITTEN[:rows])


@contract(
    "forward returns logits of the same shape and allows at least one token in each row",
    "built",
    slots=LOGITS,
    every_option=True,
)
def check_logits(case: Case) -> None:
    """Apply the rule to rows at different steps of a search."""
    logits, ids, new = call()
    changed = rule_of(case).forward(logits, ids, new)
    expect(isinstance(changed, Tensor), f"forward returns {type(changed).__name__}, not a tensor")
    expect(changed.shape == logits.shape, f"logits of shape {list(logits.shape)} become {list(changed.shape)}")
    expect(changed.dtype == logits.dtype, f"logits of dtype {logits.dtype} become {changed.dtype}")
    numbers = bool((changed == changed).all()) and not bool((changed == float("inf")).any())
    expect(numbers, "a logit becomes +inf or NaN; use -inf to exclude a token")
    possible = (changed > float("-inf")).any(dim=1)
    expect(bool(possible.all()), f"row {int((~possible).int().argmax())} allows no token")


@contract("inputs are not modified", "logits", slots=LOGITS, every_option=True)
def check_in_place(case: Case) -> None:
    """Compare the inputs with copies made before the call."""
    inputs = call()
    kept = [tensor.clone() for tensor in inputs]
    rule_of(case).forward(*inputs)
    for name, tensor, before in zip(("logits", "ids", "new"), inputs, kept, strict=True):
        expect(torch.equal(tensor, before), f"modifies its input {name}")


@contract("each row depends only on its own tokens", "logits", slots=LOGITS, every_option=True)
def check_rows(case: Case) -> None:
    """Compare with a second call, with single rows, and with more left padding."""
    rule, (logits, ids, new) = rule_of(case), call()
    whole = rule.forward(logits, ids, new)
    expect(torch.equal(rule.forward(logits, ids, new), whole), "a second call returns different logits")
    for row in range(ROWS):
        alone = rule.forward(logits[row : row + 1], ids[row : row + 1], new[row : row + 1])
        expect(torch.equal(alone, whole[row : row + 1]), f"row {row} has different logits alone than in a batch")
    padding = torch.full((ROWS, 2), PADDING)
    wider = rule.forward(logits, torch.cat((padding, ids), dim=1), new)
    expect(torch.equal(wider, whole), "more left padding changes the logits")


# --- stop rules


def rows_of(texts: tuple[str, ...]) -> list[WrittenRow]:
    """Return the rows of a search that generates the texts, at every step up to the end token."""
    tokenizer = letters()
    prompt = tokenizer.encode("the ")
    end = tokenizer.special_ids["end"]

    def decode(before: Sequence[int], ids: Sequence[int]) -> str:
        return tokenizer.decode(ids)

    rows: list[WrittenRow] = []
    for text in texts:
        ids = [*tokenizer.encode(text), end]
        rows += [WrittenRow(prompt, ids[:time], 0.5 * time, decode) for time in range(1, len(ids) + 1)]
    return rows


@contract("done is a boolean and deterministic", "built", slots=STOP, every_option=True)
def check_done(case: Case) -> None:
    """Call `done` at each step of two texts, then backwards, with the same rule and with a new one."""
    rows, rule = rows_of(LINES[:2]), rule_of(case)
    answers = [rule.done(row) for row in rows]
    for answer in answers:
        expect(isinstance(answer, bool), f"done returns {answer!r}, not True or False")
    for place in reversed(range(len(rows))):
        again = rule.done(rows[place]), rule_of(case).done(rows[place])
        expect(
            again == (answers[place],) * 2, f"done for a text of {len(rows[place].ids)} tokens depends on earlier calls"
        )


@contract("only the end of a text is cut", "done", slots=STOP, every_option=True)
def check_cut(case: Case) -> None:
    """Check that the remaining ids and text are prefixes."""
    rule = rule_of(case)
    for row in rows_of(LINES[:2]):
        ids, text = list(rule.cut_ids(row.ids)), rule.cut_text(row.text)
        expect(ids == list(row.ids)[: len(ids)], f"cut_ids turns {list(row.ids)} into {ids}, which is not a prefix")
        expect(row.text.startswith(text), f"cut_text turns {row.text!r} into {text!r}, which is not a prefix")
    expect(list(rule.cut_ids([])) == [] and rule.cut_text("") == "", "extends an empty text")
