"""Slots of this room and the modules that register their parts, as core/registry.py reads them."""

MAPS = {"family": "tfkit.interop.huggingface.families"}
