"""Preparation of a training run from its recipe: tokenizer, data and model, and the shapes of custom parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.components.residual import Residual
from tfkit.components.sublayer import Sublayer
from tfkit.core.blame import own_parts
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component
from tfkit.core.errors import DataError, Fault, RecipeError, UsageError, is_shipped, origin
from tfkit.core.output import counted
from tfkit.core.slots import PositionFacts, TokenizerFacts
from tfkit.data.corpus.base import TAGGED
from tfkit.data.tokenizer import Character, Ids, Tokenizer
from tfkit.data.tokenizer.symbols import SymbolTokenizer
from tfkit.models import Model, build_model
from tfkit.models.build import build_sample, meta_inputs
from tfkit.models.layer import Layer
from tfkit.recipe.architecture.stack import VocabSize
from tfkit.recipe.compose import named_like, shipped_tasks
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings import section_rules
from tfkit.recipe.settings.agreement import CORPORA
from tfkit.recipe.settings.sections import TOKENIZER, Data, Train
from tfkit.runs.folder import RunFolder
from tfkit.runs.history import check_memory, choose_device, describe, describe_products
from tfkit.runs.kept import KEPT, kept_templates
from tfkit.runs.record import Hashes, example_hashes
from tfkit.training.adapter import Adaptation
from tfkit.training.distillation import Distillation
from tfkit.training.feed import VALID, Feed
from tfkit.training.initial import fill_vectors, freeze, layer_faults, start_from
from tfkit.training.objective import Objective
from tfkit.training.objective.rows import logger
from tfkit.training.processes import parts_of
from tfkit.training.progress import Reporter
from tfkit.training.scoring import rehearse
from tfkit.training.splits import Split, is_sharded, learned_from, learned_once, missing_packages
from tfkit.training.teacher import Pupil, TeacherRun, check_lengths, check_teacher, load_teacher, rewritten

# slots whose parts must return a tensor of their input's shape
KEEPERS = frozenset({"attention", "mixer", "feedforward", "norm", "activation"})
MIXING = frozenset({"attention", "mixer"})
LENGTH = 4


def check_widths(blueprint: Blueprint) -> None:
    """Raise UsageError if a custom part changes the shape of its input, or leaves out tokens. Nothing is allocated.

    A custom residual layout may use sublayers and norms of other widths, but not attentions and mixers of fewer tokens.
    """
    own = tuple(part for part in own_parts() if part.part_slot in KEEPERS)
    if not own and all(part.part_slot != "residual" for part in own_parts()):
        return
    model = build_sample(blueprint)
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    layouts = [(type(layer.residual), layer) for layer in layers if not is_shipped(type(layer.residual))]
    free = {part: layout for layout, layer in layouts for part in layer.children()}
    parts = [module for module in model.modules() if isinstance(module, own) and module not in free]
    mixing = [module for module in free if isinstance(module, Sublayer) and module.part_slot in MIXING]
    if not parts and not mixing:
        return
    for module in parts:
        module.register_forward_hook(_check)
    for sublayer in mixing:
        sublayer.register_forward_pre_hook(partial(_check_tokens, free[sublayer]))
    length = min(plan.max_length or LENGTH for plan in blueprint.stacks())
    with contextlib.suppress(RuntimeError, TypeError, ValueError):  # training reports other failures
        model(**meta_inputs(model, min(length, LENGTH), batch=2))


def _check(module: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
    """Raise UsageError if output and input shapes differ."""
    if not isinstance(module, Component) or not inputs or not isinstance(inputs[0], Tensor):
        return
    part, given = type(module), list(inputs[0].shape)
    got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if got != given:
        raise UsageError(
            f"{part.part_slot} '{part.part_name}' of {origin(part)}: returns {got} for an input of {given}; the output "
            "must have the shape of the input"
        )


def _check_tokens(layout: type[Residual], module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise UsageError if a residual layout calls a sublayer with some tokens only."""
    if len(inputs) != 2 or not isinstance(module, Sublayer) or not isinstance(inputs[0], Tensor):
        return
    got, all_tokens = inputs[0].shape[1], inputs[1].mask.span.queries
    if got != all_tokens:
        raise UsageError(
            f"residual '{layout.part_name}' of {origin(layout)}: calls {module.part_slot} '{module.part_name}' with "
            f"{got} of {all_tokens} tokens, but masks, positions and caches are those of all tokens; call it with all, "
            "and choose among its outputs"
        )


