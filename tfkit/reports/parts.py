"""Registered parts as plain data: summary, options, capabilities and a minimal recipe."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import tfkit
from tfkit.core.capabilities import CAPABILITIES
from tfkit.core.component import Component, Config, spell
from tfkit.core.describe import in_words, limits, sections
from tfkit.core.plugins import is_shipped, source_file
from tfkit.core.registry import REGISTRY
from tfkit.recipe.rules import RULES, requirements_of
from tfkit.reports.minimal import minimal_recipe, recipe_text
from tfkit.reports.slots import SLOTS

ROOT = Path(tfkit.__file__).parents[1]
Part = type[Component]

# a citation in parentheses, with a year or an arXiv number: (Press et al. 2021, arXiv 2108.12409)
PAPER = re.compile(r"\s*\(([^()]*(?:\b(?:19|20)\d\d\b|\barXiv\b)[^()]*)\)")
ARXIV = re.compile(r"\b\d{4}\.\d{4,5}\b")


def slot_data(slot: str) -> dict[str, object]:
    """Return the purpose of a slot, and a summary of each part."""
    note = SLOTS[slot]
    parts = [line_data(REGISTRY.get(slot, name)) for name in REGISTRY.names(slot)]
    return {"slot": slot, "purpose": note.purpose, "written": note.written, "parts": parts}


def line_data(part: Part) -> dict[str, object]:
    """Summarize a part; `what` is the first sentence without its citation; `own` is true for custom parts."""
    doc = inspect.cleandoc(part.__doc__ or "")
    sentence = " ".join(doc.partition("\n\n")[0].split())
    papers = PAPER.findall(sentence) or PAPER.findall(" ".join(doc.split()))
    return {
        "name": part.part_name,
        "what": PAPER.sub("", sentence).removesuffix("."),
        "paper": "; ".join(papers) or None,
        "arxiv": ARXIV.findall("; ".join(papers)),
        "own": not is_shipped(part),
        "file": file_of(part),
    }


def part_data(part: Part, width: int = 80) -> dict[str, object]:
    """Describe a part. Its minimal recipe is wrapped to `width`, or is None for the reason in `recipe_problem`."""
    minimal = minimal_recipe(part)
    # capabilities that a rule requires, or that any part in the slot declares
    relevant = {rule.capability for rule in RULES if part.part_slot in rule.slots}
    relevant = relevant.union(*(other.able() for other in REGISTRY.load(part.part_slot).values()))
    return {
        "slot": part.part_slot,
        **line_data(part),
        "doc": inspect.cleandoc(part.__doc__ or ""),
        "fields": list(options_of(part.Config)),
        "checked": _checked(part.Config),
        "capabilities": {name: name in part.able() for name in CAPABILITIES if name in relevant},
        "asks": {rule.capability: list(rule.slots) for rule in requirements_of(part)},
        "needs": sorted(part.needs),
        "recipe": None if minimal.data is None else recipe_text(minimal.data, width),
        "recipe_problem": minimal.problem,
    }


def file_of(part: Part) -> str | None:
    """Return the file that defines a part, relative if possible; None if it was defined interactively."""
    file = source_file(part)
    for folder in (ROOT, Path.cwd()):
        if file is not None and Path(file).is_relative_to(folder):
            return str(Path(file).relative_to(folder))
    return file


def options_of(model: type[BaseModel], prefix: str = "", when: str = "") -> Iterator[dict[str, object]]:
    """Yield the options of a part; options of nested mappings have dotted names."""
    for name, field in model.model_fields.items():
        yield {
            "name": prefix + name,
            "type": in_words(field),
            "required": field.is_required(),
            "default": None if field.is_required() else spell(field.get_default(call_default_factory=True)),
            "meaning": when + (field.description or ""),
            "limits": limits(field),
        }
        inner = sections(field)
        for section in inner:
            yield from options_of(section, f"{prefix}{name}.", _kind(section) if len(inner) > 1 else "")


def _kind(section: type[BaseModel]) -> str:
    kind: FieldInfo | None = section.model_fields.get("type")
    return f"{in_words(kind) if kind else section.__name__}: "


def _checked(config: type[Config]) -> list[str]:
    """Return the options that the validators of the part itself read."""
    checks = [kind.__dict__["check"] for kind in config.__mro__ if "check" in kind.__dict__]
    checks += [validator.func for validator in config.__pydantic_decorators__.model_validators.values()]
    read = {name for check in checks for name in inspect.unwrap(check).__code__.co_names}
    return [name for name in config.model_fields if name in read]
