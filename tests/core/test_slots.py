"""What a part tells of itself is typed: nothing is read by a name that may not be there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfkit
from tfkit.components.attention import Attention
from tfkit.components.position import Position
from tfkit.core.component import Config
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.slots import FACTS

from ..sampling import looped

ROOT = Path(tfkit.__file__).parent
# what is read so of other things than parts: of errors, modules, annotations, the system, and models of other libraries
NO_FACTS = """
__wrapped__ __self__ strerror errno problem context problem_mark context_mark encoding O_NONBLOCK O_NOFOLLOW CSafeLoader
SIGPROF __name__ __func__ is_animated __file__ __notes__ __module__ __qualname__ __metadata__ __args__ __origin__ id
attr value killpg blueprint init_gain root start_logits logits decoder_hidden_states hidden_states last_hidden_state
mean sd
"""
# code that runs beside transformers, on models of its own
EXCEPT = {ROOT / "interop" / "huggingface" / "own" / "modeling_tfkit.py"}


def guesses(text: str) -> Iterator[tuple[int, str]]:
    """Where `getattr(x, "name", default)` is written, and the name."""
    for node in ast.walk(ast.parse(text)) if "getattr(" in text else ():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
            continue
        if len(node.args) == 3 and isinstance(node.args[1], ast.Constant):
            yield node.lineno, str(node.args[1].value)


@pytest.mark.full
def test_no_fact_of_a_part_is_read_with_a_default() -> None:
    assert list(guesses('x = getattr(part, "triangle", False)\ny = getattr(part, name, None)\n')) == [(1, "triangle")]
    files = sorted({*ROOT.rglob("*.py")} - EXCEPT)
    found = [(file, *guess) for file in files for guess in guesses(file.read_text("utf-8"))]
    assert not [guess for guess in found if guess[2] not in NO_FACTS.split()]


@looped("slot", [slot for slot in CATALOGUES if slot in FACTS])
def test_every_part_has_the_facts_of_its_slot(slot: str) -> None:
    for name in REGISTRY.names(slot):
        part = REGISTRY.get(slot, name)
        assert issubclass(part, FACTS[slot]) and issubclass(part.Config, FACTS[slot].Config)


def test_options_of_the_slot_hold_for_a_config_that_extends_the_plain_one() -> None:
    class Mine(Attention):
        class Config(Config):
            num_heads: int = 2
            rate: float = 1.0

    config = Mine.Config(shared=True, rate=2.0)
    assert isinstance(config, Attention.Config) and config.heads() == 2
    assert config.spelled() == {"type": "", "shared": True, "num_heads": 2, "rate": 2.0}
    assert Mine.Config.part is Mine and Mine.Config.__qualname__.endswith("Mine.Config")


def test_a_position_says_what_it_can_turn() -> None:
    class Mine(Position):
        pass

    assert list(Mine.Config().check_head_dim(7)) == [] and Mine.hooks() == frozenset()
