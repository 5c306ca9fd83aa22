"""The pages of the site: the repository's Markdown files, and every file that they link to.

A page keeps its path in the repository; a README is the index of its folder. Links between files become links between
pages. A link to a text file leads to a page that shows it, one to a picture or an HTML file to a copy.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tfkit.core.errors import UsageError

from ..documents import ROOT

LINK = re.compile(
    r"(?P<code>^ *(?P<fence>`{3,}).*?^ *(?P=fence)$|`+[^`\n]+`+)|"
    r"(?P<image>!\[[^\]]*\]\((?P<picture>[^)\s]+)\)|<img src=\"(?P<drawing>[^\"]+)\")|"
    r"(?<=\])\((?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)
GALLERY = "recipes/models/gallery.html"
PAGES = ("*.md", "recipes/*.md", "recipes/*/*.md", "tfkit/*.md", "tfkit/*/*.md", "tests/*.md")
COPIES = "files"  # folder of the site for files that are no pages
HREF = re.compile(r'href="([^"#:][^":]*)"')
COPIED = {".html", ".svg", ".png", ".ipynb", ".pdf"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".js": "javascript", ".sh": "sh", ".toml": "toml", ".jsonl": "json"}
HIDDEN = "---\norphan: true\nnosearch: true\n---\n"  # what a page is headed with that no menu and no search lists


def repository() -> dict[str, str]:
    """Return the text of each Markdown file by its path."""
    files = sorted({file for pattern in PAGES for file in ROOT.glob(pattern)})
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def site_name(path: str) -> str:
    """Return the file of the site for a page: index.md for a README."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", path)


@dataclass
class Pages:
    """Pages by their paths in the repository, and the files to copy. `write` adds a page for each file linked to."""

    texts: dict[str, str]
    copies: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)

    def write(self, folder: Path, out: Path) -> None:
        """Write all pages to `folder` and all copies to `out`. Raise UsageError if links lead to no file."""
        done: set[str] = set()
        while left := sorted((self.texts.keys() | self.copies) - done):
            for path in left:
                if path in self.texts:
                    _write(folder / site_name(path), self.linked(path).encode())
                else:
                    self._copy(path, folder, out)
            done.update(left)
        if self.dead:
            raise UsageError("\n".join(self.dead))

    def _copy(self, path: str, folder: Path, out: Path) -> None:
        """Copy a file that is no page. Links of an HTML file are changed to the site's."""
        made = folder / path
        content = (made if made.exists() else ROOT / path).read_bytes()
        if path.endswith(".html"):
            here = f"{COPIES}/{path}"
            lead = functools.partial(self._lead, path, here)
            icon = f'<link rel="icon" href="{"../" * here.count("/")}_static/icon.svg">'
            content = HREF.sub(lead, content.decode("utf-8")).replace("<head>", f"<head>\n{icon}", 1).encode()
        _write(out / COPIES / path, content)
        if not made.exists():
            _write(made, content)

    def _lead(self, path: str, here: str, match: re.Match[str]) -> str:
        target = self._link(path, match[1], here).removeprefix("copy:")
        return f'href="{re.sub(r"[.]md(?=#|$)", ".html", target)}"'

    def linked(self, path: str) -> str:
        """Return a page with its links leading to pages and copies."""

        def replace(match: re.Match[str]) -> str:
            if picture := match["picture"] or match["drawing"]:
                if "://" not in picture and (found := self._beside(path, picture)):
                    self.copies.add(found)
                return match[0]
            if match["code"] or re.match(r"#|\w+:", match["target"]):
                return match[0]
            return f"({self._link(path, match['target'])})"

        return LINK.sub(replace, self.texts[path])

    def _beside(self, path: str, target: str) -> str:
        """Return the path in the repository of a link. Return an empty one if it leads to no file."""
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if found not in self.texts and found not in self.copies and not (ROOT / found).exists():
            self.dead.append(f"{path}: there is no file {target}")
            return ""
        return found

    def _link(self, path: str, target: str, here: str = "") -> str:
        """Return what a link of a file leads to, from its own place on the site."""
        name, _, anchor = target.partition("#")
        if not (found := self._beside(path, name)):
            return target
        if found == GALLERY and anchor:
            found, anchor = f"recipes/models/{anchor}.md", ""
        elif found.startswith("recipes/models/") and found.endswith(".yaml"):
            found = found.removesuffix(".yaml") + ".md"
        elif PurePosixPath(found).suffix in COPIED:
            self.copies.add(found)
        elif found not in self.texts:
            found, anchor = self._shown(found), ""
        scheme, place = ("copy:", f"{COPIES}/{found}") if found in self.copies else ("", site_name(found))
        relative = posixpath.relpath(place, posixpath.dirname(here or path) or ".")
        return scheme + relative + (f"#{anchor}" if anchor else "")

    def _shown(self, path: str) -> str:
        """Return the page that shows a text file or lists a folder, adding it if missing."""
        source = ROOT / path
        page = f"{path}/README.md" if source.is_dir() else f"{path}.md"
        if page not in self.texts:
            lines = _listing(source) if source.is_dir() else _source(source)
            self.texts[page] = HIDDEN + "\n".join((f"# {path}", "", *lines, ""))
        return page


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _listing(folder: Path) -> Iterator[str]:
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix == ".yaml":
            about = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            yield f"- [{file.stem}]({file.name}): {escaped(about)}"
        elif file.is_file():
            yield f"- {file.name} ({file.stat().st_size:,} bytes)"


def _source(file: Path) -> Iterator[str]:
    yield from fenced(file.read_text(encoding="utf-8"), LANGUAGES.get(file.suffix, "text"))


def fenced(text: str, language: str) -> Iterator[str]:
    """Yield a block of code."""
    yield from (f"``````{language}", text.rstrip("\n"), "``````")


def escaped(text: str) -> str:
    """Escape the characters with a meaning in Markdown."""
    return re.sub(r"([\\`*_<>\[\]|#{}])", r"\\\1", text)
