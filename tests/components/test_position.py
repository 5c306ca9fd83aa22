"""Positions against their formulas and the numbers of their papers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tfkit.components.position import ALiBi, LearnedPosition, LogTemperature, Rotary, Sinusoidal, T5Bias
from tfkit.components.position.bias import slopes
from tfkit.core.component import Shape
from tfkit.core.errors import UsageError
from tfkit.models.build import build_model
from tfkit.recipe.model import blueprint_of

from ..sampling import looped

SHAPE = Shape(d_model=8, max_length=6, num_heads=2)
ENCODER = Shape(8, side="encoder", num_heads=2)
DECODER = Shape(8, causal=True, num_heads=2)


# --- learned ---


def learned(shape: Shape = SHAPE, **options: Any) -> LearnedPosition:
    return LearnedPosition(LearnedPosition.Config(**options), shape)


def test_learned_looks_up_its_row() -> None:
    part = learned(offset=2)
    assert part.table.weight.shape == (8, 8)
    out = part.embed(torch.tensor([[0, 3], [5, 1]]))
    assert torch.equal(out, part.table.weight[torch.tensor([[2, 5], [7, 3]])])
    assert learned(Shape(4), max_length=9).table.num_embeddings == 9
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])  # longer than the table
    assert learned().embed(packed).shape == (1, 9, 8)


def test_learned_names_the_position_beyond_its_table() -> None:
    for positions in ([[0, 6]], [[0, 1, 2, 3, 4, 5, 6]]):
        with pytest.raises(UsageError, match=r"position 6 .* 6 learned positions"):
            learned().embed(torch.tensor(positions))
    part = learned().to("meta")
    assert part.embed(torch.zeros(1, 6, dtype=torch.long, device="meta")).shape == (1, 6, 8)
    with pytest.raises(UsageError, match="position 6"):
        part.embed(torch.zeros(1, 7, dtype=torch.long, device="meta"))


def test_learned_needs_a_length() -> None:
    assert [problem.option for problem in LearnedPosition.Config().check(Shape(4))] == ["max_length"]
    assert [problem.option for problem in LearnedPosition.Config(max_length=5).check(SHAPE)] == ["max_length"]
    assert not list(LearnedPosition.Config(max_length=7).check(SHAPE))
    with pytest.raises(UsageError, match="max_length"):
        learned(Shape(4))


# --- rotary ---


@looped("fraction", [1.0, 0.5])
@looped("layout", ["halves", "interleaved"])
def test_rotary_turns_each_pair_by_its_angle(layout: Any, fraction: float) -> None:
    dim, theta = 8, 100.0
    part = Rotary(Rotary.Config(theta=theta, fraction=fraction, layout=layout), SHAPE)
    x = torch.randn(1, 2, 3, dim)
    positions = torch.tensor([[0, 5, 70]])
    out = part.rotation(positions, dim)(x)
    width = int(dim * fraction)
    expected = x.double().clone()
    for time, position in enumerate(positions[0].tolist()):
        for i in range(width // 2):
            a, b = (i, i + width // 2) if layout == "halves" else (2 * i, 2 * i + 1)
            angle = position * theta ** (-2 * i / width)
            first, second = x[:, :, time, a].double(), x[:, :, time, b].double()
            expected[:, :, time, a] = first * math.cos(angle) - second * math.sin(angle)
            expected[:, :, time, b] = second * math.cos(angle) + first * math.sin(angle)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rotary_scores_depend_on_differences_alone(layout: Any) -> None:
    part = Rotary(Rotary.Config(layout=layout), SHAPE)
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(query_position: int, key_position: int) -> float:
        turned = [
            part.rotation(torch.tensor([[position]]), 16)(x).double()
            for position, x in ((query_position, query), (key_position, key))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(5, 0), abs=1e-5)
    assert score(100_009, 100_004) == pytest.approx(score(5, 0), abs=1e-5)
    assert score(4, 9) != pytest.approx(score(9, 4), abs=1e-3)


def test_rotary_stretched_by_a_factor() -> None:
    config = Rotary.Config.model_validate({"scaling": {"type": "linear", "factor": 8}})
    x = torch.randn(1, 2, 3, 8)
    stretched = Rotary(config, SHAPE).rotation(torch.tensor([[0, 8, 80]]), 8)(x)
    torch.testing.assert_close(stretched, Rotary(Rotary.Config(), SHAPE).rotation(torch.tensor([[0, 1, 10]]), 8)(x))
    assert Rotary.Config.model_validate({"scaling": None}).scaling is None
    assert config.spelled()["scaling"] == {"type": "linear", "factor": 8.0}
    with pytest.raises(ValidationError, match="factr"):
        Rotary.Config.model_validate({"scaling": {"type": "linear", "factr": 8}})


@pytest.mark.full
def test_rotary_may_leave_the_pairs_of_low_frequency() -> None:
    x, places = torch.randn(1, 2, 3, 8), torch.tensor([[0, 5, 70]])
    whole, part = (
        Rotary(Rotary.Config.model_validate({"scaling": scaling}), SHAPE).rotation(places, 8)(x)
        for scaling in (None, {"type": "proportional", "fraction": 0.5})
    )
    for pair in range(4):
        torch.testing.assert_close(part[..., pair::4], (whole if pair < 2 else x)[..., pair::4])


@pytest.mark.parametrize(("dim", "fraction"), [(7, 1.0), (10, 0.5), (4, 0.1)])
def test_rotary_refuses_what_makes_no_pairs(dim: int, fraction: float) -> None:
    with pytest.raises(UsageError, match=f"head_dim {dim}"):
        Rotary(Rotary.Config(fraction=fraction), SHAPE).rotation(torch.arange(3)[None], dim)


@looped("options", [{"fraction": 0}, {"fraction": 1.5}, {"theta": 0}, {"layout": "pairs"}])
def test_rotary_refuses_options_without_meaning(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Rotary.Config.model_validate(options)


def test_rotary_clockwise_turns_the_other_way() -> None:
    x, positions = torch.randn(1, 2, 3, 8), torch.tensor([[0, 5, 70]])
    back = Rotary(Rotary.Config(clockwise=True), SHAPE).rotation(positions, 8)
    forth = Rotary(Rotary.Config(), SHAPE).rotation(positions, 8)
    torch.testing.assert_close(back(forth(x)), x)
    assert not torch.allclose(back(x), forth(x))


# --- log_temperature ---


@pytest.mark.parametrize("offset", [0, 1])
def test_log_temperature_grows_in_steps(offset: int) -> None:
    part = LogTemperature(LogTemperature.Config(beta=0.3, length=4, offset=offset), SHAPE)
    factors = part.temperature(torch.arange(20)[None])[0].tolist()
    assert factors == pytest.approx([1 + 0.3 * math.log(1 + (p + offset) // 4) for p in range(20)])
    assert part.hooks() == {"temperature"}
    with pytest.raises(ValidationError, match="length"):
        LogTemperature.Config.model_validate({"beta": 0.1})


# --- alibi ---


def test_alibi_slopes_of_the_paper() -> None:
    assert slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert slopes(16).tolist() == pytest.approx([2 ** (-i / 2) for i in range(1, 17)])
    assert slopes(12).tolist() == pytest.approx([2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    assert slopes(1).tolist() == [2.0**-8]
    assert slopes(3).tolist() == pytest.approx([2.0**-4, 2.0**-8, 2.0**-2])
    # those of 8 heads for 6: every other one from the second on, then the rest from the first on
    assert slopes(6, "above").tolist() == pytest.approx([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    assert torch.equal(slopes(8, "above"), slopes(8))
    for kind in ((), ("above",)):
        assert all(len(slopes(n, *kind)) == n == len(set(slopes(n, *kind).tolist())) for n in range(1, 130))


def test_alibi_in_bfloat16_gives_nearly_the_same_weights() -> None:
    part, exact = ALiBi(ALiBi.Config(bfloat16=True), DECODER), ALiBi(ALiBi.Config(), DECODER)
    places = torch.arange(300)[None]
    bias, precise = part.bias(places, places, 6), exact.bias(places, places, 6)
    assert bias.shape == (1, 6, 300, 300)
    head, key = 4, 271  # a slope between the powers of two
    slope = slopes(6)[head].float().bfloat16()
    assert float(bias[0, head, 299, key]) == float((slope * torch.tensor(key)).float())
    hidden = torch.ones(300, 300).triu(1).bool()
    shares, others = (both.masked_fill(hidden, -torch.inf).softmax(dim=-1) for both in (bias, precise))
    assert 0 < float((shares - others).abs().max()) < 0.2
    assert [problem.option for problem in ALiBi.Config(bfloat16=True).check(ENCODER)] == ["bfloat16"]


@looped("scale", [1.0, 0.25])
def test_alibi_falls_with_distance_both_ways(scale: float) -> None:
    part = ALiBi(ALiBi.Config(scale=scale), SHAPE)
    bias = part.bias(torch.tensor([[4, 7]]), torch.tensor([[0, 4, 9]]), 8)
    assert bias.shape == (1, 8, 2, 3)
    for head in range(8):
        assert bias[0, head].tolist() == [
            [-scale * (2.0 ** -(head + 1)) * abs(q - k) for k in (0, 4, 9)] for q in (4, 7)
        ]


# --- t5_bias ---


def bucket(relative: int, buckets: int, most: int, causal: bool) -> int:
    """The same in whole numbers: the far bucket is the largest k with (n/near)^far >= (most/near)^k."""
    start, distance = 0, max(0, -relative)
    if not causal:
        buckets //= 2
        start, distance = (buckets if relative > 0 else 0), abs(relative)
    near = buckets // 2
    if distance < near:
        return start + distance
    far, k = buckets - near, 0
    while k < far - 1 and distance**far * near ** (k + 1) >= most ** (k + 1) * near**far:
        k += 1
    return start + near + k


@looped("causal", [False, True])
@looped(("buckets", "most"), [(32, 128), (8, 20), (16, 1000)])
def test_t5_buckets(causal: bool, buckets: int, most: int) -> None:
    shape = DECODER if causal else ENCODER
    part = T5Bias(T5Bias.Config(num_buckets=buckets, max_distance=most), shape)
    relative = [*range(-300, 301), -5000, -most - 1, -most, -most + 1, most - 1, most, most + 1, 5000]
    assert part.bucket(torch.tensor(relative)).tolist() == [bucket(r, buckets, most, causal) for r in relative]


def test_t5_buckets_of_the_paper_s_code() -> None:
    both, past = T5Bias(T5Bias.Config(), ENCODER), T5Bias(T5Bias.Config(), DECODER)
    assert both.bucket(torch.tensor([0, -1, 1, -7, 7, -8, -127, -128, 128, 4000])).tolist() == [
        0, 1, 17, 7, 23, 8, 15, 15, 31, 31
    ]  # fmt: skip
    assert past.bucket(torch.tensor([0, -1, 1, 90, -15, -16, -127, -4000])).tolist() == [0, 1, 0, 0, 15, 16, 31, 31]


def test_t5_bias_looks_up_each_head_s_number() -> None:
    part = T5Bias(T5Bias.Config(), ENCODER)
    query, key = torch.tensor([[3, 10]]), torch.tensor([[0, 3, 200]])
    bias = part.bias(query, key, 2)
    assert bias.shape == (1, 2, 2, 3)
    for head in range(2):
        for i, q in enumerate((3, 10)):
            for j, k in enumerate((0, 3, 200)):
                assert bias[0, head, i, j] == part.table.weight[bucket(k - q, 32, 128, False), head]
    assert part.bfloat16().bias(query, key, 2).dtype == torch.bfloat16


def test_t5_bias_needs_heads_and_buckets_that_divide() -> None:
    def options(shape: Shape, **given: int) -> list[str]:
        return [problem.option for problem in T5Bias.Config(**given).check(shape)]

    assert options(ENCODER) == options(DECODER) == []
    assert options(Shape(8)) == [""]
    assert options(ENCODER, num_buckets=6) == ["num_buckets"] and options(DECODER, num_buckets=6) == []
    assert options(ENCODER, num_buckets=32, max_distance=8) == ["max_distance"]
    with pytest.raises(UsageError, match="num_heads"):
        T5Bias(T5Bias.Config(), Shape(8))
    with pytest.raises(UsageError, match="2 heads, but 4 are required"):
        T5Bias(T5Bias.Config(), ENCODER).bias(torch.arange(2)[None], torch.arange(2)[None], 4)


# --- sinusoidal ---


@looped("layout", ["interleaved", "halves"])
@looped("spacing", ["d_model", "endpoints"])
def test_sinusoidal_equals_the_formula(layout: Any, spacing: Any) -> None:
    part = Sinusoidal(Sinusoidal.Config(layout=layout, spacing=spacing, offset=2), SHAPE)
    out = part.embed(torch.tensor([[0, 5]]))[0]
    for row, position in enumerate((2, 7)):
        for pair in range(4):
            angle = position / 10000 ** (pair / (4 if spacing == "d_model" else 3))
            at = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, 4 + pair)
            assert [float(out[row, place]) for place in at] == pytest.approx(
                [math.sin(angle), math.cos(angle)], abs=1e-6
            )


@looped("dtype", [torch.float64, torch.float32, torch.bfloat16])
@looped("embedding", ["tokens", None])
def test_sinusoidal_is_as_exact_as_the_model(embedding: str | None, dtype: torch.dtype) -> None:
    """In the model's own type, made in float32 at least: also of vectors, with nothing else that would turn them."""
    layer = {"norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 8}}
    said = {"type": "encoder", "d_model": 8, "num_layers": 1, "layer": layer, "position": "sinusoidal"}
    more = {"embedding": "none"} if embedding is None else {"embedding": embedding, "vocab_size": 9}
    model = build_model(blueprint_of({**said, **more}), dtype=dtype).eval()
    stack, vectors, seen = model.stack("encoder"), torch.zeros(1, 3, 8, dtype=dtype), []
    stack.layers[0].register_forward_pre_hook(lambda _, called: seen.append(called[0]))
    assert model(inputs_embeds=vectors).hidden.dtype == dtype
    angles = [position / 10000 ** (pair / 4) for position in range(3) for pair in range(4)]
    expected = torch.tensor([wave(angle) for angle in angles for wave in (math.sin, math.cos)], dtype=torch.float64)
    torch.testing.assert_close(seen[0], expected.view(1, 3, 8).to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=1e-15)
    assert not list(stack.position.state_dict())


def test_sinusoidal_adds_nothing_to_padding_when_it_is_skipped() -> None:
    places = torch.tensor([[-1, -1, 0, 1], [0, 1, 2, -1]])
    part = Sinusoidal(Sinusoidal.Config(skip_padding=True, offset=2), SHAPE)
    out, plain = part.embed(places), Sinusoidal(Sinusoidal.Config(offset=2), SHAPE).embed(places)
    assert part.skips_padding
    assert torch.equal(out[places >= 0], plain[places >= 0]) and not out[places < 0].any()


# --- which hooks ---
