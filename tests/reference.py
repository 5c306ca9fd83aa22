"""The reference in recipes/reference, and the tables of declarations in tfkit/components/README.md, from the code.

`python -m tests.reference` writes all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import click
from pydantic import BaseModel

from tfkit.cli.main import COMMANDS, EXAMPLES, EXIT, GROUPS, main
from tfkit.core.bounds import BOUNDS
from tfkit.core.inputs import CAPABILITIES
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.slots import ObjectiveFacts, default_metrics
from tfkit.recipe import keys as grammar
from tfkit.recipe.rules import PAIRS, RULES, SECTION_PAIRS, CapabilityRule, pairs
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.text.node import inline
from tfkit.reports.declarations import HEADS, tables
from tfkit.reports.formats import markdown_row
from tfkit.reports.parts import SLOTS, TOPOLOGIES, options_of, part_data, slot_data
from tfkit.reports.parts_table import WORKS
from tfkit.studies.settings import Study

from .documents import ROOT, rewrite
from .interop import proofs

FOLDER = ROOT / "recipes" / "reference"
TITLES = {"keys": "Every key", "parts": "Every part", "commands": "Every command", "rules": "What can be combined"}
TITLES |= {"families": proofs.TITLE}
PARTS = ROOT / "tfkit" / "components" / "README.md"
GRAMMAR = {
    "top": "The sections of a recipe",
    "model": "`model:`, beside the keys of a stack",
    "stack": "The keys of a stack: in `model:`, or in its `encoder:` and `decoder:`",
    "layer": "`layer:`, and each kind in `layers:`",
}
WRITTEN = "`python -m tests.reference` writes this page from the code."
SECTIONS: dict[str, type[BaseModel]] = {"data": Data, "train": Train, "generate": Generate, "study": Study}


def keys() -> str:
    """All tables of keys."""
    tables = [
        _table(title, ("key", "meaning"), ((key.name, key.sentence) for key in grammar.GROUPS[group].values()))
        for group, title in GRAMMAR.items()
    ]
    tables += [
        _table(f"`{name}:`", ("key", "value", "default", "meaning"), _options(kind)) for name, kind in SECTIONS.items()
    ]
    objectives = ", ".join(f"`{name}`" for name in REGISTRY.names("objective"))
    bounds = _table("The largest values", ("most", "of"), ((f"{bound.most:,}", bound.counts) for bound in BOUNDS))
    return "\n\n".join(
        [*tables, bounds, f"`objective:` is one of {objectives}; `tfkit parts objective NAME` lists its options."]
    )


def declared() -> str:
    """What classes may declare."""
    found = tables()
    titles = {"declarations": "Declarations", "capabilities": "Capabilities", "options": "Options"}
    titles |= {"hooks": "Hooks of `multi_head`"}
    code = {name: range(1, 3) if name == "declarations" else range(1) for name in found}
    return "\n\n".join(
        _table(titles[name], HEADS[name], (_coded(row, code[name]) for row in rows), 0, "###")
        for name, rows in found.items()
    )


def _coded(row: Sequence[str], places: Sequence[int]) -> list[str]:
    return [f"`{cell}`" if place in places and cell else cell for place, cell in enumerate(row)]


def _options(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for option in options_of(section):
        default = "required" if option["required"] else f"`{inline(option['default'])}`"
        yield option["name"], option["type"], default, option["meaning"]


def _table(title: str, heads: Sequence[str], cells: object, coded: int = 1, level: str = "##") -> str:
    lines = [_row(heads), "|".join(["", *["---"] * len(heads), ""])]
    lines += [_row(_coded(row, range(coded))) for row in cells]  # type: ignore[attr-defined]
    return f"{level} {title}\n\n" * bool(title) + "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return markdown_row(cell.replace("|", "\\|") for cell in cells)


def _plain(text: str) -> str:
    """A sentence of the code in Markdown: nothing outside of its code is emphasis, a tag or a link."""
    signs = r"([*$]|<(?=[A-Za-z/!?])|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_]))"
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(piece if place % 2 else re.sub(signs, r"\\\1", piece) for place, piece in enumerate(pieces))


def parts() -> str:
    """Every shipped part of every slot."""
    shown = {slot: [part for part in slot_data(slot)["parts"] if not part["own"]] for slot in CATALOGUES}
    cells = (
        (slot, SLOTS[slot].purpose, f"`{SLOTS[slot].written}`", ", ".join(_anchor(slot, part) for part in named))
        for slot, named in shown.items()
    )
    texts = [_table("", ("slot", "purpose", "in a recipe", "parts"), cells)]
    for slot, named in shown.items():
        texts += [f"## {slot}", *(_part(REGISTRY.get(slot, str(part["name"]))) for part in named)]
    return "\n\n".join(texts)


def _anchor(slot: str, part: Any) -> str:
    return f"[{part['name']}](#{slot}-{part['name']})"


def _part(part: Any) -> str:
    data: Any = part_data(part)
    texts = [f"### {data['slot']} {data['name']}", *map(_paragraph, inspect.cleandoc(data["doc"]).split("\n\n"))]
    rows = [
        (row["name"], row["type"], "required" if row["required"] else f"`{inline(row['default'])}`", row["meaning"])
        for row in data["fields"]
    ]
    if rows:
        texts.append(_table("", ("option", "value", "default", "meaning"), rows))
    lists = {
        "validated against each other or the model": data["checked"],
        "it can": [name for name, able in data["capabilities"].items() if able],
        "it cannot": [name for name, able in data["capabilities"].items() if not able],
        "required of other parts in its layer": data["asks"],
        "every call of the model must pass": data["needs"],
    }
    found = [f"- {title}: {', '.join(f'`{name}`' for name in names)}" for title, names in lists.items() if names]
    return "\n\n".join([*texts, "\n".join([*found, f"- file: [{data['file']}](../../{data['file']})"])])


def _paragraph(text: str) -> str:
    """A paragraph of a docstring; what is laid out in columns keeps its lines."""
    lines = text.splitlines()
    if any("  " in line.strip() or line.lstrip().startswith("|") for line in lines):
        return f"```text\n{text}\n```"
    return _plain(text if any(line.startswith("- ") for line in lines) else " ".join(lines))


def commands() -> str:
    """Every command, by group."""
    parent = click.Context(main, info_name="tfkit", terminal_width=200)
    texts = [" ".join(EXIT.replace("\b", "").split())]
    for group in GROUPS:
        texts.append(f"## {group}")
        texts += [_command(name, parent) for name, (_, its, _) in COMMANDS.items() if its == group]
    return "\n\n".join(texts)


def _command(name: str, parent: click.Context) -> str:
    command = main.get_command(parent, name)
    assert command is not None
    ctx = click.Context(command, info_name=name, parent=parent, terminal_width=200)
    help_ = inspect.cleandoc(command.help or "").split("\n\n")
    texts = [f"### tfkit {name}", *(_help(text) for text in help_), f"```text\n{command.get_usage(ctx)}\n```"]
    records = [record for param in command.params if (record := param.get_help_record(ctx)) is not None]
    if records:
        texts.append(_table("", ("option", "meaning"), ((option, _plain(text)) for option, text in records if text)))
    return "\n\n".join([*texts, "\n".join(["```sh", *(f"tfkit {line}" for line in EXAMPLES[name]), "```"])])


def _help(text: str) -> str:
    return (
        f"```text\n{text.removeprefix(chr(8)).strip()}\n```"
        if text.startswith("\b")
        else _plain(" ".join(text.split()))
    )


def rules() -> str:
    """What the parts require of each other: the rules, the pairs that they decide, and what objectives train."""
    heads = ("required by", "capability", "of", "meaning", "parts without it")
    texts = [_table("Rules", heads, map(_rule, RULES), 0)]
    for slot, other in (*PAIRS, *SECTION_PAIRS):
        notes: dict[str, int] = {}
        rows: dict[str, list[str]] = {}
        for name, _, why in pairs(slot, other, brief=True):
            mark = WORKS if why is None else str(notes.setdefault(why, len(notes) + 1))
            rows.setdefault(name, [name]).append(mark)
        texts.append(_table(f"{slot} and {other}", ("", *sorted(REGISTRY.load(other))), rows.values()))
        texts += ["\n".join(f"{number}. {_plain(why)}" for why, number in notes.items())] * bool(notes)
    heads = ("objective", "model", "head", "further heads", "fields of a corpus", "metrics by default")
    return "\n\n".join([*texts, _table("objective and model", heads, map(_objective, REGISTRY.names("objective")))])


def _rule(rule: CapabilityRule) -> tuple[str, ...]:
    requirers = REGISTRY.load(rule.requirer) if rule.requirer in CATALOGUES else {}
    asking = [name for name, part in sorted(requirers.items()) if rule.applies(part)]
    lacking = [
        f"{slot} {_code(names)}"
        for slot in rule.slots
        if (names := [name for name, part in sorted(REGISTRY.load(slot).items()) if rule.refuses(part)])
    ]
    who = f"{rule.requirer} {_code(asking)}" if asking else rule.requirer
    return who, f"`{rule.capability}`", ", ".join(rule.slots), CAPABILITIES[rule.capability], "; ".join(lacking)


def _objective(name: str) -> tuple[str, ...]:
    part = REGISTRY.get("objective", name)
    assert issubclass(part, ObjectiveFacts)
    models = [TOPOLOGIES[one] for one in (part.reads, *sorted(part.also)) if one is not None]
    further = [f"{head}: {' or '.join(kinds)}" for head, kinds in part.beside.items()]
    lists = (models, part.heads, further, part.rows_type.fields, default_metrics(part))
    return name, *map(_code, lists)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@cache
def page(file: str) -> str:
    """The text of a page of the reference."""
    name, _, kind = file.partition(".")
    if name == "families":
        rows = proofs.rows()
        body = proofs.html(rows) if kind == "html" else proofs.markdown(rows)
    else:
        body = {"keys": keys, "parts": parts, "commands": commands, "rules": rules}[name]()
    return body if kind == "html" else f"# {TITLES[name]}\n\n{WRITTEN}\n\n{body}\n"


PAGES = (*(f"{name}.md" for name in TITLES), "families.html")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file in PAGES:
        (FOLDER / file).write_text(page(file), encoding="utf-8")
    rewrite(PARTS, "declarations", declared())
