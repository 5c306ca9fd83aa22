"""Recipes of older versions of the language are read as what they meant, and the user is told how to write it now."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tfkit
from tfkit.cli.main import main
from tfkit.core.errors import RecipeError
from tfkit.recipe.changes.migrate import LANGUAGE, MIGRATIONS, MigrationWarning, came_from, migrated_text
from tfkit.recipe.text.source import parse

OLD = """\
# A draft of T5.
tfkit: 0   # the draft language
model:
  type: encoder_decoder
  d_model: 16
  vocab_size: 30
  num_layers: 1
  embedding: {type: tokens, tied: all, dropout: 0.1}   # one table
  position: {type: relative_buckets, num_buckets: 8}   # as in T5
  layer:
    norm: rms_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
  head: language_model
"""
NEW = (
    OLD.replace("tfkit: 0", "tfkit: 1")
    .replace("tied: all", "shared: true")
    .replace("relative_buckets", "t5_bias")
    .replace("head: language_model", "head: {type: language_model, tied: true}")
)
DIFFERENCE = """\
old.yaml: written in version 0 of the recipe language, read in version 1 as this:
--- old.yaml (version 0)
+++ old.yaml (version 1)
@@ -1,3 +1,3 @@
 # A draft of T5.
-tfkit: 0   # the draft language
+tfkit: 1   # the draft language
 model:
@@ -7,4 +7,4 @@
   num_layers: 1
-  embedding: {type: tokens, tied: all, dropout: 0.1}   # one table
-  position: {type: relative_buckets, num_buckets: 8}   # as in T5
+  embedding: {type: tokens, shared: true, dropout: 0.1}   # one table
+  position: {type: t5_bias, num_buckets: 8}   # as in T5
   layer:
@@ -13,2 +13,2 @@
     feedforward: {type: mlp, d_ff: 16}
-  head: language_model
+  head: {type: language_model, tied: true}
To keep it so: tfkit new NAME --from old.yaml"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the old recipe in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text(OLD)
    return tmp_path


def data_of(text: str) -> Any:
    root, faults = parse(text, "r.yaml")
    assert not faults
    return root.plain()


def test_every_version_has_a_way_to_this_one() -> None:
    assert sorted(MIGRATIONS) == list(range(LANGUAGE))


def test_comments_are_kept() -> None:
    assert migrated_text(OLD) == NEW
    assert migrated_text(NEW) == NEW


def test_loading_warns_with_the_difference_and_leaves_the_file(here: Path) -> None:
    with pytest.warns(MigrationWarning) as caught:
        recipe = tfkit.load_recipe("old.yaml")
    assert [str(warning.message) for warning in caught] == [DIFFERENCE]
    assert (here / "old.yaml").read_text() == OLD == recipe.text
    (here / "new.yaml").write_text(NEW)
    new = tfkit.load_recipe("new.yaml")
    assert recipe.blueprint().heads == new.blueprint().heads
    assert [recipe.root.plain(), recipe.blueprint().shared_embedding] == [new.root.plain(), True]


def test_the_command_line_prints_the_difference_on_standard_error(here: Path) -> None:
    result = CliRunner().invoke(main, ["check", "old.yaml"])
    assert (result.exit_code, result.stderr) == (0, f"tfkit: {DIFFERENCE}\n")
    assert result.stdout.startswith("old.yaml: ok (encoder_decoder")


def test_places_are_those_of_the_file(here: Path) -> None:
    old = OLD.replace(
        "embedding: {type: tokens, tied: all, dropout: 0.1}", "embedding:\n    type: tokens\n    tied: all"
    )
    old = old.replace("encoder_decoder", "decoder").replace("rms_norm", "rms_nrm")
    (here / "old.yaml").write_text(old)
    with pytest.warns(MigrationWarning), pytest.raises(RecipeError) as caught:
        tfkit.load_recipe("old.yaml")
    (fault,) = caught.value.faults
    assert (fault.line, fault.column) == (13, 11)
    assert old.splitlines()[fault.line - 1].endswith("norm: rms_nrm")


def test_lines_that_went_and_came() -> None:
    assert came_from("a\nb\nc\nd\n", "a\nc\nx\ny\n") == [0, 2, 3, 3, 3]
    assert came_from("a\n", "a\nb\nc\n") == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("model: {type: decoder, embedding: {type: tokens, tied: all}, head: language_model}",
         {"type": "decoder", "embedding": {"type": "tokens"}, "head": {"type": "language_model", "tied": True}}),
        ("model: {type: encoder, embedding: {tied: all}, head: {type: masked_lm, tied: false}}",
         {"type": "encoder", "embedding": {}, "head": {"type": "masked_lm", "tied": False}}),
        ("model: {type: encoder, embedding: {tied: all}, head: none}",
         {"type": "encoder", "embedding": {}, "head": None}),
        ("model: {type: decoder, embedding: {type: tokens, tied: none}, head: language_model}",
         {"type": "decoder", "embedding": {"type": "tokens"}, "head": {"type": "language_model", "tied": False}}),
        ("model: {type: encoder_decoder, embedding: {type: tokens, tied: all}}",
         {"type": "encoder_decoder", "embedding": {"type": "tokens", "shared": True}}),
        ("extends: base.yaml\nmodel: {embedding: {tied: all}}",
         {"embedding": {"shared": True}, "head": {"tied": True}}),
        ("model: {position: [relative_buckets, rotary], layer: {position: {type: relative_buckets}}}",
         {"position": ["t5_bias", "rotary"], "layer": {"position": {"type": "t5_bias"}}}),
        ("model: {layers: {far: {position: relative_buckets}}, other: relative_buckets, embedding: {tied: maybe}}",
         {"layers": {"far": {"position": "t5_bias"}}, "other": "relative_buckets", "embedding": {"tied": "maybe"}}),
    ],
)  # fmt: skip
def test_what_version_0_said(said: str, expected: Any) -> None:
    text = f"tfkit: 0\n{said}\n"
    after = data_of(migrated_text(text))
    assert (after["tfkit"], after["model"]) == (1, expected)


