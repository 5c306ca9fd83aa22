"""How random the samples are."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from torch import Tensor

from tfkit.core.options import Number
from tfkit.core.registry import register
from tfkit.generation.logits.base import LogitsRule

LEAST = 1e-6  # below it float32 holds no logit that is divided by it


def _warm(value: float) -> float:
    if value < LEAST:
        raise ValueError(
            f"a temperature is above 0 (from {LEAST:g} on), got {value:g}; "
            "for the most likely token each time say generate.strategy: greedy"
        )
    return value


Heat = Annotated[Number, AfterValidator(_warm), Field(json_schema_extra={"minimum": LEAST})]


@register("logits", "temperature")
class Temperature(LogitsRule):
    """logit / temperature (Ackley et al. 1985, A Learning Algorithm for Boltzmann Machines)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of temperature."""

        temperature: Heat = Field(description="below 1 draws likely tokens more often, above 1 unlikely ones")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits / self.config.temperature