Labels = tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """Everything needed to train: the model, its data and its settings.

    `recipe` has the number of labels filled in. `hashes` identify examples that were not read from files.
    """

    recipe: Recipe
    model: Model
    tokenizer: Tokenizer
    objective: Objective
    settings: Train
    steps: int
    train: Feed
    valid: Feed | None
    hashes: Hashes
    distillation: Distillation | None = None
    adaptation: Adaptation | None = None

    @property
    def trained(self) -> nn.Module:
        """All trainable modules: the model, the objective's own and the adapter's."""
        found = {"model": self.model, **self._more()}
        return self.model if len(found) == 1 else nn.ModuleDict(found)

    @property
    def beside(self) -> nn.Module | None:
        """The trainable modules other than the model; checkpoints include them."""
        found = self._more()
        return found.get("objective") if "adapter" not in found else nn.ModuleDict(found)

    def _more(self) -> dict[str, nn.Module]:
        found = {"objective": self.objective.module, "adapter": self.adaptation}
        return {name: module for name, module in found.items() if module is not None}


def prepare(
    recipe: Recipe, reporter: Reporter, tokenizer: Tokenizer | None = None, initial: bool = True, labels: Labels = ()
) -> Task:
    """Read the data and build the model.

    A resumed run passes its `tokenizer` and `labels`, and `initial=False` to skip the loading of initial weights.
    Raise UsageError or DataError for invalid settings or data, or for a model too large for the machine.
    """
    data, objective = _needed(recipe)
    _check_files(recipe, initial, tokenizer)
    settings, device = recipe.train, choose_device(recipe.train.device)
    if not recipe.unknown_vocab and not recipe.unknown_labels:
        _check_size(recipe.blueprint(), settings, device)
    splits = {name: _split(recipe, data, objective, name) for name, _ in data.splits()}
    tokenizer = _fitted(recipe, data, objective, splits["train"]) if tokenizer is None else tokenizer
    recipe = _labelled(recipe, objective, splits["train"], labels)
    blueprint = _blueprint(recipe, tokenizer, learned_from(data, splits["train"]))
    check_vocabulary(recipe, blueprint, tokenizer, learned_from(data, splits["train"]))
    _check_classes(blueprint, objective, splits["train"])
    if initial and (faults := layer_faults(recipe, blueprint)):
        raise RecipeError(faults)
    _check_size(blueprint, settings, device)
    objective.rows.read_model(blueprint)
    longest = longest_example(blueprint, data)
    learned = {name: split for name, split in splits.items() if name in ("train", "valid")}
    hashes = example_hashes(data, {name: split.examples for name, split in learned.items() if not split.sharded})
    if (teacher := load_teacher(recipe)) is not None:
        check_teacher(recipe, teacher, Pupil(blueprint, tokenizer, objective, data.batch.pack))
    items = {name: split.items(tokenizer, longest, data.batch) for name, split in learned.items()}
    rehearse(recipe, blueprint, tokenizer, splits, longest)
    if teacher is not None and teacher.settings.sequences is not None:
        split = splits["train"]
        split.examples = rewritten(teacher, split.examples, objective, recipe.generate, device, reporter)
        items["train"] = split.items(tokenizer, longest, data.batch)
    train = Feed(objective, items["train"], data.batch, settings.seed, device)
    valid = Feed(objective, items["valid"], data.batch, settings.seed, device, VALID) if "valid" in items else None
    steps = _counted(recipe, train, reporter)
    if teacher is not None:
        check_lengths(recipe, teacher, train)
    model = _model(blueprint, settings, device, tokenizer, reporter, initial)
    objective.attach(model)
    _announce(model.blueprint, train, valid, len(splits["train"]), tokenizer, reporter)
    distillation = None if teacher is None else _taught(teacher, objective, model, device, reporter)
    adaptation = _adapted(model, settings, reporter)
    return Task(recipe, model, tokenizer, objective, settings, steps, train, valid, hashes, distillation, adaptation)


