"""Ways to break a recipe: its keys, values and structure as a tree, then its bytes as a text."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache
from pathlib import PurePosixPath
from random import Random
from typing import Any

from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.text.source import read

from .drawn import drawn, part
from .tree import Pairs, Raw, Site, flow, paths, planted, sites

# ------------------------------------------------------------------------------------------------------------ material

# fmt: off
NUMBERS = (
    0, -1, 1, 2, 3, 5, 7, 8, 12, 64, 1000, 10**6, 10**6 + 1, 2**28, 2**31 - 1, 2**31, 2**53, 2**63, 2**70, -(2**63),
    0.0, -0.0, 0.5, 1.0, 1.5, -1e-9, 1e-30, 5e-324, 1e15, 1e30, 1e38, 1e39, 1e308, -1e308,
)
WORDS = (
    "", " ", "none", "None", "true", "yes", "*", "+", "local*9999", "local*10001", "a+b*4", "local+local", "[a]",
    "layer", "type", "per_layer", "sqrt_d_model", "1/sqrt_d_model", "tokenizer", "encoder", "decoder", "output", "é",
    "𝒳", "\u202e", "a.b", "a: b", "x\ny", "\x85", "__class__", "__init__", "forward", "training", "self", "../..", "/",
    "~", "a" * 300, "{slot}", "{0}", "%s", "'", '"', "\\", "#", "cpu", "cuda:99", "best", "1_0", "0x10",
)
FRAGMENTS = (
    "", "null", "~", "NULL", "True", "no", "On", ".nan", "-.inf", ".Inf", "1_000", "0o17", "0x1F", "017", "0b1", "1e",
    "1e400", "1e-400", "9" * 120, "2026-01-01", "12:30:45", "2001-12-14t21:59:43.10-05:00", "!!int 3", "!!str x",
    "!!python/object/apply:os.getcwd []", "!x {}", "!!binary aGk=", "&a 1", "*a", "*missing", "&a [*a]", "&a {b: *a}",
    "|\n  text\n  more", ">-\n  folded", '"\\0"', '"\\ud800"', '"\\x"', '"open', "'open", "[1, 2", "{a: 1", "]", "}",
    "@", "`", "%", "? a", "- a", "- - - a", "a: b", "a:", ":", ": :", "{}", "[]", "[[]]", "[{}]", "{[]: 1}", "{{}: 1}",
    "# c", "{<<: 1}", "{<<: {type: mlp}}", "<<", "{per_layer: []}", "{per_layer: none}", "{per_layer: [1], type: mlp}",
    "--- ", "...", "{type: none}", "{type: [mlp]}", "{type: {type: mlp}}", "{type: 1}", "{type: true}", "1.", ".5",
    "+3", "-0", "+.5e+3",
)
# Deep, wide, long: taken seldom.
HEAVY = (
    "[" * 10_000, "[" * 70 + "]" * 70, "{a: " * 10_000, "{a: " * 60 + "1" + "}" * 60, "- " * 5_000, "(" * 100_000,
    "[" + "1, " * 99_000 + "1]", "[" + "local, " * 50_000 + "local]", "{per_layer: [" + "1, " * 30_000 + "1]}",
    "{" + ", ".join(f"k{number}: 0" for number in range(100_000)) + "}", "x" * 900_000, '"' + "y" * 500_000 + '"',
    "{" + ", ".join(f"k{number}: {{}}" for number in range(20_000)) + "}", "{? " * 3_000, "[" + "[a], " * 20_000 + "]",
    "{per_layer: [" + ", ".join(map(str, range(1, 20_000))) + "]}", "[" + "attention, " * 5_000 + "feedforward]",
    "[&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b], [*c,*c,*c,*c,*c,*c,*c,*c]]",
)
ODD_KEYS = (
    "", " ", "é", "🙂", "a.b", "model.d_model", "type", "none", "self", "class", "__proto__", "k" * 5_000, "a b", "\t",
    Raw("<<"), Raw("? x"), Raw("!!str k"), Raw("true"), Raw("1"), Raw("1.5"), Raw("no"), Raw("[a]"), Raw("{a: b}"),
    Raw("&k k"), Raw("*k"), Raw("~"), Raw("null"), Raw(""), Raw('"\\0"'), Raw("="),
)
PATTERNS = (
    [], [[]], ["local"], ["local*3", ["global"]], ["local", "global"], [["local"], ["global"]], "local", ["nobody"],
    ["local*0"], ["local*9999", "global"], ["local*9999", ["global"]], ["local*10000", "global*10000"], [1],
    [["local*5", "global"], "first"], ["local+global"], ["local+"], ["first", ["local", "global*2"], "first"], {},
    [["local"] * 3, "local*999999999999999999999999999999"], ["local*3"], [None], [["local", ["global"]]],
)
BASES = (
    "mutant.yaml", "circle.yaml", "./mutant.yaml", "missing.yaml", "", ".", "..", "/", "gpt2", "gpt3", "bert-base",
    "gpt2.yaml", "gemma-2-2b.yaml", "folder.yaml", "bytes.yaml", "a\0b.yaml", "x" * 300 + ".yaml", ["gpt2"], None, 3,
)
SETS = (
    "", "=", "a", "=1", "model", "model=", "model=1", "model=none", "model={}", "model..x=1", ".=1", "model.=1",
    "model.layer.attention[0]=1", "extends=gpt2", "variants={}", "model.num_layers=1000000", "model.num_layers=[1, 2]",
    "model.layer=mlp", "model.layer.norm=none", "model.pattern=[local*9999]", "model.layers.local={}", "tfkit=2",
    "model.d_model=1e3", "model.d_model=1_6", "model.d_model=012", "model.type=encoder", "model.type=decoder",
    "model.layer.attention={num_heads: {per_layer: [1, 2]}}", "model.layer.shared=true", "model.head=none", "=model=1",
    "model.embedding=none", "model.memory={d_model: 8}", "model.layer.feedforward=a: b", "model.x=[1", "model.x='a",
    "model.x=a, b", "model.x=&a 1", "model.x=*a", "model.x=!!int 1", "model.x=\t1", "model.x=1 # c", "\0=1", "a=\0",
    "é=é", "model.position={type: rotary}", "model.mask=[causal, window]", "model.encoder=none", "model.decoder=3",
    "train=adam", "model.init={std: 1e308}", "model.head.tied=true", "model.final_dropout=0.999999", "imports=os",
    "objective=causal_lm", "model." + "x." * 500 + "y=1", "x" * 100_000 + "=1",
)
# fmt: on


@cache
def _shipped(name: str) -> Pairs:
    tree: Pairs = planted(read(shipped_recipes()[name])[0].plain())
    return tree


def seed(random: Random) -> Pairs:
    """The tree of a shipped recipe or of a drawn one, not to be changed."""
    shipped = random.choice(sorted(shipped_recipes()))
    return _shipped(shipped) if random.random() < 0.4 else drawn(random, learning=False)


@cache
def known_keys() -> list[str]:
    """Every key of shipped recipes, and every option of every part."""
    parts = [part for slot in CATALOGUES for part in REGISTRY.load(slot).values()]
    said = [path.rpartition(".")[2] for name in shipped_recipes() for path in paths(_shipped(name))]
    return list(dict.fromkeys([*said, *(name for part in parts for name in part.Config.model_fields)]))


# ----------------------------------------------------------------------------------------------------- trees, in place


def _site(tree: Pairs, random: Random, *, key: bool = False) -> Site:
    """Any place; with `key`, one in a mapping."""
    return random.choice([site for site in sites(tree) if not key or isinstance(site.owner, Pairs)])


def rename_key(tree: Pairs, random: Random) -> None:
    owner, index = _site(tree, random, key=True)
    word = str(owner[index][0])
    at = random.randrange(len(word) + 1)
    typo = word[:at] + random.choice(("", "e", "_", "-")) + word[at + random.choice((0, 1)) :]
    owner[index] = [random.choice((typo, random.choice(known_keys()), random.choice(ODD_KEYS))), owner[index][1]]


def add_key(tree: Pairs, random: Random) -> None:
    owner, index = _site(tree, random, key=True)
    owner.insert(index, [random.choice(known_keys()), value_of_any_kind(random)])


def drop(tree: Pairs, random: Random) -> None:
    site = _site(tree, random)
    del site.owner[site.index]


def duplicate(tree: Pairs, random: Random) -> None:
    site = _site(tree, random)
    site.owner.append(deepcopy(site.owner[site.index]))


def replace_value(tree: Pairs, random: Random) -> None:
    _site(tree, random).value = value_of_any_kind(random)


def value_of_any_kind(random: Random) -> Any:
    kind = random.randrange(8)
    if kind == 0:
        return Raw(random.choice(HEAVY if random.random() < 0.03 else FRAGMENTS))
    if kind == 1:
        return part(random.choice(sorted(CATALOGUES)), random)
    if kind == 2:
        return deepcopy(_site(seed(random), random).value)
    if kind == 3:
        return [value_of_any_kind(random) for _ in range(random.randrange(3))]
    return random.choice((NUMBERS, WORDS, (True, False, None), NUMBERS[:12])[kind - 4])


def swap(tree: Pairs, random: Random) -> None:
    one, other = _site(tree, random), _site(tree, random)
    one.value, other.value = deepcopy(other.value), deepcopy(one.value)


def wrap(tree: Pairs, random: Random) -> None:
    site = _site(tree, random)
    value = site.value
    wraps: tuple[Any, ...] = ([value], [value, deepcopy(value)], Pairs([["type", value]]), Pairs([["x", value]]))
    wraps += (Pairs([["per_layer", [value] * random.choice((1, 2, 3, 4, 12))]]), Pairs([["per_layer", value]]))
    site.value = random.choice(wraps)


def unwrap(tree: Pairs, random: Random) -> None:
    """The content of a mapping or list takes its place."""
    holders = [site for site in sites(tree) if isinstance(site.value, list) and site.value]
    if holders:
        site = random.choice(holders)
        site.value = _site(site.value, random).value


def replace_part(tree: Pairs, random: Random) -> None:
    """Another part, of the same slot where the key is that of one."""
    keyed = [site for site in sites(tree) if isinstance(site.owner, Pairs)]
    site = random.choice([site for site in keyed if _slot(site.owner[site.index][0])] or keyed)
    site.value = part(_slot(site.owner[site.index][0]) or "norm", random)


def _slot(key: Any) -> str | None:
    word = str(key).removeprefix("cross_").removeprefix("qk_")
    names = {"tokenizer", "corpus", *CATALOGUES} - {"model"}
    found = next((name for name in (word, word.rpartition("_")[2]) if name in names), None)
    return "corpus" if key in ("train", "valid", "test") else found


def tweak_number(tree: Pairs, random: Random) -> None:
    numbers = [site for site in sites(tree) if type(site.value) in (int, float)]
    if numbers:
        site = random.choice(numbers)
        x = site.value
        site.value = random.choice((x + 1, x - 1, -x, x * 2, x / 2, float(x), str(x), x * 10**6, x * 2**40))


def add_pattern(tree: Pairs, random: Random) -> None:
    model = next((value for key, value in tree if key == "model" and isinstance(value, Pairs)), tree)
    more: list[Any] = [["pattern", planted(deepcopy(random.choice(PATTERNS)))]]
    if random.random() < 0.7:
        slots = ("attention", "feedforward", "mask", "position", "norm", "residual")
        overlays = [Pairs([[slot, part(slot, random)]]) for slot in slots] + [Pairs(), Pairs([["shared", True]]), None]
        more += [["layers", Pairs([name, random.choice(overlays)] for name in ("local", "global", "first"))]]
    more += [["num_layers", random.choice((1, 2, 3, 6, 1000, 9_999, 10**4, None))]] if random.random() < 0.5 else []
    model[:] = [pair for pair in model if pair[0] not in [key for key, _ in more]] + more


def extend(tree: Pairs, random: Random) -> None:
    tree.append(["extends", deepcopy(random.choice(BASES))])


def add_variants(tree: Pairs, random: Random) -> None:
    entries = Pairs()
    for name in ("wide", random.choice(("deep", "a=b", "", "é", "wide"))):
        key = random.choice([*paths(tree), "model..x", "", "extends", "model[0]", *known_keys()])
        value = random.choice(([value_of_any_kind(random) for _ in range(3)], value_of_any_kind(random)))
        entries.append([name, Pairs([[key, value]]) if random.random() < 0.8 else value_of_any_kind(random)])
    tree.append(["variants", entries if random.random() < 0.9 else value_of_any_kind(random)])


def anchor(tree: Pairs, random: Random) -> None:
    """A node has an anchor, another is an alias of it or merges it."""
    first, second = (_site(tree, random) for _ in range(2))
    aliases = (Raw("*a"), Pairs([[Raw("<<"), Raw("*a")]]), Pairs([[Raw("<<"), [Raw("*a"), Raw("*a")]]]))
    named = Raw("&a " + flow(first.value))
    second.value = random.choice(aliases)
    first.value = named


TREE = (
    *(rename_key, add_key, drop, duplicate, replace_value, replace_value, swap, wrap, unwrap, replace_part),
    *(replace_part, replace_part, tweak_number, tweak_number, add_pattern, extend, add_variants, anchor),
)


def mutate(tree: Pairs, random: Random) -> None:
    """Break the tree in one way; an empty one stays empty."""
    if any(True for _ in sites(tree)):
        random.choice(TREE)(tree, random)


# --------------------------------------------------------------------------------------------------------------- bytes

# fmt: off
PIECES = (
    b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\xff", b"\xc3", b"\t", b"\r", b"\r\n", b"\n", b" ", b"\x85", b"\xe2\x80\xa8",
    b":", b"-", b"#", b"*", b"&", b"!", b"|", b">", b"%", b"@", b"'", b'"', b"{", b"}", b"[", b"]", b",", b"? ",
    b"<<: ", b"---\n", b"...\n", b"%YAML 1.1\n", b"\x1b[31m", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x7f",
    b" " * 70_000, b"\n" * 50_000, b"#" + b"x" * 300_000 + b"\n", b"- " * 2_000,
)
# fmt: on


def break_bytes(text: bytes, random: Random) -> bytes:
    """The text with one thing wrong in its bytes."""
    start, end = sorted(random.randrange(len(text) + 1) for _ in range(2))
    before, between, after = text[:start], text[start:end], text[end:]
    kind = random.randrange(10)
    if kind == 0:
        return random.choice((before, after, before + after, text + between, text + text))
    if kind < 3:
        return before + bytes([random.randrange(256)]) + text[start + kind - 1 :]
    if kind < 6:
        return before + random.choice(PIECES) + between + after
    if kind == 6:
        swaps = ((b"\n", b"\r\n"), (b"\n", b"\r"), (b"  ", b"\t"), (b": ", b":"), (b": ", b":\t"), (b"\n", b"\n\n"))
        return text.replace(*random.choice(swaps))
    if kind == 7:
        return text.decode(errors="replace").encode(random.choice(("utf-16", "utf-8-sig", "latin-1")), errors="replace")
    lines = text.split(b"\n")
    line = random.randrange(len(lines))
    lines[line] = b" " * random.randrange(5) + (lines[line] if kind == 8 else lines[line].lstrip())
    return b"\n".join(lines)


# ---------------------------------------------------------------------------------------------- overlays, Python's data


def setting(tree: Pairs, random: Random) -> str:
    """A `--set`, right or wrong."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(SETS)
    keys = list(paths(tree)) or ["model"]
    key = random.choice(keys) if kind < 3 else f"{random.choice(keys)}.{random.choice(known_keys())}"
    text = f"{key}={flow(value_of_any_kind(random))}"
    return text if random.random() < 0.9 else break_bytes(text.encode(), random).decode(errors="replace")


def odd_python(random: Random) -> Any:
    """Values that only Python has."""
    circle: dict[str, Any] = {}
    circle["again"] = circle
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    odd = (object(), {1: 2}, {None: 1}, {(): 1}, {1, 2}, b"bytes", math.nan, math.inf, 1j, PurePosixPath("a"), (1, 2))
    more = (circle, deep, range(3), type, "none", "\ud800", "\0", 10**5000, True, {"": 1}, int, Ellipsis)
    return random.choice((*odd, *more))
