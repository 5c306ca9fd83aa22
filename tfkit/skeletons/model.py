"""my_part: a custom topology, the stacks of a model and how a call runs through them."""

# Axes: batch, time, d_model.

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.core.blueprint import Blueprint
from tfkit.models import Body, Decoder, ModelOutput


# A model with other stacks extends `Model` instead, declares them as in `sides = {"decoder": True}` (True: causal), and
# computes them in `forward`, which ends with `self.finish(Body(hidden, call))`.
@tfkit.register("model", "my_part")
class MyPart(Decoder):
    """A decoder whose loss includes weight * mean(hidden²) (Merity et al. 2017, arXiv 1708.02182)."""

    # Options of the part, as written in a recipe: model.type: {type: my_part, weight: 0.01}. Add your own here.
    class Config(Decoder.Config):
        weight: float = Field(0.01, ge=0, description="weight of the mean square of the last hidden states")

    config: Config

    def __init__(self, config: Config, blueprint: Blueprint) -> None:
        super().__init__(config, blueprint)
        self.config = config

    def finish(self, body: Body, with_heads: bool) -> ModelOutput:
        out = super().finish(body, with_heads)
        if self.training:
            # Change this: a loss that training adds to that of the objective. Generation does not call `finish`.
            hidden, real = body.hidden, body.call.real
            loss = self.config.weight * (hidden if real is None else hidden[real]).square().mean()
            out.auxiliary_loss = loss if out.auxiliary_loss is None else out.auxiliary_loss + loss
        return out
