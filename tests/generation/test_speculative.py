"""Speculative decoding writes what its model would write without a draft, whatever the draft."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.rules import Rules
from tfkit.generation.search import prepare
from tfkit.generation.stepper import Stepper
from tfkit.generation.strategy import Speculative
from tfkit.generation.strategy.rows import draw
from tfkit.generation.texts import find
from tfkit.models import Model
from tfkit.recipe.architecture.prepare import parts_of

from .searching import best, small
from .test_greedy import PROMPTS, SOURCES, ending, model


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    made: Tokenizer = Slot("tokenizer").validate("character").build().fit(["abcdefghijklmnopqrs"])
    return made


def strategy(draft: Model | None, letters: Tokenizer, **options: Any) -> Speculative:
    """With a draft model, or none."""
    said = {"type": "speculative", **options} | ({} if draft is None else {"draft": "small"})
    made: Speculative = Slot("strategy").validate(said).build()
    made.bind(letters, lambda path: (StepDecoder(draft), letters))  # type: ignore[arg-type, return-value]
    return made


def written(
    made: Speculative, net: Model, prompts: Any, most: Any, rules: Rules | None = None, **how: Any
) -> list[list[int]]:
    return [list(found[0].ids) for found in find(made, prepare(net, prompts, most, rules, **how))]


@pytest.mark.parametrize(
    "tokens", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_it_writes_what_greedy_search_writes(kind: str, tokens: int, letters: Tokenizer) -> None:
    net = model(kind, "rotary" if kind == "decoder" else "sinusoidal")
    prompts, sources = (PROMPTS, None) if kind == "decoder" else ([[1]] * 4, SOURCES)
    expected = best(net, prompts, [12, 7, 0, 1], ending(14), sources=sources)
    for draft in (small(kind), net, None):  # a bad draft, a perfect one, and what the text repeats
        made = strategy(draft, letters, tokens=tokens)
        for use_cache in (True, False):
            found = written(made, net, prompts, [12, 7, 0, 1], ending(14), sources=sources, use_cache=use_cache)
            assert found == expected


def moving(scaling: str) -> dict[str, Any]:
    """Positions that change with the length of a text, from 9 tokens on."""
    options: dict[str, Any] = {"factor": 8.0} if scaling == "dynamic" else {"short": [1.0] * 4, "long": [9.0] * 4}
    return {"type": "rotary", "scaling": {"type": scaling, "original_length": 9, **options}}


@pytest.mark.full
@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_it_writes_what_greedy_search_writes_where_positions_move(scaling: str, letters: Tokenizer) -> None:
    net = small(position=moving(scaling), init={"type": "normal", "std": 1.0})
    expected = best(net, PROMPTS, 14)
    for draft in (small(), net, None):
        for use_cache in (True, False):
            assert written(strategy(draft, letters), net, PROMPTS, 14, use_cache=use_cache) == expected


@pytest.mark.parametrize(("position", "ahead"), [("rotary", [8, 8, 8]), (moving("longrope"), [2, 0, 8]),
                                                 (moving("dynamic"), [2, 0, 0])])  # fmt: skip
def test_no_more_is_read_at_once_than_positions_say_the_same_of(position: Any, ahead: list[int]) -> None:
    net = small(position=position)
    assert [Stepper(net, [[1] * length]).ahead(8) for length in (7, 9, 10)] == ahead


def test_rules_hold_within_a_draft(letters: Tokenizer) -> None:
    net = model("decoder", "rotary")
    said = ({"type": "no_repeat_ngram", "size": 2}, {"type": "repetition_penalty", "penalty": 1.7})
    rules = Rules([Slot("logits").validate(rule).build() for rule in said])
    expected = best(net, PROMPTS[:2], 9, rules)
    for draft in (small(), net, None):
        assert written(strategy(draft, letters), net, PROMPTS[:2], 9, rules) == expected
    nothing = Rules([Slot("logits").validate({"type": "no_repeat_ngram", "size": 1}).build()])
    full = [list(range(1, 23))]
    for draft in (small(), None):
        assert written(strategy(draft, letters), net, full, 9, nothing) == best(net, full, 9, nothing) == [[0]]


def test_a_perfect_draft_is_read_a_few_tokens_at_a_time(letters: Tokenizer) -> None:
    net, calls = model("decoder", "rotary"), []
    twin = model("decoder", "rotary")
    twin.load_state_dict(net.state_dict())
    net.stack("decoder").register_forward_pre_hook(lambda *_: calls.append(1))
    written(strategy(twin, letters, tokens=4), net, [[1, 2]], 20)
    assert len(calls) == 4  # 20 tokens, each time 4 of the draft and one more
    calls.clear()
    best(net, [[1, 2]], 20)
    assert len(calls) == 20


def test_what_is_kept_of_a_draft_follows_the_model(letters: Tokenizer) -> None:
    made = strategy(None, letters, sampled=True)
    stream = random.Random(3)
    p = torch.tensor([[0.5, 0.2, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4]])
    q = torch.tensor([[0.1, 0.6, 0.1, 0.2]])
    found, count = torch.zeros(4, 5), 2500
    for _ in range(count):
        guess = int(draw(q, [stream]))
        tokens = made.judged(p, [guess], q, stream)
        found[tokens[0], 4 if len(tokens) == 1 else tokens[1]] += 1
    assert found[3].sum() == 0
    first = p[0, :3] * count
    assert float(((found[:3].sum(dim=1) - first) ** 2 / first).sum()) < 13.8  # 2 degrees of freedom, one in a thousand
    kept = torch.minimum(p, q).sum(dim=1)[0]
    assert float(found[:, :4].sum()) / count == pytest.approx(float(kept), abs=0.04)
    after = p[1] * found[:, :4].sum()
    assert float(((found[:, :4].sum(dim=0) - after) ** 2 / after).sum()) < 16.3


@pytest.mark.slow
@pytest.mark.parametrize("perfect", [False, True, None])
def test_what_is_drawn_follows_the_model_and_not_the_draft(perfect: bool | None, letters: Tokenizer) -> None:
    net = small(vocab=4)
    draft = None if perfect is None else net if perfect else small(vocab=4, init={"type": "normal", "std": 1.0})
    check_draws(net, strategy(draft, letters, sampled=True, tokens=2), 1500)


def check_draws(net: Model, made: Speculative, count: int) -> None:
    """Fail if drawn texts of three tokens are not distributed as by the model."""
    prompts = [[1, 2, 1, 2]] * count
    texts = Counter(map(tuple, written(made, net, prompts, 3, seed=1)))
    with torch.no_grad():
        chi_squared = 0.0
        for first in range(4):
            for second in range(4):
                log = net(torch.tensor([[*prompts[0], first]])).logits.log_softmax(dim=-1)[0]
                expected = count * float((log[-2, first] + log[-1, second]).exp())
                found = sum(texts[first, second, third] for third in range(4))
                chi_squared += (found - expected) ** 2 / expected
    assert chi_squared < 37.7  # 15 degrees of freedom, one in a thousand


def test_prompts_draw_by_themselves(letters: Tokenizer) -> None:
    net = model("decoder", "rotary")
    made = strategy(small(), letters, sampled=True)
    together = written(made, net, PROMPTS, 8, seed=5)
    assert [written(made, net, [prompt], 8, seed=5)[0] for prompt in PROMPTS] == together
    assert written(made, net, PROMPTS[::-1], 8, seed=5) == together[::-1]
    assert written(made, net, PROMPTS, 8, seed=6) != together


def test_probabilities_and_tokens_are_told_as_by_greedy_search(letters: Tokenizer) -> None:
    net = model("decoder", "rotary")
    heard: list[int] = []
    how: dict[str, Any] = {"scored": True}
    (greedy,) = find(Slot("strategy").validate("greedy").build(), prepare(net, [[1, 2]], 9, **how))
    made = strategy(small(), letters)
    (found,) = find(made, prepare(net, [[1, 2]], 9, on_token=lambda row, token: heard.append(token), **how))
    assert heard == list(found[0].ids) == list(greedy[0].ids)
    assert found[0].log_probability == pytest.approx(greedy[0].log_probability, abs=1e-4)


@pytest.mark.full
def test_a_draft_of_fewer_positions_writes_as_far_as_it_can(letters: Tokenizer) -> None:
    net = model("decoder", "rotary")
    draft = small(max_length=8)
    assert written(strategy(draft, letters), net, PROMPTS, 20) == best(net, PROMPTS, 20)
    with pytest.raises(UsageError, match=r"generate\.strategy\.draft: small: prompt 1 has 9 tokens"):
        written(strategy(draft, letters), net, [[1] * 9], 3)


def test_what_is_no_draft_is_refused_by_name(letters: Tokenizer) -> None:
    net = small()
    with pytest.raises(UsageError, match="small is a decoder of 4 tokens, but this model is a decoder of 23 tokens"):
        written(strategy(small(vocab=4), letters), net, [[1]], 3)
    with pytest.raises(UsageError, match="small is an encoder-decoder of 23 tokens"):
        written(strategy(small("encoder_decoder"), letters), net, [[1]], 3)
    other = Slot("tokenizer").validate("character").build().fit(["abcdefghijklmnopqrt"])
    made = Slot("strategy").validate({"type": "speculative", "draft": "small"}).build()
    with pytest.raises(UsageError, match=r"small has a different vocabulary: its token \d+ is 't', not 's'"):
        made.bind(letters, lambda path: (StepDecoder(net), other))
    with pytest.raises(UsageError, match="small is not loaded"):
        written(made, net, [[1]], 3)
    with pytest.raises(RecipeError, match="tokens: must be at most 32"):
        parts_of("strategy", {"type": "speculative", "tokens": 33})


def test_a_state_that_cannot_go_back_is_refused_before_anything_is_computed(letters: Tokenizer) -> None:
    layer = {"norm": "layer_norm", "mixer": "mamba", "feedforward": {"type": "mlp", "d_ff": 16}}
    net = small(layer=layer, position="none")
    if not net.caches:
        pytest.skip("it keeps no state")
    net.stack("decoder").register_forward_pre_hook(lambda *_: pytest.fail("computed"))
    with pytest.raises(UsageError, match=r"removes rejected tokens from the decode state, but .* cannot be rewound"):
        written(strategy(None, letters), net, [[1]], 3)


@pytest.mark.slow
def test_windows_go_back_too(letters: Tokenizer) -> None:
    layer = {
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 2},
        "feedforward": {"type": "mlp", "d_ff": 16},
        "mask": {"type": "window", "size": 5},
    }
    net = small(layer=layer, max_length=200)
    expected = best(net, PROMPTS[:1], 150)
    for draft in (small(max_length=200), None):
        assert written(strategy(draft, letters, tokens=12), net, PROMPTS[:1], 150) == expected


AHEAD = {"type": "language_model", "tied": False}


def permuting() -> Model:
    """A model whose next token is (3 * token + 1) % 23, with heads that predict the tokens after it."""
    layer = {"norm": "none", "residual": "pre_norm", "feedforward": {"type": "mlp", "d_ff": 4}}
    net = small(d_model=23, layer=layer, position="none", heads={"ahead_2": AHEAD, "ahead_3": AHEAD}, max_length=64)
    with torch.no_grad():
        for weight in net.stack("decoder").layers.parameters():
            weight.zero_()
        net.stack("decoder").embedding.tokens.weight.copy_(torch.eye(23))  # type: ignore[union-attr, operator]
        ids = torch.arange(23)
        for head in (net.head, *net.heads.values()):
            ids = (3 * ids + 1) % 23
            head.output.weight.copy_(torch.eye(23)[ids].T)  # type: ignore[union-attr]
    return net


@pytest.mark.parametrize(("heads", "tokens", "passes"), [("ahead_2", 4, 11), (["ahead_2", "ahead_3"], 4, 8),
                                                          (["ahead_2", "ahead_3"], 1, 11)])  # fmt: skip
@pytest.mark.full
def test_further_heads_draft_the_tokens_after_the_next(heads: Any, tokens: int, passes: int) -> None:
    net, calls = permuting(), []
    expected = best(net, [[5, 2]], 21)
    net.stack("decoder").register_forward_pre_hook(lambda *_: calls.append(1))
    strategy = {"type": "speculative", "draft": {"head": heads}, "tokens": tokens}
    assert best(net, [[5, 2]], 21, strategy=strategy) == expected
    assert len(calls) == passes  # the prompt gives one token, every later pass one more than was drafted


@pytest.mark.full
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_drafts_of_untrained_heads_change_nothing(kind: str) -> None:
    net = small(kind, heads={"ahead_2": AHEAD, "ahead_3": AHEAD}, max_length=64)
    prompts, sources = (PROMPTS, None) if kind == "decoder" else ([[1]] * 4, SOURCES)
    rules = Rules([Slot("logits").validate({"type": "no_repeat_ngram", "size": 2}).build()])
    expected = best(net, prompts, [12, 7, 0, 1], rules, sources=sources)
    strategy = {"type": "speculative", "draft": {"head": ["ahead_2", "ahead_3"]}}
    for use_cache in (True, False):
        found = best(net, prompts, [12, 7, 0, 1], rules, strategy, sources=sources, use_cache=use_cache)
        assert found == expected


@pytest.mark.full
def test_draws_with_drafts_of_heads_follow_the_model() -> None:
    net = small(vocab=4, heads={"ahead_2": AHEAD})
    made = Slot("strategy").validate({"type": "speculative", "draft": {"head": "ahead_2"}, "sampled": True}).build()
    check_draws(net, made, 1500)


def test_heads_that_predict_no_tokens_are_refused() -> None:
    strategy = {"type": "speculative", "draft": {"head": "ahead_2"}}
    pooled, tags = ({"type": kind, "num_classes": 3} for kind in ("classifier", "token_classifier"))
    wrong: list[tuple[Any, str]] = [
        ({}, "no head 'ahead_2' in its `heads`"),
        ({"ahead_2": {**pooled, "pool": "last"}}, "'ahead_2' .*does not predict tokens"),
        ({"ahead_2": tags}, "'ahead_2' .*does not predict tokens"),
    ]
    for heads, message in wrong:
        net = small(heads=heads)
        with pytest.raises(UsageError, match=f"draft.head: .*{message}"):
            best(net, [[1]], 3, strategy=strategy)
    with pytest.raises(RecipeError, match="head"):
        parts_of("strategy", {"type": "speculative", "draft": {"head": []}})
