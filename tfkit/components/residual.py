"""Residual layouts.

| type | choose it when |
|---|---|
| post_norm | the original, BERT, BART: works best with warmup and up to a dozen layers |
| pre_norm | GPT-2, T5, Llama: trains at any depth; the safe choice for a new model |
| sandwich | Gemma 2: pre_norm with a second norm after each branch, which bounds its output |
| branch_norm | OLMo 2: only the outputs of branches are normalized |
| parallel | GPT-J, PaLM: all sublayers of a layer read the same normalized input; faster |
| parallel_two_norms | GPT-NeoX: parallel with a norm per sublayer |
| plain | no residual connections (`residual: none`): classic recurrent baselines |
| deep_norm | a post_norm stack of dozens to a thousand layers |
| hyper_connections | pre_norm whose layers learn to mix several residual streams; more memory, few more FLOPs |
| attention_residuals | each sublayer chooses among all earlier outputs; memory grows with the square of the depth |
"""

# Axes: batch, time, streams, out (streams), d_model. Each branch maps [batch time d_model] to the same shape, as does
# each forward of a layout without streams.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from pydantic import Field
from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.component import Shape
from tfkit.core.context import Context
from tfkit.core.inputs import TOKENWISE
from tfkit.core.layout import ResidualFacts
from tfkit.core.options import PositiveFloat, PositiveInt
from tfkit.core.registry import register


@dataclass(eq=False)  # eq would make it unhashable, but the compiler of torch 2.11 hashes callables
class Branch:
    """A named sublayer as seen by a layout: a function of x, with the norms of the layout.

    `context` is passed to the sublayer; for cross-attention it is the memory's context.
    """

    name: str
    sublayer: Callable[[Tensor, Context], Tensor]
    context: Context
    dropout: Callable[[Tensor], Tensor]
    norms: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        out = self.dropout(self.sublayer(x, self.context))
        return out if self.scale == 1.0 else self.scaled(out)

    def bare(self, x: Tensor) -> Tensor:
        """Compute dropout(sublayer(x)), for layouts that normalize the output: the scale must follow the norm."""
        return self.dropout(self.sublayer(x, self.context))

    def scaled(self, out: Tensor) -> Tensor:
        return out if self.scale == 1.0 else out * self.scale

    def norm(self, x: Tensor) -> Tensor:
        """Apply the norm `<name>_norm`."""
        return self.norms[f"{self.name}_norm"](x)

    def output_norm(self, x: Tensor) -> Tensor:
        """Apply the norm `<name>_output_norm`, in layouts with two norms."""
        return self.norms[f"{self.name}_output_norm"](x)


class Residual(ResidualFacts, nn.Module):
    """A residual layout; `forward` is its equation.

    A layout that declares `streams` maps [batch time streams d_model] to the same shape, or with more streams to the
    shape that `Config.added` declares. `shape.sublayers` has the names of the branches.
    """

    capabilities = TOKENWISE | {"cross_attention"}

    def __init__(self, config: ResidualFacts.Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        """Map [batch time d_model] to the same shape, through all branches."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def enter(self, x: Tensor) -> Tensor:
        """Map [batch time d_model] to the streams that the first layer reads, by default equal copies."""
        return repeat(x, "batch time d_model -> batch time streams d_model", streams=self.config.num_streams())

    def leave(self, x: Tensor) -> Tensor:
        """Map the streams after the last layer to [batch time d_model], by default their sum."""
        return reduce(x, "batch time streams d_model -> batch time d_model", "sum")


@register("residual", "post_norm")
class PostNorm(Residual):
    """x = Norm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, arXiv 1706.03762, section 3.1)."""

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = branch.norm(x + branch(x))
        return x


@register("residual", "pre_norm")
class PreNorm(Residual):
    """x = x + Dropout(Sublayer(Norm(x))) (Xiong et al. 2020, arXiv 2002.04745)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch(branch.norm(x))
        return x


@register("residual", "sandwich")
class Sandwich(Residual):
    """x = x + scale * OutputNorm(Dropout(Sublayer(Norm(x)))) (Ding et al. 2021, CogView, arXiv 2105.13290)."""

    final_norm = True

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        return {f"{name}_{norm}": name for name in sublayers for norm in ("norm", "output_norm")}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch.scaled(branch.output_norm(branch.bare(branch.norm(x))))
        return x


@register("residual", "branch_norm")
class BranchNorm(Residual):
    """x = x + scale * Norm(Dropout(Sublayer(x))) (Liu et al. 2021, arXiv 2111.09883; OLMo 2, 2501.00656)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch.scaled(branch.norm(branch.bare(x)))
        return x


@register("residual", "parallel")
class Parallel(Residual):
    """n = Norm(x); x = x + sum of Dropout(Sublayer(n)) (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, section 2)."""

    final_norm = True

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        return {"norm": None}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        branches = list(branches)
        normed = branches[0].norms["norm"](x)
        for branch in branches:
            x = x + branch(normed)
        return x


@register("residual", "parallel_two_norms")
class ParallelTwoNorms(Residual):
    """x = x + sum of Dropout(Sublayer_i(Norm_i(x))) (Black et al. 2022, GPT-NeoX, arXiv 2204.06745)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        out = x
        for branch in branches:
            out = out + branch(branch.norm(x))
        return out


@register("residual", "plain")
class Plain(Residual):
    """x = Dropout(Sublayer(x)): no residual connection, no norms; a plain network (He et al. 2015, arXiv 1512.03385).

    The recipe `residual: none` selects it.
    """

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        return {}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = branch(x)
        return x


