"""A model that is none of theirs, as a folder that brings its own code: tfkit's sources as far as it needs them."""

from tfkit.interop.huggingface.own.bundle import write_sources
from tfkit.interop.huggingface.own.config import head_classes, own_config

MODELING, SOURCES = "modeling_tfkit.py", "tfkit_sources.py"

__all__ = ["MODELING", "SOURCES", "head_classes", "own_config", "write_sources"]
