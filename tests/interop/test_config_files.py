"""What a config.json means: older files, values left out, values that no recipe can hold."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tfkit.core.component import spell
from tfkit.core.errors import DataError
from tfkit.interop.huggingface.families.bloom import Bloom, Falcon
from tfkit.interop.huggingface.families.electra import Albert
from tfkit.interop.huggingface.families.gpt_neo import GPTJ, GPTBigCode
from tfkit.interop.huggingface.families.t5 import MT5, T5
from tfkit.interop.huggingface.family import families, family_of
from tfkit.interop.huggingface.settings import NEEDED, look, put
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.views.resolved import model_values

from ..sampling import each, looped
from .parity import sized
from .rows import ROWS
from .rows_llamas import ROWS as LLAMAS
from .rows_llamas import TINY

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
TINY_T5 = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "model_type": "t5"}
SU = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
# configs of transformers 4 and before; the reference is what transformers reads from them
OLD: dict[str, dict[str, Any]] = {
    "LlamaConfig": {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "MistralConfig": {"rope_theta": 300.0, "sliding_window": None, "head_dim": 12},
    "Qwen2Config": {"rope_theta": 300.0, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 5},
    "GemmaConfig": {"rope_theta": 300.0, "hidden_act": "gelu", "head_dim": 8},
    "Gemma2Config": {"rope_theta": 300.0, "head_dim": 8, "query_pre_attn_scalar": 20},
    "Gemma3TextConfig": {
        "rope_theta": 300.0, "rope_local_base_freq": 200.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3, "head_dim": 8,
    },
    "Olmo3Config": {"rope_theta": 500000.0, "rope_scaling": YARN},
    "Phi3Config": {"original_max_position_embeddings": 16, "rope_scaling": SU},
    "PhiConfig": {"rope_theta": 300.0, "partial_rotary_factor": 0.25},
    "StableLmConfig": {"partial_rotary_factor": 0.5, "num_key_value_heads": 2},
    "NemotronConfig": {"partial_rotary_factor": 0.25},
    "Cohere2Config": {"sliding_window_pattern": 2, "rope_theta": 300.0},
    "ModernBertDecoderConfig": {"global_rope_theta": 300.0, "local_rope_theta": 200.0, "global_attn_every_n_layers": 2},
    "SmolLM3Config": {"rope_theta": 300.0, "no_rope_layer_interval": 2},
    "Olmo2Config": {},
    "Exaone4Config": {"sliding_window_pattern": 2},
    "HunYuanDenseV1Config": {
        "head_dim": 8, "rope_theta": 300.0, "rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 1.0},
    },
}  # fmt: skip
# T5Gemma needs both sides, and HyperCLOVA X spells out a factor without effect
OTHERWISE = {"T5GemmaConfig", "HyperCLOVAXConfig"}


@looped("name", OLD)
def test_older_files_mean_the_same(name: str) -> None:
    old = {**TINY, "num_hidden_layers": 4, "vocab_size": 61, **OLD[name]}
    new = getattr(transformers, name)(**copy.deepcopy(old)).to_dict()
    family = family_of(new)
    head = {"model_type": new["model_type"], "architectures": [next(iter(family.heads))]}
    assert blueprint_of(family.recipe(old | head)) == blueprint_of(family.recipe(new | head))


@pytest.mark.full
@looped("name", sorted({row.config for row in LLAMAS} - OTHERWISE))
def test_defaults_are_those_of_transformers(name: str) -> None:
    spelled = getattr(transformers, name)().to_dict()
    family = family_of(spelled)
    config: dict[str, Any] = {"model_type": spelled["model_type"], "architectures": [next(iter(family.heads))]}
    whole = spelled | config
    for row in (row for row in family.settings if row.default is NEEDED):  # the sizes, which all files state
        key = next(key for key in (row.config_key, *row.also) if look(spelled, key) is not None)
        put(config, key, look(spelled, key))
    assert blueprint_of(family.recipe(config)) == blueprint_of(family.recipe(whole))


@looped(
    ("config", "changes", "left_out"),
    [
        ("MiniMaxM2Config", {"rotary_dim": 6, "head_dim": 12, "num_local_experts": 6}, ()),
        ("AriaTextConfig", {"moe_num_experts": 6}, ("moe_num_shared_experts",)),
        ("MiMoV2FlashConfig", {"sliding_window_size": 4}, ("sliding_window", "layer_types", "mlp_layer_types")),
        ("Cohere2MoeConfig", {"first_k_dense_replace": 3}, ("layer_types", "mlp_layer_types")),
        ("AXK1Config", {"first_k_dense_replace": 2}, ("mlp_layer_types",)),
        ("Kolibri1Config", {"num_hidden_layers": 6}, ("layer_types",)),
        ("Lfm3Config", {}, ("layer_types",)),
        ("Mistral4Config", {}, ()),
        ("Qwen2VLTextConfig", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}}, ("layer_types",)),
        ("CohereCompassTextConfig", {}, ("layer_types",)),
        ("OpenAIPrivacyFilterConfig", {}, ()),
        (
            "UltrabertConfig",
            {
                "attention_windows": [3, 3, None],
                "rope_theta": [10.0, 10.0, 99.0],
                "num_hidden_layers": 3,
            },
            ("layer_types", "sliding_window"),
        ),
    ],
)
def test_published_files_mean_the_same(config: str, changes: dict[str, Any], left_out: tuple[str, ...]) -> None:
    spelled = getattr(transformers, config)(**{"hidden_size": 48, "num_attention_heads": 4, **changes}).to_dict()
    family = family_of(spelled)
    written = {key: value for key, value in spelled.items() if key not in (*left_out, "rope_parameters")}
    head = {"architectures": [next(iter(family.heads))]}
    assert family.recipe(written | changes | head) == family.recipe(spelled | head)


SCALING, LENGTH = "rope_scaling", {"max_position_embeddings": 64}
PROPORTIONAL = {kind: {"rope_type": "proportional"} for kind in ("full_attention", "sliding_attention")}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {SCALING: {"rope_type": "axial"}}, "rope_type: 'axial' is not supported; expected default"),
    ("mellum", {"rope_parameters": PROPORTIONAL}, "rope_type: 'proportional' is not supported; expected default"),
    ("lfm3", {"layer_types": ["mamba"]}, "'mamba' is not supported; expected full_attention, sliding_attention, conv"),
    ("axk1", {"moe_layer_freq": 2}, "moe_layer_freq: only 1"),
    ("cohere2_moe", {"expert_selection_fn": "tanh"}, "expert_selection_fn: 'tanh' is not supported"),
    ("cohere2_moe", {"shared_expert_combination_strategy": "max"}, "'max' is not supported; expected average, sum"),
    ("llama", {SCALING: {"rope_type": "linear"}}, "the rotary scaling lacks factor"),
    ("llama", {SCALING: {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}}, "lacks high_freq_factor"),
    ("llama", {SCALING: {"rope_type": "longrope", "short_factor": [1.0]}}, "lacks long_factor"),
    ("gemma2", {"layer_types": ["chunked_attention"]}, "'chunked_attention' is not supported; expected full_attention"),
    ("gptj", {"rotary_dim": None}, "rotary_dim"),
    ("gpt_neo", {"num_layers": 3, "attention_types": [[["global", "local"], 2]]}, "covers 4 layers, but num_layers is"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
    ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn: false"),
    ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi: only True"),
    ("mpt", {"expansion_ratio": 2}, "expansion_ratio: only 4"),
    ("opt", {"word_embed_proj_dim": 20, "architectures": ["OPTModel"]}, "only with a tied head"),
    ("openai_gpt", {"afn": "mish"}, "afn: 'mish' is not supported; expected gelu, relu, silu, swish"),
    ("t5", {"feed_forward_proj": "gated-snake"}, "dense_act_fn: 'snake' is not supported"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise"),
    ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias"),
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
    ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, "num_active differs between layers"),
    ("mpnet", {"is_decoder": True}, "is_decoder: only False"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: only 'absolute'"),
    ("ernie", {"use_task_id": True}, "use_task_id: only False"),
    ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves no room after row 2"),
    ("albert", {"inner_group_num": 2, "num_hidden_groups": 3}, "inner_group_num: 2 layers in each of 3 groups"),
    ("roformer", {"rotary_value": True}, "rotary_value: only False"),
    ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets: only 32"),
    ("xlm", {"n_langs": 2}, "n_langs: only 1"),
    ("xlm", {"causal": True}, "causal: only False"),
    ("ibert", {"quant_mode": True}, "quant_mode: only False"),
    ("flaubert", {"pre_norm": True}, "pre_norm: only False"),
    ("longformer", {"attention_window": [4]}, "attention_window: 1 windows for 12 layers; set one per layer"),
]


@looped(("name", "config", "message"), REFUSED)
def test_unsupported_values_are_named(name: str, config: dict[str, Any], message: str) -> None:
    family = families()[name]
    with pytest.raises(DataError, match=re.escape(message)):
        family.recipe(sized(family, LENGTH | config if name == "llama" else config))


@looped(
    ("config", "output"),
    [
        ({}, {"tied": True, "scale": "1/sqrt_d_model"}),
        ({"tie_word_embeddings": True}, {"tied": True, "scale": "1/sqrt_d_model"}),
        ({"tie_word_embeddings": False}, {}),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, {"tied": True}),
    ],
)
def test_the_output_of_t5(config: dict[str, Any], output: dict[str, Any]) -> None:
    """T5 is tied, T5 1.1 is not; transformers 5 writes a tied, unscaled output for 1.1, which the tensors correct."""
    head = T5.recipe({**TINY_T5, **config})["head"]
    assert {key: value for key, value in head.items() if key != "type"} == output
    tied = {} if config.get("tie_word_embeddings") is False else {"tied": True}
    assert MT5.recipe({**TINY_T5, **config})["head"] == {"type": "language_model", **tied}


@looped(
    ("config", "part", "activation"),
    [
        ({}, "mlp", "relu"),
        ({"feed_forward_proj": "gated-gelu"}, "glu", "gelu_tanh"),
        ({"feed_forward_proj": "gated-silu"}, "glu", "silu"),
        ({"feed_forward_proj": "gelu"}, "mlp", "gelu"),
        ({"feed_forward_proj": "relu", "dense_act_fn": "gelu_new", "is_gated_act": True}, "glu", "gelu_tanh"),
    ],
)
def test_the_feedforward_of_t5(config: dict[str, Any], part: str, activation: str) -> None:
    feedforward = T5.recipe({**TINY_T5, **config})["layer"]["feedforward"]
    assert (feedforward["type"], feedforward["activation"]) == (part, activation)


def test_old_names_of_sizes() -> None:
    old = {"n_embed": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 11}
    for model in (Bloom.recipe(old), Falcon.recipe({"n_embed": 24, "n_head": 4, "n_layer": 3, "vocab_size": 11})):
        assert (model["d_model"], model["num_layers"], model["layer"]["attention"]["num_heads"]) == (24, 3, 4)


def test_every_class_exists_in_transformers() -> None:
    # names in published files
    without = {
        "internlm3": "InternLM3ForCausalLM", "iquestcoder": "IQuestCoderForCausalLM", "llama4": "Llama4Model",
    }  # fmt: skip

    def check(name: str) -> None:
        assert [one for one in families()[name].heads if not hasattr(transformers, one)] in ([], [without.get(name)])

    each(sorted({row.family for row in ROWS}), check)


@looped("turned", [2, 6, 14, 58])
def test_the_number_of_rotated_channels_of_gptj(turned: int) -> None:
    fraction = GPTJ.recipe(sized(GPTJ, {"n_embd": 400, "n_head": 2, "rotary_dim": turned}))["position"]["fraction"]
    assert int(200 * fraction) == turned


@pytest.mark.full
def test_a_second_name_of_a_type() -> None:
    assert family_of({"model_type": "gpt-sw3"}) is family_of({"model_type": "gpt2"})


def test_starcoder_cannot_express_few_key_value_heads() -> None:
    model = GPTBigCode.recipe(sized(GPTBigCode, {"n_embd": 24, "n_head": 4}))
    model["layer"]["attention"]["num_kv_heads"] = 2
    with pytest.raises(DataError, match="cannot express 2 key-value heads"):
        GPTBigCode.config(model, "GPTBigCodeForCausalLM")


@looped(
    ("groups", "inner", "pattern", "layers"),
    [(1, 3, ["group", "group", "group"], 12), (2, 1, ["group*2", "group*2"], 4), (1, 1, None, 4)],
)
def test_groups_of_albert(groups: int, inner: int, pattern: list[str] | None, layers: int) -> None:
    sizes = {"num_hidden_groups": groups, "inner_group_num": inner, "num_hidden_layers": 4, "hidden_size": 48}
    model = Albert.recipe(sized(Albert, sizes))
    assert (model.get("pattern"), model["num_layers"]) == (pattern, layers)
    written = Albert.config(spell(model_values(blueprint_of(model))), "AlbertForMaskedLM")
    assert {key: written[key] for key in sizes} == sizes
