"""Classifiers of theirs: what their pipelines say of a text, a run says too, in the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tfkit
from tfkit.core.errors import DataError, UsageError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model

from ..sampling import some
from .made import BART, SIZE, T5, command, said, theirs_of, with_tokenizer
from .parity import padded, randomise
from .rows import TINY

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
MOODS = {0: "sad", 1: "neither", 2: "glad"}
TAGS = {0: "O", 1: "B-place", 2: "I-place", 3: "B-name"}
TEXTS = ["w1 w2 w3 w4 w5 w6 w7", "w9", "w8 w30 w8 w2 w1"]
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
NARROW = {**TINY, "embedding_size": 12}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": TINY, "Roberta": {**TINY, "type_vocab_size": 1}, "DistilBert": DISTILBERT, "Electra": NARROW,
    "Albert": NARROW,
}  # fmt: skip
PAIRED: dict[str, dict[str, Any]] = {"Bart": BART, "MBart": BART, "PLBart": BART, "Mvp": BART}
PAIRED |= dict.fromkeys(("T5", "MT5", "UMT5"), T5)
SOME_ENCODERS, SOME_PAIRED = (
    [name if name in ("Roberta", "Bart", "T5") else pytest.param(name, marks=pytest.mark.slow) for name in names]
    for names in (ENCODERS, PAIRED)
)
TYPES = ("Bert", "Electra", "Albert")  # whose two texts are of two token types
# BERT's two texts have one token between them, RoBERTa's have two
FRAME, ONE, TWO = "<s> $A </s>", "<s> $A </s> $B:1 </s>:1", "<s> $A </s> </s> $B </s>"


def made(folder: Path, name: str, end: str, settings: dict[str, Any], labels: dict[int, str], **more: Any) -> Path:
    """A model of theirs with random weights and named classes, with a tokenizer that frames a text."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    numbers = {label: number for number, label in labels.items()}
    config = getattr(transformers, f"{name}Config")(
        **{"vocab_size": SIZE, **settings, "id2label": labels, "label2id": numbers, **more}
    )
    model = getattr(transformers, f"{name}{end}")(config)
    randomise(model, 0.3)
    model.save_pretrained(folder)
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if name in TYPES else ["input_ids", "attention_mask"]
    more = {"cls_token": "<s>", "sep_token": "</s>", "model_input_names": inputs}
    return with_tokenizer(folder, FRAME, TWO if name == "Roberta" else ONE, **more)


def pipeline(task: str, folder: Path, loader: str, **options: Any) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.pipeline(task, model=theirs_of(folder, loader), tokenizer=tokenizer, **options)


def imported(folder: Path, run: Path) -> tfkit.Run:
    import_model(str(folder), run)
    return tfkit.load_run(run)


def back_to_the_bit(run: tfkit.Run, folder: Path, target: Path) -> dict[str, Any]:
    """What is exported again: its weights are those of `folder`; gives its config."""
    done = export_model(run, target)
    assert done.family_config is not None
    before, after = (load_file(place / "model.safetensors") for place in (folder, target))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    config: dict[str, Any] = json.loads((target / "config.json").read_text())
    return config


def compared(run: tfkit.Run, folder: Path) -> str:
    """The last place that `tfkit verify` found equal."""
    result = command("verify", run.folder, "--against", folder, "--json")
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["differences"][-1]["place"])


def class_of(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text())["architectures"][0])


