"""The section `study:` of a recipe, as recipe/keys.py reads it."""

from __future__ import annotations

from tfkit.studies.settings import KEY, Study
from tfkit.studies.settings import study_problems as problems

__all__ = ["KEY", "SCHEMA", "SENTENCE", "problems", "summary"]

SENTENCE = "the variants, seeds and measures of tfkit study"
SCHEMA = Study


def summary(file: str, sets: tuple[str, ...], imports: tuple[str, ...], trust: bool) -> str:
    """Return the number of variants of the recipe's study. Raise RecipeError with the faults of all variants."""
    from tfkit.studies.arms import StudySource
    from tfkit.studies.planning import check_study

    return f"; a study of {check_study(StudySource(file, sets, imports, trust)):,} variants"
