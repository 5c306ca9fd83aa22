"""Code that a recipe names is imported only when the user says so; a broken file is named, with its line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.imports import import_parts, imported, parts_written_in

from ..sampling import looped
from ..shipped import shipped
from .small import said

PART = """
import tfkit
from tfkit.components.norm import Norm

@tfkit.register("norm", "{name}")
class Halved(Norm):
    def forward(self, x):
        return x / 2
"""
HALVED = PART.format(name="halved")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file of parts; what other tests imported is not known."""
    monkeypatch.setattr("tfkit.recipe.imports._IMPORTED", {})
    monkeypatch.chdir(tmp_path)
    written(HALVED)
    return tmp_path


def written(text: str | bytes, name: str = "parts.py") -> Path:
    path = Path.cwd() / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recipe_with(imports: str, norm: str = "halved", more: str = "") -> Path:
    text = str(shipped("gpt2").text).replace("norm: layer_norm", f"norm: {norm}")
    return written(f"{text}imports: {imports}\n{more}", "mine.yaml")


def test_imports_of_a_recipe_are_refused_unless_trusted_or_given(folder: Path) -> None:
    path = recipe_with("[parts.py]")
    (fault,) = said(path)  # and nothing of the norm that is unknown without it
    assert "imports[0]: this recipe needs the code in 'parts.py'; review it, then use --trust or --import" in fault
    assert not REGISTRY.has("norm", "halved")
    for how in ({"trust": True}, {"imports": ["parts.py"]}):
        recipe = tfkit.load_recipe(path, **how)
        assert recipe.imports == (str(folder / "parts.py"),)
        assert recipe.blueprint().last.layers[0].norm.part.part_name == "halved"


def test_what_is_given_with_import_is_kept_with_the_recipe(folder: Path) -> None:
    recipe = tfkit.load_recipe("gpt2", overrides={"model.layer.norm": "halved"}, imports=[folder / "parts.py"])
    assert recipe.imports == (str(folder / "parts.py"),)
    again = written(recipe.resolved(), "resolved.yaml")
    assert tfkit.load_recipe(again).blueprint() == recipe.blueprint()


@pytest.mark.parametrize("more", [{}, {"sets": ["model.layer.attention.num_heads=5"]}])
def test_faults_are_reported_beside_code_that_is_missing(more: dict[str, Any]) -> None:
    faults = said(recipe_with("[parts.py]", more="objective: nonsense\n"), **more)
    assert sum("needs the code in 'parts.py'" in fault for fault in faults) == 1
    assert sum("unknown objective 'nonsense'" in fault for fault in faults) == 1
    assert sum("5 heads" in fault for fault in faults) == len(more)
    assert not [fault for fault in faults if "halved" in fault]
    assert any("unknown norm 'hlaved'" in fault for fault in said(recipe_with("[parts.py]", "hlaved")))


def test_the_names_in_a_file_are_read_without_running_it() -> None:
    assert parts_written_in(str(written(HALVED + "\nraise SystemExit\n"))) == {("norm", "halved")}
    assert parts_written_in(str(written("def f(:\n"))) is None
    assert parts_written_in("some_module") is None
    written("import tfkit\nfor name in 'ab': tfkit.register('norm', name)\n")
    assert len(said(recipe_with("[parts.py]", "a"))) == 1  # names that are computed may be any part's