def _split(recipe: Recipe, data: Data, objective: Objective, name: str) -> Split:
    """Build a split, whose examples also have the fields that metrics group by."""
    config = dict(data.splits())[name]
    split = Split(config, objective, is_sharded(recipe, config))
    split.corpus.also = recipe.train.grouped_by(name)
    return split


def learned_sizes(recipe: Recipe) -> tuple[VocabSize, int]:
    """Read the vocabulary size and the number of labels from the training corpus."""
    data, objective = _needed(recipe)
    _check_files(recipe, False, None)
    split = _split(recipe, data, objective, "train")
    tokenizer = _fitted(recipe, data, objective, split)
    _labelled(recipe, objective, split, ())
    return tokenizer.sizes, len(objective.rows.labels)


def refused_texts(recipe: Recipe) -> Iterator[Fault]:
    """Yield a fault for each split with a label or text that is refused; texts only by some tokenizers."""
    data, objective = _needed(recipe)
    splits = {name: _split(recipe, data, objective, name) for name, _ in data.splits()}
    if all(split.is_small for split in splits.values()) and not recipe.missing_files():
        picky = any(issubclass(one.part, Character | Ids | SymbolTokenizer) for one in data.tokenizers().values())
        tokenizer = _fitted(recipe, data, objective, splits["train"]) if picky else None
        found = {name: split.refusal(tokenizer) for name, split in splits.items()}
        yield from (recipe.fault(f"data.{name}", why) for name, why in found.items() if why)


def steps_of(recipe: Recipe) -> int:
    """Return the number of optimizer steps. If the recipe sets epochs, this reads the training data."""
    if recipe.train.steps is not None:
        return recipe.train.steps
    data, objective = _needed(recipe)
    _check_files(recipe, False, None)
    split = _split(recipe, data, objective, "train")
    tokenizer = _fitted(recipe, data, objective, split)
    recipe = _labelled(recipe, objective, split, ())
    blueprint = _blueprint(recipe, tokenizer, learned_from(data, split))
    items = split.items(tokenizer, longest_example(blueprint, data), data.batch)
    return _counted(recipe, Feed(objective, items, data.batch, recipe.train.seed, torch.device("cpu")))


def _counted(recipe: Recipe, train: Feed, reporter: Reporter | None = None) -> int:
    """Return the number of optimizer steps, computed from epochs if necessary.

    Raise RecipeError if another setting, such as warmup, exceeds it.
    """
    steps, epochs = recipe.train.steps, recipe.train.epochs
    if steps is not None or epochs is None:
        return steps or 0
    steps = train.steps(epochs, recipe.train.accumulate)
    recipe.check_steps(steps)
    if reporter is not None:
        reporter.say(f"{counted(epochs, 'epoch')}: {counted(steps, 'step')}")
    return steps


def _needed(recipe: Recipe) -> tuple[Data, Objective]:
    if recipe.data is None or recipe.objective is None:
        missing = " and ".join(name for name in ("data", "objective") if getattr(recipe, name) is None)
        task = named_like(recipe.name.partition("-")[0], shipped_tasks())
        hint = f". Did you mean '{task}'?" if task else ""
        text = f"training requires {missing} in the recipe; this one only describes a model"
        raise UsageError(f"{recipe.name}: {text}{hint}")
    return recipe.data, recipe.objective.build()


def _check_files(recipe: Recipe, initial: bool, tokenizer: Tokenizer | None) -> None:
    """Raise RecipeError if a file or package needed for training is missing."""
    needed = [*CORPORA, "generate", "train.teacher"]
    needed += [] if tokenizer is not None else ["data.tokenizer"]
    needed += ["train.init_from", "model"] if initial else []
    missing = [fault for fault in recipe.missing_files() if fault.path.startswith(tuple(needed))]
    missing += missing_packages(recipe)
    if missing:
        raise RecipeError(missing)
    source = recipe.train.initial
    if initial and source is not None and RunFolder(Path(source.run)).holds_quantized:
        text = f"{source.run} contains quantized weights, which cannot be trained; use the original run"
        raise RecipeError([recipe.fault("train.init_from", text)])
    ours = dict(recipe.objective or ()).get("template", "") is None  # of objective: chat
    if initial and source is not None and ours and kept_templates(Path(source.run)):
        text = "messages are written in tfkit's format, not with the chat template of"
        logger.warning("objective.template is not set: %s %s; set it to that text", text, Path(source.run) / KEPT)


