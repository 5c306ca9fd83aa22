"""Distillation: the loss against formulas, gradients, refusals by name, resuming, targets that the teacher writes."""

import functools
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.sampling import looped, some
from tests.training.small import RECIPE, trained
from tfkit.core.errors import RecipeError, RunError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import Run, train
from tfkit.runs.folder import RunFolder
from tfkit.training.loop import Trainer
from tfkit.training.objective import Batch
from tfkit.training.progress import Reporter
from tfkit.training.setup import Task, prepare

WORDS = ["one two three four", "two three", "four five six one two", "three one", "six six five", "one five two"]
EXAMPLES = [
    {"text": text, "source": text, "target": text[::-1].replace(" ", ""), "label": text[0], "tags": tags}
    for text, tags in ((text, " ".join(word[0] for word in text.split())) for text in WORDS)
]
LAYER = {
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 8},
}
RECURRENT = {"attention": "none", "mixer": "lstm", "sublayers": ["mixer", "feedforward"]}
HEADS = {
    "classification": {"type": "classifier", "num_classes": "labels"},
    "token_classification": {"type": "token_classifier", "num_classes": "labels"},
    "masked_lm": {"type": "masked_lm", "tied": True},
    "span": "span",
}
PAIRS = ("seq2seq", "denoising", "span_corruption")
ALL = ("causal_lm", "completion", "classification", "token_classification", "masked_lm", *PAIRS)
SPECIAL = {"pad": "<pad>", "start": "<s>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>", "sentinels": 4}


def recipe(folder: Path, objective: str = "causal_lm", layers: int = 2, d_model: int = 8, **changes: Any) -> Recipe:
    """A small recipe of an objective, without dropout; `changes` are values by key, with __ for a dot."""
    file = folder / "examples.jsonl"
    file.write_text("\n".join(map(json.dumps, EXAMPLES)) + "\n")
    kind = "encoder_decoder" if objective in PAIRS else "encoder" if objective in HEADS else "decoder"
    model = {
        **RECIPE["model"],
        "type": kind,
        "d_model": d_model,
        "num_layers": layers,
        "max_length": 40,
        "layer": LAYER,
        "head": HEADS.get(objective, {"type": "language_model", "tied": True}),
    }
    fields = {name: name for name in ("text", "source", "target", "label", "tags")}
    corpus = {"type": "json_lines", "file": str(file), "fields": fields}
    tokenizer = {"type": "character", "special_tokens": SPECIAL}
    settings = {
        "steps": 2,
        "schedule": {"type": "constant", "lr": 0.01},
        "metrics": [],
        "evaluate_every": 2,
        "samples": 0,
    }
    source = {
        **RECIPE,
        "model": model,
        "data": {"tokenizer": tokenizer, "train": corpus, "valid": corpus, "batch": {"size": 3}},
        "objective": {"type": objective, **({"join": False} if objective == "causal_lm" else {})},
        "train": {**RECIPE["train"], **settings},
        "generate": {"max_new_tokens": 6},
    }
    return load_recipe(source, {key.replace("__", "."): value for key, value in changes.items()})


def ready(loaded: Recipe) -> Task:
    return prepare(loaded, Reporter(False))


def first_batch(task: Task) -> Batch:
    return task.train.make(0, 0, task.train.plan(0)[0])


@functools.cache
def teacher_of(objective: str) -> Path:
    """The folder of a trained teacher, which tests copy."""
    folder = Path(tempfile.mkdtemp())
    return trained(recipe(folder, objective, layers=4, train__seed=5, train__steps=1), folder / "run").folder


