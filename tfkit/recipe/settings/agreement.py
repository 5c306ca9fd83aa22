"""Checks that involve several sections, the model or files: the rule table, each part, contradictions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component, Config, Doubt, Problem
from tfkit.core.errors import Fault, by_place, is_shipped
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.inputs import TEXT_FIELDS
from tfkit.core.slots import ObjectiveFacts, TokenizerFacts, of_kind
from tfkit.core.synonyms import nearest
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.rules import FACTS, reason, requirements_of
from tfkit.recipe.settings.sections import Data
from tfkit.recipe.settings.split import Partition
from tfkit.recipe.text.faults import Faults, NamedPath, named_paths, values_of
from tfkit.recipe.text.node import Node, mapping, node_at
from tfkit.storage.files import why_missing


class Standing(NamedTuple):
    """A part and its path in the recipe."""

    config: Config
    path: str


def parts_in(section: BaseModel | None, path: str) -> Iterator[Standing]:
    """Yield the parts directly in the section at `path`; if it is a part itself, yield that. Skip nested parts."""
    if isinstance(section, Config):
        yield Standing(section, path)
    elif section is not None:
        for where, value, _ in values_of(section, path):
            yield from parts_in(value, where) if isinstance(value, BaseModel) else ()


class Agreement:
    """Checks of the requirements between the parts of the recipe `root`; problems are added to `faults`."""

    def __init__(self, root: Node, parts: Sequence[Standing], facts: RecipeFacts, faults: Faults) -> None:
        self.root, self.parts, self.facts, self.faults = root, parts, facts, faults

    def check(self) -> None:
        """Run all checks: the requirements of each part by the rule table, and `check_recipe` of each part."""
        blueprint, candidates = self.facts.blueprint, list(self.parts)
        if blueprint is not None and blueprint.decoder is not None and blueprint.decoder.caches:
            subs = [sub for layer in blueprint.decoder.layers for sub in layer.sublayers if not sub.memory]
            candidates += [Standing(sub.config, f"model.decoder.layer.{sub.name}") for sub in subs]  # with a state
        for asker in self.parts:
            for rule in requirements_of(asker.config):
                refused = next((other for other in candidates if rule.refuses(other.config)), None)
                if refused is not None:
                    text = reason(rule, refused.config, asker.config.part)
                    self.tell(asker.path, [Problem("", f"{text} (see {spot(self.root, refused.path)[0].place})")])
        for config, path in (*self.parts, *(() if blueprint is None else model_parts(blueprint))):
            if isinstance(config, RecipeConfig):
                self.tell(path, config.check_recipe(self.facts))

    def tell(self, path: str, problems: Iterator[Problem] | Sequence[Problem]) -> None:
        """Add the problems of the part at `path`; a problem may name a different path."""
        for problem in problems:
            node, full = spot(self.root, ".".join(filter(None, [problem.at or path, problem.option])))
            if isinstance(problem, Doubt):
                self.faults.warn(node, problem.message, path=full)
            else:
                self.faults.add(node, problem.message, problem.suggestion, path=full)


def model_parts(blueprint: Blueprint) -> Iterator[Standing]:
    """Yield the embeddings and the heads of a model."""
    for plan in blueprint.stacks():
        if plan.embedding is not None:
            yield Standing(plan.embedding, f"model.{plan.side}.embedding")
    if blueprint.head is not None:
        yield Standing(blueprint.head, "model.head")
    yield from (Standing(head, f"model.heads.{name}") for name, head in blueprint.heads)


def spot(root: Node, path: str) -> tuple[Node, str]:
    """Return the node at a path, or its nearest ancestor, and the path as written in the recipe."""
    node, rest = locate(root, path)
    return node, ".".join(filter(None, [node.path, *rest])).replace(".[", "[")


def locate(root: Node, path: str) -> tuple[Node, Sequence[str]]:
    """Return the node at a path, or its nearest ancestor with the missing keys.

    A path such as `model.decoder.layer` also finds `model.layer`, which may be shared or belong to the only stack.
    """
    node, rest = _walk(root, path)
    for side in ("encoder", "decoder"):
        if rest and path.startswith(f"model.{side}."):
            shared, missing = _walk(root, path.replace(f".{side}", "", 1))
            model = root.get("model")
            one_stack = model is None or model.get(side) is None
            node, rest = (shared, missing) if one_stack or not missing else (node, rest)
    return node, rest


def _walk(node: Node, path: str) -> tuple[Node, Sequence[str]]:
    steps = path.replace("[", ".[").split(".")
    for place, step in enumerate(steps):
        if not step.startswith("["):
            inner = node.get(step)
        else:  # a single part counts as a list of one
            several, index = node.value if isinstance(node.value, list) else [node], int(step[1:-1])
            inner = several[index] if index < len(several) else None
        if inner is None:
            return node, steps[place:]
        node = inner
    return node, ()


# direction of an objective -> description of the model that it trains
WANTED = {
    "encoder_decoder": "an encoder_decoder",
    "causal": "a causal stack (model.type: decoder)",
    "bidirectional": "a bidirectional stack (model.type: encoder)",
}
SIDES = {"encoder": "source", "decoder": "target"}  # stack -> the text of a pair that it reads


def data_parts(data: Node | None) -> tuple[dict[str, TokenizerFacts.Config], dict[str, Config]]:
    """Return the valid tokenizers by path and the valid corpora by split from a `data:` section with faults."""
    preparer, keys = Preparer(Faults()), mapping(data)  # these faults were reported with the section
    tokenizer = node_at(keys, "tokenizer")
    sides = [side for name in ("source", "target") if (side := mapping(tokenizer).get(name)) is not None]
    tokenizers, corpora = {}, {}
    for node in [tokenizer] if "type" in mapping(tokenizer) or not sides else sides:
        choice = None if node is None else of_kind(preparer.config(node, "tokenizer"), TokenizerFacts.Config)
        if node is not None and choice is not None:
            tokenizers[node.path] = choice
    for split in ("train", "valid", "test", "longer"):
        corpus = node_at(keys, split)
        config = None if corpus is None else preparer.of_corpora(data).config(corpus, "corpus")
        if config is not None:
            corpora[split] = config
    return tokenizers, corpora


class Contradictions:
    """Checks of other sections of the recipe `root` against the resolved model."""

    def __init__(self, root: Node, blueprint: Blueprint, faults: Faults) -> None:
        self.root, self.blueprint, self.faults = root, blueprint, faults

    def _near(self, path: str) -> Node:
        return locate(self.root, path)[0]

    def check_split(self, data: Data, split: Partition) -> None:
        """Check `data.split`: its options, that no split is configured besides it, and that its corpus has none."""
        place, train = self._near("data.split").place, data.train
        for name in split.idle:
            how = "on a division by place" if split.by_place else "without shares to draw"
            self.faults.add(self._near(f"data.split.{name}"), f"has no effect {how}; remove it")
        if not split.cut:
            return
        for name in (name for name in ("valid", "test") if getattr(data, name) is not None):
            text = f"conflicts with data.split (at {place}), which cuts {name} from data.train; remove one of them"
            self.faults.add(self._near(f"data.{name}"), text, at_key=True)
        if dict(train).get("split") is not None:
            text = f"'{train.part.part_name}' has splits of its own, which data.split (at {place}) would divide again"
            self.faults.add(self._near("data.train.split"), f"{text}; remove data.split")

    def check_objective(self, objective: ObjectiveFacts.Config) -> None:
        """Check the direction and the heads of the model against the objective."""
        required, has, name = objective.part.reads, direction_of(self.blueprint), objective.part.part_name
        if required is not None and has != required and has not in objective.part.also:
            place = self._near("model.type").place
            text = f"'{name}' trains {WANTED[required]}, but this model is {WANTED[has]}, see {place}"
            self.faults.add(self._near("objective.type"), text)
        for head, types in [(objective.trained_head(), objective.part.heads), *objective.part.beside.items()]:
            self._check_head(objective, head, types)

    def _check_head(self, objective: ObjectiveFacts.Config, name: str | None, required: Sequence[str]) -> None:
        """Check that the trained head (`name`, or the model's head) has the right type and is on the last stack."""
        head = self.blueprint.head if name is None else dict(self.blueprint.heads).get(name)
        written = at(self.root, "model", *(("head",) if name is None else ("heads", name)))
        if head is None and written is not None and written.value is not None:
            return  # the head has faults, which are already reported
        last = self.blueprint.last
        if required and (head is None or not serves(head.part, required)):
            what = "head" if name is None else f"head '{name}'"
            has = f"the model has no {what}" if head is None else f"the {what} is '{head.part.part_name}'"
            types = " or ".join(required)
            text = f"objective '{objective.part.part_name}' needs a {what} of type {types}; {has}"
            self.faults.add(written or self._near("model"), text)
        elif written and head and is_shipped(objective.part) and self.blueprint.read_by(head) is not last:
            text = f"'{objective.part.part_name}' trains this head on the {last.side}"
            self.faults.add(at(written, "reads") or written, f"{text}; set reads: {last.side}, or remove reads")

    def check_labels(self, nodes: Sequence[Node], objective: ObjectiveFacts.Config | None) -> None:
        """Check that only the head trained by an objective with labels has `num_classes: labels`."""
        name = None if objective is None else objective.trained_head()
        trains = "head" if name is None else f"heads.{name}"
        for node in nodes:
            if objective is None or not objective.part.rows_type.labelled:
                why = "there is no objective" if objective is None else f"'{objective.part.part_name}' has no labels"
                text = f"labels are collected from the corpus by the objective, but {why}; use a number"
                self.faults.add(node, text)
            elif node.path.rpartition(".")[0] != f"model.{trains}":
                self.faults.add(node, f"only model.{trains}, which the objective trains, has labels; use a number")

    def check_calls(self, objective: ObjectiveFacts.Config) -> None:
        """Check that the objective provides the inputs that parts require, and that all parts support its batches."""
        name, gives, node = objective.part.part_name, objective.part.gives, at(self.root, "objective") or self.root
        pack = at(self.root, "data", "batch", "pack")
        packed = pack if pack is not None and pack.value is True else None
        if packed is not None and "packing" not in objective.part.capabilities:
            pairs = objective.part.reads == "encoder_decoder"
            why = ": cross-attention cannot separate the sources of a packed row" if pairs else ""
            self.faults.add(packed, f"'{name}' does not support packing{why} (see {node.place})")
        parts = {config.part for plan in self.blueprint.stacks() for config in plan.parts()}
        for part in sorted(parts, key=lambda part: (part.part_slot, part.part_name)):
            for need in sorted(part.needs - gives):
                who = f"{part.part_slot} '{part.part_name}'"
                self.faults.add(node, f"'{name}' does not provide {need}, which {who} requires in every call")
            if "attention_mask" in gives and (rule := FACTS["a batch with padding"]).refuses(part):
                self.faults.add(node, f"{reason(rule, part)}; '{name}' pads its batches")
            if packed is not None and (rule := FACTS["a packed batch"]).refuses(part):
                self.faults.add(packed, reason(rule, part))
        shards = at(self.root, "data", "shards")
        for extra, one in self.blueprint.extra_inputs.items():
            what = f"the input '{extra}', which {' and '.join(one.readers)} reads"
            if "inputs" not in gives:
                self.faults.add(node, f"'{name}' does not pass {what}")
            if packed is not None:
                self.faults.add(packed, f"{what}, belongs to a row, but packed texts share a row; remove pack")
            if shards is not None and shards.value is True:
                self.faults.add(shards, f"{what}, is held in memory with the texts; remove shards")

    def check_sides(self, objective: ObjectiveFacts.Config | None) -> None:
        """Check that the objective supports one tokenizer per side, and that the stacks do not share a token table."""
        node = self._near("data.tokenizer")
        if objective is not None and "two_vocabularies" not in objective.part.capabilities:
            place = self._near("objective.type").place
            text = f"objective '{objective.part.part_name}' (see {place}) uses a single tokenizer; set only one"
            self.faults.add(node, text, at_key=True)
        if self.blueprint.shared_embedding:
            shared = at(self.root, "model", "embedding", "shared") or self._near("model")
            text = f"one token table cannot serve the two vocabularies of data.tokenizer (see {node.place})"
            self.faults.add(shared, f"{text}; remove shared, or use one tokenizer")

    def check_tokenizers(self, tokenizers: Mapping[str, TokenizerFacts.Config]) -> None:
        """Check that no tokenizer may have more tokens than its stack."""
        for plan in self.blueprint.stacks():
            for path, tokenizer in tokenizers.items():
                size = tokenizer.vocabulary_bound
                of_stack = len(tokenizers) == 1 or path.endswith(f".{SIDES[plan.side]}")
                if not of_stack or size is None or plan.vocab_size is None or plan.vocab_size >= size:
                    continue
                node = at(self.root, *path.split("."), "vocab_size") or self._near("data")
                place = self._near(f"model.{plan.side}.vocab_size").place
                text = f"the tokenizer may have {size} tokens, but vocab_size is {plan.vocab_size} (see {place})"
                self.faults.add(node, text)

    def check_corpora(self, corpora: Mapping[str, Config], objective: ObjectiveFacts.Config) -> None:
        """Check that every corpus provides the fields that the objective needs."""
        provided = {split: set(corpus.build().fields) for split, corpus in corpora.items()}
        required = set(objective.part.rows_type.read_fields(provided.get("train", set())))
        for split, fields in provided.items():
            if missing := ", ".join(sorted(required - fields)):
                has = ", ".join(sorted(fields))
                text = f"'{objective.part.part_name}' needs the fields {missing}; this corpus has {has}"
                self.faults.add(self._near(f"data.{split}"), text)
            for name, one in self.blueprint.extra_inputs.items():
                if name not in fields:
                    text = f"{' and '.join(one.readers)} reads the input '{name}', which this corpus does not have"
                    self.faults.add(self._near(f"data.{split}"), f"{text}; add {name} to its fields")
            tagged = objective.part.rows_type.tagged and not required.isdisjoint(("source", "text"))
            if "tag" in fields and not (tagged and "tag" in provided.get("train", fields)):
                who = "data.train has no" if tagged else f"'{objective.part.part_name}' does not read a"
                self.faults.add(self._near(f"data.{split}.fields.tag"), f"{who} tag; remove it here")
            for name in sorted(fields - {*required, *TEXT_FIELDS, *self.blueprint.extra_inputs}):
                node = at(self.root, "data", split, "fields", name)
                text = f"neither '{objective.part.part_name}' nor a part of the model reads the field '{name}'"
                if node is not None:
                    self.faults.warn(node, text)


def serves(head: type[Component], accepted: Sequence[str]) -> bool:
    """True if the head has one of the accepted types or extends one, or is a user's own head with a `loss`."""
    types = [base.part_name for base in head.__mro__ if issubclass(base, Component)]
    return not set(types).isdisjoint(accepted) or (not is_shipped(head) and hasattr(head, "loss"))


def direction_of(blueprint: Blueprint) -> str:
    """Return the direction of the last stack, or the default of the model's type if the layers have faults."""
    if blueprint.encoder is not None and blueprint.decoder is not None:
        return "encoder_decoder"
    plan = blueprint.last
    causal = plan.causal if plan.layers else blueprint.type.part.sides[plan.side]
    return "causal" if causal else "bidirectional"


def at(node: Node, *keys: str) -> Node | None:
    """Return the descendant of `node` at these keys, or None."""
    found: Node | None = node
    for key in keys:
        found = None if found is None else found.get(key)
    return found


def is_stream(data: Data, objective: ObjectiveFacts.Config | None) -> bool:
    """True if the objective joins running text to one stream."""
    return data.train.part.running and bool(dict(objective or ()).get("join"))


def placed(data: Data, objective: ObjectiveFacts.Config | None) -> Data:
    """Set `data.split.by_place` if it is none."""
    if (split := data.split) is None or split.by_place is not None:
        return data
    by_place = is_stream(data, objective) and split.by is None and not split.lists
    return data.model_copy(update={"split": split.model_copy(update={"by_place": by_place})})


FOLDER = "data.folder"
CORPORA = ("data.train.", "data.valid.", "data.test.", "data.longer.", "data.split.")


def missing_files(root: Node, sections: Mapping[str, object], blueprint: Blueprint) -> list[Fault]:
    """Return a fault for each missing file or run folder that the recipe `root` reads.

    Files of a user's own parts are not checked.
    """
    owners = [(value, path) for path, value in sections.items() if isinstance(value, BaseModel)]
    paths = [named for owner, path in [*owners, *model_parts(blueprint)] for named in named_paths(owner, path)]
    shipped = [named for named in paths if not isinstance(named.owner, Config) or is_shipped(named.owner.part)]
    return by_place(fault for named in shipped if (fault := _missing(root, named)) is not None)


def _near(path: Path) -> str | None:
    """Return a file with a similar name in the folder of the missing `path`; None for a broken link."""
    with contextlib.suppress(OSError, ValueError):
        names = [entry.name for entry in islice(path.parent.iterdir(), 10_000)]
        name = None if path.name in names else nearest(path.name, names)
        return None if name is None else str(path.parent / name)
    return None


def _missing(root: Node, named: NamedPath) -> Fault | None:
    path, kind = named.path, named.mark.of
    is_file = kind == "file"
    if named.at == FOLDER or (os.path.isfile(path) if is_file else os.path.isdir(path)):
        return None  # data.folder itself is not checked, only the corpus files in it
    node, full = spot(root, named.at)
    (base, rest), of_corpus = locate(root, FOLDER), full.startswith(CORPORA)
    is_moved = of_corpus and node.place.is_shipped and not rest and isinstance(base.value, str)
    place = base.place if is_moved else node.place
    if not os.path.exists(path):
        if set("*?") & set(path):
            return Fault(place, full, f"no such {kind}: {path}; patterns are not expanded, so write each name")
        other = ", or --set data.folder=PATH for all of them" * of_corpus
        advice = f"; to use another one: --set {full}=PATH{other}" * ("[" not in full)
        return Fault(place, full, f"{why_missing(path, kind)}: {path}{advice}", _near(Path(path)))
    if is_file and not os.path.isdir(path):
        return None  # such as a pipe
    return Fault(place, full, f"{path} is a {'folder' if is_file else 'file'}; expected a {kind}")


def unused_folder(data: Data) -> Iterator[Problem]:
    """Yield a problem if no corpus file of `data` is in `data.folder`."""
    paths = [Path(named.path) for _, corpus in data.splits() for named in named_paths(corpus)]
    if not any(path.is_relative_to(str(data.folder)) for path in paths):
        text = "has no effect: no corpus path is relative to it; remove folder, or shorten the corpus paths"
        yield Problem("folder", text, at="data")
