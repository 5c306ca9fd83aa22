"""Which family a model is written as: what keeps it from one is told, and no map's error is passed over in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import tfkit
from tfkit.core.component import spell
from tfkit.core.errors import DataError, TfkitWarning
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.families.llama import Llama
from tfkit.interop.huggingface.family import families
from tfkit.interop.huggingface.matching import matching_family
from tfkit.interop.huggingface.settings import Factor, Rope, Setting
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.views.resolved import model_values

from ..sampling import looped
from .rows import ROWS

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
TINY = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Llama]]:
    """A map of the user's own that stumbles over every model."""
    monkeypatch.setitem(REGISTRY._parts, "family", dict(REGISTRY.load("family")))

    @tfkit.register("family", "mine")
    class Mine(Llama):
        """A family of one's own."""

        model_types = ("mine",)

        @classmethod
        def to_config(cls, config: Any, model: Mapping[str, Any]) -> None:
            raise KeyError("shoe_size")

    yield Mine


def llama(**changes: Any) -> dict[str, Any]:
    return spell(model_values(blueprint_of(Llama.recipe(TINY)))) | changes  # type: ignore[no-any-return]


def test_the_error_of_an_imported_familys_map_is_told(mine: type[Llama]) -> None:
    told = r"not written as 'mine': KeyError: 'shoe_size' \(.*test_theirs\.py:\d+\)"
    with pytest.warns(TfkitWarning, match=told):
        found, _ = matching_family(blueprint_of(llama()), ("mine", "LlamaForCausalLM"))
    assert found is not None and found.family is Llama


def test_the_error_of_ones_own_map_is_told_where_no_other_says_the_model(mine: type[Llama]) -> None:
    model = llama(position="sinusoidal")
    with pytest.warns(TfkitWarning, match="not written as 'mine': KeyError: 'shoe_size'"):
        assert matching_family(blueprint_of(model))[0] is None


@pytest.mark.filterwarnings("error")
def test_a_model_of_another_family_needs_no_word_about_it(mine: type[Llama]) -> None:
    found, _ = matching_family(blueprint_of(llama()))
    assert found is not None and found.family is Llama


@pytest.mark.full
def test_what_the_family_of_an_import_cannot_say_is_named() -> None:
    model = llama(position={"type": "rotary", "fraction": 0.5})
    with pytest.warns(TfkitWarning, match=r"not written as 'gpt2': its config\.json cannot express .*position"):
        matching_family(blueprint_of(model), ("gpt2", "GPT2LMHeadModel"))


@pytest.mark.full
def test_what_transformers_does_not_take_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**values: Any) -> None:
        raise ValueError("hidden_size\nis odd")

    monkeypatch.setitem(transformers.CONFIG_MAPPING._extra_content, "llama", refuse)
    with pytest.warns(TfkitWarning, match="not written as 'llama': transformers rejects .*: hidden_size is odd"):
        found, _ = matching_family(blueprint_of(llama()), ("llama", "LlamaForCausalLM"))
    assert found is not None and found.family is not Llama


def test_a_family_that_is_gone_is_told() -> None:
    with pytest.warns(TfkitWarning, match="imported as 'tiny_reader', a family that is not registered; pass"):
        found, _ = matching_family(blueprint_of(llama()), ("tiny_reader", "TinyReader"))
    assert found is not None and found.family is Llama


@pytest.mark.full
@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_part_of_a_head_turns_only_where_theirs_can(fraction: float) -> None:
    """Llama's implementation takes no notice of partial_rotary_factor."""
    found, _ = matching_family(blueprint_of(llama(position={"type": "rotary", "fraction": fraction})))
    assert found is None or found.family.rope.partial  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=f"cannot express rotary positions with fraction {fraction}"):
        Rope().write({"layout": "halves", "clockwise": False, "fraction": fraction}, {})
    said = {"partial_rotary_factor": fraction}
    assert (Rope().read(said)["fraction"], Rope(partial=True).read(said)["fraction"]) == (1.0, fraction)


