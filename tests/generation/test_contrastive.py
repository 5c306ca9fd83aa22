"""Contrastive search writes what its formula says, computed the plainest way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tfkit.core.errors import RecipeError, UsageError
from tfkit.models import Model
from tfkit.recipe.architecture.prepare import parts_of

from .searching import best, small
from .test_greedy import PROMPTS, SOURCES, ending, model


def naive(net: Model, prompt: list[int], most: int, end: int, k: int, alpha: float, source: Any = None) -> list[int]:
    """The whole forward for every token that is tried."""

    def read(ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            given = torch.tensor([ids])
            out = net(given) if source is None else net(torch.tensor([source]), decoder_input_ids=given)
        return out.logits[0, -1].softmax(dim=-1), out.hidden[0]

    net.eval()
    ids = list(prompt)
    for _ in range(most):
        likely, hidden = read(ids)
        worth = {}
        for token in likely.topk(k).indices.tolist():
            own = read([*ids, token])[1][-1]
            alike = max(float(torch.cosine_similarity(own, past, dim=0)) for past in hidden)
            worth[token] = (1 - alpha) * float(likely[token]) - alpha * alike
        ids.append(max(worth, key=lambda token: worth[token]))
        if ids[-1] == end:
            return ids[len(prompt) : -1]
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    ("k", "alpha"),
    [(4, 0.6), pytest.param(2, 0.3, marks=pytest.mark.slow), pytest.param(9, 1.0, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_it_writes_what_the_formula_says(kind: str, k: int, alpha: float) -> None:
    net = model(kind, "rotary" if kind == "decoder" else "sinusoidal")
    pair = kind == "encoder_decoder"
    prompts, sources = ([[1]] * 4, SOURCES) if pair else (PROMPTS, None)
    expected = [
        naive(net, prompt, 5, 14, k, alpha, source)
        for prompt, source in zip(prompts, sources or [None] * 4, strict=True)
    ]
    how: dict[str, Any] = {"strategy": {"type": "contrastive", "k": k, "alpha": alpha}, "sources": sources}
    assert best(net, prompts, 5, ending(14), **how) == expected
    assert best(net, prompts, 5, ending(14), **how, use_cache=False) == expected
    assert best(net, prompts, 5, ending(14), **how, batch_size=1) == expected


def test_without_a_penalty_or_a_choice_it_is_greedy() -> None:
    net = model("decoder", "rotary")
    greedy = best(net, PROMPTS, 9, ending(14))
    assert best(net, PROMPTS, 9, ending(14), {"type": "contrastive", "alpha": 0.0}) == greedy
    assert best(net, PROMPTS, 9, ending(14), {"type": "contrastive", "k": 1}) == greedy
    assert best(net, PROMPTS, 9, ending(14), "contrastive") != greedy


def test_rooms_and_rules_hold() -> None:
    net = small()
    assert [len(text) for text in best(net, PROMPTS, [0, 3, 1, 0], None, "contrastive")] == [0, 3, 1, 0]
    assert best(net, [[1]], 0, None, "contrastive") == [[]]


def test_more_tokens_than_there_are_cannot_be_tried() -> None:
    with pytest.raises(UsageError, match=r"generate\.strategy\.k: 24 exceeds the vocabulary of 23 tokens"):
        best(small(), [[1]], 3, None, {"type": "contrastive", "k": 24})
    with pytest.raises(RecipeError, match="alpha: must be at most 1"):
        parts_of("strategy", {"type": "contrastive", "alpha": 1.5})
