"""Hashes of recipes, which identify the runs of a study."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tfkit.recipe.load import Recipe
from tfkit.studies.arms import plain, without_seed
from tfkit.studies.settings import Match


def identity(recipe: Recipe, match: Match | None = None) -> str:
    """Hash a recipe and the budget of its runs. The folder of the recipe does not change the hash."""
    home = str(Path.cwd() if recipe.file is None else recipe.file.resolve().parent)
    budget = None if match is None else match.model_dump()
    text = json.dumps([without_seed(plain(recipe)), budget], sort_keys=True, default=str)
    return hashlib.sha256(text.replace(json.dumps(home)[1:-1], ".").encode()).hexdigest()
