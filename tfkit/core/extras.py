"""Optional libraries, imported on use; if missing, the error names the required versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from typing import Any

from tfkit.core.errors import UsageError

DISTRIBUTION = "transformer-recipes"  # the package index has another project called tfkit


def installing(extra: str) -> str:
    """Return the pip command that installs an extra, according to the metadata of the distribution."""
    try:
        listed = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # a source tree that was never installed
        return f'pip install -e ".[{extra}]" in a clone of tfkit'
    requirements = [line.partition(";") for line in listed]
    names = [name.strip() for name, _, marker in requirements if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    return "pip install " + " ".join(f'"{name}"' for name in names)


def optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an extra.

    Raise UsageError if its library is missing; `purpose` starts the message, such as "figures need".
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(f"{purpose} the package {package}: {installing(extra)}") from None
