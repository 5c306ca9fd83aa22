"""Parts of one's own in the registry: collisions, redefinition, failed imports and installed plugins."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfkit
from tfkit.components.norm import LayerNorm, Norm
from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.core.options import Slot
from tfkit.core.plugins import origin
from tfkit.core.registry import REGISTRY, Registry, UnknownPart
from tfkit.recipe.imports import import_parts

PART = """
import tfkit
from tfkit.components.norm import Norm

@tfkit.register("norm", "{name}")
class {kind}(Norm):
    def forward(self, x):
        return x
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests imported is not known here."""
    monkeypatch.setattr("tfkit.recipe.imports._IMPORTED", {})


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Put a distribution with one entry point where Python finds it; the registry forgets that it has looked."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(REGISTRY, "_plugins_loaded", False)
    monkeypatch.setattr(REGISTRY, "problems", [])
    modules = []

    def add(name: str, text: str, version: str = "1.5") -> Path:
        file = tmp_path / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[tfkit.parts]\n{name} = {name}\n")
        modules.append(name)
        return file

    yield add
    for name in modules:
        sys.modules.pop(name, None)


# --- collisions


def test_a_collision_names_both_places_and_the_first_stays(tmp_path: Path) -> None:
    for name, kind in (("one", "First"), ("two", "Second")):
        (tmp_path / f"{name}.py").write_text(PART.format(name="same", kind=kind))
    import_parts(tmp_path / "one.py")
    with pytest.raises(UsageError, match=r"two.py:5: norm 'same' is registered twice: by First \(.*one.py:5\) and by"):
        import_parts(tmp_path / "two.py")
    assert REGISTRY.get("norm", "same").__name__ == "First"


@pytest.mark.full
def test_a_shipped_name_taken_before_its_catalogue_is_imported_is_the_users_fault(tmp_path: Path) -> None:
    """In a process of its own, since here the catalogues are loaded already."""
    program = """
from tfkit.core.registry import REGISTRY, register
from tfkit.core.slots import ScheduleFacts
try:
    @register("schedule", "cosine")
    class Mine(ScheduleFacts): pass
except Exception as error:
    print(error)
