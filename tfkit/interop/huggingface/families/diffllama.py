"""DiffLlama: Llama with differential attention (Ye et al. 2024)."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.llama import CHECKPOINT, LAYER, Llama, heads_of
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import Setting, amended
from tfkit.interop.huggingface.tensors import Rule

VECTORS = {"q1": "query_1", "k1": "key_1", "q2": "query_2", "k2": "key_2"}


@register("family", "diffllama")
class DiffLlama(Llama):
    """DiffLlama: Llama with the difference of two attention maps."""

    model_types = ("diffllama",)
    base = merged(Llama.base, {"layer.attention": {"type": "differential", "bias": False}})
    heads = heads_of("DiffLlama")
    settings = amended(
        Llama.settings,
        Setting("rms_norm_eps", ("layer.norm.eps", "layer.attention.eps"), 1e-5),
        Setting("lambda_std_dev", "layer.attention.lambda_std", 0.1),
        without=("mlp_bias",),
    )
    rules = (
        *Llama.rules,
        *(
            Rule(f"{CHECKPOINT}.self_attn.lambda_{checkpoint}", f"{LAYER}.attention.{own}")
            for checkpoint, own in VECTORS.items()
        ),
    )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["attention_dropout"] = 0.0  # the implementation rejects other values
