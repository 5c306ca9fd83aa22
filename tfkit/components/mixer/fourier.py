"""FNet's mixing by the Fourier transform, which has no weights."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.components.mixer.base import Mixer
from tfkit.core.context import Context
from tfkit.core.registry import register
from tfkit.functional.precision import wide


@register("mixer", "fourier")
class Fourier(Mixer):
    """Re F_time(F_width(x)), the transform over channels and tokens (Lee-Thorp et al. 2021, arXiv 2105.03824).

    Every token mixes with every other, padding too, so that a batch with padding is refused.
    """

    capabilities = frozenset({"bidirectional", "compile", "export"})

    def forward(self, x: Tensor, context: Context) -> Tensor:
        mixed: Tensor = torch.fft.fft2(wide(x), dim=(1, 2)).real
        return mixed.to(x.dtype)
