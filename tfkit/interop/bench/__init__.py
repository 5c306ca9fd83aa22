"""Benchmarks of training steps and forward passes, compared with other libraries and engines."""
