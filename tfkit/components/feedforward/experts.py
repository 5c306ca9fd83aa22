"""Mixtures of experts: a router selects a few of many feed-forward layers for each token."""

# Axes: batch, time, tokens (batch*time), experts, active (experts of a token), group (of experts),
# width (d_model).

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor, nn
from torch.func import functional_call

from tfkit.components.feedforward.dense import FeedForward
from tfkit.core import component
from tfkit.core.bounds import EXPERTS
from tfkit.core.component import Doubt, Problem, Shape, Unlearnable
from tfkit.core.context import Collector, Context
from tfkit.core.options import (
    ExpertCount,
    NonNegativeFloat,
    NonNegativeInt,
    Norm,
    PositiveFloat,
    Slot,
    check_norm,
    part_option,
)
from tfkit.core.registry import register
from tfkit.functional.view import wide, with_tensors

LEAST = 1e-20  # added to the sum of weights to avoid division by 0


class Router(BaseModel):
    """Scores the experts for each token and selects the `num_active` best (Shazeer et al. 2017, arXiv 1701.06538).

    Group-limited routing: DeepSeek-V2 (2024, arXiv 2405.04434). Load balancing with a selection bias instead of an
    auxiliary loss: Wang et al. 2024, arXiv 2408.15664.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, title="Router"
    )

    type: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="gating function: softmax over experts, or an independent sigmoid per expert"
    )
    over: Literal["all", "chosen"] = Field(
        "all", description="experts that the softmax covers: all, or only the chosen ones"
    )
    normalized: bool = Field(False, description="divide the weights by their sum over the chosen experts")
    scale: PositiveFloat = Field(1.0, description="factor on the weights, after normalization")
    bias: bool = Field(False, description="add a bias to the projection to logits")
    selection_bias: bool = Field(
        False, description="add a bias to the scores that affects the choice of experts, but not their weights"
    )
    selection: Literal["scores", "logits"] = Field(
        "scores", description="values that the selection bias is added to: scores, or logits (Kolibri)"
    )
    selection_rate: NonNegativeFloat = Field(
        0.0, description="step size of updates that move the selection bias towards an even load, in training"
    )
    num_groups: ExpertCount | None = Field(None, description="number of groups of adjacent experts; none: one group")
    active_groups: ExpertCount | None = Field(None, description="number of groups that a token chooses from; none: all")
    group_score: Literal["max", "top2"] = Field(
        "top2", description="score of a group: the maximum of its experts, or the sum of the two largest"
    )
    balance_loss: NonNegativeFloat = Field(
        0.0,
        description="coefficient of the auxiliary loss num_experts * sum(share of the choices * mean score), "
        "which is 1 for an even load",
    )
    z_loss: NonNegativeFloat = Field(
        0.0, description="coefficient of the auxiliary loss mean(logsumexp(logits)²), which keeps logits small"
    )

    def check(self, num_experts: int, num_active: int) -> Iterator[tuple[str, str]]:
        """Yield each conflicting option with a message."""
        if self.type != "softmax" and self.over != "all":
            yield "over", f"needs type: softmax; the router is '{self.type}'"
        if self.over == "chosen" and self.normalized:
            yield "normalized", "has no effect: a softmax over the chosen experts already sums to 1"
        if self.selection == "logits" and not self.selection_bias:
            yield "selection", "has no effect without a bias; set selection_bias: true"
        if self.selection_rate and not self.selection_bias:
            yield "selection_rate", "needs selection_bias: true"
        yield from self._check_groups(num_experts, num_active)

    def weighs(self, num_experts: int, num_active: int) -> bool:
        """True if the weights of chosen experts depend on the scores, so that the router learns from the task.

        A single active expert always has weight 1 if weights are normalized over the chosen experts, or if there is
        no other expert.
        """
        only = num_experts == 1 and self.type == "softmax"
        return num_active > 1 or not (only or self.normalized or self.over == "chosen")

    def _check_groups(self, num_experts: int, num_active: int) -> Iterator[tuple[str, str]]:
        groups = self.num_groups or 1
        active = self.active_groups or groups
        size = num_experts // groups
        if num_experts % groups:
            yield "num_groups", f"{groups} groups do not divide {num_experts} experts"
        elif active > groups:
            yield "active_groups", f"{active} active groups exceed num_groups {groups}"
        elif num_active > active * size:
            yield "active_groups", f"{active} groups of {size} experts are too few for {num_active} active experts"
        elif active < groups and size < 2 and self.group_score == "top2":
            yield "group_score", "top2 needs groups of at least two experts; use max"

    def build(self, width: int, num_experts: int, num_active: int) -> Routing:
        return Routing(self, width, num_experts, num_active)


class Choice(NamedTuple):
    """The chosen experts [tokens active] and their weights."""

    experts: Tensor
    weights: Tensor


class WideLinear(nn.Linear):
    """A linear layer that computes in float32 or wider, whatever its weights are."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(wide(x), wide(self.weight), None if self.bias is None else wide(self.bias))


