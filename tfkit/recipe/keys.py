"""Declared keys of the recipe language, by the mapping that contains them."""

from __future__ import annotations

import re

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.keys import Key, OwnValue, PartValue, SectionValue, declared_keys

MODEL = declared_keys(Blueprint)  # keys of `model`, besides those of its stacks
STACK = declared_keys(StackPlan)  # keys of a stack: in `model`, or in its encoder or decoder
LAYER = declared_keys(LayerPlan)  # keys of `layer`, and of each kind in `layers`
TOP = {
    name: Key(name, SectionValue() if name in ("model", "data", "train", "generate", "study") else OwnValue(), sentence)
    for name, sentence in {
        "tfkit": "version of the recipe language",
        "extends": "the recipe that this one extends: a shipped name, or a path relative to this file",
        "model": "the architecture",
        "data": "the data, its tokenization and batching",
        "objective": "the training objective",
        "train": "training settings",
        "generate": "defaults of generation",
        "study": "the variants, seeds and measures of tfkit study",
        "imports": "Python files or modules with the parts of the recipe, imported only with --trust or --import",
        "variants": "named overlays, or several values of one option, for --variant",
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
    """Return the description of a key by dotted path (`model.encoder.d_model`); empty for others."""
    parent, _, key = path.rpartition(".")
    base = re.sub(r"_\d+(?=_norm$|$)", "", key)  # feedforward_2, feedforward_2_norm
    return next((GROUPS[group][base].sentence for group in _groups(parent) if base in GROUPS[group]), "")


def _groups(path: str) -> tuple[str, ...]:
    """Return the groups of keys allowed in the mapping at `path`."""
    if path == "":
        return ("top",)
    if path == "model":
        return ("model", "stack")
    if path in ("model.encoder", "model.decoder"):
        return ("stack",)
    layer = re.fullmatch(r"model(\.(encoder|decoder))?\.(layer|layers\.\w+)", path)
    return ("layer",) if layer else ()


def default_part(key: Key) -> str:
    """Return the default part of a key; empty if there is none."""
    return key.kind.default if isinstance(key.kind, PartValue) else ""
