"""Export of models that no transformers class covers: a folder with its own code, including tfkit's sources."""

from tfkit.interop.huggingface.own.bundle import write_sources
from tfkit.interop.huggingface.own.config import head_classes, own_config

MODELING, SOURCES = "modeling_tfkit.py", "tfkit_sources.py"

__all__ = ["MODELING", "SOURCES", "head_classes", "own_config", "write_sources"]
