"""The model card of an export: what it says, that no text of a user becomes markup, and that an own card stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import tfkit
from tests.training.small import RECIPE
from tfkit.interop.hub import LocalPaths
from tfkit.interop.huggingface.exporting import card, export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.recipe.model import blueprint_of
from tfkit.run import Run
from tfkit.runs.card import is_ours

from .made import model_folder, said

pytestmark = pytest.mark.full


def small_run(folder: Path) -> Run:
    recipe = tfkit.load_recipe({"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 20}})
    return tfkit.save(tfkit.build(recipe), recipe, None, folder)


@pytest.mark.full
def test_a_card_says_the_architecture_its_scores_and_how_to_load_it(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps({"test": {"loss": 1.25, "bleu": 30, "odd": "x"}}))
    export_model(run, tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    count = sum(parameter.numel() for parameter in run.model.parameters())
    assert f"{count:,} parameters." in text
    assert "| test | loss | 1.25 |\n| test | bleu | 30 |\n\n" in text
    assert 'transformers.AutoModelForCausalLM.from_pretrained(".", trust_remote_code=True)' in text
    recipe = yaml.safe_load(text.partition("spelled out:\n")[2].rpartition("<!--")[0])
    assert blueprint_of(recipe["model"]) == run.blueprint


def test_texts_of_users_are_no_markup(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    run.recipe = replace(run.recipe, name="<script>x</script>\n# [a](b) \x1b[31m|")
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps({"<b>|\n## t": {"`l`": 1.0}}))
    lines = card(run, LocalPaths.of(run), "AutoModel", True).splitlines()
    title = next(line for line in lines if line.startswith("# "))
    assert title == r"# \<script\>x\</script\> \# \[a\]\(b\) \\x1b\[31m\|"
    assert r"| \<b\>\| \#\# t | \`l\` | 1 |" in lines
    assert not any("\x1b" in line or line.lstrip("- ").startswith("<script") for line in lines)


@pytest.mark.full
def test_a_card_of_ones_own_stays(tmp_path: Path) -> None:
    run, readme = small_run(tmp_path / "run"), tmp_path / "out" / "README.md"
    export_model(run, tmp_path / "out")
    export_model(run, tmp_path / "out", force=True)
    readme.write_text("mine")
    export_model(run, tmp_path / "out", force=True)
    assert (tmp_path / "out.old" / "README.md").read_text() == "mine" != readme.read_text()


@pytest.mark.full
def test_an_imported_run_says_where_it_came_from_and_what_it_lost(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a model is made with transformers, which the extra test brings")
    source = model_folder(tmp_path / "home" / "tiny", "gpt2")
    said(source, unheard_of=3)
    made = import_model(str(source), tmp_path / "run", dtype="bfloat16")
    text = (tmp_path / "run" / "README.md").read_text()
    assert is_ours(tmp_path / "run" / "README.md") and f"{made.parameters:,} parameters." in text
    assert "Imported from tiny (GPT2LMHeadModel, family gpt2), weights in bfloat16." in text
    assert len(made.notes) == 2 and made.notes[0] == "not read in config.json: unheard_of"
    assert "- not read in config.json: unheard_of" in text.replace("\\", "")
    assert made.notes[1] in text.replace("\\", "") and "tokenizer.json" in made.notes[1]
    assert "README.md" in (tmp_path / "run" / "SHA256SUMS").read_text()
    assert tfkit.load_run(tmp_path / "run").folder == made.run
    export_model(tfkit.load_run(tmp_path / "run"), tmp_path / "out")
    assert "Imported from tiny" in (tmp_path / "out" / "README.md").read_text()
