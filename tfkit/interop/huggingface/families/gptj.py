"""GPT-J (Wang and Komatsuzaki 2021) and CodeGen (Nijkamp et al. 2022)."""

from __future__ import annotations

import math
from typing import ClassVar

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.decoders import INNER, LAYER, SIZES, ClassicDecoder, heads_of, named
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule

CHECKPOINT = "h.{layer}"


@register("family", "gptj")
class GPTJ(ClassicDecoder):
    """GPT-J: parallel attention and feed-forward, partial rotary positions, an output bias."""

    model_types = ("gptj",)
    base: ClassVar = merged(
        ClassicDecoder.base,
        {
            "position": {"type": "rotary", "layout": "interleaved"},
            "layer": {"residual": {"type": "parallel"}, "attention": {"bias": False}},
        },
    )
    heads: ClassVar = heads_of("GPTJ", bias=True)
    settings = amended(
        SIZES,
        Setting("n_inner", INNER, None),
        Setting("activation_function", "layer.feedforward.activation", "gelu_new", ACTIVATIONS),
        n_positions=2048,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        *named(f"{CHECKPOINT}.attn", attention__query="q_proj", attention__key="k_proj", attention__value="v_proj"),
        *named(CHECKPOINT, norm="ln_1", feedforward__up="mlp.fc_in", feedforward__down="mlp.fc_out"),
        *named(CHECKPOINT, attention__output="attn.out_proj"),
        Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.{kind}", "head.output.{kind}"),
    )
    prefix, unprefixed = "transformer.", ("lm_head.",)
    tied: ClassVar = {"lm_head.weight": "wte.weight"}
    ignored: ClassVar = tuple(f"{CHECKPOINT}.attn.{name}" for name in ("bias", "masked_bias", "embed_positions"))
    ties = False

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        turned, dim = look(config, "rotary_dim", 64), model["d_model"] // look(model, "layer.attention.num_heads")
        if turned is None:
            raise DataError("config.json: rotary_dim is required")
        fraction = turned / dim
        fraction = fraction if int(dim * fraction) == turned else math.nextafter(fraction, 1)
        override(model, {"position.fraction": fraction})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["rotary_dim"] = int(config["n_embd"] // config["n_head"] * model["position"]["fraction"])


@register("family", "codegen")
class CodeGen(GPTJ):
    """CodeGen: GPT-J with queries, values and keys in one matrix, partitioned for four devices."""

    model_types = ("codegen",)
    heads: ClassVar = heads_of("CodeGen", classifies=False, bias=True)
    rules = (
        *(
            rule
            for rule in GPTJ.rules
            if "_proj" not in rule.checkpoint_names[0] or "out_proj" in rule.checkpoint_names[0]
        ),
        Rule(
            f"{CHECKPOINT}.attn.qkv_proj.weight",
            tuple(f"{LAYER}.attention.{name}.weight" for name in ("query", "value", "key")),
            "(shard slot part) width -> (slot shard part) width",
        ),
    )
    sizes: ClassVar = {"shard": 4, "slot": 3}
    ignored = (*GPTJ.ignored, "h.{layer}.attn.causal_mask")
