"""Recipes as trees that can be broken in any way: keys said twice, fragments of YAML, values of any type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from tfkit.recipe.text.node import inline

PLAIN_KEY = re.compile(r"[A-Za-z_][\w.]*")


class Pairs(list[Any]):
    """A mapping as a list of [key, value]: it keeps a key that is said twice."""


class Raw(NamedTuple):
    """A fragment of YAML, written unchanged."""

    text: str


class Site(NamedTuple):
    """A place in a tree: item `index` of `owner`."""

    owner: list[Any]
    index: int

    @property
    def value(self) -> Any:
        return self.owner[self.index][1] if isinstance(self.owner, Pairs) else self.owner[self.index]

    @value.setter
    def value(self, value: Any) -> None:
        self.owner[self.index] = [self.owner[self.index][0], value] if isinstance(self.owner, Pairs) else value


def planted(data: Any) -> Any:
    """Plain data as a tree."""
    if isinstance(data, dict):
        return Pairs([key, planted(value)] for key, value in data.items())
    return [planted(item) for item in data] if isinstance(data, list) else data


def sites(tree: Any) -> Iterator[Site]:
    """Every place in the tree, from the top down."""
    for index in range(len(tree)) if isinstance(tree, list) else ():
        yield Site(tree, index)
        yield from sites(Site(tree, index).value)


def paths(tree: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    for key, value in tree if isinstance(tree, Pairs) else ():
        yield f"{path}{key}"
        yield from paths(value, f"{path}{key}.")


def plain(tree: Any) -> Any:
    """The tree as Python data: the last of two equal keys wins, a fragment of YAML is text."""
    if isinstance(tree, Pairs):
        return {plain(key): plain(value) for key, value in tree}
    if isinstance(tree, list):
        return [plain(item) for item in tree]
    return tree.text if isinstance(tree, Raw) else tree


def written(tree: Any, random: Random, indent: int = 0) -> str:
    """The tree as YAML, each mapping in block or in flow style."""
    if not isinstance(tree, Pairs) or not tree or (indent and random.random() < 0.5):
        return flow(tree)
    lines = []
    for key, value in tree:
        text = written(value, random, indent + 2)
        block = isinstance(value, Pairs) and value and not text.startswith("{")
        lines.append(" " * indent + flow_key(key) + (":\n" if block else ": ") + text)
    return "\n".join(lines)


def flow(tree: Any) -> str:
    """The tree on one line."""
    if isinstance(tree, Raw):
        return tree.text
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{flow_key(key)}: {flow(value)}" for key, value in tree) + "}"
    return "[" + ", ".join(map(flow, tree)) + "]" if isinstance(tree, list) else inline(tree)


def flow_key(key: Any) -> str:
    """A key, quoted where it must be."""
    if isinstance(key, Raw):
        return key.text
    return key if PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
