"""`tfkit explain`: the value of a key, who set it, and what it replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tfkit
from tfkit.cli.main import main
from tfkit.core.errors import UsageError
from tfkit.recipe.keys import GROUPS, SECTIONS, SUBLAYERS, sentence
from tfkit.recipe.load import TOP_KEYS
from tfkit.reports.explain import Explanation, explain

from ..sampling import looped

BASE = """\
tfkit: 1
model:
  type: decoder
  d_model: 64
  vocab_size: 50
  num_layers: 4
  embedding: {type: tokens, norm: true}
  position: rotary
  layer:
    residual: pre_norm
    norm: {type: layer_norm, eps: 1e-6}
    attention: {type: multi_head, num_heads: 4, dropout: 0.1}
    feedforward: {type: mlp, d_ff: 32, activation: relu}
  head: {type: language_model, tied: true}
variants:
  deep: {model.num_layers: 8}
"""
MINE = """\
extends: base.yaml
model:
  num_layers: 11
  layer:
    attention: {num_heads: 8}
    feedforward: {type: glu, d_ff: 48}
  layers:
    local: {mask: {type: window, size: 8}}
    global: {}
    thin: {feedforward: {d_ff: 16}}
    unused: {dropout: 0.3}
  pattern: [local*5, global+thin]
variants:
  narrow: {model.layer.attention.num_heads: 2, model.layers.local.mask.size: 4}
  heads: {model.layer.attention.num_heads: [4, 16]}
"""
PAIR = """\
tfkit: 1
model:
  type: encoder_decoder
  d_model: 16
  vocab_size: tokenizer
  embedding: {type: tokens, shared: true}
  position: sinusoidal
  num_layers: 2
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
  decoder: {num_layers: 3, layer: {attention: {num_heads: 4}}}
  head: {type: language_model, tied: true}
data:
  tokenizer: {type: bpe, vocab_size: 300}
  train: {type: parallel_text, source: a.txt, target: b.txt}
objective: seq2seq
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("base", BASE), ("mine", MINE), ("pair", PAIR)):
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def ask(key: str, source: str = "mine.yaml", **how: object) -> Explanation:
    return explain(tfkit.load_recipe(source, **how), key)  # type: ignore[arg-type]


def words(key: str, source: str = "mine.yaml", **how: object) -> list[tuple[object, str]]:
    """Value and origin of each answer to one plain key."""
    (answer,) = ask(key, source, **how).answers
    return [(entry.value, entry.origin.words()) for entry in answer.entries]


