"""The pages that no Markdown file holds: a page of each model, the gallery, the commands, the API and the menus."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml
from click.testing import CliRunner

import tfkit
from tfkit.cli.main import COMMANDS, main
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import load_recipe
from tfkit.reports.svg import svg_of

from ..interop.counts import COUNTS
from ..interop.proofs import Proof, heading, proofs, size
from .pages import escaped, fenced

MODELS = "recipes/models"
SUBJECTS = Path(__file__).with_name("subjects.yaml")
HEADER = re.compile(r"\A(?:#.*\n)+")
MENUS = {  # caption of the menu: pages, by their paths in the repository or by patterns
    "Learn": ("recipes/README.md", "recipes/guides/README.md"),
    "Look up": ("recipes/reference/README.md", "recipes/tasks/README.md", "commands/README.md", "api.md", "AGENTS.md"),
    "Evidence": ("recipes/studies/README.md", "recipes/models/README.md"),
    "Inside": ("tfkit/README.md", "tfkit/*/README.md", "tests/README.md", "CHANGELOG.md"),
}
FOLDERS = {  # pages that list a folder, with their first words
    "recipes/guides": ("Guides", "Step by step: what each page reaches, its commands run by the tests."),
    "recipes/reference": ("Reference", "Every key, part, family and rule, written from the code."),
}


def models(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and text of the gallery and of each model's page; write the drawings to `folder`."""
    recipes = {name: path for name, path in shipped_recipes().items() if path.parent.name == "models"}
    held = proofs()
    for name, path in sorted(recipes.items()):
        drawing = folder / MODELS / f"{name}.drawing.svg"
        drawing.parent.mkdir(parents=True, exist_ok=True)
        drawing.write_text(svg_of(load_recipe(name).blueprint()), encoding="utf-8")
        yield f"{MODELS}/{name}.md", _model(name, path.read_text(encoding="utf-8"), held[name])
    yield f"{MODELS}/README.md", _gallery(recipes, {name: held[name] for name in sorted(held.keys() - recipes.keys())})


def _model(name: str, recipe: str, proof: Proof) -> str:
    head = HEADER.match(recipe)
    words = [line.removeprefix("#").strip() for line in head[0].splitlines()] if head else []
    published = COUNTS[name]
    lines = ["---", "orphan: true", "---", f"# {name}", "", *(f"- {escaped(line)}" for line in words), ""]
    lines += ["## Drawing", "", f"[![The layers of {name}]({name}.drawing.svg)]({name}.drawing.svg)", ""]
    lines += ["## Proven against", "", _proven(proof), ""]
    lines += ["## Recipe", "", *fenced(recipe.removeprefix(head[0] if head else ""), "yaml"), ""]
    says = f"{published.source} says {published.published}" if published.published else published.source
    why = f" ({published.why})" if published.why else ""
    lines += ["## Counts", "", f"{published.parameters:,} parameters; {escaped(says + why)}.", ""]
    return "\n".join([*lines, *fenced(_printed("show", name), "text"), ""])


def _proven(proof: Proof) -> str:
    against = f"transformers' {proof.against}" if proof.tried else proof.against
    tried = f", both with the same random weights ({proof.tried} of the family)" if proof.tried else ""
    where = f"[{escaped(proof.file)}](../../{proof.file}); [how](../../tfkit/interop/README.md)"
    return f"The outputs are compared with those of {against}{tried}: {where}."


def _printed(*words: str) -> str:
    os.environ["COLUMNS"] = "100"
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def _gallery(recipes: Mapping[str, Path], others: Mapping[str, Proof]) -> str:
    lines = ["# Gallery", "", f"All {len(recipes)} published models that ship, with their drawings and proofs.", ""]
    lines += ["[The gallery as one page](gallery.html) can be searched, filtered and compared two at a time.", ""]
    lines += ["`````{grid} 1 2 3 4", ":gutter: 2", ""]
    for name, path in sorted(recipes.items()):
        page = heading(path.read_text(encoding="utf-8"))
        about = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines += ["````{grid-item-card}", "", f"[**{name}**]({name}.md) {size(page.parameters)}", ""]
        lines += [f"```{{image}} {name}.drawing.svg", f":alt: drawing of {name}", ":loading: lazy", "```", ""]
        lines += [escaped(about), "````", ""]
    lines += ["`````", "", "## Families without a recipe", "", "Import and export know these too.", ""]
    lines += ["| family | what it is | proven against |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {escaped(proof.about)} | [{proof.against}](../../{proof.file}), {proof.tried} |"
        for name, proof in others.items()
    ]
    return "\n".join([*lines, ""])


