"""The rules of sampling: equal to Hugging Face's, one after another, and never without a token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.logits.base import NEVER
from tfkit.generation.rules import Rules, bound_rules

from ..sampling import each, looped

VOCABULARY = 300
# each rule with the class of transformers and its argument
PAIRS: list[tuple[dict[str, Any], str, float]] = [
    *(({"type": "temperature", "temperature": heat}, "TemperatureLogitsWarper", heat) for heat in (0.3, 1.0, 2.5)),
    *(({"type": "top_k", "k": k}, "TopKLogitsWarper", k) for k in (1, 5, 299, 300)),
    *(({"type": "top_p", "p": p}, "TopPLogitsWarper", p) for p in (0.01, 0.5, 0.9, 0.999, 1.0)),
    *(({"type": "min_p", "p": p}, "MinPLogitsWarper", p) for p in (0.01, 0.1, 0.7, 1.0)),
    *(({"type": "typical", "p": p}, "TypicalLogitsWarper", p) for p in (0.05, 0.2, 0.9, 0.999)),
    *(({"type": "epsilon", "epsilon": e}, "EpsilonLogitsWarper", e) for e in (0.0003, 0.01, 0.9)),
    *(({"type": "eta", "epsilon": e}, "EtaLogitsWarper", e) for e in (0.0003, 0.01, 0.9)),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["".join(chr(0x100 + place) for place in range(VOCABULARY - 4))]
    fitted: Tokenizer = Slot("tokenizer").validate("character").build().fit(texts)
    assert fitted.vocab_size == VOCABULARY
    return fitted


def bound(tokenizer: Tokenizer, *parts: dict[str, Any]) -> Rules:
    return bound_rules([Slot("logits").validate(part) for part in parts], [], tokenizer)


def scores(rules: Rules, logits: Tensor) -> Tensor:
    rows = len(logits)
    return rules.scores(logits, torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, dtype=torch.long))


def many() -> Tensor:
    """Flat and sharp rows, rows with ties (also at the top), and rows of which tokens are forbidden already."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(40, VOCABULARY, generator=generator) * torch.linspace(0, 8, 40)[:, None]
    logits[10:20] = logits[10:20].round()
    logits[20:30, ::3] = NEVER
    logits[30, :4] = logits[30].max() + 1
    logits[31, 1:] = NEVER
    return logits


def test_all_are_compared() -> None:
    ours = {name for name in REGISTRY.names("logits") if REGISTRY.get("logits", name).of_sampling}  # type: ignore[attr-defined]
    assert {part["type"] for part, *_ in PAIRS} == ours


def test_a_rule_is_that_of_hugging_face(tokenizer: Tokenizer) -> None:
    from transformers.generation import logits_process as theirs

    def check(part: dict[str, Any], name: str, value: float) -> None:
        logits, warper = many(), getattr(theirs, name)(value)
        ours = scores(bound(tokenizer, part), logits)
        torch.testing.assert_close(ours, warper(torch.zeros(40, 1, dtype=torch.long), logits.clone()), rtol=0, atol=0)
        assert (ours > NEVER).any(dim=1).all()
        for row in range(40):  # and a row does not depend on those beside it
            assert torch.equal(scores(bound(tokenizer, part), logits[row : row + 1])[0], ours[row])

    each(PAIRS, check)


def test_they_work_in_the_order_listed(tokenizer: Tokenizer) -> None:
    from transformers.generation import logits_process as theirs

    parts = [{"type": "temperature", "temperature": 2.0}, {"type": "top_k", "k": 9}, {"type": "top_p", "p": 0.6}]
    chain = theirs.LogitsProcessorList(
        [theirs.TemperatureLogitsWarper(2.0), theirs.TopKLogitsWarper(9), theirs.TopPLogitsWarper(0.6)]
    )
    logits = many()
    ours = scores(bound(tokenizer, *parts), logits)
    wanted = chain(torch.zeros(40, 1, dtype=torch.long), logits.clone())  # type: ignore[arg-type]
    torch.testing.assert_close(ours, wanted, rtol=0, atol=0)
    assert not torch.equal(ours > NEVER, scores(bound(tokenizer, *parts[::-1]), logits) > NEVER)


def test_a_row_that_is_left_nothing_stays_without(tokenizer: Tokenizer) -> None:
    for part, *_ in PAIRS:
        assert (scores(bound(tokenizer, part), torch.full((2, VOCABULARY), NEVER)) == NEVER).all(), part


def test_more_than_the_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"generate.logits: top_k: k: 301 exceeds the vocabulary of 300 tokens"):
        bound(tokenizer, {"type": "top_k", "k": 301})


MODEL = {
    "type": "decoder",
    "d_model": 8,
    "num_layers": 1,
    "vocab_size": 10,
    "embedding": "tokens",
    "position": "sinusoidal",
    "layer": {
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 1},
        "feedforward": {"type": "mlp", "d_ff": 8},
    },
    "head": "language_model",
}


@looped(
    ("said", "message"),
    [
        ("{type: temperature, temperature: 0}", r"must be at least .*, got 0; .* use generate.strategy: greedy"),
        ("{type: temperature, temperature: -1}", r"at least 1e-06, got -1; .*greedy"),
        ("{type: temperature, temperature: 1.0e-30}", r"at least 1e-06, got 1e-30"),
        ("{type: temperature, temperature: .nan}", "numbers must be finite"),
        ("temperature", "needs the option 'temperature'"),
        ("{type: top_k, k: 0}", "must be at least 1"),
        ("{type: top_k, k: 2.5}", "whole number"),
        ("{type: top_p, p: 0}", "must be greater than 0"),
        ("{type: top_p, p: 1.5}", "must be at most 1"),
        ("{type: min_p, p: -0.1}", "must be greater than 0"),
        ("{type: typical, mass: 0.5}", "unknown option"),
        ("{type: epsilon, epsilon: 1}", "must be less than 1"),
        ("{type: eta, epsilon: 0}", "must be greater than 0"),
        ("{type: top_q, p: 0.5}", r"unknown logits 'top_q'. Did you mean 'top_[kp]'\?"),
    ],
)
def test_what_means_nothing_is_refused_when_the_recipe_is_read(said: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tfkit.load_recipe({"tfkit": 1, "model": MODEL}, sets=[f"generate.logits=[{said}]"])
