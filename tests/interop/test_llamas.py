"""The way back of families like Llama: a config.json of ours makes their class the same model."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit.core.errors import DataError
from tfkit.interop.huggingface.known import family_of
from tfkit.interop.huggingface.matching import matching_family
from tfkit.interop.huggingface.settings import NEEDED, look, put
from tfkit.recipe.model import blueprint_of

from ..sampling import looped
from .parity import Row, described, far, ids, randomise
from .rows_llamas import ROWS, TINY

transformers = pytest.importorskip("transformers")


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=str)
@torch.no_grad()
def test_a_config_of_ours_makes_the_same_model_of_theirs(row: Row, tmp_path: Path) -> None:
    made, name = getattr(transformers, row.config), getattr(transformers, row.model)
    first = made(**{"vocab_size": 61, **row.settings})
    first.architectures = [row.model]
    first.save_pretrained(tmp_path)
    family, blueprint = described(tmp_path)
    theirs, _ = matching_family(blueprint, (family.part_name, row.model))
    assert theirs is not None, "it cannot be written"
    assert (theirs.family, theirs.head_class) == (family, row.model)
    # special tokens are not of the architecture, and a table may be smaller than their defaults
    tokens = {key: row.settings.get(key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    said = {key: value for key, value in theirs.config.items() if key not in ("architectures", "model_type")}
    models = []
    for config in (first, made(**said, **tokens)):
        config._attn_implementation = row.reference
        models.append(name(config).eval())
        randomise(models[-1], row.std, row.kept)
    text = ids(2, row.length)
    call = {"input_ids": text, **({"decoder_input_ids": text} if row.kind == "encoder_decoder" else {})}
    assert far(models[1](**call)[0], models[0](**call)[0]) <= 1e-7


# files of version 4 and before say it otherwise; what theirs makes of them is what ours makes of them
OLD: dict[str, dict[str, Any]] = {
    "LlamaConfig": {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "MistralConfig": {"rope_theta": 300.0, "sliding_window": None, "head_dim": 12},
    "Qwen2Config": {"rope_theta": 300.0, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 5},
    "GemmaConfig": {"rope_theta": 300.0, "hidden_act": "gelu", "head_dim": 8},
    "Gemma2Config": {"rope_theta": 300.0, "head_dim": 8, "query_pre_attn_scalar": 20},
    "Gemma3TextConfig": {
        "rope_theta": 300.0,
        "rope_local_base_freq": 200.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
        "head_dim": 8,
    },
    "Olmo3Config": {
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "Phi3Config": {
        "original_max_position_embeddings": 16,
        "rope_scaling": {
            "type": "su",
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 16,
        },
    },
    "PhiConfig": {"rope_theta": 300.0, "partial_rotary_factor": 0.25},
    "StableLmConfig": {"partial_rotary_factor": 0.5, "num_key_value_heads": 2},
    "NemotronConfig": {"partial_rotary_factor": 0.25},
    "Cohere2Config": {"sliding_window_pattern": 2, "rope_theta": 300.0},
    "ModernBertDecoderConfig": {"global_rope_theta": 300.0, "local_rope_theta": 200.0, "global_attn_every_n_layers": 2},
    "SmolLM3Config": {"rope_theta": 300.0, "no_rope_layer_interval": 2},
    "Olmo2Config": {},
    "Exaone4Config": {"sliding_window_pattern": 2},
    "HunYuanDenseV1Config": {
        "head_dim": 8,
        "rope_theta": 300.0,
        "rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 1.0},
    },
}


@looped("name", OLD)
def test_older_files_mean_the_same(name: str) -> None:
    old = {**TINY, "num_hidden_layers": 4, "vocab_size": 61, **OLD[name]}
    new = getattr(transformers, name)(**copy.deepcopy(old)).to_dict()
    family = family_of(new)
    said = {"model_type": new["model_type"], "architectures": [next(iter(family.heads))]}
    recipes = [blueprint_of(family.recipe(config | said)) for config in (old, new)]
    assert recipes[0] == recipes[1]


# both sides have to be there, and one says a factor that is what none would be
OTHERWISE = {"T5GemmaConfig", "HyperCLOVAXConfig"}


@pytest.mark.full
@looped("name", sorted({row.config for row in ROWS} - OTHERWISE))
def test_what_a_file_leaves_out_is_what_theirs_takes_it_for(name: str) -> None:
    spelled = getattr(transformers, name)().to_dict()
    family = family_of(spelled)
    said: dict[str, Any] = {"model_type": spelled["model_type"], "architectures": [next(iter(family.heads))]}
    whole = spelled | said
    for row in (row for row in family.settings if row.default is NEEDED):  # the sizes, which every file says
        key = next(key for key in (row.config_key, *row.also) if look(spelled, key) is not None)
        put(said, key, look(spelled, key))
    assert blueprint_of(family.recipe(said)) == blueprint_of(family.recipe(whole))


@looped(
    ("scaling", "message"),
    [
        ({"rope_type": "proportional"}, "rope_type: 'proportional' is not supported; expected default, linear"),
        ({"rope_type": "linear"}, "the rotary scaling lacks factor"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}, "lacks high_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "lacks long_factor"),
    ],
)
def test_a_scaling_that_cannot_be_brought_in_is_named(scaling: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        family_of({"model_type": "llama"}).recipe({**TINY, "vocab_size": 61, "rope_scaling": scaling})


def test_an_unknown_type_of_layer_is_named() -> None:
    config = {
        **TINY,
        "vocab_size": 61,
        "model_type": "gemma2",
        "layer_types": ["full_attention", "chunked_attention", "full_attention"],
    }
    with pytest.raises(DataError, match="layer_types: 'chunked_attention' is not supported; expected full_attention"):
        family_of(config).recipe(config)


@pytest.mark.full
def test_a_model_that_no_config_of_theirs_says_is_not_written_as_theirs() -> None:
    text = {"type": "decoder", "d_model": 16, "num_layers": 2, "vocab_size": 61, "head": "language_model"}
    layer = {
        "residual": "pre_norm",
        "norm": "rms_norm",
        "attention": {"type": "multi_head", "num_heads": 4, "bias": False},
        "feedforward": {"type": "glu", "d_ff": 24, "bias": False},
    }
    llama = {**text, "position": "rotary", "embedding": "tokens", "layer": layer}
    assert matching_family(blueprint_of(llama))[0] is not None
    for position in ({"type": "rotary", "layout": "interleaved", "fraction": 0.5, "clockwise": True}, "alibi"):
        assert matching_family(blueprint_of({**llama, "position": position}))[0] is None
