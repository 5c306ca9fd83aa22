"""FNet (Lee-Thorp et al. 2021)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bert import (
    MASKED_LM,
    NEXT_SENTENCE,
    Bert,
    BertLike,
    heads_of,
    renamed,
    table_rules,
)
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, amended

LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layer.{layer}"
NAMES = {
    f"{CHECKPOINT}.fourier.output.LayerNorm": f"{LAYER}.mixer_norm",
    f"{CHECKPOINT}.intermediate.dense": f"{LAYER}.feedforward.up",
    f"{CHECKPOINT}.output.dense": f"{LAYER}.feedforward.down",
    f"{CHECKPOINT}.output.LayerNorm": f"{LAYER}.feedforward_norm",
    "embeddings.projection": "encoder.embedding.projection",
}


@register("family", "fnet")
class FNet(BertLike):
    """FNet: BERT with a Fourier transform in place of attention; padding is not supported."""

    model_types = ("fnet",)
    base: ClassVar[ModelSection] = {
        **BertLike.base,
        "layer": {
            "residual": "post_norm",
            "norm": {"type": "layer_norm"},
            "mixer": "fourier",
            "feedforward": {"type": "mlp"},
        },
    }
    heads: ClassVar = {**heads_of("FNet"), "FNetForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE}}
    settings = amended(
        BertLike.settings,
        without=("num_attention_heads", "attention_probs_dropout_prob"),
        hidden_act="gelu_new",
        type_vocab_size=4,
    )
    fixed = (Fixed("tie_word_embeddings", (True,)), Fixed("use_tpu_fourier_optimizations", (False,)))
    rules = (*table_rules(), *renamed(NAMES))
    head_rules: ClassVar = Bert.head_rules
    prefix, unprefixed, tied, dropped = "fnet.", Bert.unprefixed, Bert.tied, Bert.dropped

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["embedding"]["d_embedding"] = model["d_model"]  # FNet projects even at equal width
