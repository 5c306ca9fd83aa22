"""A model as one file of plain PyTorch, printed only if the file computes what the model computes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from tfkit.api import Source, check_sizes
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import spell, whole_numbers
from tfkit.plain.classes import Classes
from tfkit.plain.inputs import Unprintable, chosen
from tfkit.plain.proof import prove
from tfkit.plain.smaller import smaller
from tfkit.plain.text import quoted, text
from tfkit.plain.watch import record
from tfkit.recipe.load import ReadingOptions, Recipe, read_for

BATCH, LONG = 10007, 2048
LENGTHS = (59, 1031, 53, 1021, 113, 109, 71, 97, 79, 89, 67, 61, 47, 43, 41, 37, 31, 29, 23, 17, 13, 11, 7, 5, 3, 2, 1)
# names for a number by its role, best first
BY_ROLE = {
    "width": ("D_MODEL", "D_FF", "EXPERT_D_FF", "VOCAB_SIZE"),
    "rows": ("VOCAB_SIZE", "ENCODER_VOCAB_SIZE", "DECODER_VOCAB_SIZE", "MAX_LENGTH"),
    "num_layers": ("NUM_LAYERS", "ENCODER_NUM_LAYERS", "DECODER_NUM_LAYERS"),
    "num_experts": ("NUM_EXPERTS",),
    "shape": ("D_MODEL",),
}
HEADS = ("NUM_HEADS", "NUM_KV_HEADS")
LENGTH = "it has a Python loop over time, or a size in a condition, which a file cannot say"
LOAD = '''

def load(file):
    """Build the model with the weights of a run, its model.safetensors."""
    from safetensors.torch import load_model

    model = {name}()
    load_model(model, file)
    return model.eval()
'''
GENERATE = '''

@torch.no_grad()
def generate(model, input_ids, count):
    """Continue ids [batch, time] by the most probable tokens, without a cache."""
    for _ in range(count):
        token = model(input_ids)[:, -1:].argmax(dim=-1)
        input_ids = torch.cat((input_ids, token), dim=1)
    return input_ids
'''
WRITE = '''

@torch.no_grad()
def generate(model, {source}, start, count):
    """Write the most probable tokens after the ids `start` [batch, time] for a source, without a cache."""
    for _ in range(count):
        token = model({source}, decoder_input_ids=start)[:, -1:].argmax(dim=-1)
        start = torch.cat((start, token), dim=1)
    return start
'''


def code(recipe: Source, inputs: Sequence[str] = (), **reading: Unpack[ReadingOptions]) -> str:
    """Return the model of a recipe as one file of plain PyTorch (torch and einops) with the weight names of a run.

    `recipe` is a shipped name, a path, the folder of a run, a mapping or a loaded recipe; `inputs` are arguments of
    forward besides those that it always has. The text was run: with random weights at a small size, it gives the
    model's outputs. Raise UsageError for inputs that the model does not take, and with the status 1 if the model cannot
    be printed.
    """
    folder = Path(recipe) if isinstance(recipe, (str, Path)) and Path(recipe).is_dir() else None
    loaded = read_for("code", ("inputs",), recipe if folder is None else folder / "resolved.yaml", reading)
    return printed(loaded if folder is None else loaded.named(folder.resolve().name), inputs)


def printed(recipe: Recipe, inputs: Sequence[str] = (), usable: bool = True) -> str:
    """Print a loaded recipe; `usable` adds functions that load weights and generate. Raise Unprintable."""
    check_sizes(recipe)
    blueprint = recipe.blueprint()
    names = chosen(blueprint, inputs)
    small = smaller(recipe)
    if small is None:
        raise Unprintable("the text cannot be tried: no smaller version of the recipe is valid")
    few = _longer(small.blueprint())
    tried, name = _text(few, names, 0, usable)
    longer, _ = _text(few, names, 1, usable)
    if _bare(longer) != _bare(tried):
        raise Unprintable(f"{_differing(tried, longer)} depends on the length of the text: {LENGTH}")
    prove(few, tried, name, names)
    return f'"""{quoted(recipe.name)}, as plain PyTorch."""\n\n{_text(blueprint, names, 0, usable)[0]}'


def _longer(blueprint: Blueprint) -> Blueprint:
    """Let a model read texts that are long enough to tell lengths from other numbers."""
    sides = {plan.side: plan for plan in blueprint.stacks() if plan.max_length is not None}
    longer: dict[str, Any] = {side: replace(plan, max_length=LONG) for side, plan in sides.items()}
    return replace(blueprint, **longer)


def _differing(text: str, other: str) -> str:
    """Return the first class in which two texts differ."""
    name = "the model"
    for line, different in zip(_bare(text).splitlines(), _bare(other).splitlines(), strict=False):
        name = line.split("(")[0] if line.startswith(("class ", "def ")) else name
        if line != different:
            break
    return name


def _bare(text: str) -> str:
    """Return a text without the shapes in comments, which may depend on the length."""
    return re.sub(r"  # \[.*\]$", "", text, flags=re.MULTILINE)


def _text(blueprint: Blueprint, inputs: Sequence[str], choice: int, usable: bool) -> tuple[str, str]:
    """Record a forward and return its text and the name of its class; `choice` selects the lengths."""
    recording = record(blueprint, inputs, lengths(blueprint, choice))
    constants = Constants(blueprint)
    classes = Classes(recording, constants.name)
    body = "\n".join(text(classes))
    name = classes.groups[-1].name
    einops = [word for word in ("rearrange", "reduce", "repeat") if f"{word}(" in body]
    end = LOAD.format(name=name) + _ending(blueprint, inputs) if usable else ""
    heads = [
        *(["import torch"] if re.search(r"(?<![\w.])torch\.(?!nn)", body + end.replace("safetensors.", "")) else []),
        *(["import torch.nn.functional as F"] if "F." in body else []),
        *([f"from einops import {', '.join(einops)}"] if einops else []),
        "from torch import nn",
    ]
    numbers = "\n".join(f"{name} = {value}" for name, value in constants.used())
    whole = "\n".join(heads) + (f"\n\n{numbers}" if numbers else "") + f"\n{body}\n"
    return whole + end, name


def _ending(blueprint: Blueprint, inputs: Sequence[str]) -> str:
    """Return a function that generates, for models that can write."""
    if not blueprint.last.causal or blueprint.head is None or blueprint.head.part.part_name != "language_model":
        return ""
    if tuple(inputs) == ("input_ids",):
        return GENERATE
    source = [name for name in inputs if not name.startswith("decoder_")]
    return WRITE.format(source=", ".join(source)) if [*source, "decoder_input_ids"] == list(inputs) else ""


def lengths(blueprint: Blueprint, choice: int) -> dict[str, int]:
    """Return sizes of batch, time and source that no number of the model equals or is near, as far as possible."""
    numbers = {value for values in _named(blueprint).values() for value in values}
    near = {value // by + more for value in numbers for by in (1, 2, 4) for more in (-1, 0, 1)}
    most = min(plan.max_length or LENGTHS[1] for plan in blueprint.stacks())
    free = sorted((one for one in LENGTHS if one <= most), key=lambda one: (one in numbers) + (one in near))
    sizes = {"batch": BATCH, "time": free[choice], "source": (free[choice + 2 :] or free)[0]}
    marks = any("global_attention_mask" in plan.needs for plan in blueprint.stacks())
    return sizes | ({"marked": sizes["time"] // 2} if marks else {})


def _named(blueprint: Blueprint) -> dict[str, list[int]]:
    """Return the values of each number of a model by its name as a constant."""
    found = defaultdict[str, list[int]](list)
    for plan in blueprint.stacks():
        sizes = {"vocab_size": plan.vocab_size, "d_model": plan.d_model, "max_length": plan.max_length}
        own = {**sizes, "num_layers": plan.num_layers}
        every: list[tuple[str, int | None]] = list(own.items())
        if plan.embedding is not None:
            every += whole_numbers(spell(plan.embedding))
        for config in [sublayer.config for layer in plan.layers for sublayer in layer.sublayers]:
            options = dict(whole_numbers(spell(config)))
            if "num_heads" in options and "head_dim" not in options:
                options["head_dim"] = plan.d_model // options["num_heads"]
            every += options.items()
        for name, value in every:
            if value is not None:
                key = name.replace("router.", "").replace(".", "_").upper()
                found[key].append(value)
                if name in own:
                    found[f"{plan.side}_{key}".upper()].append(value)
    return found


class Constants:
    """Numbers of a model that have one name."""

    def __init__(self, blueprint: Blueprint) -> None:
        named = {name: set(values) for name, values in _named(blueprint).items()}
        sided = {name for name in named if name.startswith(("ENCODER_", "DECODER_"))}
        self.values = {
            name: values.pop()
            for name, values in named.items()
            if len(values) == 1 and "_" in name and (name not in sided or len(named[name.split("_", 1)[1]]) > 1)
        }
        self._used: set[str] = set()

    def name(self, role: str, number: str) -> str:
        """Return the name of a number in its role, or a product of two names, or the number."""
        if not number.isdigit() or (role not in BY_ROLE and not role.startswith("axis_")):
            return number
        value = int(number)
        names = same = [name for name in self.values if self.values[name] == value > 1]
        if role.startswith("axis_"):
            names = [name for name in names if role[5:].upper() in name]
        elif role in ("width", "shape"):
            names = [name for name in names if not name.startswith("NUM_") or name == "NUM_EXPERTS"]
            names = names if len(same) == 1 else [name for name in names if name in BY_ROLE[role]]
        else:
            names = [name for name in names if name in BY_ROLE[role]]
        best = sorted(names, key=lambda name: [*BY_ROLE.get(role, ()), name].index(name))
        if not best and role == "width":
            of_head = self.values.get("HEAD_DIM", 0)
            best = [f"{one} * HEAD_DIM" for one in HEADS if self.values.get(one, 0) * of_head == value]
        if best and role != "shape":
            self._used.update(best[0].split(" * "))
        return best[0] if best else number

    def used(self) -> Iterator[tuple[str, int]]:
        """Yield the constants that were used, in the order of the recipe."""
        yield from ((name, value) for name, value in self.values.items() if name in self._used)
