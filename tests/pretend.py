"""A pretend GPU: tensors in main memory whose storages are marked as on "cuda:0", so that mistakes show without one.

It counts waits of the host and copies to the device, and lists operations that mix devices. It knows neither time nor
what single CUDA kernels refuse. Only the thread that opened it sees the device.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tfkit

CUDA = torch.device("cuda", 0)
PACKAGE = str(Path(tfkit.__file__).parent) + os.sep
# operations whose output, or its shape, the host must read
READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "_unique2", "bincount")
READS += ("unique_dim", "unique_consecutive", "repeat_interleave.Tensor", "index_put_.hacked_twin")
INDEXED = ("index.Tensor", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index.Tensor")
COPIES = ("copy_", "_to_copy", "_foreach_copy_")
NEW = {"empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "tensor", "eye", "linspace", "as_tensor"}
NEW |= {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
NEW |= {"rand_like", "randn_like", "randperm", "scalar_tensor", "empty_strided", "new_tensor", "tril_indices"}


class Device:
    """The marked storages, and counts of events by line of tfkit."""

    def __init__(self) -> None:
        self.marked: dict[int, Tensor] = {}  # a tensor keeps its storage alive, whose address would be used again
        self.within = False  # True in a call with marked tensors, whose own constants are made where those are
        self.reset()

    def reset(self) -> None:
        """Forget the events so far."""
        self.mixed: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()

    def holds(self, tensor: Tensor) -> bool:
        """True if a tensor is on the device."""
        return _key(tensor) in self.marked

    def place(self, tensor: Tensor, on: bool) -> Tensor:
        """Move a tensor's storage to the device or off it."""
        if on:
            self.marked[_key(tensor)] = tensor
        else:
            self.marked.pop(_key(tensor), None)
        return tensor


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _line(event: str) -> str:
    """Name the innermost line of tfkit that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE):
            return f"{Path(file[len(PACKAGE) :]).as_posix()}:{frame.f_lineno} {event}"
        frame = frame.f_back  # type: ignore[assignment]
    return f"elsewhere {event}"


class Operations(TorchDispatchMode):
    """Marks what is computed from marked tensors, and finds mixed devices and reads."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device, name = self.device, func._schema.name.removeprefix("aten::")
        name += f".{func._schema.overload_name}" if func._schema.overload_name else ""
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        on = [one for one in given if device.holds(one)]
        plain = name.partition(".")[0]
        if on and plain not in COPIES and any(one.dim() for one in given if not device.holds(one)):
            uploaded = name in INDEXED and device.holds(args[0])
            (device.uploads if uploaded else device.mixed)[_line(name)] += 1
        if on and (name in READS or plain in READS or (name in INDEXED and _masked(args[1]))):
            device.waits[_line(name)] += 1
        if plain in COPIES and on and len(on) < len(given):
            (device.uploads if device.holds(args[0]) else device.waits)[_line(name)] += 1
        out = func(*args, **(kwargs or {}))
        known = {_key(one) for one in given}
        for one in tree_leaves(out):
            if isinstance(one, Tensor) and _key(one) not in known:
                device.place(one, bool(on) or (not given and device.within))
        return out


def _masked(indices: Any) -> bool:
    return any(isinstance(one, Tensor) and one.dtype == torch.bool for one in indices)


class Calls(TorchFunctionMode):
    """Answers for the device of marked tensors, and moves and makes tensors there."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device, kwargs, name = self.device, dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "__get__" and func.__self__ in (Tensor.device, Tensor.is_cuda, Tensor.is_cpu):
            on = device.holds(args[0])
            place = CUDA if on else func(*args)
            return {Tensor.device: place, Tensor.is_cuda: on, Tensor.is_cpu: not on}[func.__self__]
        if name in ("tolist", "numpy", "__array__") and device.holds(args[0]):
            device.waits[_line(name)] += 1
            return func(*args, **kwargs)
        if name == "pin_memory":
            return device.place(args[0].clone(), False)
        if name in ("cpu", "cuda", "to"):
            return self._moved(func, name, list(args), kwargs)
        asked = kwargs.get("device")
        if name in NEW and asked is not None and torch.device(asked).type == "cuda":
            if name in ("tensor", "as_tensor", "new_tensor"):
                device.uploads[_line(name)] += 1
            return device.place(func(*args, **{**kwargs, "device": "cpu"}), True)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        before, device.within = device.within, any(map(device.holds, given))
        try:
            out = func(*args, **kwargs)
        finally:
            device.within = before
        return device.place(out, False) if name in NEW and not given else out

    def _moved(self, func: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Copy a tensor to or from the device, if it is elsewhere, and convert it."""
        tensor, device = args[0], self.device
        wanted = {"cpu": "cpu", "cuda": "cuda", "to": kwargs.pop("device", None)}[name]
        if name != "to":
            args = args[:1]
        for index, one in enumerate(args[1:], 1):
            if isinstance(one, torch.device | str):
                wanted, args[index] = one, None
            elif isinstance(one, Tensor):
                wanted, args[index] = CUDA if device.holds(one) else "cpu", one.dtype
        kinds = [one for one in (*args[1:], kwargs.pop("dtype", None)) if isinstance(one, torch.dtype)]
        on, asynchronous = device.holds(tensor), kwargs.pop("non_blocking", False) or True in args[1:]
        out = tensor.to(kinds[0]) if kinds and kinds[0] != tensor.dtype else tensor
        if wanted is None or torch.device(wanted).type == "meta" or (torch.device(wanted).type == "cuda") == on:
            return out if wanted is None or torch.device(wanted).type != "meta" else out.to("meta")
        if on:
            device.waits[_line(name)] += 1
        elif not asynchronous:
            device.uploads[_line(name)] += 1
        return device.place(out.clone(), not on)


@contextlib.contextmanager
def pretending(patch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Open the device within the block."""
    answers: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "Pretended",
        "mem_get_info": lambda *_: (1 << 36, 1 << 36),
        "get_rng_state_all": list,
        "set_rng_state_all": lambda _: None,
        "current_device": lambda: 0,
    }
    with patch.context() as inner:
        for name, answer in answers.items():
            inner.setattr(torch.cuda, name, answer)
        inner.setattr(torch.backends.cudnn, "is_acceptable", lambda _: False)
        # in builds with CUDA, optimizers ask the driver whether a graph is captured
        inner.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
        device = Device()
        try:
            with Calls(device), Operations(device):
                yield device
        finally:
            device.marked.clear()
