"""Contradictions between sections, independent of the types of their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Doubt, Problem
from tfkit.core.facts import Longest, RecipeFacts
from tfkit.core.options import layer_pairs
from tfkit.core.output import counted, some
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import ObjectiveFacts
from tfkit.recipe.settings.agreement import serves
from tfkit.recipe.settings.parameters import freeze_problems, group_problems, parametrization_problems
from tfkit.recipe.settings.sections import Data, Generate, Mean, Sections, Teacher, Train

# torch optimizers that do not support sharded parameters
UNDIVIDED = ("Adafactor", "Rprop")


def longest_example(blueprint: Blueprint, data: Data | None) -> Longest | None:
    """Return the maximum number of tokens in an example, limited by the model and by `data.batch.length`."""
    length, plans = None if data is None else data.batch.length, list(blueprint.stacks())
    bounds = [] if length is None else [Longest(length, "data.batch.length")]
    for plan in plans:
        if plan.max_length is not None:
            side = f"{plan.side}." * (len(plans) == 2)
            bounds.append(Longest(plan.max_length, f"model.{side}max_length"))
    return min(bounds, default=None, key=lambda bound: bound.tokens)


def facts_of(sections: Sections, blueprint: Blueprint | None, vocab_size: int | None) -> RecipeFacts:
    """Collect the facts about other sections for the checks of parts; `vocab_size` is the model's, if known."""
    data, objective, train, generate = sections
    tokenizer = None if data is None else data.target_tokenizer
    return RecipeFacts(
        blueprint=blueprint,
        objective=objective,
        tokenizer=tokenizer,
        tokenizers={} if data is None else data.tokenizers(),
        reads_data=data is not None,
        longest=None if blueprint is None else longest_example(blueprint, data),
        packed=data is not None and data.batch.pack,
        batch_tokens=None if data is None else data.batch.tokens,
        vocab_size=vocab_size,
        reads_vectors=data is not None and "vectors" in data.fields(),
        most_tokens=None if tokenizer is None else tokenizer.vocabulary_bound,
        steps=train.steps,
        logits=generate.logits,
    )


def section_problems(sections: Sections, blueprint: Blueprint | None) -> Iterator[Problem]:
    """Yield all contradictions; `blueprint` is None if the model has faults."""
    data, objective, train, generate = sections
    if data is not None:
        if data.batch.pack and data.batch.length is None:
            yield Problem("length", "packing needs a row length in tokens; set data.batch.length", at="data.batch")
        yield from () if data.has("valid") else _without_valid(train, data)
        yield from _tokenizer_problems(data, objective)
        yield from _shard_problems(data, objective, train) if data.shards else ()
    yield from computing_problems(train, blueprint)
    yield from step_problems(train, data)
    yield from callback_problems(train)
    yield from adapter_problems(train, blueprint, objective) if train.adapter is not None else ()
    if blueprint is not None:
        yield from _generate_problems(generate, blueprint)
        if train.generation_rate is not None and not writes(blueprint):
            text = "this model cannot generate text without a decoder and a head such as language_model"
            yield Problem("generation_rate", f"{text}; remove generation_rate", at="train")
        yield from freeze_problems(train.freeze, blueprint, objective) if train.freeze else ()
        yield from group_problems(train, blueprint) if train.groups else ()
        if (chosen := blueprint.parametrization) is not None:
            yield from parametrization_problems(train, blueprint, chosen)
        if train.initial is not None:
            yield from _layer_problems(train.initial.layers, "train.init_from.layers", blueprint)
        if train.teacher is not None:
            yield from teacher_problems(train.teacher, blueprint, objective)


