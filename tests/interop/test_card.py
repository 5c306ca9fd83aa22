"""The model card of an export: what it says, that no text of a user becomes markup, and that an own card stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

import tfkit
from tests.training.small import RECIPE
from tfkit.interop.huggingface.card import card
from tfkit.interop.huggingface.exporting import export_model
from tfkit.recipe.model import blueprint_of
from tfkit.run import Run


def small_run(folder: Path) -> Run:
    recipe = tfkit.load_recipe({"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 20}})
    return tfkit.save(tfkit.build(recipe), recipe, None, folder)


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
    lines = card(run, "AutoModel", True).splitlines()
    title = next(line for line in lines if line.startswith("# "))
    assert title == r"# \<script\>x\</script\> \# \[a\]\(b\) \\x1b\[31m\|"
    assert r"| \<b\>\| \#\# t | \`l\` | 1 |" in lines
    assert not any("\x1b" in line or line.lstrip("- ").startswith("<script") for line in lines)


def test_a_card_of_ones_own_stays(tmp_path: Path) -> None:
    run, readme = small_run(tmp_path / "run"), tmp_path / "out" / "README.md"
    export_model(run, tmp_path / "out")
    export_model(run, tmp_path / "out", force=True)
    readme.write_text("mine")
    export_model(run, tmp_path / "out", force=True)
    assert (tmp_path / "out.old" / "README.md").read_text() == "mine" != readme.read_text()
