"""Recipes of older versions of the language, read as what they say in this one; the file itself is never changed."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tfkit.core.errors import Fault, TfkitError, TfkitWarning
from tfkit.recipe.changes.edit import rewritten, written
from tfkit.recipe.text.node import Node, under
from tfkit.recipe.text.source import MAPPING, from_mapping, parse

LANGUAGE = 1

Data = dict[str, Any]


class MigrationWarning(TfkitWarning):
    """A recipe of an older version was read as this one says it; the message holds the difference."""


def parse_current(source: str | bytes, file: str, via: str = "") -> tuple[Node, list[Fault]]:
    """What `source.parse` gives, of a text in the language's current version.

    Warns of an older text, with the difference; its places are then those of the lines that it was made from. One that
    has faults, or cannot be migrated, has no tree.
    """
    root, faults = parse(source, file, via)
    if not is_older(root):
        return root, faults
    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    try:
        if faults:
            return Node(None, root.place), faults
        current = migrated_text(text, file)
    except TfkitError as error:
        node = root.get("tfkit") or root
        message = f"version {node.value} of the recipe language cannot be migrated here: {error}"
        return Node(None, root.place), [Fault(node.place, node.path, message)]
    _warn(file, root.plain()["tfkit"], text, current)
    return parse(current, file, via, came_from(text, current))


def current_mapping(data: Mapping[str, Any], label: str = MAPPING) -> tuple[Node, list[Fault]]:
    """What `source.from_mapping` gives, in the language's current version; warns of an older one."""
    root, faults = from_mapping(data, label)
    if faults or not is_older(root):
        return root, faults
    before = root.plain()
    after = migrated(before)
    _warn(root.place.file, before["tfkit"], written(before), written(after))
    return from_mapping(after, label)


def is_older(root: Node) -> bool:
    """Whether a recipe says a version that there is a migration from."""
    version = root.get("tfkit")
    return version is not None and type(version.value) is int and version.value in MIGRATIONS


def newer_faults(root: Node) -> list[Fault]:
    """The fault of a version that this tfkit does not know yet."""
    version = root.get("tfkit")
    if version is None or type(version.value) is not int or version.value <= LANGUAGE:
        return []
    message = (
        f"version {version.value} of the recipe language is newer than this tfkit; install a newer one; "
        f"this one speaks version {LANGUAGE}"
    )
    return [Fault(version.place, version.path, message)]


def migrated_text(text: str, file: str = "<text>") -> str:
    """The text in the current version, comments kept; one that is current stays as it is. Raises as `rewritten`."""
    root, _ = parse(text, file)
    return rewritten(text, migrated(root.plain()), file) if is_older(root) else text


def migrated(data: Data) -> Data:
    """A recipe's data in the current version."""
    while (version := data["tfkit"]) in MIGRATIONS:
        data = MIGRATIONS[version](data) | {"tfkit": version + 1}
    return data


def came_from(before: str, after: str) -> list[int]:
    """For each line of `after`, from 0, the line of `before` that it was or that it was made from."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[int] = []
    for _, start, stop, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        latest = max(start, stop - 1)
        lines += [min(start + index, latest) for index in range(last - first)]
    return [min(line, len(old) - 1) for line in [*lines, len(old)]]


def _warn(file: str, old: Any, before: str, after: str) -> None:
    """Warn with the difference; `old` is the version that `before` is written in."""
    names = (f"{file} (version {old})", f"{file} (version {LANGUAGE})")
    difference = "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, n=1, lineterm=""))
    keep = "" if file.startswith("<") else f"\nTo keep it so: tfkit new NAME --from {file}"
    message = f"{file}: written in version {old} of the recipe language, read in version {LANGUAGE} as this:"
    warnings.warn(MigrationWarning(f"{message}\n{difference}{keep}"), stacklevel=2)


# ---------------------------------------------------------------------------------------------------- the migrations


def from_0_to_1(data: Data) -> Data:
    """The draft before the first release.

    `embedding.tied: all` was one table for both sides and the output: `embedding.shared` and `head.tied`, each said
    where it belongs, in a model of one stack the second alone. The position `relative_buckets` is called `t5_bias`.
    """
    data = {key: _positions(value, key) if key in ("model", "variants") else value for key, value in data.items()}
    model = data.get("model")
    if not isinstance(model, dict):
        return data
    two_stacks = model.get("type", "encoder_decoder") == "encoder_decoder"
    found: list[bool] = []
    data["model"] = _untied(model, "model", two_stacks, found)
    if found and ("head" in model or "extends" in data):
        data["model"] = _tied(data["model"], found[-1])
    if isinstance(data.get("variants"), dict):
        data["variants"] = {name: _untied_variant(entry, two_stacks) for name, entry in data["variants"].items()}
    return data


def _positions(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {key: _positions(child, under(path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [_positions(child, path) for child in value]
    return (
        "t5_bias" if value == "relative_buckets" and f".{path}".removesuffix(".type").endswith(".position") else value
    )


def _untied(value: Any, path: str, two_stacks: bool, found: list[bool]) -> Any:
    """`value` without `embedding.tied`; what it set is added to `found`."""
    if not isinstance(value, dict):
        return value
    result = {}
    for key, child in value.items():
        here = under(path, key)
        if f".{here}".endswith(".embedding.tied") and (child == "all" or child is None or child is False):
            found.append(child == "all")
            if two_stacks:
                result[key.removesuffix("tied") + "shared"] = child == "all"
        else:
            result[key] = _untied(child, here, two_stacks, found)
    return result


def _tied(model: Data, tied: bool) -> Data:
    """The model with a head that says so, unless it has none or says something itself."""
    head = model.get("head", {})
    head = {"type": head} if isinstance(head, str) else head
    return model | {"head": {**head, "tied": tied}} if isinstance(head, dict) and "tied" not in head else model


def _untied_variant(entry: Any, two_stacks: bool) -> Any:
    """The same for a variant, whose keys may be dotted."""
    found: list[bool] = []
    entry = _untied(entry, "", two_stacks, found)
    if not found:
        return entry
    if isinstance(entry.get("model"), dict):
        return entry | {"model": _tied(entry["model"], found[-1])}
    return {"model.head.tied": found[-1]} | entry


MIGRATIONS: Mapping[int, Callable[[Data], Data]] = {0: from_0_to_1}
