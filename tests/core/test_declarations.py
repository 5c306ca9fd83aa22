"""What a class declares is checked when it is registered; a mistake is reported with the class's file and line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tfkit
from tfkit.cli.main import main
from tfkit.components.attention import MultiHead
from tfkit.components.norm import Norm
from tfkit.core.component import Component
from tfkit.core.declarations import check_declarations
from tfkit.core.errors import UsageError
from tfkit.core.inputs import CAPABILITIES, INPUTS, Inputs
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.training.objective import Objective

from ..sampling import looped


def declaring(**facts: Any) -> Callable[[], type]:
    """A class with those attributes, to be registered."""
    return lambda: tfkit.register("attention", "mine")(type("Mine", (MultiHead,), {"__module__": __name__, **facts}))


@looped(
    ("facts", "message"),
    [
        ({"capabilities": {"casual"}}, "capabilities: unknown capability 'casual'; did you mean 'causal'?"),
        (
            {"capabilities": frozenset({"causal", "flying"})},
            r"unknown capability 'flying'; available: causal, .*export",
        ),
        ({"capabilities": "causal"}, "capabilities must be a set of words, got 'causal'"),
        ({"capabilities": None}, "capabilities must be a set of words, got None"),
        (
            {"needs": {"prefix_lengths"}},
            "needs: unknown input of a call 'prefix_lengths'; did you mean 'prefix_leng",
        ),
        ({"exceptions": {"paddding": "why"}}, "exceptions: unknown contract 'paddding'; did you mean 'padding'?"),
        ({"exceptions": {"built": "why"}}, "exceptions: unknown contract 'built'"),
        (
            {"exceptions": {"padding": " "}},
            "exceptions: the reason for 'padding' must be a text that is not blank",
        ),
        ({"exceptions": {"padding"}}, "exceptions must be a mapping of names to reasons, got {'padding'}"),
        ({"exceptions": "padding"}, "exceptions must be a mapping of names to reasons, got 'padding'"),
        ({"capabilites": {"causal"}}, "'capabilites' is not a declaration of a part; did you mean 'capabilities'?"),
        ({"residual_output": ("output",)}, "'residual_output' is not .*; did you mean 'residual_outputs'?"),
        ({"two_way": True}, "did you mean 'two_ways'"),
    ],
)
def test_a_wrong_declaration_is_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^Mine \(.*\): .*{message}"):
        declaring(**facts)()
    assert not REGISTRY.has("attention", "mine")


@looped("name", ["part", "build", "check", "spelled", "type", "copy", "model_fields"])
def test_an_option_does_not_hide_what_every_config_uses(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Pydantic's own warning
        config = type("Config", (MultiHead.Config,), {"__module__": __name__, "__annotations__": {name: int}, name: 3})
    with pytest.raises(UsageError, match=rf"^Mine \(.*\): an option cannot be called '{name}', .*; rename it"):
        declaring(Config=config)()
    assert not REGISTRY.has("attention", "mine")


@looped(
    "facts",
    [
        {"capabilities": ["causal"], "needs": ("token_type_ids",)},
        {"exceptions": {"padding": "it reads the padding on purpose"}},
        {"_residual_output": 1, "temperature_scale": 2.0, "width": 3},
        {"residual_output": 1, "residual_outputs": ("output",)},  # both are set, so both are meant
        {"example": {}, "shortcut": lambda self: 1},
    ],
)
def test_a_right_declaration_is_taken(facts: dict[str, Any]) -> None:
    assert declaring(**facts)().__name__ == "Mine"


@looped(
    ("thing", "message"),
    [
        (type("Mine", (), {}), r"^Mine \(.*\) is not a part; a part of the slot 'attention' must be a class"),
        (type("Mine", (Component,), {}), r"^Mine \(.*\) is not a part; a part of the slot 'attention' must be a class"),
        (lambda x: x, r"is not a class; .* extends Attention of tfkit.components.attention"),
        (MultiHead.Config, r"^MultiHead.Config \(.*multi_head.py:\d+\) is not a part"),
        (3, "^3 is not a class"),
    ],
)
def test_what_is_no_part_is_refused(thing: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tfkit.register("attention", "mine")(thing)
    assert not REGISTRY.has("attention", "mine")


def test_facts_of_bases_count_too() -> None:
    class Base(Norm):
        inerts = frozenset({"weight"})

    with pytest.raises(UsageError, match="'inerts' is not a declaration of a part; did you mean 'inert'"):
        tfkit.register("norm", "mine")(type("Mine", (Base,), {}))
    facts = {"__module__": __name__, "fields": ("text",)}
    tfkit.register("objective", "mine")(type("Mine", (Objective,), facts | {"reads": "causal"}))
    with pytest.raises(UsageError, match="'read' is not a declaration of a part; did you mean 'reads'"):
        tfkit.register("objective", "mine")(type("Mine", (Objective,), facts | {"read": "causal"}))


@looped("slot", CATALOGUES)
def test_what_is_shipped_declares_nothing_unknown(slot: str) -> None:
    for name in REGISTRY.names(slot):
        check_declarations(REGISTRY.get(slot, name))


def test_the_inputs_that_a_part_may_need_are_those_of_a_call() -> None:
    assert set(INPUTS) == set(Inputs.__dataclass_fields__) - {"input_ids", "real", "extra"}
    assert all(promise and not promise[0].isupper() for promise in CAPABILITIES.values())


@pytest.mark.parametrize("option", ["--verify", "--import"])
def test_the_command_line_reports_the_file_and_the_line(option: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for base, line, message in (
        ("MultiHead", "capabilities = {'casual'}", r"Mine \(.*mine.py:4\): .*did you mean 'causal'"),
        ("object", "pass", r"Mine \(.*mine.py:4\) is not a part"),
    ):
        head = "import tfkit\nfrom tfkit.components.attention import MultiHead\n\n"
        file.write_text(f"{head}@tfkit.register('attention', 'mine')\nclass Mine({base}):\n    {line}\n")
        result = CliRunner().invoke(main, ["parts", option, str(file)])
        assert result.exit_code == 2
        assert re.match(rf"tfkit: {file}:4: {message}", result.stderr), result.stderr
