"""`tfkit new`: create a recipe, or a part and its test from a skeleton."""

from __future__ import annotations

import re
import shlex
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from tfkit.cli.options import ReadOptions, reads_recipe
from tfkit.cli.terminal import echo, echo_data
from tfkit.core.bounds import Options
from tfkit.core.errors import TfkitWarning, UsageError, with_article
from tfkit.core.registry import REGISTRY
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays import edited
from tfkit.recipe.text.node import inline
from tfkit.storage.files import whole, write_text

FOLDER = Path(__file__).parents[1] / "skeletons"

MODEL = """\
tfkit: 1
model:
  type: decoder
  d_model: 32
  vocab_size: 100
  max_length: 32
  num_layers: 2
  embedding: tokens
  position: learned
  layer:
    residual: pre_norm
    norm: layer_norm
    attention: {type: multi_head, num_heads: 4}
    feedforward: {type: mlp, d_ff: 64, activation: gelu}
  head: language_model
"""
TEXTS = """\
data:
  tokenizer: character
  train: {type: docstrings, split: train, limit: 20}
  valid: {type: docstrings, split: valid, limit: 4}
  batch: {size: 4}
objective: causal_lm
train: {device: cpu, steps: 2, optimizer: adam, schedule: {type: constant, lr: 0.001}, samples: 0}
"""
PAIRS = """\
tfkit: 1
model:
  type: encoder_decoder
  d_model: 32
  vocab_size: tokenizer
  num_layers: 1
  embedding: {type: tokens, shared: true}
  position: sinusoidal
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 4}
    feedforward: {type: mlp, d_ff: 64}
  head: {type: language_model, tied: true}
data:
  tokenizer: character
  train: {type: phrases, split: train, train: 40, valid: 8, test: 8}
  valid: {type: phrases, split: valid, train: 40, valid: 8, test: 8}
objective: seq2seq
train: {device: cpu, steps: 2, optimizer: adam, schedule: {type: constant, lr: 0.001}, samples: 0}
generate: {max_new_tokens: 4}
"""
STREAM = MODEL.replace("vocab_size: 100", "vocab_size: tokenizer") + TEXTS


@dataclass(frozen=True)
class Use:
    """Place of a slot's part in a recipe: key and options. `shipped` is a shipped recipe to check the part in.

    `others` are options whose values differ in the shipped recipe; `beside` are preceding parts if the key holds a
    list.
    """

    key: str
    recipe: str = MODEL
    shipped: str = "gpt2"
    options: Options = field(default_factory=dict)
    others: Options = field(default_factory=dict)
    beside: tuple[str, ...] | None = None

    def value(self, name: str, shipped: bool = False) -> Any:
        """Return the value of the key for the part `name`."""
        options = {**self.options, **(self.others if shipped else {})}
        part = {"type": name, **options} if options else name
        return part if self.beside is None else [*self.beside, part]


USES: dict[str, Use] = {
    "attention": Use("model.layer.attention", options={"num_heads": 4}, others={"num_heads": 12}),
    "mixer": Use("model.layer.mixer"),
    "position": Use("model.position"),
    "feedforward": Use("model.layer.feedforward", options={"d_ff": 64}, others={"d_ff": 3072}),
    "norm": Use("model.layer.norm"),
    "residual": Use("model.layer.residual"),
    "embedding": Use("model.embedding"),
    "head": Use("model.head"),
    "model": Use("model.type"),
    "mask": Use("model.mask", options={"every": 4}),
    "activation": Use("model.layer.feedforward.activation"),
    "init": Use("model.init"),
    "tokenizer": Use("data.tokenizer", PAIRS, "translate-numbers"),
    "corpus": Use("data.train", STREAM, "gpt-docstrings"),
    "objective": Use("objective", STREAM, "gpt-docstrings"),
    "optimizer": Use("train.optimizer", PAIRS, "translate-numbers"),
    "schedule": Use("train.schedule", PAIRS, "translate-numbers"),
    "adapter": Use("train.adapter", PAIRS, "translate-numbers"),
    "metric": Use("train.metrics", PAIRS, "translate-numbers", beside=()),
    "callback": Use("train.callbacks", PAIRS, "translate-numbers", beside=()),
    "logits": Use("generate.logits", PAIRS, "translate-numbers", beside=()),
    "stop": Use("generate.stop", PAIRS, "translate-numbers", beside=("end_token",)),
    "strategy": Use("generate.strategy", PAIRS, "translate-numbers"),
}

LIKE = {"attention": ("multi_head",), "residual": ("streams",)}  # skeletons besides that of the slot


