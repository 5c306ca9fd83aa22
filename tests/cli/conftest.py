"""Two small runs that all tests of commands share; a test copies what it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import tfkit

from .typed import PAIR, WRITER


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes writer.yaml and pair.yaml, their texts, and the runs writer and pair."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "text").write_text("The quick brown fox jumps over the lazy dog\n" * 3)  # it writes no end of a line
    (folder / "a.txt").write_text("one two\n" + "".join(f"the {n} cats\n" for n in range(8)))
    (folder / "b.txt").write_text("eins zwei\n" + "".join(f"die {n} Kätzchen\n" for n in range(8)))
    for name, recipe in (("writer", WRITER), ("pair", PAIR)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        tfkit.train(folder / f"{name}.yaml", out=folder / name, progress=False)
    return folder


@pytest.fixture(scope="session")
def writer(place: Path) -> Path:
    """A run of a decoder over characters, which reads at most 40."""
    return place / "writer"


@pytest.fixture(scope="session")
def pair(place: Path) -> Path:
    """A run of an encoder-decoder over words."""
    return place / "pair"
