"""Greedy decoding with the cache equals decoding without, and refuses what cannot be read."""

from typing import Any

import pytest
import torch

from tfkit.components.mixer import Mixer
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.generation.rules import Rules
from tfkit.generation.stepper import Stepper, most_positions
from tfkit.generation.stop import EndToken
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

from ..sampling import looped
from .searching import best, small

LAYER = {
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 4, "num_kv_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 32},
    "dropout": 0.3,
}
COMMON: dict[str, Any] = {
    "d_model": 16,
    "vocab_size": 23,
    "max_length": 24,
    "embedding": "tokens",
    "layer": LAYER,
    "head": {"type": "language_model"},
    "init": {"type": "normal", "std": 0.4},
}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12]]
SOURCES = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


def ending(end: int) -> Rules:
    """A search that ends at that token, without a tokenizer to ask."""
    rule = EndToken(EndToken.Config())
    rule.ends = frozenset({end})
    return Rules(stop=[rule])


def model(kind: str, position: Any, **more: Any) -> Model:
    sides = (
        {"encoder": {"num_layers": 2}, "decoder": {"num_layers": 2}} if kind == "encoder_decoder" else {"num_layers": 2}
    )
    recipe = load_recipe({"tfkit": 1, "model": {"type": kind, "position": position, **COMMON, **sides, **more}})
    return build_model(recipe.blueprint(), seed=3)


def alone(net: Model, prompt: list[int], count: int, end: int | None, source: list[int] | None = None) -> list[int]:
    """The plainest way: the whole forward for every token, one row, no padding."""
    ids = list(prompt)
    net.eval()
    with torch.no_grad():
        for _ in range(count):
            if source is None:
                logits = net(input_ids=torch.tensor([ids])).logits
            else:
                logits = net(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids])).logits
            ids.append(int(logits[0, -1].argmax()))
            if ids[-1] == end:
                return ids[len(prompt) : -1]
    return ids[len(prompt) :]


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "t5_bias"])
def test_prompts_of_unlike_length_are_continued_as_each_alone(position: str) -> None:
    net = model("decoder", position)
    expected = [alone(net, prompt, 9, 0) for prompt in PROMPTS]
    assert best(net, PROMPTS, 9, ending(0)) == expected
    assert best(net, PROMPTS, 9, ending(0), use_cache=False) == expected


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "t5_bias"])
def test_sources_of_unlike_length_are_translated_as_each_alone(position: str) -> None:
    net = model("encoder_decoder", position)
    start = [[1]] * len(SOURCES)
    expected = [alone(net, [1], 9, 0, source) for source in SOURCES]
    assert best(net, start, 9, ending(0), sources=SOURCES) == expected
    assert best(net, start, 9, ending(0), sources=SOURCES, use_cache=False) == expected


def test_finished_rows_leave_the_batch_and_change_nothing() -> None:
    net = model("decoder", "rotary")
    first = best(net, PROMPTS, 12)
    end = first[0][3]  # some rows stop early, others late
    cut = [row[: row.index(end)] if end in row else row for row in first]
    assert len({len(row) for row in cut}) > 1
    assert best(net, PROMPTS, 12, ending(end)) == cut
    assert best(net, PROMPTS, [1, 12, 0, 5], ending(end)) == [
        row[:n] for row, n in zip(cut, [1, 12, 0, 5], strict=True)
    ]


def test_batches_do_not_matter_and_order_is_kept() -> None:
    net = model("encoder_decoder", "sinusoidal")
    start = [[1]] * len(SOURCES)
    together = best(net, start, 7, ending(0), sources=SOURCES)
    for size in (1, 2, 3, 64):
        assert best(net, start, 7, ending(0), sources=SOURCES, batch_size=size) == together


def test_mode_and_gradients_are_as_before() -> None:
    net = model("decoder", "learned").train()
    best(net, PROMPTS, 2)
    assert net.training
    net(input_ids=torch.tensor(PROMPTS[:1])).logits.sum().backward()


