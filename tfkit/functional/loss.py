"""Cross-entropy, also fused with the output projection so that the logits never exist all at once."""

# Axes: n (targets), chunk (targets of a chunk), width (channels of the features), vocab.

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.functional.linear import AutogradContext, product, unpadded
from tfkit.functional.view import wide, wide_dtype

CHUNK_ELEMENTS = 1 << 23  # number of logits computed at once on a CPU: 32 MiB in float32
CHUNK_ROWS = 8192  # number of targets computed at once on other devices, where short products and many kernels are slow
LOGIT_BYTES = 4  # peak bytes per logit of a chunk: a float32 value
SHORT_LOGIT_BYTES = 8  # the same in bfloat16: two 16-bit values, too


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum the cross-entropy in nats of `logits` [n vocab] and `targets` [n], with label smoothing."""
    return F.cross_entropy(wide(logits), targets, reduction="sum", label_smoothing=smoothing)


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Compute cross_entropy(features weightᵀ + bias) in chunks, with `features` [n width] and `weight` [vocab width].

    Gradients are computed in the forward pass, while a chunk's logits exist. This saves time and most of the memory.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return cross_entropy(F.linear(features, weight, bias), targets, smoothing)
    fused: Callable[..., Tensor] = _LinearCrossEntropy.apply
    return fused(features, weight, bias, targets, smoothing)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        rows = unpadded(max(1, CHUNK_ELEMENTS // weight.shape[0])) if weight.device.type == "cpu" else CHUNK_ROWS
        if weight.untyped_storage().device.type == "meta":  # a fake tensor, of which no chunk takes memory
            rows = max(1, len(features))
        matrix = weight.to(_product_type(weight))
        grad_features = torch.empty_like(features)
        grad_weight = torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        total = torch.zeros((), dtype=wide_dtype(matrix.dtype), device=features.device)
        with torch.autocast(features.device.type, enabled=False):
            for start in range(0, features.shape[0], rows):
                chunk, target = features[start : start + rows].to(matrix.dtype), targets[start : start + rows]
                logits = product(chunk, matrix, None if bias is None else bias.to(matrix.dtype))  # [chunk vocab]
                loss, gradient = _loss_and_gradient(logits, target, smoothing)
                total += loss
                small = gradient.to(matrix.dtype)
                whole = len(small) == unpadded(len(small))  # padding so wide a matrix costs more than oneDNN gains
                grad_features[start : start + rows] = product(small, matrix.t()) if whole else small @ matrix
                if matrix.dtype == grad_weight.dtype:
                    grad_weight.addmm_(small.t(), chunk)  # [vocab width]
                else:
                    grad_weight += small.t() @ chunk  # [vocab width]
                if grad_bias is not None:
                    grad_bias += gradient.sum(dim=0)  # [vocab]
                del logits, gradient, small  # frees their memory for the next chunk
        ctx.save_for_backward(grad_features, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0]
        grad_features, grad_weight, grad_bias = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            grad_features * scale.to(grad_features.dtype) if needs[0] else None,
            grad_weight * scale.to(grad_weight.dtype) if needs[1] else None,
            None if grad_bias is None or not needs[2] else grad_bias * scale.to(grad_bias.dtype),
            None,
            None,
        )


def _product_type(weight: Tensor) -> torch.dtype:
    """Return the dtype of matrix products: autocast's if enabled, else the weight's."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _loss_and_gradient(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk and its gradient, which is softmax minus the smoothed target distribution."""
    logits = wide(logits)
    picked, whole = logits.gather(-1, targets[:, None]), logits.sum(dim=-1, keepdim=True) if smoothing else 0.0
    top = logits.amax(dim=-1, keepdim=True)
    gradient = logits.sub_(top).exp_()  # [chunk vocab]
    total = gradient.sum(dim=-1, keepdim=True)
    log_total = top + total.log()
    loss = (log_total - picked).sum() * (1 - smoothing)
    if smoothing:
        loss = loss + (log_total * logits.shape[-1] - whole).sum() * (smoothing / logits.shape[-1])
    gradient.div_(total)
    if smoothing:
        gradient -= smoothing / logits.shape[-1]
    gradient.scatter_add_(-1, targets[:, None], torch.full_like(picked, smoothing - 1))
    return loss, gradient
