"""Functions of the Python API that combine several packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from tfkit.core.blame import parts_named
from tfkit.core.bounds import SEED
from tfkit.core.component import Config, Problem, Shape, Side
from tfkit.core.errors import Place, RecipeError, UsageError
from tfkit.core.options import Heads, NonNegativeInt, PositiveInt, Width
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.slots import AttentionFacts, EmbeddingFacts, HeadFacts, MaskFacts
from tfkit.core.synonyms import nearest
from tfkit.models.alone import callable_alone
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.load import ReadingOptions, Recipe, read_for
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.source import from_value

# slots whose parts tfkit.part can build
ALONE = (
    *("attention", "mixer", "feedforward", "norm", "activation", "residual", "position", "embedding", "mask", "head"),
    "init",
)
Source = str | Path | Mapping[str, object] | Recipe


@parts_named()
def build(
    recipe: Source,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int | None = 0,
    packed: bool = False,
    **reading: Unpack[ReadingOptions],
) -> Model:
    """Build the model of a recipe (a shipped name, a path, a mapping or a loaded recipe), initialized with `seed`.

    Nothing is allocated on the device "meta". A `packed` model is in evaluation mode, and its calls without gradients
    compute with packed copies of float32 weights on a CPU, which are rebuilt after the weights have changed. Other
    keywords are passed to load_recipe: overrides, variant, trust, sets, imports. Raise RecipeError for an invalid
    recipe, and UsageError if the vocabulary size depends on an untrained tokenizer.
    """
    loaded = read_for("build", ("device", "dtype", "seed", "packed"), recipe, reading)
    if seed is not None and (type(seed) is not int or not 0 <= seed <= SEED.most):
        raise UsageError(f"seed must be a whole number from 0 to {SEED.most:,}, or None, got {seed!r}")
    check_sizes(loaded)
    if type(packed) is not bool:
        raise UsageError(f"packed must be True or False, got {packed!r}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"dtype must be a floating-point dtype such as torch.float32, got {dtype!r}")
    model = build_model(loaded.blueprint(), device, dtype, seed)
    if packed:
        from tfkit.generation.decoder import pack

        return pack(model)
    return model


def check_sizes(recipe: Recipe) -> None:
    """Raise UsageError if the size of the vocabulary or of the head depends on data."""
    if recipe.unknown_vocab:
        raise UsageError(
            f"the vocab_size of the recipe '{recipe.name}' depends on an untrained tokenizer: train the recipe and "
            'use its run, or set a number (--set model.vocab_size=8000, overrides={"model.vocab_size": 8000})'
        )
    if recipe.unknown_labels:
        raise UsageError(
            f"the num_classes of the recipe '{recipe.name}' depends on an unread corpus: train the recipe and use "
            'run.model, or set a number, as in load_recipe(..., overrides={"model.head.num_classes": 2})'
        )


class ShapeOptions(BaseModel):
    """Sizes of a standalone part, passed as keywords to tfkit.part."""

    model_config = ConfigDict(strict=True, extra="forbid")

    d_model: Width | None = None
    vocab_size: Width | None = None
    max_length: Width | None = None
    memory_width: Width | None = None
    num_heads: Heads | None = None
    side: Side = "decoder"
    causal: bool | None = None
    layer: NonNegativeInt = 0
    depth: PositiveInt = 1
    other_depth: NonNegativeInt = 0


@dataclass(frozen=True)
class Unsized(Shape):
    """Shape without d_model; reading the attribute raises UsageError."""

    part: str = ""

    def __getattribute__(self, name: str) -> object:
        if name == "d_model":
            raise UsageError(f"{self.part} requires its width: tfkit.part(..., d_model=64)")
        return super().__getattribute__(name)


@overload
def part(slot: Literal["mask"], type: str, **options: Any) -> MaskFacts: ...
@overload
def part(slot: Literal["init"], type: str, **options: Any) -> Callable[[nn.Module], None]: ...
@overload
def part(slot: str, type: str, **options: Any) -> nn.Module: ...
def part(slot: str, type: str, *, embedding: nn.Module | None = None, **options: Any) -> Any:
    """Build a standalone part, as in `part("attention", "multi_head", num_heads=4, d_model=64)`.

    The keywords are the part's options and its sizes: d_model, vocab_size, max_length, memory_width, num_heads (of a
    position), causal, side, layer, depth, other_depth. Call sublayers with x [batch time d_model] and the keywords of
    tfkit.context, embeddings with ids, residual layouts with x, functions and a norm, and other parts with tensors. A
    tied head requires `embedding`. Raise RecipeError with all invalid options, and UsageError for a slot outside the
    model.
    """
    if slot not in ALONE:
        hint = nearest(slot, list(ALONE))
        more = f"did you mean '{hint}'?" if hint else "use tfkit.build for a whole model" * (slot == "model")
        raise UsageError(f"tfkit.part builds parts of {', '.join(ALONE)}, got '{slot}'" + (more and f"; {more}"))
    if embedding is not None and slot != "head":
        raise UsageError(f"embedding= is only for a head tied to its table; omit it for {slot}")
    config, shape = _validated(slot, type, options, embedding)
    arguments = () if slot == "init" else (shape, embedding) if slot == "head" else (shape,)
    return callable_alone(config.build(*arguments))


def _validated(slot: str, name: str, options: dict[str, object], embedding: nn.Module | None) -> tuple[Config, Shape]:
    """Separate the options of a part from its sizes and validate both. Raise RecipeError for invalid ones."""
    own = set(REGISTRY.get(slot, name).Config.model_fields) if REGISTRY.has(slot, name) else set(options)
    sizes = {key: value for key, value in options.items() if key in ShapeOptions.model_fields and key not in own}
    rest = {key: value for key, value in options.items() if key not in sizes}
    node, read_faults = from_value({"type": name, **rest}, Place("tfkit.part"), slot)
    size_node, wrong = from_value(sizes, Place("tfkit.part"), slot)
    faults = Faults([*read_faults, *wrong])
    if isinstance(node.value, dict) and own:
        for key in [key for key in rest if key not in own]:
            known = sorted(own | set(ShapeOptions.model_fields))
            faults.unknown_key(node.value[key], known)
        node = replace(node, value={key: node.value[key] for key in node.value if key in own | {"type"}})
    config = Preparer(faults).config(node, slot)
    sizes_given = _sizes(size_node, faults)
    if config is None or sizes_given is None or faults.errors:
        raise RecipeError(faults.errors)
    shape = _shape(config, sizes_given, embedding)
    faults.problems(node, _problems(config, shape, embedding))
    if faults.errors:
        raise RecipeError(faults.errors)
    return config, shape


def _sizes(node: Node, faults: Faults) -> ShapeOptions | None:
    try:
        return ShapeOptions.model_validate(node.plain())
    except ValidationError as error:
        faults.invalid(node, error, ShapeOptions)
    return None


def _shape(config: Config, options: ShapeOptions, embedding: nn.Module | None) -> Shape:
    """Return the shape of a standalone part, which by default is causal if it must be, and as wide as `embedding`."""
    sizes = options.model_dump(exclude_none=True)
    if isinstance(embedding, EmbeddingFacts):
        sizes = {"d_model": embedding.shape.d_model, "vocab_size": embedding.shape.vocab_size, **sizes}
    capabilities = config.part.able(config)
    sizes.setdefault("causal", "causal" in capabilities and "bidirectional" not in capabilities)
    if isinstance(config, AttentionFacts.Config):
        sizes["num_heads"] = config.heads()
    if "d_model" in sizes:
        return Shape(**sizes)
    return Unsized(0, **sizes, part=f"{config.part.part_slot} '{config.part.part_name}'")


def _problems(config: Config, shape: Shape, embedding: nn.Module | None) -> Iterator[Problem]:
    """Yield problems with options that do not match the shape or need a whole model."""
    yield from config.check(shape)
    if isinstance(config, HeadFacts.Config) and config.is_tied() and embedding is None:
        yield Problem("tied", "is tied to the table of an embedding; pass the module as embedding=")
    if isinstance(config, EmbeddingFacts.Config) and config.vectors_file() is not None:
        yield Problem("vectors", "pretrained vectors are loaded in training; a standalone part has none")


def parts(slot: str) -> list[str]:
    """Return the names of all parts in `slot`, such as "attention", sorted. Raise UsageError for an unknown slot."""
    if slot not in CATALOGUES:
        hint = nearest(slot, list(CATALOGUES))
        more = f"Did you mean '{hint}'?" if hint else f"Available: {', '.join(CATALOGUES)}."
        raise UsageError(f"unknown slot '{slot}'. {more}")
    return REGISTRY.names(slot)
