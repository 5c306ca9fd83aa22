"""Mixtures of experts against loops over tokens in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.work import work
from tfkit.components.feedforward import Experts
from tfkit.core.component import Shape
from tfkit.core.context import Collector, Context, Placement, Span, Visibility
from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count

from ..models.small import small
from ..sampling import looped

WIDTH, ROWS, TIME = 6, 2, 5
GLU = {"type": "glu", "d_ff": 4, "bias": False}
Row = list[float]


def context(real: Tensor | None = None, collector: Collector | None = None) -> Context:
    places = torch.arange(TIME)[None]
    mask = Visibility((), Span(TIME, TIME, 0, torch.device("cpu")), real=real)
    return Context(mask, Placement((), places, places), collector=collector or Collector())


def build(num_experts: int = 6, num_active: int = 2, **options: Any) -> Any:
    options = {"num_experts": num_experts, "num_active": num_active, "expert": GLU, **options}
    config = Slot("feedforward").validate({"type": "experts", **options})
    problems = list(config.check(Shape(WIDTH)))
    assert not problems, problems
    part = config.build(Shape(WIDTH)).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in part.state_dict().values():
            value.copy_(torch.randn(value.shape, generator=generator).double())
    return part


def inputs() -> Tensor:
    return torch.randn(ROWS, TIME, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def one_glu(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    gate = weights["gate.weight"] @ x
    return weights["down.weight"] @ (gate * gate.sigmoid() * (weights["up.weight"] @ x))


def expert_of(part: Experts, number: int, x: Tensor) -> Tensor:
    return one_glu({name: weight[number] for name, weight in part.experts.named_parameters()}, x)


def naive_weights(part: Any, x: Tensor, num_active: int, router: dict[str, Any]) -> dict[int, float]:
    """The chosen experts of one token, each with its weight, in plain numbers."""
    logits = (part.router.projection.weight @ x).tolist()
    experts = range(len(logits))
    if router.get("type") == "sigmoid":
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    elif router.get("over") == "chosen":
        scores = logits
    else:
        scores = [math.exp(logit) / sum(math.exp(other) for other in logits) for logit in logits]
    bias = [0.0] * len(logits) if part.router.selection_bias is None else part.router.selection_bias.tolist()
    ranked = logits if router.get("selection") == "logits" else scores
    choice = [score + own for score, own in zip(ranked, bias, strict=True)]
    groups = router.get("num_groups", 1)
    size = len(logits) // groups
    best = 1 if router.get("group_score") == "max" else 2
    judged = {
        group: sum(sorted(choice[group * size : (group + 1) * size], reverse=True)[:best]) for group in range(groups)
    }
    opened = sorted(judged, key=lambda group: -judged[group])[: router.get("active_groups", groups)]
    allowed = [expert for expert in experts if expert // size in opened]
    chosen = sorted(allowed, key=lambda expert: -choice[expert])[:num_active]
    weights = {expert: scores[expert] for expert in chosen}
    if router.get("over") == "chosen":
        total = sum(math.exp(weight) for weight in weights.values())
        weights = {expert: math.exp(weight) / total for expert, weight in weights.items()}
    if router.get("normalized"):
        total = sum(weights.values())
        weights = {expert: weight / total for expert, weight in weights.items()}
    return {expert: weight * router.get("scale", 1.0) for expert, weight in weights.items()}


ROUTERS: list[dict[str, Any]] = [
    {"type": "softmax"},
    {"type": "softmax", "normalized": True},
    {"type": "softmax", "over": "chosen"},
    {"type": "sigmoid", "scale": 2.5},
    {"type": "softmax", "selection_bias": True},
    {"type": "sigmoid", "selection_bias": True, "normalized": True, "num_groups": 3, "active_groups": 2},
    {"type": "softmax", "num_groups": 3, "active_groups": 1, "group_score": "max"},
    {"type": "sigmoid", "selection_bias": True, "selection": "logits", "normalized": True},
]


@looped("router", ROUTERS)
def test_experts_equal_a_loop_over_tokens(router: dict[str, Any]) -> None:
    part, x = build(router=router), inputs()
    out = part(x, context())
    for row in range(ROWS):
        for time in range(TIME):
            token = x[row, time]
            weights = naive_weights(part, token, 2, router)
            expected = sum(weight * expert_of(part, number, token) for number, weight in weights.items())
            torch.testing.assert_close(out[row, time], expected)


def test_a_call_never_writes_to_the_part() -> None:
    """Another thread may be computing with it."""
    part, seen = build(), []
    weights = dict(part.experts.named_parameters())
    part.experts.activation.register_forward_hook(lambda *_: seen.append(dict(part.experts.named_parameters())))
    part(inputs(), context())
    assert seen
    assert all(now[name] is weight for now in seen for name, weight in weights.items())


def test_a_weight_may_multiply_the_input() -> None:
    router = {"type": "sigmoid"}
    part, x = build(router=router, weigh="input"), inputs()
    token = x[1, 3]
    weights = naive_weights(part, token, 2, router)
    expected = sum(expert_of(part, number, weight * token) for number, weight in weights.items())
    torch.testing.assert_close(part(x, context())[1, 3], expected)


@pytest.mark.parametrize("weigh", ["output", "input"])
def test_all_experts_at_once_give_the_same(weigh: str) -> None:
    part, x = build(weigh=weigh, expert={"type": "mlp", "d_ff": 4}), inputs().flatten(0, 1)
    choice = part.router(x, None, Collector())
    torch.testing.assert_close(part._every(x, choice, context()), part._chosen(x, choice, context()))


def test_what_every_token_passes_is_added() -> None:
    x = inputs()
    plain = build()
    wide = build(num_shared=2)
    own = build(shared_expert={"type": "glu", "d_ff": 3, "bias": False}, shared_gate=True)
    assert wide.shared_expert.gate.weight.shape == (8, WIDTH)
    for part in (wide, own):
        plain.router.load_state_dict(part.router.state_dict())
        plain.experts.load_state_dict(part.experts.state_dict())
        common = torch.stack([one_glu(dict(part.shared_expert.named_parameters()), token) for token in x.flatten(0, 1)])
        if part.shared_gate is not None:
            common = common * torch.sigmoid(x.flatten(0, 1) @ part.shared_gate.weight.T)
        torch.testing.assert_close(part(x, context()), plain(x, context()) + common.reshape(x.shape))


@pytest.mark.full
def test_the_output_may_be_a_mean_and_normalized() -> None:
    x, plain, mean = inputs(), build(num_shared=1), build(num_shared=1, combine="mean", output_norm="rms_norm")
    summed = plain(x, context())
    normed = summed / 2 / ((summed / 2).square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * mean.output_norm.weight
    mean.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(mean(x, context()), normed)


def test_only_chosen_experts_are_computed() -> None:
    part, seen = build(num_experts=6, num_active=1), []
    part.experts.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].shape[1]))
    part(inputs(), context())
    assert sum(seen) == ROWS * TIME and len(seen) <= 6


def test_a_batch_without_tokens_gives_none() -> None:
    assert build()(inputs()[:0], context()).shape == (0, TIME, WIDTH)


def test_balance_loss_is_one_for_an_even_load_and_more_for_any_other() -> None:
    part = build(num_experts=4, num_active=1, router={"balance_loss": 1.0, "z_loss": 0.5}).train()
    with torch.no_grad():
        part.router.projection.weight.zero_()
        part.router.projection.weight[:, 0] = torch.tensor([0.0, 1.0, 2.0, 3.0])
    x = inputs()
    x[..., 0] = 2.0  # every token goes to the last expert
    collector = Collector()
    part(x, context(collector=collector))
    logits = 2 * torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert collector.losses[0].item() == pytest.approx(4 * float(logits.softmax(0)[3]))
    assert collector.losses[1].item() == pytest.approx(0.5 * float(logits.logsumexp(0)) ** 2)
    x[..., 0] = 0.0
    collector = Collector()
    part(x, context(collector=collector))
    assert collector.losses[0].item() == pytest.approx(1.0)
    part.eval()(x, context(collector=(quiet := Collector())))
    assert quiet.losses == []


def test_padding_has_no_say_in_the_load() -> None:
    part, x = build(router={"balance_loss": 1.0}).train(), inputs()
    real = torch.ones(ROWS, TIME, dtype=torch.bool)
    real[0, 3:] = False
    first, second = Collector(), Collector()
    part(x, context(real, first))
    x[0, 3:] = 100.0
    part(x, context(real, second))
    assert first.losses[0].item() == pytest.approx(second.losses[0].item())


def test_the_selection_bias_moves_towards_an_even_load_in_training_alone() -> None:
    part = build(num_experts=4, num_active=1, router={"selection_bias": True, "selection_rate": 0.25})
    with torch.no_grad():
        part.router.projection.weight.zero_()
        part.router.selection_bias.copy_(torch.tensor([3.0, 0.0, 0.0, 0.0]))
    part(inputs(), context())
    assert part.router.selection_bias.tolist() == [3.0, 0.0, 0.0, 0.0]
    part.train()(inputs(), context())
    assert part.router.selection_bias.tolist() == [2.75, 0.25, 0.25, 0.25]


def test_a_router_in_half_precision_still_scores_in_single() -> None:
    part = build().to(torch.bfloat16)
    x = inputs().to(torch.bfloat16)
    logits = x.flatten(0, 1).float() @ part.router.projection.weight.float().T
    choice = part.router(x.flatten(0, 1), None, Collector())
    assert choice.experts.tolist() == logits.topk(2, dim=-1).indices.tolist()
    assert choice.weights.dtype == torch.bfloat16


def recipe(**feedforward: Any) -> dict[str, Any]:
    sizes = {"num_experts": 4, "num_active": 2, "expert": {"type": "glu", "d_ff": 12}}
    return small({"norm": "rms_norm", "feedforward": {"type": "experts", **sizes, **feedforward}}, init="xavier")


@looped(
    ("options", "said"),
    [
        ({"num_active": 5}, "5 active experts exceed num_experts 4"),
        ({"router": {"type": "sigmoid", "over": "chosen"}}, "needs type: softmax"),
        ({"router": {"over": "chosen", "normalized": True}}, "already sums to 1"),
        ({"router": {"num_groups": 3}}, "3 groups do not divide 4 experts"),
        ({"router": {"num_groups": 2, "active_groups": 3}}, "3 active groups exceed num_groups 2"),
        ({"router": {"num_groups": 4, "active_groups": 2}}, "top2 needs groups of at least two"),
        ({"router": {"num_groups": 4, "active_groups": 1}}, "too few"),
        ({"router": {"selection_rate": 0.1}}, "needs selection_bias: true"),
        ({"router": {"selection": "logits"}}, "no effect without a bias"),
        ({"router": "sigmiod"}, "softmax"),
        ({"combine": "mean"}, "needs a shared expert"),
        ({"shared_gate": True}, "needs a shared expert"),
        ({"num_shared": 1, "shared_expert": {"type": "mlp", "d_ff": 3}}, "cannot be combined with shared_expert"),
        ({"expert": {"type": "experts", "num_experts": 2, "num_active": 1, "expert": GLU}}, "cannot be nested"),
        ({"expert": {"type": "glu", "d_ff": 3, "shared": True}}, "set `shared` on the experts part instead"),
        ({"expert": {"type": "glu", "d_ff": 3, "bias": ["gaet"]}}, "gaet")
    ]
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said) as error:
        load_recipe(recipe(**options)).blueprint()
    assert "feedforward" in str(error.value)


def test_every_expert_begins_otherwise_by_its_own_fan() -> None:
    from tfkit.models.build import build_model

    model = build_model(load_recipe(recipe()).blueprint(), seed=1)
    weight = model.get_parameter("decoder.layers.0.feedforward.experts.up.weight").detach()
    assert not torch.equal(weight[0], weight[1])
    bound = (6 / (8 + 12)) ** 0.5
    assert bound * 0.9 < float(weight.abs().max()) <= bound


def test_flops_on_meta_are_those_of_a_real_run_and_only_of_chosen_experts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from tfkit.models.build import build_model

    blueprint = load_recipe(recipe(num_shared=1)).blueprint()
    counted = count(blueprint, length=10)
    row = next(row for row in counted.rows if row.name == "layer")
    part = next(part for part in row.parts if part.name == "feedforward")
    with FlopCounterMode(display=False) as counter:
        build_model(blueprint, seed=0).get_submodule("decoder.layers.0.feedforward")(torch.randn(1, 10, 8), context())
    assert part.cost.flops_per_token == counter.get_total_flops() // 10
    per_expert = 3 * 8 * 12 + 2 * 12 + 8  # gate, up and down with their biases
    assert counted.active == counted.total.parameters - 2 * 2 * per_expert
    more = count(load_recipe(recipe(num_shared=1, num_experts=8)).blueprint(), length=10)
    assert more.total.parameters > counted.total.parameters
    router = 2 * 8 * 4 * 2  # of four more experts, in two layers
    assert more.total.flops_per_token == counted.total.flops_per_token + router


def test_idle_parameters_are_those_of_experts_that_a_token_does_not_pass() -> None:
    part = build(num_experts=6, num_active=2)
    assert part.idle_parameters() == 4 * 3 * 4 * WIDTH
    assert isinstance(part.experts, nn.Module)


def test_a_clipped_swiglu_equals_its_formula() -> None:
    options = {"type": "glu", "d_ff": 4, "activation": "quick_gelu", "limit": 0.4, "up_offset": 1.0}
    part = Slot("feedforward").validate(options).build(Shape(WIDTH)).double()
    x = inputs()
    gate, up = part.gate(x).clamp(max=0.4), part.up(x).clamp(-0.4, 0.4)
    torch.testing.assert_close(part(x, context()), part.down((up + 1) * gate * torch.sigmoid(1.702 * gate)))
    assert bool((part.gate(x) > 0.4).any()) and bool((part.up(x) < -0.4).any()), "nothing is clipped"


def test_auxiliary_losses_reach_the_model_in_training_alone() -> None:
    from tfkit.models.build import build_model

    router = {"balance_loss": 0.01, "selection_bias": True, "selection_rate": 0.001}
    model = build_model(load_recipe(recipe(router=router)).blueprint(), seed=0)
    ids = torch.randint(0, 20, (2, 10), generator=torch.Generator().manual_seed(1))
    loss = model.train()(input_ids=ids).auxiliary_loss
    assert 0.019 < float(loss.detach()) < 0.1  # 0.01 of each of two layers, where the load is even
    loss.backward()
    weight = model.get_parameter("decoder.layers.0.feedforward.router.projection.weight")
    assert weight.grad is not None and float(weight.grad.abs().max()) > 0
    assert float(model.get_buffer("decoder.layers.0.feedforward.router.selection_bias").abs().max()) > 0
    assert model.eval()(input_ids=ids).auxiliary_loss is None


def test_many_experts_are_stacked_in_the_time_of_a_few() -> None:
    shape = Shape(8)

    def build(count: int) -> int:
        config = Experts.Config.model_validate(
            {"expert": {"type": "mlp", "d_ff": 8, "activation": "relu"}, "num_experts": count, "num_active": 2}
        )
        return work(lambda: skeleton_of(config))

    def skeleton_of(config: Experts.Config) -> None:
        with torch.device("meta"):
            config.build(shape)

    build(4)  # imports
    assert build(4096) < 1.5 * build(4)