class Routing(nn.Module):
    """Choice of experts for tokens [tokens width]. Scores are in float32 or wider: rounding could change the choice."""

    selection_bias: Tensor | None

    def __init__(self, config: Router, width: int, num_experts: int, num_active: int) -> None:
        super().__init__()
        self.config, self.num_experts, self.num_active = config, num_experts, num_active
        self.projection = WideLinear(width, num_experts, bias=config.bias)
        # a buffer: saved with the weights, not trained by the optimizer
        self.register_buffer("selection_bias", torch.zeros(num_experts) if config.selection_bias else None)

    def forward(self, x: Tensor, real: Tensor | None, collector: Collector) -> Choice:
        """Choose the experts of each token. `real` [tokens] is False for padding, which does not count as load."""
        logits = self.projection(x)  # [tokens experts]
        scores = self._scores(logits)
        ranked = logits if self.config.selection == "logits" else scores
        experts = self._open(ranked).topk(self.num_active, dim=-1).indices  # [tokens active]
        if self.training:
            self._even_out(logits, scores, experts, real, collector)
        return Choice(experts, self._weights(scores.gather(-1, experts)).to(x.dtype))  # [tokens active] each

    def _scores(self, logits: Tensor) -> Tensor:
        """Compute scores [tokens experts]; plain logits if the softmax covers only the chosen experts."""
        if self.config.type == "sigmoid":
            return logits.sigmoid()
        return logits.softmax(dim=-1) if self.config.over == "all" else logits

    def _open(self, scores: Tensor) -> Tensor:
        """Add the selection bias to scores or logits and mask closed groups with -inf."""
        choice = scores if self.selection_bias is None else scores + self.selection_bias
        groups = self.config.num_groups or 1
        active = self.config.active_groups or groups
        if active == groups:
            return choice
        by_group = rearrange(choice, "token (group expert) -> token group expert", group=groups)
        best = by_group.topk(1 if self.config.group_score == "max" else 2, dim=-1).values.sum(dim=-1)  # [tokens group]
        opened = torch.zeros_like(best).scatter(-1, best.topk(active, dim=-1).indices, 1.0)  # 1 for an open group
        each = repeat(opened, "token group -> token (group expert)", expert=self.num_experts // groups)
        return choice.masked_fill(each == 0, float("-inf"))

    def _weights(self, scores: Tensor) -> Tensor:
        """Compute the weights of the chosen experts from their scores [tokens active]."""
        if self.config.over == "chosen":
            scores = scores.softmax(dim=-1)
        if self.config.normalized:
            scores = scores / (scores.sum(dim=-1, keepdim=True) + LEAST)
        return scores * self.config.scale

    def _even_out(
        self, logits: Tensor, scores: Tensor, experts: Tensor, real: Tensor | None, collector: Collector
    ) -> None:
        """Add the auxiliary losses and update the selection bias."""
        config = self.config
        if not (config.balance_loss or config.z_loss or config.selection_rate):
            return
        counted = logits.new_ones(len(logits)) if real is None else real.to(logits.dtype)
        tokens = counted.sum().clamp(min=1)
        choices = repeat(counted, "token -> (token active)", active=self.num_active)
        chosen = rearrange(experts, "token active -> (token active)")
        load = logits.new_zeros(self.num_experts).index_add(0, chosen, choices)
        if config.balance_loss:
            shares = logits.softmax(dim=-1) if config.type == "softmax" else F.normalize(scores, p=1, dim=-1)
            mean = (shares * counted[:, None]).sum(dim=0) / tokens
            collector.add_loss(
                config.balance_loss * self.num_experts * (load / (tokens * self.num_active) * mean).sum()
            )
        if config.z_loss:
            collector.add_loss(config.z_loss * (logits.logsumexp(dim=-1).square() * counted).sum() / tokens)
        if config.selection_rate and self.selection_bias is not None:
            with torch.no_grad():
                self.selection_bias += config.selection_rate * (load.mean() - load).sign()


def _mapping(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


AnyRouter = Annotated[Router, BeforeValidator(_mapping, json_schema_input_type=Router | Literal["softmax", "sigmoid"])]
Expert = Annotated[component.Config, Slot("feedforward")]


@register("feedforward", "experts")
class Experts(FeedForward):
    """sum over the chosen experts e of weight_e(x) expert_e(x) (Shazeer et al. 2017, arXiv 1701.06538).

    Shared experts: DeepSeekMoE (Dai et al. 2024, arXiv 2401.06066). Only chosen experts are computed. Compiled and
    exported graphs, whose shapes must not depend on the choice, compute all experts and give those not chosen the
    weight 0.
    """

    class Config(FeedForward.Config):
        num_experts: ExpertCount = Field(description="number of experts that the router chooses from")
        num_active: ExpertCount = Field(description="number of experts applied to each token")
        expert: Expert = Field(description="feed-forward part of one expert")
        router: AnyRouter = part_option("softmax", "router: selects and weights the experts")
        weigh: Literal["output", "input"] = Field(
            "output", description="multiply the output or the input of an expert by its weight (Llama 4: input)"
        )
        num_shared: NonNegativeInt = Field(
            0,
            le=EXPERTS.most,
            description="number of shared experts applied to every token, implemented as one expert of inner width "
            "num_shared * d_ff",
        )
        shared_expert: Expert | None = Field(
            None,
            description="shared expert, if it differs from the routed ones; none: num_shared experts equal to the "
            "routed ones",
        )
        shared_gate: bool = Field(
            False, description="multiply the output of the shared expert by sigmoid(w x) (Qwen2-MoE)"
        )
        combine: Literal["sum", "mean"] = Field(
            "sum", description="sum or mean of the shared expert's output and the routed ones' (mean: Command A+)"
        )
        output_norm: Norm | None = Field(None, description="norm of the output; none: no norm (A.X-K1)")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.num_active > self.num_experts:
                yield Problem("num_active", f"{self.num_active} active experts exceed num_experts {self.num_experts}")
            else:
                for option, message in self.router.check(self.num_experts, self.num_active):
                    yield Problem(f"router.{option}", message)
                yield from self._check_weights()
            yield from self._check_inner("expert", self.expert, shape)
            if self.shared_expert is not None:
                yield from self._check_inner("shared_expert", self.shared_expert, shape)
            yield from self._check_shared()
            yield from check_norm("output_norm", self.output_norm, shape.d_model)

        def _check_weights(self) -> Iterator[Problem]:
            """Report routers whose weights are always 1, so that the task does not train them."""
            if self.router.weighs(self.num_experts, self.num_active):
                return
            if self.num_experts == 1:
                yield Doubt("num_experts", "the weight of the only expert is always 1, so the router has no effect")
                return
            option = "over" if self.router.over == "chosen" else "normalized"
            text = "the weight of the one chosen expert is always 1, so the router"
            if self.router.balance_loss or self.router.z_loss:
                yield Doubt(f"router.{option}", f"{text} learns only from its auxiliary losses")
            else:
                way = f"remove {option}, or increase num_active"
                yield Unlearnable(f"router.{option}", f"{text} never learns; {way}")

        def _check_inner(self, option: str, config: component.Config, shape: Shape) -> Iterator[Problem]:
            if isinstance(config, Experts.Config):
                yield Problem(option, "experts cannot be nested; use another feed-forward part")
            if isinstance(config, FeedForward.Config) and config.shared:
                yield Problem(
                    f"{option}.shared",
                    "single experts cannot be shared between layers; set `shared` on the experts part instead",
                )
            for problem in config.check(shape):
                yield problem._replace(option=f"{option}.{problem.option}")

        def _check_shared(self) -> Iterator[Problem]:
            if self.num_shared and self.shared_expert is not None:
                yield Problem("num_shared", "cannot be combined with shared_expert; use one of them")
            elif self.num_shared > 1 and not hasattr(self.expert, "d_ff"):
                yield Problem(
                    "num_shared", f"'{self.expert.part.part_name}' has no d_ff to multiply; set shared_expert instead"
                )
            if self.shared_gate and self.common() is None:
                yield Problem("shared_gate", "needs a shared expert; set num_shared or shared_expert")
            if self.combine == "mean" and self.common() is None:
                yield Problem("combine", "mean needs a shared expert; set num_shared or shared_expert")

        def axes(self, shape: Shape) -> Mapping[str, int]:
            return {"expert": self.num_experts}

        def common(self) -> component.Config | None:
            """Return the config of the shared expert, or None."""
            if self.shared_expert is not None or not self.num_shared:
                return self.shared_expert
            widened = {"d_ff": self.num_shared * self.expert.d_ff} if hasattr(self.expert, "d_ff") else {}
            return self.expert.model_copy(update=widened)

    config: Config
    picture = ("mixture of experts", "router", "experts, weighted sum")

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.router = config.router.build(shape.d_model, config.num_experts, config.num_active)
        self.counts_tokens = bool(config.router.balance_loss or config.router.z_loss or config.router.selection_rate)
        self.experts = _stacked(config.expert.build(shape), config.num_experts)
        common = config.common()
        self.shared_expert = None if common is None else common.build(shape)
        self.shared_gate = nn.Linear(shape.d_model, 1, bias=False) if config.shared_gate else None
        self.output_norm = nn.Identity() if config.output_norm is None else config.output_norm.build(shape)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rows = rearrange(x, "batch time width -> (batch time) width")  # [tokens width]
        choice = self.router(rows, _real(x, context), context.collector)  # [tokens active] each
        mix = self._every if torch.compiler.is_compiling() else self._chosen
        batch, time, _ = x.shape
        out = mix(rows, choice, context)  # [tokens width]
        out = rearrange(out, "(batch time) width -> batch time width", batch=batch, time=time)  # [batch time width]
        if self.shared_expert is not None:
            common: Tensor = self.shared_expert(x, context)  # [batch time width]
            out = out + (common if self.shared_gate is None else common * self.shared_gate(x).sigmoid())
            out = out if self.config.combine == "sum" else out / 2
        normed: Tensor = self.output_norm(out)
        return normed

    def idle_parameters(self) -> int:
        """Return the number of parameters in the experts that a token does not use."""
        of_all = sum(weight.numel() for weight in self.experts.parameters())
        return of_all // self.config.num_experts * (self.config.num_experts - self.config.num_active)

    def _chosen(self, rows: Tensor, choice: Choice, context: Context) -> Tensor:
        """Apply each expert only to the rows [row width] routed to it."""
        experts, active = rearrange(choice.experts, "row active -> (row active)"), self.config.num_active
        order = experts.argsort(stable=True)
        given = rows[order // active]  # [rows*active width]
        if self.config.weigh == "input":
            weights = rearrange(choice.weights, "row active -> (row active) 1")
            given = given * weights[order]
        each = self._each(context)
        parts = torch.split(given, self._sizes(experts))
        made = [one(part) for one, part in zip(each, parts, strict=True) if len(part)]
        out = (torch.cat(made) if made else given)[order.argsort()]  # [rows*active width]
        by_choice = rearrange(out, "(row active) width -> row active width", active=active)
        if self.config.weigh == "output":
            by_choice = by_choice * choice.weights[..., None]
        return by_choice.sum(dim=1)  # [rows width]

    def _sizes(self, experts: Tensor) -> list[int]:
        """Count the rows of each expert; meta and fake tensors have no values, so one expert gets all rows."""
        if experts.is_meta or type(experts) is not Tensor:
            return [len(experts)] + [0] * (self.config.num_experts - 1)
        # bincount would wait for the device a second time
        sizes = experts.new_zeros(self.config.num_experts).scatter_add_(0, experts, torch.ones_like(experts))
        counts: list[int] = sizes.tolist()
        return counts

    def _every(self, rows: Tensor, choice: Choice, context: Context) -> Tensor:
        """Apply every expert to every row, so that shapes do not depend on the choice."""
        nothing = rows.new_zeros(rows.shape[0], self.config.num_experts)
        weights = nothing.scatter(1, choice.experts, choice.weights)  # [rows experts]
        before = after = weights
        if self.config.weigh == "input":
            after = nothing.scatter(1, choice.experts, torch.ones_like(choice.weights))
        out = torch.zeros_like(rows)
        for expert, one in enumerate(self._each(context)):
            given = rows * before[:, expert, None] if self.config.weigh == "input" else rows
            out = out + one(given) * after[:, expert, None]
        return out

    def _each(self, context: Context) -> list[Callable[[Tensor], Tensor]]:
        """Return every expert as a function of [row width]."""
        # unbound once, so that the backward pass stacks the gradients once
        stacks = {name: weight.unbind() for name, weight in self.experts.named_parameters()}
        one = _compiled if torch.compiler.is_compiling() else _alone

        def run(expert: int, rows: Tensor) -> Tensor:
            own = {name: weights[expert] for name, weights in stacks.items()}
            out: Tensor = one(self.experts, own, rows[None], context)[0]
            return out

        return [partial(run, expert) for expert in range(self.config.num_experts)]


def _alone(experts: nn.Module, weights: Mapping[str, Tensor], x: Tensor, context: Context) -> Tensor:
    """Run one expert through a view with its weights; the module is not modified, as other threads may use it."""
    instead = {parameter: weights[name] for name, parameter in experts.named_parameters()}
    out: Tensor = with_tensors(experts, instead)(x, context)
    return out


def _compiled(experts: nn.Module, weights: Mapping[str, Tensor], x: Tensor, context: Context) -> Tensor:
    """Run one expert in a form that torch.compile can trace."""
    out: Tensor = functional_call(experts, dict(weights), (x, context))
    return out


def _stacked(part: nn.Module, count: int) -> nn.Module:
    """Add a leading axis of size `count` to all weights of a part."""
    for module in part.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            stacked = weight.detach().expand(count, *weight.shape).clone(memory_format=torch.contiguous_format)
            module.register_parameter(name, nn.Parameter(stacked, weight.requires_grad))
    return part


def _real(x: Tensor, context: Context) -> Tensor | None:
    """Return the mask of rows that are not padding, [batch * time]; in a packed row, padding is segment 0."""
    real, segments = context.mask.real, context.mask.segments
    if real is None and segments is not None:
        real = segments[0] != 0
    if real is None:
        return None
    batch, time, _ = x.shape
    return rearrange(real[:, -time:].expand(batch, -1), "batch time -> (batch time)")
