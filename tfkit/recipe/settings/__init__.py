"""`data:`, `train:`, `generate:` and `objective:`, and what in them contradicts the model or each other."""
