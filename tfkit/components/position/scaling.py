"""Scaling of rotary frequencies for texts longer than those in training."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor

from tfkit.core.options import PositiveFloat, PositiveInt


class Scaling(BaseModel):
    """Base class of the scalings. `moves` is True if frequencies depend on the text length."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    moves: ClassVar[bool] = False

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        """Return the angular frequency of each pair, [pairs] or [... pairs], float64, for text lengths [...]."""
        raise NotImplementedError(f"{type(self).__name__} has no frequencies")

    def regime(self, length: Tensor) -> Tensor:
        """Return a key for each length; lengths with equal keys have equal frequencies."""
        return torch.zeros_like(length)

    def fits(self, width: int) -> bool:
        """True if there is a frequency for each pair of `width` channels."""
        return True

    @property
    def amplitude(self) -> float:
        """Factor on queries and keys; scores are multiplied by its square."""
        return 1.0

    @property
    def temperature(self) -> float:
        """Factor on all scores, including channels that are not rotated."""
        return 1.0


def plain_frequencies(theta: float, width: int, device: torch.device) -> Tensor:
    """Return theta^(-2i / width) for each pair i, [pairs], in float64 for accuracy at far positions."""
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


class LinearScaling(Scaling):
    """All frequencies divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    type: Literal["linear"] = Field(description="linear: divide all frequencies by factor")
    factor: PositiveFloat = Field(description="factor by which the context is extended")

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        return plain_frequencies(theta, width, length.device) / self.factor


class NTK(Scaling):
    """theta times alpha^(width / (width - 2)), which mainly stretches low frequencies (Hunyuan)."""

    type: Literal["ntk"] = Field(description="ntk: increase theta")
    alpha: PositiveFloat = Field(description="factor by which the context is extended")

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        return plain_frequencies(theta * self.alpha ** (width / max(width - 2, 1)), width, length.device)


class Proportional(Scaling):
    """Frequencies of the first `fraction` of the pairs divided by `factor`, those of the others 0 (Gemma 4)."""

    type: Literal["proportional"] = Field(description="proportional: rotate only the pairs of high frequency")
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="share of the pairs that are rotated")
    factor: PositiveFloat = Field(1.0, description="factor by which the context is extended")

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        plain = plain_frequencies(theta, width, length.device) / self.factor
        return plain * (torch.arange(width // 2, device=length.device) < int(self.fraction * width // 2))


class Dynamic(Scaling):
    """Theta grows with the text length beyond `original_length`; shorter texts are encoded as in training."""

    moves: ClassVar[bool] = True
    type: Literal["dynamic"] = Field(description="dynamic: theta grows with the length of the text")
    factor: PositiveFloat = Field(description="growth rate of theta")
    original_length: PositiveInt = Field(description="maximum text length in training, in tokens")

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        longer = length.clamp(min=self.original_length).double() / self.original_length
        base = theta * (self.factor * longer - (self.factor - 1)) ** (width / max(width - 2, 1))
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=length.device) / width
        return base[..., None] ** -exponents

    def regime(self, length: Tensor) -> Tensor:
        return length.clamp(min=self.original_length)


class Yarn(Scaling):
    """Low frequencies divided by `factor`, high ones unchanged, a ramp between (Peng et al. 2023, arXiv 2309.00071)."""

    type: Literal["yarn"] = Field(description="yarn: stretch low frequencies, keep high ones")
    factor: PositiveFloat = Field(description="factor by which the context is extended")
    original_length: PositiveInt = Field(description="maximum text length in training, in tokens")
    beta_fast: PositiveFloat = Field(
        32.0, description="frequencies with at least this many turns over the original length are unchanged"
    )
    beta_slow: PositiveFloat = Field(
        1.0, description="frequencies with at most this many turns are divided by the full factor"
    )
    truncate: bool = Field(True, description="round the ends of the ramp to whole channels")
    attention_factor: PositiveFloat | None = Field(
        None,
        description="factor on queries and keys; none: computed from mscale and mscale_all_dim if both are set, "
        "else 0.1 ln(factor) + 1",
    )
    mscale: PositiveFloat | None = Field(
        None, description="weight of ln(factor) in the factor on queries and keys; used only with mscale_all_dim"
    )
    mscale_all_dim: PositiveFloat | None = Field(
        None,
        description="weight of ln(factor) in a factor on all scores; its square root divides the factor on queries "
        "and keys",
    )

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        plain = plain_frequencies(theta, width, length.device)
        low, high = self._ramp(theta, width)
        pair = torch.arange(width // 2, dtype=torch.float64, device=length.device)
        stretched = ((pair - low) / (high - low)).clamp(0, 1)
        return plain * (1 - stretched) + plain / self.factor * stretched

    def _ramp(self, theta: float, width: int) -> tuple[float, float]:
        """Return the first and last pair of the ramp."""

        def pair(turns: float) -> float:
            return width * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        return low, high if high > low else low + 0.001

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return _grown(self.factor, self.mscale) / _grown(self.factor, self.mscale_all_dim)
        return _grown(self.factor, 1.0)

    @property
    def temperature(self) -> float:
        """Factor on all scores, including channels that are not rotated (DeepSeek)."""
        return 1.0 if self.mscale_all_dim is None else _grown(self.factor, self.mscale_all_dim) ** 2


class Llama3(Scaling):
    """Long wavelengths stretched, short ones kept, with limits at original_length / the two factors (Llama 3.1)."""

    type: Literal["llama3"] = Field(description="llama3: stretch long wavelengths, keep short ones")
    factor: PositiveFloat = Field(description="factor by which the context is extended")
    original_length: PositiveInt = Field(description="maximum text length in training, in tokens")
    low_factor: PositiveFloat = Field(
        1.0, description="wavelengths above original_length / low_factor are fully stretched"
    )
    high_factor: PositiveFloat = Field(4.0, description="wavelengths below original_length / high_factor are unchanged")

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        plain = plain_frequencies(theta, width, length.device)
        turns = self.original_length * plain / (2 * math.pi)
        kept = ((turns - self.low_factor) / (self.high_factor - self.low_factor)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)


class LongRope(Scaling):
    """A frequency divisor for each pair of channels; longer texts have a second list (arXiv 2402.13753)."""

    moves: ClassVar[bool] = True
    type: Literal["longrope"] = Field(description="longrope: divide the frequency of each pair of channels separately")
    short: Annotated[tuple[float, ...], BeforeValidator(lambda value: _tuple(value))] = Field(
        description="divisors for texts up to original_length, one per pair"
    )
    long: Annotated[tuple[float, ...], BeforeValidator(lambda value: _tuple(value))] = Field(
        description="divisors for longer texts, one per pair"
    )
    original_length: PositiveInt = Field(description="maximum text length in training, in tokens")
    attention_factor: PositiveFloat = Field(1.0, description="factor on queries and keys")

    def frequencies(self, theta: float, width: int, length: Tensor) -> Tensor:
        plain = plain_frequencies(theta, width, length.device)
        short, long = plain.new_tensor(self.short), plain.new_tensor(self.long)
        return plain / torch.where(length[..., None] > self.original_length, long, short)

    def regime(self, length: Tensor) -> Tensor:
        return (length > self.original_length).long()

    def fits(self, width: int) -> bool:
        return len(self.short) == len(self.long) == width // 2

    @property
    def amplitude(self) -> float:
        return self.attention_factor


def _grown(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


AnyScaling = Annotated[
    LinearScaling | NTK | Proportional | Dynamic | Yarn | Llama3 | LongRope, Field(discriminator="type")
]
