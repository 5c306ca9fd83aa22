"""The documentation site, built offline from the repository's pages: `python -m tests.site OUT`."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tfkit.core.errors import UsageError, optional

from .pages import COPIES, Pages, repository

HERE = Path(__file__).parent
MARK = ".tfkit-site"  # a file in every site that was made here
MISSED = 4  # questions that the search may leave unanswered
NEEDED = ("sphinx", "myst_parser", "furo", "sphinx_design", "sphinx_click", "sphinx_llm")


def build(out: Path) -> int:
    """Build the site. Return the number of its pages. Raise UsageError if Sphinx warned of anything."""
    from sphinx.application import Sphinx

    from . import made

    with tempfile.TemporaryDirectory() as folder:
        source, html = Path(folder, "source"), Path(folder, "html")
        texts = repository()
        texts |= dict([*made.models(source), *made.commands(), ("api.md", made.api()), *made.folders(texts)])
        texts |= dict(made.subjects(texts))
        texts["README.md"] += made.menus(texts)
        pages = Pages(texts, {file.relative_to(source).as_posix() for file in source.rglob("*.svg")})
        pages.write(source, html)
        app = Sphinx(
            source, HERE, html, Path(folder, "doctrees"), "html", parallel=2, warningiserror=True, freshenv=True,
            status=None,
        )  # fmt: skip
        app.build()
        if app.statuscode:
            raise UsageError("the site has faults, see above; nothing was written")
        for file in html.rglob("*.md"):
            file.write_text(twin(file.read_text(encoding="utf-8"), file.relative_to(html)), encoding="utf-8")
        (html / MARK).touch()
        if (out / MARK).exists():
            shutil.rmtree(out)
        shutil.copytree(html, out, dirs_exist_ok=True)
        return len(texts)


def twin(text: str, file: Path) -> str:
    """Return the Markdown twin of a page with pictures relative to it; sphinx-llm names them from the top."""
    up = "../" * (len(file.parts) - 1)
    return re.sub(r"(!\[[^\]]*\]\()([^):]+\))", rf"\g<1>{up}{COPIES}/\g<2>", text)


def check(out: Path, force: bool) -> None:
    """Raise UsageError if `out` holds what was not made here, or if a package is missing."""
    for module in NEEDED:
        optional(module, "site", "the site needs")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; name a folder")
    if not force and out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise UsageError(f"{out} is not empty and no site made here; name another folder, or add --force")


def look_at(out: Path) -> int:
    """Print what is wrong with a site as Chromium shows it. Return the exit status."""
    from .look import look, questions

    try:
        faults, missed, count = look(out)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(*faults, *missed, sep="\n")
    print(f"{count} pages opened, {len(faults)} faults; {len(missed)} of {len(questions())} questions not answered")
    return int(bool(faults) or len(missed) > MISSED)


def run() -> int:
    """Read the command line and build. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.site", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the site")
    parser.add_argument("--force", action="store_true", help="write into a folder that has other files")
    parser.add_argument("--look", action="store_true", help="open every page in headless Chromium and report faults")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        check(options.out, options.force)
        count = build(options.out)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.out}: {count} pages in {time.monotonic() - begin:.0f} s")
    return look_at(options.out) if options.look else 0


if __name__ == "__main__":
    sys.exit(run())
