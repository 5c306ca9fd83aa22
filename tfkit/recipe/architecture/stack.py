"""The source of one stack and of its layers and sublayers, and the sizes of a stack (rule R15)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfkit.core.blueprint import StackPlan, SublayerPlan
from tfkit.core.bounds import WIDTH
from tfkit.core.component import Config, Shape, Side
from tfkit.core.keys import Key, SizeValue
from tfkit.core.layout import ResidualFacts
from tfkit.core.slots import SublayerFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.keys import SUBLAYERS
from tfkit.recipe.overlays import merge
from tfkit.recipe.rules import FACTS, reason
from tfkit.recipe.text.faults import Faults, plain, shown
from tfkit.recipe.text.node import Node, mapping, node_at


@dataclass(frozen=True)
class StackText:
    """The source of a stack: `keys`, with `encoder:` or `decoder:` merged in, and `plan`, which has no layers yet."""

    model: Node
    keys: Mapping[str, Node]
    plan: StackPlan
    causal: bool  # default for the model's type
    alone: bool  # True if this is the only stack of the model
    faults: Faults
    written: dict[str, Node] = field(default_factory=dict)  # source of each part by key

    @property
    def node(self) -> Node:
        """Node at which faults of the whole stack are reported: its first key."""
        return replace(next(iter(self.keys.values()), self.model), path="model")


@dataclass(frozen=True)
class LayerText:
    """The source of one layer with its kinds merged, and the Shape to check its parts against."""

    stack: StackText
    node: Node
    keys: Mapping[str, Node]
    shape: Shape
    preparer: Preparer  # has the layer's norm as default
    faults: Faults
    written: dict[str, Node] = field(default_factory=dict)  # source of each part by key

    def config(self, node: Node, slot: str, key: str = "", default: str = "") -> Config | None:
        """Parse a part of this layer and check it against the Shape; its source is stored under `key`."""
        config, text = self.preparer.read(node, slot, self.shape, default)
        if key:
            self.written[key] = text
        return config


WIDTH_LIMIT = WIDTH.most
LAST_STATE = "last_state"
VocabSize = int | tuple[int | None, int | None]  # size for one tokenizer, or sizes for source and target


@dataclass
class Vocabulary:
    """Value of `vocab_size: tokenizer`; `size` is None until the tokenizer is trained."""

    size: VocabSize | None = None
    requests: list[Node] = field(default_factory=list)  # nodes with the value `tokenizer`
    unknown: set[Side] = field(default_factory=set)  # stacks that requested the size while it was unknown

    def read(self, keys: Mapping[str, Node], side: Side, faults: Faults) -> int | None:
        """Parse the vocabulary size of a stack; a decoder uses the target's tokenizer.

        An unknown size becomes 1, and an invalid one the maximum, to avoid follow-up faults.
        """
        node = node_at(keys, "vocab_size")
        if node is None:
            return None
        if node.value != "tokenizer":
            return read_size(node, keys, "vocab_size", faults) or WIDTH_LIMIT
        self.requests.append(node)
        size = self.size[side == "decoder"] if isinstance(self.size, tuple) else self.size
        self.unknown |= {side} if size is None else set()
        return size or 1


def is_last_state(node: Node | None) -> bool:
    """True for `memory: last_state`, with which the decoder starts from the encoder's last states."""
    return node is not None and node.value == LAST_STATE


def read_size(
    owner: Node, keys: Mapping[str, Node], name: str, faults: Faults, limit: int = WIDTH_LIMIT, needed: bool = False
) -> int | None:
    """Parse a size; return None if it is missing, which is reported at `owner` if it is `needed`, or invalid."""
    if name not in keys and needed:
        faults.add(owner, f"needs {name}")
    elif name in keys and needed and keys[name].value is None:
        faults.add(keys[name], "cannot be none")
    size: int | None = plain(SizeValue(limit), keys.get(name), faults)
    return size


def read_plain(owner: Node, keys: Mapping[str, Node], key: Key, faults: Faults) -> Any:
    """Parse a plain key; an invalid required size becomes 0, to avoid follow-up faults."""
    if isinstance(key.kind, SizeValue):
        size = read_size(owner, keys, key.name, faults, key.kind.limit, key.kind.needed)
        return size or (0 if key.kind.needed else None)
    return plain(key.kind, keys.get(key.name), faults)


