"""Reading of simple nodes without a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from tfkit.core.keys import FlagValue, Kind, RateValue
from tfkit.recipe.text.faults import Faults, shown
from tfkit.recipe.text.node import Node


def given(keys: Mapping[str, Node], name: str) -> Node | None:
    """Return the node of `name`; None if missing or `none`."""
    node = keys.get(name)
    return None if node is None or node.value is None else node


def items(node: Node | None) -> list[Node]:
    """Return the nodes of a value that is one part, a list of parts, or none."""
    if node is None or node.value is None:
        return []
    return node.value if isinstance(node.value, list) else [node]


def one_or_list(node: Node | None, items: list[Node]) -> Node | None:
    """Return a single item, or `node` with several items as its list; `node` if there are none."""
    if len(items) == 1:
        return items[0]
    return node if node is None or not items else replace(node, value=items)


def mapping(node: Node | None) -> Mapping[str, Node]:
    """Return the children of a mapping; empty for others."""
    return node.value if node is not None and isinstance(node.value, dict) else {}


def is_whole(value: Any) -> TypeGuard[int]:
    """True for an integer other than a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(node: Node | None, limit: int, faults: Faults) -> int | None:
    """Parse an integer from 1 to `limit`. Return None if missing or invalid."""
    if node is None or node.value is None:
        return None
    if is_whole(node.value) and 1 <= node.value <= limit:
        return node.value
    faults.add(node, f"expected a whole number from 1 to {limit:,}, got {shown(node.plain())}")
    return None


def rate(node: Node | None, faults: Faults) -> float:
    """Parse a dropout rate. Return 0 if missing or invalid."""
    if node is None or node.value is None:
        return 0.0
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not 0 <= node.value < 1:
        faults.add(node, f"expected a rate of at least 0 and below 1, got {shown(node.plain())}")
        return 0.0
    return float(node.value)


def plain(kind: Kind, node: Node | None, faults: Faults) -> int | float | bool | None:
    """Parse a plain number or flag. Return the default if missing or invalid."""
    if isinstance(kind, RateValue):
        return rate(node, faults)
    return flag(node, faults) if isinstance(kind, FlagValue) else None


def flag(node: Node | None, faults: Faults) -> bool:
    """Parse a boolean. Return False if missing or invalid."""
    if node is not None and node.value is not None and not isinstance(node.value, bool):
        faults.add(node, f"expected true or false, got {shown(node.plain())}")
        return False
    return bool(node is not None and node.value)
