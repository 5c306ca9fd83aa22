"""Several targets and several labels of a text, missing ones, weights of classes, and the metrics of each."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

import tfkit
from tfkit.cli.main import main
from tfkit.core.errors import DataError, RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus.base import cells
from tfkit.training.objective.labels import ordered

from .made import batch_of, model, part
from .small import RECIPE

NUMBERS = [
    ("a bad cat", "0.5", "310", "x"),
    ("a dog", "", "290", "y"),
    ("dig", "-1.5", "nan", "y"),
    ("bee", "2", "300", ""),
]
REGRESSION = {"model.head": {"type": "regression", "num_targets": "labels"}, "objective": "regression"}
CLASSES = {"model.head": {"type": "classifier", "num_classes": "labels"}, "objective": "classification"}
SEVERAL = {"model.head.independent": True, "objective.multi_label": True}


def label(**targets: str) -> str:
    return json.dumps(targets)


def examples(*names: str) -> list[dict[str, str]]:
    columns = dict(zip(("text", "logp", "mw", "kind"), zip(*NUMBERS, strict=True), strict=True))
    rows = zip(*(columns[name] for name in names), strict=True)
    return [{"text": text, "label": json.dumps(dict(zip(names, row, strict=True)))}
            for text, row in zip(columns["text"], rows, strict=True)]  # fmt: skip


def table(file: Path, rows: Any = NUMBERS * 3, header: Any = ("text", "logp", "mw", "kind")) -> Path:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def recipe(folder: Path, columns: Any, values: dict[str, Any], **train: Any) -> tfkit.Recipe:
    """A recipe for the tables train.csv and valid.csv of a folder."""
    for split in ("train", "valid"):
        if not (folder / f"{split}.csv").exists():
            table(folder / f"{split}.csv")
    corpora = {
        split: {"type": "csv", "file": str(folder / f"{split}.csv"), "fields": {"text": "text", "label": columns}}
        for split in ("train", "valid")
    }
    root = {**RECIPE, "data": {**RECIPE["data"], **corpora}, "train": {**RECIPE["train"], "metrics": [], **train}}
    return tfkit.load_recipe({**root, "model": {**RECIPE["model"], "type": "encoder"}}, values)


def trained(folder: Path, name: str, *given: Any, **train: Any) -> tfkit.Run:
    return tfkit.train(recipe(folder, *given, **train), folder / name, progress=False)


def metric(name: str, outputs: list[str], references: list[str]) -> float:
    return float(REGISTRY.get("metric", name).Config().build().score(outputs, references))


def test_missing_numbers_have_no_effect_on_loss_and_gradients() -> None:
    """The loss is that of a loop over present values, and no bit depends on what the head says of a missing one."""
    objective, net = part("regression"), model({"type": "regression", "num_targets": 2})
    batch = batch_of(objective, examples("logp", "mw"))
    assert objective.rows.labels == ("logp", "mw")
    objective.attach(net)
    present = [[0.5, -1.5, 2.0], [310.0, 290.0, 300.0]]
    means, deviations = np.mean(present, axis=1), np.std(present, axis=1)
    assert net.head.mean.tolist() == pytest.approx(means) and net.head.deviation.tolist() == pytest.approx(deviations)
    out = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.detach()
    expected, count = 0.0, 0
    for row, values in enumerate([(0.5, 310), (None, 290), (-1.5, None), (2, 300)]):
        for target, value in enumerate(values):
            if value is not None:
                expected, count = expected + float(((out[row, target] - value) / deviations[target]) ** 2), count + 1
    loss = objective.loss(net, batch, training=True)
    assert loss.count == count == 6 and loss.total.item() == pytest.approx(expected, rel=1e-5)
    found = []
    for hidden in (0.0, 1e6, float("nan"), float("inf")):
        logits = torch.where(batch["labels"].isnan(), hidden, out).requires_grad_()
        total, _ = objective.head_loss(logits, {**batch, "deviation": net.head.deviation}, training=True)
        total.backward()
        found.append((total.item(), logits.grad))
        assert (logits.grad[batch["labels"].isnan()] == 0).all()
    assert all(total == found[0][0] and torch.equal(grad, found[0][1]) for total, grad in found)


@pytest.mark.full
def test_missing_labels_have_no_effect_on_loss_and_gradients() -> None:
    objective, net = part("classification"), model({"type": "classifier", "num_classes": 5})
    given = [{"text": text, "label": label(size=size, kind=kind)}
             for text, size, kind in (("a", "10", "x"), ("b", "", "y"), ("c", "9", ""), ("d", "9", "z"))]  # fmt: skip
    batch = batch_of(objective, given)
    assert [cells(one) for one in objective.rows.labels] == [
        {"size": "9"}, {"size": "10"}, {"kind": "x"}, {"kind": "y"}, {"kind": "z"}
    ]  # fmt: skip
    assert batch["labels"].tolist() == [[1, 0], [-1, 1], [0, -1], [0, 2]]
    objective.attach(net)
    out = net(input_ids=batch["input_ids"]).logits.detach()
    sizes, kinds = out[:, :2].log_softmax(-1), out[:, 2:].log_softmax(-1)
    expected = -(sizes[0, 1] + sizes[2, 0] + sizes[3, 0] + kinds[0, 0] + kinds[1, 1] + kinds[3, 2])
    total, count = objective.head_loss(out, batch, training=False)
    assert count == 6 and total.item() == pytest.approx(expected.item(), rel=1e-6)
    for hidden in (0.0, 1e6):
        logits = out.clone()
        logits[1, :2] = logits[2, 2:] = hidden
        logits.requires_grad_()
        other, _ = objective.head_loss(logits, batch, training=True)
        other.backward()
        assert other.item() == total.item() and not logits.grad[1, :2].any() and not logits.grad[2, 2:].any()
    with pytest.raises(UsageError, match="the head has 6 classes, but the training corpus has 5 labels"):
        objective.attach(model({"type": "classifier", "num_classes": 6}))


@pytest.mark.full
def test_a_run_of_several_numbers(tmp_path: Path) -> None:
    """How a missing value is written changes no bit; values are in their own units; a resumed run is the same."""
    names, steps = ["logp", "mw"], {"metrics": ["mae", "rmse", "r2", "pearson", "spearman"]}
    run = trained(tmp_path, "run", names, REGRESSION, steps=4, **steps)
    for number, missing in enumerate(("null", "NaN", " ", "nan")):
        folder = tmp_path / str(number)
        folder.mkdir()
        rows = [[missing if cell in ("", "nan") else cell for cell in row] for row in NUMBERS * 3]
        for split in ("train", "valid"):
            table(folder / f"{split}.csv", rows)
        other = trained(folder, "run", names, REGRESSION, steps=4, **steps)
        assert all(torch.equal(one, other.model.state_dict()[key]) for key, one in run.model.state_dict().items())
        assert other.evaluate("valid") == run.evaluate("valid")
    predictions = run.predict([row[0] for row in NUMBERS])
    assert list(predictions[0]["values"]) == names and abs(predictions[0]["values"]["mw"] - 300) < 100
    scores = run.evaluate("valid")
    for place, name in enumerate(names, 1):
        pairs = [(one["values"][name], float(row[place])) for one, row in zip(predictions, NUMBERS, strict=True)
                 if row[place] not in ("", "nan")]  # fmt: skip
        ours, theirs = np.asarray(pairs).T
        assert scores[f"mae.{name}"] == pytest.approx(np.abs(ours - theirs).mean(), rel=1e-5)
        assert scores[f"rmse.{name}"] == pytest.approx(np.sqrt(((ours - theirs) ** 2).mean()), rel=1e-5)
        explained = 1 - ((ours - theirs) ** 2).sum() / ((theirs - theirs.mean()) ** 2).sum()
        assert scores[f"r2.{name}"] == pytest.approx(100 * explained, rel=1e-4)
        assert scores[f"pearson.{name}"] == pytest.approx(100 * np.corrcoef(ours, theirs)[0, 1], rel=1e-4)
    for name in steps["metrics"]:
        assert scores[name] == pytest.approx((scores[f"{name}.logp"] + scores[f"{name}.mw"]) / 2)
    first = trained(tmp_path, "half", names, REGRESSION, steps=2, **steps)
    again = tfkit.train(
        recipe(tmp_path, names, REGRESSION, steps=4, **steps), first.folder, resume=True, progress=False
    )
    assert all(torch.equal(one, again.model.state_dict()[key]) for key, one in run.model.state_dict().items())
    shown = CliRunner().invoke(main, ["predict", str(run.folder), "a dog"]).output
    assert shown.startswith("logp ") and ", mw " in shown


@pytest.mark.full
def test_a_single_number_is_standardized_on_request(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", [row for row in NUMBERS * 3 if row[2] != "nan"])
    table(tmp_path / "valid.csv", [row for row in NUMBERS if row[2] != "nan"])
    plain = trained(tmp_path, "plain", "mw", {"model.head": "regression", "objective": "regression"})
    assert plain.predict(["a dog"])[0]["value"] < 100 and "head.mean" not in plain.model.state_dict()
    head = {"type": "regression", "standardize": True}
    run = trained(tmp_path, "run", "mw", {"model.head": head, "objective": "regression"}, metrics=["mae"])
    assert abs(run.predict(["a dog"])[0]["value"] - 300) < 50 and run.evaluate("valid")["mae"] < 50
    known = json.loads((run.folder / "environment.json").read_text())["baseline"]
    assert known == {"name": "mean label", "loss": pytest.approx(1.0)}


@pytest.mark.full
def test_targets_that_are_refused(tmp_path: Path) -> None:
    bad = {
        "12a": r"train.csv:3: the label 'mw' is '12a'; regression requires numbers",
        "inf": r"train.csv:3: the label 'mw' is 'inf'; regression requires numbers",
    }
    for cell, message in bad.items():
        table(tmp_path / "train.csv", [NUMBERS[0], ("a", "1", cell, "x"), *NUMBERS])
        with pytest.raises(DataError, match=message):
            trained(tmp_path, "run", ["logp", "mw"], REGRESSION)
        file = tmp_path / "recipe.yaml"
        file.write_text(recipe(tmp_path, ["logp", "mw"], REGRESSION).resolved(40), "utf-8")
        found = CliRunner().invoke(main, ["check", str(file)])
        assert found.exit_code != 0 and message.split(": ")[1] in found.output
    for cells_of, what in (("7", "constant or missing everywhere"), ("", "constant or missing everywhere")):
        table(tmp_path / "train.csv", [(text, one, cells_of, kind) for text, one, _, kind in NUMBERS])
        with pytest.raises(DataError, match=f"train.csv: the target 'mw' is {what}"):
            trained(tmp_path, "run", ["logp", "mw"], REGRESSION)
    table(tmp_path / "train.csv")
    for head, columns, message in (
        ({"num_targets": 3}, ["logp", "mw"], "num_targets: 3, but `label` names 2 targets; use num_targets: labels"),
        ({}, ["logp", "mw"], "num_targets: none, but `label` names 2 targets"),
        ({"num_targets": 1}, "logp", None),
    ):
        with pytest.raises((UsageError, DataError), match=message):
            trained(tmp_path, "run", columns, {**REGRESSION, "model.head": {"type": "regression", **head}})
    for fields in ({"text": ["logp", "mw"]}, {"text": "text", "label": ["mw", "mw"]}, {"text": "text", "label": []}):
        with pytest.raises(RecipeError, match="only label takes a list of columns, each of them once"):
            recipe(tmp_path, "mw", {**REGRESSION, "data.train.fields": fields})
    with pytest.raises(DataError, match="no column 'mass' in the header"):
        trained(tmp_path, "run", ["logp", "mass"], REGRESSION)
    with pytest.raises(DataError, match="has the targets 'mw', but the training corpus 'logp, mw'"):
        trained(tmp_path, "run", ["logp", "mw"], {**REGRESSION, "data.valid.fields.label": ["mw"]})


def test_an_example_has_several_columns(tmp_path: Path) -> None:
    """In JSON lines and Parquet, null, NaN and keys that are missing are empty; so are cells of CSV."""
    rows: list[dict[str, Any]] = [{"text": "a", "x": {"y": 1.5}, "z": None}, {"text": "b", "z": float("nan")}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    config = REGISTRY.get("corpus", "json_lines").Config
    found = config(file=str(file), fields={"text": "text", "label": ("x.y", "z")}).build().examples()
    assert [json.loads(one["label"]) for one in found] == [{"x.y": "1.5", "z": ""}, {"x.y": "", "z": ""}]
    file = table(tmp_path / "rows.csv", [("a", "1", "", "k")], header=("b", "2", "3", "l"))
    made = REGISTRY.get("corpus", "csv").Config(file=str(file), header=False, fields={"text": 0, "label": (2, 1)})
    assert [json.loads(one["label"]) for one in made.build().examples()] == [{"2": "3", "1": "2"}, {"2": "", "1": "1"}]


@pytest.mark.full
def test_a_run_of_several_classes(tmp_path: Path) -> None:
    rows = [(text, first, text[0], "") for text, first in (("a b", "p"), ("b", ""), ("c a", "q"), ("a", "q"))] * 3
    for split in ("train", "valid"):
        table(tmp_path / f"{split}.csv", rows)
    run = trained(tmp_path, "run", ["logp", "mw"], CLASSES, metrics=["accuracy", "macro_f1", "micro_f1", "auc"])
    assert len(run.labels) == 5
    predictions, scores = run.predict([row[0] for row in rows]), run.evaluate("valid")
    for place, name in ((1, "logp"), (2, "mw")):
        kept = [(one["targets"][name], row[place]) for one, row in zip(predictions, rows, strict=True) if row[place]]
        right = [one["label"] == wanted for one, wanted in kept]
        assert scores[f"accuracy.{name}"] == pytest.approx(100 * np.mean(right))
        assert all(sum(one["labels"].values()) == pytest.approx(1) for one, _ in kept)
    assert scores["auc"] == pytest.approx((scores["auc.logp"] + scores["auc.mw"]) / 2)
    with pytest.raises(UsageError, match="no problem_type for several classification targets"):
        tfkit.as_pretrained(run)


@pytest.mark.full
def test_several_labels_of_a_text(tmp_path: Path) -> None:
    objective, net = part("classification", multi_label=True), model({"type": "classifier", "num_classes": 3})
    given = [{"text": "ab", "label": "x|y"}, {"text": "c", "label": "[]"}, {"text": "de", "label": '["z"]'}]
    batch = batch_of(objective, given)
    assert objective.rows.labels == ("x", "y", "z")
    assert batch["labels"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    out = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    loss = objective.loss(net, batch, training=True)
    expected = F.binary_cross_entropy(out.sigmoid(), batch["labels"].float(), reduction="sum")
    assert loss.count == 3 and loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    for file in ("train", "valid"):
        rows = [("a b", "a, b", "", ""), ("b c", "b", "", ""), ("c", "", "", ""), ("a c", "a", "", "")] * 6
        table(tmp_path / f"{file}.csv", rows)
    values = {**CLASSES, **SEVERAL, "objective": {"type": "classification", "multi_label": True, "separator": ","}}
    run = trained(tmp_path, "run", ["logp"], values, steps=40, metrics=["micro_f1", "macro_f1", "auc", "accuracy"])
    assert run.labels == ("a", "b") and run.evaluate("valid")["auc"] > 80
    (found,) = run.predict(["a b"])
    assert set(found["chosen"]) == {label for label, chance in found["labels"].items() if chance >= 0.5}
    with pytest.raises(RecipeError, match="multi_label of 'classification' requires independent: true"):
        recipe(tmp_path, ["logp"], {**values, "model.head.independent": False})
    with pytest.raises(DataError, match="set multi_label: true, or select an element"):
        batch_of(part("classification"), given[2:])
    with pytest.raises(DataError, match="multi_label requires one column of labels, got a, b"):
        batch_of(part("classification", multi_label=True), [{"text": "a", "label": label(a="1", b="0")}])


@pytest.mark.full
def test_weights_of_classes() -> None:
    given = [{"text": text, "label": kind} for text, kind in (("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"))]
    net = model({"type": "classifier", "num_classes": 2})
    for weights, expected in (("balanced", [4 / (2 * 3), 4 / (2 * 1)]), ({"y": 5}, [1, 5])):
        objective = part("classification", class_weights=weights)
        batch = batch_of(objective, given)
        objective.attach(net)
        assert objective.weights.tolist() == pytest.approx(expected)
        nats = -net(input_ids=batch["input_ids"]).logits.log_softmax(-1)[range(4), [0, 0, 0, 1]]
        weighted = sum(nats[row] * expected[one] for row, one in enumerate([0, 0, 0, 1]))
        assert objective.loss(net, batch, training=True).total.item() == pytest.approx(weighted.item(), rel=1e-5)
        assert objective.loss(net, batch, training=False).total.item() == pytest.approx(nats.sum().item(), rel=1e-5)
    several = part("classification", class_weights="balanced", multi_label=True)
    batch_of(several, [{"text": "ab", "label": "x|y"}, {"text": "c", "label": "x"}])
    several.attach(net)
    assert several.weights.tolist() == pytest.approx([3 / 4, 3 / 2])
    tags = part("token_classification", class_weights={"N": 3})
    batch = batch_of(tags, [{"text": "the cat", "tags": "D N"}])
    tagger = model({"type": "token_classifier", "num_classes": 2})
    tags.attach(tagger)
    one, other = (tags.loss(tagger, batch, training=flag).total.item() for flag in (False, True))
    assert one < other and tags.weights.tolist() == [1, 3]
    unknown = part("classification", class_weights={"z": 2})
    batch_of(unknown, given)
    with pytest.raises(
        UsageError, match=r"objective.class_weights: 'z' is not a label of the training corpus, which has x, y"
    ):
        unknown.attach(net)


def counted_area(chances: list[float], present: list[bool]) -> float:
    """Count the pairs that are ranked correctly, ties by half."""
    pairs = [(one, other) for one, own in zip(chances, present, strict=True) if own
             for other, is_present in zip(chances, present, strict=True) if not is_present]  # fmt: skip
    return sum(1.0 if one > other else 0.5 if one == other else 0.0 for one, other in pairs) / len(pairs)


def test_areas_under_curves_are_counts_of_pairs() -> None:
    rng = np.random.default_rng(0)
    for labels, several in (("ab", False), ("abc", False), ("abc", True)):
        chances = rng.integers(0, 5, (30, len(labels))) / 4  # with ties
        truth = [rng.choice(list(labels)) for _ in range(30)]
        present = np.asarray([[one == label for label in labels] for one in truth])
        if several:
            present = rng.random((30, len(labels))) < 0.4
            truth = [" ".join(label * bool(own) for label, own in zip(labels, row, strict=True)) for row in present]
        outputs = [json.dumps(dict(zip(labels, row.tolist(), strict=True))) for row in chances]
        columns = range(1, 2) if labels == "ab" else range(len(labels))
        expected = np.mean([counted_area(chances[:, n].tolist(), present[:, n].tolist()) for n in columns])
        assert metric("auc", outputs, truth) == pytest.approx(100 * expected)
    assert metric("auc", ['{"a": 0.1, "b": 0.9}'] * 2, ["a", "a"]) == 50  # nothing to tell apart


def test_metrics_of_several_labels_and_of_numbers() -> None:
    outputs, references = ["a  c", " b ", "  "], ["a b ", " b ", "  c"]
    # a: 1 right of 1 + 1; b: 1 right of 1 + 2; c: 0 right of 1 + 1
    assert metric("micro_f1", outputs, references) == pytest.approx(100 * 2 * 2 / (3 + 4))
    assert metric("macro_f1", outputs, references) == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    assert metric("accuracy", outputs, references) == pytest.approx(100 * 6 / 9)
    assert metric("micro_f1", ["  "], ["  "]) == 0
    assert metric("micro_f1", ["x", "y"], ["x", "x"]) == metric("accuracy", ["x", "y"], ["x", "x"]) == 50
    numbers = ["1", "2", "4"], ["2", "2", "5"]
    assert metric("mae", *numbers) == pytest.approx(2 / 3)
    assert metric("rmse", *numbers) == pytest.approx((2 / 3) ** 0.5)
    assert metric("r2", *numbers) == pytest.approx(100 * (1 - 2 / 6))
    assert metric("r2", ["1", "2"], ["3", "3"]) == 0
    assert ordered([label(a="10"), label(b="y"), label(a="9")]) == (label(a="9"), label(a="10"), label(b="y"))


@pytest.mark.full
def test_targets_may_be_constant_or_missing_in_validation(tmp_path: Path) -> None:
    table(tmp_path / "valid.csv", [("a bad cat", "1", "", "x"), ("a dog", "1", "", "x")])
    run = trained(tmp_path, "run", ["logp", "mw"], REGRESSION, metrics=["mae"])
    again = tfkit.load_run(run.folder).evaluate("valid")
    assert np.isfinite(again["loss"])