def memory_width(keys: Mapping[str, Node], encoder: StackPlan | None, alone: bool, faults: Faults) -> int | None:
    """Return the memory width for cross-attention: the width of the encoder, or the one set in `memory:`."""
    node = keys.get("memory")
    if encoder is not None and (node is None or (is_last_state(node) and node.path != "model.memory")):
        return encoder.d_model if node is None else None  # last_state: no cross-attention
    if node is None or (encoder is None and (node.value is None or (not alone and node.path == "model.memory"))):
        return None  # with two stacks, the fault is reported for the decoder
    if encoder is not None and is_last_state(node):
        text = "only the decoder can start from the encoder's last states; set it in decoder:"
        faults.add(node, text, at_key=True)
    elif encoder is not None and isinstance(node.value, str):
        text = f"expected {LAST_STATE}, got {shown(node.plain())}; the default is the encoder's output"
        faults.add(node, text, at_key=True)
    elif encoder is not None:
        text = "the decoder's memory is the encoder's output; remove memory, as it is for models with one stack"
        faults.add(node, text, at_key=True)
    elif not alone:
        faults.add(node, "an encoder has no memory; only a decoder reads one", at_key=True)
    elif is_last_state(node):
        text = "a model with one stack has no encoder to take last states from; set the memory's width: {d_model: 768}"
        faults.add(node, text)
    else:
        inner = mapping(node)
        for key, child in inner.items():
            if key != "d_model":
                faults.unknown_key(child, ["d_model"])
        if "d_model" in inner:
            return read_size(node, inner, "d_model", faults)
        faults.add(node, "memory needs a width, such as memory: {d_model: 768}")
    return None


# keys of a sublayer in a layer: attention, feedforward_2, cross_attention_norm, feedforward_2_norm
SUBLAYER_KEY = re.compile(rf"(?P<base>{'|'.join(SUBLAYERS)})(_(?P<number>[2-9]|[1-9]\d+))?(?P<norm>_norm)?")


def read_sublayers(layer: LayerText, norm: Config | None) -> list[SublayerPlan]:
    """Return the sublayers in order, omitting those with faults; `norm` is their default norm."""
    names = _names(layer)
    for key, child in layer.keys.items():
        match = SUBLAYER_KEY.fullmatch(key)
        if match is not None and match["number"] and key.removesuffix("_norm") not in names:
            text = f"`sublayers` contains {match['base']} fewer than {match['number']} times"
            layer.faults.add(child, text, at_key=True)
    valid = [plan for name, base in names.items() if (plan := _sublayer(layer, name, base, norm)) is not None]
    if not valid and not layer.faults.errors:
        layer.faults.add(layer.node, f"a layer needs at least one sublayer: {', '.join(SUBLAYERS)}")
    return valid


def _names(layer: LayerText) -> dict[str, str]:
    """Return the names of the sublayers in order, each with its base key: feedforward_2 -> feedforward."""
    order = node_at(layer.keys, "sublayers")
    described = [base for base in SUBLAYERS if node_at(layer.keys, base) is not None]
    if layer.stack.plan.memory_width is None and "cross_attention" in described:
        described.remove("cross_attention")
    if order is None:
        return dict(zip(described, described, strict=True))
    if not isinstance(order.value, list) or not order.value:
        layer.faults.add(order, "expected a list of sublayers, such as [feedforward, attention, feedforward]")
        return {}
    names: dict[str, str] = {}
    for item in order.value:
        if not isinstance(item.value, str) or item.value not in SUBLAYERS:
            text = f"{shown(item.plain())} is not a sublayer; expected {', '.join(SUBLAYERS)}"
            layer.faults.add(item, text)
            continue
        count = list(names.values()).count(item.value) + 1
        names[item.value if count == 1 else f"{item.value}_{count}"] = item.value
    for base in described:
        if base not in names:
            text = f"does not contain {base}, which the layer sets; add it, or set {base}: none"
            layer.faults.add(order, text)
    return names


