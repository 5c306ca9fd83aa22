"""Adapter for lm-eval, EleutherAI's evaluation harness."""
