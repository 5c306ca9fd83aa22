"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.decoders import LAYER, QKV, SIZES, TRANSPOSED
from tfkit.interop.huggingface.family import Family, override
from tfkit.interop.huggingface.layer_types import layers_of
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, look
from tfkit.interop.huggingface.tensors import Rule


@register("family", "gpt2")
class GPT2(Family):
    """GPT-2: transposed weights; query, key and value in one matrix."""

    model_types = ("gpt2",)
    base = {
        "type": "decoder",
        "embedding": {"type": "tokens"},
        "position": "learned",
        "layer": {
            "residual": "pre_norm",
            "norm": {"type": "layer_norm"},
            "attention": {"type": "multi_head"},
            "feedforward": {"type": "mlp"},
        },
        "init": {"type": "scaled_residual"},
    }
    heads = {"GPT2LMHeadModel": {"head": {"type": "language_model"}}, "GPT2Model": {"head": "none"}}
    settings = (*SIZES, Setting("activation_function", "layer.feedforward.activation", "gelu_new", ACTIVATIONS))
    fixed = (Fixed("add_cross_attention", (False,)),)
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule("wpe.weight", "decoder.position.0.table.weight"),
        Rule("h.{layer}.ln_1.{kind}", f"{LAYER}.attention_norm.{{kind}}"),
        Rule("h.{layer}.attn.c_attn.{kind}", QKV, "width slot -> slot width", "slot width -> slot width"),
        Rule("h.{layer}.attn.c_proj.{kind}", f"{LAYER}.attention.output.{{kind}}", TRANSPOSED),
        Rule("h.{layer}.ln_2.{kind}", f"{LAYER}.feedforward_norm.{{kind}}"),
        Rule("h.{layer}.mlp.c_fc.{kind}", f"{LAYER}.feedforward.up.{{kind}}", TRANSPOSED),
        Rule("h.{layer}.mlp.c_proj.{kind}", f"{LAYER}.feedforward.down.{{kind}}", TRANSPOSED),
        Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix, unprefixed = "transformer.", ("lm_head.",)
    tied = {"lm_head.weight": "wte.weight"}
    ignored = ("h.{layer}.attn.bias", "h.{layer}.attn.masked_bias")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.feedforward.d_ff": config.get("n_inner") or 4 * model["d_model"]})
        if model["head"] is not None:
            override(model, {"head.tied": config.get("tie_word_embeddings", True)})
        scaled = config.get("scale_attn_weights", True)
        if config.get("scale_attn_by_inverse_layer_idx", False):
            whole = (model["d_model"] // look(model, "layer.attention.num_heads")) ** -0.5 if scaled else 1.0
            override(model, {"layer.attention.scale": {"per_layer": _by_depth(whole, model["num_layers"])}})
        elif not scaled:
            override(model, {"layer.attention.scale": 1.0})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        layers = layers_of(model)
        config["n_inner"] = layers[0]["feedforward"]["d_ff"]
        scales = [layer["attention"]["scale"] for layer in layers]
        by_depth = len(set(scales)) > 1
        config["scale_attn_by_inverse_layer_idx"] = by_depth
        config["scale_attn_weights"] = scales[0] != 1.0
        if by_depth and scales != _by_depth(scales[0], len(scales)):
            raise DataError("config.json can express attention scales per layer only as 1, 1/2, 1/3, ...")
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied"))


def _by_depth(first: float, count: int) -> list[float]:
    """Return the attention scale of each layer: the first layer's scale divided by the layer number."""
    return [first / number for number in range(1, count + 1)]