def _sublayer(layer: LayerText, name: str, base: str, norm: Config | None) -> SublayerPlan | None:
    node, over = layer.keys.get(base), layer.keys.get(name)
    if name != base and over is not None:
        node = over if node is None else merge(node, over, layer.faults.errors)
    if node is None or node.value is None:
        place = layer.keys.get("sublayers", layer.node)
        layer.faults.add(place, f"contains {name}, but the layer has no {base}")
        return None
    memory = base == "cross_attention"
    if memory:
        layer = replace(layer, shape=replace(layer.shape, memory_width=layer.stack.plan.memory_width))
    config = of_kind(layer.config(node, SUBLAYERS[base], name), SublayerFacts.Config)
    if config is None:
        return None
    if memory and (rule := FACTS["a memory"]).refuses(config.part):
        layer.faults.add(node, reason(rule, config.part))
    return SublayerPlan(name, config, _norm(layer, name, base, norm), memory)


def _norm(layer: LayerText, name: str, base: str, norm: Config | None) -> Config | None:
    """Return the sublayer's own norm, merged over the layer's norm, or the layer's norm by default."""
    own, node = layer.keys.get(f"{name}_norm", layer.keys.get(f"{base}_norm")), layer.preparer.norm
    if own is not None and own.value is not True:
        node = own if node is None or own.value is None else merge(node, own, layer.faults.errors)
    elif node is None:
        node = own
    if node is not None:
        layer.written[f"{name}_norm"] = node
    if own is None:
        return norm
    return None if node is None or node.value is None else layer.config(node, "norm")


def check_norms(
    layer: LayerText, residual: ResidualFacts.Config, sublayers: Sequence[SublayerPlan], norm: Config | None
) -> None:
    """Refuse sublayer norms that the residual layout does not use, and a missing norm that it needs."""
    layout = residual.part.part_name
    names = residual.part.norm_names([sublayer.name for sublayer in sublayers])
    own = set(names.values())  # sublayers with a norm of their own; None for a common norm
    for key, child in layer.keys.items():
        match = SUBLAYER_KEY.fullmatch(key)
        subject = key.removesuffix("_norm")
        if match is None or not match["norm"] or subject in own or match["number"]:
            continue
        if not any(sublayer.name.startswith(subject) and sublayer.name in own for sublayer in sublayers):
            one_for_all = f"the layout '{layout}' has {'one norm for all sublayers' if names else 'no norms'}"
            text = one_for_all if None in own or not names else f"the layer has no {subject}"
            layer.faults.add(child, text, at_key=True)
    if names and norm is None and "norm" not in layer.keys:
        text = f"the layout '{layout}' needs a norm; set norm in the layer, or norm: none"
        layer.faults.add(layer.keys.get("residual", layer.stack.node), text)


def with_cross_attention(layer: Node, faults: Faults) -> Node:
    """Return `layer` with cross-attention, which is merged over its attention (R16)."""
    cross, attention = layer.get("cross_attention"), layer.get("attention")
    if cross is None:
        cross = attention
    elif attention is not None and attention.value is not None and cross.value is not None:
        cross = merge(attention, cross, faults.errors)
    return layer if cross is None else replace(layer, value={**layer.entries, "cross_attention": cross})


def without_cross_attention(layer: Node, stack: StackText) -> Node:
    """Return a layer or kind without cross-attention, for a stack that has no memory.

    In keys shared with a decoder, cross-attention is ignored; elsewhere it is refused.
    """
    if not isinstance(layer.value, dict):
        return layer
    kept = {}
    for key, node in layer.value.items():
        if not key.startswith("cross_attention"):
            kept[key] = node
        elif node.value is None:
            continue
        elif stack.plan.last_state:
            text = "with memory: last_state, there is no memory to attend to; remove this key, or memory"
            stack.faults.add(node, text, at_key=True)
        elif stack.alone:
            text = "there is no memory to attend to; set memory: {d_model: ...} in the model"
            stack.faults.add(node, text, at_key=True)
        elif node.path.startswith("model.encoder."):
            text = "an encoder has no memory to attend to; only a decoder has one"
            stack.faults.add(node, text, at_key=True)
    order = kept.get("sublayers")
    if order is not None and isinstance(order.value, list) and not stack.alone:
        kept["sublayers"] = replace(order, value=[item for item in order.value if item.value != "cross_attention"])
    return replace(layer, value=kept)