def _tokenizer_problems(data: Data, objective: ObjectiveFacts.Config | None) -> Iterator[Problem]:
    """Yield a problem for a missing tokenizer, or for one that has no text to read."""
    fields = data.fields()
    texts = fields - {"vectors"} if objective is None else objective.part.rows_type.text_fields(fields)
    is_read = bool(texts) or "vectors" not in fields
    if data.tokenizer is None and is_read:
        yield Problem("", "needs the option 'tokenizer'", at="data")
    if data.tokenizer is not None and not is_read and objective is not None:
        text = f"'{objective.part.part_name}' on vectors reads no text; remove the tokenizer"
        yield Problem("", text, at="data.tokenizer")


def _shard_problems(data: Data, objective: ObjectiveFacts.Config | None, train: Train) -> Iterator[Problem]:
    """Yield a problem for token shards if the examples must be held in memory."""
    text = ""
    if objective is not None and "shards" not in objective.part.capabilities:
        text = f"'{objective.part.part_name}' holds the texts and tokens of all examples in memory; remove shards"
    elif "vectors" in data.fields():
        text = "vectors are held in memory; remove shards"
    elif not data.train.files_read():
        text = f"'{data.train.part.part_name}' generates its examples and holds them in memory; remove shards"
    elif train.teacher is not None and train.teacher.sequences is not None:
        text = "train.teacher.sequences holds the rewritten examples in memory"
        text += "; remove shards, or train.teacher.sequences"
    if text:
        yield Problem("shards", text, at="data")


def computing_problems(train: Train, blueprint: Blueprint | None) -> Iterator[Problem]:
    """Yield the first conflict of train.compile and of train.parallel.shard, and a train.recompute above the depth."""
    if train.compile and (reason := next(_uncompiled(train, blueprint), "")):
        yield Problem("compile", f"{reason}; remove compile", at="train")
    if train.parallel.shard and (reason := next(undivided(train), "")):
        yield Problem("parallel.shard", reason, at="train")
    if blueprint is not None and train.recompute and train.recompute != "all":
        deepest = max(plan.num_layers for plan in blueprint.stacks())
        if train.recompute > deepest:
            text = f"{train.recompute} exceeds the {counted(deepest, 'layer')} of the model"
            yield Problem("recompute", f"{text}; use a smaller number, or all", at="train")


def _uncompiled(train: Train, blueprint: Blueprint | None) -> Iterator[str]:
    for key, is_set in (("recompute", train.recompute), ("teacher", train.teacher and train.teacher.is_read)):
        if is_set:
            yield f"train.{key} cannot be compiled"
    stacks = () if blueprint is None else tuple(blueprint.stacks())
    if lacking := sorted({name for plan in stacks for name in plan.without("compile")}):
        yield f"{some(lacking)} cannot be compiled to a single graph"
    if any(part.part.part_name == "experts" for plan in stacks for part in plan.parts()):
        yield "shapes in a compiled graph cannot depend on routing, so every expert would process every token"


def undivided(train: Train) -> Iterator[str]:
    """Yield the reasons why weights cannot be sharded over processes."""
    if train.compile:
        text = "sharded weights are gathered between layers, which would break the compiled graph"
        yield f"{text}; remove shard or train.compile"
    if train.adapter is not None:
        text = "an adapter is merged into unsharded weights, and its gradients and optimizer state are small anyway"
        yield f"{text}; remove shard"
    options = train.optimizer.model_dump()
    if options.get("name") in UNDIVIDED:
        yield f"torch's {options['name']} does not support sharded weights; use adamw, or remove shard"


def callback_problems(train: Train) -> Iterator[Problem]:
    """Yield a problem if weights would be averaged twice."""
    averaging = [f"callbacks[{n}]" for n, one in enumerate(train.callbacks) if "averages" in one.part.capabilities]
    if len(averaging) > 1:
        text = f"{averaging[0]} already averages the weights; remove one of the two callbacks"
        yield Problem(averaging[1], text, at="train")
    elif averaging and isinstance(train.keep, Mean):
        text = f"keep: {{mean: {train.keep.mean}}} already averages the weights; use keep: best or last"
        yield Problem(averaging[0], text, at="train")


