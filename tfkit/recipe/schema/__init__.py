"""JSON Schema of the recipe language for editors, generated from the grammar's keys and registered parts."""

from tfkit.recipe.schema.language import language_schema

__all__ = ["language_schema"]
