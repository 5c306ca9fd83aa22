"""Device and precision of training, and the memory check."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from tfkit.core.errors import UsageError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.options import check_device_name

TRAINED_BYTES = 16  # per trained parameter: float32 weight, gradient and the two moments of Adam
FROZEN_BYTES = 4


def choose_device(name: str, key: str = "train.device") -> torch.device:
    """Return the device called `name`; `auto` prefers CUDA. Raise UsageError if it is unavailable.

    `key` names the option in messages.
    """
    try:
        check_device_name(name)
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"{key}: {name} is not available; torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Return a context manager for bfloat16 autocast, or a no-op for float32."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def describe(device: torch.device) -> str:
    """Describe the device with its GPU name or thread count."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"


def describe_products(device: torch.device, precision: str) -> str:
    """Describe the precision of matrix products; empty for float32 on a CPU."""
    if device.type == "cuda":
        tensor_float = torch.get_float32_matmul_precision() != "highest"
        return f", {precision}, TF32 {'on' if tensor_float else 'off'}"
    return "" if precision == "float32" else f", {precision}"


def check_memory(model: nn.Module, device: torch.device, parts: int = 1) -> None:
    """Raise UsageError if training `model` (on `meta`) needs more memory than is free, even without activations.

    `parts` is the number of processes over which the weights are divided.
    """
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    needed, free = (trained * TRAINED_BYTES + frozen * FROZEN_BYTES) // parts, free_memory(device)
    if free is not None and needed > free:
        divided = "" if parts == 1 else f"; divided over {parts} processes"
        raise UsageError(
            f"training {trained + frozen:,} parameters needs {readable_bytes(needed)} without activations "
            f"({TRAINED_BYTES} bytes each: weight, gradient, two moments{divided}), but {device} has "
            f"{readable_bytes(free)} free; use a smaller model or a machine with more memory"
        )
