"""The documentation site: links between files become links between pages, refusals, and the whole site, looked at."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from ..documents import ROOT
from . import __main__ as site
from .look import Look, browser, look, questions, served
from .pages import Pages, UsageError, repository

BUILT = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in site.NEEDED), reason="the extra `site` is not installed"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "tests.site", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.full
def test_links_between_files_become_links_between_pages(tmp_path: Path) -> None:
    texts = {
        "README.md": "[map](recipes/README.md#a) [drawn](recipes/models/gallery.html#gpt2) "
        "[all](recipes/models/gallery.html)\n[out](https://example.org/x.md) [law](LICENSE) `[code](none.md)`\n"
        "```sh\n[fence](none.md)\n```\n",
        "recipes/README.md": "[up](../README.md) [gpt2](models/gpt2.yaml) [tasks](tasks) "
        "![a](models/transformer-base.svg)\n",
        "recipes/models/gpt2.md": "# gpt2\n",
    }
    pages = Pages(dict(texts))
    pages.write(tmp_path / "source", tmp_path / "out")
    assert (tmp_path / "source" / "index.md").read_text("utf-8") == texts["README.md"].replace(
        "recipes/README.md#a", "recipes/index.md#a"
    ).replace("recipes/models/gallery.html#gpt2", "recipes/models/gpt2.md").replace(
        "(recipes/models/gallery.html)", "(copy:files/recipes/models/gallery.html)"
    ).replace("(LICENSE)", "(LICENSE.md)")
    assert (tmp_path / "source" / "recipes" / "index.md").read_text("utf-8") == (
        "[up](../index.md) [gpt2](models/gpt2.md) [tasks](tasks/index.md) ![a](models/transformer-base.svg)\n"
    )
    assert "MIT License" in (tmp_path / "source" / "LICENSE.md").read_text("utf-8")
    assert "translate-numbers" in (tmp_path / "source" / "recipes" / "tasks" / "index.md").read_text("utf-8")
    for name in ("gallery.html", "transformer-base.svg"):
        assert (tmp_path / "out" / "files" / "recipes" / "models" / name).is_file()


@pytest.mark.full
def test_dead_links_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^README.md: there is no file a.md\nREADME.md: there is no file b.svg$"):
        Pages({"README.md": "[a](a.md#x) ![b](b.svg)\n"}).write(tmp_path / "source", tmp_path / "out")
    Pages(repository() | {"recipes/models/README.md": ""}).linked("README.md")


@pytest.mark.full
def test_other_folders_and_missing_packages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["site", *words])
        assert site.run() == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    monkeypatch.setattr(site, "NEEDED", ("yaml",))
    assert "not empty" in run(str(tmp_path)) and "is a file" in run(str(tmp_path / "mine.txt"), "--force")
    monkeypatch.setattr(site, "NEEDED", ("no_such_library",))
    assert re.match("the site needs the package no_such_library: pip install ", run(str(tmp_path / "new")))
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # on a busy machine
@BUILT
def test_the_site_builds_without_a_warning_and_each_page_has_a_twin(built: Path) -> None:
    pages = {file.relative_to(built).with_suffix("") for file in built.rglob("*.html")}
    twins = [file for file in built.rglob("*.md") if file.relative_to(built).parts[0] != "_sources"]
    shown = {page for page in pages if page.parts[0] not in ("files", "search", "genindex", "py-modindex")}
    assert {file.relative_to(built).with_suffix("") for file in twins} == shown
    for file in twins:
        text = re.sub(r"^(`{3,}).*?^\1$", "", file.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            assert (file.parent / unquote(target)).exists(), f"{file}: {target}"
    listed = re.findall(r"\]\(([^)]+)\)", (built / "llms.txt").read_text("utf-8"))
    assert listed and all((built / unquote(name)).is_file() for name in listed)
    models = {file.stem for file in (ROOT / "recipes" / "models").glob("*.yaml")}
    assert models <= {page.name for page in pages if page.parent.name == "models"}
    lost = [question.ask for question in questions() if not any((built / page).exists() for page in question.pages)]
    assert not lost and len(questions()) == 40


@pytest.mark.slow
def test_a_look_finds_faults(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<!doctype html><title>t</title><link rel="icon" href="data:,"><body style="background: #fff"><main>'
        '<div style="width: 3000px">wide</div></main><script>console.log("said")</script><img src="none.png">'
        '<img src="http://127.0.0.2:9/x.png"><a href="none.html">a</a><a href="#none">b</a><a href="#">c</a>',
        encoding="utf-8",
    )
    with served(tmp_path) as root:
        try:
            with browser() as chromium:
                sight = Look(tmp_path, root, chromium)
                sight.all()
        except UsageError as error:
            pytest.skip(str(error))
    found = "\n".join(sight.faults)
    for fault in (
        "1280 pixels, light: 1728 pixels too wide; cut: ['DIV wide']", "390 pixels, dark: the background is light",
        "console: said", "404: ", "asks the network for http://127.0.0.2:9/x.png", "failed: http://127.0.0.2:9/x.png",
        "index.html links to none.html, which", "index.html links to index.html#none, which",
    ):  # fmt: skip
        assert fault in found, found
    assert found.count("links to") == 2


@pytest.mark.slow
@pytest.mark.timeout(1500)  # on a busy machine
@BUILT
def test_chromium_shows_every_page_whole_and_the_search_answers(built: Path) -> None:
    try:
        faults, missed, count = look(built)
    except UsageError as error:
        pytest.skip(str(error))
    assert count > 200 and not faults and len(missed) <= site.MISSED, "\n".join([*faults, *missed])
