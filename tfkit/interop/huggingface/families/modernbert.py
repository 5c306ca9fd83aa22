"""ModernBERT (Warner et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.bert import renamed
from tfkit.interop.huggingface.families.modernbert_decoder import ModernBertDecoder
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import SLIDING
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "encoder.layers.{layer}", "layers.{layer}"
NAMES = {
    "attn_norm": "attention_norm",
    "attn.Wo": "attention.output",
    "mlp_norm": "feedforward_norm",
    "mlp.Wo": "feedforward.down",
}


@register("family", "modernbert")
class ModernBert(ModernBertDecoder):
    """ModernBERT: rotary positions, a gated feed-forward, no biases, two-sided windows in two of three layers."""

    model_types = ("modernbert",)
    base = merged(ModernBertDecoder.base, {"type": "encoder"})
    heads = {"ModernBertForMaskedLM": {"head": {"type": "masked_lm"}}, "ModernBertModel": {"head": "none"}}
    rules = (
        Rule("embeddings.tok_embeddings.weight", "encoder.embedding.tokens.weight"),
        *renamed({"embeddings.norm": "encoder.embedding.norm", "final_norm": "encoder.final_norm"}),
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in NAMES.items()}),
        Rule(
            f"{CHECKPOINT}.attn.Wqkv.{{kind}}",
            tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value")),
        ),
        Rule(f"{CHECKPOINT}.mlp.Wi.{{kind}}", tuple(f"{LAYER}.feedforward.{name}.{{kind}}" for name in ("gate", "up"))),
        *renamed({"head.dense": "head.dense", "head.norm": "head.norm", "decoder": "head.output"}),
    )
    prefix, unprefixed = "model.", ("head.", "decoder.")

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        size = config.get("local_attention", 128)  # total of both sides
        return {"mask": {"type": "window", "size": size}} if name == SLIDING else super().over_layer(config, name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super(ModernBertDecoder, cls).write_types(config, layers)
        config["local_attention"] = config.pop("sliding_window") or 128
