"""Schemas of the sections other than `model:`, and checks against the model and against each other."""
