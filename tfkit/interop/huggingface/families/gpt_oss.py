"""GPT-OSS (OpenAI 2025)."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import ATTENTION, CHECKPOINT, ENDS, LAYER, NORMS, heads_of
from tfkit.interop.huggingface.families.sparse import APART, BASE, FEEDFORWARD, SHELL, STACKS, Sparse
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import Fixed, Setting, amended
from tfkit.interop.huggingface.tensors import Rule


@register("family", "gpt_oss")
class GptOss(Sparse):
    """GPT-OSS: a window in every second layer, attention sinks, a clipped SwiGLU with biases."""

    model_types = ("gpt_oss",)
    base = merged(
        BASE,
        {
            "layer": {
                "attention": {"sinks": True},
                "feedforward": {
                    "expert": {"bias": True, "activation": "quick_gelu", "up_offset": 1.0},
                    "router": {"over": "chosen", "bias": True},
                },
            }
        },
    )
    heads = heads_of("GptOss")
    settings = (
        *amended(SHELL, attention_bias=True),
        Setting("num_local_experts", "layer.feedforward.num_experts", 128),
        Setting("num_experts_per_tok", "layer.feedforward.num_active", 4, also=("experts_per_token",)),
        Setting("intermediate_size", "layer.feedforward.expert.d_ff"),
        Setting("swiglu_limit", "layer.feedforward.expert.limit", 7.0),
    )
    fixed = (Fixed("swiglu_alpha", (1.702,)), Fixed("hidden_act", ("silu",)))  # ignored by the implementation
    rules = (
        *(*ENDS, *NORMS, *ATTENTION),
        Rule(f"{CHECKPOINT}.self_attn.sinks", f"{LAYER}.attention.sinks"),
        Rule(f"{CHECKPOINT}.mlp.router.{{kind}}", f"{FEEDFORWARD}.router.projection.{{kind}}"),
        Rule(
            f"{CHECKPOINT}.mlp.experts.gate_up_proj",
            (f"{STACKS}.gate.weight", f"{STACKS}.up.weight"),
            "expert width (inner slot) -> slot expert inner width",
            APART,
            axes={"slot": 2},
        ),
        Rule(
            f"{CHECKPOINT}.mlp.experts.gate_up_proj_bias",
            (f"{STACKS}.gate.bias", f"{STACKS}.up.bias"),
            "expert (inner slot) -> slot expert inner",
            "expert inner -> 1 expert inner",
            axes={"slot": 2},
        ),
        Rule(f"{CHECKPOINT}.mlp.experts.down_proj", f"{STACKS}.down.weight", "expert inner out -> expert out inner"),
        Rule(f"{CHECKPOINT}.mlp.experts.down_proj_bias", f"{STACKS}.down.bias"),
    )
    rope = Rope(theta=150000.0)
    listed, period, window = True, (SLIDING, FULL), 128
