"""Pages of pictures: the gallery of all shipped models, offline, and in a real browser without a screen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import tfkit_command
from tests.studies.test_page import LOOK
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import load_recipe
from tfkit.reports.gallery import gallery, page
from tfkit.reports.picture import compared, picture

pytestmark = pytest.mark.full

MODELS = sorted(name for name, path in shipped_recipes().items() if path.parent.name == "models")
# two of the cards are chosen, and the numbers of marked boxes and of rows of differences are asked for
CHOOSE = """(() => { const cards = [...document.querySelectorAll("article")];
for (const card of cards.slice(0, 2)) card.querySelectorAll("button")[1].click();
const dialog = document.querySelector("dialog"), found = {open: dialog.open, rows: dialog.querySelectorAll("tr").length,
marked: dialog.querySelectorAll(".changed").length};
dialog.close();
document.querySelector("#word").value = "bert-";
document.querySelector("form").dispatchEvent(new Event("input"));
return {...found, left: cards.filter((card) => !card.hidden).length}; })()"""


def looked_at(file: Path, width: int, script: str = "") -> dict[str, object]:
    """What a browser says of a page: its pictures, its width, the messages of its console, and what a script finds."""
    look = LOOK.replace("resize(1000", f"resize({width}").replace(
        "{text:", f"{{more: {json.dumps(script or 'null')[1:-1]}, text:"
    )
    environment = os.environ | {
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", look, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"said": done.stderr}
    return found


def test_a_gallery_needs_nothing_from_elsewhere_and_filters_by_the_parts_of_its_models() -> None:
    names = ("gpt2", "bert-base")
    text = gallery((f"<i>{name}</i>", load_recipe(name).blueprint()) for name in names)
    shipped = shipped_recipes()["gpt2"].with_name("gallery.html").read_text(encoding="utf-8")
    assert sorted(re.findall('<article id="(.*?)"', shipped)) == MODELS
    assert text == gallery((f"<i>{name}</i>", load_recipe(name).blueprint()) for name in names)
    assert text.count("<article") == 2 and "&lt;i&gt;gpt2" in text and "<i>" not in text
    assert not re.search(r'(src|href)="|@import|url\(', text)
    assert set(re.findall(r'<option value="residual:(\w+)"', text)) == {"pre_norm", "post_norm"}
    assert (
        'data-ideas="attention:multi_head feedforward:mlp norm:layer_norm position:learned residual:pre_norm"' in text
    )


@pytest.mark.slow
def test_the_gallery_of_all_shipped_models_in_a_browser(tmp_path: Path) -> None:
    file = tmp_path / "gallery.html"
    assert tfkit_command("draw", "--gallery", file).exit_code == 0
    assert file.stat().st_size < 6_000_000
    text = file.read_text(encoding="utf-8")
    assert sorted(re.findall("<article .*?<h2>(.*?)</h2>", text)) == MODELS
    assert text == shipped_recipes()["gpt2"].with_name("gallery.html").read_text(encoding="utf-8")
    pytest.importorskip("PySide6.QtWebEngineWidgets")
    for width in (420, 1400):
        found = looked_at(file, width, CHOOSE)
        assert found["said"] == [] and found["loaded"], found
        assert found["wide"] <= found["window"], found  # type: ignore[operator]
        assert found["more"]["open"] and found["more"]["rows"] > 2 and found["more"]["marked"] > 2, found  # type: ignore[index]
        assert found["more"]["left"] == sum("bert-" in name for name in MODELS)  # type: ignore[index]


@pytest.mark.slow
def test_a_page_of_two_pictures_in_a_browser(tmp_path: Path) -> None:
    pytest.importorskip("PySide6.QtWebEngineWidgets")
    recipes = [load_recipe("bert-base"), load_recipe("gpt2")]
    pictures = compared(*(picture(recipe.blueprint()) for recipe in recipes))
    file = tmp_path / "page.html"
    file.write_text(page(pictures, ["a line"], [recipe.table() for recipe in recipes]), encoding="utf-8")
    for width in (420, 1400):
        found = looked_at(file, width)
        assert found["said"] == [] and found["loaded"], found
        assert found["wide"] <= found["window"], found  # type: ignore[operator]
        assert "multi_head" in str(found["text"])
