"""The shipped recipes, loaded once in each process. Tests share them, so none may modify one."""

from __future__ import annotations

from functools import cache

from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import Recipe, load_recipe

NAMES = sorted(shipped_recipes())
MODELS = sorted(name for name, path in shipped_recipes().items() if path.parent.name == "models")


@cache
def shipped(name: str) -> Recipe:
    """Load a shipped recipe. Its data files are relative to the working folder of the first call."""
    return load_recipe(name)
