"""Multi-head attention, with any number of key-value heads."""

# Axes: batch, time, head, dim (channels of a value head), d_model, heads, kv_heads, query and key (tokens), head_dim,
# value_dim (channels of a head).

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from einops import rearrange
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from tfkit.components.attention.base import Attention, KeyValueState
from tfkit.components.sublayer import check_heads
from tfkit.core import component
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Context
from tfkit.core.inputs import OF_LAYERS
from tfkit.core.options import (
    Activation,
    Bias,
    Dropout,
    Heads,
    Norm,
    PositiveFloat,
    Scale,
    Width,
    check_bias,
    check_norm,
    has_bias,
    part_option,
    scale_factor,
)
from tfkit.core.registry import register
from tfkit.core.store import Stores
from tfkit.functional.attend import Scores, attend, reference


class Gate(BaseModel):
    """Outputs of the heads times activation(gate(x)), x being the layer's input (Qiu et al. 2025, arXiv 2505.06708)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, title="Gate")

    over: Literal["channel", "head"] = Field("channel", description="gate each channel, or each head as a whole")
    activation: Activation = part_option("sigmoid", "activation of the gate")
    bias: bool = Field(False, description="add a bias to the gate's projection")

    def build(self, shape: Shape, heads: int, dim: int) -> HeadGate:
        return HeadGate(self, shape, heads, dim)


class HeadGate(nn.Module):
    """Multiplies [batch head time dim] by a gate computed from [batch time d_model]."""

    def __init__(self, config: Gate, shape: Shape, heads: int, dim: int) -> None:
        super().__init__()
        self.heads = heads
        width = heads * dim if config.over == "channel" else heads
        self.projection = nn.Linear(shape.d_model, width, bias=config.bias)
        self.activation = config.activation.build(Shape(width))

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        gate = self.activation(self.projection(x))  # [batch time head*dim], or [batch time head] if over heads
        by_head: Tensor = rearrange(gate, "batch time (head dim) -> batch head time dim", head=self.heads)
        return out * by_head  # [batch head time dim]


Projected = Literal["query", "key", "value"]
PROJECTIONS = ("query", "key", "value", "output")
FIRST_VALUE = "first_value"  # in context.store: values [batch kv_heads time value_dim] of the first layer
KEYS_VALUES = frozenset({"keys", "values"})  # in context.store: all keys and values to attend to, as in the cache
OFF = {"value_residual": "false", "share": "none", "value_norm": "none", "value_scale": "1.0"}
WIDTHS = ("key-value heads", "channels of a key head", "channels of a value head")


@register("attention", "multi_head")
class MultiHead(Attention):
    """Multi-head attention: concat(softmax(q_h k_hᵀ scale) v_h) W_output (Vaswani et al. 2017, arXiv 1706.03762).

    With fewer key-value heads than heads, it is grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245); with
    one, multi-query attention (Shazeer 2019, arXiv 1911.02150).

    A subclass may override the hooks that `forward` calls: project, split_heads, normalize_heads, rotate, scale,
    keys_values, attend, gated and join_heads.
    """

    class Config(Attention.Config):
        num_heads: Heads = Field(description="number of query heads; 1 is single-head attention")
        num_kv_heads: Heads | None = Field(None, description="number of key-value heads; none: num_heads")
        head_dim: Width | None = Field(None, description="width of a query and key head; none: d_model / num_heads")
        value_dim: Width | None = Field(None, description="width of a value head; none: head_dim")
        bias: Bias = Field(True, description="biases: all, none, or a list of projections")
        scale: Scale = Field(None, description="factor on the scores; none: 1 / sqrt(head_dim)")
        softcap: PositiveFloat | None = Field(None, description="c in c * tanh(scores / c); none: no cap")
        qk_norm: Norm | None = Field(None, description="norm of queries and keys; none: no norm")
        qk_norm_at: Literal["heads", "width", "rotated"] = Field(
            "heads",
            description="heads: per head, before rotation; width: over all heads, before rotation; "
            "rotated: per head, after rotation",
        )
        value_norm: Norm | None = Field(None, description="norm of each value head (Gemma 3n)")
        value_scale: PositiveFloat = Field(1.0, description="factor on the values (MiMo-V2)")
        output_norm: Norm | None = Field(
            None, description="norm of the concatenated heads, before the output projection (BitNet)"
        )
        output: bool = Field(
            True,
            description="project the concatenated heads; false: no projection, so the heads' widths must add up to "
            "d_model",
        )
        clip: PositiveFloat | None = Field(
            None, description="clamp queries, keys and values to [-clip, clip]; none: no clamping"
        )
        gate: Gate | None = Field(
            None, description="gate on the outputs of the heads, computed from the input of the layer; none: no gate"
        )
        sinks: bool = Field(
            False, description="add a learned score per head to the softmax, for a key without a value (GPT-OSS)"
        )
        value_residual: bool | Literal["learned"] = Field(
            False,
            description="mix the values with those of the first layer that has this option, half of each; learned: by "
            "a learned factor per layer, initially 1/2 (Zhou et al. 2024)",
        )
        share: Literal["previous"] | None = Field(
            None,
            description="previous: no key and value projections, the keys and values of the nearest earlier layer that "
            "has them are used and cached once (Brandon et al. 2024); none: own keys and values",
        )
        dropout: Dropout = Field(0.0, description="dropout of the attention weights")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from check_heads(self.num_heads, self.head_dim, shape.d_model)
            if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
                yield Problem(
                    "num_kv_heads",
                    f"{self.num_kv_heads} key-value heads do not divide {self.num_heads} heads; use a divisor",
                )
            if self.qk_norm is None and self.qk_norm_at != "heads":
                yield Problem("qk_norm_at", "has no effect without qk_norm; set qk_norm too")
            yield from check_bias(self.bias, PROJECTIONS if self.share is None else ("query", "output"))
            if not self.output:
                yield from self._check_joined(shape)
            for option in ("value_residual", "share") if shape.memory_width is not None else ():
                if getattr(self, option):
                    yield Problem(
                        option, f"applies to self-attention only; set {option}: {OFF[option]} in cross_attention"
                    )
            for option in ("value_residual", "value_norm", "value_scale") if self.share is not None else ():
                if getattr(self, option) != type(self).model_fields[option].default:
                    yield Problem(
                        option,
                        f"has no effect with share, which uses another layer's values; set {option}: {OFF[option]}",
                    )
            yield from self._check_norms(shape)

        def _check_joined(self, shape: Shape) -> Iterator[Problem]:
            """Check that, without an output projection, the heads add up to d_model and there is no output bias."""
            value_dim = self.value_dim or self.width(shape)
            if self.num_heads * value_dim != shape.d_model:
                joined = f"{self.num_heads} heads of {value_dim} channels have width {self.num_heads * value_dim}"
                yield Problem(
                    "output",
                    f"{joined}, not d_model {shape.d_model}; without an output projection, the widths must agree",
                )
            if not isinstance(self.bias, bool) and "output" in self.bias:
                yield Problem("bias", "there is no output projection; remove 'output' from the list")

        def _check_norms(self, shape: Shape) -> Iterator[Problem]:
            width = self.width(shape)
            value_dim, kv_heads = self.value_dim or width, self.num_kv_heads or self.num_heads
            for heads in {self.num_heads, kv_heads} if self.qk_norm_at == "width" else {1}:
                yield from check_norm("qk_norm", self.qk_norm, width * heads)
            yield from check_norm("value_norm", self.value_norm, value_dim)
            yield from check_norm("output_norm", self.output_norm, value_dim * self.num_heads)

        def stores(self, shape: Shape) -> Stores:
            if shape.memory_width is not None:
                return Stores()
            if self.share is not None:
                return Stores(reads=KEYS_VALUES, keys=KEYS_VALUES)
            first = frozenset({FIRST_VALUE} if self.value_residual else ())
            return Stores(writes=first, reads=first, offers=KEYS_VALUES)

        def check_writer(self, name: str, writer: component.Config, shape: Shape) -> Iterator[Problem]:
            if name not in ("keys", FIRST_VALUE):  # values have the sizes of their keys' layer
                return
            option = "value_residual" if name == FIRST_VALUE else "share"
            if not isinstance(writer, MultiHead.Config):
                yield Problem(option, f"cannot use the '{name}' of '{writer.part.part_name}'; use multi_head")
                return
            for words, sizes in zip(WIDTHS, zip(self._widths(shape), writer._widths(shape), strict=True), strict=True):
                if sizes[0] != sizes[1] and (name != FIRST_VALUE or words != WIDTHS[1]):
                    yield Problem(option, f"needs equal {words}: {sizes[0]} here, {sizes[1]} there")

        def _widths(self, shape: Shape) -> tuple[int, int, int]:
            """Return the number of key-value heads, and the widths of a key and a value head."""
            width = self.width(shape)
            return self.num_kv_heads or self.num_heads, width, self.value_dim or width

        def width(self, shape: Shape) -> int:
            return self.head_dim or shape.d_model // self.num_heads

        def may_attend_to_nothing(self) -> bool:
            return self.sinks

        def axes(self, shape: Shape) -> Mapping[str, int]:
            return {**super().axes(shape), "group": self.num_kv_heads or self.num_heads}

    capabilities = frozenset(OF_LAYERS)
    # adds a constant to every score of a row, which softmax ignores
    inert = frozenset({"key.bias", "key_norm.bias"})
    residual_outputs = ("output",)
    gain_scaled = ("value", "output")
    fused = ("query", "key", "value")
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        heads, kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        self.head_dim = config.width(shape)
        self.value_dim = value_dim = config.value_dim or self.head_dim

        def linear(name: str, width: int, out: int) -> nn.Linear:
            return nn.Linear(width, out, bias=has_bias(config.bias, name))

        self.query = linear("query", shape.d_model, heads * self.head_dim)
        shares = self.shares = config.share is not None and shape.memory_width is None
        self.key = nn.Identity() if shares else linear("key", shape.source_width, kv_heads * self.head_dim)
        self.value = nn.Identity() if shares else linear("value", shape.source_width, kv_heads * value_dim)
        self.output = linear("output", heads * value_dim, shape.d_model) if config.output else nn.Identity()
        self.heads, self.kv_heads = heads, kv_heads
        scale = self.head_dim**-0.5 if config.scale is None else scale_factor(config.scale, shape.d_model)
        self.scores = Scores(scale, config.softcap)
        self.weight_dropout = config.dropout
        self.sinks = nn.Parameter(torch.zeros(heads)) if config.sinks else None
        self.norm_at = None if config.qk_norm is None else config.qk_norm_at
        whole = self.norm_at == "width"
        self.query_norm = _norm(config.qk_norm, self.head_dim * (heads if whole else 1))
        self.key_norm = _norm(None if shares else config.qk_norm, self.head_dim * (kv_heads if whole else 1))
        self.value_norm = _norm(None if shares else config.value_norm, value_dim)
        self.output_norm = None if config.output_norm is None else config.output_norm.build(Shape(heads * value_dim))
        self.gate = None if config.gate is None else config.gate.build(shape, heads, value_dim)
        learned = config.value_residual == "learned" and not shares and FIRST_VALUE in shape.stored
        self.first_share = nn.Parameter(torch.full((1,), 0.5)) if learned else None

    def new_state(self) -> KeyValueState | None:
        """Return an empty cache; None if the keys and values are those of another layer, which caches them."""
        return None if self.shares else super().new_state()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        query, *new = self.project(x, context)  # [batch query heads*head_dim]
        query = self.rotate(self._heads(query, "query"), "query", context)  # [batch heads query head_dim]
        query = self.scale(query, context)
        # [batch kv_heads key head_dim] and [batch kv_heads key value_dim]
        key, value = self.keys_values(new, context)
        out = self.attend(query, key, value, context)  # [batch heads query value_dim]
        out = self.join_heads(self.gated(out, x))  # [batch query heads*value_dim]
        out = out if self.output_norm is None else self.output_norm(out)
        merged: Tensor = self.output(out)  # [batch query d_model]
        return merged

    # --- hooks, in the order of computation

    def project(self, x: Tensor, context: Context) -> tuple[Tensor, ...]:
        """Project x [batch time d_model] to queries, keys and values [batch time heads*dim].

        Keys and values are those of `context.source` in cross-attention; omitted if they are shared or already cached.
        """
        memory = context.source
        parts: tuple[Tensor, ...]
        if memory is None:
            parts = (self.query(x),) if self.shares else self.apply_fused(x)
        elif context.state is None or not context.state.length:
            parts = self.query(x), self.key(memory), self.value(memory)
        else:
            parts = (self.query(x),)
        clip = self.config.clip
        return parts if clip is None else tuple([part.clamp(-clip, clip) for part in parts])

    def split_heads(self, x: Tensor, dim: int) -> Tensor:
        """Split the last axis: [batch time heads*dim] -> [batch heads time dim]."""
        return rearrange(x, "batch time (head dim) -> batch head time dim", dim=dim)

    def normalize_heads(self, x: Tensor, of: Projected) -> Tensor:
        """Normalize queries, keys or values [batch heads time dim], as `of` says.

        Called once for each, with new tokens only: before the rotation, or after it with `qk_norm_at: rotated`. Then,
        if rotations depend on the length, all keys are normalized in each call.
        """
        norm = getattr(self, f"{of}_norm")
        if self.norm_at == "width" and of != "value":
            whole: Tensor = norm(rearrange(x, "batch head time dim -> batch time (head dim)"))
            return rearrange(whole, "batch time (head dim) -> batch head time dim", dim=self.head_dim)
        normalized: Tensor = norm(x)
        return normalized

    def rotate(self, x: Tensor, of: Projected, context: Context, of_keys: bool = False) -> Tensor:
        """Rotate queries or keys [batch heads time head_dim] by position; those of memories are not rotated.

        With `of_keys`, x are all keys so far. With `qk_norm_at: rotated`, they are normalized afterwards.
        """
        turn = context.position.rotation(self.head_dim, of_keys) if context.source is None else None
        x = x if turn is None else turn(x)
        return self.normalize_heads(x, of) if self.norm_at == "rotated" else x

    def scale(self, query: Tensor, context: Context) -> Tensor:
        """Multiply queries [batch heads query head_dim] by the temperatures of their positions.

        The constant factor of all scores is `self.scores.scale`.
        """
        temperature = context.position.temperature()  # [batch query]
        return query if temperature is None else (query * temperature[:, None, :, None]).to(query.dtype)

    def keys_values(self, new: Sequence[Tensor], context: Context) -> tuple[Tensor, Tensor]:
        """Split, normalize, rotate and cache new keys and values. Return all keys and values to attend to.

        `new` are the keys and values from `project`, or empty. Returned are [batch kv_heads key head_dim] and [batch
        kv_heads key value_dim]; `context.mask.span.own(value)` selects those of the queries' own tokens.
        """
        store = context.store
        if self.shares:
            return store["keys"], store["values"]
        key, value = self._own_keys_values(new, context)
        if context.source is None:
            store["keys"], store["values"] = key, value
        return key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """Attend: queries, keys and values to outputs [batch heads query value_dim], and observe the weights if asked.

        `query` is [batch heads query head_dim]; `key` and `value` are those of `keys_values`.
        """
        bias = context.position.bias(self.heads)  # [batch heads query key]
        scores, dropout = self.scores, self.weight_dropout if self.training else 0.0
        if dropout or self.sinks is not None:
            scores = Scores(scores.scale, scores.softcap, dropout, self.sinks)
        if not context.collector.watches("attention"):
            return attend(query, key, value, context.mask, scores, bias)
        out, weights = reference(query, key, value, context.mask, scores, bias)
        context.collector.observe("attention", weights)
        return out

    def gated(self, out: Tensor, x: Tensor) -> Tensor:
        """Gate the outputs of the heads [batch heads query value_dim] by the layer's input x [batch query d_model]."""
        return out if self.gate is None else self.gate(out, x)

    def join_heads(self, x: Tensor) -> Tensor:
        """Concatenate the heads: [batch heads query value_dim] -> [batch query heads*value_dim]."""
        return rearrange(x, "batch head time dim -> batch time (head dim)")

    # ---

    def _heads(self, x: Tensor, of: Projected) -> Tensor:
        """Split queries, keys or values into heads, and normalize those that are not normalized after the rotation."""
        x = self.split_heads(x, self.value_dim if of == "value" else self.head_dim)
        return x if self.norm_at == "rotated" and of != "value" else self.normalize_heads(x, of)

    def _own_keys_values(self, new: Sequence[Tensor], context: Context) -> tuple[Tensor, Tensor]:
        state: KeyValueState | None = context.state
        stored = None if state is None or new else state.stored()
        if stored is not None:  # a memory's keys and values, cached by the first call
            return stored
        key = self._heads(new[0], "key")  # [batch kv_heads key head_dim]
        value = self._heads(new[1], "value")  # [batch kv_heads key value_dim]
        value = value if self.config.value_scale == 1.0 else value * self.config.value_scale
        value = self._with_first(value, context)
        if state is not None and context.position.moves:  # rotations depend on the length, so unrotated keys are cached
            key, value = state.append(key, value)
            return self.rotate(key, "key", context, of_keys=True), value
        key = self.rotate(key, "key", context)
        return (key, value) if state is None else state.append(key, value)

    def _with_first(self, value: Tensor, context: Context) -> Tensor:
        """Compute s * first_value + (1 - s) * value (Zhou et al. 2024, arXiv 2410.17897), or store the first values."""
        option, share = self.config.value_residual, self.first_share
        if not option or context.source is not None:
            return value
        if FIRST_VALUE not in context.store or (option == "learned" and share is None):
            context.store[FIRST_VALUE] = value
            return value
        factor = 0.5 if share is None else share.to(value.dtype)
        return factor * context.store[FIRST_VALUE] + (1 - factor) * value


def _norm(config: component.Config | None, width: int) -> nn.Module:
    made: nn.Module = nn.Identity() if config is None else config.build(Shape(width))
    return made
