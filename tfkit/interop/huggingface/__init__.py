"""Hugging Face interoperability: model folders to recipes and weights, and back."""
