"""Code that a recipe names is imported only when the user says so; a broken file is named, with its line."""

from __future__ import annotations

import pytest

import tfkit
from tfkit.core.errors import UsageError
from tfkit.recipe.imports import import_parts

PART = """
import tfkit
from tfkit.components.norm.base import Norm

@tfkit.register("norm", "{name}")
class Halved(Norm):
    def forward(self, x):
        return x / 2
"""


def recipe_with(tmp_path, imports: str, norm: str = "halved"):
    text = tfkit.load_recipe("gpt2").text.replace("norm: layer_norm", f"norm: {norm}")
    path = tmp_path / "mine.yaml"
    path.write_text(text + f"imports: {imports}\n", encoding="utf-8")
    return path


def test_imports_of_a_recipe_are_refused_unless_trusted(tmp_path):
    (tmp_path / "parts.py").write_text(PART.format(name="halved"), encoding="utf-8")
    path = recipe_with(tmp_path, "[parts.py]")
    with pytest.raises(
        tfkit.RecipeError, match=r"needs the code in 'parts.py'; read it, then give --trust or --import"
    ) as e:
        tfkit.load_recipe(path)
    assert e.value.faults[0].path in ("imports", "imports[0]") or len(e.value.faults) == 2
    assert tfkit.load_recipe(path, trust=True).imports == (str(tmp_path / "parts.py"),)


def test_the_same_file_given_with_import_is_honoured(tmp_path):
    (tmp_path / "parts.py").write_text(PART.format(name="halved"), encoding="utf-8")
    path = recipe_with(tmp_path, "[parts.py]")
    recipe = tfkit.load_recipe(path, imports=[tmp_path / "parts.py"])
    assert recipe.blueprint().last.layers[0].norm.part.part_name == "halved"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import tfkit\n1 / 0\n", r"broken.py:2: cannot be imported: ZeroDivisionError"),
        ("def f(:\n", r"broken.py.*: cannot be imported: SyntaxError"),
        (
            PART.format(name="layer_norm"),
            r"norm 'layer_norm' is registered twice: by .*layer_norm.py.* and by .*broken.py",
        ),
        (PART.format(name="two words"), r"a part's name is a plain word"),
        (PART.format(name="x").replace('"norm"', '"nrom"'), r"unknown slot 'nrom'.*Did you mean 'norm'\?"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    file = tmp_path / "broken.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        import_parts(file)
    with pytest.raises(UsageError):  # and it is no better the second time
        import_parts(file)


def test_a_missing_file_and_a_missing_module_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"nothing\.py: no such file"):
        import_parts(tmp_path / "nothing.py")
    with pytest.raises(UsageError, match=r"no_such_module: cannot be imported: ModuleNotFoundError"):
        import_parts("no_such_module")


def test_imports_are_files_or_modules(tmp_path):
    with pytest.raises(tfkit.RecipeError, match="expected a Python file or the name of a module"):
        tfkit.load_recipe(recipe_with(tmp_path, "[3]", norm="layer_norm"))
