"""Beam search finds what an exhaustive search finds, and each text by itself; its groups avoid each other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.generation.rules import Rules
from tfkit.generation.search import Candidate, prepare
from tfkit.generation.stop import Length, StopRule
from tfkit.generation.texts import find
from tfkit.models import Model
from tfkit.recipe.architecture.prepare import parts_of

from ..sampling import looped
from .searching import best, small
from .test_greedy import PROMPTS, SOURCES, ending, model


def beams(net: Model, prompts: Any, most: Any, rules: Rules | None = None, **options: Any) -> list[list[Candidate]]:
    how = {name: options.pop(name) for name in ("sources", "seed", "use_cache") if name in options}
    size = options.pop("batch_size", 64)
    strategy = Slot("strategy").validate({"type": "beam", **options}).build()
    return find(strategy, prepare(net, prompts, most, rules, **how), size)


def exhaustive(net: Model, prompt: list[int], most: int, end: int | None, vocab: int) -> dict[tuple[int, ...], float]:
    """The log-probability of every text that ends with the end token, or with as many tokens as there may be."""
    found: dict[tuple[int, ...], float] = {}
    for length in range(1, most + 1):
        for ids in itertools.product(range(vocab), repeat=length):
            ends = [place for place, token in enumerate(ids) if token == end]
            if ends == [length - 1] or (not ends and length == most):
                with torch.no_grad():
                    logits = net(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
                found[ids] = float(logits.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None]).sum())
    return found


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_with_beams_enough_it_is_exhaustive(alpha: float) -> None:
    net = small(vocab=4)
    texts = exhaustive(net, [1, 2], 4, 0, 4)
    expected = sorted(texts.items(), key=lambda text: text[1] / len(text[0]) ** alpha, reverse=True)[:9]
    options = {"num_beams": 200, "n_best": 9, "length_penalty": alpha, "early_stopping": "never"}
    found = beams(net, [[1, 2]], 4, ending(0), **options)[0]
    assert [text.ids for text in found] == [ids if ids[-1] else ids[:-1] for ids, _ in expected]
    log = [log for _, log in expected]
    assert [text.log_probability for text in found] == pytest.approx(log, abs=1e-4)
    assert [text.score for text in found] == pytest.approx(
        [value / len(ids) ** alpha for ids, value in expected], abs=1e-4
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "n_best": 3, "length_penalty": 0.0},
        {"num_beams": 3, "early_stopping": True, "length_penalty": 0.0},
        {"num_beams": 3, "n_best": 2, "sampled": True, "seed": 3},
        {"type": "diverse_beam", "num_beams": 4, "groups": 2, "n_best": 4, "diversity": 1.0, "length_penalty": -1.0},
    ],
)
def test_a_text_is_the_same_whatever_stands_beside_it(kind: str, options: dict[str, Any]) -> None:
    net = model(kind, "rotary" if kind == "decoder" else "sinusoidal")
    read, rooms = PROMPTS if kind == "decoder" else SOURCES, [8, 3, 6, 8]  # so that rows leave at unlike steps

    def ids(rows: list[int], rules: Rules | None, **how: Any) -> list[list[tuple[int, ...]]]:
        prompts = [read[row] if kind == "decoder" else [1] for row in rows]
        how |= {} if kind == "decoder" else {"sources": [read[row] for row in rows]}
        found = beams(net, prompts, [rooms[row] for row in rows], rules, **options, **how)
        return [[text.ids for text in texts] for texts in found]

    whole = ids([0, 1, 2, 3], None)
    assert [{len(text) for text in texts} for texts in whole] == [{8}, {3}, {6}, {8}]
    for rules in (None, ending(whole[0][0][2])):  # without an end, and with one that the first row comes to
        together = ids([0, 1, 2, 3], rules)
        assert [ids([row], rules)[0] for row in range(4)] == together
        assert ids([2, 0, 3, 1], rules) == [together[row] for row in (2, 0, 3, 1)]
        assert ids([0, 1, 2, 3], rules, batch_size=2) == together
        assert ids([0, 1, 2, 3], rules, use_cache=False) == together


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_one_beam_is_greedy(kind: str) -> None:
    net = model(kind, "learned")
    prompts, sources = (PROMPTS, None) if kind == "decoder" else ([[1]] * 4, SOURCES)
    for end in range(0, 23, 5):
        greedy = best(net, prompts, 9, ending(end), sources=sources)
        assert best(net, prompts, 9, ending(end), {"type": "beam", "num_beams": 1}, sources=sources) == greedy


def test_more_beams_find_more_likely_texts() -> None:
    net = model("decoder", "rotary")
    likely = [beams(net, PROMPTS, 6, None, num_beams=number) for number in (1, 2, 40)]
    sums = [sum(texts[0].log_probability for texts in found) for found in likely]
    assert sums == sorted(sums) and sums[0] < sums[2]


def test_room_ends_texts_and_learned_positions_too() -> None:
    net = model("decoder", "learned")
    found = beams(net, PROMPTS, [0, 3, 1, 0], num_beams=3, n_best=2)
    assert [[len(text.ids) for text in texts] for texts in found] == [[0], [3, 3], [1, 1], [0]]
    assert found[0][0] == Candidate((), 0.0, 0.0)
    assert len(beams(net, [[1] * 20], 50, num_beams=2)[0][0].ids) == 5


def test_a_vocabulary_may_be_smaller_than_the_number_of_beams() -> None:
    net = small(vocab=3)
    found = beams(net, [[1]], 2, num_beams=7, n_best=7)[0]
    assert len({text.ids for text in found}) == 7
    assert len(beams(net, [[1]], 1, num_beams=7, n_best=7)[0]) == 3  # there are no more


def test_where_the_rules_leave_nothing_texts_end_as_they_stand() -> None:
    net = small()
    rules = parts_of(
        "logits", [{"type": "no_repeat_ngram", "size": 1}, {"type": "banned", "tokens": list(range(5, 23))}]
    )
    made = [rule.build() for rule in rules]
    made[1].banned = torch.arange(5, 23)
    found = beams(net, [[1], [0, 1, 2, 3, 4]], 9, Rules(made), num_beams=2, n_best=2)
    assert [sorted(text.ids) for text in found[0]] == [[0, 2, 3, 4]] * 2
    assert found[1] == [Candidate((), 0.0, 0.0)]
    greedy = best(net, [[1]], 9, Rules(made), {"type": "beam", "num_beams": 1})
    assert greedy == best(net, [[1]], 9, Rules(made))


def test_any_stop_rule_ends_a_hypothesis() -> None:
    class After(StopRule):
        """Ends after any two even tokens."""

        def done(self, row: Any) -> bool:
            return len(row.ids) > 1 and row.ids[-1] % 2 == 0 and row.ids[-2] % 2 == 0

    net = small(vocab=6)
    found = beams(net, [[1]], 5, Rules(stop=[After(After.Config())]), num_beams=300, n_best=40, early_stopping="never")[
        0
    ]
    for text in found:
        pairs = [a % 2 == 0 and b % 2 == 0 for a, b in itertools.pairwise(text.ids)]
        assert not any(pairs[:-1]) and (len(text.ids) == 5 or pairs[-1])
    short = Rules(stop=[Length(Length.Config(tokens=2))])
    assert {len(text.ids) for text in beams(net, [[1]], 5, short, num_beams=4, n_best=4)[0]} == {2}


def test_groups_avoid_the_tokens_of_each_other() -> None:
    net = model("decoder", "rotary")
    options = {"type": "diverse_beam", "num_beams": 4, "n_best": 4, "groups": 4}
    together = beams(net, [[1, 2]], 6, **options, diversity=0.0)[0]
    assert len({text.ids for text in together}) == 1  # four greedy searches that know nothing of each other
    apart = beams(net, [[1, 2]], 6, **options, diversity=100.0)[0]
    for step in range(6):
        assert len({text.ids[step] for text in apart}) == 4
    first = max(apart, key=lambda text: text.score)
    assert first.ids == together[0].ids and first.score == pytest.approx(together[0].score)
    for text in apart:
        assert text.log_probability == pytest.approx(log_of(net, [1, 2], text.ids), abs=1e-3)
        assert text.score <= text.log_probability / 6 + 1e-4


def log_of(net: Model, prompt: list[int], ids: tuple[int, ...]) -> float:
    with torch.no_grad():
        logits = net.eval()(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None]).sum())


def naive_diverse(
    net: Model, prompt: list[int], most: int, options: dict[str, Any]
) -> list[tuple[tuple[int, ...], float]]:
    """Diverse beam search without an end token, the plainest way."""
    net.eval()
    width = options["num_beams"] // options["groups"]
    groups: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in range(options["groups"])]
    for _ in range(most):
        said: list[int] = []
        for number, group in enumerate(groups):
            found = []
            for ids, total in group:
                with torch.no_grad():
                    log = net(torch.tensor([[*prompt, *ids]])).logits[0, -1].log_softmax(dim=-1).tolist()
                worth = [total + value - options["diversity"] * said.count(token) for token, value in enumerate(log)]
                found += [((*ids, token), value) for token, value in enumerate(worth)]
            groups[number] = sorted(found, key=lambda text: text[1], reverse=True)[:width]
            said += [ids[-1] for ids, _ in groups[number]]
    return sorted((text for group in groups for text in group), key=lambda text: text[1], reverse=True)


@pytest.mark.parametrize(("groups", "diversity"), [(2, 0.7), (3, 1.5)])
def test_diverse_beams_are_those_of_the_formula(groups: int, diversity: float) -> None:
    net = model("decoder", "rotary")
    options = {"num_beams": 6, "groups": groups, "diversity": diversity}
    expected = naive_diverse(net, [3, 4], 5, options)
    found = beams(net, [[3, 4]], 5, type="diverse_beam", n_best=6, length_penalty=0.0, **options)[0]
    assert [text.ids for text in found] == [ids for ids, _ in expected]
    assert [text.score for text in found] == pytest.approx([value for _, value in expected], abs=1e-4)


def test_sampled_beams_differ_by_seed_and_find_likely_texts() -> None:
    net = model("decoder", "rotary")
    drawn = [beams(net, [[1, 2]], 6, num_beams=3, sampled=True, seed=seed)[0][0] for seed in range(8)]
    assert len({text.ids for text in drawn}) > 2
    assert max(text.score for text in drawn) <= beams(net, [[1, 2]], 6, num_beams=23**2)[0][0].score + 1e-6
    assert drawn[3] == beams(net, [[1, 2]], 6, num_beams=3, sampled=True, seed=3)[0][0]


def test_the_first_draw_of_sampled_beams_follows_the_model() -> None:
    net = small(vocab=5)
    with torch.no_grad():
        expected = net(torch.tensor([[1, 2]])).logits[0, -1].softmax(dim=-1) * 1000
    # of one beam two tokens are drawn without putting back, and the more likely of them goes on
    found = torch.zeros(5)
    for texts in beams(net, [[1, 2]] * 1000, 1, num_beams=1, sampled=True, seed=0, batch_size=1000):
        found[texts[0].ids[0]] += 1
    p = expected / 1000
    pairs = {(a, b): float(p[a] * p[b] / (1 - p[a])) for a in range(5) for b in range(5) if a != b}
    likely = torch.tensor(
        [sum(v for (a, b), v in pairs.items() if max(a, b, key=lambda t: p[t]) == t) for t in range(5)]
    )
    seen = likely > 0
    assert float(((found - 1000 * likely)[seen] ** 2 / (1000 * likely[seen])).sum()) < 18.5  # 4 degrees, 0.1 %


@looped(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams: must be at least 1, got 0"),
        ({"num_beams": 2, "n_best": 3}, "n_best 3 exceeds num_beams 2"),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"length_penalty": 21.0}, "length_penalty"),
        ({"type": "diverse_beam", "num_beams": 4, "groups": 3}, "num_beams 4 cannot be split into 3 equal groups"),
        ({"type": "diverse_beam", "sampled": True}, "sampled: unknown option"),
        ({"groups": 2}, "groups: unknown option"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parts_of("strategy", {"type": "beam", **options})


def test_rules_of_sampling_are_for_beams_that_draw() -> None:
    net = small()
    rules = Rules([Slot("logits").validate({"type": "top_k", "k": 1}).build()])
    with pytest.raises(UsageError, match="top_k affects sampling, but beam does not sample; set sampled: true"):
        beams(net, [[1]], 3, rules)
    with pytest.raises(UsageError, match=r"diverse_beam does not sample; use generate\.strategy: sample"):
        beams(net, [[1]], 3, rules, type="diverse_beam")
    drawn = beams(net, [[1, 2], [3]], 5, rules, sampled=True, seed=1)
    assert [list(texts[0].ids) for texts in drawn] == best(net, [[1, 2], [3]], 5)


def test_time_ends_what_there_is() -> None:
    net = small()
    rules = Rules(stop=[Slot("stop").validate({"type": "time", "seconds": 1e-9}).build()])
    assert {len(text.ids) for text in beams(net, [[1]], 9, rules, num_beams=3, n_best=3)[0]} == {1}
