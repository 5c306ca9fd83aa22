"""A part that breaks a contract for a good reason says so, and the report has the reason."""

from __future__ import annotations

import io
from typing import Any

import pytest
from torch import Tensor

from tfkit.components.mask import Mask
from tfkit.contracts.report import render, summary
from tfkit.contracts.verify import verify
from tfkit.core.console import Console
from tfkit.core.inputs import Inputs
from tfkit.training.objective import Batch, CausalLm, Loss

from .broken import Register

PAST = "the first tokens are opened to what follows them alone"
BATCH = "each text is told from the others of its batch"


class FirstTokens(Mask):
    """Opens the first tokens to all that follow: no look at the future, whatever else is hidden."""

    opens = True
    needs = frozenset({"prefix_length"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        assert inputs.prefix_length is not None
        return (key < inputs.prefix_length[:, None, None]) & (key <= query)


class Neighbours(Mask):
    """Opens each token to its pair, which is not among the first tokens of a text."""

    opens = True
    capabilities = frozenset({"causal", "bidirectional"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return (query + 1) // 2 == (key + 1) // 2


class Excepted(FirstTokens):
    exceptions = {"openings": PAST}


class InBatch(CausalLm):
    """A loss over the other rows too."""

    exceptions = {"loss_rows": BATCH, "batches": "never needed"}

    def loss(self, model: Any, batch: Batch, training: bool) -> Loss:
        found = super().loss(model, batch, training)
        return Loss(found.total * len(batch["input_ids"]), found.count)


def shown(report: Any) -> str:
    stream = io.StringIO()
    render(report, Console(stream))
    summary([report], Console(stream))
    return " ".join(stream.getvalue().split())


def test_an_opening_need_not_be_a_prefix(register: Register) -> None:
    report = verify(register("mask", Neighbours), ["future", "openings", "visibility"])
    assert report.holds and {outcome.status for outcome in report.outcomes} == {"ok"}, str(report)


def test_an_opening_of_the_past_only_can_be_excepted(register: Register) -> None:
    checks = ["built", "shapes", "determinism", "future", "openings", "visibility", "padding"]
    refused = verify(register("mask", FirstTokens), checks)
    assert [outcome.check.name for outcome in refused.outcomes if not outcome.holds] == ["openings"]
    taken = verify(register("mask", Excepted), checks)
    assert taken.holds, str(taken)
    assert {outcome.check.name: outcome.status for outcome in taken.outcomes}["visibility"] == "ok"
    assert (
        f"excepted openings tokens that a mask reveals are visible to earlier tokens: excepted, because {PAST}"
        in shown(taken)
    )
    assert "1 part, 7 checks: 6 ok, 1 excepted" in shown(taken)


def test_a_loss_over_the_batch_can_be_excepted_and_what_needs_it_still_runs(register: Register) -> None:
    report = verify(register("objective", InBatch), options=False)
    found = {outcome.check.name: outcome.status for outcome in report.outcomes}
    assert found["loss_rows"] == "excepted" and found["batches"] == "ok"  # an exception that is not needed shows
    assert found["packed_loss"] == "ok" and report.holds  # not left out for want of the other


@pytest.mark.parametrize("part", [FirstTokens, InBatch])
def test_a_base_says_nothing_of_exceptions(part: Any) -> None:
    assert not part.__mro__[1].exceptions