def constants(shape: Shape) -> tuple[float, float]:
    """Return alpha and beta of the paper's table for N encoder layers and M decoder layers."""
    if not shape.other_depth:
        return (2 * shape.depth) ** 0.25, (8 * shape.depth) ** -0.25
    if shape.side == "decoder":
        return (3 * shape.depth) ** 0.25, (12 * shape.depth) ** -0.25
    depths = shape.depth**4 * shape.other_depth
    return 0.81 * depths ** (1 / 16), 0.87 * depths ** (-1 / 16)


@register("residual", "deep_norm")
class DeepNorm(Residual):
    """x = Norm(alpha * x + Dropout(Sublayer(x))), initial weights times beta (Wang et al. 2022, arXiv 2203.00555)."""

    class Config(Residual.Config):
        alpha: PositiveFloat | None = Field(
            None, description="factor on x; none: computed from the depths, as in the paper"
        )
        beta: PositiveFloat | None = Field(
            None, description="factor on initial weights; none: computed from the depths"
        )

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.alpha = constants(shape)[0] if config.alpha is None else config.alpha

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = branch.norm(self.alpha * x + branch(x))
        return x

    @classmethod
    def init_gain(cls, config: component.Config, shape: Shape) -> float:
        beta = config.beta if isinstance(config, cls.Config) else None
        return constants(shape)[1] if beta is None else beta


class HyperConnection(nn.Module):
    """A_m, A_r and B of one sublayer: static matrices, plus tanh terms of the streams if they are dynamic."""

    def __init__(self, config: HyperConnections.Config, shape: Shape, index: int) -> None:
        super().__init__()
        self.read = nn.Parameter(torch.eye(config.rate)[index % config.rate])  # A_m [streams]
        self.mix = nn.Parameter(torch.eye(config.rate))  # A_r [streams out]
        self.write = nn.Parameter(torch.ones(config.rate))  # B [streams]
        self.dynamic = config.dynamic
        if config.dynamic:
            self.weight = nn.Parameter(torch.zeros(config.rate + 2, shape.d_model))  # W_m, W_r, W_beta
            self.scale = nn.Parameter(torch.full((2,), 0.01))  # s_alpha, s_beta

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights with which a sublayer reads, mixes and writes the streams."""
        if not self.dynamic:
            return self.read, self.mix, self.write
        normed = F.layer_norm(x, x.shape[-1:])
        # [batch time streams out]
        terms = einsum(normed, self.weight, "batch time streams d_model, out d_model -> batch time streams out").tanh()
        alpha, beta = self.scale[0], self.scale[1]
        read = self.read + alpha * terms[..., 0]  # [batch time streams]
        mix = self.mix + alpha * terms[..., 1:-1]  # [batch time streams out]
        write = self.write + beta * terms[..., -1]  # [batch time streams]
        return read, mix, write


@register("residual", "hyper_connections")
class HyperConnections(Residual):
    """x = A_r' x + B * Dropout(Sublayer(Norm(A_m' x))), with learned A and B (Zhu et al. 2024, arXiv 2409.19606).

    x has `rate` streams. Initially the model computes what pre_norm does, up to a factor before the final norm.
    """

    class Config(Residual.Config):
        rate: PositiveInt = Field(4, description="number of residual streams")
        dynamic: bool = Field(True, description="let the weights also depend on the streams; false: constants")

        def num_streams(self) -> int:
            return self.rate

    final_norm = True
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        first = shape.layer * len(shape.sublayers)
        connections = {name: HyperConnection(config, shape, i) for i, name in enumerate(shape.sublayers, first)}
        self.connections = nn.ModuleDict(connections)

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            read, mix, write = self.connections[branch.name](x)
            seen = einsum(read, x, "... streams, ... streams d_model -> ... d_model")  # [batch time d_model]
            mixed = einsum(mix, x, "... streams out, ... streams d_model -> ... out d_model")
            out = branch(branch.norm(seen))  # [batch time d_model]
            x = mixed + einsum(write, out, "... streams, ... d_model -> ... streams d_model")
        return x


@register("residual", "attention_residuals")
class AttentionResiduals(Residual):
    """Sublayer(Norm(sum of a_i * v_i)), a = softmax(w . RMSNorm(v)) (Kimi Team 2026, arXiv 2603.15031).

    The streams v are the embedding and the outputs of all earlier sublayers; each sublayer, and the end of the stack,
    has a query w, which is 0 initially.
    """

    class Config(Residual.Config):
        def added(self, sublayers: Sequence[str]) -> int:
            return len(sublayers)

    streams = 1
    final_norm = True

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        readers = enumerate(shape.sublayers or ("leave",), shape.streams or 1)  # the first one has nothing to choose
        queries = {name: torch.zeros(1, shape.d_model) for streams, name in readers if streams > 1}
        self.queries = nn.ParameterDict(queries)

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            out = branch(branch.norm(self.attend(x, branch.name)))
            x = torch.cat([x, out[:, :, None]], dim=2)  # [batch time streams d_model], one more
        return x

    def enter(self, x: Tensor) -> Tensor:
        return rearrange(x, "batch time d_model -> batch time 1 d_model")

    def leave(self, x: Tensor) -> Tensor:
        return self.attend(x, "leave")

    def attend(self, x: Tensor, name: str) -> Tensor:
        """Return the streams' mean, weighted by the query `name`: [batch time d_model]."""
        if name not in self.queries:
            return x[:, :, 0]  # [batch time d_model]
        keys = F.rms_norm(x, x.shape[-1:])
        scores = einsum(keys, self.queries[name], "batch time streams d_model, one d_model -> batch time streams")
        shares = scores.softmax(-1)
        out: Tensor = einsum(shares, x, "batch time streams, batch time streams d_model -> batch time d_model")
        return out
