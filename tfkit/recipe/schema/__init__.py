"""The JSON Schema of the recipe language, for editors: made from the grammar's keys and the parts in the registry."""

from tfkit.recipe.schema.language import language_schema

__all__ = ["language_schema"]