def taught(folder: Path, objective: str = "causal_lm", teacher: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """The recipe of a student of `folder/teacher`, which is copied there."""
    if not (folder / "teacher").exists():
        shutil.copytree(teacher_of(objective), folder / "teacher")
    settings = {"run": str(folder / "teacher"), **(teacher or {})}
    return recipe(folder, objective, **{"train__teacher": settings, **changes})


def refused(folder: Path, *said: str, **changes: Any) -> None:
    with pytest.raises(RecipeError) as error:
        ready(taught(folder, **changes))
    for text in said:
        assert text in str(error.value)


# the loss


def loss_of(task: Task) -> tuple[float, Batch]:
    assert task.distillation is not None
    batch = first_batch(task)
    found = task.distillation.loss(task.model, batch)
    return float(found.total.detach()) / found.count, batch


def scores(model: Any, batch: Batch) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"]).logits.flatten(0, 1)
    return logits[batch["predicted"]] if "predicted" in batch else logits


@pytest.mark.full
def test_soft_targets_are_those_of_the_formula(tmp_path: Path) -> None:
    task = ready(taught(tmp_path, teacher={"temperature": 3, "weight": 0.25}))
    loss, batch = loss_of(task)
    own, other = scores(task.model, batch), scores(Run(tmp_path / "teacher", recipe(tmp_path, layers=4)).model, batch)
    p = (other / 3).softmax(-1)
    divergence = (p * (p.log() - (own / 3).softmax(-1).log())).sum(-1).mean()
    expected = 0.75 * F.cross_entropy(own, batch["labels"]) + 0.25 * 9 * divergence
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.full
def test_states_are_compared_as_the_formula_says(tmp_path: Path) -> None:
    settings = {
        "weight": 0,
        "cosine": 0.5,
        "hidden": {0: 1, 1: 3},
        "hidden_weight": 2.0,
        "attention": {0: 0, 1: 2},
        "attention_weight": 3.0,
    }
    task = ready(taught(tmp_path, "masked_lm", settings))
    loss, batch = loss_of(task)
    teacher = Run(tmp_path / "teacher", recipe(tmp_path, "masked_lm", layers=4)).model
    seen: list[tuple[Any, list[torch.Tensor], list[torch.Tensor]]] = []
    for model in (task.model, teacher):
        layers: list[torch.Tensor] = []
        for layer in model.encoder.layers:  # type: ignore[union-attr,operator]
            layer.register_forward_hook(lambda module, inputs, out, layers=layers: layers.append(out))
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], observe={"attention"})
        seen.append((out.hidden, layers, list(out.observed.values())))
    (own, own_layers, own_maps), (other, layers, maps) = seen
    real = batch["attention_mask"].bool()
    pairs = real[:, :, None] & real[:, None, :]
    expected = task.objective.loss(task.model, batch, True).total / len(batch["labels"])
    expected = expected + 0.5 * (1 - F.cosine_similarity(own, other, dim=-1))[real].mean()
    for student, there in ((0, 1), (1, 3)):
        expected = expected + 2 * F.mse_loss(own_layers[student][real], layers[there][real])
    for student, there in ((0, 0), (1, 2)):
        error = (own_maps[student] - maps[there]).pow(2).mean(dim=1)
        expected = expected + 3 * error[pairs].mean()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


@looped("objective", ["masked_lm", "causal_lm", "completion"])
def test_packing_and_padding_change_no_term(objective: str) -> None:
    for name in ("cosine", "hidden", "attention"):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"weight": 0, name: 1 if name == "cosine" else {0: 1}}
            everywhere = {"objective__probability": 1.0} if objective == "masked_lm" else {}
            task = ready(taught(Path(folder), objective, settings, **everywhere))
            assert task.distillation is not None
            rows, items = task.objective.rows, task.train.items[:3]
            rng = np.random.default_rng
            batches = [rows.collate(items, rng(1)), *(rows.collate_packed([items], size, rng(1)) for size in (96, 120))]
            found = [task.distillation.loss(task.model, batch).total.item() for batch in batches]
            plain = [task.objective.loss(task.model, batch, True).total.item() for batch in batches]
            assert found == pytest.approx([found[0]] * 3, rel=1e-5), name
            assert found[0] > plain[0] + 1e-4 and plain == pytest.approx([plain[0]] * 3, rel=1e-5), name


@pytest.mark.parametrize("objective", ALL)
def test_a_copy_of_the_teacher_has_nothing_to_learn(objective: str, tmp_path: Path) -> None:
    settings = {"weight": 1, "cosine": 1, "hidden": {0: 0}, "attention": {0: 0}}
    if objective in PAIRS:
        settings |= {name: {"encoder": {0: 0}, "decoder": {1: 1}} for name in ("hidden", "attention")}
    task = ready(taught(tmp_path, objective, settings, model__num_layers=4, train__init_from=str(tmp_path / "teacher")))
    assert loss_of(task)[0] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("objective", ALL)
def test_gradients_reach_only_the_student(objective: str, tmp_path: Path) -> None:
    settings = {"weight": 1, "cosine": 1, "projection": True}
    task = ready(taught(tmp_path, objective, settings, d_model=12))
    assert task.distillation is not None and task.objective.module is not None
    before = {name: tensor.clone() for name, tensor in task.distillation.teacher.state_dict().items()}
    task.distillation.loss(task.model, first_batch(task)).total.backward()
    assert not task.distillation.teacher.training
    assert all(one.grad is None and not one.requires_grad for one in task.distillation.teacher.parameters())
    assert all(torch.equal(before[name], one) for name, one in task.distillation.teacher.state_dict().items())
    reached = [one.grad for one in task.trained.parameters()]
    assert all(grad is not None for grad in reached)
    assert next(task.objective.module.parameters()).shape == (8, 12)


