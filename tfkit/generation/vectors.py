"""Text embeddings: pooled hidden states of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.components.head.pooled import pool
from tfkit.core.inputs import Inputs
from tfkit.data.by_length import by_length
from tfkit.functional.precision import wide, wide_dtype
from tfkit.generation.tokens import padded_ids
from tfkit.models import Model
from tfkit.models.call import Call

Pooling = Literal["mean", "first", "last"]


def text_vectors(
    model: Model, texts: Sequence[Sequence[int]], pooling: Pooling, normalize: bool, batch_size: int | None
) -> Tensor:
    """Return one vector per text of ids, [texts d_model] in float32 or float64 on the CPU.

    In an encoder-decoder, texts are embedded with the encoder.
    """
    stack = model.stack(next(model.blueprint.stacks()).side)
    device = next(model.parameters()).device
    vectors = torch.empty(len(texts), stack.plan.d_model, dtype=wide_dtype(next(model.parameters()).dtype))
    with torch.inference_mode():
        for rows in by_length([len(text) for text in texts], device.type, batch_size):
            ids, real = padded_ids([texts[row] for row in rows], device, left=False)
            hidden = stack(Call(Inputs(ids, real=real)))
            vectors[rows] = pool(wide(hidden), real, pooling).cpu()
    return F.normalize(vectors, dim=-1) if normalize else vectors