@pytest.mark.full
@pytest.mark.parametrize("name", SOME_ENCODERS)
def test_the_labels_and_probabilities_of_their_pipeline(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", name, "ForSequenceClassification", ENCODERS[name], MOODS)
    run = imported(folder, tmp_path / "run")
    assert json.loads((run.folder / "labels.json").read_text()) == list(MOODS.values())
    says = pipeline("text-classification", folder, "AutoModelForSequenceClassification", top_k=None)
    pair = {"text": TEXTS[0], "text_pair": TEXTS[2]}
    mine = run.predict([*TEXTS])
    mine += run.predict({"text": TEXTS[0], "second": TEXTS[2]})
    for one, theirs in zip(mine, [*says(TEXTS), says(pair)], strict=True):
        assert list(one["labels"]) == [each["label"] for each in theirs]
        assert list(one["labels"].values()) == pytest.approx([each["score"] for each in theirs], abs=1e-5)
        assert (one["label"], one["probability"]) == next(iter(one["labels"].items()))
    config = back_to_the_bit(run, folder, tmp_path / "back")
    assert config["id2label"] == {str(number): label for number, label in MOODS.items()}
    assert config["label2id"] == {label: number for number, label in MOODS.items()}


@pytest.mark.full
@pytest.mark.parametrize("name", SOME_ENCODERS)
def test_the_tags_of_their_pipeline(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", name, "ForTokenClassification", ENCODERS[name], TAGS)
    run = imported(folder, tmp_path / "run")
    assert run.labels == tuple(TAGS.values())
    says = pipeline("token-classification", folder, "AutoModelForTokenClassification", ignore_labels=[])
    for one, theirs in zip(run.predict(TEXTS), says(TEXTS), strict=True):
        assert one["words"] == [each["word"] for each in theirs]
        assert one["tags"] == [each["entity"] for each in theirs]
        assert one["probabilities"] == pytest.approx([each["score"] for each in theirs], abs=1e-5)
    back_to_the_bit(run, folder, tmp_path / "back")


@pytest.mark.full
@pytest.mark.parametrize("name", SOME_ENCODERS)
def test_the_answers_of_their_model(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", name, "ForQuestionAnswering", ENCODERS[name], {0: "a", 1: "b"})
    run = imported(folder, tmp_path / "run")
    assert not (run.folder / "labels.json").exists()
    question, context = TEXTS[1:]
    found = run.predict({"question": question, "context": context})[0]
    batch = transformers.AutoTokenizer.from_pretrained(folder)(question, context, return_tensors="pt")
    with torch.no_grad():
        out = theirs_of(folder, "AutoModelForQuestionAnswering")(**batch)
    inside = torch.tensor([which == 1 for which in batch.sequence_ids(0)])
    begins, ends = (logits[0, inside].log_softmax(0) for logits in (out.start_logits, out.end_logits))
    best = (begins[:, None] + ends[None, :]).masked_fill(~torch.ones(5, 5).triu().bool(), -torch.inf)
    begin, end = divmod(int(best.argmax()), 5)
    assert found["answer"] == " ".join(context.split()[begin : end + 1])
    assert found["probability"] == pytest.approx(float(best.max().exp()), abs=1e-5)
    assert compared(run, folder) == "logits"
    back_to_the_bit(run, folder, tmp_path / "back")


@pytest.mark.full
@pytest.mark.parametrize("name", SOME_PAIRED)
def test_an_encoder_decoder_reads_the_text_twice(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", name, "ForSequenceClassification", PAIRED[name], MOODS)
    run = imported(folder, tmp_path / "run")
    ids, real = padded([9, 4, 6], "right")
    for row, length in enumerate(real.sum(dim=1).tolist()):
        ids[row, length - 1] = 3  # whose place in the decoder stands for the text
    model = theirs_of(folder, "AutoModelForSequenceClassification")
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    again = torch.cat((start, ids[:, :-1]), dim=1)
    with torch.no_grad():
        theirs = model(ids, attention_mask=real, decoder_input_ids=again).logits
        ours = run.model(ids, attention_mask=real, decoder_input_ids=again, decoder_attention_mask=real).logits
    assert ours is not None
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    if name in ("Bart", "T5"):  # the others begin their decoders otherwise when they are given no such ids
        says = pipeline("text-classification", folder, "AutoModelForSequenceClassification", top_k=None)
        for one, each in zip(run.predict(TEXTS), says(TEXTS), strict=True):
            assert one["labels"] == pytest.approx({label["label"]: label["score"] for label in each}, abs=1e-5)
    assert back_to_the_bit(run, folder, tmp_path / "back")["id2label"]["2"] == "glad"
    assert compared(run, folder) == "logits"


@pytest.mark.full
@pytest.mark.parametrize(("name", "end"), [("T5", "ForTokenClassification"), ("MT5", "ForTokenClassification")])
def test_the_encoder_of_a_pair_tags_tokens(name: str, end: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", name, end, T5, TAGS)
    run = imported(folder, tmp_path / "run")
    says = pipeline("token-classification", folder, "AutoModelForTokenClassification", ignore_labels=[])
    for one, theirs in zip(run.predict(TEXTS), says(TEXTS), strict=True):
        assert one["tags"] == [each["entity"] for each in theirs]
        assert one["probabilities"] == pytest.approx([each["score"] for each in theirs], abs=1e-5)
    back_to_the_bit(run, folder, tmp_path / "back")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Bart", "MBart", "Mvp", "T5"])
def test_the_decoder_of_a_pair_finds_answers(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", name, "ForQuestionAnswering", PAIRED[name], {0: "a", 1: "b"})
    run = imported(folder, tmp_path / "run")
    ids = padded([9, 9], "right")[0]
    model = theirs_of(folder, "AutoModelForQuestionAnswering")
    with torch.no_grad():
        out = model(ids, decoder_input_ids=ids.roll(1, 1))
        ours = run.model(ids, decoder_input_ids=ids.roll(1, 1)).logits
    assert ours is not None
    theirs = torch.stack((out.start_logits, out.end_logits), dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    assert run.predict({"question": "w1 w2", "context": "w5 w6 w7"})[0]["answer"].startswith("w")
    back_to_the_bit(run, folder, tmp_path / "back")


def test_a_text_is_framed_as_its_tokenizer_frames_it(tmp_path: Path) -> None:
    """A decoder's may add nothing, and the last token of the text stands for it."""
    folder = made(tmp_path / "theirs", "GPTNeoX", "ForSequenceClassification", TINY, MOODS)
    with_tokenizer(folder, template="")
    run = imported(folder, tmp_path / "run")
    says = pipeline("text-classification", folder, "AutoModelForSequenceClassification", top_k=None)
    for one, theirs in zip(run.predict(TEXTS), says(TEXTS), strict=True):
        assert one["labels"] == pytest.approx({each["label"]: each["score"] for each in theirs}, abs=1e-5)


def test_classes_that_nobody_named_are_called_as_theirs_calls_them(tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", "Bert", "ForSequenceClassification", TINY, {0: "a", 1: "b"})
    said(folder, id2label=None, label2id=None)
    run = imported(folder, tmp_path / "run")
    says = pipeline("text-classification", folder, "AutoModelForSequenceClassification", top_k=1)
    assert run.labels == ("LABEL_0", "LABEL_1")
    assert [one["label"] for one in run.predict(TEXTS)] == [one[0]["label"] for one in says(TEXTS)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("labels", "problem"),
    [(MOODS, "multi_label_classification"), ({0: "LABEL_0"}, None), ({0: "score"}, "regression")],
    ids=["several", "one", "number"],
)
def test_what_the_outputs_mean(labels: dict[int, str], problem: str | None, tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", "Bert", "ForSequenceClassification", TINY, labels, problem_type=problem)
    run = imported(folder, tmp_path / "run")
    says = pipeline("text-classification", folder, "AutoModelForSequenceClassification", top_k=None)
    for one, theirs in zip(run.predict(TEXTS), says(TEXTS), strict=True):
        scores = {each["label"]: each["score"] for each in theirs}
        if problem == "regression":
            assert one["value"] == pytest.approx(scores["score"], abs=1e-5)
        else:
            assert one["labels"] == pytest.approx(scores, abs=1e-5)
    config = back_to_the_bit(run, folder, tmp_path / "back")
    assert config.get("problem_type") == problem
    assert compared(run, folder) == "logits"


@pytest.mark.full
def test_several_numbers_of_a_text(tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", "Bert", "ForSequenceClassification", TINY, MOODS, problem_type="regression")
    run = imported(folder, tmp_path / "run")
    (found,) = run.predict(TEXTS[:1])
    theirs = pipeline("text-classification", folder, "AutoModelForSequenceClassification", top_k=None)(TEXTS[:1])
    assert found["values"] == pytest.approx({each["label"]: each["score"] for each in theirs[0]}, abs=1e-5)
    assert back_to_the_bit(run, folder, tmp_path / "back")["problem_type"] == "regression"


@pytest.mark.parametrize("labels", [{"0": "a", "1": "a"}, {"0": "a", "5": "b"}])
def test_names_that_are_not_one_a_class(labels: dict[str, str], tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", "Bert", "ForSequenceClassification", TINY, {0: "a", 1: "b"})
    said(folder, id2label=labels)
    with pytest.raises(DataError, match="id2label: expected distinct names for the classes 0 to 1"):
        import_model(str(folder), tmp_path / "run")


def test_the_command_names_the_labels(tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", "Bert", "ForTokenClassification", TINY, {0: "noun", 1: "verb"})
    import_model(str(folder), tmp_path / "run")
    words = command("predict", tmp_path / "run", "w1 w2").stdout.split()
    assert [word.partition("/")[0] for word in words] == ["w1", "w2"]
    assert {word.partition("/")[2] for word in words} <= {"noun", "verb"}


@pytest.mark.full
def bert(folder: Path, columns: list[str] | str, head: dict[str, Any], objective: Any) -> tfkit.Run:
    """Train a model with BERT's parts on the table data.csv."""
    corpus = {"type": "csv", "file": str(folder / "data.csv"), "fields": {"text": "text", "label": columns}}
    recipe = {
        "tfkit": 1,
        "model": {
            "type": "encoder", "d_model": 16, "num_layers": 1, "vocab_size": "tokenizer", "max_length": 12,
            "embedding": {"type": "tokens", "segments": 2, "norm": True}, "position": "learned",
            "layer": {
                "residual": "post_norm", "norm": {"type": "layer_norm", "eps": 1e-12},
                "attention": {"type": "multi_head", "num_heads": 2},
                "feedforward": {"type": "mlp", "d_ff": 16, "activation": "gelu"},
            },
            "head": {"activation": "tanh", **head},
        },
        "data": {"tokenizer": "word", "train": corpus, "batch": {"size": 4}},
        "objective": objective,
        "train": {"device": "cpu", "steps": 2, "schedule": {"type": "constant", "lr": 0.01}, "optimizer": "adam"},
    }  # fmt: skip
    return tfkit.train(recipe, out=folder / "run", force=True, progress=False)


TABLE = "text,mood,mass,charge,tags\nw1 w2,good,100,1,a|b\nw3,bad,300,-1,\nw2 w1,good,200,,b\nw3 w4,bad,200,2,a\n"


def test_what_was_trained_here_takes_its_labels_along(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(TABLE)
    run = bert(tmp_path, "mood", {"type": "classifier", "num_classes": "labels"}, "classification")
    assert export_model(run, tmp_path / "theirs").family_config is not None
    assert class_of(tmp_path / "theirs") == "BertForSequenceClassification"
    says = pipeline("text-classification", tmp_path / "theirs", "AutoModelForSequenceClassification", top_k=None)
    mine = run.predict("w1 w2")[0]
    assert mine["labels"] == pytest.approx({each["label"]: each["score"] for each in says(["w1 w2"])[0]}, abs=1e-5)


@pytest.mark.full
def test_several_numbers_and_labels_in_their_classes(tmp_path: Path) -> None:
    """The mean and deviation of targets are in the weights of their output, which have no others."""
    (tmp_path / "data.csv").write_text(TABLE)
    several = {"type": "classifier", "num_classes": "labels"}
    for columns, head, objective, problem, names in (
        (["mass", "charge"], {"type": "regression", "num_targets": "labels"}, "regression", "regression",
         ["mass", "charge"]),
        ("mass", {"type": "regression", "standardize": True}, "regression", "regression", ["LABEL_0"]),
        (["tags"], {**several, "independent": True}, {"type": "classification", "multi_label": True},
         "multi_label_classification", ["a", "b"]),
    ):  # fmt: skip
        run = bert(tmp_path, columns, head, objective)
        assert export_model(run, tmp_path / "theirs", force=True).family_config is not None
        config = json.loads((tmp_path / "theirs" / "config.json").read_text())
        assert config["problem_type"] == problem and list(config["id2label"].values()) == names
        assert compared(run, tmp_path / "theirs") == "logits"
        ids = torch.tensor([[3, 4, 5]])
        theirs: Any = theirs_of(tmp_path / "theirs", "AutoModelForSequenceClassification")
        with torch.no_grad():
            ours = run.model(ids).logits
            torch.testing.assert_close(theirs(ids).logits.reshape(ours.shape), ours, rtol=1e-5, atol=1e-4)
        import_model(str(tmp_path / "theirs"), tmp_path / "back", force=True)
        back = tfkit.load_run(tmp_path / "back")
        (mine,), (again,) = run.predict(["w1 w2"]), back.predict(["w1 w2"])
        for key in ("value", "values", "labels"):
            assert (key in mine) == (key in again) and again.get(key, 0) == pytest.approx(mine.get(key, 0), rel=1e-5)
    run = bert(tmp_path, ["mood", "tags"], several, "classification")
    with pytest.raises(UsageError, match="no problem_type for several classification targets; train one run for each"):
        export_model(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# what their files may leave out


@pytest.mark.full
@pytest.mark.parametrize("name", some(["Bert", "Roberta", "Albert", "MPNet"]))
def test_a_base_model_without_a_pooler(name: str, tmp_path: Path) -> None:
    settings = ENCODERS.get(name, TINY)
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": SIZE, **settings})
    model = getattr(transformers, f"{name}Model")(config, add_pooling_layer=False)
    randomise(model, 0.3)
    model.save_pretrained(tmp_path / "theirs")
    result = command("import", tmp_path / "theirs", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "omitted pooler: the files have no weights for it" in result.stdout
    run = tfkit.load_run(tmp_path / "run")
    assert not run.model.heads
    ids = padded([9, 9], "right")[0]
    with torch.no_grad():
        theirs = model.eval()(ids).last_hidden_state
        torch.testing.assert_close(run.model(ids).hidden, theirs, rtol=1e-4, atol=1e-5)
    back_to_the_bit(run, tmp_path / "theirs", tmp_path / "back")
    assert class_of(tmp_path / "back") == f"{name}Model"


def test_half_a_pooler_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    model: nn.Module = transformers.BertModel(transformers.BertConfig(**{"vocab_size": SIZE, **TINY}))
    model.save_pretrained(folder)  # type: ignore[operator]
    tensors = load_file(folder / "model.safetensors")
    del tensors["pooler.dense.bias"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"missing in the files: heads\.pooler\.dense\.bias"):
        import_model(str(folder), tmp_path / "run")