def adapter_problems(
    train: Train, blueprint: Blueprint | None, objective: ObjectiveFacts.Config | None
) -> Iterator[Problem]:
    """Yield problems with settings that do not apply to a frozen model with an adapter."""
    freezes = "train.adapter freezes the model, and"
    if train.freeze:
        text = "train.adapter freezes the model; list what to train besides in its option `also`"
        yield Problem("freeze", text, at="train")
    if train.groups:
        yield Problem("groups", f"{freezes} groups cannot select the adapter's parameters", at="train")
    if train.layer_decay is not None:
        text = f"{freezes} all parameters of an adapter have the same learning rate"
        yield Problem("layer_decay", text, at="train")
    if isinstance(train.keep, Mean):
        yield Problem("keep", "a mean of checkpoints would omit the adapter; use keep: best or last", at="train")
    if blueprint is not None and blueprint.parametrization is not None:
        text = "muP defines no learning rates for the parameters of train.adapter"
        yield Problem("", text, at="model.parametrization")
    if objective is not None and "own_model" in objective.part.capabilities:
        text = f"'{objective.part.part_name}' trains a second model, which has no adapter"
        yield Problem("adapter", text, at="train")
    if train.initial is None:
        text = "the model to adapt has random weights; set train.init_from to a trained run"
        yield Doubt("adapter", text, at="train")


