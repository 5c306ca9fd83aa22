"""The JSON Schema of the language: it knows every part, refuses nothing that is right, and what is wrong in itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator, ValidationError
from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, model_validator

from tfkit.cli.main import main
from tfkit.components.activation import Activation
from tfkit.components.attention import MultiHead
from tfkit.components.feedforward import MLP, FeedForward
from tfkit.contracts.cases import cases, variants
from tfkit.core.component import Component, Config
from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.core.registry import CATALOGUES, REGISTRY, register
from tfkit.recipe.keys import GROUPS
from tfkit.recipe.load import load_recipe
from tfkit.recipe.schema import language_schema
from tfkit.recipe.shipped import shipped_recipes
from tfkit.recipe.text.node import inline
from tfkit.recipe.text.source import _LOADER

from ..sampling import each, shares
from ..shipped import shipped
from . import test_errors
from .fuzz.oracle import mutant, neighbours

ARCHITECTURES = Path(__file__).parent / "architectures"
PARTS = [
    (slot, name)
    for slot in CATALOGUES
    for name, part in REGISTRY.load(slot).items()
    if part.__module__.startswith("tfkit.")
]
GOOD = test_errors.GOOD


class Core(_LOADER):
    """PyYAML's parser with the core rules of YAML 1.2, as editors read it: `none` is a word like any other."""

    yaml_implicit_resolvers: Any = {}


def whole_number(loader: Core, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if re.match("0[ox]", text) else int(text)


for kind, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), list(first))
Core.add_constructor("tag:yaml.org,2002:int", whole_number)
Core.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(loader.construct_scalar(node)))
Core.add_constructor("tag:yaml.org,2002:merge", lambda loader, node: loader.construct_scalar(node))  # no key, a value


def read(text: str) -> Any:
    """The data that an editor checks against a schema."""
    return yaml.load(text, Core)


@pytest.fixture(autouse=True, scope="module")
def patterns_are_compiled_once() -> Iterator[None]:
    """The schema has more patterns than `re` caches, and compiling them again takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(re, "_MAXCACHE", 10_000, raising=False)
        yield


@pytest.fixture(scope="module")
def shipped_schema() -> dict[str, Any]:
    """The schema of tfkit's own parts, whatever other tests have registered."""
    with pytest.MonkeyPatch.context() as patch:
        for slot in CATALOGUES:
            parts = {name: part for name, part in REGISTRY.load(slot).items() if part.__module__.startswith("tfkit.")}
            patch.setitem(REGISTRY._parts, slot, parts)
        return language_schema()


@pytest.fixture(scope="module")
def validator(shipped_schema: dict[str, Any]) -> Draft7Validator:
    return Draft7Validator(shipped_schema)


def faults(validator: Draft7Validator, text: str) -> list[str]:
    """What the schema finds wrong in a recipe, each with its path."""
    return [f"{path_of(error)}: {error.message}" for error in validator.iter_errors(read(text))]


def path_of(error: ValidationError) -> str:
    return ".".join(map(str, error.absolute_path))


# ------------------------------------------------------------------------------------------------------- what it holds


def test_it_is_a_schema_whose_references_lead_somewhere(shipped_schema: dict[str, Any]) -> None:
    Draft7Validator.check_schema(shipped_schema)
    for reference in {one["$ref"] for one in walk(shipped_schema) if "$ref" in one}:
        found: Any = shipped_schema
        for step in reference.removeprefix("#/").split("/"):
            found = found[int(step) if isinstance(found, list) else step]
        assert isinstance(found, dict)
    assert list(shipped_schema["definitions"]) == sorted(shipped_schema["definitions"])
    assert not [one for one in walk(shipped_schema) if one.get("enum") == []]  # draft 7 allows it, editors do not


def test_every_part_stands_in_it_with_its_paper(shipped_schema: dict[str, Any]) -> None:
    found: dict[str, set[str]] = {}
    for one in walk(shipped_schema):
        for word, text in zip(one.get("enum", ()), one.get("enumDescriptions", ()), strict=False):
            found.setdefault(word, set()).add(text)

    def check(slot: str, name: str) -> None:
        said = " ".join((REGISTRY.get(slot, name).__doc__ or "").split())
        assert any(text and said.startswith(text) for text in found[name])

    each(PARTS, check)


