"""Overlays on settings: rules for merging and replacing, and the syntax of overlay keys."""
