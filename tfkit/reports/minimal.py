"""Minimal recipes with a given part: the examples of `tfkit parts`, all of which `tfkit check` accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfkit.contracts.cases import MODEL, Case, cases
from tfkit.contracts.expect import describe
from tfkit.contracts.options import Sampler, required
from tfkit.core.component import Component
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import CorpusFacts, ObjectiveFacts
from tfkit.core.trees import Options, Tree
from tfkit.recipe.load import load_recipe
from tfkit.recipe.rules import refusal
from tfkit.recipe.views.resolved import scalar
from tfkit.reports.slots import SLOTS

Part = type[Component]

# attention that an objective requires -> topology that provides it
TOPOLOGIES = {"causal": "decoder", "bidirectional": "encoder", "encoder_decoder": "encoder_decoder"}


class Minimal(NamedTuple):
    """A recipe as plain data, or the `problem` that prevents one."""

    data: Tree | None
    problem: str | None = None


def minimal_recipe(part: Part) -> Minimal:
    """Return the smallest valid recipe that uses `part`, setting only required options."""
    try:
        of_model = part.part_slot in MODEL
        data = cases(part.part_slot, part.part_name)[0].recipe() if of_model else _in_section(part)
        load_recipe(data)
    except Exception as error:  # validators of custom parts may raise any exception
        return Minimal(None, describe(error, part))
    return Minimal(data)


def _in_section(part: Part) -> Tree:
    """Return a small model, with the part in the section of its slot."""
    topology = _topology(part)
    data = Case("model", topology, topology).recipe()
    key, _, written = SLOTS[part.part_slot].written.partition(": ")
    section, _, name = key.partition(".")
    options = {**Sampler().options(part.Config, part.example), **part.example}
    value: Any = {"type": part.part_name, **options} if options else part.part_name
    value = [value] if written.startswith("[") else value
    data[section] = {name: value} if name else value
    if part.part_slot == "objective":
        data["model"] |= _heads(part)
    if part.part_slot == "logits" and refusal(part, REGISTRY.get("strategy", "greedy")) is not None:
        data["generate"] = {"strategy": "sample", **data["generate"]}
    if section == "data":
        data["model"]["vocab_size"] = "tokenizer"
        corpus = "phrases" if topology == "encoder_decoder" else "docstrings"  # which need no files
        data["data"] = {"tokenizer": "character", "train": corpus, **data["data"]}
    return data


def _heads(part: Any) -> Tree:
    kind = part.heads[0]
    beside = {name: types[0] for name, types in part.beside.items()}
    named = {name: {"type": type_, **required("head", type_)} for name, type_ in beside.items()}
    return {"head": {"type": kind, **required("head", kind)}} | ({"heads": named} if named else {})


def _topology(part: Part) -> str:
    """Return the topology that the part requires, by default a decoder."""
    if issubclass(part, ObjectiveFacts) and part.reads is not None:
        return TOPOLOGIES[part.reads]
    return "encoder_decoder" if issubclass(part, CorpusFacts) and "target" in part.fields else "decoder"


def recipe_text(data: Tree, width: int) -> str:
    """Format a recipe; values are in flow style if they fit `width`, else in block style."""
    return "\n".join(_lines(_short(data), "", width))


def _lines(data: Options, indent: str, width: int) -> Iterator[str]:
    for key, value in data.items():
        line = f"{indent}{key}: {scalar(value)}"
        nested = isinstance(value, Mapping) and any(isinstance(entry, Mapping) for entry in value.values())
        if isinstance(value, str) and len(line) > width:
            yield from _folded(line, indent + "  ", width)
        elif not isinstance(value, (Mapping, list)) or (len(line) <= width and not nested):
            yield line
        else:
            yield f"{indent}{key}:"
            deeper = indent + "  "
            yield from _items(value, deeper, width) if isinstance(value, list) else _lines(value, deeper, width)


def _items(entries: Sequence[object], indent: str, width: int) -> Iterator[str]:
    """Format a list, one entry per line."""
    for entry in entries:
        line = f"{indent}- {scalar(entry)}"
        if isinstance(entry, Mapping) and len(line) > width:
            first, *rest = _lines(entry, indent + "  ", width)
            yield f"{indent}- {first.strip()}"
            yield from rest
        else:
            yield line


def _folded(line: str, indent: str, width: int) -> Iterator[str]:
    """Break a quoted text at single spaces, where YAML reads a line break as a space; long words are not broken."""
    first, *words = re.split(r"(?<=[^ ]) (?=[^ ])", line.lstrip(" "))
    line = indent[:-2] + first
    for word in words:
        if len(line) + 1 + len(word) <= width:
            line += f" {word}"
        else:
            yield line
            line = indent + word
    yield line


def _short(value: object) -> Any:
    """Replace parts without options by their name."""
    if isinstance(value, Mapping):
        return value["type"] if set(value) == {"type"} else {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value