def test_every_key_of_the_grammar_stands_in_it(shipped_schema: dict[str, Any]) -> None:
    said = {(key, value.get("description")) for one in walk(shipped_schema) for key, value in properties(one)}
    assert {(key.name, key.sentence) for keys in GROUPS.values() for key in keys.values()} <= said


def test_every_option_is_described() -> None:
    def check(slot: str, name: str) -> None:
        part = REGISTRY.get(slot, name)
        assert part.__doc__, "the part has no docstring"
        assert undescribed(part.Config) == []

    each(PARTS, check)


def test_every_option_of_a_section_is_described(shipped_schema: dict[str, Any]) -> None:
    for section in ("data", "train", "generate"):
        found = shipped_schema["definitions"][f"section.{section}"]["properties"]
        assert [option for option, schema in found.items() if not schema.get("description")] == [], section


def test_an_option_says_its_default(shipped_schema: dict[str, Any]) -> None:
    options = shipped_schema["definitions"]["attention.multi_head"]["properties"]
    assert options["num_kv_heads"]["default"] == "none"
    assert options["num_kv_heads"]["description"].endswith("none: num_heads. Default: none.")
    assert options["dropout"]["default"] == 0.0
    assert "default" not in options["num_heads"]
    # left out of a recipe it is the stack's norm, not what a Config in Python has
    assert "default" not in shipped_schema["definitions"]["head.masked_lm"]["properties"]["norm"]


