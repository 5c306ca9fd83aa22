"""A look at every page in headless Chromium: wide and narrow, light and dark, its links, its search."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urlsplit

import yaml

from tfkit.core.errors import UsageError

WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
FIRST = 3  # results in which the page of a question must be
STATE = """() => {
  const wide = document.documentElement.clientWidth, cut = [];
  const scrolls = e => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const fixed = e => e && (getComputedStyle(e).position === 'fixed' || fixed(e.parentElement));
  for (const e of document.querySelectorAll('main *, [role=main] *, article *')) {
    const box = e.getBoundingClientRect();
    if (box.width > 1 && (box.right > wide + 1 || box.left < -1) && !scrolls(e.parentElement) && !fixed(e))
      cut.push(e.tagName + ' ' + e.textContent.trim().slice(0, 40));
  }
  const canvas = /dark/.test(getComputedStyle(document.documentElement).colorScheme)
    && matchMedia('(prefers-color-scheme: dark)').matches;
  const rgb = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
  return {wide: document.documentElement.scrollWidth - innerWidth, cut: cut.slice(0, 3),
          dark: rgb[3] === 0 ? canvas : rgb[0] + rgb[1] + rgb[2] < 200};
}"""
LINKS = """() => ({
  ids: [...document.querySelectorAll('[id],a[name]')].map(e => e.id || e.name),
  links: [...document.querySelectorAll('a[href]')].map(e => e.href)})"""


class Question(NamedTuple):
    """A question as a reader types it, the thread that it comes from, and the pages with the answer."""

    ask: str
    thread: str
    pages: tuple[str, ...]


def questions() -> list[Question]:
    """Read the questions beside this file."""
    rows = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text(encoding="utf-8"))
    return [Question(row["ask"], row["thread"], tuple(f"{page}.html" for page in row["pages"].split())) for row in rows]


@contextmanager
def served(out: Path) -> Iterator[str]:
    """Serve a folder on this machine. Yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(out)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium with an empty profile. Yield it. Raise UsageError if it or its driver is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UsageError("--look needs the package playwright, which drives Chromium") from None
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise UsageError(f"--look needs a browser: {', '.join(BROWSERS)}")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


class Look:
    """Faults of the pages of a site."""

    def __init__(self, out: Path, root: str, chromium: Any) -> None:
        self.root, self.faults, self.ids = root, list[str](), dict[str, set[str]]()
        self.links = list[tuple[str, str]]()
        self.names = sorted(file.relative_to(out).as_posix() for file in out.rglob("*.html"))
        self.files = {file.relative_to(out).as_posix() for file in out.rglob("*")}
        self.page = chromium.new_page()
        self.name = ""
        self.page.on("console", lambda message: self.fault(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.fault(f"error: {error}"))
        self.page.on("request", lambda request: self.request(request.url))
        self.page.on("requestfailed", lambda request: self.failed(request.url, request.failure))
        self.page.on("response", lambda answer: answer.status < 400 or self.fault(f"{answer.status}: {answer.url}"))

    def fault(self, text: str) -> None:
        self.faults.append(f"{self.name}: {text}")

    def request(self, url: str) -> None:
        if not url.startswith((self.root, "data:", "blob:")):
            self.fault(f"asks the network for {url}")

    def failed(self, url: str, why: str) -> None:
        if "ERR_ABORTED" not in why:  # the summaries of results that the next search does not wait for
            self.fault(f"failed: {url}")

    def all(self) -> None:
        """Open every page, then follow every link."""
        for name in self.names:
            self.name = name
            self.page.goto(self.root + quote(self.name))
            for width in WIDTHS:
                self.page.set_viewport_size({"width": width, "height": 900})
                for scheme in SCHEMES:
                    self.page.emulate_media(color_scheme=scheme)
                    self.state(f"{width} pixels, {scheme}", scheme == "dark")
            found = self.page.evaluate(LINKS)
            self.ids[self.name] = set(found["ids"])
            self.links += [(self.name, link) for link in found["links"]]
        self.name = "links"
        for name, link in dict.fromkeys(self.links):
            self.follow(name, link)

    def state(self, where: str, dark: bool) -> None:
        """Report what is cut off or in the wrong colors."""
        state = self.page.evaluate(STATE)
        if state["wide"] > 0 or state["cut"]:
            self.fault(f"{where}: {state['wide']} pixels too wide; cut: {state['cut']}")
        if state["dark"] != dark:
            self.fault(f"{where}: the background is {'dark' if state['dark'] else 'light'}")

    def follow(self, name: str, link: str) -> None:
        """Report a link of a page that leads nowhere on the site."""
        address, anchor = urldefrag(link)
        if not address.startswith(self.root):
            return
        path = unquote(urlsplit(address).path).lstrip("/")
        path = path if path and not path.endswith("/") else f"{path}index.html"
        if path not in self.files:
            self.fault(f"{name} links to {path}, which does not exist")
        elif anchor and path in self.ids and unquote(anchor) not in self.ids[path]:
            self.fault(f"{name} links to {path}#{anchor}, which does not exist")

    def search(self, ask: str) -> list[str]:
        """Return the first pages that the search of the site lists, in their order."""
        self.name = f"search for {ask}"
        self.page.goto(f"{self.root}search.html?q={quote(ask)}")
        self.page.wait_for_function(
            f"document.querySelectorAll('ul.search > li').length >= {FIRST} || "
            "(document.querySelector('.search-summary')?.innerText ?? '') !== ''"
        )
        links = self.page.eval_on_selector_all("ul.search > li > a", "all => all.map(e => e.href)")
        return [unquote(urlsplit(link).path).lstrip("/") for link in links[:FIRST]]


def look(out: Path) -> tuple[list[str], list[str], int]:
    """Look at a site. Return its faults, the questions that its search does not answer, and the number of pages."""
    missed = []
    with served(out) as root, browser() as chromium:
        sight = Look(out, root, chromium)
        sight.all()
        for question in questions():
            found = sight.search(question.ask)
            if not set(found) & set(question.pages):
                missed.append(f"{question.ask!r} finds {', '.join(found) or 'nothing'}")
    return sight.faults, missed, len(sight.names)
