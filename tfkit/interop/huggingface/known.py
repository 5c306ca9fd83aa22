"""The registered families, and the family of a config.json."""

from __future__ import annotations

from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.core.synonyms import nearest
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.settings import ConfigJson


def families() -> dict[str, type[Family]]:
    """Return all families by name, including user-defined ones."""
    return {name: part for name, part in REGISTRY.load("family").items() if issubclass(part, Family)}


def family_of(config: ConfigJson) -> type[Family]:
    """Return the family for the model_type of a config.json. Raise DataError if it is unknown."""
    model_type = config.get("model_type")
    by_type = {name: family for family in families().values() for name in family.model_types}
    if model_type is None:
        raise DataError("config.json: model_type is missing, so the architecture is unknown")
    if isinstance(model_type, str) and model_type in by_type:
        return by_type[model_type]
    hint = nearest(str(model_type), list(by_type))
    raise DataError(
        f"config.json: model_type: no family for '{model_type}'{f', the nearest is {hint!r}' if hint else ''}; "
        f'available: {", ".join(sorted(by_type))}; add one with @tfkit.register("family", ...) and --import'
    )
