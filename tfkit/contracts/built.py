"""Building a part from its options, and round trips of the options."""

from __future__ import annotations

import json
import tempfile
from importlib import import_module
from pathlib import Path

from tfkit.contracts.calls import model
from tfkit.contracts.cases import MODEL, Case, load
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect, twins
from tfkit.core.component import Component
from tfkit.core.options import Slot
from tfkit.core.registry import CATALOGUES, base_of
from tfkit.recipe.load import load_recipe

EVERY = tuple(CATALOGUES)


def foreign(part: type[Component]) -> str | None:
    """Return a message if the part does not extend the base class of its slot, else None."""
    module, name = base_of(part.part_slot)
    if issubclass(part, getattr(import_module(module), name)):
        return None
    return f"the class does not extend {name} (of {module}), which defines the interface of every {part.part_slot}"


@contract(
    "the part can be built from its options (parts of a model: in a small recipe)", slots=EVERY, every_option=True
)
def check_built(case: Case) -> None:
    """Build a small model with the part, or the part itself."""
    if case.slot in MODEL:
        model(case)
        return
    try:
        config = case.config
    except ValueError as error:
        raise Broken(f"the options are rejected: {error}") from None
    config.build()


@contract("options survive formatting, parsing, copying and pickling", "built", slots=EVERY, every_option=True)
def check_config(case: Case) -> None:
    """Compare the options with their formatted, parsed, copied and pickled forms."""
    config, slot = case.config, Slot(case.slot)
    options = config.spelled()
    again = slot.validate(json.loads(json.dumps(options)))
    expect(again == config, f"{options} is parsed as {again.spelled()}")
    expect(again.spelled() == options, f"after a round trip, {options} becomes {again.spelled()}")
    for how, other in twins(config, "options", case.part):
        expect(other == config, f"the {how} options are {other.spelled()}, not {options}")
    if case.slot in MODEL:
        expect(hash(again) == hash(config), "equal options have different hashes")
        _survives_in_a_recipe(case)


def _survives_in_a_recipe(case: Case) -> None:
    recipe = load(case)
    text = recipe.resolved()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resolved.yaml"
        path.write_text(text, encoding="utf-8")
        loaded = load_recipe(path)
    expect(loaded.blueprint() == recipe.blueprint(), f"the resolved recipe does not load to an equal model:\n{text}")