print(REGISTRY.get("schedule", "cosine").__module__, len(REGISTRY.names("schedule")) > 2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "by Cosine (" in done.stdout and "and by Mine (<interactive>)" in done.stdout
    assert done.stdout.splitlines()[-1] == "tfkit.training.schedule True"


def test_the_same_class_defined_again_takes_its_place() -> None:
    def define(value: int) -> type:
        @tfkit.register("norm", "again")
        class Again(Norm):
            number = value

        return Again

    define(1)
    second = define(2)
    assert REGISTRY.get("norm", "again") is second
    config = Slot("norm").validate("again")
    assert config.part is second and tfkit.parts("norm").count("again") == 1


def test_where_a_class_was_defined() -> None:
    assert origin(LayerNorm).startswith("LayerNorm (") and "norm.py:" in origin(LayerNorm)
    made = type("Made", (Norm,), {"__module__": "__main__"})
    assert origin(made).startswith("Made (")


# --- an import as a whole


def test_what_a_failed_import_registered_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(PART.format(name="half", kind="Half") + "\nraise ValueError('no more')\n")
    with pytest.raises(UsageError, match=r"half.py:10: cannot be imported: ValueError: no more"):
        import_parts(file)
    assert "half" not in REGISTRY.names("norm")


def test_a_failed_import_puts_back_what_it_had_replaced(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(PART.format(name="mine", kind="Mine"))
    import_parts(file)
    first = REGISTRY.get("norm", "mine")
    file.write_text(PART.format(name="mine", kind="Mine") + "\n1 / 0\n")
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        import_parts(file)
    assert REGISTRY.get("norm", "mine") is first


def test_a_module_that_stays_imported_keeps_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper_of_parts.py").write_text(PART.format(name="helping", kind="Helping"))
    (tmp_path / "broken.py").write_text("import helper_of_parts\n1 / 0\n")
    with pytest.raises(UsageError):
        import_parts(tmp_path / "broken.py")
    assert "helping" in REGISTRY.names("norm")
    del sys.modules["helper_of_parts"]


# --- installed plugins


def test_an_installed_plugin_is_there_without_being_named(install) -> None:
    install("plugin_good", PART.format(name="plugged", kind="Plugged"))
    assert REGISTRY.get("norm", "plugged").__module__ == "plugin_good"
    assert "plugged" in tfkit.parts("norm")
    assert Slot("norm").validate("plugged").part.part_name == "plugged"


def test_a_shipped_part_needs_no_look_at_what_is_installed(install) -> None:
    install("plugin_idle", "raise SystemExit\n")
    assert REGISTRY.get("norm", "layer_norm") is LayerNorm
    assert "plugin_idle" not in sys.modules and not REGISTRY.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import tfkit\n1 / 0\n", r"plugin_bad.py:2: cannot be imported: ZeroDivisionError: division by zero"),
        ("def f(:\n", r"plugin_bad.py:1: cannot be imported: SyntaxError: invalid syntax"),
        ("import sys\n\nsys.exit(3)\n", r"plugin_bad.py:3: cannot be imported: it exits the program \(sys.exit\(3\)\)"),
        ("import nothing_there\n", r"plugin_bad.py:1: cannot be imported: ModuleNotFoundError: .*'nothing_there'"),
        (PART.format(name="layer_norm", kind="Taken"), r"plugin_bad.py:5: norm 'layer_norm' is registered twice: by"),
        (PART.format(name="lost", kind="Lost") + "assert False\n", r"plugin_bad.py:9: cannot be .*: AssertionError$"),
    ],
)
def test_a_broken_plugin_is_told_once_and_hides_no_other(install, text: str, message: str) -> None:
    install("plugin_bad", text)
    install("plugin_good", PART.format(name="plugged", kind="Plugged"))
    with pytest.warns(TfkitWarning, match=r"the plugin 'plugin_bad' of plugin_bad 1.5 cannot be loaded: .*") as found:
        names = tfkit.parts("norm")
    assert len(found) == 1 and "plugged" in names and "lost" not in names
    (problem,) = REGISTRY.problems
    assert (problem.plugin, problem.distribution) == ("plugin_bad", "plugin_bad 1.5")
    assert re.search(message, problem.message), problem.message
    assert tfkit.parts("norm") == names  # and says nothing more
    with pytest.raises(UnknownPart, match=r"unknown norm 'plugd'; the plugin 'plugin_bad' of plugin_bad 1.5 cannot be"):
        REGISTRY.get("norm", "plugd")
    with pytest.raises(tfkit.RecipeError, match=r"unknown norm 'plugd'; the plugin .* Did you mean 'plugged'\?"):
        tfkit.load_recipe("gpt2", overrides={"model.layer.norm": "plugd"})


def test_a_plugin_that_is_interrupted_interrupts(install) -> None:
    install("plugin_slow", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        tfkit.parts("norm")


def test_a_plugin_may_ask_for_names_itself(install) -> None:
    install("plugin_curious", "import tfkit\nNAMES = tfkit.parts('norm')\n" + PART.format(name="late", kind="Late"))
    assert "late" in tfkit.parts("norm")
    assert "layer_norm" in sys.modules["plugin_curious"].NAMES


@pytest.mark.full
def test_help_looks_at_no_plugin() -> None:
    program = "import sys, tfkit.cli.main; print('importlib.metadata' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False"


def test_a_registry_of_ones_own_is_apart() -> None:
    other = Registry()

    @other.register("norm", "apart")
    class Apart(Norm):
        pass

    assert "apart" in other.registered()["norm"] and not REGISTRY.has("norm", "apart")
