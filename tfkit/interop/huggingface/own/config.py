"""The config.json of a model exported with its own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.component import spell
from tfkit.interop.huggingface.classes import SEVERAL, named_classes, write_classes
from tfkit.interop.huggingface.settings import look
from tfkit.models.base import Model
from tfkit.recipe.text.source import LANGUAGE
from tfkit.recipe.views.resolved import model_values

# head type -> auto class of transformers, exported class
HEADS = {
    "language_model": ("AutoModelForCausalLM", "TfkitForCausalLM"),
    "masked_lm": ("AutoModelForMaskedLM", "TfkitForMaskedLM"),
    "classifier": ("AutoModelForSequenceClassification", "TfkitForSequenceClassification"),
    "regression": ("AutoModelForSequenceClassification", "TfkitForSequenceClassification"),
    "token_classifier": ("AutoModelForTokenClassification", "TfkitForTokenClassification"),
    "span": ("AutoModelForQuestionAnswering", "TfkitForQuestionAnswering"),
}
PAIR = ("AutoModelForSeq2SeqLM", "TfkitForSeq2SeqLM")


def own_config(net: Model, labels: Sequence[str], tied: Mapping[str, str]) -> Tree:
    """Return config.json with the model classes, the recipe, and the sizes that other tools read.

    `labels` are the class names of the head, if known; `tied` maps additional tensor names to their owners, of which
    only parameters are kept, since only shared layers repeat buffers.
    """
    blueprint = net.blueprint
    learned = dict(net.named_parameters(remove_duplicate=False))
    tied = {f"model.{name}": f"model.{owner}" for name, owner in tied.items() if name in learned}
    model = spell(model_values(blueprint))
    head = head_classes(blueprint)
    classes = {"AutoConfig": "TfkitConfig", "AutoModel": "TfkitModel", **({head[0]: head[1]} if head else {})}
    return {
        "architectures": [head[1] if head else "TfkitModel"],
        "model_type": "tfkit",
        "auto_map": {auto: f"modeling_tfkit.{exported}" for auto, exported in classes.items()},
        **_sizes(blueprint),
        **_outputs(labels, model),
        "tie_word_embeddings": bool(tied),
        "tied": tied,
        "recipe": {"tfkit": LANGUAGE, "model": model},
    }


def head_classes(blueprint: Blueprint) -> tuple[str, str] | None:
    """Return the auto class and the exported class that load the model with its head; None if no class has the head."""
    name = "" if blueprint.head is None else blueprint.head.part.part_name
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    if name == "masked_lm" and blueprint.encoder is None:  # of a decoder, which writes text with it
        name = "language_model"
    return PAIR if paired and name == "language_model" else HEADS.get(name)


def _sizes(blueprint: Blueprint) -> dict[str, int]:
    plan = blueprint.last
    entries = {
        "vocab_size": plan.vocab_size,
        "hidden_size": plan.d_model,
        "num_hidden_layers": plan.num_layers,
        "num_attention_heads": plan.num_heads,
        "max_position_embeddings": plan.max_length,
    }
    return {name: size for name, size in entries.items() if size is not None}


def _outputs(labels: Sequence[str], model: ModelSection) -> Tree:
    """Return the class names and the problem_type; empty if the head has no classes."""
    entries: Tree = {}
    write_classes(entries, model)
    if look(model, "head.independent"):
        entries["problem_type"] = SEVERAL
    return entries | (named_classes(labels) if entries and labels else {})
