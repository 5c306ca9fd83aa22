"""Parts passed to Python calls, outside of any recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfkit.core.component import Config
from tfkit.core.errors import Place, RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.source import from_value

Part = str | Mapping[str, Any] | Config
Parts = Part | Sequence[Part]


def parts_of(slot: str, given: Parts) -> tuple[Config, ...]:
    """Return the Configs of one or several parts: names, mappings with a type, or Configs.

    Raises RecipeError with every fault, and UsageError for a Config of another slot.
    """
    several = [given] if isinstance(given, (str, Mapping, Config)) else list(given)
    faults = Faults()
    configs = [_part(slot, part, f"{slot}[{index}]", faults) for index, part in enumerate(several)]
    if faults.found:
        raise RecipeError(faults.found)
    return tuple(config for config in configs if config is not None)


def part_at(slot: str, given: Part, place: str, path: str) -> Config:
    """Return the Config of a part given at `place`, such as a command line option; raise RecipeError."""
    node, found = from_value(given, Place(place), path)
    faults = Faults(found)
    config = None if found else Preparer(faults).config(node, slot)
    if config is None:
        raise RecipeError(faults.found)
    return config


def _part(slot: str, part: Any, path: str, faults: Faults) -> Config | None:
    if isinstance(part, Config):
        try:
            return Slot(slot).validate(part)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from None
    node, found = from_value(part, Place(f"<{slot}>"), path)
    faults.found += found
    return None if found else Preparer(faults).config(node, slot)
