"""The way back of encoders: a config.json of ours makes their class the same model; and the sentence encoder MiniLM."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.core.component import spell
from tfkit.core.errors import DataError
from tfkit.interop.huggingface.families.albert import Albert
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.matching import matching_family
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.views.resolved import model_values

from ..sampling import looped, some
from .parity import Row, described, families, ids, randomise, sized
from .rows_encoders import ROWS

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
MINILM = os.environ.get(
    "TFKIT_MINILM"
)  # the folder of all-MiniLM-L6-v2: config.json, tokenizer.json, model.safetensors
VALUES = os.environ.get("TFKIT_MINILM_VALUES")  # what it gives for a few sentences, computed elsewhere


@pytest.mark.full
@pytest.mark.parametrize("row", some(ROWS), ids=str)
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
    tokens = {key: row.settings.get(key) for key in ("pad_token_id", "bos_token_id")}
    said = {key: value for key, value in theirs.config.items() if key not in ("architectures", "model_type")}
    models = []
    for config in (first, made(**{"eos_token_id": row.settings.get("eos_token_id"), **tokens, **said})):
        config._attn_implementation = row.reference
        models.append(name(config).eval())
        randomise(models[-1], row.std, ("inv_freq",))
    text = ids(2, row.length)
    text[:, -1] = row.end or text[:, -1]
    ours, others = (model(input_ids=text) for model in models)
    assert list(ours) == list(others)
    tensors = [key for key, value in ours.items() if isinstance(value, torch.Tensor)]
    assert tensors
    for key in tensors:
        assert torch.equal(ours[key], others[key]), key


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> tfkit.Run:
    if not MINILM or not VALUES:
        pytest.skip("TFKIT_MINILM is the folder of all-MiniLM-L6-v2, TFKIT_MINILM_VALUES a file of what it gives")
    return tfkit.load_run(import_model(MINILM, tmp_path_factory.mktemp("runs") / "minilm").run)


def test_minilm_has_all_its_parameters(minilm: tfkit.Run) -> None:
    assert sum(parameter.numel() for parameter in minilm.model.parameters()) == 22_713_216


@torch.no_grad()
def test_minilm_gives_what_was_computed_elsewhere(minilm: tfkit.Run) -> None:
    for item in json.loads(Path(str(VALUES)).read_text())["items"]:
        assert minilm.read([item["text"]]) == [item["ids"]]
        hidden = minilm.model(torch.tensor([item["ids"]])).hidden[0]
        vector = hidden.mean(dim=0)
        wanted = torch.tensor(item["embedding_first8"])
        torch.testing.assert_close(hidden[0, :8], torch.tensor(item["last_hidden_first8_of_CLS"]), atol=1e-4, rtol=0)
        torch.testing.assert_close((vector / vector.norm())[:8], wanted, atol=1e-4, rtol=0)


@looped(
    ("name", "config", "message"),
    [
        ("bert", {"is_decoder": True}, "is_decoder: only False"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: only 'absolute'"),
        ("ernie", {"use_task_id": True}, "use_task_id: only False"),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves no room after row 2"),
        ("albert", {"inner_group_num": 2, "num_hidden_groups": 3}, "inner_group_num: 2 layers in each of 3 groups"),
        ("roformer", {"rotary_value": True}, "rotary_value: only False"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets: only 32"),
        ("xlm", {"n_langs": 2}, "n_langs: only 1"),
        ("xlm", {"causal": True}, "causal: only False"),
        ("flaubert", {"pre_norm": True}, "pre_norm: only False"),
        ("longformer", {"attention_window": [4]}, "attention_window: 1 windows for 12 layers; set one per layer"),
        (
            "bert_generation",
            {"architectures": ["BertGenerationDecoder"]},
            "is_decoder: a bidirectional BertGenerationDecoder is not supported",
        ),
    ],
)
def test_what_cannot_be_brought_in_is_refused_by_name(name: str, config: dict[str, object], message: str) -> None:
    family = next(part for part in families() if part.part_name == name)
    with pytest.raises(DataError, match=re.escape(message)):
        family.recipe(sized(family, config))


@pytest.mark.parametrize(
    ("groups", "inner", "pattern", "layers"),
    [(1, 3, ["group", "group", "group"], 12), (2, 1, ["group*2", "group*2"], 4), (1, 1, None, 4)],
)
def test_groups_of_albert(groups: int, inner: int, pattern: list[str] | None, layers: int) -> None:
    """Several layers in a group come again and again; several groups come one after another."""
    said = {"num_hidden_groups": groups, "inner_group_num": inner, "num_hidden_layers": 4, "hidden_size": 48}
    model = Albert.recipe(sized(Albert, said))
    assert (model.get("pattern"), model["num_layers"]) == (pattern, layers)
    written = Albert.config(spell(model_values(blueprint_of(model))), "AlbertForMaskedLM")
    assert {key: written[key] for key in said} == said
