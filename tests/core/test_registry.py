"""Parts of one's own in the registry: redefinition and installed plugins."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfkit
from tfkit.components.norm import LayerNorm, Norm
from tfkit.core.errors import TfkitWarning, origin
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY, Registry, UnknownPart

PART = """
import tfkit
from tfkit.components.norm import Norm

@tfkit.register("norm", "{name}")
class {kind}(Norm):
    def forward(self, x):
        return x
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Put a distribution with one entry point where Python finds it; the registry forgets that it has looked."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(REGISTRY, "_plugins_loaded", False)
    monkeypatch.setattr(REGISTRY, "problems", [])
    modules = []

    def add(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[tfkit.parts]\n{name} = {name}\n")
        modules.append(name)

    yield add
    for name in modules:
        sys.modules.pop(name, None)


def run(program: str) -> list[str]:
    """Run it in a process of its own, since here the catalogues are loaded already."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.full
def test_a_shipped_name_taken_before_its_catalogue_is_imported_is_the_users_fault() -> None:
    error, found = run("""
from tfkit.core.registry import REGISTRY, register
from tfkit.core.slots import ScheduleFacts
try:
    @register("schedule", "cosine")
    class Mine(ScheduleFacts): pass
except Exception as error:
    print(error)
print(REGISTRY.get("schedule", "cosine").__module__, len(REGISTRY.names("schedule")) > 2)
""")
    assert "by Cosine (" in error and "and by Mine (<interactive>)" in error
    assert found == "tfkit.training.schedule True"


@pytest.mark.full
def test_help_imports_no_torch() -> None:
    assert run("import sys, tfkit.cli.main; print('torch' in sys.modules)") == ["False"]


def test_the_same_class_defined_again_takes_its_place() -> None:
    def define() -> type:
        @tfkit.register("norm", "again")
        class Again(Norm):
            pass

        return Again

    _, second = define(), define()
    assert REGISTRY.get("norm", "again") is Slot("norm").validate("again").part is second
    assert tfkit.parts("norm").count("again") == 1


def test_where_a_class_was_defined() -> None:
    assert origin(LayerNorm).startswith("LayerNorm (") and "norm.py:" in origin(LayerNorm)
    assert origin(type("Made", (Norm,), {"__module__": "__main__"})).startswith("Made (")


def test_a_registry_of_ones_own_is_apart() -> None:
    other = Registry()
    other.register("norm", "apart")(type("Apart", (Norm,), {}))
    assert "apart" in other.registered()["norm"] and not REGISTRY.has("norm", "apart")


def test_an_installed_plugin_is_there_without_being_named(install) -> None:
    install("plugin_curious", "import tfkit\nNAMES = tfkit.parts('norm')\n" + PART.format(name="late", kind="Late"))
    assert REGISTRY.get("norm", "late").__module__ == "plugin_curious"
    assert "late" in tfkit.parts("norm") and Slot("norm").validate("late").part.part_name == "late"
    assert "layer_norm" in sys.modules["plugin_curious"].NAMES  # a plugin may look up names itself


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
        (PART.format(name="layer_norm", kind="Taken"), r"plugin_bad.py:5: norm 'layer_norm' is registered twice: by"),
        (PART.format(name="lost", kind="Lost") + "assert False\n", r"plugin_bad.py:9: cannot be .*: AssertionError$"),
    ],
)
def test_a_broken_plugin_is_reported_once_and_hides_no_other(install, text: str, message: str) -> None:
    install("plugin_bad", text)
    install("plugin_good", PART.format(name="plugged", kind="Plugged"))
    with pytest.warns(TfkitWarning, match=r"the plugin 'plugin_bad' of plugin_bad 1.5 cannot be loaded: .*") as found:
        names = tfkit.parts("norm")
    assert len(found) == 1 and "plugged" in names and "lost" not in names
    (problem,) = REGISTRY.problems
    assert (problem.plugin, problem.distribution) == ("plugin_bad", "plugin_bad 1.5")
    assert re.search(message, problem.message), problem.message
    assert tfkit.parts("norm") == names  # without another warning
    with pytest.raises(UnknownPart, match=r"unknown norm 'plugd'; the plugin 'plugin_bad' of plugin_bad 1.5 cannot be"):
        REGISTRY.get("norm", "plugd")
    with pytest.raises(tfkit.RecipeError, match=r"unknown norm 'plugd'; the plugin .* Did you mean 'plugged'\?"):
        tfkit.load_recipe("gpt2", overrides={"model.layer.norm": "plugd"})


def test_a_plugin_that_is_interrupted_interrupts(install) -> None:
    install("plugin_slow", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        tfkit.parts("norm")
