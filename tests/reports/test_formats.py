"""Text of strangers in CSV, Markdown, HTML and pictures is shown as it is, and never acts."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from tfkit.core.errors import TfkitWarning
from tfkit.core.figures import drawn
from tfkit.reports.formats import csv_text, html_page, latex, markdown, markdown_table

from ..sampling import looped

EVIL = "<img src=x onerror=alert(1)> \x1b[2J\u202e [a](javascript:b) `c` $d$ *e* \ud800"


def test_latex_is_escaped() -> None:
    assert latex("a_b & 5% of $x^2$ \\cmd{#1}~\n%") == (
        r"a\_b \& 5\% of \$x\textasciicircum{}2\$ \textbackslash{}cmd\{\#1\}\textasciitilde{} \%"
    )
    assert "\x1b" not in latex(EVIL)


def test_formulas_are_text_and_numbers_numbers() -> None:
    texts = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"]
    rows = [[*texts], [-1, -0.5, None, "-0.5", "+2", "a=b", "-inf", 1e300]]
    found = list(csv.reader(io.StringIO(csv_text(["=name", *"bcdefgh"], rows))))
    assert found[0][0] == "'=name"
    assert all(cell.startswith("'") for cell in found[1])
    assert found[2] == ["-1", "-0.5", "", "-0.5", "+2", "a=b", "-inf", "1e+300"]
    assert "\x1b" not in csv_text([EVIL], [[EVIL]]) and "\\x1b[2J" in csv_text([EVIL], [])


@looped(
    ("text", "expected"),
    [
        ("norm=rms_norm+depth=18 < baseline", "norm=rms_norm+depth=18 < baseline"),
        ("-0.6639 [-0.6918, -0.6361]", "-0.6639 [-0.6918, -0.6361]"),
        ("Q&A, 5 > 3 & 2", "Q&A, 5 > 3 & 2"),
        ("<script>", "&lt;script>"),
        ("&lt;", "&amp;lt;"),
        ("a|b\n\nc", "a\\|b c"),
        ("# no heading", "\\# no heading"),
        ("> no quote", "\\> no quote"),
        ("- no item", "\\- no item"),
        ("1. no item", "1\\. no item"),
        ("---", "\\---"),
        ("[a](b) ![c](d)", "[a\\](b) ![c\\](d)"),
        ("[a]: b", "[a\\]: b"),
        ("$x$ *y* _z_ a_b `c` ~~d~~", "\\$x\\$ \\*y\\* \\_z\\_ a_b \\`c\\` \\~\\~d\\~\\~"),
        ("C:\\_a \\x", "C:\\\\\\_a \\x"),
        ("\x1b[2J", "\\x1b[2J"),
        ("", ""),
    ],
)
def test_markdown_shows_the_text(text: str, expected: str) -> None:
    assert markdown(text) == expected


def test_a_table_has_as_many_cells_as_heads() -> None:
    lines = list(markdown_table(["a|b", "c"], [["x\ny", "|"], [EVIL, "1"]]))
    assert lines[:3] == ["| a\\|b | c |", "|---|---|", "| x y | \\| |"]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3, 3]
    assert "<img" not in lines[3] and "\x1b" not in lines[3]


def test_a_page_escapes_text_and_keeps_pictures(tmp_path: Path) -> None:
    template = tmp_path / "page.html"
    template.write_text("<p>{{ text }}</p>{{ picture | safe }}{{ number }}")
    page = html_page(template, text=f"{EVIL}\r\nb", picture="<svg/>", number=1)
    assert page.endswith("\nb</p><svg/>1")
    assert "<img" not in page and "\\x1b[2J\\u202e" in page
    page.encode()


def test_a_picture_that_fails_is_a_warning() -> None:
    def fail() -> str:
        raise ValueError("no such\x1bfont")

    with pytest.warns(TfkitWarning, match=r"the figure of loss could not be drawn: ValueError: no such\\x1bfont"):
        assert drawn("loss", fail) == ""
