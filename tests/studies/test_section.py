"""`study:` says what is compared; what is wrong in it is told with its place, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.studies.small import study
from tests.training.small import RECIPE
from tfkit.cli.main import main
from tfkit.core.errors import RecipeError, UsageError
from tfkit.recipe.load import load_recipe
from tfkit.recipe.schema import language_schema
from tfkit.studies.arms import StudySource, arms_of, slug, study_of
from tfkit.studies.planning import check_study, make_plan

from ..sampling import looped


def names(folder: Path, **keys: Any) -> list[str]:
    source = StudySource(str(study(folder, **keys)))
    recipe = source.recipe()
    return [arm.name for arm in arms_of(source, study_of(recipe), recipe.variant_entries)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"compare": ["norm"]}, ["norm=layer_norm", "norm=rms_norm"]),
        ({"compare": ["wide", "norm=rms_norm"]}, ["wide", "norm=rms_norm"]),
        ({"compare": ["norm=rms_norm+wide"]}, ["norm=rms_norm+wide"]),
        ({"compare": ["norm+wide"]}, ["norm=layer_norm+wide", "norm=rms_norm+wide"]),
        (
            {"compare": [], "cross": ["norm", "wide"]},
            ["norm=layer_norm", "norm=layer_norm+wide", "norm=rms_norm", "norm=rms_norm+wide"],
        ),
        ({"compare": ["wide"], "cross": ["wide"]}, ["wide"]),
    ],
)
def test_what_is_compared(keys: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert names(tmp_path, **keys) == ["baseline", *expected]


def test_an_arm_that_is_another_one_says_so(tmp_path: Path) -> None:
    source = StudySource(str(study(tmp_path, compare=["norm", "wide"], baseline="norm=rms_norm")))
    recipe = source.recipe()
    same = {arm.name: arm.same_as for arm in arms_of(source, study_of(recipe), recipe.variant_entries)}
    assert same == {"baseline": "", "norm=layer_norm": "", "norm=rms_norm": "baseline", "wide": ""}


def _named(*names: str, cross: bool = False) -> dict[str, Any]:
    """Variants with these names, compared or crossed."""
    variants = {name: {"model.d_model": 16} for name in names}
    return {
        "more": {"variants": variants},
        **({"cross": [*names], "compare": ["wide"]} if cross else {"compare": [*names]}),
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"compare": ["nrm"]},
            r"study\.compare\[0\]: unknown variant 'nrm'; available: norm, wide, glu\. Did you mean 'norm'",
        ),
        (
            {"compare": ["norm=layer"]},
            r"'norm=layer' is not a choice of 'norm'; available: norm=layer_norm, norm=rms_norm",
        ),
        ({"compare": ["wide=3"]}, r"'wide' has no values to choose from"),
        ({"compare": []}, r"study\.compare: is empty"),
        ({"baseline": "norm"}, r"study\.baseline: 'norm' is not a choice of 'norm'"),
        ({"baseline": {"train.seed": 3}}, r"study\.seeds: the study sets the seed of each run"),
        ({"seeds": [1, 1]}, r"study\.seeds: contains a seed twice"),
        ({"seeds": 0}, r"study\.seeds"),
        (
            {"seeds": {"up_to": 9, "worth": 0.1}},
            r"study\.seeds: seeds that depend on results were removed; give a number of seeds",
        ),
        ({"measure": ["valid.bleu"]}, r"study\.measure\[0\]: 'valid\.bleu' is not measured in these runs"),
        ({"measure": ["valid.los"]}, r"Did you mean 'valid\.loss'"),
        (
            {"match": {"parameters": "model.d_model", "tokens": 3}},
            r"study\.match: expected one of .* got parameters and tokens",
        ),
        ({"match": {}}, r"study\.match: expected one of parameters, flops, tokens, seconds"),
        (
            {"match": {"parameters": "model.d_model"}, "tune": {"model.d_model": [8]}},
            r"model\.d_model: cannot be tuned, since study\.match",
        ),
        ({"claims": [{"says": "wide < baseline"}]}, r"study\.claims\[0\]\.says: 'wide' is not compared"),
        ({"claims": [{"says": "norm=rms_norm"}]}, r"expected two variants with < or > between them"),
        (
            {"claims": [{"says": "norm=rms_norm < baseline", "on": "seconds"}]},
            r"'seconds' is not measured; add it to study\.measure",
        ),
        ({"compre": ["norm"]}, r"Did you mean 'compare'"),
        ({"reuse": False}, r"^\S+: study\.reuse: runs of other folders are no longer taken; remove the key$"),
        ({"measure": []}, r"study\.measure"),
        ({"measure": ["valid.loss", "valid.loss"]}, r"study\.measure: contains a measure twice"),
        ({"seeds": 1_000_000}, r"study\.seeds"),
        ({"compare": ["norm+norm"]}, r"'norm\+norm' contains a variant twice"),
        ({"cross": ["norm", "norm"]}, r"study\.cross: contains a variant twice"),
        ({"cross": ["norm+wide"]}, r"the study combines variants itself; list each one separately"),
        ({"tune": {"study.seeds": [1, 2]}}, r"'study\.seeds' cannot be overridden in a study"),
        ({"tune": {"train.schedule.lr": [0.1, 0.1]}}, r"train\.schedule\.lr: contains a value twice"),
        ({"baseline": {"": 3}}, r"study\.baseline: '' cannot be overridden"),
        (
            {"match": {"parameters": "train.steps"}},
            r"'train\.steps' does not change the number of parameters; use a key of model",
        ),
        ({"match": {"parameters": ""}}, r"study\.match\.parameters"),
        ({"claims": [{"says": "baseline < baseline"}]}, r"compares 'baseline' with itself"),
        ({"claims": [{"says": "baseline <= norm=rms_norm"}]}, r"expected two variants with < or > between them"),
        (_named("baseline"), "is the name of the baseline; rename the variant"),
        (_named("a+b"), r"contains a \+ or =; rename the variant"),
        (
            _named(*(f"v{number}" for number in range(24)), cross=True),
            r"study\.cross: results in 16,777,218 variants including the baseline; the limit is 1,000",
        ),
    ],
)
def test_what_contradicts_is_told_with_its_place(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = study(tmp_path, **keys)
    with pytest.raises(RecipeError, match=message) as found:
        load_recipe(file)
    assert all(fault.line > 0 for fault in found.value.faults)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_one_fault(value: float, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as found:
        load_recipe(study(tmp_path, match={"seconds": value}))
    [fault] = found.value.faults
    assert fault.path == "study.match.seconds" and "be finite" in fault.message


def test_all_faults_of_all_arms_at_once(tmp_path: Path) -> None:
    more = {"variants": {"one": {"model.layer.nrm": "rms_norm"}, "two": {"model.d_model": 0}}}
    source = StudySource(str(study(tmp_path, more=more, compare=["one", "two", "norm"])))
    recipe = source.recipe()
    with pytest.raises(RecipeError) as found:
        arms_of(source, study_of(recipe), recipe.variant_entries)
    texts = [str(fault) for fault in found.value.faults]
    assert len(texts) == 2
    assert any("model.layer.nrm" in text and "Did you mean 'norm'" in text for text in texts)
    assert any("model.d_model" in text for text in texts)


def test_all_faults_of_variants_tuning_and_probes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"variants": {"one": {"model.layer.nrm": "rms_norm"}, "two": {"model.d_model": 16}}}
    keys = {"compare": ["one", "two"], "measure": ["valid.loss", {"probe": "sortin"}, {"probe": "inductin"}]}
    file = study(tmp_path, more=more, **keys, tune={"train.schedule.lrr": [0.1, 0.2]})
    with pytest.raises(RecipeError) as found:
        check_study(StudySource(str(file)))
    wrong = ["model.layer.nrm", "study.tune", "study.measure[1]", "study.measure[2]"]
    assert sorted(fault.path for fault in found.value.faults) == sorted(wrong)
    with pytest.raises(SystemExit) as ended:
        main(["check", str(file)])
    assert ended.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert all(path in printed for path in wrong)


def test_check_says_how_many_variants_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", str(study(tmp_path, compare=["norm", "wide"]))])
    assert "a study of 4 variants" in " ".join(capsys.readouterr().out.split())


def test_a_recipe_without_a_study_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no section `study:`"):
        study_of(load_recipe("gpt2"))


def test_a_study_trains_and_checks_as_its_recipe(tmp_path: Path) -> None:
    """`study:` is no part of what a run is: resolved.yaml leaves it out."""
    recipe = load_recipe(study(tmp_path))
    assert recipe.leaves
    assert "\nstudy:" not in recipe.resolved()


def test_the_schema_knows_it() -> None:
    definitions = language_schema()["definitions"]
    properties = definitions["section.study"]["properties"]
    assert {"compare", "cross", "baseline", "seeds", "match", "tune", "measure", "claims", "about"} <= properties.keys()


def test_a_variant_that_changes_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="'wide' trains as 'baseline' does: it changes nothing, or what it changes is set again"
    ):
        names(tmp_path, compare=["wide"], baseline={"model.d_model": 32})
    with pytest.raises(UsageError, match="or is the seed"):
        names(tmp_path, more={"variants": {"other": {"train.seed": 7}}}, compare=["other"])


def test_blanks_around_plus_and_paths_with_plus(tmp_path: Path) -> None:
    assert names(tmp_path, compare=["norm=rms_norm + wide"]) == ["baseline", "norm=rms_norm+wide"]
    (tmp_path / "a+b.txt").write_text("one two three")
    files = [{"type": "text", "files": [name]} for name in ("train.txt", "a+b.txt")]
    found = names(tmp_path, more={"variants": {"corpus": {"data.train": files}}}, compare=["corpus"])
    assert len(found) == 3


@looped("first", ["a b", "a/b", ".", "x" * 300, "日本" * 60])
def test_every_arm_has_a_folder_of_its_own(first: str) -> None:
    found = slug(first)
    assert found != slug("a_b")
    assert "/" not in found
    assert not found.startswith(".")
    assert len(found.encode()) < 100
    assert slug("norm=rms_norm+wide") == "norm=rms_norm+wide"


def test_a_missing_teacher_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    variants = {"taught": {"train.teacher": {"run": "teacher"}}}
    file = study(tmp_path, more={"variants": variants}, compare=["taught"])
    assert check_study(StudySource(str(file))) == 2
    with pytest.raises(RecipeError) as error:
        make_plan(StudySource(str(file)), tmp_path / "out")
    said = f"variant 'taught': no such run folder: {tmp_path / 'teacher'}; make it first"
    assert said in str(error.value) and "train.teacher.run" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_check_opens_the_data_of_a_variant(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\xfe\n")
    corpus = {"type": "text", "files": [str(tmp_path / "bad.txt")]}
    more = {"variants": {"other": {"data.train": corpus}}}
    file = study(tmp_path, more=more, compare=["other"])
    with pytest.raises(RecipeError, match=r"variant 'other': .*bad\.txt") as found:
        check_study(StudySource(str(file)))
    assert [fault.path for fault in found.value.faults] == ["data.train"]


@pytest.mark.full
def test_check_warns_of_options_that_a_new_type_resets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those the recipe wrote, the new type has and a default changes; not of others, nor of what the arm repeats."""
    gated = {"type": "glu", "activation": "silu"}
    layer = {**RECIPE["model"]["layer"], "feedforward": {"type": "mlp", "d_ff": 8, "bias": False, "activation": "relu"}}
    variants = {
        "gated": {"model.layer.feedforward": {**gated, "d_ff": 8}},
        "fair": {"model.layer.feedforward": {**gated, "d_ff": 8, "bias": False}},
        "rms": {"model.layer.norm": "rms_norm"},  # has no bias to keep
    }
    more = {"model": {"layer": {**layer, "norm": {"type": "layer_norm", "bias": False}}}, "variants": variants}
    file = study(tmp_path, more=more, compare=["gated", "fair", "gated+rms"])
    text = "variant gated changes the type from mlp to glu, which resets bias from false to true; to keep it, write"
    for words in (["check", str(file)], ["check", str(file), "--variant", "gated"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        printed = " ".join(capsys.readouterr().err.split())
        assert ended.value.code == 0 and f"model.layer.feedforward: {text} bias: false in the variant" in printed
        assert printed.count("which resets") == 1
    (note,) = make_plan(StudySource(str(file)), tmp_path / "out", timed=False).notes
    assert text in note


def test_a_ladder_is_refused_with_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ladder", "gpt-docstrings", "--sizes", "4"])
    assert ended.value.code == 2
    assert "`tfkit ladder` was removed; `study.sizes` in a recipe" in " ".join(capsys.readouterr().err.split())
