"""Nested plain data, as read from YAML and JSON: mappings, lists, texts, numbers, booleans and None.

Their values are `Any` because a mapping's type states neither its keys nor its depth; values that are only passed on
or compared are `object`, and values with known keys are a TypedDict, a NamedTuple or a dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]  # a nested mapping under construction
Options = Mapping[str, Any]  # options of a part by name
ModelSection = Mapping[str, Any]  # `model:` of a recipe, or overrides of one; parts are mappings with a type
JsonObject = dict[str, Any]  # an object of a JSON file, or of a command's --json
