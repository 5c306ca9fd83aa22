"""Ways to break a recipe: its keys, values and structure as a tree, then its bytes as a text."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from random import Random
from typing import Any

from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.text.source import read

from .seeds import files, part, seed
from .tree import Pairs, Raw, Site, flow, grafted, paths, planted, sites

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
def known_keys() -> tuple[str, ...]:
    """Every key that stands in a recipe file, and every option of every part."""
    said = [key for path in files() for key in _keys(path)]
    options = [
        name for slot in CATALOGUES for part in REGISTRY.load(slot).values() for name in part.Config.model_fields
    ]
    return tuple(dict.fromkeys([*said, *options]))


def _keys(path: Any) -> list[str]:
    return [node.path.rpartition(".")[2] for _, node in read(path)[0].walk() if node.path and "[" not in node.path]


# ----------------------------------------------------------------------------------------------------- trees, in place


def _pair(tree: Any, random: Random) -> tuple[Pairs, int]:
    owned = [site for site in sites(tree) if isinstance(site.owner, Pairs)]
    site = random.choice(owned) if owned else Site(tree, 0)
    return site.owner, site.index  # type: ignore[return-value]


def rename_key(tree: Pairs, random: Random) -> None:
    owner, index = _pair(tree, random)
    key, value = owner[index]
    kind = random.randrange(3)
    new = _typo(str(key), random) if kind == 0 else random.choice(known_keys() if kind == 1 else ODD_KEYS)
    owner[index] = [new, value]


def _typo(word: str, random: Random) -> str:
    at = random.randrange(len(word) + 1)
    return word[:at] + random.choice(("", "e", "_", "-")) + word[at + random.choice((0, 1)) :]


def add_key(tree: Pairs, random: Random) -> None:
    owner, index = _pair(tree, random)
    owner.insert(index, [random.choice(known_keys()), value_of_any_kind(random)])


def drop(tree: Pairs, random: Random) -> None:
    site = random.choice(sites(tree))
    del site.owner[site.index]


def duplicate(tree: Pairs, random: Random) -> None:
    site = random.choice(sites(tree))
    site.owner.append(grafted(site.owner[site.index]))


def move(tree: Pairs, random: Random) -> None:
    """A node with its key goes elsewhere."""
    owner, index = _pair(tree, random)
    pair = owner.pop(index)
    mappings = [tree, *(site.value for site in sites(tree) if isinstance(site.value, Pairs))]
    random.choice(mappings).append(pair)


def replace_value(tree: Pairs, random: Random) -> None:
    random.choice(sites(tree)).value = value_of_any_kind(random)


def value_of_any_kind(random: Random) -> Any:
    kind = random.randrange(8)
    if kind < 4:
        return random.choice((NUMBERS, WORDS, FRAGMENTS, (True, False, None))[kind]) if kind != 2 else _fragment(random)
    if kind == 4:
        return part(random.choice(sorted(CATALOGUES)), random)
    if kind == 5:
        return grafted(random.choice(sites(seed(random))).value)
    if kind == 6:
        return random.choice(NUMBERS[:12])
    return [value_of_any_kind(random) for _ in range(random.randrange(3))]


def _fragment(random: Random) -> Raw:
    return Raw(random.choice(HEAVY if random.random() < 0.03 else FRAGMENTS))


def swap(tree: Pairs, random: Random) -> None:
    """Two nodes change places."""
    one, other = random.choice(sites(tree)), random.choice(sites(tree))
    one.value, other.value = grafted(other.value), grafted(one.value)


def wrap(tree: Pairs, random: Random) -> None:
    site = random.choice(sites(tree))
    value = site.value
    wraps: tuple[Any, ...] = ([value], [value, grafted(value)], Pairs([["type", value]]), Pairs([["x", value]]))
    wraps += (Pairs([["per_layer", [value] * random.choice((1, 2, 3, 4, 12))]]), Pairs([["per_layer", value]]))
    site.value = random.choice(wraps)


def unwrap(tree: Pairs, random: Random) -> None:
    """A mapping's or list's content stands in its place."""
    holders = [site for site in sites(tree) if isinstance(site.value, list) and site.value]
    if holders:
        site = random.choice(holders)
        site.value = random.choice(sites(site.value)).value


def replace_part(tree: Pairs, random: Random) -> None:
    """Another part, of the same slot where the key says one."""
    owner, index = _pair(tree, random)
    typed = [site for site in sites(tree) if isinstance(site.owner, Pairs) and _slot(site.owner[site.index][0])]
    site = random.choice(typed) if typed and random.random() < 0.8 else Site(owner, index)
    site.value = part(_slot(owner[index][0] if site.owner is owner else site.owner[site.index][0]) or "norm", random)


def _slot(key: Any) -> str | None:
    word = str(key).removeprefix("cross_").removeprefix("qk_").rpartition("_")
    names = {"tokenizer", "corpus", *CATALOGUES} - {"model"}
    found = next((name for name in (str(key), word[2]) if name in names), None)
    return "corpus" if key in ("train", "valid", "test") else found


def tweak_number(tree: Pairs, random: Random) -> None:
    numbers = [site for site in sites(tree) if type(site.value) in (int, float)]
    if numbers:
        site = random.choice(numbers)
        changes: tuple[Callable[[Any], Any], ...] = (
            *(lambda x: x + 1, lambda x: x - 1, lambda x: -x, lambda x: x * 2, lambda x: x / 2, float, str, abs),
            *(lambda x: x * 10**6, lambda x: x * 2**40),
        )
        site.value = random.choice(changes)(site.value)


def add_pattern(tree: Pairs, random: Random) -> None:
    model = _section(tree, "model", random)
    model.append(["pattern", planted(grafted(random.choice(PATTERNS)))])
    if random.random() < 0.7:
        kinds = Pairs([name, _overlay(random)] for name in ("local", "global", "first"))
        model[:] = [pair for pair in model if pair[0] != "layers"] + [["layers", kinds]]
    if random.random() < 0.5:
        _say(model, "num_layers", random.choice((1, 2, 3, 6, 1000, 9_999, 10**4, None)))


def _overlay(random: Random) -> Any:
    slot = random.choice(("attention", "feedforward", "mask", "position", "norm", "residual"))
    return random.choice((Pairs(), Pairs([[slot, part(slot, random)]]), Pairs([["shared", True]]), None, "x"))


def vary_layers(tree: Pairs, random: Random) -> None:
    """A value of the layer, or of a kind, becomes one for each layer."""
    model = _section(tree, "model", random)
    count = next((value for key, value in model if key == "num_layers" and type(value) is int), 2)
    found = [site for key, value in model if key in ("layer", "layers") for site in sites(value)]
    scalars = [site for site in found if not isinstance(site.value, list)]
    if scalars:
        site = random.choice(scalars)
        length = min(count, 2_000) if random.random() < 0.8 else random.choice((0, 1, 2, 7))
        values = [site.value if random.random() < 0.5 else random.choice(NUMBERS[:10]) for _ in range(min(length, 40))]
        site.value = Pairs([["per_layer", (values * (length // max(len(values), 1) + 1))[:length]]])


def change_depth(tree: Pairs, random: Random) -> None:
    depths = [
        site for site in sites(tree) if isinstance(site.owner, Pairs) and site.owner[site.index][0] == "num_layers"
    ]
    if depths:
        random.choice(depths).value = random.choice((1, 2, 3, 5, 13, 400, 5_000, 9_999, 10**4))


def extend(tree: Pairs, random: Random) -> None:
    tree.append(["extends", grafted(random.choice(BASES))])


def add_variants(tree: Pairs, random: Random) -> None:
    entries = Pairs()
    for name in ("wide", random.choice(("deep", "a=b", "", "é", "wide"))):
        key = random.choice([*_dotted(tree), "model..x", "", "extends", "model[0]", *known_keys()])
        value = random.choice(([value_of_any_kind(random) for _ in range(3)], value_of_any_kind(random)))
        entries.append([name, Pairs([[key, value]]) if random.random() < 0.8 else value_of_any_kind(random)])
    tree.append(["variants", entries if random.random() < 0.9 else value_of_any_kind(random)])


def _dotted(tree: Pairs) -> list[str]:
    return [path for path in paths(tree) if path.startswith("model")]


def anchor(tree: Pairs, random: Random) -> None:
    """A node gets an anchor, others become aliases of it or merge it."""
    everything = sites(tree)
    first, second = sorted(random.sample(range(len(everything)), 2)) if len(everything) > 1 else (0, 0)
    alias: Any = random.choice(
        (Raw("*a"), Pairs([[Raw("<<"), Raw("*a")]]), Pairs([[Raw("<<"), [Raw("*a"), Raw("*a")]]]))
    )
    everything[second].value = alias
    everything[first].value = Raw("&a " + flow(everything[first].value))


def _section(tree: Pairs, name: str, random: Random) -> Pairs:
    found = [value for key, value in tree if key == name and isinstance(value, Pairs)]
    sides = (
        [value for key, value in found[0] if key in ("encoder", "decoder") and isinstance(value, Pairs)]
        if found
        else []
    )
    return random.choice(found + sides) if found else tree


def _say(mapping: Pairs, key: str, value: Any) -> None:
    mapping[:] = [pair for pair in mapping if pair[0] != key] + [[key, value]]


TREE = (
    *(rename_key, add_key, drop, duplicate, move, replace_value, replace_value, swap, wrap, unwrap, replace_part),
    *(replace_part, replace_part, tweak_number, tweak_number, add_pattern, vary_layers, change_depth, extend),
    *(add_variants, anchor),
)


def mutate(tree: Pairs, random: Random) -> None:
    """Break the tree in one way; one that has nothing left stays as it is."""
    if sites(tree):
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
    keys = _dotted(tree) or ["model"]
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
    odd = (
        object(),
        {1: 2},
        {None: 1},
        {(): 1},
        {1, 2},
        b"bytes",
        math.nan,
        math.inf,
        1j,
        PurePosixPath("a"),
        circle,
        deep,
    )
    return random.choice((*odd, (1, 2), range(3), type, "none", "\ud800", "\0", 10**5000, True, {"": 1}, int, Ellipsis))
