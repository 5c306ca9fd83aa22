"""FNet's mixing by the Fourier transform, which has no weights."""

from __future__ import annotations

import math

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
        if torch.compiler.is_exporting():  # engines compute a DFT of any length only to three digits
            real = x.double()
            (cosine, sine), (across, turned) = (_waves(size, real) for size in x.shape[1:])
            mixed = cosine @ real @ across - sine @ real @ turned  # [batch time d_model]
        else:
            mixed = torch.fft.fft2(wide(x), dim=(1, 2)).real
        return mixed.to(x.dtype)


def _waves(size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [size size] of a DFT, angles reduced before they are rounded."""
    place = torch.arange(size, device=like.device)
    count = place[-1:] + 1  # the size as a tensor, which may have any value in an exported graph
    angle = (place[:, None] * place % count).to(like.dtype) * (2 * math.pi / count)
    return angle.cos(), angle.sin()