def _fitted(recipe: Recipe, data: Data, objective: Objective, split: Split) -> Tokenizer:
    """Fit the tokenizer to all fields of the objective, or separate source and target tokenizers to one field each."""
    rows, present = objective.rows, split.given
    required = rows.read_fields(present)
    missing = [field for field in required if field not in present]
    if missing:
        raise DataError(
            f"{split.corpus.name()}: {objective.part_name} requires {' and '.join(required)}, but the examples "
            f"have {' and '.join(present) or 'no fields'}"
        )
    found: list[Tokenizer] = []
    fields = rows.text_fields(required) if "vectors" in required else rows.tokenized or rows.fields
    for path, config in data.tokenizers().items():
        side = path.removeprefix(f"{TOKENIZER}.")
        try:
            found.append(_learned(config, split, fields if path == TOKENIZER else [side]))
        except DataError as error:
            raise RecipeError([recipe.fault(path, f"{error} ({learned_from(data, split)})")]) from None
    if not found:
        return Tokenizer.empty()
    return found[0] if len(found) == 1 else found[1].beside(found[0])


def _learned(config: TokenizerFacts.Config, split: Split, fields: Sequence[str]) -> Tokenizer:
    """Fit a tokenizer to these fields. The tokenizer of a sharded corpus is cached."""

    def learn() -> Tokenizer:
        fitted: Tokenizer = config.build().fit(split.texts(fields))
        tags = split.tags() if set(TAGGED).intersection(fields) else []
        return fitted.with_tags(tags) if tags or fitted.tags else fitted

    return learned_once(config, split.config, list(fields), learn) if split.sharded and config.part.learns else learn()


def _labelled(recipe: Recipe, objective: Objective, split: Split, labels: Labels) -> Recipe:
    """Collect the labels from the training data, and fill in their number in the recipe."""
    objective.rows.labels = labels
    if objective.rows.labelled:
        with split.located():
            objective.rows.learn(split.examples)
    if recipe.unknown_labels and not objective.rows.labels:
        raise DataError(f"{split.corpus.name()}: no example has a label, so {objective.part_name} has no classes")
    return recipe.labelled(len(objective.rows.labels))


def _check_classes(blueprint: Blueprint, objective: Objective, split: Split) -> None:
    """Raise DataError if the data have more labels than the trained head has classes."""
    name = objective.config.trained_head()
    head = blueprint.head if name is None else dict(blueprint.heads).get(name)
    split.check_classes(head, "model.head" if name is None else f"model.heads.{name}")


def _blueprint(recipe: Recipe, tokenizer: Tokenizer, learned: str) -> Blueprint:
    """Resolve the architecture with the tokenizer's vocabulary size. Raise RecipeError on conflicts."""
    try:
        return recipe.blueprint(tokenizer.sizes)
    except RecipeError as error:
        raise RecipeError(replace(fault, message=f"{fault.message} ({learned})") for fault in error.faults) from None


def check_vocabulary(recipe: Recipe, blueprint: Blueprint, tokenizer: Tokenizer, learned: str) -> None:
    """Raise RecipeError if the tokenizer has more tokens than a stack's vocab_size."""
    faults = []
    for plan in blueprint.stacks():
        size = (tokenizer.source if plan.side == "encoder" else tokenizer).vocab_size
        if plan.vocab_size is not None and plan.vocab_size < size:
            text = f"{plan.vocab_size} is less than the {size} tokens of the tokenizer"
            path = f"model.{plan.side}.vocab_size"
            faults.append(recipe.fault(path, f"{text}; use vocab_size: tokenizer ({learned})"))
    if faults:
        raise RecipeError(faults)


def _check_size(blueprint: Blueprint, settings: Train, device: torch.device) -> None:
    """Build the model on the meta device to check `freeze`, its memory, and the output widths of custom parts."""
    model = build_model(blueprint, device="meta")
    _freeze(model, settings)
    check_memory(model, device, parts_of(settings))
    check_widths(blueprint)
    _check_rate(model, settings)


