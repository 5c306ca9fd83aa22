"""Routing of tokens to experts: the scores, the choice, the weights, and load balancing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor, nn

from tfkit.core.context import Collector
from tfkit.core.options import ExpertCount, NonNegativeFloat, PositiveFloat
from tfkit.functional.precision import wide

LEAST = 1e-20  # added to a sum of weights before it divides them


class Router(BaseModel):
    """Scores of the experts for each token, and the `num_active` best (Shazeer et al. 2017, arXiv 1701.06538).

    Groups, of which only the best are open: DeepSeek-V2 (2024, arXiv 2405.04434). The selection bias, moved towards
    an even load instead of an auxiliary loss: Wang et al. 2024, arXiv 2408.15664.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, title="Router"
    )

    type: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="what makes scores of the logits: all experts compete, or each stands by itself"
    )
    over: Literal["all", "chosen"] = Field(
        "all", description="the softmax is taken over all experts and the best are chosen, or over the chosen ones"
    )
    normalized: bool = Field(False, description="weights are divided by their sum over the chosen experts")
    scale: PositiveFloat = Field(1.0, description="factor on the weights, after normalisation")
    bias: bool = Field(False, description="a bias of the projection to logits")
    selection_bias: bool = Field(
        False, description="a bias on the scores that has a say in the choice, but not in the weights"
    )
    selection_rate: NonNegativeFloat = Field(
        0.0, description="how far a training step moves the selection bias of each expert towards an even load"
    )
    num_groups: ExpertCount | None = Field(None, description="groups of neighbouring experts; none: one group")
    active_groups: ExpertCount | None = Field(None, description="groups that a token may choose from; none: all")
    group_score: Literal["max", "top2"] = Field(
        "top2", description="what a group is judged by: its best score, or the sum of its best two"
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
        """Options that contradict each other, and what is wrong with them."""
        if self.type != "softmax" and self.over != "all":
            yield "over", f"only a softmax is taken over the chosen experts; the router is '{self.type}'"
        if self.over == "chosen" and self.normalized:
            yield "normalized", "a softmax over the chosen experts sums to 1 already"
        if self.selection_rate and not self.selection_bias:
            yield "selection_rate", "there is no selection bias to move; say selection_bias: true"
        yield from self._check_groups(num_experts, num_active)

    def weighs(self, num_experts: int, num_active: int) -> bool:
        """Whether the weights of the chosen experts depend on the scores, by which a router learns from the task.

        The weight of one expert is always 1 where it is taken among the chosen ones, or where there is no other.
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
            yield "active_groups", f"{active} active groups of {groups}"
        elif num_active > active * size:
            yield "active_groups", f"{active} groups of {size} experts are too few to choose {num_active} experts from"
        elif active < groups and size < 2 and self.group_score == "top2":
            yield "group_score", "a group of one expert has no best two; say max"

    def build(self, width: int, num_experts: int, num_active: int) -> Routing:
        """The module that routes tokens of that width."""
        return Routing(self, width, num_experts, num_active)


class Choice(NamedTuple):
    """The chosen experts [tokens active], and the weight of each."""

    experts: Tensor
    weights: Tensor


class Routing(nn.Module):
    """Routes tokens [tokens width]; scores are made in float32 at least, because a near miss is another expert."""

    selection_bias: Tensor | None

    def __init__(self, config: Router, width: int, num_experts: int, num_active: int) -> None:
        super().__init__()
        self.config, self.num_experts, self.num_active = config, num_experts, num_active
        self.projection = nn.Linear(width, num_experts, bias=config.bias)
        # no optimizer moves it: a buffer, saved with the weights
        self.register_buffer("selection_bias", torch.zeros(num_experts) if config.selection_bias else None)

    def forward(self, x: Tensor, real: Tensor | None, collector: Collector) -> Choice:
        """The choice of each token; `real` [tokens] leaves padding out of what the load is judged by."""
        bias = None if self.projection.bias is None else wide(self.projection.bias)
        logits = F.linear(wide(x), wide(self.projection.weight), bias)
        scores = self._scores(logits)
        experts = self._open(scores).topk(self.num_active, dim=-1).indices
        if self.training:
            self._even_out(logits, scores, experts, real, collector)
        return Choice(experts, self._weights(scores.gather(-1, experts)).to(x.dtype))

    def _scores(self, logits: Tensor) -> Tensor:
        """Scores [tokens experts]; for a softmax over the chosen experts the logits themselves, in the same order."""
        if self.config.type == "sigmoid":
            return logits.sigmoid()
        return logits.softmax(dim=-1) if self.config.over == "all" else logits

    def _open(self, scores: Tensor) -> Tensor:
        """What the choice goes by: scores with the selection bias, those of closed groups at -inf."""
        choice = scores if self.selection_bias is None else scores + self.selection_bias
        groups = self.config.num_groups or 1
        active = self.config.active_groups or groups
        if active == groups:
            return choice
        by_group = rearrange(choice, "token (group expert) -> token group expert", group=groups)
        best = by_group.topk(1 if self.config.group_score == "max" else 2, dim=-1).values.sum(dim=-1)
        opened = torch.zeros_like(best).scatter(-1, best.topk(active, dim=-1).indices, 1.0)
        each = repeat(opened, "token group -> token (group expert)", expert=self.num_experts // groups)
        return choice.masked_fill(each == 0, float("-inf"))

    def _weights(self, scores: Tensor) -> Tensor:
        """Weights of the chosen experts from their scores [tokens active]."""
        if self.config.over == "chosen":
            scores = scores.softmax(dim=-1)
        if self.config.normalized:
            scores = scores / (scores.sum(dim=-1, keepdim=True) + LEAST)
        return scores * self.config.scale

    def _even_out(
        self, logits: Tensor, scores: Tensor, experts: Tensor, real: Tensor | None, collector: Collector
    ) -> None:
        """Add the auxiliary losses, and move the selection bias."""
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
