"""Runs side by side: lists of runs, and studies that tell which variant is better."""