def _check_rate(model: Model, settings: Train) -> None:
    """Raise UsageError if the texts of train.generation_rate have more tokens than the model has positions."""
    rate, blueprint = settings.generation_rate, model.blueprint
    if rate is None:
        return
    # the last token is never fed to the model; an encoder-decoder reads the prompt as its source
    single = len(list(blueprint.stacks())) == 1
    needed = {blueprint.last.side: rate.new + (rate.prompt - 1 if single else 0)}
    needed |= {} if single else {"encoder": rate.prompt}
    for side, tokens in needed.items():
        parts = [part for part in model.stack(side).modules() if isinstance(part, PositionFacts)]
        most = min((part.length for part in parts if part.length is not None), default=tokens)
        if tokens > most:
            text = f"prompt: {rate.prompt} and new: {rate.new} need {tokens} positions, and the {side} has {most}"
            raise UsageError(f"train.generation_rate: {text}; use smaller numbers, or a larger model.max_length")


def longest_example(blueprint: Blueprint, data: Data) -> int | None:
    """Return the maximum number of tokens per example, limited by the model and data.batch.length."""
    longest = section_rules.longest_example(blueprint, data)
    return None if longest is None else longest.tokens


def _model(
    blueprint: Blueprint, settings: Train, device: torch.device, tokenizer: Tokenizer, reporter: Reporter, initial: bool
) -> Model:
    place = "cpu" if parts_of(settings) > 1 else device  # shards are cut in main memory, then moved
    model = build_model(blueprint, device=place, seed=settings.seed)
    if initial:
        fill_vectors(model, tokenizer, reporter)
        if settings.initial is not None:
            start_from(model, settings.initial, reporter, tokenizer)
    _freeze(model, settings)
    reporter.say(_sizes(model) + f", on {describe(device)}{describe_products(device, settings.precision)}")
    return model


def _freeze(model: nn.Module, settings: Train) -> None:
    """Freeze the parameters selected by the adapter or by train.freeze."""
    if settings.adapter is None:
        freeze(model, settings.freeze)
    else:
        settings.adapter.build().freeze(model)


def _adapted(model: Model, settings: Train, reporter: Reporter) -> Adaptation | None:
    """Attach the adapter and report its size."""
    if settings.adapter is None:
        return None
    adaptation: Adaptation = settings.adapter.build().attach(model, settings.seed)
    count = sum(parameter.numel() for parameter in adaptation.parameters())
    share = count / sum(parameter.numel() for parameter in model.parameters())
    name = settings.adapter.part.part_name
    reporter.say(f"adapter {name}: {counted(count, 'parameter')}, {share:.2%} of the model's; {adaptation.told()}")
    return adaptation


def _taught(
    teacher: TeacherRun, objective: Objective, model: Model, device: torch.device, reporter: Reporter
) -> Distillation | None:
    """Create the distillation loss. Return None if the teacher only generates targets."""
    if not teacher.settings.is_read:
        return None
    taught = Distillation(teacher.settings, objective, teacher.model(device), model)
    count = sum(parameter.numel() for parameter in taught.teacher.parameters())
    reporter.say(f"teacher: {teacher.folder}, {counted(count, 'parameter')}")
    return taught


def _sizes(model: Model) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    return counted(count, "parameter") + (f", {frozen:,} of them frozen" if frozen else "")


def _announce(
    blueprint: Blueprint, train: Feed, valid: Feed | None, examples: int, tokenizer: Tokenizer, reporter: Reporter
) -> None:
    """Report the sizes of the data, and the number of ids in the model's vocabulary that have no token."""
    held_out = "no validation set" if valid is None else f"{counted(len(valid.items), 'row')} for validation"
    reporter.say(f"{counted(examples, 'example')}, {counted(len(train.items), 'row')} for training, {held_out}")
    reporter.say(str(train))
    size = blueprint.last.vocab_size or 0
    if unused := max(0, size - tokenizer.vocab_size) + len(tokenizer.gaps):
        reporter.say(
            f"{unused:,} of the model's {size:,} token ids have no token in the tokenizer and are never generated"
        )
