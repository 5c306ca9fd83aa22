"""XLM (Lample and Conneau 2019) and FlauBERT (Le et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bert import BertLike, renamed
from tfkit.interop.huggingface.family import override
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting
from tfkit.interop.huggingface.tensors import Rule

LAYER = "encoder.layers.{layer}"
NAMES = {
    "attentions.{layer}.q_lin": f"{LAYER}.attention.query",
    "attentions.{layer}.k_lin": f"{LAYER}.attention.key",
    "attentions.{layer}.v_lin": f"{LAYER}.attention.value",
    "attentions.{layer}.out_lin": f"{LAYER}.attention.output",
    "layer_norm1.{layer}": f"{LAYER}.attention_norm",
    "ffns.{layer}.lin1": f"{LAYER}.feedforward.up",
    "ffns.{layer}.lin2": f"{LAYER}.feedforward.down",
    "layer_norm2.{layer}": f"{LAYER}.feedforward_norm",
    "layer_norm_emb": "encoder.embedding.norm",
}


@register("family", "xlm")
class XLM(BertLike):
    """XLM, monolingual: BERT without token types; a tied head with a bias."""

    model_types: ClassVar[tuple[str, ...]] = ("xlm",)
    reads_ids: ClassVar[tuple[str, ...]] = ("pad_token_id",)  # the implementation computes text lengths from it
    heads: ClassVar[Mapping[str, ModelSection]] = {
        "XLMWithLMHeadModel": {"head": {"type": "language_model", "tied": True, "bias": True}},
        "XLMModel": {"head": "none"},
    }
    settings = (
        Setting("vocab_size", "vocab_size", also=("n_words",)),
        Setting("max_position_embeddings", "max_length", 512),
        Setting("emb_dim", "d_model"),
        Setting("n_layers", "num_layers"),
        Setting("n_heads", "layer.attention.num_heads"),
        Setting("gelu_activation", "layer.feedforward.activation", True, {True: "gelu", False: "relu"}),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.1),
        Setting("layer_norm_eps", "layer.norm.eps", 1e-12),
        Setting("init_std", "init.std", 0.02),
    )
    # multilingual models require a language id per call; sinusoidal settings only initialize the table
    fixed: ClassVar[tuple[Fixed, ...]] = tuple(
        Fixed(key, (value,))
        for key, value in (
            ("n_langs", 1),
            ("causal", False),
            ("asm", False),
            ("is_encoder", True),
            ("tie_word_embeddings", True),
        )
    )
    rules = (
        Rule("embeddings.weight", "encoder.embedding.tokens.weight"),
        Rule("position_embeddings.weight", "encoder.position.0.table.weight"),
        *renamed(NAMES),
    )
    head_rules: ClassVar = {"language_model": (Rule("pred_layer.proj.bias", "head.output.bias"),)}
    prefix, unprefixed = "transformer.", ("pred_layer.",)
    tied: ClassVar = {"pred_layer.proj.weight": "embeddings.weight"}
    ignored = ("position_ids",)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.feedforward.d_ff": 4 * model["d_model"]})


@register("family", "flaubert")
class Flaubert(XLM):
    """FlauBERT: French XLM; the pre-norm layers of the large version are not supported."""

    model_types = ("flaubert",)
    heads: ClassVar = {name.replace("XLM", "Flaubert"): over for name, over in XLM.heads.items()}
    fixed = (*XLM.fixed, Fixed("pre_norm", (False,)))