@looped(
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
def test_what_cannot_be_imported_is_one_fault(imports: str, trust: bool, message: str) -> None:
    written("\n1 / 0\n", "broken.py")
    (fault,) = said(path := recipe_with(imports, norm="layer_norm"), trust=trust)
    assert message in fault and fault.startswith(f"{path}:")


@looped(
    ("text", "message"),
    [
        ("import tfkit\n1 / 0\n", r"broken.py:2: cannot be imported: ZeroDivisionError: division by zero$"),
        ("x = 1\ndef f(:\n", r"broken.py:2: cannot be imported: SyntaxError: invalid syntax$"),
        ("x = '\xe9'\n".encode("latin-1"), r"broken.py:?1?: cannot be imported: SyntaxError"),
        (b"x = 1\0\n", r"broken.py:?\d*: cannot be imported: (SyntaxError|ValueError)"),
        ("import sys\nsys.exit(2)\n", r"broken.py:2: cannot be imported: it exits the program \(sys.exit\(2\)\)$"),
        ("def f():\n    raise RuntimeError\n\nf()\n", r"broken.py:2: cannot be imported: RuntimeError$"),
        ("import helper\n", r"broken.py:1: cannot be imported: KeyError: 'x' \(.*helper.py:3\)$"),
        ("import helpless\n", r"broken.py:1: cannot be imported: SyntaxError: .* \(.*helpless.py:2\)$"),
        ("import not_installed.at_all\n", r"broken.py:1: cannot be imported: ModuleNotFoundError: No module named 'no"),
        (PART.format(name="layer_norm"), r"broken.py:5: norm 'layer_norm' is registered twice: by .*norm.py:\d+\) and"),
        (
            PART.format(name="x") + "    class Config(Norm.Config):\n        size: 'Nowhere' = 1\n",
            r"broken.py: cannot be imported: PydanticUndefinedAnnotation: name 'Nowhere' is not defined",
        ),
        (PART.format(name="two words"), r"broken.py:5: the name of a part must be an identifier"),
        (PART.format(name="x").replace('"norm"', '"nrom"'), r"unknown slot 'nrom'.*Did you mean 'norm'\?"),
    ],
)
def test_a_broken_file_is_named(monkeypatch: pytest.MonkeyPatch, text: str | bytes, message: str) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    written("\n\n{}['x']\n", "helper.py")
    written("\ndef (:\n", "helpless.py")
    file = written(text, "broken.py")
    for _ in range(2):  # and it is no better the second time
        with pytest.raises(UsageError, match=message):
            import_parts(file)


def test_an_interrupt_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        import_parts(written("raise KeyboardInterrupt\n"))


def test_what_is_no_python_file_is_named(folder: Path) -> None:
    written("", "notes.txt")
    (folder / "link.py").symlink_to("nowhere")
    for source, message in (
        (folder / "nothing.py", r"nothing\.py: no such file$"),
        (folder / "part.py", r"part\.py: no such file\. Did you mean '.*parts\.py'\?"),
        (folder / "link.py", r"link\.py: a link to a missing file$"),
        (folder / "notes.txt", r"notes\.txt: not a Python file"),
        (folder / ("x" * 300 + ".py"), "no such file"),
        (folder, "is a folder; use a Python file in it"),
        ("no_such_module", r"^no_such_module: cannot be imported: ModuleNotFoundError.*; is it installed"),
        ("parts", r"did you mean the file parts\.py\?"),
    ):
        with pytest.raises(UsageError, match=message):
            import_parts(source)


def test_all_that_is_wrong_is_reported_at_once(folder: Path) -> None:
    broken = written(HALVED + "1 / 0\n", "broken.py")
    sets = ["model.layer.norm=halved", "model.layer.attention.type=nothing_like_it"]
    faults = said("gpt2", imports=[broken], sets=sets)  # it hides only the parts that it would bring
    assert len(faults) == 2 and any("unknown attention 'nothing_like_it'" in fault for fault in faults)
    imports = [broken, folder / "parts.py", folder / "gone.py"]
    faults = said("gpt2", imports=imports, sets=["model.layer.norm=halved", "model.d_model=9"])
    starts = (f"--import {broken}: {broken}:9: cannot be imported: Zero", f"--import {folder / 'gone.py'}: ")
    assert all(any(fault.startswith(start) for fault in faults) for start in starts)
    assert [fault for fault in faults if "12 heads do not divide d_model 9" in fault]
    assert not [fault for fault in faults if "'halved'" in fault]
    faults = said(str(folder / "no.yaml"), imports=[broken])
    assert len(faults) == 2 and any("no such file" in fault for fault in faults)


def test_a_file_is_run_once_and_again_when_it_has_changed(folder: Path) -> None:
    file = folder / "parts.py"
    first = imported(file)
    assert first.parts == (("norm", "halved"),) and imported(os.path.relpath(file)).module is first.module
    stamp = file.stat()
    file.write_text(HALVED.replace("2", "3") + PART.format(name="more").replace("Halved", "More"))
    os.utime(file, (stamp.st_atime, stamp.st_mtime))
    second = imported(file)
    assert second.module is not first.module and second.sha256 != first.sha256
    assert REGISTRY.get("norm", "halved") is second.module.Halved
    file.write_text(PART.format(name="more").replace("Halved", "More"))
    imported(file)
    assert not REGISTRY.has("norm", "halved") and REGISTRY.has("norm", "more")
    assert not (folder / "__pycache__").exists()


def test_a_collision_names_both_places_and_the_first_stays(folder: Path) -> None:
    import_parts(folder / "parts.py")
    first = REGISTRY.get("norm", "halved")
    two = written(HALVED.replace("class Halved", "class Second"), "two.py")
    with pytest.raises(UsageError, match=r"two.py:5: norm 'halved' is registered twice: by Halved \(.*parts.py:5\)"):
        import_parts(two)
    assert REGISTRY.get("norm", "halved") is first
    written(HALVED + "\n1 / 0\n")  # a failed import restores what it had replaced
    with pytest.raises(UsageError, match=r"parts.py:10: cannot be imported: ZeroDivisionError"):
        import_parts(folder / "parts.py")
    assert REGISTRY.get("norm", "halved") is first


def test_what_a_failed_import_registered_is_taken_back_but_for_modules_that_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    written(PART.format(name="helping"), "helper_of_parts.py")
    with pytest.raises(UsageError):
        import_parts(written("import helper_of_parts\n" + PART.format(name="half") + "1 / 0\n", "broken.py"))
    assert "half" not in REGISTRY.names("norm") and "helping" in REGISTRY.names("norm")
    del sys.modules["helper_of_parts"]


def test_a_module_that_was_imported_before_brings_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    written(HALVED, "module_of_parts.py")
    __import__("module_of_parts")
    assert imported("module_of_parts").parts == (("norm", "halved"),)
    del REGISTRY.load("norm")["halved"]
    assert import_parts("module_of_parts") is sys.modules.pop("module_of_parts")
    assert REGISTRY.has("norm", "halved")  # though its text was not run again