def step_problems(train: Train, data: Data | None) -> Iterator[Problem]:
    """Yield settings without effect for this number of steps; nothing until `train.epochs` is converted to steps."""
    if train.steps is None:
        return
    checkpoints = -(-train.steps // train.checkpoint_every)
    if isinstance(train.keep, Mean) and train.keep.mean > checkpoints:
        text = f"averages {train.keep.mean} checkpoints, but {train.steps} steps produce only {checkpoints}"
        yield Doubt("keep.mean", f"{text}; use a smaller mean or a smaller checkpoint_every", at="train")
    if data is None or not data.has("valid"):
        return
    validations = -(-train.steps // train.evaluate_every)  # every so many steps, and after the last
    if _is_set(train, "evaluate_every") and train.evaluate_every > train.steps:
        text = f"exceeds steps: {train.steps}, so the only validation is after the last step; use a smaller value"
        yield Doubt("evaluate_every", text, at="train")
    if train.patience is not None and train.patience >= validations:
        text = f"has no effect: there are only {validations} validations"
        yield Doubt("patience", f"{text}; use a smaller patience or a smaller evaluate_every", at="train")


def _without_valid(train: Train, data: Data) -> Iterator[Problem]:
    if train.patience is not None:
        text = "needs validations, but data.valid is not set"
        yield Problem("patience", text, at="train")
    if _is_set(train, "validate"):
        yield Problem("validate", "needs data.valid, which is not set", at="train")
    if _is_set(train, "evaluate_every"):
        yield Doubt("evaluate_every", "has no effect: data.valid is not set", at="train")
    if train.metrics and not data.measured():
        text = "have no effect: metrics need data.test or data.valid, and neither is set"
        yield Doubt("metrics", text, at="train")


def _generate_problems(generate: Generate, blueprint: Blueprint) -> Iterator[Problem]:
    changed = [name for name in Generate.model_fields if _is_set(generate, name)]
    if not writes(blueprint):
        text = "has no effect: this model cannot generate text without a decoder and a head such as language_model"
        yield from (Doubt(name, text, at="generate") for name in changed)
    elif blueprint.encoder is None and "length_ratio" in changed:
        text = "has no effect: only an encoder_decoder has a source; use max_new_tokens"
        yield Doubt("length_ratio", text, at="generate")
    elif blueprint.encoder is not None and "max_length" in changed:
        text = "has no effect: the prompt of an encoder_decoder is its start token; use max_new_tokens"
        yield Doubt("max_length", text, at="generate")
    if generate.compile and generate.cache != "static":
        yield Problem("compile", "needs buffers of full size; set cache: static too", at="generate")
    if generate.cache == "static" and "steady" not in generate.strategy.part.able():
        text = f"static cannot be used: {generate.strategy.part.part_name} reorders or shortens texts"
        yield Problem("cache", f"{text}; use generate.strategy: greedy or sample", at="generate")


def writes(blueprint: Blueprint) -> bool:
    """True if the model generates text: its decoder has a head with logits per token."""
    head = blueprint.head
    return blueprint.decoder is not None and head is not None and serves(head.part, ("language_model", "masked_lm"))


def _is_set(section: Train | Generate, name: str) -> bool:
    """True if the section changes the default."""
    return bool(getattr(section, name) != getattr(type(section)(), name))


def teacher_problems(
    teacher: Teacher, blueprint: Blueprint, objective: ObjectiveFacts.Config | None
) -> Iterator[Problem]:
    """Yield settings of `train.teacher` that the model or the objective does not support."""
    at = "train.teacher"
    yield from _layer_problems(teacher.hidden, f"{at}.hidden", blueprint)
    yield from _layer_problems(teacher.attention, f"{at}.attention", blueprint)
    yield from _attention_problems(teacher, blueprint)
    if not teacher.is_read and teacher.sequences is None:
        yield Problem("weight", "the teacher has no effect; set a positive weight, or teacher: none", at=at)
    if teacher.is_read and objective is not None and "soft_targets" not in objective.part.capabilities:
        supported = [name for name, part in REGISTRY.load("objective").items() if "soft_targets" in part.capabilities]
        text = f"'{objective.part.part_name}' cannot learn from a teacher; objectives that can: {', '.join(supported)}"
        yield Problem("", text, at=at)
    strategy = teacher.sequences
    if strategy is not None and objective is not None and "continuations" not in objective.part.capabilities:
        text = f"'{objective.part.part_name}' has no targets that a teacher could rewrite; use seq2seq or completion"
        yield Problem("sequences", text, at=at)
    if strategy is not None and "draws" in strategy.part.able(strategy):
        text = f"'{strategy.part.part_name}' samples, but targets are generated only once; use beam or greedy"
        yield Problem("sequences", text, at=at)


def _attention_problems(teacher: Teacher, blueprint: Blueprint) -> Iterator[Problem]:
    """Yield a problem for each layer in `attention` without attention weights in the student."""
    plans = {plan.side: plan for plan in blueprint.stacks()}
    for pair in layer_pairs(teacher.attention, blueprint.last.side):
        plan = plans.get(pair.side)
        if plan is not None and pair.own < plan.num_layers and not shows_attention(plan, pair.own):
            text = f"layer {pair.own} of the {pair.side} has no self-attention that exposes its weights"
            yield Problem("", f"{text}; remove this pair", at=f"train.teacher.attention{pair.at}")


def shows_attention(plan: StackPlan, layer: int) -> bool:
    """True if the layer has a self-attention that exposes its weights."""
    sublayers = plan.layers[plan.order[layer]].sublayers
    return any(one.name == "attention" and "weights" in one.config.part.capabilities for one in sublayers)


def _layer_problems(layers: Mapping[str, object], at: str, blueprint: Blueprint) -> Iterator[Problem]:
    """Yield a problem for each layer pair whose first layer does not exist in the model."""
    plans = {plan.side: plan for plan in blueprint.stacks()}
    for pair in layer_pairs(layers, blueprint.last.side):
        if pair.side not in plans:
            yield Problem("", f"the model has no {pair.side}; its stack is the {blueprint.last.side}", at=at + pair.at)
        elif len(plans) > 1 and pair.at.count(".") == 1:
            text = f"the model has two stacks; select one: {{{pair.side}: {{{pair.own}: {pair.other}}}}}"
            yield Problem("", text, at=at + pair.at)
        elif pair.own >= plans[pair.side].num_layers:
            count = plans[pair.side].num_layers
            text = f"no layer {pair.own}: the {pair.side} has layers 0 to {count - 1}"
            yield Problem("", text, at=at + pair.at)
