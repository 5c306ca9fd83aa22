"""`tfkit.as_pretrained`: transformers' Trainer and generate take a model of ours as one of theirs."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, pad

import tfkit
from tfkit.core.errors import UsageError

from ..sampling import looped
from .made import theirs_of, tokens

transformers = pytest.importorskip("transformers", reason="the wrapper is transformers', which the extra test brings")
pytestmark = pytest.mark.usefixtures("modules")

STACK = {
    "d_model": 32,
    "vocab_size": 61,
    "max_length": 32,
    "embedding": {"type": "tokens", "shared": False},
    "position": "sinusoidal",
    "layer": {
        "residual": "sandwich",
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 4},
        "feedforward": {"type": "mlp", "d_ff": 48},
    },
    "special_ids": {"pad": 1, "start": 2, "end": 3},
}
ONE = {**STACK, "num_layers": 2, "embedding": "tokens"}
LM = {"type": "language_model", "tied": True}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"type": "decoder", **ONE, "head": LM},
    "masked_lm": {"type": "encoder", **ONE, "head": {"type": "masked_lm", "tied": True}},
    "classifier": {"type": "encoder", **ONE, "head": {"type": "classifier", "num_classes": 3}},
    "token_classifier": {"type": "encoder", **ONE, "head": {"type": "token_classifier", "num_classes": 5}},
    "pair": {
        "type": "encoder_decoder", **STACK, "encoder": {"num_layers": 2}, "decoder": {"num_layers": 3}, "head": LM,
    },
}  # fmt: skip
LOADERS = {
    "decoder": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "classifier": "AutoModelForSequenceClassification",
    "token_classifier": "AutoModelForTokenClassification",
    "pair": "AutoModelForSeq2SeqLM",
}


def built(name: str, seed: int = 0) -> Any:
    return tfkit.build({"tfkit": 1, "model": MODELS[name]}, seed=seed)


def example(name: str) -> dict[str, torch.Tensor]:
    """A batch of two texts with labels, as a data collator gives it."""
    ids = tokens(2, 6) % 61
    classes = {"classifier": torch.tensor([0, 2]), "token_classifier": ids % 5}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": classes.get(name, ids)}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_same_model_with_a_loss(name: str) -> None:
    model, batch = built(name), example(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    hf = tfkit.as_pretrained(model)
    assert isinstance(hf, transformers.PreTrainedModel) and hf.model is model and hf.training is model.training
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    hf.eval()
    more = {}
    if name == "pair":  # the target after the start token
        more["decoder_input_ids"] = torch.cat((torch.full((2, 1), 2), batch["labels"][:, :-1]), 1)
    with torch.no_grad():
        out = hf(**batch)
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], **more).logits
    assert torch.equal(out["logits"], logits) and out[0] is out.loss
    shift = slice(1, None) if name == "decoder" else slice(None)
    wanted, given = batch["labels"], logits
    if name == "decoder":
        wanted, given = wanted[:, shift], given[:, :-1]
    torch.testing.assert_close(out.loss, cross_entropy(given.reshape(-1, given.shape[-1]), wanted.reshape(-1)))


@looped(("name", "position"), itertools.product(("decoder", "masked_lm", "pair"), ("learned", "sinusoidal", "alibi")))
def test_padding_before_a_text_changes_nothing(name: str, position: str) -> None:
    model = tfkit.build({"tfkit": 1, "model": {**MODELS[name], "position": position}}, seed=0).double().eval()
    more = {"decoder_input_ids": tokens(1, 3)} if name == "pair" else {}
    ids, real = tokens(1, 5), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    for net in (model, tfkit.as_pretrained(model)):
        alone = net(ids, **more).logits
        logits = net(pad(ids, (3, 0), value=1), attention_mask=real, **more).logits
        torch.testing.assert_close(logits[:, -alone.shape[1] :], alone)


@pytest.mark.full
@pytest.mark.parametrize("name", ["decoder", *(pytest.param(name, marks=pytest.mark.slow) for name in [*MODELS][1:])])
def test_it_saves_itself_and_its_code(name: str, tmp_path: Path) -> None:
    hf, batch, folder = tfkit.as_pretrained(built(name)).eval(), example(name), tmp_path / "saved"
    logits = hf(**batch).logits
    hf.save_pretrained(folder)
    again = theirs_of(folder, LOADERS[name], trust_remote_code=True)
    for loaded in (again, type(hf).from_pretrained(folder).eval()):
        torch.testing.assert_close(loaded(**batch).logits, logits)
    again.save_pretrained(tmp_path / "again")
    for file in ("modeling_tfkit.py", "tfkit_sources.py"):
        assert (tmp_path / "again" / file).read_text() == (folder / file).read_text()


@pytest.mark.parametrize("name", ["decoder", "masked_lm", "pair"])
def test_attentions_of_each_layer(name: str) -> None:
    model, ids = built(name), tokens(2, 6) % 61
    hf = tfkit.as_pretrained(model).eval()
    if name == "pair":
        out = hf(ids, decoder_input_ids=ids[:, :4], output_attentions=True)
        found = [
            (out.encoder_attentions, 2, (6, 6)), (out.decoder_attentions, 3, (4, 4)), (out.cross_attentions, 3, (4, 6)),
        ]  # fmt: skip
    else:
        out = hf(ids, output_attentions=True)
        found = [(out.attentions, 2, (6, 6))]
        for theirs, ours in zip(out.attentions, model(ids, observe={"attention"}).observed.values(), strict=True):
            torch.testing.assert_close(theirs, ours)
    for weights, layers, (queries, keys) in found:
        assert [tuple(each.shape) for each in weights] == [(2, 4, queries, keys)] * layers
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 4, queries))
    assert "attentions" not in hf(ids[:, :3], **({"decoder_input_ids": ids[:, :3]} if name == "pair" else {}))
    with pytest.raises(ValueError, match="output_hidden_states is not supported"):
        hf(ids, output_hidden_states=True)


def test_what_hands_out_no_weights_says_so() -> None:
    layer = {**MODELS["decoder"]["layer"], "attention": {"type": "linear", "num_heads": 4}}
    model = tfkit.build({"tfkit": 1, "model": {**MODELS["decoder"], "layer": layer}})
    with pytest.raises(tfkit.TfkitError, match=r"exposes attention weights: decoder\.layers\.0\.attention \(linear\)"):
        tfkit.as_pretrained(model)(tokens(1, 4), output_attentions=True)


@pytest.mark.parametrize("name", ["decoder", "pair"])
def test_generate_writes_what_tfkit_writes(name: str) -> None:
    model = built(name).eval()
    hf, ids = tfkit.as_pretrained(model), tokens(2, 5) % 61
    written = hf.generate(ids, max_new_tokens=7, do_sample=False, eos_token_id=None, pad_token_id=1)
    so_far = ids if name == "decoder" else torch.full((2, 1), 2)
    for _ in range(7):
        call = {"input_ids": so_far} if name == "decoder" else {"input_ids": ids, "decoder_input_ids": so_far}
        so_far = torch.cat((so_far, model(**call).logits[:, -1:].argmax(-1)), 1)
    assert written.tolist() == so_far.tolist()


def test_what_is_no_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"as_pretrained needs a run or a model from tfkit\.build, got a Linear"):
        tfkit.as_pretrained(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    without = {key: value for key, value in MODELS["pair"].items() if key != "special_ids"}
    hf = tfkit.as_pretrained(tfkit.build({"tfkit": 1, "model": without}))
    with pytest.raises(
        ValueError, match=r"config\.decoder_start_token_id is not set; set it, or pass decoder_input_ids"
    ):
        hf(**example("pair"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"tfkit\.as_pretrained needs the package transformers: pip install"):
        tfkit.as_pretrained(built("decoder"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_trainer_trains_saves_and_goes_on(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs accelerate, which no extra brings: pip install accelerate")
    model, batch = built(name), example(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    rows = [{key: tensor[row] for key, tensor in batch.items()} for row in (0, 1)] * 4
    hf = tfkit.as_pretrained(model)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=0.001,
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
    )
    trainer = transformers.Trainer(model=hf, args=arguments, train_dataset=rows, eval_dataset=rows)
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses[-1] < first
    assert any(not torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    trainer.save_model(str(tmp_path / "best"))
    loaded = theirs_of(tmp_path / "best", LOADERS[name], trust_remote_code=True)
    torch.testing.assert_close(loaded(**batch).logits, hf.eval()(**batch).logits)
    arguments.max_steps = 3
    transformers.Trainer(model=hf, args=arguments, train_dataset=rows, eval_dataset=rows).train(
        resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2")
    )
