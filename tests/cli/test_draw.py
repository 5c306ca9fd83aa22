"""`tfkit draw`: its formats, what it refuses, two recipes, and parts of one's own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.test_commands import RECIPE, tfkit_command
from tests.reports.test_draw import check_places
from tfkit.recipe.compose import shipped_recipes

PART = '''
from torch import Tensor
import tfkit
from tfkit.components.feedforward import FeedForward

@tfkit.register("feedforward", "two_roads")
class TwoRoads(FeedForward):
    """Zero."""

    class Config(FeedForward.Config):
        roads: int = 2

    picture = PICTURE

    def forward(self, x: Tensor, context: tfkit.Context) -> Tensor:
        return 0 * x
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return tmp_path


def draw(*arguments: str | Path) -> str:
    result = tfkit_command("draw", *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def refused(*arguments: str | Path) -> str:
    result = tfkit_command("draw", *arguments)
    assert result.exit_code == 2 and result.stdout == "", result.output
    return " ".join(result.stderr.split())


def test_every_format_has_every_part(here: Path) -> None:
    words = ("cross_attention", "multi_head", "feedforward_norm", "sinusoidal", "d_ff 16", "language_model")
    texts = [draw("mine.yaml")]
    for ending in ("svg", "html", "mmd", "txt"):
        assert draw("mine.yaml", "--out", f"new/mine.{ending}").startswith(f"new/mine.{ending}: ")
        texts.append((here / "new" / f"mine.{ending}").read_text(encoding="utf-8"))
    for text in texts:
        assert all(word in text or word.replace("_", "#95;") in text for word in words)
    assert re.search(r"feedforward\.d_ff: 16 - mine\.yaml:\d+:\d+\n", texts[2])
    ET.fromstring(texts[1])


@pytest.mark.parametrize("names", [("transformer-base",), ("bert-base", "gpt2")], ids=" ".join)
def test_the_pictures_of_the_readme_are_what_is_drawn(names: tuple[str, ...], tmp_path: Path) -> None:
    draw(*names, "--out", tmp_path / "new.svg")
    kept = shipped_recipes()[names[0]].with_name(f"{'-and-'.join(names)}.svg")
    assert (tmp_path / "new.svg").read_bytes() == kept.read_bytes(), (
        f"tfkit draw {' '.join(names)} --out {kept} --force"
    )


def test_png_is_a_picture_or_says_what_it_needs(here: Path) -> None:
    result = tfkit_command("draw", "mine.yaml", "--out", "mine.png")
    if result.exit_code:
        assert "cairo" in result.stderr
    else:
        assert (here / "mine.png").read_bytes().startswith(b"\x89PNG")


def test_with_another_or_changes_over_it_what_differs_is_marked(here: Path) -> None:
    draw("mine.yaml", "mine.yaml", "--set", "model.layer.feedforward.d_ff=24", "--out", "two.svg")
    text = (here / "two.svg").read_text(encoding="utf-8")
    check_places(text)
    changed = re.findall(r'class="changed" data-key="([^"]+)"', text)
    assert changed == 2 * ["encoder/0/feedforward", "decoder/0/feedforward"]
    assert "layer.feedforward.d_ff: 16 → 24" in text
    wide = draw("mine.yaml", "mine.yaml@wide")
    assert "! encoder: d_model 32" in wide and "d_model: 16 → 32" in wide
    assert draw("mine.yaml", "mine.yaml").endswith("the two architectures are equal\n")
    learned = draw("translate-numbers", "translate-numbers", "--set", "train.seed=3")
    assert "note: " in learned and "! " not in learned  # the note names the recipe and what is set
    assert "d_ff 24" in draw("mine.yaml", "--set", "model.layer.feedforward.d_ff=24")


def test_what_cannot_be_drawn_or_written_is_refused(here: Path) -> None:
    (here / "there.svg").write_text("mine")
    (here / "folder.svg").mkdir()
    for message, *arguments in (
        ("one of .svg, .html, .mmd, .txt, .png, got '.gif'", "mine.yaml", "--out", "mine.gif"),
        ("got none", "mine.yaml", "--out", "mine"),
        ("replace it with --force", "mine.yaml", "--out", "there.svg"),
        ("folder", "mine.yaml", "--out", "folder.svg", "--force"),
        ("name a recipe or a run",),
        ("no-such", "no-such"),
        ("--gallery draws the shipped models", "mine.yaml", "--gallery", "all.html"),
        ("one of .html", "--gallery", "all.svg"),
    ):
        assert message in refused(*arguments)
    assert (here / "there.svg").read_text() == "mine"
    draw("mine.yaml", "--out", "there.svg", "--force")


def test_a_part_of_one_s_own_is_drawn_with_its_title_and_boxes(here: Path) -> None:
    (here / "roads.py").write_text(PART.replace("PICTURE", '("two <roads>", "left", "right & back")'))
    words = ["--import", "roads.py", "--set", "model.layer.feedforward={type: two_roads, roads: 3}"]
    draw("mine.yaml", *words, "--out", "mine.svg")
    text = (here / "mine.svg").read_text(encoding="utf-8")
    check_places(text)
    for word in ("two &lt;roads&gt;", "feedforward: two_roads", "roads 3", ">left<", ">right &amp; back<"):
        assert word in text
    assert text.index(">right &amp; back<") < text.index(">left<"), "the stream passes from the bottom to the top"
    (here / "roads.py").write_text(PART.replace("PICTURE", '"roads"'))
    assert "picture must be a tuple of texts" in refused("mine.yaml", "--import", "roads.py")
