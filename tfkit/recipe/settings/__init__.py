"""Schemas of `data:`, `train:`, `generate:` and `objective:`, and their contradictions with the model or each other."""
