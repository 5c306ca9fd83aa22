"""The table of a resolved recipe: a row for each value, with its origin; and its text."""
