"""Comparison of runs: lists of runs, and studies of variants."""
