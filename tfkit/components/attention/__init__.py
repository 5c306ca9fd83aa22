"""Attentions.

| type | choose it when |
|---|---|
| multi_head | always, until you know better: multi-head, grouped-query, multi-query and single-head are its options |
"""

from tfkit.components.attention.base import Attention, KeyValueState
from tfkit.components.attention.multi_head import MultiHead

__all__ = ["Attention", "KeyValueState", "MultiHead"]
