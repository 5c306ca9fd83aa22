"""Detection of missing files, which `check` reports and training refuses before it starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config, Problem
from tfkit.core.errors import Fault, by_place
from tfkit.core.plugins import is_shipped
from tfkit.core.synonyms import nearest
from tfkit.recipe.settings.agreement import locate, model_parts, spot
from tfkit.recipe.settings.sections import Data
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.options import NamedPath, named_paths
from tfkit.storage.files import why_missing

FOLDER = "data.folder"
CORPORA = ("data.train.", "data.valid.", "data.test.", "data.longer.")


def missing_files(root: Node, sections: Mapping[str, object], blueprint: Blueprint) -> list[Fault]:
    """Return a fault for each missing file or run folder that the recipe `root` reads.

    Files of a user's own parts are not checked.
    """
    owners = [(value, path) for path, value in sections.items() if isinstance(value, BaseModel)]
    paths = [named for owner, path in [*owners, *model_parts(blueprint)] for named in named_paths(owner, path)]
    shipped = [named for named in paths if not isinstance(named.owner, Config) or is_shipped(named.owner.part)]
    return by_place(fault for named in shipped if (fault := _missing(root, named)) is not None)


def _near(path: Path) -> str | None:
    """Return a file with a similar name in the folder of the missing `path`; None for a broken link."""
    with contextlib.suppress(OSError, ValueError):
        names = [entry.name for entry in islice(path.parent.iterdir(), 10_000)]
        name = None if path.name in names else nearest(path.name, names)
        return None if name is None else str(path.parent / name)
    return None


def _missing(root: Node, named: NamedPath) -> Fault | None:
    path, kind = named.path, named.mark.of
    is_file = kind == "file"
    if named.at == FOLDER or (os.path.isfile(path) if is_file else os.path.isdir(path)):
        return None  # data.folder itself is not checked, only the corpus files in it
    node, full = spot(root, named.at)
    (base, rest), of_corpus = locate(root, FOLDER), full.startswith(CORPORA)
    is_moved = of_corpus and node.place.is_shipped and not rest and isinstance(base.value, str)
    place = base.place if is_moved else node.place
    if not os.path.exists(path):
        if set("*?") & set(path):
            return Fault(place, full, f"no such {kind}: {path}; patterns are not expanded, so write each name")
        other = ", or --set data.folder=PATH for all of them" * of_corpus
        advice = f"; to use another one: --set {full}=PATH{other}" * ("[" not in full)
        return Fault(place, full, f"{why_missing(path, kind)}: {path}{advice}", _near(Path(path)))
    if is_file and not os.path.isdir(path):
        return None  # such as a pipe
    return Fault(place, full, f"{path} is a {'folder' if is_file else 'file'}; expected a {kind}")


def unused_folder(data: Data) -> Iterator[Problem]:
    """Yield a problem if no corpus file of `data` is in `data.folder`."""
    paths = [Path(named.path) for _, corpus in data.splits() for named in named_paths(corpus)]
    if not any(path.is_relative_to(str(data.folder)) for path in paths):
        text = "has no effect: no corpus path is relative to it; remove folder, or shorten the corpus paths"
        yield Problem("folder", text, at="data")