def test_learned_positions_end_the_text() -> None:
    net = model("decoder", "learned")
    assert most_positions(net, "decoder") == 24
    assert most_positions(model("decoder", "rotary"), "decoder") is None
    out = best(net, [[1] * 20, [2]], 50)
    assert [len(row) for row in out] == [5, 24]
    assert out[0] == alone(net, [1] * 20, 5, None)
    # a row that has ended stays in the batch until a quarter has
    many = [[1] * 20, *([2, n] for n in range(8))]
    assert best(net, many, 20) == [best(net, [prompt], 20)[0] for prompt in many]


@looped(
    ("prompts", "message"),
    [
        ([[1], [2] * 25], "prompt 2 has 25 tokens, but this model reads at most 24"),
        ([[1], []], "prompt 2 is empty"),
        ([[23]], "prompt 1 contains the id 23; ids are 0 to 22"),
        ([[-1]], "prompt 1 contains the id -1"),
        ([], "no prompts"),
    ],
)
def test_what_cannot_be_read_is_refused_before_computing(prompts: list[list[int]], message: str) -> None:
    net = model("decoder", "learned")
    net.stack("decoder").register_forward_pre_hook(lambda *_: pytest.fail("computed"))
    with pytest.raises(UsageError, match=message):
        best(net, prompts, 3)


def test_wrong_calls_are_refused() -> None:
    net = model("encoder_decoder", "learned")
    with pytest.raises(UsageError, match="needs sources"):
        best(net, [[1]], 3)
    with pytest.raises(UsageError, match="2 prompts and 1 sources"):
        best(net, [[1], [1]], 3, sources=[[2]])
    with pytest.raises(UsageError, match="source 1 has 30 tokens"):
        best(net, [[1]], 3, sources=[[2] * 30])
    with pytest.raises(UsageError, match="max_new_tokens"):
        best(net, [[1]], [3, 4], sources=[[2]])


def test_a_model_that_needs_what_no_prompt_says_is_refused_before_computing() -> None:
    net = small(mask="prefix")
    net.stack("decoder").register_forward_pre_hook(lambda *_: pytest.fail("computed"))
    with pytest.raises(UsageError, match="this model requires prefix_length in every call"):
        best(net, [[1]], 3)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"type": "language_model", "reads": "encoder"}, "reads the encoder, but tokens are predicted by the decoder"),
        ("none", "has no head that predicts tokens"),
    ],
)
def test_a_head_that_does_not_predict_the_next_token_is_refused(head: Any, message: str) -> None:
    net = model("encoder_decoder", "sinusoidal", head=head)
    with pytest.raises(UsageError, match=message):
        best(net, [[1]], 3, sources=[[3, 4]])


def test_only_the_last_logits_are_made() -> None:
    net = model("decoder", "rotary")
    seen = []
    assert net.head is not None
    net.head.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    best(net, PROMPTS, 3)
    assert seen == [1, 1, 1]


def test_a_model_that_sees_the_future_is_computed_anew() -> None:
    assert model("decoder", "rotary").caches
    both_ways = model("encoder", "rotary")
    assert not both_ways.caches
    with pytest.raises(UsageError, match="this encoder cannot decode from a state: its tokens see later tokens"):
        both_ways.new_state()


def test_a_part_that_cannot_leave_padding_out_is_never_given_any() -> None:
    class Looks(Mixer):
        """The mean of everything so far, padding too."""

        capabilities = frozenset({"causal"})

        def forward(self, x: torch.Tensor, context: Any) -> torch.Tensor:
            assert context.mask.real is None
            return x.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1)[:, None]

    REGISTRY.register("mixer", "looks")(Looks)
    layer = {"norm": "layer_norm", "mixer": "looks", "feedforward": {"type": "mlp", "d_ff": 32}}
    net = model("decoder", "learned", layer=layer)
    prompts = [*PROMPTS, [7, 8]]
    with pytest.raises(UsageError, match="mixer 'looks' cannot mask padding"):
        Stepper(net, prompts).logits()
    assert best(net, prompts, 4) == [best(net, [prompt], 4)[0] for prompt in prompts]
