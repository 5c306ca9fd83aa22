"""Small recipes drawn over the whole language of `model:`: every slot, option, type, kind, pattern and side."""

from __future__ import annotations

from random import Random
from typing import Any

from .seeds import healed, part
from .tree import Pairs, sites

KINDS = ("local", "global", "first")
# what may stand in a layer besides its sublayers: the slot, and how often it is said
IN_LAYER = {"position": ("position", 0.15), "mask": ("mask", 0.2), "attention_norm": ("norm", 0.1)}
IN_LAYER |= {"feedforward_norm": ("norm", 0.1), "cross_attention_norm": ("norm", 0.05)}
# chance, files, what is not to learn, and an activation that may never let anything pass
UNUSED = ("dropout", "final_dropout", "mask_rate", "vectors", "frozen", "threshold")


def drawn(random: Random) -> Pairs:
    """A recipe of a model alone, without what is wrong in it as far as leaving that out helps."""
    kind = random.choice(("encoder", "decoder", "encoder_decoder"))
    model = Pairs([["type", kind], *_stack(random, whole=True), ["head", _head(random)]])
    model += [["init", part("init", random)]] if random.random() < 0.3 else []
    model += [["heads", Pairs([["more", _head(random)]])]] if random.random() < 0.2 else []
    model += [["memory", Pairs([["d_model", random.choice((4, 8))]])]] if random.random() < 0.15 else []
    if kind == "encoder_decoder":
        model += [
            [side, Pairs(_stack(random, whole=False))] for side in ("encoder", "decoder") if random.random() < 0.6
        ]
    recipe = Pairs([["tfkit", 1], ["model", model]])
    for holder in [recipe, *(site.value for site in sites(recipe) if isinstance(site.value, Pairs))]:
        holder[:] = [pair for pair in holder if pair[0] not in UNUSED]
        # one unit alone may be shut for all tokens
        holder[:] = [[key, 3 if key == "d_ff" and value == 1 else value] for key, value in holder]
    if random.random() < 0.2:
        _vary(model, random)
    return healed(recipe, 12)


def _vary(model: Pairs, random: Random) -> None:
    """A number or a boolean of the layer becomes one for each layer."""
    keys = {key: value for key, value in model if key in ("layer", "num_layers")}
    found = [site for site in sites(keys["layer"]) if type(site.value) in (int, bool)]
    if found:
        site = random.choice(found)
        other = not site.value if isinstance(site.value, bool) else random.choice((1, 2, 4))
        site.value = Pairs([["per_layer", [random.choice((site.value, other)) for _ in range(keys["num_layers"])]]])


def _stack(random: Random, whole: bool) -> list[Any]:
    """The keys of a stack; of a side, `whole` false, those that it says otherwise."""

    def says(chance: float) -> bool:
        return random.random() < (chance if whole else chance / 3)

    keys: list[Any] = [["d_model", random.choice((2, 4, 6, 8, 8, 8, 16))]] if whole or says(0.3) else []
    keys += [["vocab_size", random.choice((2, 11, 20))]] if whole or says(0.3) else []
    keys += [["num_layers", random.choice((1, 2, 2, 3, 4))]] if whole or says(0.5) else []
    keys += [["max_length", random.choice((1, 2, 5, 16, 16, 16))]] if says(0.8) else []
    keys += (
        [["embedding", "none" if random.random() < 0.05 else part("embedding", random)]] if whole or says(0.3) else []
    )
    keys += [["position", _one_or_two("position", random)]] if says(0.7) else []
    keys += [["mask", _one_or_two("mask", random)]] if says(0.3) else []
    keys += [["layer", _layer(random, whole)]] if whole or says(1) else []
    keys += [["final_norm", _norm(random)]] if says(0.3) else []
    return keys + (_kinds(random) if says(0.5) else [])


def _one_or_two(slot: str, random: Random) -> Any:
    return [part(slot, random), part(slot, random)] if random.random() < 0.2 else part(slot, random)


def _norm(random: Random) -> Any:
    return random.choice((True, None)) if random.random() < 0.4 else part("norm", random)


def _head(random: Random) -> Any:
    return None if random.random() < 0.1 else part("head", random)


def _layer(random: Random, whole: bool) -> Pairs:
    layer = Pairs([["residual", part("residual", random)], ["norm", _norm(random)]]) if whole else Pairs()
    mixes = random.choice((["attention"], ["attention"], ["attention"], ["mixer"], ["attention", "mixer"]))
    names = [*mixes, *(["cross_attention"] if random.random() < 0.3 else [])]
    names += ["feedforward"] if random.random() < 0.9 else []
    for name in names:
        layer.append([name, part("attention" if name == "cross_attention" else name, random)])
        _share(layer[-1][1], random)
    layer += [[key, part(slot, random)] for key, (slot, chance) in IN_LAYER.items() if random.random() < chance]
    layer += [["shared", True]] if random.random() < 0.1 else []
    if random.random() < 0.15:
        order = [*names, random.choice(names)] if names else ["feedforward"]
        random.shuffle(order)
        layer.append(["sublayers", order])
    if random.random() < 0.1:
        layer.append(["feedforward_2", Pairs([["bias", False]])])
    return layer


def _share(value: Any, random: Random) -> None:
    if isinstance(value, Pairs) and random.random() < 0.1:
        value[:] = [pair for pair in value if pair[0] != "shared"] + [["shared", True]]


def _kinds(random: Random) -> list[Any]:
    """Kinds, and the pattern that they come in."""
    slots = {"attention": "attention", "cross_attention": "attention", "feedforward": "feedforward"}
    slots |= {"mixer": "mixer", "mask": "mask", "position": "position", "residual": "residual", "norm": "norm"}
    kinds = Pairs()
    for name in KINDS[: random.choice((1, 2, 3))]:
        changed = random.sample(sorted(slots), random.choice((0, 1, 2)))
        kinds.append([name, Pairs([key, _or_none(part(slots[key], random), random)] for key in changed)])
    names = [name for name, _ in kinds]
    pattern: list[Any] = [_entry(names, random) for _ in range(random.choice((1, 2, 3)))]
    if random.random() < 0.3:
        pattern.insert(random.randrange(len(pattern) + 1), [_entry(names, random)])
    return [["layers", kinds], ["pattern", pattern]]


def _or_none(value: Any, random: Random) -> Any:
    return None if random.random() < 0.2 else value


def _entry(names: list[str], random: Random) -> str:
    entry = random.choice(names)
    if random.random() < 0.2:
        entry += f"+{random.choice(names)}"
    return entry + random.choice(("", "", "", "*2"))
