"""A run as a model of lm-eval, EleutherAI's evaluation harness."""
