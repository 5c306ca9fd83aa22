"""Sampling draws what the model says, and each text by itself."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.generation.rules import Rules
from tfkit.generation.search import Candidate, prepare
from tfkit.generation.strategy.rows import draw
from tfkit.generation.texts import find
from tfkit.models import Model
from tfkit.recipe.load import load_recipe

from .searching import best, small
from .test_greedy import PROMPTS, SOURCES, ending, model


def samples(net: Model, prompts: list[list[int]], most: Any, count: int, **how: Any) -> list[list[Candidate]]:
    strategy = Slot("strategy").validate({"type": "sample", "n_best": count}).build()
    return find(strategy, prepare(net, prompts, most, how.pop("rules", None), **how))


def test_the_draws_follow_the_probabilities_of_the_model() -> None:
    net = small("decoder", vocab=4)
    texts = samples(net, [[1, 2]], 2, 4000, seed=7)[0]
    found = Counter(text.ids for text in texts)
    chi_squared = 0.0
    for first in range(4):
        for second in range(4):
            with torch.no_grad():
                log = net(torch.tensor([[1, 2, first]])).logits.log_softmax(dim=-1)[0]
            expected = 4000 * float((log[1, first] + log[2, second]).exp())
            chi_squared += (found[first, second] - expected) ** 2 / expected
    assert chi_squared < 37.7  # 15 degrees of freedom, one in a thousand
    by_text = {text.ids: text.log_probability for text in texts}
    assert by_text[1, 3] == pytest.approx(float(log_of(net, [1, 2], [1, 3])), abs=1e-4)
    assert texts == sorted(texts, key=lambda text: text.log_probability, reverse=True)


def log_of(net: Model, prompt: list[int], new: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = net(torch.tensor([prompt + new])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(dim=-1).gather(1, torch.tensor(new)[:, None]).sum()


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_a_text_is_the_same_whatever_stands_beside_it(kind: str) -> None:
    net = model(kind, "rotary" if kind == "decoder" else "sinusoidal")
    read = PROMPTS if kind == "decoder" else SOURCES
    prompts = read if kind == "decoder" else [[1]] * len(read)

    rooms = [12, 4, 9, 12]  # so that rows leave at unlike steps

    def drawn(rows: list[int], rules: Rules | None, seed: int = 3, **how: Any) -> list[list[int]]:
        sources = None if kind == "decoder" else [read[row] for row in rows]
        here, most = [prompts[row] for row in rows], [rooms[row] for row in rows]
        return best(net, here, most, rules, "sample", sources=sources, seed=seed, **how)

    whole = drawn([0, 1, 2, 3], None)
    assert [len(text) for text in whole] == rooms
    end = whole[0][5]
    cut = [text[: text.index(end)] if end in text else text for text in whole]
    for rules, together in ((None, whole), (ending(end), cut)):
        assert drawn([0, 1, 2, 3], rules) == together
        assert [drawn([row], rules)[0] for row in range(4)] == together
        assert drawn([3, 1, 0, 2], rules) == [together[row] for row in (3, 1, 0, 2)]
        assert drawn([0, 1, 2, 3], rules, batch_size=3) == together
        assert drawn([0, 1, 2, 3], rules, use_cache=False) == together
    assert drawn([0, 1, 2, 3], None, seed=4) != whole


def test_equal_prompts_are_continued_in_different_ways() -> None:
    net = small("decoder")
    texts = best(net, [[1, 2]] * 6, 8, None, "sample", seed=0)
    assert len({tuple(text) for text in texts}) == 6
    several = samples(net, [[1, 2], [3]], 8, 5, seed=0)
    assert len({text.ids for texts in several for text in texts}) == 10
    assert samples(net, [[3], [1, 2]], 8, 5, seed=0) == several[::-1]


def test_without_a_seed_each_call_draws_anew() -> None:
    net = small("decoder")
    assert best(net, [[1, 2]], 12, None, "sample") != best(net, [[1, 2]], 12, None, "sample")


def test_what_cannot_come_is_never_drawn() -> None:
    class Ends(random.Random):
        def random(self) -> float:
            return values.pop()

    values = [0.0, 1 - 2**-53, 0.9, 0.1, 0.5]  # drawn from the end on
    scores = torch.full((5, 4), float("-inf"))
    scores[:, 1], scores[:, 2] = 0.0, 1.0
    scores[0] = float("-inf")
    drawn = draw(scores.softmax(dim=-1), [Ends()] * 5).tolist()
    assert drawn[1:] == [2, 1, 1, 2]
    assert 0 <= drawn[0] < 4  # of a row without a token any: that row ends


def test_room_and_rules_end_a_text() -> None:
    net = small("decoder")
    found = best(net, PROMPTS, [0, 3, 1, 0], None, "sample", seed=1)
    assert [len(text) for text in found] == [0, 3, 1, 0]
    assert best(net, [[1]], 0, None, "sample") == [[]]
    nothing = Slot("logits").validate({"type": "banned", "tokens": list(range(23))}).build()
    nothing.banned = torch.arange(23)
    assert best(net, PROMPTS, 5, Rules([nothing]), "sample", seed=1) == [[]] * 4


def test_a_listener_is_told_of_one_text_but_not_of_several() -> None:
    net = small("decoder")
    heard: list[tuple[int, int]] = []
    texts = samples(net, [[1], [2, 3]], 4, 1, seed=1, on_token=lambda row, token: heard.append((row, token)))
    assert [tuple(token for row, token in heard if row == number) for number in (0, 1)] == [t[0].ids for t in texts]
    heard.clear()
    samples(net, [[1], [2, 3]], 4, 2, seed=1, on_token=lambda row, token: heard.append((row, token)))
    assert not heard


def test_no_text_is_no_number_of_texts() -> None:
    with pytest.raises(RecipeError, match=r"generate\.strategy\.n_best: must be at least 1, got 0"):
        load_recipe(
            {"tfkit": 1, "model": {"type": "decoder"}, "generate": {"strategy": {"type": "sample", "n_best": 0}}}
        )
