"""Hashes of recipes, which identify the runs of a study."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tfkit.recipe.load import Recipe
from tfkit.studies.arms import Arm, StudySource, plain, without_seed
from tfkit.studies.plan import Plan
from tfkit.studies.settings import Match


def identity(recipe: Recipe, match: Match | None = None) -> str:
    """Hash a recipe and the budget of its runs. The folder of the recipe does not change the hash."""
    home = str(Path.cwd() if recipe.file is None else recipe.file.resolve().parent)
    budget = None if match is None else match.model_dump()
    text = json.dumps([without_seed(plain(recipe)), budget], sort_keys=True, default=str)
    return hashlib.sha256(text.replace(json.dumps(home)[1:-1], ".").encode()).hexdigest()


def unchanged(source: StudySource, plan: Plan, arm: Arm) -> bool:
    """True if the recipe of an arm has not changed since the study was planned."""
    return digest_of(source, arm) == plan.digests.get(arm.name)


def digest_of(source: StudySource, arm: Arm) -> str:
    """Hash the recipe of an arm."""
    return identity(source.recipe(arm.variants, arm.all_values()))
