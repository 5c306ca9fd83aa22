"""Standalone use of parts: a function that builds the context of a call, and hooks that accept tensors instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tfkit.components.embedding import Embedding
from tfkit.components.mask import Causal
from tfkit.components.residual import Branch, Residual
from tfkit.components.sublayer import Sublayer
from tfkit.core.component import Shape
from tfkit.core.context import Collector, Context, Placement, Span, Visibility
from tfkit.core.errors import UsageError
from tfkit.core.inputs import CAPABILITIES, Inputs
from tfkit.core.slots import MaskFacts, PositionFacts, of_kind
from tfkit.models.call import as_real, beyond, check_length, check_needed, make_inputs, unknown_input
from tfkit.models.stack import Facts, placed, text_lengths

Rules = Tensor | MaskFacts | Sequence[MaskFacts]
Positions = PositionFacts | Sequence[PositionFacts]
One = TypeVar("One")
PAST = Causal(Causal.Config(), Shape(1, causal=True))
MARKS = "global_attention_mask"


class TensorMask(MaskFacts):
    """Mask passed as a tensor [query key] or [batch query key], True = visible."""

    def __init__(self, mask: Tensor, span: Span, rows: int) -> None:
        sizes, shape = [span.queries, span.keys], list(mask.shape)
        if mask.dtype != torch.bool or shape not in (sizes, [1, *sizes], [rows, *sizes]):
            got = f"shape {shape} of {mask.dtype}"
            raise UsageError(f"mask must be [query key] or [batch query key], here {sizes}, True = visible; got {got}")
        self.mask = mask if mask.dim() == 3 else mask[None]

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        row = torch.arange(len(self.mask), device=self.mask.device)[:, None, None]
        return self.mask[row, query.clamp(max=self.mask.shape[1] - 1), key.clamp(max=self.mask.shape[2] - 1)]


def context(
    x: Tensor,
    *,
    memory: Tensor | None = None,
    mask: Rules = (),
    causal: bool = False,
    position: Positions = (),
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    segment_ids: Tensor | None = None,
    global_attention_mask: Tensor | None = None,
    prefix_length: Tensor | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    state: Any | None = None,
    observe: Collection[str] = (),
) -> Context:
    """Return the context of a call with x [batch time width], for parts used without a model.

    `mask` is a tensor [query key] or [batch query key], True = visible, or mask parts; `causal` also hides the future.
    `position` are parts that rotate queries and keys or change the scores. With `memory` [batch key width], x attends
    to the memory, and `attention_mask` [batch key], 1 = real token, applies to it. `observe={"attention"}` stores the
    weights in `context.collector.observed`; `inputs` are extra inputs. Raise UsageError for shapes that do not match.
    """
    _check_call(x, memory, segment_ids)
    if state is not None and (position_ids is not None or segment_ids is not None):
        raise UsageError("a state continues its own positions; omit position_ids and segment_ids")
    source, past = (x, 0 if state is None else state.length) if memory is None else (memory, 0)
    span = Span(x.shape[1], past + source.shape[1], past, x.device)
    rules = _rules(mask, span, len(x)) + ([PAST] if causal else [])
    check_needed({name for rule in rules for name in rule.needs} - {MARKS}, {"prefix_length": prefix_length})
    check_length(position_ids, x, "position_ids")
    check_length(segment_ids, x, "segment_ids")
    check_length(global_attention_mask, x, MARKS)
    real = as_real(attention_mask, source, "attention_mask", past)
    read = Inputs(None, None, global_attention_mask, prefix_length, real, inputs or {})
    parts, places = _several("position", position, PositionFacts), span.key()
    collector = Collector(frozenset(observe))
    if memory is not None:
        query = span.query() if position_ids is None else position_ids
        placement = Placement(parts, query, places)
        return Context(Visibility(rules, span, read, real), placement, state, memory, None, read, collector)
    positions = placed(real, places) if position_ids is None else position_ids
    lengths = text_lengths(positions, segment_ids) if any(part.moves for part in parts) else None
    facts = Facts(span, positions, real, segment_ids, lengths, None)
    return Context(facts.visibility(rules, 0, read), facts.placement(parts, 0), state, None, None, read, collector)


def _check_call(x: Tensor, memory: Tensor | None, segment_ids: Tensor | None) -> None:
    if x.dim() != 3 or (memory is not None and (memory.dim() != 3 or len(memory) != len(x))):
        got = f"shape {list(x.shape)}" + ("" if memory is None else f", and memory of shape {list(memory.shape)}")
        raise UsageError(
            f"x must be [batch time width], and memory [batch key width] with the same batch size; got {got}"
        )
    if memory is not None and segment_ids is not None:
        raise UsageError("segment_ids do not apply to a memory; pass a mask instead")


def _rules(mask: Rules, span: Span, rows: int) -> list[MaskFacts]:
    return [TensorMask(mask, span, rows)] if isinstance(mask, Tensor) else _several("mask", mask, MaskFacts)


def _several(slot: str, value: object, kind: type[One]) -> list[One]:
    """Return a part or a sequence of parts as a list. Raise UsageError for other types."""
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    parts = [one for one in several if isinstance(one, kind)]
    if len(parts) < len(several):
        raise UsageError(
            f'{slot} must be a part created by tfkit.part("{slot}", ...), or a list of them; got {value!r}'
        )
    return parts


def callable_alone(part: One) -> One:
    """Let a part be called with tensors and the keyword arguments of `context`, as well as by a model."""
    for kind, adapt in ADAPTED.items():
        if isinstance(part, kind):
            part.register_forward_pre_hook(adapt, with_kwargs=True)
    return part


Options = dict[str, Any]
Arguments = tuple[tuple[Any, ...], Options] | None


def _sublayer(part: Sublayer, arguments: tuple[Any, ...], options: Options) -> Arguments:
    """Convert part(x, memory=..., mask=..., causal=...) to part(x, context)."""
    if len(arguments) != 1 or "context" in options:
        return None
    name, shape = f"{part.part_slot} '{part.part_name}'", part.shape
    if unknown := options.keys() - KEYWORDS:
        raise unknown_input(min(unknown), sorted(KEYWORDS), name)
    memory = options.get("memory")
    options = {"causal": shape.causal and memory is None, **options}
    for word, tensor, width in (("x", arguments[0], shape.d_model), ("memory", memory, shape.source_width)):
        if tensor is not None and tensor.shape[-1] != width:
            raise UsageError(f"{name} was built for {word} of width {width}, got shape {list(tensor.shape)}")
    if memory is None and shape.memory_width is not None:
        raise UsageError(f"{name} was built to attend to a memory of width {shape.memory_width}; pass memory")
    call = context(arguments[0], **options)
    _check_capabilities(part, name, call, options)
    if call.inputs.global_attention_mask is not None:
        readers = part.needs.union(*(rule.needs for rule in call.mask.rules))
        check_needed(readers, {MARKS: call.inputs.global_attention_mask})
    return (arguments[0], call), {}


def _check_capabilities(part: Sublayer, name: str, call: Context, options: Options) -> None:
    """Raise UsageError for a keyword that needs a capability the part does not declare."""
    capabilities, rules = part.able(part.config), call.mask.rules
    if "masks" not in capabilities and options["causal"] != part.shape.causal and call.source is None:
        raise UsageError(f"{name} was built for causal={part.shape.causal}; build it with causal={options['causal']}")
    required = {
        "memory": ("cross_attention", call.source is not None),
        "mask": ("masks", any(not rule.triangle for rule in rules)),
        "causal": ("causal", any(rule.triangle for rule in rules)),
        "causal=False": ("bidirectional", not rules and call.source is None),
        "attention_mask": ("padding", call.mask.real is not None),
        "segment_ids": ("packing", call.mask.segments is not None),
        "state": ("cache", call.state is not None),
        "observe": ("weights", call.collector.watches("attention")),
    }
    hooks = {hook for one in call.position.parts for hook in one.hooks()} - {"embed"}
    required |= {f"position ({hook})": (hook, True) for hook in sorted(hooks)}
    for word, (capability, is_required) in required.items():
        if is_required and capability not in capabilities:
            raise UsageError(
                f"{name} does not support {word}: it does not declare '{capability}' ({CAPABILITIES[capability]})"
            )
    if call.position.parts and not hooks:
        raise UsageError("this position part adds to embeddings and has no effect here; pass it to the embedding")


def _embedding(part: Embedding, arguments: tuple[Any, ...], options: Options) -> Arguments:
    """Convert part(ids, position=..., token_type_ids=...) to part(inputs, placement, vectors).

    A floating-point tensor instead of ids is passed on as vectors; pictures are cut into patches first.
    """
    if len(arguments) != 1 or isinstance(arguments[0], Inputs):
        return None
    if unknown := options.keys() - {"position", "position_ids", "token_type_ids", "attention_mask"}:
        raise unknown_input(min(unknown), ["position", "token_type_ids"], part.part_name)
    x, types = arguments[0], options.pop("token_type_ids", None)
    vectors = part.cut(x) if x.is_floating_point() else None
    ids, x = (x, x) if vectors is None else (None, vectors)
    inputs = make_inputs(ids, options.get("attention_mask"), {"token_type_ids": types}, vectors)
    if error := beyond(ids, part.shape.vocab_size, "ids"):
        raise error
    call = context(x if ids is None else torch.zeros_like(x)[..., None], **options)
    return (inputs, call.position, vectors), {}


def _residual(part: Residual, arguments: tuple[Any, ...], options: Options) -> Arguments:
    """Convert part(x, sublayer, ..., norm=norm), with sublayers that are functions of x, to part(x, branches)."""
    if not arguments:
        return None
    x, *sublayers = arguments
    if len(sublayers) == 1 and isinstance(sublayers[0], (list, tuple)):
        return None
    if not sublayers or options.keys() - {"norm"} or not all(map(callable, sublayers)):
        raise UsageError(f"residual '{part.part_name}' requires x and its sublayers: residual(x, f, norm=norm)")
    norm: Callable[[Tensor], Tensor] = options.get("norm", nn.Identity())
    names = [f"sublayer_{place}" for place in range(len(sublayers))]
    norms = dict.fromkeys(part.norm_names(names), norm)
    config = of_kind(part.config, Residual.Config)
    if config is not None and config.num_streams() is not None:
        raise UsageError(f"residual '{part.part_name}' has streams, which only a model creates; build a model with it")
    scale = 1.0 if config is None else config.branch_scale
    call = context(x)
    branches = [
        Branch(name, _without_context(sublayer), call, nn.Identity(), norms, scale)
        for name, sublayer in zip(names, sublayers, strict=True)
    ]
    return (x, branches), {}


def _without_context(sublayer: Callable[[Tensor], Tensor]) -> Callable[[Tensor, object], Tensor]:
    return lambda x, _: sublayer(x)


KEYWORDS = frozenset(inspect.signature(context).parameters) - {"x"}
ADAPTED: dict[type[nn.Module], Callable[..., Arguments]] = {
    Sublayer: _sublayer,
    Embedding: _embedding,
    Residual: _residual,
}
