"""The JSON Schema of the language: it knows every part, refuses nothing that is right, and what is wrong in itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator
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
from tfkit.recipe.text.node import inline
from tfkit.recipe.text.source import _LOADER

from ..sampling import each, looped, shares
from ..shipped import NAMES, shipped
from . import test_errors
from .fuzz.oracle import mutant, neighbours

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


@cache
def schema() -> dict[str, Any]:
    """The schema of tfkit's own parts, without those that other tests have registered."""
    with pytest.MonkeyPatch.context() as patch:
        for slot in CATALOGUES:
            parts = {name: part for name, part in REGISTRY.load(slot).items() if part.__module__.startswith("tfkit.")}
            patch.setitem(REGISTRY._parts, slot, parts)
        return language_schema()


def faults(text: str, where: dict[str, Any] | None = None) -> list[str]:
    """Faults that a schema finds in a recipe, each with its path."""
    errors = Draft7Validator(where or schema()).iter_errors(read(text))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def part_faults(where: dict[str, Any], slot: str, part: Any) -> list[str]:
    """Faults of a part alone, wherever parts of its slot may be."""
    return faults(inline(part), {"$ref": f"#/definitions/{slot}", "definitions": where["definitions"]})


def walk(found: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in the schema."""
    if isinstance(found, dict):
        yield found
    for value in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from walk(value)


def properties(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The keys that a schema of a mapping describes."""
    keys = found.get("properties")
    return [(key, value) for key, value in keys.items() if isinstance(value, dict)] if isinstance(keys, dict) else []


def test_it_is_a_schema_whose_references_lead_somewhere() -> None:
    Draft7Validator.check_schema(schema())
    for reference in {one["$ref"] for one in walk(schema()) if "$ref" in one}:
        found: Any = schema()
        for step in reference.removeprefix("#/").split("/"):
            found = found[int(step) if isinstance(found, list) else step]
        assert isinstance(found, dict)
    assert list(schema()["definitions"]) == sorted(schema()["definitions"])
    assert not [one for one in walk(schema()) if one.get("enum") == []]  # draft 7 allows it, editors do not


def test_every_part_is_in_it_with_its_paper_and_every_option_is_described() -> None:
    found: dict[str, set[str]] = {}
    for one in walk(schema()):
        for word, text in zip(one.get("enum", ()), one.get("enumDescriptions", ()), strict=False):
            found.setdefault(word, set()).add(text)

    def check(slot: str, name: str) -> None:
        part = REGISTRY.get(slot, name)
        said = " ".join((part.__doc__ or "").split())
        assert any(text and said.startswith(text) for text in found[name])
        options = part.Config.model_json_schema()
        mappings = [options, *options.get("$defs", {}).values()]  # those within the part too
        assert all(value.get("description") for one in mappings for _, value in properties(one))

    each(PARTS, check)


def test_every_key_and_every_option_of_a_section_is_described() -> None:
    said = {(key, value.get("description")) for one in walk(schema()) for key, value in properties(one)}
    assert {(key.name, key.sentence) for keys in GROUPS.values() for key in keys.values()} <= said
    for section in ("data", "train", "generate"):
        assert all(value.get("description") for _, value in properties(schema()["definitions"][f"section.{section}"]))


def test_an_option_says_its_default() -> None:
    options = schema()["definitions"]["attention.multi_head"]["properties"]
    assert options["num_kv_heads"]["default"] == "none"
    assert options["num_kv_heads"]["description"].endswith("none: num_heads. Default: none.")
    assert options["dropout"]["default"] == 0.0 and "default" not in options["num_heads"]
    # left out of a recipe it is the stack's norm, not the default of a Config in Python
    assert "default" not in schema()["definitions"]["head.masked_lm"]["properties"]["norm"]


@pytest.mark.parametrize("names", shares(NAMES))
def test_it_agrees_on_shipped_recipes_and_their_resolved_texts(names: list[str]) -> None:
    def check(name: str) -> None:
        assert faults(str(shipped(name).text)) == faults(shipped(name).resolved()) == []

    each(names, check)


def test_it_accepts_every_part_with_every_option() -> None:
    def check(slot: str, name: str) -> None:
        for case in (*cases(slot, name), *variants(slot, name)):
            part = {"type": name, **case.options}
            found = faults(inline(case.recipe())) if case.topology else part_faults(schema(), slot, part)
            assert found == [], str(case)

    each(PARTS, check)


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


@looped(("what", "change"), ACCEPTED.items())
def test_it_accepts(what: str, change: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(changed(*change))
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert faults(changed(*change)) == faults(recipe.resolved()) == [], what


def test_an_overlay_need_not_be_whole(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(GOOD)
    text = "extends: base.yaml\nmodel: {position: {theta: 500}, layer: {attention: {num_heads: 4}, feedforward: mlp}}\n"
    (tmp_path / "over.yaml").write_text(text)
    load_recipe(tmp_path / "over.yaml")
    assert faults(text) == []
    assert faults(text.replace("num_heads", "num_heds")) and faults(text.replace("mlp", "mlpp"))


def overlaid(recipe: Any) -> bool:
    """True if something is merged over something, so that a wrong value below may never take effect."""
    model = recipe.get("model")
    over = {"extends", "variants"} & set(recipe)
    return bool(over or {"layers", "encoder", "decoder"} & set(model if isinstance(model, dict) else ()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_accepts_whatever_the_language_accepts(tmp_path: Path, monkeypatch) -> None:
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
        if not overlaid(read(one.text.decode())):
            right += 1
            assert faults(one.text.decode()) == [], one.text
    assert right > 50


# of the broken recipes of test_errors.py, what no schema can know: what is missing, what code checks, contradictions
BEYOND = (
    "expected the version of the recipe language, 1, got 1.0",  # in JSON, 1.0 is the number 1
    "expected a whole number, got 8.0",
    "model: needs num_layers",
    "needs a type: encoder",
    "type is missing; available feedforward types",
    "needs the option 'd_ff'",
    "the layout 'pre_norm' needs a norm",
    "3 heads do not divide d_model 8",
    "3 key-value heads do not divide 4 heads",
    "a window needs size",
    "cannot be combined with before and after",
    "model.layer.mask: with both causal and reverse_causal",
    "model.layer.mask[1]: with both causal",
    "would show the future to a causal layer",
    "reads the encoder, which this model does not have",
    "needs a data.tokenizer to take the size from",
)


def test_what_it_cannot_know_is_listed_once_and_the_rest_is_refused() -> None:
    unseen = [said for old, new, said in test_errors.MESSAGES if not faults(GOOD.replace(old, new))]
    assert [[reason for reason in BEYOND if reason in said] for said in unseen] == [[reason] for reason in BEYOND]


def leaves_of(error: Any) -> Iterator[Any]:
    """The errors that an error comes down to."""
    if not error.context:
        yield error
    for one in error.context:
        yield from leaves_of(one)


def test_it_finds_the_places_that_the_language_finds() -> None:
    errors = Draft7Validator(schema()).iter_errors(read(test_errors.WRONG))
    leaves = {".".join(map(str, leaf.absolute_path)) for error in errors for leaf in leaves_of(error)}
    assert {"model.layer.norm.eps", "model.layers.wide.feedforward.d_ff", "model.init.std", "train.steps"} <= leaves


BASED = """
model: none
model: [a]
model: encoder
model: {type: decoder, d_modl: 8}
model: {type: encodr}
variants: {a: {model.d_modl: 8}}
variants: {a: {model.d_model: x}}
variants: {a: [1]}
variants: {a: {model.layer.attention.num_heds: [1, 2]}}
variants: {a: {modl: 1}}
train: {accumulate: none}
train: {optimizer: {lr: 1}}
train: 3
train: {keep: {men: 3}}
train: {metrics: bleu}
data: {train: txt}
imports: 3
generate: {stop: end_tokn}
objective: seq2sek
"""


def test_it_refuses_beside_a_base() -> None:
    assert faults("tfkit: 1\nextends: gpt2\n") == []
    for line in BASED.strip().splitlines():
        assert faults(f"tfkit: 1\nextends: gpt2\n{line}\n"), line


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
]
LEFT_TO_CHECK = [  # what is missing or in the wrong place
    ("type: decoder", "type: decoder\n  encoder: {num_layers: 2}"),
    ("type: decoder", "type: encoder_decoder\n  memory: {d_model: 8}"),
    ("type: decoder\n  d_model: 8", "type: encoder_decoder\n  encoder: {d_model: 8}"),
    ("position: rotary", "position: {type: rotary, theta: {per_layer: [1, 2, 3, 4]}}"),
    ("    norm: layer_norm", "    norm: {eps: 0.1}"),
    ("{type: mlp, d_ff: 16}", "mlp"),
    ("d_ff: 16", "d_ff: 16, activation: threshold"),
]


@looped("change", [*REFUSED, *LEFT_TO_CHECK])
def test_it_refuses_but_what_is_left_to_check(change: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(changed(*change))
    with pytest.raises(RecipeError):
        load_recipe(tmp_path / "mine.yaml")
    assert bool(faults(changed(*change))) == (change in REFUSED)


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


HEADS = "type: odd_attention, num_heads: 2"
OWN = [
    ("attention", f"{{{HEADS}}}", True),
    ("attention", f"{{{HEADS}, anything: [a, 3], before: two}}", True),
    ("attention", f"{{{HEADS}, said_before: two, callback: {{a: []}}}}", True),
    ("attention", f"{{{HEADS}, said_before: 2.5}}", False),
    ("attention", f"{{{HEADS}, even: {{number: 4}}, by_name: {{a: 1}}}}", True),
    ("attention", f"{{{HEADS}, even: {{numbr: 4}}}}", False),
    ("attention", f"{{{HEADS}, by_name: {{a: b}}}}", False),
    ("attention", "{type: odd_attention, num_heds: 2}", False),
    ("feedforward", "{type: experts_of_a_test, expert: {type: mlp, d_ff: 8}, inner: none}", True),
    ("feedforward", "{type: experts_of_a_test, expert: {type: mlp, dff: 8}}", False),
    ("feedforward", "{type: experts_of_a_test, expert: mlp}", True),
    ("feedforward", "{type: experts_of_a_test, inner: relu}", True),
    ("feedforward", "experts_of_a_test", True),
    ("feedforward", "{type: shorthand_of_a_test, width: 8}", True),
    ("feedforward", "{type: shorthand_of_a_test, d_ff: 8}", True),
    ("feedforward", "shorthand_of_a_test", True),
]


def test_parts_of_ones_own(own: dict[str, Any]) -> None:
    Draft7Validator.check_schema(own)
    assert own["definitions"]["feedforward.experts_of_a_test"]["description"] == "Some experts (Doe 2031)."
    assert own["definitions"]["attention.odd_attention"]["description"] == ""

    def check(slot: str, part: str, right: bool) -> None:
        assert (part_faults(own, slot, read(part)) == []) == right

    each(OWN, check)


def test_a_part_that_holds_its_own_kind_is_laid_over_by_dotted_keys(own: dict[str, Any]) -> None:
    at = "model.layer.feedforward"
    keys = f"{at}.type: experts_of_a_test, {at}.expert.expert.expert.d_ff: 3, {at}.inner: relu"
    text = f"{GOOD}variants: {{a: {{{keys}}}}}\n"
    assert faults(text, own) == [] and faults(text.replace("inner", "iner"), own)


def test_a_part_registered_later_has_its_options() -> None:
    @register("model", "lone_of_a_test")
    class Lone(REGISTRY.get("model", "encoder")):  # type: ignore[misc]
        """One stack."""

        class Config(Component.Config):
            """One option."""

            turns: int = Field(2, description="how often")

    @register("activation", "fresh_of_a_test")
    class Fresh(Activation):
        """x, fresh (Doe 2031)."""

    text = GOOD.replace("type: decoder", "type: {type: lone_of_a_test, turns: 3}")
    after = language_schema()
    assert faults(text) and faults(text, after) == []
    assert faults(text.replace("turns", "tuns"), after) and faults(text + "  encodr: {d_model: 4}\n", after)
    assert "x, fresh (Doe 2031)." in json.dumps(after) and "fresh_of_a_test" not in json.dumps(schema())


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["schema", *map(str, arguments)], catch_exceptions=False)


def test_the_command_prints_or_writes_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tfkit import register\nfrom tfkit.components.feedforward import MLP\n"
        "@register('feedforward', 'mine_of_the_schema')\nclass Mine(MLP):\n    '''All mine (Doe 2031).'''\n"
    )
    printed = command("--import", tmp_path / "mine.py")
    found = json.loads(printed.stdout)
    assert found["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert found["definitions"]["feedforward.mine_of_the_schema"]["description"] == "All mine (Doe 2031)."
    written = command("--import", tmp_path / "mine.py", "--out", tmp_path / "new" / "recipe.schema.json")
    assert (tmp_path / "new" / "recipe.schema.json").read_text(encoding="utf-8") == printed.stdout
    assert f"# yaml-language-server: $schema={tmp_path}/new/recipe.schema.json\n" in written.stdout
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["recipe.schema.json"]


@looped("wrong", [["--import", "no_such_file.py"], ["--out", "."], ["extra"]])
def test_the_command_refuses(wrong: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = command(*wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr and result.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_same_parts_give_the_same_text() -> None:
    """Whatever order sets have in a process."""
    command = [sys.executable, "-m", "tfkit", "schema"]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=seed) for seed in seeds]
    first, second = (process.communicate()[0] for process in running)
    assert first == second != b""
