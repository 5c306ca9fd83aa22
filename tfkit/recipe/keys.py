"""Declared keys of the recipe language, grouped by the mapping that contains them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.keys import Key, OwnValue, PartValue, SectionValue, declared_keys
from tfkit.core.rooms import pages

MODEL = declared_keys(Blueprint)  # keys of `model` itself
STACK = declared_keys(StackPlan)  # keys of a stack: in `model`, `encoder` or `decoder`
LAYER = declared_keys(LayerPlan)  # keys of `layer`, and of each kind in `layers`
# the sections that rooms add in a page `section`: KEY, SENTENCE, SCHEMA, problems, summary
LEAVES = {page.KEY: page for page in pages("section")}
TOP = {
    name: Key(name, SectionValue() if name in ("model", "data", "train", "generate", *LEAVES) else OwnValue(), sentence)
    for name, sentence in {
        "tfkit": "version of the recipe language",
        "extends": "the recipe that this one extends: a shipped name, or a path relative to this file",
        "model": "the architecture",
        "data": "corpora, tokenization and batching",
        "objective": "the training objective",
        "train": "training settings",
        "generate": "generation defaults",
        **{key: page.SENTENCE for key, page in LEAVES.items()},
        "imports": "Python files or modules with the recipe's own parts, imported only with --trust or --import",
        "variants": "named sets of changes, or several values of one option, selected with --variant",
    }.items()
}
GROUPS = {"top": TOP, "model": MODEL, "stack": STACK, "layer": LAYER}
# sublayer -> slot of its part, in the default order
SUBLAYERS = {
    name: key.kind.slot for name, key in LAYER.items() if key.field == "sublayers" and isinstance(key.kind, PartValue)
}
# keys of `model:` whose mappings are merged key by key
SECTIONS = {
    name for group in (MODEL, STACK, LAYER) for name, key in group.items() if isinstance(key.kind, SectionValue)
}


def sentence(path: str) -> str:
    """Return the description of the key at a dotted path (`model.encoder.d_model`), or "" if undeclared."""
    parent, _, key = path.rpartition(".")
    base = re.sub(r"_\d+(?=_norm$|$)", "", key)  # feedforward_2, feedforward_2_norm
    return next((GROUPS[group][base].sentence for group in _groups(parent) if base in GROUPS[group]), "")


def _groups(path: str) -> Sequence[str]:
    """Return the groups of keys allowed in the mapping at `path`."""
    if re.fullmatch(r"model(\.(encoder|decoder))?\.(layer|layers\.\w+)", path):
        return ["layer"]
    own = {"": ["top"], "model": ["model", "stack"], "model.encoder": ["stack"], "model.decoder": ["stack"]}
    return own.get(path, [])


def default_part(key: Key) -> str:
    """Return the default part of a key, or ""."""
    return key.kind.default if isinstance(key.kind, PartValue) else ""
