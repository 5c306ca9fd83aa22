"""Parsing of recipe text: values with their places, declared options, and faults with their places."""