def command(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["explain", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


MASK = "model.layers.local.mask.size"
HEADS = "model.layer.attention.num_heads"
NORM = "derived from model.layer.norm: base recipe base (base.yaml:11:35)"


@looped(
    ("key", "how", "value", "expected"),
    [
        (HEADS, {}, 8, "mine.yaml:5:28"),
        ("model.d_model", {}, 64, "base recipe base (base.yaml:4:12)"),
        (HEADS, {"variant": "narrow"}, 2, "variant narrow (mine.yaml:14:45)"),
        (HEADS, {"variant": "heads=16"}, 16, "variant heads=16 (mine.yaml:15:48)"),
        ("model.num_layers", {"variant": "deep"}, 8, "variant deep of base recipe base (base.yaml:16:28)"),
        ("model.d_model", {"sets": ["model.d_model=96"]}, 96, "the command line (--set model.d_model=96)"),
        ("model.d_model", {"overrides": {"model.d_model": 96}}, 96, "Python"),
        ("model.layer.attention.softcap", {}, None, "default: c in c * tanh(scores / c); none: no cap"),
        ("train.steps", {}, 10_000, "default: number of optimizer steps; 10,000 if epochs is not set"),
        ("train.optimizer.type", {}, "adam", "default: the optimizer"),
        ("model.max_length", {}, None, "default: maximum sequence length in tokens; none: unlimited"),
        ("model.special_ids", {}, None, "default: ids of the tokens pad, start and end, if no tokenizer defines them"),
        (MASK, {}, 8, "kind 'local' of the pattern (mine.yaml:8:40)"),
        (MASK, {"variant": "narrow"}, 4, "kind 'local' of the pattern, variant narrow (mine.yaml:14:78)"),
        (MASK, {"sets": f"{MASK}=2"}, 2, f"the command line (--set {MASK}=2), kind 'local' of the pattern"),
        ("model.final_norm.eps", {}, 1e-6, NORM),
        ("model.embedding.norm.eps", {}, 1e-6, NORM),
        ("model.layer.position.type", {}, "rotary", "derived from model.position: base recipe base (base.yaml:8:13)"),
        ("model.layer.mixer", {}, None, "default: token mixing without attention; none: no such sublayer"),
        ("model.final_dropout", {}, 0.0, "default: dropout after the final norm"),
        ("model.pattern", {}, ["local*5", "global+thin"], "mine.yaml:12:12"),
        ("model.layers.unused.dropout", {}, 0.3, "kind 'unused' of the pattern (mine.yaml:11:23)"),
        ("extends", {}, "base.yaml", "mine.yaml:1:10"),
        ("tfkit", {}, 1, "base recipe base (base.yaml:1:8)"),
    ],
)
def test_a_value_says_who_set_it(key: str, how: dict[str, object], value: object, expected: str) -> None:
    assert words(key, **how) == [(value, expected)]


def test_a_recipe_that_is_a_mapping_is_pythons() -> None:
    recipe = tfkit.load_recipe({"tfkit": 1, "model": tfkit.load_recipe("base.yaml").root.plain()["model"]})
    assert explain(recipe, "model.d_model").answers[0].entries[0].origin.words() == "Python"
    assert explain(recipe, "extends").answers[0].entries[0].value is None


def test_sizes_that_follow_from_elsewhere_say_so() -> None:
    assert words("model.vocab_size", "pair.yaml") == [(300, "pair.yaml:5:15, written as tokenizer")]
    ((source, entry),) = words("data.train.source", "pair.yaml")
    assert (source, entry) == (str(Path("a.txt").absolute()), "pair.yaml:17:40, written as a.txt")
    Path("mine.yaml").write_text(MINE.replace("  num_layers: 11\n", ""), encoding="utf-8")
    Path("base.yaml").write_text(BASE.replace("  num_layers: 4\n", ""), encoding="utf-8")
    assert words("model.num_layers") == [(6, "derived from model.pattern: mine.yaml:11:12")]


def replaced(key: str, **how: object) -> list[tuple[object, str]]:
    (answer,) = ask(key, **how).answers
    return [(value, found.words()) for value, found in answer.entries[0].replaced]


def test_what_a_value_replaced_is_listed_in_order() -> None:
    key = "model.layer.attention.num_heads"
    assert replaced(key, variant="narrow", sets=[f"{key}=1"]) == [
        (2, "variant narrow (mine.yaml:14:45)"),
        (8, "mine.yaml:5:28"),
        (4, "base recipe base (base.yaml:12:46)"),
    ]
    layer = [(48, "mine.yaml:6:36"), (32, "base recipe base (base.yaml:13:36)")]
    assert replaced("model.layers.thin.feedforward.d_ff") == layer


def test_what_a_change_of_type_dropped_is_listed() -> None:
    out = command("mine.yaml", "model.layer.feedforward").stdout
    assert re.search(r"^model\.layer\.feedforward\n  key .*\n  type +glu +mine\.yaml:6:25, before: mlp$", out, re.M)
    dropped = "model.layer.feedforward: dropped with the type mlp: activation relu (base.yaml:13:52)"
    assert dropped in " ".join(out.split())
    sets = ["model.layer.norm=rms_norm", "model.position=learned", "model.max_length=9"]
    assert words("model.layer.norm.eps", sets=sets) == [(1e-6, "default: added to the mean square")]
    text = BASE.replace("position: rotary", "position: {type: rotary, theta: 7}")
    Path("base.yaml").write_text(text, encoding="utf-8")
    message = r"this option was dropped when the type changed from rotary; it was 7 at base.yaml:8:35"
    with pytest.raises(UsageError, match=message):
        ask("model.position.theta", sets=sets)


def test_layers_that_differ_are_separate() -> None:
    (answer,) = ask("model.layer.feedforward.d_ff").answers
    assert {entry.where: entry.value for entry in answer.entries} == {"layers 0-4, 6-10": 48, "layer 5": 16}
    masks = {answer.path: [entry.where for entry in answer.entries] for answer in ask("model.layer.mask").answers}
    assert masks["model.layer.mask.size"] == ["layers 0-4, 6-10"]
    assert masks["model.layer.mask"] == ["layer 5"]
    assert ask("model.layer.mask").note == "in addition to causal, which follows from type: decoder"


def test_sides_that_differ_are_separate() -> None:
    (answer,) = ask("model.layer.attention.num_heads", "pair.yaml").answers
    assert {entry.where: (entry.value, entry.origin.short()) for entry in answer.entries} == {
        "encoder": (2, "pair.yaml:11:46"),
        "decoder": (4, "pair.yaml:13:59"),
    }
    assert [entry.value for entry in ask("model.num_layers", "pair.yaml").answers[0].entries] == [2, 3]
    assert words("model.decoder.d_model", "pair.yaml") == [(16, "pair.yaml:4:12, in model for both stacks")]
    assert words("model.d_model", "pair.yaml") == [(16, "pair.yaml:4:12")]
    (answer,) = ask("model.decoder.num_layers", "pair.yaml").answers
    assert [(value, found.short()) for value, found in answer.entries[0].replaced] == [(2, "pair.yaml:8:15")]


def test_a_layer_that_only_one_side_has() -> None:
    assert ask("model.layers.2", "pair.yaml").made_of == ["decoder layer 2: `layer`"]
    assert len(ask("model.layers.1", "pair.yaml").made_of) == 2
    with pytest.raises(UsageError, match="the encoder has 2 and the decoder has 3"):
        ask("model.layers.3.dropout", "pair.yaml")


def test_cross_attention_follows_attention() -> None:
    ((value, entry),) = words("decoder.layers.2.cross_attention.num_heads", "pair.yaml")
    assert (value, entry) == (4, "derived from model.decoder.layer.attention: pair.yaml:13:59")
    with pytest.raises(UsageError):
        ask("encoder.layers.0.cross_attention.num_heads", "pair.yaml")


@looped("key", ["decoder.layers.5.feedforward.d_ff", "model.layers.5.feedforward.d_ff"])
def test_a_layer_by_its_number(key: str) -> None:
    explanation = ask(key)
    assert explanation.made_of == ["decoder layer 5: `layer` with the kinds global+thin"]
    (entry,) = explanation.answers[0].entries
    assert entry.origin.words() == "kind 'thin' of the pattern (mine.yaml:10:32)"


def test_kinds_that_are_equal_are_each_their_own() -> None:
    text = MINE.replace("global: {}", "global: {}\n    near: {mask: {type: window, size: 8}}")
    Path("mine.yaml").write_text(text.replace("[local*5,", "[local*3, near*2,"), encoding="utf-8")
    assert words("model.layers.near.mask.size") == [(8, "kind 'near' of the pattern (mine.yaml:10:39)")]
    assert ask("decoder.layers.4").made_of == ["decoder layer 4: `layer` with the kind near"]
    (answer,) = ask("model.layer.mask.size").answers
    assert [(entry.where, entry.origin.kind) for entry in answer.entries] == [
        ("layers 0-2, 6-8", "local"),
        ("layers 3-4, 9-10", "near"),
    ]


def test_a_value_of_each_layer_says_its_own_place() -> None:
    text = MINE.replace("size: 8", "size: {per_layer: [2, 2, 2, 4, 4, 4, 4, 4, 4, 4]}")
    Path("mine.yaml").write_text(text, encoding="utf-8")
    (answer,) = ask("model.layer.mask.size").answers
    found = [(entry.where, entry.value, entry.origin.kind) for entry in answer.entries]
    assert found == [("layers 0-2", 2, "local"), ("layers 3-4, 6-10", 4, "local")]


@looped(
    ("key", "message"),
    [
        ("model.layer.attention.num_head", "Did you mean 'model.layer.attention.num_heads'?"),
        ("num_heads", "Did you mean 'model.layer.attention.num_heads'?"),
        ("model.layr.dropout", "Did you mean 'model.layer.dropout'?"),
        ("model.layr.norm", "Did you mean 'model.layer.norm'?"),
        ("model.layer.nrom", "Did you mean 'model.layer.norm'?"),
        ("trian.steps", "Did you mean 'train.steps'?"),
        ("train.metrcs", "Did you mean 'train.metrics'?"),
        ("model.layers.nobody.dropout", "the recipe has no such key"),
        ("model.layers.11.dropout", "layers are counted from 0, and the decoder has 11"),
        ("encoder.d_model", "this model has no encoder, only the decoder"),
        ("model.layer.mask[3]", "the recipe has no such key"),
        ("model.d_model.x", "the recipe has no such key"),
        ("a..b", "expected a dotted key, such as model.layer.dropout, got 'a..b'"),
        ("", "expected a dotted key, such as model.layer.dropout, got ''"),
        (".", "expected a dotted key, such as model.layer.dropout, got '.'"),
        ("model[", "expected a dotted key, such as model.layer.dropout, got 'model['"),
    ],
)
def test_a_key_that_is_not_there(key: str, message: str) -> None:
    result = command("mine.yaml", key)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.startswith("tfkit: ")


def test_one_value_is_explained_at_length() -> None:
    out = command("mine.yaml", "model.layer.attention.num_heads", "--variant", "narrow").stdout
    assert out.startswith(
        "model.layer.attention.num_heads: 2\n  variant narrow (mine.yaml:14:45)\n  replaced 8: mine.yaml:5:28\n  re"
    )


def test_a_section_has_one_line_for_each_value() -> None:
    lines = command("pair.yaml", "data.train").stdout.splitlines()
    assert lines[0] == "data.train"
    assert [line.split() for line in lines[1:3]] == [
        ["key", "value", "set", "by"],
        ["type", "parallel_text", "pair.yaml:17:17"],
    ]
    assert any(re.match(r"  skip_empty +false +default", line) for line in lines)


@looped("width", [20, 40, 80, 300])
def test_nothing_is_cut_however_narrow_the_terminal(width: int) -> None:
    def printed(columns: int) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            return command("mine.yaml", "model.layer").stdout.split()

    assert set(printed(width)) >= set(printed(1000)) - {"key", "where"}
    assert "…" not in "".join(printed(width)) and "\x1b" not in "".join(printed(width))


def test_as_data() -> None:
    data = json.loads(command("mine.yaml", "model.d_model", "--set", "model.d_model=96", "--json").stdout)
    (answer,) = data["answers"]
    assert (answer["key"], answer["meaning"]) == ("model.d_model", "width of the residual stream")
    (entry,) = answer["said"]
    assert (entry["value"], entry["where"], entry["origin"]["by"]) == (96, None, "command line")
    (before,) = entry["replaced"]
    origin = before["origin"]
    assert (before["value"], origin["by"], origin["file"], origin["line"]) == (64, "base", "base.yaml", 4)


def test_a_runs_folder_knows_what_its_recipe_knew(here: Path) -> None:
    recipe = tfkit.load_recipe("mine.yaml", variant="narrow", sets=["model.d_model=96"])
    (here / "run").mkdir()
    (here / "run" / "resolved.yaml").write_text(recipe.resolved(), encoding="utf-8")
    out = command("run", "model.layers.kind_0.mask.size").stdout
    assert "  mine.yaml:14:78, variant narrow, kind local (noted at run/resolved.yaml:" in out
    assert "  --set model.d_model=96 (noted at run/resolved.yaml:" in command("run", "model.d_model").stdout
    assert "  default: add a learned bias\n" in command("run", "model.layers.kind_0.norm.bias").stdout
    laid = command("run", "model.d_model", "--set", "model.d_model=32").stdout
    assert "the command line (--set model.d_model=32)" in laid and "replaced 96: --set model.d_model=96 (noted" in laid


def test_every_key_of_the_grammar_has_one_sentence() -> None:
    assert set(GROUPS["top"]) == {*TOP_KEYS, "extends", "variants"}
    own = {"residual", "norm", "dropout", "position", "mask", "shared", "sublayers"}
    assert set(GROUPS["layer"]) == own | set(SUBLAYERS) | {f"{name}_norm" for name in SUBLAYERS}
    assert {"encoder", "decoder", "heads", "parametrization", "special_ids", "memory", "layer", "layers"} == SECTIONS
    assert all(key.sentence for group in GROUPS.values() for key in group.values())
    for path in ("model.d_model", "model.decoder.d_model", "model.layer.norm", "model.layers.a.feedforward_2_norm"):
        assert sentence(path)
    assert sentence("model.layer.attention.num_heads") == sentence("nothing") == ""


def test_a_plain_key_is_written_in_two_places() -> None:
    """Where it is declared and used, and where a last state refuses it; families map their own settings to it."""
    package = Path(tfkit.__file__).parent
    sources = [file for file in package.rglob("*.py") if "families" not in file.parts]
    found = {file.relative_to(package).as_posix() for file in sources if "final_dropout" in file.read_text("utf-8")}
    assert found == {"core/blueprint.py", "models/stack.py", "recipe/architecture/heads.py"}


def test_a_study_is_a_section_like_the_others() -> None:
    recipe = tfkit.load_recipe("glu-variants")
    seeds = explain(recipe, "study.seeds").answers[0]
    assert seeds.entries[0].value == 5 and seeds.sentence.startswith("number of seeds")
    assert explain(recipe, "study.equal_within").answers[0].entries[0].origin.place is None, "a default"
    with pytest.raises(UsageError, match=r"Did you mean 'study\.seeds'\?"):
        explain(recipe, "study.seds")
