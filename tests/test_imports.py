"""The rooms of tfkit import one way, one slot's variants never another's, and every catalogue is complete."""

import ast
from pathlib import Path

import pytest

import tfkit

ROOT = Path(tfkit.__file__).parent
ROOMS = (
    "core functional components models recipe data generation training run contracts interop,reports,skeletons cli api "
    "__init__ __main__"
)
RANK = {name: rank for rank, names in enumerate(ROOMS.split()) for name in names.split(",")}
SLOTS = [folder.name for folder in (ROOT / "components").iterdir() if (folder / "__init__.py").is_file()]
CATALOGUES = [f"components/{slot}" for slot in SLOTS] + [
    *(
        "data/tokenizer",
        "data/corpus",
        "training/objective",
        "training/optimizer",
        "training/schedule",
        "training/metric",
        "generation/logits",
        "generation/stop",
        "generation/strategy",
    )
]


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


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_follow_the_arrow(file: Path) -> None:
    room = RANK[file.with_suffix("").parts[0]]
    for target in imports(ROOT / file):
        rank = RANK.get(target[0], -1)  # a name of tfkit/__init__ itself, such as __version__, costs nothing
        same = target[0] == file.with_suffix("").parts[0]
        assert rank < room or same, f"{file} imports tfkit.{'.'.join(target)}, against the arrow"


@pytest.mark.parametrize("slot", SLOTS)
def test_variants_know_only_their_own_slot(slot: str) -> None:
    for file in (ROOT / "components" / slot).glob("*.py"):
        for target in imports(file):
            if target[0] in ("core", "functional"):
                continue
            foreign = target[1] not in (slot, "sublayer") and target[2] != "base"
            assert not foreign, f"{file} imports tfkit.{'.'.join(target)}, another slot's variant"


@pytest.mark.parametrize("folder", CATALOGUES)
def test_a_catalogue_imports_every_file_beside_it(folder: str) -> None:
    listed = {target[-1] for target in imports(ROOT / folder / "__init__.py")}
    listed |= {target[len(Path(folder).parts)] for target in imports(ROOT / folder / "__init__.py") if len(target) > 2}
    missing = {file.stem for file in (ROOT / folder).glob("*.py")} - listed - {"__init__"}
    helpers = {name for name in missing if "@register(" not in (ROOT / folder / f"{name}.py").read_text("utf-8")}
    assert not missing - helpers, f"{folder}/__init__.py does not import {', '.join(sorted(missing - helpers))}"
