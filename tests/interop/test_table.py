"""The table of published models: what it reads from a recipe's header, and how it writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.table import Proof, families_table, heading, size

from ..sampling import looped

HEADER = """# One, 2B: a decoder.
# Somebody et al. 2024, "A Paper".
# New in it (since Zero): windows | caps, after Another et al. 2021, arXiv 2101.00001. Sizes are those of its config.
# Type: tfkit show one
# Expect: 2 layers, 2,345,678,901 parameters (the paper says 2B).
tfkit: 1
"""


@looped(
    ("parameters", "said"),
    [
        (2_340_160, "2.34M"),
        (87_508_992, "87.5M"),
        (176_247_271_424, "176B"),
        (999_885_952, "1.00B"),
        (998_000_000, "998M"),
    ],
)
def test_a_size_has_three_digits(parameters: int, said: str) -> None:
    assert size(parameters) == said


def test_a_heading_says_the_parameters_and_what_is_new() -> None:
    found = heading(HEADER)
    assert found.parameters == 2_345_678_901
    assert found.new.startswith("since Zero: windows | caps, after Another et al. 2021")


@pytest.mark.parametrize("left_out", ["New in it", "2,345,678,901 parameters"])
def test_a_header_without_them_is_refused(left_out: str) -> None:
    with pytest.raises(ValueError, match="New in it"):
        heading(HEADER.replace(left_out, "something"))


def test_a_row_for_each_recipe_and_one_for_what_none_is_about(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(HEADER, encoding="utf-8")
    shown = {"one": Proof("`uno`", "uno.py", "3 models"), "two": Proof("`dos`", "dos.py", about="The second")}
    table = families_table({"one": file}, shown).splitlines()
    new = "since Zero: windows \\| caps, after Another et al. 2021, arXiv 2101.00001"
    assert table[0] == "| recipe | size | new in it | proof | picture |"
    assert table[2:] == [
        f"| [one](models/one.yaml) | 2.35B | {new} | [`uno`](../uno.py), 3 models | [drawn](models/gallery.html#one) |",
        "| `two` |  | The second | [`dos`](../dos.py) |  |",
    ]
