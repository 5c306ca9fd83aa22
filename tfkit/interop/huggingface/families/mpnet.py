"""MPNet (Song et al. 2020)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection
from tfkit.interop.huggingface.families.bert import BertLike, heads_of, renamed, table_rules
from tfkit.interop.huggingface.families.roberta import Offset, Roberta
from tfkit.interop.huggingface.settings import Fixed, amended
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layer.{layer}"
NAMES = {
    "attention.attn.q": "attention.query",
    "attention.attn.k": "attention.key",
    "attention.attn.v": "attention.value",
    "attention.attn.o": "attention.output",
    "attention.LayerNorm": "attention_norm",
    "intermediate.dense": "feedforward.up",
    "output.dense": "feedforward.down",
    "output.LayerNorm": "feedforward_norm",
}


@register("family", "mpnet")
class MPNet(Offset):
    """MPNet: RoBERTa without token types, with relative position buckets in addition to learned positions."""

    model_types = ("mpnet",)
    base: ClassVar[ModelSection] = {
        **BertLike.base,
        "position": [
            {"type": "learned", "skip_padding": True},
            {"type": "t5_bias", "num_buckets": 32, "max_distance": 128},
        ],
    }
    heads: ClassVar = heads_of("MPNet")
    settings = amended(BertLike.settings, without=("type_vocab_size",))
    # the implementation always uses 32 buckets; the key only sets the size of the table
    fixed = (
        Fixed("tie_word_embeddings", (True,)),
        Fixed("relative_attention_num_buckets", (32,)),
        Fixed("pad_token_id", (1,)),
    )
    rules = (
        *table_rules(),
        Rule("encoder.relative_attention_bias.weight", "encoder.position.1.table.weight"),
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in NAMES.items()}),
    )
    head_rules: ClassVar = Roberta.head_rules
    prefix, unprefixed, tied, dropped = "mpnet.", Roberta.unprefixed, Roberta.tied, Roberta.dropped
    head_activation = "gelu"
