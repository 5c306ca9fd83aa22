"""Mixture of experts: many feed-forward networks, of which each token is routed to a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from tfkit.components.feedforward.base import FeedForward
from tfkit.components.feedforward.router import AnyRouter, Choice
from tfkit.core import component
from tfkit.core.bounds import EXPERTS
from tfkit.core.component import Doubt, Problem, Slot, Unlearnable
from tfkit.core.context import Context
from tfkit.core.options import ExpertCount, NonNegativeInt
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.view import with_tensors

Expert = Annotated[component.Config, Slot("feedforward")]


@register("feedforward", "experts")
class Experts(FeedForward):
    """sum over the chosen experts e of weight_e(x) expert_e(x) (Shazeer et al. 2017, arXiv 1701.06538).

    Experts that every token passes besides: DeepSeekMoE (Dai et al. 2024, arXiv 2401.06066). Only chosen experts are
    computed; compiled or exported, where no shape may depend on the choice, all are, and the others weigh nothing.
    """

    class Config(FeedForward.Config):
        num_experts: ExpertCount = Field(description="experts that a router chooses from")
        num_active: ExpertCount = Field(description="experts that each token passes")
        expert: Expert = Field(description="one expert")
        router: AnyRouter = Field("softmax", description="how experts are chosen and weighed")  # type: ignore[assignment]
        weigh: Literal["output", "input"] = Field(
            "output", description="what of an expert is multiplied by its weight (Llama 4: its input)"
        )
        num_shared: NonNegativeInt = Field(
            0, le=EXPERTS.most, description="experts that every token passes besides, as one that many times as wide"
        )
        shared_expert: Expert | None = Field(
            None, description="what every token passes besides, where it is not as the experts; none: see num_shared"
        )
        shared_gate: bool = Field(
            False, description="what every token passes besides is multiplied by sigmoid(w x) (Qwen2-MoE)"
        )

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.num_active > self.num_experts:
                yield Problem("num_active", f"{self.num_active} active experts of {self.num_experts}")
            else:
                for option, message in self.router.check(self.num_experts, self.num_active):
                    yield Problem(f"router.{option}", message)
                yield from self._check_weights()
            yield from self._check_inner("expert", self.expert, shape)
            if self.shared_expert is not None:
                yield from self._check_inner("shared_expert", self.shared_expert, shape)
            yield from self._check_shared()

        def _check_weights(self) -> Iterator[Problem]:
            """A router learns from the task through the weights of the experts, unless these are always 1."""
            if self.router.weighs(self.num_experts, self.num_active):
                return
            if self.num_experts == 1:
                yield Doubt("num_experts", "the weight of the only expert is always 1, so that the router does nothing")
                return
            option = "over" if self.router.over == "chosen" else "normalized"
            text = "the weight of the one chosen expert is always 1, so that the router"
            if self.router.balance_loss or self.router.z_loss:
                yield Doubt(f"router.{option}", f"{text} learns from its auxiliary losses alone")
            else:
                way = f"leave {option} out, or choose more experts (num_active)"
                yield Unlearnable(f"router.{option}", f"{text} never learns; {way}")

        def _check_inner(self, option: str, config: component.Config, shape: Shape) -> Iterator[Problem]:
            if isinstance(config, Experts.Config):
                yield Problem(option, "an expert has no experts of its own; name another feed-forward part")
            if isinstance(config, FeedForward.Config) and config.shared:
                yield Problem(f"{option}.shared", "weights are shared between layers by the option of the whole part")
            for problem in config.check(shape):
                yield problem._replace(option=f"{option}.{problem.option}")

        def _check_shared(self) -> Iterator[Problem]:
            if self.num_shared and self.shared_expert is not None:
                yield Problem("num_shared", "shared_expert says what every token passes; leave one of them out")
            elif self.num_shared > 1 and not hasattr(self.expert, "d_ff"):
                yield Problem(
                    "num_shared", f"'{self.expert.part.part_name}' has no d_ff to widen; describe a shared_expert"
                )
            if self.shared_gate and self.common() is None:
                yield Problem("shared_gate", "there is no shared expert to gate; say num_shared or shared_expert")

        def axes(self, shape: Shape) -> Mapping[str, int]:
            return {"expert": self.num_experts}

        def common(self) -> component.Config | None:
            """The experts that every token is routed to; None without such experts."""
            if self.shared_expert is not None or not self.num_shared:
                return self.shared_expert
            widened = {"d_ff": self.num_shared * self.expert.d_ff} if hasattr(self.expert, "d_ff") else {}
            return self.expert.model_copy(update=widened)

    config: Config
    picture = ("mixture of experts", "router", "experts, weighted sum")

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.router = config.router.build(shape.d_model, config.num_experts, config.num_active)
        self.experts = _stacked(config.expert.build(shape), config.num_experts)
        common = config.common()
        self.shared_expert = None if common is None else common.build(shape)
        self.shared_gate = nn.Linear(shape.d_model, 1, bias=False) if config.shared_gate else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rows = rearrange(x, "batch time width -> (batch time) width")
        choice = self.router(rows, _real(x, context), context.collector)
        mix = self._every if torch.compiler.is_compiling() else self._chosen
        batch, time, _ = x.shape
        mixed = mix(rows, choice, context)
        out = rearrange(mixed, "(batch time) width -> batch time width", batch=batch, time=time)
        if self.shared_expert is None:
            return out
        common: Tensor = self.shared_expert(x, context)
        return out + (common if self.shared_gate is None else common * self.shared_gate(x).sigmoid())

    def idle_parameters(self) -> int:
        """Parameters of the experts that a token is not routed to."""
        of_all = sum(weight.numel() for weight in self.experts.parameters())
        return of_all // self.config.num_experts * (self.config.num_experts - self.config.num_active)

    def _chosen(self, rows: Tensor, choice: Choice, context: Context) -> Tensor:
        """Each expert for the rows [row width] that chose it."""
        experts, active = rearrange(choice.experts, "row active -> (row active)"), self.config.num_active
        order = experts.argsort(stable=True)
        given = rows[order // active]
        if self.config.weigh == "input":
            weights = rearrange(choice.weights, "row active -> (row active) 1")
            given = given * weights[order]
        each = self._each(context)
        parts = torch.split(given, self._sizes(experts))
        made = [one(part) for one, part in zip(each, parts, strict=True) if len(part)]
        out = (torch.cat(made) if made else given)[order.argsort()]
        by_choice = rearrange(out, "(row active) width -> row active width", active=active)
        if self.config.weigh == "output":
            by_choice = by_choice * choice.weights[..., None]
        return by_choice.sum(dim=1)

    def _sizes(self, experts: Tensor) -> list[int]:
        """How many rows each expert has; without numbers, on `meta`, all go to one, which costs the same."""
        if experts.is_meta:
            return [len(experts)] + [0] * (self.config.num_experts - 1)
        sizes: list[int] = experts.bincount(minlength=self.config.num_experts).tolist()
        return sizes

    def _every(self, rows: Tensor, choice: Choice, context: Context) -> Tensor:
        """Every expert for every row: no shape depends on the choice."""
        nothing = rows.new_zeros(rows.shape[0], self.config.num_experts)
        weights = nothing.scatter(1, choice.experts, choice.weights)
        before = after = weights
        if self.config.weigh == "input":
            after = nothing.scatter(1, choice.experts, torch.ones_like(choice.weights))
        out = torch.zeros_like(rows)
        for expert, one in enumerate(self._each(context)):
            given = rows * before[:, expert, None] if self.config.weigh == "input" else rows
            out = out + one(given) * after[:, expert, None]
        return out

    def _each(self, context: Context) -> list[Callable[[Tensor], Tensor]]:
        """Every expert as a function of [row width]."""
        # unbound at once, so that a backward pass makes the gradient of the stack once
        stacks = {name: weight.unbind() for name, weight in self.experts.named_parameters()}
        one = _compiled if torch.compiler.is_compiling() else _alone

        def run(expert: int, rows: Tensor) -> Tensor:
            own = {name: weights[expert] for name, weights in stacks.items()}
            out: Tensor = one(self.experts, own, rows[None], context)[0]
            return out

        return [partial(run, expert) for expert in range(self.config.num_experts)]


def _alone(experts: nn.Module, weights: Mapping[str, Tensor], x: Tensor, context: Context) -> Tensor:
    """One expert, as a view with its own weights, because another thread may be using the same part."""
    instead = {parameter: weights[name] for name, parameter in experts.named_parameters()}
    out: Tensor = with_tensors(experts, instead)(x, context)
    return out


def _compiled(experts: nn.Module, weights: Mapping[str, Tensor], x: Tensor, context: Context) -> Tensor:
    """The same in a form that torch.compile can trace; it runs once, in one thread."""
    out: Tensor = functional_call(experts, dict(weights), (x, context))
    return out


def _stacked(part: nn.Module, count: int) -> nn.Module:
    """A part whose weights have one more axis in front: those of `count` such parts."""
    for module in part.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            stacked = weight.detach().expand(count, *weight.shape).clone(memory_format=torch.contiguous_format)
            module.register_parameter(name, nn.Parameter(stacked, weight.requires_grad))
    return part


def _real(x: Tensor, context: Context) -> Tensor | None:
    """Which rows are no padding, [batch * time]."""
    real = context.mask.real
    if real is None:
        return None
    batch, time, _ = x.shape
    return rearrange(real[:, -time:].expand(batch, -1), "batch time -> (batch time)")