# whole runs


@pytest.mark.full
@pytest.mark.parametrize("objective", some(ALL))
def test_a_student_of_each_objective_is_trained(objective: str, tmp_path: Path) -> None:
    run = trained(taught(tmp_path, objective, {"cosine": 1}), tmp_path / "student")
    plain = trained(recipe(tmp_path, objective), tmp_path / "plain")
    assert run.model.state_dict().keys() == plain.model.state_dict().keys()
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] > 0 for line in lines)
    valid = run.evaluate("valid")["loss"]
    assert lines[-1]["valid.loss"] == pytest.approx(valid, rel=1e-5)  # of the objective alone


@pytest.mark.full
def test_a_transformer_teaches_a_recurrent_student(tmp_path: Path) -> None:
    loaded = taught(tmp_path, "causal_lm", {"weight": 1})
    student = taught(tmp_path, "causal_lm", {"weight": 1}, model__layer=RECURRENT, model__position="none")
    assert trained(student, tmp_path / "student").model.state_dict().keys() != ready(loaded).model.state_dict().keys()


@pytest.mark.full
def test_resume_sees_a_changed_teacher(tmp_path: Path) -> None:
    trained(taught(tmp_path), tmp_path / "student")
    (tmp_path / "teacher").rename(tmp_path / "moved")
    moved = {"run": str(tmp_path / "moved")}
    longer = recipe(tmp_path, train__teacher=moved, train__steps=4)
    trained(longer, tmp_path / "student", resume=True)  # elsewhere, and the same
    other = {**moved, "temperature": 1.0}
    with pytest.raises(RunError, match=r"train\.teacher\.temperature: 2\.0 in the run, 1\.0 in the recipe"):
        trained(recipe(tmp_path, train__teacher=other, train__steps=6), tmp_path / "student", resume=True)
    trained(recipe(tmp_path, layers=4, train__seed=6), tmp_path / "moved", force=True)
    with pytest.raises(RunError, match=r"the teacher's model\.safetensors has changed .*train\.teacher"):
        trained(recipe(tmp_path, train__teacher=moved, train__steps=6), tmp_path / "student", resume=True)


# refusals, before anything is computed