def walk(schema: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in the schema."""
    if isinstance(schema, dict):
        yield schema
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from walk(value)


def properties(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The keys that a schema of a mapping describes."""
    found = schema.get("properties")
    return [(key, value) for key, value in found.items() if isinstance(value, dict)] if isinstance(found, dict) else []


def undescribed(model: type[BaseModel]) -> list[str]:
    """The options without a description, those of mappings within the part too."""
    found = model.model_json_schema()
    mappings = [("", found), *found.get("$defs", {}).items()]
    return [
        f"{name}.{option}"
        for name, mapping in mappings
        for option, schema in mapping.get("properties", {}).items()
        if not schema.get("description")
    ]


# --------------------------------------------------------------------------------------------------- what is right


@pytest.mark.parametrize("paths", shares([*shipped_recipes().values(), *sorted(ARCHITECTURES.glob("*.yaml"))]))
def test_it_agrees_on_whole_recipes(validator: Draft7Validator, paths: list[Path]) -> None:
    """Recipes that load are right, and so is their resolved text. Those that name missing parts are wrong."""

    def check(path: Path) -> None:
        try:
            recipe = load_recipe(path) if path.parent == ARCHITECTURES else shipped(path.stem)
        except RecipeError:
            assert faults(validator, path.read_text(encoding="utf-8"))
            return
        assert faults(validator, path.read_text(encoding="utf-8")) == []
        assert faults(validator, recipe.resolved()) == []

    each(paths, check)


def test_it_accepts_every_part_with_every_option(validator: Draft7Validator) -> None:
    def check(slot: str, name: str) -> None:
        for case in (*cases(slot, name), *variants(slot, name)):
            if case.topology:
                found = faults(validator, inline(case.recipe()))
            else:
                found = part_faults(validator.schema, slot, {"type": name, **case.options})
            assert found == [], str(case)

    each(PARTS, check)


def part_faults(schema: Any, slot: str, part: Any) -> list[str]:
    """What the schema finds wrong in a part alone, wherever parts of its slot may stand."""
    alone = {"$ref": f"#/definitions/{slot}", "definitions": schema["definitions"]}
    return faults(Draft7Validator(alone), inline(part))


ACCEPTED = {
    "numbers as the language writes them": ("num_layers: 4", "num_layers: 0x4"),
    "digits in groups": ("vocab_size: 20", "vocab_size: 2_0"),
    "a signed number of another base": ("num_layers: 4", "num_layers: +0o4"),
    "a float with digits in groups": ("position: rotary", "position: {type: rotary, theta: 1_000.0e1}"),
    "none of what is optional": ("max_length: 16", "max_length: none\n  heads: none\n  layers: none\n  memory: none"),
    "none of a layer's keys": ("    dropout: 0.1", "    dropout: none\n    mixer: none\n    shared: none"),
    "a part of one type as a mapping": ("type: decoder", "type: {type: decoder}"),
    "a list of positions": ("position: rotary", "position: [rotary, alibi]"),
    "masks add up": ("position: rotary", "position: rotary\n  mask: [{type: window, size: 2}, causal]"),
    "a value for each layer": ("num_heads: 2", "num_heads: {per_layer: [1, 2, 1, 2]}"),
    "a word for each layer": ("d_ff: 16", "d_ff: 16, activation: {per_layer: [relu, gelu, relu, gelu]}"),
    "a type for each layer": ("d_ff: 16", "d_ff: 16, activation: {type: {per_layer: [relu, gelu, relu, gelu]}}"),
    "a projection for each layer": ("num_heads: 2", "num_heads: 2, bias: [query, {per_layer: [key, key, key, value]}]"),
    "a norm laid over the stack's": ("    dropout: 0.1", "    attention_norm: {eps: 0.1}\n    feedforward_norm: true"),
    "a norm in an option": ("num_heads: 2", "num_heads: 2, qk_norm: {eps: 0.1}"),
    "a sublayer twice": (
        "    dropout: 0.1",
        "    sublayers: [attention, feedforward, feedforward]\n    feedforward_2: {d_ff: 8}\n"
        "    feedforward_2_norm: none",
    ),
    "kinds complete a layer": (
        "{type: mlp, d_ff: 16}\n    dropout: 0.1",
        "{type: mlp}\n  layers: {a: {feedforward: {d_ff: 8}}, b: {feedforward: {d_ff: 4}}}\n  pattern: [a, [b, a]]",
    ),
    "a pattern instead of num_layers": ("num_layers: 4", "layers: {a: {}, b: none}\n  pattern: [a*2, a+a]"),
    "sides complete a model": (
        "type: decoder\n  d_model: 8",
        "type: encoder_decoder\n  encoder: {d_model: 8, layer: {norm: {eps: 0.1}}}\n  decoder: {d_model: 8}",
    ),
    "memory from outside": ("num_layers: 4", "num_layers: 4\n  memory: {d_model: 4}"),
    "empty sections": ("tfkit: 1", "tfkit: 1\ntrain: {}\ngenerate: none\nimports: none\nvariants: none"),
    "variants": (
        "tfkit: 1",
        "tfkit: 1\nvariants: {wide: {model.d_model: 16}, heads: {model.layer.attention.num_heads: [1, 2]}, "
        "norms: {model.layer.norm: [layer_norm, {type: rms_norm, eps: 0.1}]}, none_of: none, nested: {model: {layer: "
        "{norm: rms_norm}}}, kinds: {model: {pattern: [a]}, model.layers.a.attention.dropout: 0.1, train.steps: 3, "
        "imports: []}}",
    ),
    "a merge key": ("attention: {type: multi_head, num_heads: 2}", "attention: {<<: {num_heads: 2}, type: multi_head}"),
}  # fmt: skip


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_it_accepts(validator: Draft7Validator, tmp_path: Path) -> None:
    def check(what: str, change: tuple[str, str]) -> None:
        text, file = changed(*change), tmp_path / f"{what}.yaml"
        file.write_text(text)
        recipe = load_recipe(file)
        assert faults(validator, text) == []
        assert faults(validator, recipe.resolved()) == []

    each(ACCEPTED.items(), check)


def test_an_overlay_need_not_be_whole(validator: Draft7Validator, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(GOOD)
    text = "extends: base.yaml\nmodel: {position: {theta: 500}, layer: {attention: {num_heads: 4}, feedforward: mlp}}\n"
    (tmp_path / "over.yaml").write_text(text)
    load_recipe(tmp_path / "over.yaml")
    assert faults(validator, text) == []
    assert faults(validator, text.replace("num_heads", "num_heds"))
    assert faults(validator, text.replace("mlp", "mlpp"))


def overlaid(recipe: Any) -> bool:
    """Whether something is laid over something, so that what is wrong below may never take effect."""
    model = recipe.get("model")
    over = {"extends", "variants"} & set(recipe)
    return bool(over or {"layers", "encoder", "decoder"} & set(model if isinstance(model, dict) else ()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_accepts_whatever_the_language_accepts(validator: Draft7Validator, tmp_path: Path, monkeypatch) -> None:
    """Recipes with a few things changed at random: those that still load are right."""
    monkeypatch.chdir(tmp_path)
    neighbours()
    right = 0
    for number in range(800):
        one = mutant(Random(number))
        if one.mapping is not None or one.variants or one.overrides or one.sets or len(one.text) > 20_000:
            continue
        try:
            one.load()
        except RecipeError:
            continue
        text = one.text.decode()
        if not overlaid(read(text)):
            right += 1
            assert faults(validator, text) == [], text
    assert right > 50


# ----------------------------------------------------------------------------------------------------- what is wrong

# of the broken recipes of test_errors.py, what no schema can know
BEYOND = {
    "expected the version of the recipe language, 1, got 1.0": "in JSON, 1.0 is the number 1",
    "expected a whole number, got 8.0": "in JSON, 8.0 is the number 8",
    "model: needs num_layers": "what is missing is check's to say",
    "needs a type: encoder": "what is missing is check's to say",
    "needs the option 'd_ff'": "what is missing is check's to say",
    "the layout 'pre_norm' needs a norm": "what a layout needs is code",
    "3 heads do not divide d_model 8": "sizes that do not divide",
    "3 key-value heads do not divide 4 heads": "sizes that do not divide",
    "a window needs size, or before or after": "a part's own check",
    "cannot be combined with before and after": "a part's own check",
    "with both causal and reverse_causal in a layer": "a contradiction",
    "would show the future to a causal layer": "a contradiction",
    "reads the encoder, which this model does not have": "a contradiction",
    "needs a data.tokenizer to take the size from": "a contradiction between sections",
}  # fmt: skip
BROKEN = test_errors.MESSAGES


def test_what_it_cannot_know_is_listed_once(validator: Draft7Validator) -> None:
    unseen = [said for old, new, said in BROKEN if not faults(validator, GOOD.replace(old, new))]
    assert [[reason for reason in BEYOND if reason in said] for said in unseen] == [[reason] for reason in BEYOND]


def test_it_refuses_what_is_wrong_in_itself(validator: Draft7Validator) -> None:
    def check(old: str, new: str, said: str) -> None:
        assert faults(validator, GOOD.replace(old, new))

    each([case for case in BROKEN if not any(one in case[2] for one in BEYOND)], check)


def test_it_finds_the_places_that_the_language_finds(validator: Draft7Validator) -> None:
    errors = validator.iter_errors(read(test_errors.WRONG))
    leaves = {path_of(leaf) for error in errors for leaf in leaves_of(error)}
    assert {"model.layer.norm.eps", "model.layers.wide.feedforward.d_ff", "model.init.std", "train.steps"} <= leaves


def leaves_of(error: Any) -> Iterator[Any]:
    """The errors that an error comes down to."""
    if not error.context:
        yield error
    for one in error.context:
        yield from leaves_of(one)


WRONG = {
    "model": ["model: none", "model: [a]", "model: encoder"],
    "a misspelt key": ["model: {type: decoder, d_modl: 8}"],
    "an unknown model": ["model: {type: encodr}"],
    "variants": ["variants: {a: {model.d_modl: 8}}", "variants: {a: {model.d_model: x}}", "variants: {a: [1]}",
                 "variants: {a: {model.layer.attention.num_heds: [1, 2]}}", "variants: {a: {modl: 1}}"],
    "sections": ["train: {accumulate: none}",
                 "train: {optimizer: {lr: 1}}", "data: {train: txt}", "train: 3", "imports: 3",
                 "generate: {stop: end_tokn}", "objective: seq2sek", "train: {keep: {men: 3}}",
                 "train: {metrics: bleu}"],
}  # fmt: skip


def test_it_refuses_beside_a_base(validator: Draft7Validator) -> None:
    def check(text: str) -> None:
        assert faults(validator, f"tfkit: 1\nextends: gpt2\n{text}\n")

    each([text for texts in WRONG.values() for text in texts], check)
    assert faults(validator, "tfkit: 1\nextends: gpt2\n") == []


REFUSED = [
    ("  num_layers: 4\n", "  pattern: []\n"),
    ("num_layers: 4", "num_layers: 4\n  heads: {a-b: hidden}"),
    ("num_layers: 4", "num_layers: 4\n  pattern: [[a], [b*0]]"),
    ("num_layers: 4", "num_layers: 4\n  special_ids: {pad: 0.5}"),
    ("position: rotary", "position: [rotary, none]"),
    ("    dropout: 0.1", "    feedforward_1: none"),
    ("    dropout: 0.1", "    sublayers: [attention, feed]"),
    ("    dropout: 0.1", "    shared: {per_layer: [true, false, true, false]}"),
    ("    dropout: 0.1", "    mixer: lstmm"),
    ("    residual: pre_norm", "    residual: nothing"),
    ("num_heads: 2", "num_heads: {per_layr: [1, 2]}"),
    ("num_heads: 2", "num_heads: {per_layer: [[1], 2]}"),
    ("num_heads: 2", "num_heads: 1__0"),
]  # fmt: skip


def test_it_refuses(validator: Draft7Validator, tmp_path: Path) -> None:
    def check(old: str, new: str) -> None:
        assert faults(validator, refused(tmp_path, changed(old, new)))

    each(REFUSED, check)


def refused(folder: Path, text: str) -> str:
    """Return a recipe that `load_recipe` refuses."""
    file = folder / f"{len(list(folder.iterdir()))}.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError):
        load_recipe(file)
    return text


LEFT_TO_CHECK = [
    ("type: decoder", "type: decoder\n  encoder: {num_layers: 2}"),
    ("type: decoder", "type: encoder_decoder\n  memory: {d_model: 8}"),
    ("type: decoder\n  d_model: 8", "type: encoder_decoder\n  encoder: {d_model: 8}"),
    ("position: rotary", "position: {type: rotary, theta: {per_layer: [1, 2, 3, 4]}}"),
    ("    norm: layer_norm", "    norm: {eps: 0.1}"),
    ("{type: mlp, d_ff: 16}", "mlp"),
    ("d_ff: 16", "d_ff: 16, activation: threshold"),
]  # fmt: skip


def test_what_is_missing_or_in_the_wrong_place_is_left_to_check(validator: Draft7Validator, tmp_path: Path) -> None:
    def check(old: str, new: str) -> None:
        assert faults(validator, refused(tmp_path, changed(old, new))) == []

    each(LEFT_TO_CHECK, check)


# --------------------------------------------------------------------------------------------------- parts of one's own


class Even(BaseModel):
    """A mapping within a part."""

    number: int = 2


def whatever(value: Any) -> Any:
    return value


@pytest.fixture(scope="module")
def own() -> Iterator[dict[str, Any]]:
    """The schema with parts of one's own, as odd as Pydantic allows."""
    with pytest.MonkeyPatch.context() as patch:
        for slot in CATALOGUES:
            patch.setitem(REGISTRY._parts, slot, dict(REGISTRY.load(slot)))
        register_odd_parts()
        yield language_schema()


def register_odd_parts() -> None:
    @register("attention", "odd_attention")
    class OddAttention(MultiHead):
        class Config(MultiHead.Config):
            anything: Annotated[int, PlainValidator(whatever)] = 1
            before: Annotated[int, BeforeValidator(whatever)] = 1
            said_before: Annotated[int, BeforeValidator(whatever, json_schema_input_type=int | str)] = 1
            even: Even = Even()
            by_name: dict[str, int] = Field({}, description="numbers by name.")
            callback: Any = None

    @register("feedforward", "experts_of_a_test")
    class Experts(FeedForward):
        """Some experts (Doe 2031).

        And more of it.
        """

        class Config(FeedForward.Config):
            expert: Annotated[Config, Slot("feedforward")]
            inner: Annotated[Config, Slot("activation")] | None = None

    @register("feedforward", "shorthand_of_a_test")
    class Shorthand(MLP):
        class Config(MLP.Config):
            @model_validator(mode="before")
            @classmethod
            def _expand(cls, data: Any) -> Any:
                return {"d_ff": data["width"]} if "width" in data else data


OWN = [
    ("attention", {"type": "odd_attention", "num_heads": 2}, True),
    ("attention", {"type": "odd_attention", "num_heads": 2, "anything": ["a", 3], "before": "two"}, True),
    ("attention", {"type": "odd_attention", "num_heads": 2, "said_before": "two", "callback": {"a": []}}, True),
    ("attention", {"type": "odd_attention", "num_heads": 2, "said_before": 2.5}, False),
    ("attention", {"type": "odd_attention", "num_heads": 2, "even": {"number": 4}, "by_name": {"a": 1}}, True),
    ("attention", {"type": "odd_attention", "num_heads": 2, "even": {"numbr": 4}}, False),
    ("attention", {"type": "odd_attention", "num_heads": 2, "by_name": {"a": "b"}}, False),
    ("attention", {"type": "odd_attention", "num_heds": 2}, False),
    ("feedforward", {"type": "experts_of_a_test", "expert": {"type": "mlp", "d_ff": 8}, "inner": None}, True),
    ("feedforward", {"type": "experts_of_a_test", "expert": {"type": "mlp", "dff": 8}}, False),
    ("feedforward", {"type": "experts_of_a_test", "expert": "mlp"}, True),
    ("feedforward", {"type": "experts_of_a_test", "inner": "relu"}, True),
    ("feedforward", "experts_of_a_test", True),
    ("feedforward", {"type": "shorthand_of_a_test", "width": 8}, True),
    ("feedforward", {"type": "shorthand_of_a_test", "d_ff": 8}, True),
    ("feedforward", "shorthand_of_a_test", True),
]  # fmt: skip


def test_parts_of_ones_own(own: dict[str, Any]) -> None:
    def check(slot: str, part: Any, right: bool) -> None:
        assert (part_faults(own, slot, part) == []) == right

    each(OWN, check)


def test_a_schema_with_parts_of_ones_own_is_one(own: dict[str, Any]) -> None:
    Draft7Validator.check_schema(own)


def test_a_part_that_holds_its_own_kind_is_laid_over_by_dotted_keys(own: dict[str, Any]) -> None:
    at = "model.layer.feedforward"
    keys = f"{at}.type: experts_of_a_test, {at}.expert.expert.expert.d_ff: 3, {at}.inner: relu"
    text = f"{GOOD}variants: {{a: {{{keys}}}}}\n"
    assert faults(Draft7Validator(own), text) == []
    assert faults(Draft7Validator(own), text.replace("inner", "iner"))


def test_a_part_says_the_first_paragraph_of_its_docstring(own: dict[str, Any]) -> None:
    assert own["definitions"]["feedforward.experts_of_a_test"]["description"] == "Some experts (Doe 2031)."
    assert own["definitions"]["attention.odd_attention"]["description"] == ""


def test_a_model_of_ones_own_has_its_options(validator: Draft7Validator) -> None:
    @register("model", "lone_of_a_test")
    class Lone(REGISTRY.get("model", "encoder")):  # type: ignore[misc]
        """One stack."""

        class Config(Component.Config):
            """One option."""

            turns: int = Field(2, description="how often")

    text = GOOD.replace("type: decoder", "type: {type: lone_of_a_test, turns: 3}")
    assert faults(validator, text)
    own = Draft7Validator(language_schema())
    assert faults(own, text) == []
    assert faults(own, text.replace("turns", "tuns"))
    assert faults(own, text + "  encodr: {d_model: 4}\n")


def test_the_activation_slot_is_asked_when_the_schema_is_made() -> None:
    before = json.dumps(language_schema())

    @register("activation", "fresh_of_a_test")
    class Fresh(Activation):
        """x, fresh (Doe 2031)."""

    after = json.dumps(language_schema())
    assert "fresh_of_a_test" not in before
    assert "x, fresh (Doe 2031)." in after


# ---------------------------------------------------------------------------------------------------- the command


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["schema", *map(str, arguments)], catch_exceptions=False)


def test_the_command_prints_or_writes_the_same(tmp_path: Path) -> None:
    printed = command()
    schema = json.loads(printed.stdout)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert printed.stdout.startswith('{\n  "$schema"')
    written = command("--out", tmp_path / "new" / "recipe.schema.json")
    assert (tmp_path / "new" / "recipe.schema.json").read_text(encoding="utf-8") == printed.stdout
    assert f"# yaml-language-server: $schema={tmp_path}/new/recipe.schema.json\n" in written.stdout
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["recipe.schema.json"]


def test_the_command_knows_parts_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tfkit import register\nfrom tfkit.components.feedforward import MLP\n"
        "@register('feedforward', 'mine_of_the_schema')\nclass Mine(MLP):\n    '''All mine (Doe 2031).'''\n"
    )
    found = json.loads(command("--import", tmp_path / "mine.py").stdout)
    assert found["definitions"]["feedforward.mine_of_the_schema"]["description"] == "All mine (Doe 2031)."


def test_the_command_refuses(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def check(*wrong: str) -> None:
        result = command(*wrong)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Traceback" not in result.stderr and result.stderr
        assert list(tmp_path.iterdir()) == []

    each([("--import", "no_such_file.py"), ("--out", "."), ("extra",)], check)


@pytest.mark.slow
def test_the_same_parts_give_the_same_text() -> None:
    """Whatever order sets have in a process."""
    command = [sys.executable, "-m", "tfkit", "schema"]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=seed) for seed in seeds]
    first, second = (process.communicate()[0] for process in running)
    assert first == second != b""
