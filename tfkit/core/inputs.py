"""Call inputs besides ids, read by mask rules and parts; a part declares those that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recipes and data are read without torch
    from torch import Tensor

# call inputs that a part can require, besides ids and padding
INPUTS = ("token_type_ids", "global_attention_mask", "prefix_length")


@dataclass(frozen=True)
class Inputs:
    """Inputs of a call besides ids, read by mask rules and parts."""

    input_ids: Tensor | None = None  # [batch time]
    token_type_ids: Tensor | None = None  # [batch time]
    global_attention_mask: Tensor | None = None  # [batch time], 1 = attends to all and is attended to by all
    prefix_length: Tensor | None = None  # [batch], length of the prefix visible to all
    real: Tensor | None = None  # [batch time], True = not padding; None: no padding