def test_wrong_teachers_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.teacher\.run: no such run folder: .*nowhere"):
        ready(recipe(tmp_path, train__teacher={"run": str(tmp_path / "nowhere")}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match=r"train\.teacher\.run: .*resolved\.yaml: is missing; a teacher must be"):
        ready(recipe(tmp_path, train__teacher={"run": str(tmp_path / "empty")}))
    words = {"type": "word", "special_tokens": SPECIAL}
    refused(tmp_path, "train.teacher.run: ", "has another vocabulary", "use its tokenizer", data__tokenizer=words)
    refused(tmp_path, "predicts 23 ids, this model 50; set model.vocab_size: 23", model__vocab_size=50)
    refused(tmp_path, "accepts 40 tokens, but rows have up to", model__max_length=99, data__train__file=_long(tmp_path))


def _long(folder: Path) -> str:
    file = folder / "long.jsonl"
    file.write_text((folder / "examples.jsonl").read_text() + json.dumps({**EXAMPLES[0], "text": "one two " * 8}))
    return str(file)


def test_a_teacher_of_another_kind_is_refused(tmp_path: Path) -> None:
    taught(tmp_path, "causal_lm")
    settings = {"run": str(tmp_path / "teacher")}
    for objective, said in (
        ("masked_lm", "is a causal stack (model.type: decoder); 'masked_lm' requires a bidirectional stack"),
        ("classification", "has a head of type 'language_model'; 'classification' requires classifier"),
        ("classification", "has other labels: none; the training corpus has f, o, s, t"),
        ("seq2seq", "'seq2seq' requires an encoder_decoder"),
    ):
        with pytest.raises(RecipeError) as error:
            ready(recipe(tmp_path, objective, train__teacher=settings))
        assert said in str(error.value)


def test_layers_and_widths_are_refused_at_their_place(tmp_path: Path) -> None:
    def said(text: str, settings: dict[str, Any], **changes: Any) -> None:
        refused(tmp_path, text, teacher=settings, **changes)

    said("train.teacher.hidden.0: ", {"hidden": {0: 4}})
    said("has no layer 4: its decoder has layers 0 to 3", {"hidden": {0: 4}})
    said("train.teacher.hidden.2: no layer 2: the decoder has layers 0 to 1", {"hidden": {2: 0}})
    said("has d_model 8, this model 12; set projection: true", {"cosine": 1}, d_model=12)
    said("train.teacher.hidden.1: ", {"hidden": {1: 0}}, d_model=12)
    said("has 2 heads in layer 3, this model 4", {"attention": {0: 3}}, model__layer__attention__num_heads=4)
    said("has no self-attention that exposes its weights", {"attention": {0: 3}}, model__layer=RECURRENT)
    said("the teacher has no effect; set a positive weight", {"weight": 0})
    said("the model has no encoder; its stack is the decoder", {"hidden": {"encoder": {0: 0}}})
    said("train.teacher.temperature: ", {"temperature": 0})
    said("train.teacher.weight: ", {"weight": 1.5})


def test_objectives_that_no_teacher_serves(tmp_path: Path) -> None:
    taught(tmp_path)
    with pytest.raises(RecipeError, match=r"train\.teacher: 'span' cannot learn from a teacher; objectives that can"):
        recipe(tmp_path, "span", train__teacher={"run": str(tmp_path / "teacher")})
    with pytest.raises(RecipeError, match=r"train\.teacher\.sequences: 'causal_lm' has no targets"):
        taught(tmp_path, teacher={"sequences": "beam"})
    with pytest.raises(RecipeError, match=r"train\.teacher\.sequences: 'sample' samples"):
        recipe(tmp_path, "completion", train__teacher={"run": str(tmp_path / "teacher"), "sequences": "sample"})


# the teacher's own texts


@pytest.mark.full
@pytest.mark.parametrize("objective", ["seq2seq", "completion"])
def test_targets_are_written_once(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"weight": 0, "sequences": {"type": "beam", "num_beams": 2}}
    loaded = taught(tmp_path, objective, settings)
    task = ready(loaded)
    teacher = Run(tmp_path / "teacher", recipe(tmp_path, objective, layers=4))
    best = teacher.generate([one["source"] for one in EXAMPLES], num_beams=2)
    assert task.distillation is None
    assert {task.tokenizer.decode(item["target"]) for item in task.train.items} == {text for text in best if text}
    assert task.valid is not None and len(task.valid.items) == len(EXAMPLES)  # these keep their own targets

    (file,) = (tmp_path / "teacher" / "sequences").iterdir()
    monkeypatch.setattr("tfkit.training.teacher._written", None)
    stream = io.StringIO()
    prepare(loaded, Reporter(True, stream))
    assert f"6 targets generated by the teacher, cached in {file}" in stream.getvalue().replace("\n", " ")
    trained(loaded, tmp_path / "student")
    with pytest.raises(TypeError):  # another search is another file
        ready(taught(tmp_path, objective, settings, generate__max_new_tokens=5))
    whole = file.read_text()
    file.write_text("{}")
    with pytest.raises(RunError, match=r"does not contain the targets of these examples; delete it"):
        ready(loaded)
    written = json.loads(whole)
    file.write_text(json.dumps({**written, "targets": ["the cat" for _ in written["targets"]]}))
    with pytest.raises(
        RunError, match=r"json: has changed, or does not contain the targets of these examples; delete it"
    ):
        ready(loaded)
    elsewhere = shutil.move(file.parent, tmp_path / "elsewhere")
    for make in (lambda: file.parent.symlink_to(elsewhere), lambda: file.parent.write_text("")):
        make()
        with pytest.raises(RunError, match=r"sequences: is a link, or not a folder; remove it"):
            ready(loaded)
        file.parent.unlink()
    assert [one.name for one in elsewhere.iterdir()] == [file.name]


@pytest.mark.full
def test_a_teacher_with_two_vocabularies_writes_targets(tmp_path: Path) -> None:
    two = {side: {"type": "character", "special_tokens": SPECIAL} for side in ("source", "target")}
    own = recipe(tmp_path, "seq2seq", layers=4, data__tokenizer=two)
    teacher = train(own, out=tmp_path / "teacher", progress=False)
    task = ready(taught(tmp_path, "seq2seq", {"weight": 0, "sequences": "greedy"}, data__tokenizer=two))
    best = teacher.generate([one["source"] for one in EXAMPLES], strategy="greedy")
    assert {task.tokenizer.decode(item["target"]) for item in task.train.items} == {text for text in best if text}


def test_the_trainer_takes_the_loss_of_the_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = ready(taught(tmp_path))
    assert task.distillation is not None
    calls: list[Batch] = []
    whole = task.distillation.loss
    monkeypatch.setattr(task.distillation, "loss", lambda model, batch: calls.append(batch) or whole(model, batch))
    (tmp_path / "run").mkdir()
    Trainer(task, RunFolder(tmp_path / "run"), Reporter(False)).run()
    assert len(calls) == 2
