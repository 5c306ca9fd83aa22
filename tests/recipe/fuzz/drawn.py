"""Small recipes drawn over the whole language of `model:`: every slot, option, type, kind, pattern, side and base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from pydantic import BaseModel

from tfkit.contracts.options import Sampler, Value
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Data, Generate, Train

from .tree import Pairs, plain, planted, sites

OPTIONAL = 0.2  # how often an option that has a default is set
# in a layer besides its sublayers: the slot, and how often it is set
IN_LAYER = {"position": ("position", 0.15), "mask": ("mask", 0.2), "attention_norm": ("norm", 0.1)}
IN_LAYER |= {"feedforward_norm": ("norm", 0.1), "cross_attention_norm": ("norm", 0.05)}
KINDS = {"attention": "attention", "cross_attention": "attention", "feedforward": "feedforward", "mixer": "mixer"}
KINDS |= {"mask": "mask", "position": "position", "residual": "residual", "norm": "norm"}
# of what all weights learn: no dropout, no files, nothing frozen, no activation that may never let anything pass
UNUSED = ("dropout", "final_dropout", "mask_rate", "vectors", "frozen", "threshold")


class Drawn(Sampler):
    """Random values by type; now and then also of an option that has a default."""

    named: Mapping[str, Any] = {}
    plain: Mapping[type, Sequence[Any]] = {
        bool: (False, True),
        int: (1, 2, 2, 3, 4, 4, 8, 16),
        float: (0.0, 0.1, 0.25, 0.5, 1.0, 2.0),
    }

    def __init__(self, random: Random) -> None:
        self.random = random

    def choose(self, values: Sequence[Value]) -> Value:
        return self.random.choice(values)

    def options(self, model: type[BaseModel], given: Iterable[str] = ()) -> Any:
        fields = model.model_fields.items()
        said = [(name, field) for name, field in fields if field.is_required() or self.random.random() < OPTIONAL]
        return Pairs([name, self.option(name, field)] for name, field in said)

    def part(self, slot: str) -> Any:
        name = self.random.choice(REGISTRY.names(slot))
        options = self.options(REGISTRY.get(slot, name).Config)
        return Pairs([["type", name], *options]) if options or self.random.random() < 0.5 else name

    def text(self, name: str, is_path: bool = False) -> str:
        return self.random.choice(("text", "a.txt", "output"))


def part(slot: str, random: Random) -> Any:
    """Any part of the slot with some of its options; a bare name where it has none."""
    return Drawn(random).part(slot)


def drawn(random: Random, learning: bool = True) -> Pairs:
    """A recipe without what is wrong in it as far as leaving that out helps; of a model of which all learns, or any."""
    kind = random.choice(("encoder", "decoder", "encoder_decoder"))
    model = Pairs([["type", kind], *_stack(random, whole=True), ["head", _head(random)]])
    model += [["init", part("init", random)]] if random.random() < 0.3 else []
    model += [["heads", Pairs([["more", _head(random)]])]] if random.random() < 0.2 else []
    model += [["memory", Pairs([["d_model", random.choice((4, 8))]])]] if random.random() < 0.15 else []
    for side in ("encoder", "decoder") if kind == "encoder_decoder" else ():
        model += [[side, Pairs(_stack(random, whole=False))]] if random.random() < 0.6 else []
    recipe = Pairs([["tfkit", 1], ["model", model]])
    if learning:
        for holder in [recipe, *(site.value for site in sites(recipe) if isinstance(site.value, Pairs))]:
            holder[:] = [pair for pair in holder if pair[0] not in UNUSED]
            # one unit alone may be shut for all tokens
            holder[:] = [[key, 3 if key == "d_ff" and value == 1 else value] for key, value in holder]
    elif random.random() < 0.15:
        options = Drawn(random).options
        recipe += [["data", options(Data)], ["objective", part("objective", random)]]
        recipe += [["train", options(Train)], ["generate", options(Generate)]]
    if random.random() < 0.2:
        _vary(model, random)
    return healed(recipe, 12)


def healed(tree: Pairs, rounds: int) -> Pairs:
    """The tree without what is wrong in it, as far as leaving it out helps."""
    for _ in range(rounds):
        try:
            load_recipe(plain(tree))
        except RecipeError as error:
            wrong = {fault.path.partition("[")[0] for fault in error.faults} - {"model", "model.layer"}
            if _cut(tree, wrong):
                continue
        except Exception:  # the oracle is to find it
            pass
        break
    return tree


def _cut(tree: Pairs, wrong: set[str], path: str = "") -> bool:
    """Remove the keys with these paths from the tree. False if there is none of them."""
    kept = [pair for pair in tree if f"{path}{pair[0]}" not in wrong]
    found = len(kept) < len(tree)
    tree[:] = kept
    below = [_cut(value, wrong, f"{path}{key}.") for key, value in kept if isinstance(value, Pairs)]
    return found or any(below)


def _vary(model: Pairs, random: Random) -> None:
    """A number or a boolean of the layer varies over the layers."""
    keys = {key: value for key, value in model if key in ("layer", "num_layers")}
    found = [site for site in sites(keys["layer"]) if type(site.value) in (int, bool)]
    if found:
        site = random.choice(found)
        other = not site.value if isinstance(site.value, bool) else random.choice((1, 2, 4))
        site.value = Pairs([["per_layer", [random.choice((site.value, other)) for _ in range(keys["num_layers"])]]])


def _stack(random: Random, whole: bool) -> list[Any]:
    """The keys of a stack; of a side (`whole` false), those that differ."""

    def says(chance: float) -> bool:
        return random.random() < (chance if whole else chance / 3)

    keys: list[Any] = [["d_model", random.choice((2, 4, 6, 8, 8, 8, 16))]] if whole or says(0.3) else []
    keys += [["vocab_size", random.choice((2, 11, 20))]] if whole or says(0.3) else []
    keys += [["num_layers", random.choice((1, 2, 2, 3, 4))]] if whole or says(0.5) else []
    keys += [["max_length", random.choice((1, 2, 5, 16, 16, 16))]] if says(0.8) else []
    if whole or says(0.3):
        keys += [["embedding", "none" if random.random() < 0.05 else part("embedding", random)]]
    for slot, chance in (("position", 0.7), ("mask", 0.3)):
        both = [part(slot, random), part(slot, random)]
        keys += [[slot, both if random.random() < 0.2 else both[0]]] if says(chance) else []
    keys += [["layer", _layer(random, whole)]] if whole or says(1) else []
    keys += [["final_norm", _norm(random)]] if says(0.3) else []
    return keys + (_kinds(random) if says(0.5) else [])


def _norm(random: Random) -> Any:
    return random.choice((True, None)) if random.random() < 0.4 else part("norm", random)


def _head(random: Random) -> Any:
    return None if random.random() < 0.1 else part("head", random)


def _layer(random: Random, whole: bool) -> Pairs:
    layer = Pairs([["residual", part("residual", random)], ["norm", _norm(random)]]) if whole else Pairs()
    names = random.choice((["attention"], ["attention"], ["attention"], ["mixer"], ["attention", "mixer"]))
    names = [*names, *(["cross_attention"] if random.random() < 0.3 else [])]
    names += ["feedforward"] if random.random() < 0.9 else []
    for name in names:
        value = part(KINDS[name], random)
        if isinstance(value, Pairs) and random.random() < 0.1:
            value[:] = [pair for pair in value if pair[0] != "shared"] + [["shared", True]]
        layer.append([name, value])
    layer += [[key, part(slot, random)] for key, (slot, chance) in IN_LAYER.items() if random.random() < chance]
    layer += [["dropout", 0.1]] if random.random() < 0.2 else []
    layer += [["shared", True]] if random.random() < 0.1 else []
    if random.random() < 0.15:
        order = [*names, random.choice(names)] if names else ["feedforward"]
        random.shuffle(order)
        layer.append(["sublayers", order])
    layer += [["feedforward_2", Pairs([["bias", False]])]] if random.random() < 0.1 else []
    return layer


def _kinds(random: Random) -> list[Any]:
    """Kinds, and the pattern of them."""
    names, kinds = ("local", "global", "first")[: random.choice((1, 2, 3))], Pairs()
    for name in names:
        changed = random.sample(sorted(KINDS), random.choice((0, 1, 2)))
        values = [[key, None if random.random() < 0.2 else part(KINDS[key], random)] for key in changed]
        kinds.append([name, Pairs(values)])

    def entry() -> str:
        more = f"+{random.choice(names)}" if random.random() < 0.2 else ""
        return random.choice(names) + more + random.choice(("", "", "", "*2"))

    pattern: list[Any] = [entry() for _ in range(random.choice((1, 2, 3)))]
    if random.random() < 0.3:
        pattern.insert(random.randrange(len(pattern) + 1), [entry()])
    return [["layers", kinds], ["pattern", pattern]]


SIZES = (1, 2, 3, 4, 6, 8, 16)
# sizes that follow from others where a recipe does not set them
UNSAID = ("layer.attention.head_dim", "layer.attention.num_kv_heads", "layer.mixer.d_hidden", "embedding.d_embedding")
UNSAID += ("layer.feedforward_2.d_ff", "layer.cross_attention.num_heads", "decoder.d_model", "head.d_output")


def sizes(model: Pairs, path: str = "") -> Iterable[tuple[str, int]]:
    """The whole numbers of a model's text by dotted key."""
    for key, value in model:
        if type(value) is int and value > 0:
            yield path + key, value
        elif isinstance(value, Pairs) and key != "special_ids":
            yield from sizes(value, f"{path}{key}.")


def with_base(recipe: Pairs, base: dict[str, int], exponent: float = 1.0) -> Pairs:
    """The recipe under muP."""
    chosen = Pairs([["type", "mup"], ["base", planted(base)], ["depth_exponent", exponent]])
    return Pairs(
        [key, Pairs([*value, ["parametrization", chosen]]) if key == "model" else value] for key, value in recipe
    )


def drawn_base(recipe: Pairs, random: Random) -> dict[str, int]:
    """Random base sizes, the width more often than others, without those that are wrong."""
    chances = dict.fromkeys(UNSAID, 0.1) | {key: 0.3 for key, _ in sizes(dict(recipe)["model"])} | {"d_model": 0.9}
    base = {key: random.choice(SIZES) for key, chance in chances.items() if random.random() < chance}
    for _ in range(8):
        try:
            load_recipe(plain(with_base(recipe, base)))
        except RecipeError as error:
            paths = [fault.path for fault in error.faults]
            wrong = [key for key in base if any(path.startswith(f"model.{key}") for path in paths)]
            base = {key: size for key, size in base.items() if key not in (wrong or random.sample(sorted(base), 1))}
        if not base:
            return {"d_model": random.choice(SIZES)}
    return base
