"""What a part tells of itself is typed: nothing is read by a name that may not be there."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import tfkit
from tfkit.components.attention import Attention
from tfkit.components.position import Position
from tfkit.core.component import Component, Config
from tfkit.core.errors import UsageError
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.slots import FACTS

from ..sampling import looped

ROOT = Path(tfkit.__file__).parent
# what is read so of other things than parts: of errors, modules, annotations, the system, and models of other libraries
NO_FACTS = {
    *("__wrapped__", "__self__", "strerror", "errno", "problem", "context", "problem_mark", "context_mark", "encoding"),
    *("O_NONBLOCK", "O_NOFOLLOW", "CSafeLoader", "SIGPROF", "__name__", "__func__", "is_animated"),
    *(
        "__wrapped__",
        "__self__",
        "__file__",
        "__notes__",
        "__module__",
        "__qualname__",
        "__metadata__",
        "__args__",
        "__origin__",
        "id",
        "attr",
    ),
    *("blueprint", "init_gain"),  # of any nn.Module, which may be no model or layer of tfkit
    *("root", "start_logits", "logits", "decoder_hidden_states", "hidden_states", "last_hidden_state"),
}
# code that runs beside transformers, on models of its own
EXCEPT = {ROOT / "interop" / "huggingface" / "own" / "modeling_tfkit.py"}


def guesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where `getattr(x, "name", default)` is written, and the name."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
            continue
        if len(node.args) == 3 and isinstance(node.args[1], ast.Constant):
            yield node.lineno, str(node.args[1].value)


@pytest.mark.full
def test_no_fact_of_a_part_is_read_with_a_default() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in sorted({*ROOT.rglob("*.py")} - EXCEPT)
        for line, name in guesses(ast.parse(file.read_text("utf-8")))
        if name not in NO_FACTS
    ]
    assert not found, "\n".join(found)


def test_the_search_finds_one() -> None:
    tree = ast.parse('x = getattr(part, "triangle", False)\ny = getattr(part, name, None)\n')
    assert list(guesses(tree)) == [(1, "triangle")]


@looped("slot", [slot for slot in CATALOGUES if slot in FACTS])
def test_every_part_has_the_facts_of_its_slot(slot: str) -> None:
    for name in REGISTRY.names(slot):
        part = REGISTRY.get(slot, name)
        assert issubclass(part, FACTS[slot])
        assert issubclass(part.Config, FACTS[slot].Config)


def test_a_class_without_them_is_refused_when_it_is_registered() -> None:
    with pytest.raises(UsageError, match="is not a part; a part of the slot 'attention' must be a class that extends"):

        @tfkit.register("attention", "alone")
        class Alone(Component, nn.Module):
            pass

    assert not REGISTRY.has("attention", "alone")


@looped(
    ("own", "message"),
    [
        ({"capabilities": frozenset({"casual"})}, "unknown capability 'casual'; did you mean 'causal'"),
        ({"gain_scale": ("value",)}, "'gain_scale' is not a declaration of a part; did you mean 'gain_scaled'"),
        ({"two_way": True}, "did you mean 'two_ways'"),
        ({"residual_output": ("output",)}, "did you mean 'residual_outputs'"),
    ],
)
def test_a_misspelt_fact_is_told_when_it_is_registered(own: dict[str, Any], message: str) -> None:
    part = type("Mine", (Attention,), own)
    with pytest.raises(UsageError, match=message):
        tfkit.register("attention", "misspelt")(part)
    assert not REGISTRY.has("attention", "misspelt")


def test_options_of_the_slot_hold_for_a_config_that_extends_the_plain_one() -> None:
    class Mine(Attention):
        class Config(Config):
            num_heads: int = 2
            rate: float = 1.0

    config = Mine.Config(shared=True, rate=2.0)
    assert isinstance(config, Attention.Config)
    assert config.heads() == 2
    assert config.spelled() == {"type": "", "shared": True, "num_heads": 2, "rate": 2.0}
    assert Mine.Config.part is Mine
    assert Mine.Config.__qualname__.endswith("Mine.Config")


def test_a_position_says_what_it_can_turn() -> None:
    class Mine(Position):
        pass

    assert list(Mine.Config().check_head_dim(7)) == []
    assert Mine.hooks() == frozenset()
