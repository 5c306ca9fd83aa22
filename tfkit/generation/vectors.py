"""Text embeddings: pooled hidden states of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.components.head.pooled import pool
from tfkit.core.inputs import Inputs
from tfkit.data.batches import by_length
from tfkit.functional.view import wide, wide_dtype
from tfkit.generation.prompts import padded_ids
from tfkit.models import Model
from tfkit.models.call import Call

Pooling = Literal["mean", "first", "last", "max", "mean_sqrt", "weighted_mean"]


def text_vectors(
    model: Model,
    texts: Sequence[Sequence[int]],
    pooling: Pooling,
    normalize: bool,
    batch_size: int | None,
    inputs: Mapping[str, Tensor],
) -> Tensor:
    """Return one vector per text of ids, [texts d_model] in float32 or float64 on the CPU.

    In an encoder-decoder, texts are embedded with the encoder. `inputs` are the extra inputs, [texts width] each.
    """
    extra = model.extra(inputs, len(texts))
    stack = model.stack(next(model.blueprint.stacks()).side)
    device = next(model.parameters()).device
    vectors = torch.empty(len(texts), stack.plan.d_model, dtype=wide_dtype(next(model.parameters()).dtype))
    with torch.inference_mode():
        for rows in by_length([len(text) for text in texts], device.type, batch_size):
            ids, real = padded_ids([texts[row] for row in rows], device, left=False)
            own = {name: one[rows] for name, one in extra.items()}
            hidden = stack(Call(Inputs(ids, real=real, extra=own)))
            vectors[rows] = _pooled(wide(hidden), real, pooling).cpu()
    return F.normalize(vectors, dim=-1) if normalize else vectors


def _pooled(hidden: Tensor, real: Tensor | None, pooling: Pooling) -> Tensor:
    """Pool [batch time d_model] over the real tokens, which come first."""
    if pooling in ("mean", "first", "last"):
        return pool(hidden, real, pooling)
    mask = torch.ones(hidden.shape[:2], device=hidden.device) if real is None else real
    if pooling == "max":
        return hidden.masked_fill(~mask.bool()[..., None], -torch.inf).amax(dim=1)
    weights = mask.to(hidden.dtype)  # [batch time]
    if pooling == "weighted_mean":
        weights = weights * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    total = weights.sum(dim=1, keepdim=True)
    total = total.sqrt() if pooling == "mean_sqrt" else total
    return (hidden.masked_fill(~mask.bool()[..., None], 0) * weights[..., None]).sum(dim=1) / total