@dataclass(frozen=True)
class Skeleton:
    """Skeleton of a part `name` for `slot`, from scratch or `like` another part."""

    slot: str
    name: str
    like: str | None = None

    @classmethod
    def of(cls, slot: str, name: str, like: str | None = None) -> Skeleton:
        """Return the skeleton. Raise UsageError for an unknown slot or `like`, or an invalid part name."""
        if slot not in USES:
            hint = nearest(slot, list(USES))
            available = f"Did you mean '{hint}'?" if hint else f"Available: {', '.join(USES)}."
            raise UsageError(f"unknown slot '{slot}'. {available}")
        if like is not None and like not in LIKE.get(slot, ()):
            available = ", ".join(f"--part {one} --like {word}" for one, words in LIKE.items() for word in words)
            raise UsageError(f"no skeleton of {with_article(slot)} like '{like}'. Available: {available}")
        if not name.isidentifier():
            raise UsageError(f"the name of a part must be an identifier such as my_{slot}, got {name!r}")
        if REGISTRY.has(slot, name):
            raise UsageError(f"{slot} '{name}' is already registered; choose another name, such as my_{name}")
        return cls(slot, name, like)

    def part(self) -> str:
        """Return the source of the part's file."""
        file = self.slot if self.like is None else f"{self.slot}_{self.like}"
        return self._named((FOLDER / f"{file}.py").read_text(encoding="utf-8"))

    def test(self) -> str:
        """Return the source of the part's test."""
        use = USES[self.slot]
        trial = "in_model" if use.recipe == MODEL else "in_training"
        text = (FOLDER / "trials" / f"{trial}.py").read_text(encoding="utf-8")
        recipe = edited(use.recipe, use.key, use.value(self.name))
        return self._named(text).replace('"""the recipe"""', f'"""\\\n{recipe}"""')

    def commands(self, file: Path, test: Path) -> list[str]:
        """Return the commands to run next."""
        use = USES[self.slot]
        setting = shlex.quote(f"{use.key}={inline(use.value(self.name, shipped=True))}")
        return [
            f"tfkit parts --verify {shlex.quote(str(file))}",
            f"tfkit check {use.shipped} --import {shlex.quote(str(file))} --set {setting}",
            f"pytest {shlex.quote(str(test))}",
        ]

    def _named(self, text: str) -> str:
        """Insert the part's name. Rename the class if its name already occurs in the skeleton."""
        words = "".join(word[:1].upper() + word[1:] for word in self.name.split("_"))
        if not words.isidentifier():
            words = f"My{words}"
        elif re.search(rf"\b{re.escape(words)}\b", text):
            words = f"{words}Part"
        return text.replace("my_part", self.name).replace("MyPart", words)


DEFAULT = "translate-numbers"


@click.command("new")
@click.argument("name")
@click.option("--from", "source", metavar="RECIPE", help=f"Recipe to extend, by name or path.  [default: {DEFAULT}]")
@click.option("--part", "slot", metavar="SLOT", help="Write a part for this slot instead, with a test.")
@click.option("--like", metavar="NAME", help="Other skeleton: multi_head (attention), streams (residual).")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@reads_recipe
def new_command(
    name: str, source: str | None, slot: str | None, like: str | None, force: bool, reading: ReadOptions
) -> None:
    """Write NAME.yaml, a recipe that extends another with the changes of --set and --variant.

    Relative paths are adjusted, and nothing is written unless the new recipe is valid. Without --from it extends
    translate-numbers, which needs no data and trains in minutes.

    With --part SLOT (attention, feedforward, metric, ...), write NAME.py, a small working part with comments on what to
    change, and test_NAME.py, which tests the part in a model.
    """
    if slot is None and like is not None:
        raise click.UsageError("--like selects the skeleton of a part; add --part attention")
    if slot is None:
        files, lines = _recipe(_file(name, (".yaml", ".yml"), force), source or DEFAULT, reading)
    elif source is not None or reading != ReadOptions():
        raise click.UsageError(
            "--part writes a part from a skeleton; the only other arguments it accepts are NAME, --like and --force"
        )
    else:
        files, lines = _part(_file(name, (".py",), force), slot, like, force)
    data = {"files": list(map(str, files)), "next": lines[1:]}
    echo_data(data, lambda _: echo("\n      ".join([f"{lines[0]}\nNext: {lines[1]}", *lines[2:]])))


def _recipe(file: Path, source: str, reading: ReadOptions) -> tuple[list[Path], list[str]]:
    """Write a recipe. Return the file, a line about it and the next command."""
    from tfkit.recipe.derive import Derived

    original = reading.recipe(source)  # reports every fault of the original and of the overrides with its location
    derived = Derived(source, file, reading.sets, reading.variants)
    text = derived.text()
    with whole(file) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
        alone = ReadOptions(imports=reading.imports, trust=reading.trust)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TfkitWarning)  # already shown for the original
            derived.check(alone.recipe(str(temporary)), original)
    command = f"tfkit {'show' if original.objective is None else 'train'} {file}"
    return [file], [f"{file}: derived from {source}", command]


def _part(file: Path, slot: str, like: str | None, force: bool) -> tuple[list[Path], list[str]]:
    """Write a part and its test. Return the files, a line about them and the next commands."""
    skeleton = Skeleton.of(slot, file.stem, like)
    test = file.with_name(f"test_{file.name}")
    refuse(test, force)
    for path, text in ((file, skeleton.part()), (test, skeleton.test())):
        write_text(path, text)
    return [file, test], [f"{file}: a part for the slot {slot}; {test}: its test", *skeleton.commands(file, test)]


def _file(name: str, endings: tuple[str, ...], force: bool) -> Path:
    """Return the path to write. Raise UsageError if it is invalid or exists."""
    path = Path(name if name.endswith(endings) else name + endings[0])
    if not name.strip() or name.endswith(("/", "\\")) or path.stem in endings:
        raise click.UsageError(f"NAME must be a file name or path, got {name!r}")
    refuse(path, force)
    return path


def refuse(path: Path, force: bool) -> None:
    """Raise UsageError if the path is a folder, or exists without `force`."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder")
    if path.exists() and not force:
        raise UsageError(f"{path}: already exists; choose another name, or replace it with --force")