def commands() -> Iterator[tuple[str, str]]:
    """Yield a page of each command, by sphinx-click, and one that lists them."""
    for name in COMMANDS:
        yield f"commands/{name}.rst", f".. click:: tests.site.conf:command_{name}\n   :prog: tfkit {name}\n"
    lines = [f"- [tfkit {name}]({name}.rst): {escaped(about)}" for name, (_, _, about) in COMMANDS.items()]
    yield "commands/README.md", "\n".join(["# Commands", "", *lines, "", *_menu("", COMMANDS)])


def api() -> str:
    """Return the page of the public names, by their docstrings."""
    lines = ["# Python API", "", "The public names of `import tfkit`, by their docstrings.", "", "```{eval-rst}"]
    lines.append(".. py:module:: tfkit")
    for name in (name for name in tfkit.__all__ if not name.startswith("__")):
        value = getattr(tfkit, name)
        exception = isinstance(value, type) and issubclass(value, Exception)
        kind = "exception" if exception else "class" if isinstance(value, type) else "function"
        lines += [
            "",
            f".. auto{kind}:: tfkit.{name}",
            *["   :members:", "   :exclude-members: Config, model_config"] * (kind == "class"),
        ]
    return "\n".join([*lines, "```", ""])


def folders(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the README of a folder of pages, written if it is missing, with a menu of them."""
    for folder, (title, about) in FOLDERS.items():
        pages = sorted(path for path in texts if path.startswith(f"{folder}/") and not path.endswith("/README.md"))
        names = [path.removeprefix(f"{folder}/") for path in pages]
        lines = [f"- [{_title(texts[path])}]({name})" for path, name in zip(pages, names, strict=True)]
        written = "\n".join([f"# {title}", "", about, "", *lines, ""])
        menu = _menu("", [name.removesuffix(".md") for name in names])
        if pages:
            yield f"{folder}/README.md", "\n".join([texts.get(f"{folder}/README.md", written), *menu])


def subjects(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each page that subjects.yaml knows, with its subjects in the index and for the search."""
    for path, named in yaml.safe_load(SUBJECTS.read_text(encoding="utf-8")).items():
        main = ", ".join(f"! {one.strip()}" for one in named.split(","))
        words = ", ".join(dict.fromkeys(re.findall(r"\w+", named)))
        if path.endswith(".rst") and path in texts:
            yield path, f".. meta::\n   :keywords: {words}\n\n.. index:: {main}\n\n{texts[path]}"
        elif path in texts:
            front = f"---\nmyst:\n  html_meta:\n    keywords: {words}\n---\n"
            index = rf"\g<0>\n```{{index}} {main}\n```\n"
            yield path, front + re.sub("^# .*\n", index, texts[path], count=1, flags=re.MULTILINE)


def _title(text: str) -> str:
    return next((line[2:] for line in text.splitlines() if line.startswith("# ")), "")


def menus(texts: Mapping[str, str]) -> str:
    """Return the menus that the start page ends with."""
    lines: list[str] = []
    for caption, patterns in MENUS.items():
        pages = [page for pattern in patterns for page in _found(pattern, texts)]
        names = [page.removesuffix(".md").replace("README", "index") for page in dict.fromkeys(pages)]
        lines += _menu(caption, names)
    return "\n".join(["", *lines, ""])


def _found(pattern: str, texts: Mapping[str, str]) -> list[str]:
    return sorted(page for page in texts if re.fullmatch(pattern.replace("*", r"[^/]+"), page))


def _menu(caption: str, pages: Iterable[str]) -> list[str]:
    options = [":hidden:", *[f":caption: {caption}"] * bool(caption)]
    return ["```{toctree}", *options, "", *pages, "```", ""]
