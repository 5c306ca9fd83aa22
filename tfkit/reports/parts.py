"""Registered parts as plain data: summary, options, capabilities and a minimal recipe."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import tfkit
from tfkit.contracts.cases import MODEL, Case, cases
from tfkit.contracts.expect import describe
from tfkit.contracts.options import Sampler, required
from tfkit.core.bounds import Options, Tree
from tfkit.core.component import Component, Config, spell
from tfkit.core.describe import in_words, limits, sections
from tfkit.core.errors import is_shipped, source_file
from tfkit.core.inputs import CAPABILITIES
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import CorpusFacts, ObjectiveFacts
from tfkit.recipe.load import load_recipe
from tfkit.recipe.rules import RULES, refusal, requirements_of
from tfkit.recipe.views.resolved import scalar


class Note(NamedTuple):
    """The purpose of a slot (without a full stop), and a recipe line whose key is dotted, as in `--set`."""

    purpose: str
    written: str


SLOTS: dict[str, Note] = {
    "model": Note("topology: the stacks, and how they are connected", "model.type: decoder"),
    "attention": Note(
        "mixes tokens with attention to each other or to a memory",
        "model.layer.attention: {type: multi_head, num_heads: 8}",
    ),
    "mixer": Note("mixes tokens without attention", "model.layer.mixer: gru"),
    "feedforward": Note(
        "transforms each token independently", "model.layer.feedforward: {type: glu, d_ff: 1365, activation: silu}"
    ),
    "position": Note(
        "encodes positions; several may be listed, and a layer may have its own", "model.position: rotary"
    ),
    "mask": Note(
        "restricts what a token attends to; rules of the stack and of a layer are combined",
        "model.layer.mask: {type: window, size: 256}",
    ),
    "norm": Note(
        "normalizes activations; `norm: true` in other places uses the stack's norm",
        "model.layer.norm: {type: layer_norm, eps: 1e-6}",
    ),
    "residual": Note("connects sublayers and norms to the residual stream", "model.layer.residual: pre_norm"),
    "activation": Note(
        "elementwise function within another part", "model.layer.feedforward: {type: mlp, d_ff: 2048, activation: gelu}"
    ),
    "embedding": Note("maps token ids to vectors", "model.embedding: {type: tokens, scale: sqrt_d_model}"),
    "head": Note(
        "computes outputs from the last hidden states; `heads:` defines several by name",
        "model.head: {type: language_model, tied: true}",
    ),
    "init": Note("initializes the weights", "model.init: {type: normal, std: 0.02}"),
    "tokenizer": Note("converts between text and token ids", "data.tokenizer: {type: bpe, vocab_size: 8000}"),
    "corpus": Note(
        "provides examples: data.train, optionally data.valid and data.test",
        "data.train: {type: text, files: train.txt}",
    ),
    "objective": Note("defines the prediction task and its loss", "objective: causal_lm"),
    "optimizer": Note(
        "updates the weights from gradients; the schedule sets the learning rate",
        "train.optimizer: {type: adamw, weight_decay: 0.1}",
    ),
    "schedule": Note("sets the learning rate of each step", "train.schedule: {type: cosine, lr: 0.001, warmup: 100}"),
    "adapter": Note(
        "trains a few weights added to a frozen model and merges them into the published weights",
        "train.adapter: {type: lora, rank: 8, on: [query, value]}",
    ),
    "metric": Note(
        "scores a model in addition to the loss, in evaluate and at the end of training", "train.metrics: [perplexity]"
    ),
    "callback": Note(
        "observes a run; may read, log or stop it, or change weights", "train.callbacks: [{type: ema, decay: 0.999}]"
    ),
    "logits": Note(
        "modifies the scores of the next token, in the order listed",
        "generate.logits: [{type: no_repeat_ngram, size: 3}]",
    ),
    "stop": Note("ends a text as soon as one of the listed rules applies", "generate.stop: [end_token]"),
    "strategy": Note("selects the next token", "generate.strategy: greedy"),
}

Part = type[Component]

# attention that an objective requires -> topology that provides it
TOPOLOGIES = {"causal": "decoder", "bidirectional": "encoder", "encoder_decoder": "encoder_decoder"}


class Minimal(NamedTuple):
    """A recipe as plain data, or the `problem` that prevents one."""

    data: Tree | None
    problem: str | None = None


def minimal_recipe(part: Part) -> Minimal:
    """Return the smallest valid recipe that uses `part`, setting only required options."""
    try:
        of_model = part.part_slot in MODEL
        data = cases(part.part_slot, part.part_name)[0].recipe() if of_model else _in_section(part)
        load_recipe(data)
    except Exception as error:  # validators of custom parts may raise any exception
        return Minimal(None, describe(error, part))
    return Minimal(data)


def _in_section(part: Part) -> Tree:
    """Return a small model, with the part in the section of its slot."""
    topology = _topology(part)
    data = Case("model", topology, topology).recipe()
    key, _, written = SLOTS[part.part_slot].written.partition(": ")
    section, _, name = key.partition(".")
    options = {**Sampler().options(part.Config, part.example), **part.example}
    value: Any = {"type": part.part_name, **options} if options else part.part_name
    value = [value] if written.startswith("[") else value
    data[section] = {name: value} if name else value
    if part.part_slot == "objective":
        data["model"] |= _heads(part)
    if part.part_slot == "logits" and refusal(part, REGISTRY.get("strategy", "greedy")) is not None:
        data["generate"] = {"strategy": "sample", **data["generate"]}
    if section == "data":
        data["model"]["vocab_size"] = "tokenizer"
        corpus = "phrases" if topology == "encoder_decoder" else "docstrings"  # which need no files
        data["data"] = {"tokenizer": "character", "train": corpus, **data["data"]}
    return data


def _heads(part: Any) -> Tree:
    kind = part.heads[0]
    beside = {name: types[0] for name, types in part.beside.items()}
    named = {name: {"type": type_, **required("head", type_)} for name, type_ in beside.items()}
    return {"head": {"type": kind, **required("head", kind)}} | ({"heads": named} if named else {})


def _topology(part: Part) -> str:
    """Return the topology that the part requires, by default a decoder."""
    if issubclass(part, ObjectiveFacts) and part.reads is not None:
        return TOPOLOGIES[part.reads]
    return "encoder_decoder" if issubclass(part, CorpusFacts) and "target" in part.fields else "decoder"


def recipe_text(data: Tree, width: int) -> str:
    """Format a recipe; values are in flow style if they fit `width`, else in block style."""
    return "\n".join(_lines(_short(data), "", width))


def _lines(data: Options, indent: str, width: int) -> Iterator[str]:
    for key, value in data.items():
        line = f"{indent}{key}: {scalar(value)}"
        nested = isinstance(value, Mapping) and any(isinstance(entry, Mapping) for entry in value.values())
        if isinstance(value, str) and len(line) > width:
            yield from _folded(line, indent + "  ", width)
        elif not isinstance(value, (Mapping, list)) or (len(line) <= width and not nested):
            yield line
        else:
            yield f"{indent}{key}:"
            deeper = indent + "  "
            yield from _items(value, deeper, width) if isinstance(value, list) else _lines(value, deeper, width)


def _items(entries: Sequence[object], indent: str, width: int) -> Iterator[str]:
    """Format a list, one entry per line."""
    for entry in entries:
        line = f"{indent}- {scalar(entry)}"
        if isinstance(entry, Mapping) and len(line) > width:
            first, *rest = _lines(entry, indent + "  ", width)
            yield f"{indent}- {first.strip()}"
            yield from rest
        else:
            yield line


def _folded(line: str, indent: str, width: int) -> Iterator[str]:
    """Break a quoted text at single spaces, where YAML reads a line break as a space; long words are not broken."""
    first, *words = re.split(r"(?<=[^ ]) (?=[^ ])", line.lstrip(" "))
    line = indent[:-2] + first
    for word in words:
        if len(line) + 1 + len(word) <= width:
            line += f" {word}"
        else:
            yield line
            line = indent + word
    yield line


def _short(value: object) -> Any:
    """Replace parts without options by their name."""
    if isinstance(value, Mapping):
        return value["type"] if set(value) == {"type"} else {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value


ROOT = Path(tfkit.__file__).parents[1]

# a citation in parentheses, with a year or an arXiv number: (Press et al. 2021, arXiv 2108.12409)
PAPER = re.compile(r"\s*\(([^()]*(?:\b(?:19|20)\d\d\b|\barXiv\b)[^()]*)\)")
ARXIV = re.compile(r"\b\d{4}\.\d{4,5}\b")


def slot_data(slot: str) -> dict[str, object]:
    """Return the purpose of a slot, and a summary of each part."""
    note = SLOTS[slot]
    parts = [line_data(REGISTRY.get(slot, name)) for name in REGISTRY.names(slot)]
    return {"slot": slot, "purpose": note.purpose, "written": note.written, "parts": parts}


def line_data(part: Part) -> dict[str, object]:
    """Summarize a part; `what` is the first sentence without its citation; `own` is true for custom parts."""
    doc = inspect.cleandoc(part.__doc__ or "")
    sentence = " ".join(doc.partition("\n\n")[0].split())
    papers = PAPER.findall(sentence) or PAPER.findall(" ".join(doc.split()))
    return {
        "name": part.part_name,
        "what": PAPER.sub("", sentence).removesuffix("."),
        "paper": "; ".join(papers) or None,
        "arxiv": ARXIV.findall("; ".join(papers)),
        "own": not is_shipped(part),
        "file": file_of(part),
    }


def part_data(part: Part, width: int = 80) -> dict[str, object]:
    """Describe a part. Its minimal recipe is wrapped to `width`, or is None for the reason in `recipe_problem`."""
    minimal = minimal_recipe(part)
    # capabilities that a rule requires, or that any part in the slot declares
    relevant = {rule.capability for rule in RULES if part.part_slot in rule.slots}
    relevant = relevant.union(*(other.able() for other in REGISTRY.load(part.part_slot).values()))
    return {
        "slot": part.part_slot,
        **line_data(part),
        "doc": inspect.cleandoc(part.__doc__ or ""),
        "fields": list(options_of(part.Config)),
        "checked": _checked(part.Config),
        "capabilities": {name: name in part.able() for name in CAPABILITIES if name in relevant},
        "asks": {rule.capability: list(rule.slots) for rule in requirements_of(part)},
        "needs": sorted(part.needs),
        "recipe": None if minimal.data is None else recipe_text(minimal.data, width),
        "recipe_problem": minimal.problem,
    }


def file_of(part: Part) -> str | None:
    """Return the file that defines a part, relative if possible; None if it was defined interactively."""
    file = source_file(part)
    for folder in (ROOT, Path.cwd()):
        if file is not None and Path(file).is_relative_to(folder):
            return str(Path(file).relative_to(folder))
    return file


def options_of(model: type[BaseModel], prefix: str = "", when: str = "") -> Iterator[dict[str, object]]:
    """Yield the options of a part; options of nested mappings have dotted names."""
    for name, field in model.model_fields.items():
        yield {
            "name": prefix + name,
            "type": in_words(field),
            "required": field.is_required(),
            "default": None if field.is_required() else spell(field.get_default(call_default_factory=True)),
            "meaning": when + (field.description or ""),
            "limits": limits(field),
        }
        inner = sections(field)
        for section in inner:
            yield from options_of(section, f"{prefix}{name}.", _kind(section) if len(inner) > 1 else "")


def _kind(section: type[BaseModel]) -> str:
    kind: FieldInfo | None = section.model_fields.get("type")
    return f"{in_words(kind) if kind else section.__name__}: "


def _checked(config: type[Config]) -> list[str]:
    """Return the options that the validators of the part itself read."""
    checks = [kind.__dict__["check"] for kind in config.__mro__ if "check" in kind.__dict__]
    checks += [validator.func for validator in config.__pydantic_decorators__.model_validators.values()]
    read = {name for check in checks for name in inspect.unwrap(check).__code__.co_names}
    return [name for name in config.model_fields if name in read]
