"""Output of `tfkit look`: tables of attention heads and a self-contained HTML page."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from einops import reduce
from torch import Tensor
from torch.nn.functional import pad

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import UsageError
from tfkit.core.figures import Console
from tfkit.core.output import printable
from tfkit.generation.attention import AttentionMaps
from tfkit.reports.page import Page, PageSection
from tfkit.reports.parts_table import exact

TEMPLATE, SCRIPT = (Path(__file__).with_name(f"attention.{kind}") for kind in ("html", "js"))
DATA = "/* data */"  # its place in the template
LARGEST = 3_000_000  # maximum number of map cells per page, each of one byte before base64 encoding
SHOWN = 10  # maximum number of heads in a table
STEPS = 255  # number of quantization levels between 0 and the maximum of a map


def as_data(maps: AttentionMaps, token: str | None = None) -> JsonObject:
    """Return the analysis of a text as data: heads, most attended keys of each query, token probabilities."""
    return {
        "heads": [asdict(one) for one in maps.heads()],
        "texts": {each.place: {"queries": each.queries, "keys": each.keys} for each in maps.maps},
        "predicts": maps.predicts,
        "probabilities": [asdict(one) for one in maps.probabilities],
        "without_weights": list(maps.left_out),
    } | ({} if token is None else {"token": token, "attended": _attended(maps, token)})


def print_heads(maps: AttentionMaps, console: Console) -> None:
    """Print the most focused heads and the token probabilities."""
    heads = maps.heads()
    rows = [
        [one.place, str(one.head), f"{one.entropy:.2f}", _figure(one.distance, 1), _figure(one.induction, 3)]
        for one in heads[:SHOWN]
    ]
    _table(console, ["attention", "head", "entropy", "distance", "induction"], rows)
    if len(heads) > SHOWN:
        exact(console, f"the {SHOWN} of {len(heads)} heads with the lowest entropy (bits)")
    for place in maps.left_out:
        exact(console, f"{place} has no attention weights")
    if maps.probabilities:
        context = "the tokens before it" if maps.predicts == "next" else "the whole text, itself included"
        exact(console, f"\nprobability of each token, given {context}:")
        exact(console, " ".join(f"{printable(one.token)} {one.probability:.3f}" for one in maps.probabilities))


def print_head(maps: AttentionMaps, named: str, console: Console) -> None:
    """Print the most attended keys of each query of the head `PLACE:NUMBER`.

    Raise UsageError if there is no such head.
    """
    place, _, number = named.rpartition(":")
    attention = maps.map(place or named)
    if not number.isdecimal() or int(number) >= len(attention.weights):
        last = len(attention.weights) - 1
        raise UsageError(f"--head must be {attention.place}:0 to {attention.place}:{last}, got {named}")
    follows = maps.predicts == "next" and attention.place.startswith("decoder")
    # prediction target of each query
    written = [*(one.token for one in maps.probabilities), ""][: len(attention.queries)]
    rows = []
    for place_of_query, weights in enumerate(attention.weights[int(number)]):
        best = weights.topk(min(2, len(attention.keys)))
        keys = [f"{attention.keys[int(key)]} {float(weight):.2f}" for weight, key in zip(*best, strict=True)]
        rows.append([attention.queries[place_of_query], *written[place_of_query:][:follows], *keys])
    names = ["query", *["next"] * follows, "most", "second"]
    _table(console, names[: len(rows[0])], rows, figures=False)


def print_token(maps: AttentionMaps, token: str, console: Console) -> None:
    """For each head, print the token other than the query that it attends to most, sorted by weight.

    Raise UsageError if the token is unknown.
    """
    attended = _attended(maps, token)
    rows = [
        [one["place"], str(one["head"]), one["key"], f"{one['weight']:.3f}", f"{one['special']:.3f}"]
        for one in attended[:SHOWN]
    ]
    _table(console, ["attention", "head", "to", "weight", "on special tokens"], rows)


def _attended(maps: AttentionMaps, token: str) -> list[JsonObject]:
    """Return the top key of the first `token` in each head, ignoring special tokens and the token itself."""
    attended = []
    for each in maps.maps:
        place = _place(token, each.queries)
        if place is None:
            continue
        special = torch.tensor([key in maps.special for key in each.keys])
        left_out = special.clone()
        left_out[[] if each.is_cross else [place]] = True
        for head, weights in enumerate(each.weights[:, place]):
            others = weights.masked_fill(left_out, 0.0)
            key, on_special = int(others.argmax()), float(weights[special].sum())
            one = {"place": each.place, "head": head, "key": each.keys[key], "weight": float(others[key])}
            attended.append(one | {"special": on_special})
    if not attended:
        tokens = dict.fromkeys(word for each in maps.maps for word in each.queries)
        raise UsageError(f"'{token}' is not a token of the text; its tokens are {', '.join(tokens)}")
    return sorted((one for one in attended if one["weight"]), key=lambda one: -one["weight"])


def _place(token: str, tokens: Sequence[str]) -> int | None:
    """Return the index of the first occurrence of a token, with or without its word-start marker."""
    for words in (tokens, [word.lstrip("\u2581 ") for word in tokens]):
        if token in words:
            return words.index(token)
    return None


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = True) -> None:
    """Print a table in which figures are right-aligned."""
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        parts = [
            cell.rjust(width) if figures and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        exact(console, "  ".join(parts).rstrip())


def page(maps: AttentionMaps, title: str) -> str:
    """Render a page with all attention maps."""
    return Page(title, (), [section(maps, "Maps")]).html()


def section(maps: AttentionMaps, title: str, largest: int | None = None) -> PageSection:
    """Return the section with all attention maps, max-pooled until they have at most `largest` (LARGEST) cells."""
    cells, block = sum(each.weights.numel() for each in maps.maps), 1
    while cells / block**2 > (largest or LARGEST):
        block *= 2
    scores = maps.heads()
    first = [one for one in scores if one.place.endswith(".cross_attention")] or scores
    data = {
        "first": asdict(first[0]) if first else None,
        "block": block,
        "maps": [
            {
                "place": each.place,
                "queries": [printable(token) for token in each.queries],
                "keys": [printable(token) for token in each.keys],
                "heads": [_packed(weights, block) for weights in each.weights],
            }
            for each in maps.maps
        ],
        "scores": [asdict(one) for one in scores],
        "without": maps.left_out,
        "predicts": maps.predicts,
        "probabilities": [[printable(one.token), one.probability] for one in maps.probabilities],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    markup = TEMPLATE.read_text(encoding="utf-8").replace(DATA, text)
    script = SCRIPT.read_text(encoding="utf-8")
    return PageSection(title, pictures=[lambda: markup], script=script, data={"attention": as_data(maps)})


def _packed(weights: Tensor, block: int) -> dict[str, object]:
    """Encode a map [query key] as base64 bytes, scaled so that the maximum is 255, after max-pooling it by `block`."""
    bottom, right = (-size % block for size in weights.shape)
    padded = pad(weights, (0, right, 0, bottom))
    cells = reduce(padded, "(query a) (key b) -> query key", "max", a=block, b=block)
    most = float(cells.max())
    parts = (cells / max(most, 1e-30) * STEPS).round().byte().contiguous()
    return {"most": most, "bytes": base64.b64encode(parts.numpy().tobytes()).decode("ascii")}
