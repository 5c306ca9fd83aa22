"""Decoders with experts or latent attention: the way back, files in other forms, sizes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit.core.errors import DataError
from tfkit.interop.huggingface.convert import to_own
from tfkit.interop.huggingface.known import families
from tfkit.interop.huggingface.matching import matching_family

from ..sampling import looped
from .parity import Row, described, far, ids, make, randomise, weights
from .rows_experts import ROWS

transformers = pytest.importorskip("transformers")


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
    tokens = {key: row.settings[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    said = {key: value for key, value in theirs.config.items() if key not in ("architectures", "model_type")}
    models = []
    for config in (first, made(**said, **tokens)):
        config._attn_implementation = row.reference
        models.append(name(config).eval())
        randomise(models[-1], row.std)
    text = ids(2, row.length)
    assert far(models[1](text).logits, models[0](text).logits) <= 1e-7


@pytest.mark.parametrize("row", [row for row in ROWS if "moe" in row.family or row.family == "mixtral"], ids=str)
def test_experts_stacked_as_in_memory_are_read_too(row: Row, tmp_path: Path) -> None:
    pair = make(row, tmp_path)
    wanted = {name: value.shape for name, value in weights(pair.ours).items()}
    stacked = {name: value for name, value in pair.theirs.state_dict().items() if "rotary" not in name}
    brought = to_own(pair.family, stacked, wanted, pair.blueprint)
    for name, value in weights(pair.ours).items():
        assert torch.equal(brought.tensors[name], value), name


def test_layers_beyond_the_last_are_not_read_and_those_within_must_be(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.family == "deepseek_v3")
    pair = make(row, tmp_path)
    wanted = {name: value.shape for name, value in weights(pair.ours).items()}
    files = {name: value for name, value in pair.theirs.state_dict().items() if "rotary" not in name}
    ahead = {"model.layers.3.eh_proj.weight": torch.zeros(2, 4), "model.layers.3.input_layernorm.weight": torch.ones(2)}
    assert sorted(to_own(pair.family, files | ahead, wanted, pair.blueprint).unread) == sorted(ahead)
    with pytest.raises(DataError, match=r"covers model\.layers\.2\.eh_proj\.weight"):
        to_own(pair.family, files | {"model.layers.2.eh_proj.weight": torch.zeros(2, 4)}, wanted, pair.blueprint)


@pytest.mark.parametrize(
    ("config", "said", "left_out"),
    [
        ("MiniMaxM2Config", {"rotary_dim": 6, "head_dim": 12, "num_local_experts": 6}, ()),
        ("AriaTextConfig", {"moe_num_experts": 6}, ("moe_num_shared_experts",)),
    ],
)
def test_what_published_files_say_otherwise_or_not_at_all(
    config: str, said: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    spelled = getattr(transformers, config)(**{"hidden_size": 48, "num_attention_heads": 4, **said}).to_dict()
    family = next(part for part in families().values() if spelled["model_type"] in part.model_types)
    written = {key: value for key, value in spelled.items() if key not in (*left_out, "rope_parameters")}
    head = {"architectures": [next(iter(family.heads))]}
    assert family.recipe(written | said | head) == family.recipe(spelled | head)


@looped(
    ("family", "said", "message"),
    [
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, "num_active differs between layers"),
    ],
)
def test_what_cannot_be_said_here_is_refused_by_name(family: str, said: dict[str, Any], message: str) -> None:
    row = next(row for row in ROWS if row.family == family)
    config = getattr(transformers, row.config)(**{"vocab_size": 61, **row.settings}).to_dict()
    with pytest.raises(DataError, match=message):
        families()[family].recipe({**config, "architectures": [row.model], **said})
