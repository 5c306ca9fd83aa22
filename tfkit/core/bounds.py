"""Plain nested data, and upper bounds of numbers in recipes, studies, commands and calls.

Their values are `Any` because a mapping's type states neither its keys nor its depth; values that are only passed on
or compared are `object`, and values with known keys are a TypedDict, a NamedTuple or a dataclass.

Every integer option has one of these bounds or a smaller one. Larger values are refused when parsed, before anything
is computed or allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Tree = dict[str, Any]  # a nested mapping under construction
PositionEntry = Any  # `position` of a layer in a recipe: a part, a list of parts, or None
Options = Mapping[str, Any]  # options of a part by name
ModelSection = Mapping[str, Any]  # `model:` of a recipe, or overrides of one; parts are mappings with a type
JsonObject = dict[str, Any]  # an object of a JSON file, or of a command's --json


class Bound(NamedTuple):
    """Upper bound with a description of the numbers that it applies to."""

    most: int
    counts: str


WIDTH = Bound(2**28, "widths, vocabularies, classes, `max_length`")
VOCABULARY = Bound(2**24, "`vocab_size` of a trained tokenizer")
LAYERS = Bound(10_000, "layers per stack")
HEADS = Bound(2**16, "heads")
EXPERTS = Bound(2**12, "experts per layer")
COUNT = Bound(2**31, "steps, tokens, examples, ids")
SEED = Bound(2**32 - 1, "seeds")
ROWS = Bound(2**20, "sequences per batch")
TEXTS = Bound(2**12, "beams and texts per prompt")
DRAWN = Bound(10_000, "lengths, symbols and modulus of a generated corpus")
ORDER = Bound(100, "order of an n-gram")
SEEDS = Bound(1_000, "seeds per study")
ARMS = Bound(1_000, "variants per study")
TRIALS = Bound(10_000, "variants of a study times the values tuned")
JOBS = Bound(2**10, "concurrent runs")
LOOKED = Bound(2**28, "attention weights that `tfkit look` shows: layers x heads x tokens x tokens")
TEMPLATE_TIME = Bound(2, "seconds of CPU to compile or render a chat template")
TEMPLATE_MEMORY = Bound(2**28, "bytes of the process that renders chat templates")

BOUNDS = tuple(value for value in list(globals().values()) if isinstance(value, Bound))
