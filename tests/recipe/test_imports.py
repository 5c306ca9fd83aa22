"""Code that a recipe names is imported only when the user says so; a broken file is named, with its line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.imports import import_parts, imported, parts_written_in

PART = """
import tfkit
from tfkit.components.norm import Norm

@tfkit.register("norm", "{name}")
class Halved(Norm):
    def forward(self, x):
        return x / 2
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests imported is not known here."""
    monkeypatch.setattr("tfkit.recipe.imports._IMPORTED", {})


def recipe_with(folder: Path, imports: str, norm: str = "halved") -> Path:
    text = str(tfkit.load_recipe("gpt2").text).replace("norm: layer_norm", f"norm: {norm}")
    path = folder / "mine.yaml"
    path.write_text(text + f"imports: {imports}\n", encoding="utf-8")
    return path


def written(folder: Path, text: str = PART.format(name="halved"), name: str = "parts.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(source: Any, **options: Any) -> list[str]:
    """The faults of a recipe that cannot be loaded."""
    with pytest.raises(tfkit.RecipeError) as error:
        tfkit.load_recipe(source, **options)
    return [str(fault) for fault in error.value.faults]


# --- what a recipe says it needs


def test_imports_of_a_recipe_are_refused_unless_trusted(tmp_path: Path) -> None:
    file = written(tmp_path)
    path = recipe_with(tmp_path, "[parts.py]")
    (fault,) = refused(path)  # and nothing of the norm that is unknown without it
    assert "imports[0]: this recipe needs the code in 'parts.py'; review it, then use --trust or --import" in fault
    assert not REGISTRY.has("norm", "halved")
    assert tfkit.load_recipe(path, trust=True).imports == (str(file),)


def test_the_same_file_given_with_import_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    path = recipe_with(tmp_path, "[parts.py]")
    monkeypatch.chdir(tmp_path)
    recipe = tfkit.load_recipe(path, imports=["parts.py"])
    assert recipe.blueprint().last.layers[0].norm.part.part_name == "halved"
    assert recipe.imports == (str(tmp_path / "parts.py"),)


def test_what_is_given_with_import_is_kept_with_the_recipe(tmp_path: Path) -> None:
    file = written(tmp_path)
    recipe = tfkit.load_recipe("gpt2", overrides={"model.layer.norm": "halved"}, imports=[file])
    assert recipe.imports == (str(file),)
    again = written(tmp_path, recipe.resolved(), "resolved.yaml")
    assert tfkit.load_recipe(again).blueprint() == recipe.blueprint()


@pytest.mark.parametrize("more", [{}, {"sets": ["model.layer.attention.num_heads=5"]}])
def test_real_faults_are_told_beside_code_that_is_missing(tmp_path: Path, more: dict[str, Any]) -> None:
    written(tmp_path)
    path = recipe_with(tmp_path, "[parts.py]")
    path.write_text(path.read_text() + "objective: nonsense\n")
    faults = refused(path, **more)
    assert sum("needs the code in 'parts.py'" in fault for fault in faults) == 1
    assert sum("unknown objective 'nonsense'" in fault for fault in faults) == 1
    assert sum("5 heads" in fault for fault in faults) == len(more)
    assert not [fault for fault in faults if "halved" in fault]


def test_a_misspelt_part_of_the_missing_code_is_still_a_fault(tmp_path: Path) -> None:
    written(tmp_path)
    assert any("unknown norm 'hlaved'" in fault for fault in refused(recipe_with(tmp_path, "[parts.py]", "hlaved")))


def test_code_that_computes_its_names_may_bring_any_part(tmp_path: Path) -> None:
    written(tmp_path, "import tfkit\nfor name in 'ab': tfkit.register('norm', name)\n")
    assert len(refused(recipe_with(tmp_path, "[parts.py]", "a"))) == 1


def test_the_names_in_a_file_are_read_without_running_it(tmp_path: Path) -> None:
    file = written(tmp_path, PART.format(name="halved") + "\nraise SystemExit\n")
    assert parts_written_in(str(file)) == {("norm", "halved")}
    assert parts_written_in(str(written(tmp_path, "def f(:\n"))) is None
    assert parts_written_in("some_module") is None


@pytest.mark.parametrize(
    ("imports", "trust", "message"),
    [
        ("[3]", False, "expected a Python file or a module name"),
        ("[gone.py]", False, "cannot import 'gone.py': no such file; set its location with --import FILE"),
        ("[gone.py]", True, "cannot import 'gone.py': no such file"),
        ("[no_such_module]", False, "this recipe needs the code in 'no_such_module'; review it, then use --trust"),
        ("[no_such_module]", True, "no_such_module: cannot be imported: ModuleNotFoundError"),
        ("['']", True, "cannot be imported"),
        ("[broken.py]", True, "broken.py:2: cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_had_is_one_fault(tmp_path: Path, imports: str, trust: bool, message: str) -> None:
    written(tmp_path, "\n1 / 0\n", "broken.py")
    (fault,) = refused(recipe_with(tmp_path, imports, norm="layer_norm"), trust=trust)
    assert message in fault and fault.startswith(f"{tmp_path / 'mine.yaml'}:")


# --- what the user gives


BROKEN = [
    ("import tfkit\n1 / 0\n", r"broken.py:2: cannot be imported: ZeroDivisionError: division by zero$"),
    ("x = 1\ndef f(:\n", r"broken.py:2: cannot be imported: SyntaxError: invalid syntax$"),
    ("x = '\xe9'\n".encode("latin-1"), r"broken.py:?1?: cannot be imported: SyntaxError"),
    (b"x = 1\0\n", r"broken.py:?\d*: cannot be imported: (SyntaxError|ValueError)"),
    ("import sys\nsys.exit(2)\n", r"broken.py:2: cannot be imported: it exits the program \(sys.exit\(2\)\)$"),
    ("def f():\n    raise RuntimeError\n\nf()\n", r"broken.py:2: cannot be imported: RuntimeError$"),
    ("import helper\n", r"broken.py:1: cannot be imported: KeyError: 'x' \(.*helper.py:3\)$"),
    ("import helpless\n", r"broken.py:1: cannot be imported: SyntaxError: .* \(.*helpless.py:2\)$"),
    ("import not_installed.at_all\n", r"broken.py:1: cannot be imported: ModuleNotFoundError: No module named 'not_i"),
    (
        PART.format(name="layer_norm"),
        r"broken.py:5: norm 'layer_norm' is registered twice: by .*norm.py:\d+\) and by Halved \(.*broken.py:5",
    ),
    (
        PART.format(name="x") + "    class Config(Norm.Config):\n        size: 'Nowhere' = 1\n",
        r"broken.py: cannot be imported: PydanticUndefinedAnnotation: name 'Nowhere' is not defined",
    ),
    (PART.format(name="two words"), r"broken.py:5: the name of a part must be an identifier"),
    (PART.format(name="x").replace('"norm"', '"nrom"'), r"unknown slot 'nrom'.*Did you mean 'norm'\?"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes, message: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "\n\n{}['x']\n", "helper.py")
    written(tmp_path, "\ndef (:\n", "helpless.py")
    file = tmp_path / "broken.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for _ in range(2):  # and it is no better the second time
        with pytest.raises(UsageError, match=message):
            import_parts(file)


def test_an_interrupt_passes_through(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_parts(written(tmp_path, "raise KeyboardInterrupt\n"))


def test_what_is_no_python_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    written(tmp_path, "", "notes.txt")
    (tmp_path / "link.py").symlink_to("nowhere")
    for name, message in (
        ("nothing.py", r"nothing\.py: no such file$"),
        ("part.py", r"part\.py: no such file\. Did you mean '.*parts\.py'\?"),
        ("link.py", r"link\.py: a link to a missing file$"),
        ("notes.txt", r"notes\.txt: not a Python file"),
        ("x" * 300 + ".py", "no such file"),
    ):
        with pytest.raises(UsageError, match=message):
            import_parts(tmp_path / name)
    with pytest.raises(UsageError, match="is a folder; use a Python file in it"):
        import_parts(tmp_path)
    with pytest.raises(
        UsageError, match=r"^no_such_module: cannot be imported: ModuleNotFoundError.*; is it installed"
    ):
        import_parts("no_such_module")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"did you mean the file parts\.py\?"):
        import_parts("parts")


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    broken, good = written(tmp_path, "1 / 0\n", "broken.py"), written(tmp_path)
    faults = refused(
        "gpt2", imports=[broken, good, tmp_path / "gone.py"], sets=["model.layer.norm=halved", "model.d_model=9"]
    )
    assert [fault for fault in faults if fault.startswith(f"--import {broken}: {broken}:1: cannot be imported: Zero")]
    assert [fault for fault in faults if fault.startswith(f"--import {tmp_path / 'gone.py'}: ")]
    assert [fault for fault in faults if "12 heads do not divide d_model 9" in fault]
    assert not [fault for fault in faults if "halved" in fault]


def test_a_recipe_that_is_not_there_hides_no_broken_import(tmp_path: Path) -> None:
    faults = refused(str(tmp_path / "no.yaml"), imports=[written(tmp_path, "1 / 0\n", "broken.py")])
    assert len(faults) == 2 and any("no such file" in fault for fault in faults)


def test_a_broken_import_hides_only_the_parts_it_would_bring(tmp_path: Path) -> None:
    broken = written(tmp_path, PART.format(name="halved") + "1 / 0\n", "broken.py")
    unknown: Sequence[str] = ["model.layer.norm=halved", "model.layer.attention.type=nothing_like_it"]
    faults = refused("gpt2", imports=[broken], sets=unknown)
    assert len(faults) == 2 and any("unknown attention 'nothing_like_it'" in fault for fault in faults)


def test_a_file_is_run_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file = written(tmp_path)
    first = imported(file)
    assert first.parts == (("norm", "halved"),) and imported(os.path.relpath(file)).module is first.module
    stamp = file.stat()
    file.write_text(PART.format(name="halved").replace("2", "3") + PART.format(name="more").replace("Halved", "More"))
    os.utime(file, (stamp.st_atime, stamp.st_mtime))
    second = imported(file)
    assert second.module is not first.module and second.sha256 != first.sha256
    assert REGISTRY.get("norm", "halved") is second.module.Halved
    file.write_text(PART.format(name="more").replace("Halved", "More"))
    imported(file)
    assert not REGISTRY.has("norm", "halved") and REGISTRY.has("norm", "more")
    assert not (tmp_path / "__pycache__").exists()


def test_a_module_that_was_imported_before_brings_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, name="module_of_parts.py")
    __import__("module_of_parts")
    assert imported("module_of_parts").parts == (("norm", "halved"),)
    del REGISTRY.load("norm")["halved"]
    assert import_parts("module_of_parts") is sys.modules.pop("module_of_parts")
    assert REGISTRY.has("norm", "halved")  # though its text was not run again
