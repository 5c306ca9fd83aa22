"""A model of float64 generates in float64; the contracts `precision` and `loss` hold its parts and losses to it."""

from __future__ import annotations

import copy

import pytest
import torch

from tfkit.contracts import strategy
from tfkit.contracts.cases import Case, cases, variants
from tfkit.contracts.expect import in_float64
from tfkit.core.registry import REGISTRY
from tfkit.generation.stepper import evaluating
from tfkit.models import Model

from ..sampling import each

pytestmark = pytest.mark.full


def options_of(slot: str) -> list[Case]:
    return [case for name in REGISTRY.names(slot) for case in (*cases(slot, name), *variants(slot, name))]


def test_a_logits_rule_computes_in_float64() -> None:
    def check(case: Case) -> None:
        logits, ids, new = strategy.call()
        rule, exact = strategy.rule_of(case), logits.double()
        with in_float64("a logits rule"):
            changed = rule.forward(exact, ids, new)
        assert changed.dtype == torch.float64
        torch.testing.assert_close(rule.forward(logits, ids, new).double(), changed, rtol=1e-5, atol=1e-5)

    each(options_of("logits"), check)


def test_a_strategy_computes_in_float64() -> None:
    def check(case: Case) -> None:
        exact: dict[str, Model] = {
            reads: copy.deepcopy(strategy.writer(reads)).double() for reads in strategy.readers(case)
        }
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(strategy, "writer", exact.__getitem__)
            for reads, model in exact.items():
                search = strategy.search_of(reads)
                with evaluating(model), in_float64("a strategy"):
                    assert strategy.strategy_of(case).search(search)

    each(options_of("strategy"), check)
