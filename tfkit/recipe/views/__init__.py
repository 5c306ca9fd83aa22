"""Resolved recipes: every value with its origin."""