def test_variants_are_migrated_too() -> None:
    text = (
        "tfkit: 0\nmodel: {type: encoder_decoder}\nvariants:\n"
        "  far: {model.position: relative_buckets, model.embedding.tied: none}  # dotted\n"
        "  near: {model: {embedding: {tied: all}}}\n"
        "  axis: {model.position: [rotary, relative_buckets]}\n"
    )
    assert data_of(migrated_text(text))["variants"] == {
        "far": {"model.position": "t5_bias", "model.embedding.shared": False, "model.head.tied": False},
        "near": {"model": {"embedding": {"shared": True}, "head": {"tied": True}}},
        "axis": {"model.position": ["rotary", "t5_bias"]},
    }
    assert "# dotted" in migrated_text(text)


def test_a_base_is_migrated_too(here: Path) -> None:
    (here / "mine.yaml").write_text("tfkit: 1\nextends: old.yaml\nmodel: {d_model: 32}\n")
    with pytest.warns(MigrationWarning, match="old.yaml: written in version 0"):
        recipe = tfkit.load_recipe("mine.yaml")
    assert recipe.blueprint().shared_embedding


def test_a_newer_base_is_refused_at_its_place(here: Path) -> None:
    (here / "base.yaml").write_text(NEW.replace("tfkit: 1", "tfkit: 7"))
    (here / "mine.yaml").write_text("tfkit: 1\nextends: base.yaml\n")
    with pytest.raises(RecipeError, match=r"base.yaml:2:8: tfkit: version 7 of the recipe language is newer"):
        tfkit.load_recipe("mine.yaml")


def test_a_mapping_is_migrated_too() -> None:
    with pytest.warns(MigrationWarning) as caught:
        recipe = tfkit.load_recipe(data_of(OLD))
    assert recipe.root.plain() == data_of(NEW)
    (warning,) = caught
    assert "-  position: {type: relative_buckets, num_buckets: 8}\n" in str(warning.message)
    assert "+tfkit: 1\n" in str(warning.message)
    assert "tfkit new" not in str(warning.message)


def test_one_that_cannot_be_migrated_says_why(here: Path) -> None:
    sides = "encoder: &side {embedding: {tied: all}}\n  decoder: {<<: *side, embedding: {tied: all}}\n  layer:\n"
    text = OLD.replace("layer:\n", sides)
    (here / "old.yaml").write_text(text)
    with pytest.warns(MigrationWarning):  # such an anchor is in nobody's way
        tfkit.load_recipe("old.yaml")
    (here / "old.yaml").write_text(OLD.replace("dropout: 0.1", "<<: &x {tied: all}").replace("tied: all, ", ""))
    with pytest.raises(
        RecipeError, match=r"old.yaml:2:8: tfkit: version 0 of the recipe language cannot be migrated here"
    ):
        tfkit.load_recipe("old.yaml")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("-1", "version -1 of the recipe language does not exist; this is version 1"),
        ("false", "expected the version of the recipe language, 1, got false"),
        ("'0'", "expected the version of the recipe language, 1, got '0'"),
        ("0.0", "expected the version of the recipe language, 1, got 0.0"),
        (
            "2",
            "version 2 of the recipe language is newer than this tfkit; install a newer one; this one speaks version 1",
        ),
    ],
)
def test_other_versions_are_refused(here: Path, version: str, message: str) -> None:
    (here / "mine.yaml").write_text(NEW.replace("tfkit: 1", f"tfkit: {version}"))
    with warnings.catch_warnings(), pytest.raises(RecipeError) as caught:
        warnings.simplefilter("error")
        tfkit.load_recipe("mine.yaml")
    assert [fault.message for fault in caught.value.faults] == [message]


def test_an_old_recipe_with_faults_says_them_as_they_stand(here: Path) -> None:
    (here / "old.yaml").write_text(OLD + "model: 1\n")
    with pytest.raises(RecipeError) as caught:
        tfkit.load_recipe("old.yaml")
    assert [str(fault) for fault in caught.value.faults] == ["old.yaml:15:1: model: said twice, first at old.yaml:3:1"]