@looped(
    ("setting", "value"),
    [
        (Setting("attention_bias", "x", False), ["query"]),
        (Setting("embedding_multiplier", "x", 1.0), "sqrt_d_model"),
        (Setting("num_layers", "x", 12), True),
        (Factor("residual_multiplier", "x", 1.0), None),
    ],
)
def test_a_value_of_another_kind_has_no_word(setting: Setting, value: Any) -> None:
    with pytest.raises(DataError, match=f"{setting.config_key} cannot express {re.escape(repr(value))}"):
        setting.write(value)


@pytest.mark.parametrize(
    ("name", "key", "value"), [("granite", "attention_multiplier", 8**-0.5), ("gemma2", "query_pre_attn_scalar", 8)]
)
def test_a_factor_that_a_recipe_leaves_to_the_width_is_written(name: str, key: str, value: float) -> None:
    family = families()[name]
    said = {**TINY, "head_dim": 8, "num_key_value_heads": 2, key: value}
    model = spell(model_values(blueprint_of(family.recipe(said))))
    for layer in (model["layer"], *model.get("layers", {}).values()):
        if "attention" in layer:
            layer["attention"]["scale"] = None
    found, _ = matching_family(blueprint_of(model), (name,))
    assert found is not None and found.family is family
    assert found.config[key] == pytest.approx(value)


CONFIGS = {row.family: row.config for row in ROWS}
READ_ALL_THE_SAME = {"head_dim", "initializer_range"}  # keys that a class has not, and their code asks for


@pytest.mark.parametrize(
    "name",
    [
        name if number % 12 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for number, name in enumerate(sorted(CONFIGS))
    ],
)
def test_a_family_says_no_key_that_theirs_takes_no_notice_of(name: str) -> None:
    """Such as attention_bias of Mixtral, which would be written and make no bias."""
    family, config = families()[name], getattr(transformers, CONFIGS[name])()
    rows = (*family.settings, *getattr(family, "head_settings", ()))
    said = {row.config_key.partition(".")[0] for row in rows} - READ_ALL_THE_SAME
    assert said <= {*config.to_dict(), *config.attribute_map}


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "fnet"])
def test_no_token_types_become_one_that_adds_nothing(name: str) -> None:
    family = families()[name]
    model = spell(model_values(blueprint_of(family.recipe({"embedding_size": 8, **TINY}))))
    model["embedding"]["segments"] = 0
    blueprint = blueprint_of(model)
    found, _ = matching_family(blueprint, (name,))
    assert found is not None and found.family is family and found.config["type_vocab_size"] == 1
    ((place, zeros),) = family.constants(blueprint).items()
    assert place == "embeddings.token_type_embeddings.weight"
    assert zeros.shape == (1, 16 if name in ("bert", "roberta", "fnet") else 8) and not zeros.any()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "ids", "why"),
    [
        ("roberta", {"pad_token_id": 5}, "cannot express pad_token_id 5, because positions start after 1"),
        ("xlm", {"pad_token_id": None}, "requires pad_token_id, which this model lacks"),
        ("modernbert_decoder", {"pad_token_id": None}, "transformers rejects its config.json"),
    ],
)
def test_special_tokens_are_said_as_they_are_or_not_at_all(name: str, ids: dict[str, int | None], why: str) -> None:
    family = families()[name]
    row = next(row for row in ROWS if row.family == name)
    config = getattr(transformers, row.config)(**{"vocab_size": 61, **row.settings}).to_dict()
    blueprint = blueprint_of(family.recipe({**config, "architectures": [row.model]}))
    with pytest.warns(TfkitWarning, match=why):
        found, _ = matching_family(blueprint, (name,), ids)
    assert found is None or found.family is not family
    found, _ = matching_family(blueprint, (name,), {"pad_token_id": 1, "eos_token_id": None})
    assert found is not None and found.config["pad_token_id"] == 1 and found.config["eos_token_id"] is None


def test_windows_that_do_not_divide_the_largest_are_not_written_as_longformer() -> None:
    family = families()["longformer"]
    model = spell(model_values(blueprint_of(family.recipe({**TINY, "attention_window": [4, 12], "pad_token_id": 1}))))
    assert family.config(model, "LongformerModel")["attention_window"] == [4, 12]
    model = spell(model_values(blueprint_of(family.recipe({**TINY, "attention_window": [8, 12], "pad_token_id": 1}))))
    with pytest.raises(DataError, match="cannot express size 8, which does not divide the largest size, 12"):
        family.config(model, "LongformerModel")
