"""The source of one stack and of its layers, as input of the resolution, and the sizes of a stack (rule R15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfkit.core.blueprint import StackPlan
from tfkit.core.bounds import WIDTH
from tfkit.core.component import Config
from tfkit.core.keys import Key, SizeValue
from tfkit.core.shape import Shape, Side
from tfkit.recipe.architecture.prepare import Preparer
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
