"""my_part: a custom mixer, which combines tokens without attention."""

# Axes: batch, time, query and key (tokens), width (channels of the mean), d_model.

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.mixer import Mixer


@tfkit.register("mixer", "my_part")
class MyPart(Mixer):
    """output(gate(x) * mean of value(y) over all tokens y visible to x)."""

    # Options of the part, as written in a recipe: {type: my_part, d_mean: 64}. Add your own here.
    class Config(Mixer.Config):
        d_mean: int = Field(64, ge=1, description="width of the mean")

    # The capabilities of the part, which `tfkit parts --verify` tests. Add "cache" once it can decode from a state.
    capabilities = frozenset({"causal", "bidirectional", "padding", "packing", "masks"})
    residual_outputs = ("output",)  # layers that write to the residual stream; some inits scale them with the depth

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.d_model, config.d_mean)
        self.value = nn.Linear(shape.d_model, config.d_mean)
        self.output = nn.Linear(config.d_mean, shape.d_model)

    def forward(self, x: Tensor, context: tfkit.Context) -> Tensor:
        mean = self._mean(self.value(x), context)  # [batch time width]
        out: Tensor = self.output(self.gate(x).sigmoid() * mean)  # [batch time d_model]
        return out

    def _mean(self, value: Tensor, context: tfkit.Context) -> Tensor:
        # Change this: mix tokens, [batch time width] -> [batch time width].
        visible = context.mask.dense()  # [batch|1 query|1 key], True = visible; None if everything is visible
        if visible is None:
            return value.mean(dim=1, keepdim=True)
        weights = visible.to(value.dtype)
        total = weights.expand(value.shape[0], -1, -1) @ value
        return total / weights.sum(dim=-1, keepdim=True).clamp(min=1)  # 0 if nothing is visible
