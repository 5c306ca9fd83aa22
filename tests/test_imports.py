"""The rooms of tfkit import one way, one slot's variants never another's, and every catalogue is complete."""

import ast
from pathlib import Path

import pytest

import tfkit
from tfkit.core.registry import BASES, HOMES

from .sampling import each

ROOT = Path(tfkit.__file__).parent
# each room of the package, and the rooms that it may import; `run` and what stands on it may import all before them
ALLOWED = {
    "core": "",
    "storage": "core",
    "functional": "core",
    "components": "core storage functional",
    "models": "core functional components",
    "recipe": "core storage",
    "data": "core storage recipe",
    "generation": "core functional components models recipe data",
    "runs": "core storage functional models recipe data generation",
    "training": "core storage functional components models recipe data generation runs",
    "plain": "core functional components models recipe api",
    "contracts": "core components models recipe data generation runs training",
    "reports": "core functional components models recipe generation contracts",
    "run": "core storage models recipe data generation runs training reports",
    "interop": "core storage models recipe data runs training run reports",
    "skeletons": "core functional components models data generation training",
    "studies": "core storage models recipe data runs training run reports",
    "cli": "core storage recipe generation runs training run contracts interop reports studies",
    "api": "core models recipe generation",
    "__init__": "core models recipe run api",
    "__main__": "cli",
}
# the rooms of recipe/, each importing only those of the lines before it
RECIPE = """
    rules keys
    text
    overlays
    architecture
    settings views
    schema
    compose imports
    model
    load
    derive
"""
RANK = {name: rank for rank, line in enumerate(RECIPE.split("\n")) for name in line.split()}
SLOTS = [slot for slot, home in HOMES.items() if home.startswith("tfkit.components.")]
# a slot is one page, or a folder of pages with its catalogue
CATALOGUES = [path for home in HOMES.values() if (ROOT / (path := home.replace(".", "/")[6:])).is_dir()]


def imports(file: Path) -> list[tuple[str, ...]]:
    """The modules of tfkit that a file imports, as paths within the package."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            module = str(node.module)
            # `from tfkit.core import component` means the module tfkit.core.component
            whole = ROOT.joinpath(*module.split(".")[1:]).is_dir() and module.startswith("tfkit")
            names += [f"{module}.{alias.name}" if whole else module for alias in node.names]
    return [tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "tfkit" and "." in name]


FILES = sorted(file.relative_to(ROOT) for file in ROOT.rglob("*.py"))


def forbidden(file: Path, targets: list[tuple[str, ...]]) -> list[str]:
    """Those modules among `targets` that `file`, a path within the package, must not import."""
    rooms = file.with_suffix("").parts
    allowed = {rooms[0], *ALLOWED[rooms[0]].split()}
    # a name of tfkit/__init__ itself, such as __version__, costs nothing
    wrong = [target for target in targets if target[0] in ALLOWED and target[0] not in allowed]
    if rooms[0] == "recipe" and rooms[1] in RANK:
        inner = [target for target in targets if target[0] == "recipe" and target[1] in RANK and target[1] != rooms[1]]
        wrong += [target for target in inner if RANK[target[1]] >= RANK[rooms[1]]]
    return [".".join(("tfkit", *target)) for target in wrong]


def test_imports_follow_the_arrow() -> None:
    def check(file: Path) -> None:
        assert not forbidden(file, imports(ROOT / file))

    each(FILES, check)


def test_every_room_is_fenced() -> None:
    assert {file.with_suffix("").parts[0] for file in FILES} == set(ALLOWED)
    assert {file.with_suffix("").parts[1] for file in FILES if file.parts[0] == "recipe"} == {*RANK, "__init__"}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("recipe/settings/parameters.py", "from tfkit.models.build import build_model"),
        ("recipe/architecture/heads.py", "from tfkit.components.head import Head"),
        ("recipe/text/node.py", "from tfkit.recipe.load import load_recipe"),
        ("recipe/overlays.py", "from tfkit.recipe.architecture import resolve"),
        ("recipe/views/resolved.py", "import tfkit.recipe.settings.sections"),
        ("core/context.py", "from tfkit.functional.attend import attend"),
        ("core/describe.py", "from tfkit.storage.files import read_text"),
        ("components/mask.py", "from tfkit.models.stack import Stack"),
        ("data/batches.py", "from tfkit.training.setup import prepare"),
    ],
)
def test_an_import_against_the_arrow_is_found(file: str, line: str, tmp_path: Path) -> None:
    assert not forbidden(Path(file), imports(ROOT / file))
    changed = tmp_path / "changed.py"
    changed.write_text((ROOT / file).read_text("utf-8") + f"\n{line}\n", encoding="utf-8")
    assert len(forbidden(Path(file), imports(changed))) == 1


@pytest.mark.parametrize("slot", SLOTS)
def test_variants_know_only_their_own_slot(slot: str) -> None:
    """They may import the base class of another, which is called as its slot is."""
    page = ROOT / "components" / f"{slot}.py"
    for file in [page] if page.is_file() else (ROOT / "components" / slot).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (module := str(node.module)).startswith("tfkit.components."):
                continue
            other = module.split(".")[2]
            names = {alias.name for alias in node.names} - {BASES.get(other, other.title())}
            foreign = other not in (slot, "sublayer") and not module.endswith(".base") and names
            assert not foreign, f"{file} imports {names} from {module}, another slot's variants"


@pytest.mark.parametrize("folder", [name for name in CATALOGUES if not name.endswith("families")])  # it walks its files
def test_a_catalogue_imports_every_file_beside_it(folder: str) -> None:
    listed = {target[-1] for target in imports(ROOT / folder / "__init__.py")}
    listed |= {target[len(Path(folder).parts)] for target in imports(ROOT / folder / "__init__.py") if len(target) > 2}
    missing = {file.stem for file in (ROOT / folder).glob("*.py")} - listed - {"__init__"}
    helpers = {name for name in missing if "@register(" not in (ROOT / folder / f"{name}.py").read_text("utf-8")}
    assert not missing - helpers, f"{folder}/__init__.py does not import {', '.join(sorted(missing - helpers))}"
