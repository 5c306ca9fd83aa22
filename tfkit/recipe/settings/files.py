"""Files that a recipe names and that are not there: told by `check`, refused before a training begins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.errors import Fault, by_place
from tfkit.core.registry import is_shipped, nearest
from tfkit.recipe.settings.agreement import model_parts, spot
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.options import NamedPath, named_paths


def missing_files(root: Node, sections: Mapping[str, Any], blueprint: Blueprint) -> list[Fault]:
    """A fault for each file, or folder of a run, that the recipe `root` reads and that is not there.

    A part of one's own reads its files itself.
    """
    owners = [(value, path) for path, value in sections.items() if isinstance(value, BaseModel)]
    found = [named for owner, path in [*owners, *model_parts(blueprint)] for named in named_paths(owner, path)]
    faults = [_missing(root, named) for named in found if _is_read_here(named.owner)]
    return by_place(fault for fault in faults if fault is not None)


def _is_read_here(owner: BaseModel) -> bool:
    return not isinstance(owner, Config) or is_shipped(owner.part)


def _near(path: Path) -> str | None:
    """What has a name like that of the missing `path` in its folder."""
    with contextlib.suppress(OSError, ValueError):
        found = nearest(path.name, [entry.name for entry in islice(path.parent.iterdir(), 10_000)])
        return None if found is None else str(path.parent / found)
    return None


def _missing(root: Node, named: NamedPath) -> Fault | None:
    path, mark = named.path, named.mark
    kind = "folder of a run" if mark.run else "folder" if mark.folder else "file"
    is_folder = mark.run or mark.folder
    if os.path.isdir(path) if is_folder else os.path.isfile(path):
        return None
    node, full = spot(root, named.at)
    if not os.path.exists(path):
        text = f"there is no {kind} {path}" + f"; to name another: --set {full}=PATH" * ("[" not in full)
        return Fault(node.place, full, text, _near(Path(path)))
    if not is_folder and not os.path.isdir(path):
        return None  # a pipe
    return Fault(node.place, full, f"{path} is a {'file' if is_folder else 'folder'}; a {kind} is expected")
