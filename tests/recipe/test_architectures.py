"""Published architectures written in the recipe language: they resolve, build, and have their papers' sizes.

The counts are those of transformers 5.23.0, built on the `meta` device with each model's published sizes, every
parameter once (`sum(p.numel() for p in model.parameters())`); the class stands beside each. Where tfkit differs, a
comment says why.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tfkit.core.blueprint import Blueprint, LayerPlan
from tfkit.models import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count_parameters

pytestmark = pytest.mark.usefixtures("shipped_parts")

FOLDER = Path(__file__).parent / "architectures"

# Marian stores its two tables of sinusoids as parameters; here sinusoids are computed.
MARIAN_SINUSOIDS = 2 * 512 * 512

PUBLISHED = {
    "transformer-base": 63_045_632,  # by hand: see tests/models/test_counts.py
    "marian-en-de": 100_982_784 - MARIAN_SINUSOIDS,  # MarianMTModel
    "bart-large": 406_291_456,  # BartForConditionalGeneration
    "t5-base": 222_903_552,  # T5ForConditionalGeneration
    "umt5-small": 175_333_376,  # UMT5ForConditionalGeneration, tie_word_embeddings=True
    "bert-base": 109_514_298,  # BertForMaskedLM (without the pooler, which masked_lm does not read)
    "bert-two-heads": 110_106_428,  # BertForPreTraining
    "albert-base": 11_221_680,  # AlbertForMaskedLM
    "albert-groups": 25_397_424,  # AlbertForMaskedLM, num_hidden_groups=3
    "electra-small": 13_549_057,  # ElectraForPreTraining
    "roberta-base": 124_697_433,  # RobertaForMaskedLM
    "modernbert-base": 149_655_232,  # ModernBertForMaskedLM
    "gpt2": 124_439_808,  # GPT2LMHeadModel
    "prefix-lm": 124_439_808,  # the same: a mask has no parameters
    "gpt-j": 6_050_882_784,  # GPTJForCausalLM
    "gpt-neox-20b": 20_554_567_680,  # GPTNeoXForCausalLM
    # no model there; by hand, and 8.63 billion in Table 1 of arXiv 2204.02311: query and output 4,096 x 4,096, one key
    # and one value head of 256, three matrices of 4,096 x 16,384, one norm
    "palm-8b": 32 * (2 * 4096**2 + 2 * 4096 * 256 + 3 * 4096 * 16384 + 4096) + 256_000 * 4096 + 4096,
    "bloom-7b1": 7_069_016_064,  # BloomForCausalLM
    "gemma-2-2b": 2_614_341_888,  # Gemma2ForCausalLM
    "gemma-3-4b": 3_880_263_168,  # Gemma3ForCausalLM, the text model
    "t5gemma-9b-2b": 12_292_375_296,  # T5GemmaForConditionalGeneration
    "longformer-base": 148_711_257,  # LongformerForMaskedLM
    "mixtral-8x7b": 46_702_792_704,  # MixtralForCausalLM
    "deepseek-v3": 671_026_404_352,  # DeepseekV3ForCausalLM (what chooses experts there is a buffer)
    "cohere2-7b": 8_028_033_024,  # Cohere2ForCausalLM
    # diffusers' BasicTransformerBlock, by hand: self-attention, cross-attention to 768, GEGLU, three norms
    "latent-diffusion-block": (4 * 320**2 + 320)
    + (2 * 320**2 + 2 * 320 * 768 + 320)
    + (3 * 320 * 1280 + 2 * 1280 + 320)
    + 3 * 2 * 320,
    "jamba": 51_570_323_328,  # JambaForCausalLM
    # by hand: a table, two layers of two LSTMs of half the width with two biases each, five classes
    "lstm-encoder": 37_000 * 512 + 2 * 2 * 4 * 256 * (512 + 256 + 2) + 5 * 512 + 5,
}


@cache
def blueprint(name: str) -> Blueprint:
    return load_recipe(FOLDER / f"{name}.yaml").blueprint()


def layers(name: str, side: str | None = None) -> list[LayerPlan]:
    """Each layer in order."""
    plan = blueprint(name).last if side is None else getattr(blueprint(name), side)
    return [plan.layers[kind] for kind in plan.order]


def windows(name: str, side: str | None = None) -> list[int | None]:
    """The window of each layer in order."""
    return [
        next((rule.size for rule in layer.mask if rule.part.part_name == "window"), None)  # type: ignore[attr-defined]
        for layer in layers(name, side)
    ]


def thetas(name: str) -> list[float]:
    """The rotary base of each layer in order, 0 where nothing turns."""
    stack = blueprint(name).last.position
    found = [stack if layer.position is None else layer.position for layer in layers(name)]
    return [parts[0].theta if parts else 0 for parts in found]  # type: ignore[attr-defined]


def test_every_recipe_of_the_folder_is_tried():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name):
    model = build_model(blueprint(name), device="meta")
    assert sum(weight.numel() for weight in model.parameters()) == PUBLISHED[name]
    assert count_parameters(blueprint(name)) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_resolved_text_loads_to_an_equal_blueprint(name, tmp_path):
    recipe = load_recipe(FOLDER / f"{name}.yaml")
    path = tmp_path / "resolved.yaml"
    path.write_text(recipe.resolved(), encoding="utf-8")
    again = load_recipe(path)
    assert again.blueprint() == recipe.blueprint()
    assert spelled(again.resolved()) == spelled(recipe.resolved())


def spelled(text: str) -> list[str]:
    """The lines of a resolved recipe without its origins."""
    return [line.partition("  #")[0] for line in text.splitlines() if not line.startswith("#")]


def test_gemma_alternates_local_and_global():
    assert windows("gemma-2-2b") == [4096, None] * 13  # Gemma2Config.layer_types: sliding, full, ...
    assert windows("gemma-3-4b") == ([1024] * 5 + [None]) * 5 + [1024] * 4  # Gemma3TextConfig.layer_types, cut
    assert thetas("gemma-3-4b") == ([10_000.0] * 5 + [1_000_000]) * 5 + [10_000.0] * 4
    scaled = [(layer.position or blueprint("gemma-3-4b").last.position)[0].scaling for layer in layers("gemma-3-4b")]
    assert [scaling is not None for scaling in scaled] == ([False] * 5 + [True]) * 5 + [False] * 4
    attention = layers("gemma-3-4b")[0].sublayers[0].config
    assert (attention.softcap, attention.qk_norm.weight_offset) == (None, 1.0)
    assert layers("gemma-2-2b")[0].sublayers[0].config.softcap == 50


def test_t5gemma_sees_half_its_window_on_each_side():
    assert windows("t5gemma-9b-2b", "encoder") == [8192, None] * 21
    assert windows("t5gemma-9b-2b", "decoder") == [4096, None] * 13
    reach = [
        layers("t5gemma-9b-2b", side)[0].mask[-1].reach(causal) for side, causal in (("encoder", 0), ("decoder", 1))
    ]
    assert reach == [(4096, 4096), (4095, 0)]
    cross = layers("t5gemma-9b-2b", "decoder")[0].sublayers[1]
    assert (cross.name, cross.memory, cross.config.num_kv_heads) == ("cross_attention", True, 4)
    assert blueprint("t5gemma-9b-2b").decoder.memory_width == 3584


def test_modernbert_has_every_third_layer_global_and_no_first_norm():
    # ModernBertConfig.layer_types; layers[0].attn_norm is an Identity
    assert windows("modernbert-base") == [None, 128, 128] * 7 + [None]
    assert thetas("modernbert-base") == [160_000, 10_000, 10_000] * 7 + [160_000]
    norms = [layer.sublayers[0].norm is not None for layer in layers("modernbert-base")]
    assert norms == [False] + [True] * 21
    assert all(layer.sublayers[1].norm is not None for layer in layers("modernbert-base"))


def test_cohere_turns_in_its_local_layers_only():
    assert windows("cohere2-7b") == [4096, 4096, 4096, None] * 8  # Cohere2Config.layer_types
    assert thetas("cohere2-7b") == [50_000, 50_000, 50_000, 0] * 8


def test_albert_shares_a_layer_or_three():
    assert set(blueprint("albert-base").last.entries) == {0}
    assert blueprint("albert-groups").last.entries == (0,) * 4 + (1,) * 4 + (2,) * 4
    assert len(blueprint("albert-groups").last.layers) == 1


def test_one_bias_table_a_stack_or_one_a_layer():
    t5, umt5 = (build_model(blueprint(name), "meta") for name in ("t5-base", "umt5-small"))
    tables = [name for name, _ in t5.named_parameters() if "position" in name]
    assert tables == ["encoder.position.0.table.weight", "decoder.position.0.table.weight"]
    tables = [name for name, _ in umt5.named_parameters() if "position" in name]
    assert tables == [f"{side}.layers.{i}.position.0.table.weight" for side in ("encoder", "decoder") for i in range(8)]


def test_what_extends_keeps_and_replaces():
    marian = blueprint("marian-en-de")
    assert (marian.encoder.vocab_size, marian.decoder.vocab_size, marian.shared_embedding) == (60_000, 50_000, False)
    assert marian.decoder.embedding.scale == "sqrt_d_model"
    electra = blueprint("electra-small").head
    assert electra.part.part_name == "discriminator"
    assert blueprint("roberta-base").last.embedding.norm.eps == 1e-5  # the stack's norm, wherever one stands
    assert blueprint("bert-base").head.norm.eps == 1e-12
    assert [rule.part.part_name for rule in layers("prefix-lm")[0].mask] == ["causal", "prefix"]
    assert blueprint("latent-diffusion-block").last.final_norm is None
