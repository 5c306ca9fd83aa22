"""The configuration of Sphinx."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import click
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import tfkit
from tfkit.cli.main import main

HERE = Path(__file__).parent
project = "tfkit"
release = tfkit.__version__
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx_design", "sphinx_click", "sphinx_llm.txt",
]  # fmt: skip
html_theme = "furo"
html_title = "tfkit"
html_static_path = [str(HERE / "site.css")]
html_css_files = ["site.css"]
html_favicon = str(HERE / "icon.svg")
html_search_scorer = str(HERE / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
default_role = "literal"
html_show_sourcelink = False
smartquotes = False
myst_heading_anchors = 6
myst_enable_extensions = ["html_image", "colon_fence"]
myst_url_schemes = {"http": None, "https": None, "mailto": None, "copy": "{{path}}"}
autodoc_typehints = "description"
autodoc_member_order = "bysource"
llms_txt_description = "Transformers from recipes: one YAML file describes, builds, trains and runs any of them."
llms_txt_suffix_mode = "replace"
llms_txt_nested_enabled = False
llms_txt_full_build = True
llms_txt_suppress_unknown_node_warnings = ["abbreviation", "meta"]  # a star in a signature, keywords


def code(*call: Any) -> None:
    """Write `code` in a docstring as reStructuredText."""
    lines: list[str] = call[-1]
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``\\ ", "\n".join(lines))
    lines[:] = re.sub(r"\\ (?!\w)", "", text).split("\n")


def setup(app: Sphinx) -> None:
    """Read docstrings as they are written, and show CSV as text."""
    app.connect("autodoc-process-docstring", code)
    app.add_lexer("csv", TextLexer)


def __getattr__(name: str) -> Any:
    """Return a command by the name that sphinx-click imports."""
    if not name.startswith("command_"):
        raise AttributeError(name)
    return main.get_command(click.Context(main), name.removeprefix("command_"))
