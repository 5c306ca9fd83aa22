"""Valid device names in recipes and on the command line."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

NAMES = "auto, cpu, cuda or cuda:1"
_KNOWN = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
# torch devices that tfkit does not support, with the reasons
_REFUSED = {
    "mps": "it has no float64, in which positions, random draws and gradient norms are computed",
    "xpu": "nothing of it has been tried there, and a run could not be resumed exactly",
    "meta": "it holds no numbers, so that nothing can be computed on it",
}


def check_device_name(name: str) -> str:
    """Return the name; raise ValueError for unknown or unsupported devices."""
    if _KNOWN.fullmatch(name):
        return name
    reason = _REFUSED.get(name.partition(":")[0])
    if reason is not None:
        raise ValueError(f"tfkit does not run on {name}: {reason}; write {NAMES}")
    raise ValueError(f"{name!r} is no device; write {NAMES}")


DeviceName = Annotated[str, AfterValidator(check_device_name)]
