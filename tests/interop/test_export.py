"""`tfkit export`: what transformers loads is what the run computes, with its own classes or with the folder's code."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import tfkit
from tfkit.core.errors import RunError
from tfkit.interop.huggingface.blame import Watched
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.families.llama import Llama
from tfkit.interop.huggingface.family import family_of, merged
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.matching import matching_family
from tfkit.interop.huggingface.verifying import verify
from tfkit.recipe.load import load_recipe
from tfkit.recipe.model import blueprint_of
from tfkit.run import Run

from ..sampling import looped, some, some_rows
from .made import SIZE, command, hidden, model_folder, said, theirs_of, tokens, with_tokenizer
from .parity import VOCABULARY, Row, make
from .rows import ROWS

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
pytestmark = pytest.mark.usefixtures("modules")

LAYER = {
    "residual": "sandwich",
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 4},
    "feedforward": {"type": "mlp", "d_ff": 48, "activation": "gelu"},
}
MODEL = {
    "d_model": 32,
    "vocab_size": "tokenizer",
    "max_length": 64,
    "num_layers": 2,
    "embedding": {"type": "tokens", "shared": False},
    "position": "sinusoidal",
    "layer": LAYER,
}
TRAIN = {"device": "cpu", "steps": 1, "optimizer": "adam", "samples": 0, "evaluate_every": 1, "checkpoint_every": 1}
TEXTS = {"type": "docstrings", "split": "train", "limit": 8}
ISOLATED = (
    hidden("tfkit")
    + """
import json, torch, transformers
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
out = model(torch.tensor(json.loads(sys.argv[2]))).logits
torch.save({"logits": out}, sys.argv[3])
"""
)


def trained(folder: Path, model: dict[str, Any], objective: Any = "causal_lm", **data: Any) -> Run:
    """A run of one step, with weights that are no longer those of the beginning."""
    recipe = {
        "tfkit": 1,
        "model": model,
        "data": {"tokenizer": "character", "train": TEXTS, "valid": TEXTS, "batch": {"size": 4}, **data},
        "objective": objective,
        "train": TRAIN,
        "generate": {"max_new_tokens": 5},
    }
    return tfkit.train(recipe, out=folder, progress=False)


def decoder(**changes: Any) -> dict[str, Any]:
    return {"type": "decoder", **MODEL, "head": {"type": "language_model", "tied": True}, **changes}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("own") / "run", decoder())


def model_of(row: Row) -> dict[str, Any]:
    """The `model:` section of their config."""
    config = getattr(transformers, row.config)(**{"vocab_size": VOCABULARY, **row.settings})
    return family_of({"model_type": config.model_type}).recipe(config.to_dict() | {"architectures": [row.model]})


def without(config: Any, key: str) -> Any:
    """Copy a config without a key, in its sections as well."""
    kept = {name: value for name, value in config.items() if name != key}
    return {name: without(value, key) if isinstance(value, dict) else copy.copy(value) for name, value in kept.items()}


@looped("name", [
    "llama-wide", "llama-linear-1", "llama-dynamic-1", "llama-yarn-7", "llama-llama3-4", "llama-longrope-3", "gemma3",
    "glm", "phi", "phi3", "gpt_neox", "falcon", "hunyuan_v1_dense", "cohere", "t5gemma", "apertus", "gpt_oss",
])  # fmt: skip
def test_older_versions_read_the_rotary_settings_too(name: str) -> None:
    """Transformers reads the older keys by themselves as it reads rope_parameters."""
    row = next(row for row in ROWS if name in (row.label, row.family))
    found, _ = matching_family(blueprint_of(model_of(row)), (row.family, row.model))
    assert found is not None and found.family.part_name == row.family and "transformers_version" not in found.config
    kind = transformers.CONFIG_MAPPING[found.config["model_type"]]
    read = [kind(**without(without(found.config, key), "model_type")) for key in ("", "rope_parameters")]
    for side in ("encoder", "decoder") if name == "t5gemma" else ("",):
        new, old = (getattr(config, side, config).rope_parameters for config in read)
        assert old == {key: value for key, value in new.items() if key in old}
        assert {"rope_theta", "rope_type"} <= old.keys() or old.keys() == {"full_attention", "sliding_attention"}
    family = family_of({"model_type": found.config["model_type"]})
    assert family.recipe(watched := Watched(found.config))
    assert not any(key.startswith(("rope_scaling", "rope_theta", "rotary_")) for key in watched.unread())


def test_rotary_settings_that_older_versions_cannot_express(tmp_path: Path) -> None:
    recipe = {"tfkit": 1, "model": model_of(next(row for row in ROWS if row.family == "olmo3"))}
    run = tfkit.save(tfkit.build(recipe, seed=1), recipe, None, tmp_path / "run")
    result = command("export", run.folder, tmp_path / "out")
    assert "needs transformers 5.0.0 or later; older versions compute other rotary positions" in result.stdout
    assert json.loads((tmp_path / "out" / "config.json").read_text())["transformers_version"] == "5.0.0"


def same_logits(run: Run, folder: Path, loader: str = "AutoModelForCausalLM", **options: Any) -> None:
    model = theirs_of(folder, loader, **options)
    ids = tokens(2, 9)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, run.model(ids).logits, rtol=1e-4, atol=1e-4)


# theirs


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "loader"),
    some_rows([("gpt2", "AutoModelForCausalLM"), ("llama", "AutoModelForCausalLM"), ("bert", "AutoModelForMaskedLM")]),
)
def test_there_and_back_is_the_same_to_the_bit(tmp_path: Path, family: str, loader: str) -> None:
    folder = model_folder(tmp_path / "theirs", family)
    import_model(str(folder), tmp_path / "run")
    result = command("export", tmp_path / "run", tmp_path / "back", "--to", "huggingface")
    assert result.exit_code == 0, result.output
    assert f'transformers.{loader}.from_pretrained("{tmp_path / "back"}")' in result.stdout
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    import_model(str(tmp_path / "back"), tmp_path / "again")
    first, second = (tfkit.load_run(tmp_path / name) for name in ("run", "again"))
    assert first.blueprint == second.blueprint
    ours, again = (load_file(place.folder / "model.safetensors") for place in (first, second))
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in again.items())
    same_logits(first, tmp_path / "back", loader)
    with safe_open(tmp_path / "back" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.full
def test_the_tokenizer_and_its_settings_stay(tmp_path: Path) -> None:
    folder = with_tokenizer(model_folder(tmp_path / "theirs", "llama"), model_max_length=33)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    import_model(str(folder), tmp_path / "run")
    export_model(tfkit.load_run(tmp_path / "run"), tmp_path / "back")
    before, after = (json.loads((place / "tokenizer.json").read_text("utf-8")) for place in (folder, tmp_path / "back"))
    assert before == after
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer("w1 w2")["input_ids"] == [2, 6, 7]
    assert (tokenizer.model_max_length, tokenizer.chat_template) == (33, "{{ messages }}")
    pipe = transformers.pipeline("text-generation", str(tmp_path / "back"))
    reply = pipe("w1 w2", max_new_tokens=4, do_sample=False, return_full_text=False)[0]["generated_text"]
    ours = tfkit.load_run(tmp_path / "run").generate("w1 w2", max_new_tokens=4)[0]
    assert reply.strip() == ours.strip()


def test_a_run_that_was_trained_here(tmp_path: Path) -> None:
    layer = {**LAYER, "residual": "pre_norm", "feedforward": {"type": "mlp", "d_ff": 48, "activation": "gelu_tanh"}}
    embedding = {"type": "tokens", "dropout": 0.1}
    run = trained(tmp_path / "run", decoder(position="learned", layer=layer, embedding=embedding, init="xavier"))
    made = export_model(run, tmp_path / "out")
    assert made.family_config is not None
    assert made.family_config.head_class == "GPT2LMHeadModel"
    same_logits(run, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    ids = run.tokenizer.special_ids
    assert (config["pad_token_id"], config["eos_token_id"]) == (ids["pad"], ids["end"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("<pad>", "left")
    assert tokenizer("return it")["input_ids"] == run.read(["return it"])[0]
    assert "tfkit" not in (tmp_path / "out" / "tokenizer.json").read_text("utf-8")
    pipe = transformers.pipeline("text-generation", str(tmp_path / "out"))
    reply = pipe("return", max_new_tokens=5, do_sample=False, return_full_text=False)[0]["generated_text"]
    assert reply == run.generate("return", max_new_tokens=5)[0]


@pytest.mark.full
def test_what_the_objective_puts_around_a_text_comes_along(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"return it {number}\n" for number in range(8)))
    lines = {"type": "text", "files": str(tmp_path / "lines")}
    run = trained(tmp_path / "run", decoder(), {"type": "causal_lm", "join": False}, train=lines, valid=lines)
    export_model(run, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    for text in ("return it", ""):
        assert tokenizer(text)["input_ids"] == run.read([text])[0]


@pytest.mark.full
def test_a_unigram_tokenizer_with_bytes_goes_out(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", decoder(), tokenizer={"type": "unigram", "vocab_size": 400, "byte_fallback": True})
    export_model(run, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    for text in ("return it", "漢字 🙂", " two  spaces\n"):
        assert tokenizer(text)["input_ids"] == run.read([text])[0]
        assert tokenizer.decode(run.tokenizer.encode(text), skip_special_tokens=True) == text


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_family_goes_there_and_back(row: Row, tmp_path: Path) -> None:
    make(row, tmp_path / "theirs")
    import_model(str(tmp_path / "theirs"), tmp_path / "run")
    run = tfkit.load_run(tmp_path / "run")
    assert export_model(run, tmp_path / "back").family_config is not None
    if row.family == "youtu":
        pytest.skip("transformers empties the pad token's row of this family when it loads it")
    verdict = verify(run, str(tmp_path / "back"), tolerance=max(row.tolerance, 1e-4))
    assert verdict.equal, verdict.as_data()
    import_model(str(tmp_path / "back"), tmp_path / "again")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())


@pytest.mark.full
@looped(
    ("key", "value"),
    [
        ("layer.norm", {"type": "rms_norm"}),
        ("layer.attention.bias", False),
        ("layer.attention.output", False),
        ("layer.residual", "parallel"),
        ("position", "sinusoidal"),
        ("embedding.scale", 2.0),
        ("final_norm", None),
    ],
)
def test_a_gpt2_that_differs_in_one_thing_is_another_model(key: str, value: Any) -> None:
    found, _ = matching_family(load_recipe("gpt2", overrides={f"model.{key}": value}).blueprint())
    assert found is None or found.head_class != "GPT2LMHeadModel"


@pytest.mark.full
@looped(
    ("changes", "head_class"),
    [
        ({}, "LlamaForCausalLM"),
        ({"layer.attention.head_dim": 192}, "LlamaForCausalLM"),
        ({"layer.attention.num_kv_heads": 4}, "LlamaForCausalLM"),
        ({"layer.attention": {"head_dim": 192, "num_kv_heads": 4}}, "LlamaForCausalLM"),
        ({"init": "xavier", "final_dropout": 0.5}, "LlamaForCausalLM"),
        ({"position": "alibi"}, None),
        ({"position": {"type": "rotary", "layout": "interleaved", "fraction": 0.5, "clockwise": True}}, None),
    ],
)
def test_which_decoders_are_llamas(changes: dict[str, Any], head_class: str | None) -> None:
    layer = {"residual": "pre_norm", "norm": "rms_norm", "attention": {"type": "multi_head", "num_heads": 4}}
    layer |= {"feedforward": {"type": "glu", "d_ff": 48, "bias": False}}
    layer["attention"]["bias"] = False  # type: ignore[index]
    model = {"type": "decoder", "d_model": 768, "num_layers": 2, "vocab_size": 61, "head": "language_model"}
    model |= {"position": "rotary", "embedding": "tokens", "layer": layer}
    found, _ = matching_family(blueprint_of(merged(model, changes)))
    assert (None if found is None else found.head_class) == head_class


@pytest.mark.full
def test_a_family_that_transformers_has_not_becomes_one_that_it_has(tmp_path: Path) -> None:
    @tfkit.register("family", "mine")
    class Mine(Llama):
        model_types = ("mine",)
        heads = {"MineForCausalLM": Llama.heads["LlamaForCausalLM"]}

    folder = model_folder(tmp_path / "theirs", "llama")
    said(folder, model_type="mine", architectures=["MineForCausalLM"], auto_map={"AutoModel": "code.Mine"})
    assert command("import", folder, "--out", tmp_path / "run").exit_code == 0
    run = tfkit.load_run(tmp_path / "run")
    made = export_model(run, tmp_path / "out")
    assert made.family_config is not None
    assert made.family_config.config["model_type"] == "llama"
    same_logits(run, tmp_path / "out")


# the folder's own code


@pytest.mark.full
def test_a_model_of_none_of_theirs_brings_its_code(own: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = command("export", own.folder, out)
    assert result.exit_code == 0, result.output
    assert "not an architecture of transformers; the folder includes tfkit's code" in result.stdout
    assert "trust_remote_code=True)" in result.stdout
    lines = (own.folder / "resolved.yaml").read_text().splitlines()
    reason = (
        r"  \S+resolved\.yaml:(\d+):\d+: model\.(\S+): the config\.json of the nearest family, '\w+', cannot express"
    )
    named = {path: lines[int(line) - 1] for line, path in re.findall(reason, result.stdout)}
    assert "sandwich" in named["layer.residual.type"] and "spacing" in named["position.spacing"]
    same_logits(own, out, trust_remote_code=True)
    assert yaml.safe_load((out / "resolved.yaml").read_text())["model"]["layer"]["residual"]["type"] == "sandwich"
    config = transformers.AutoConfig.from_pretrained(out, trust_remote_code=True)
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (32, 2, 64)
    names = load_file(out / "model.safetensors").keys()
    assert "model.decoder.embedding.tokens.weight" in names
    assert "model.head.output.weight" not in names  # tied
    hidden = theirs_of(out, "AutoModel", trust_remote_code=True)(tokens()).last_hidden_state
    torch.testing.assert_close(hidden, own.model(tokens()).hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.usefixtures("printer")
def test_an_export_says_in_plain_torch_what_it_is(own: Run, tmp_path: Path) -> None:
    export_model(own, tmp_path / "out")
    lines = (tmp_path / "out" / "model.py").read_text().splitlines()
    assert lines[1].startswith("# Its weights are named as in the run's model.safetensors")
    assert lines[2:] == [f'"""{own.recipe.name}"""', "WIDTH = 32", "INPUTS = []"]
    assert "\nmodel.py is the same architecture" in (tmp_path / "out" / "README.md").read_text()
    export_model(trained(tmp_path / "odd", decoder(d_model=12)), tmp_path / "alone")
    assert not (tmp_path / "alone" / "model.py").exists()
    assert "\nThere is no model.py\\: 12 is too odd\n" in (tmp_path / "alone" / "README.md").read_text()


@pytest.mark.full
def test_the_code_it_brings_is_all_that_it_runs(own: Run, tmp_path: Path) -> None:
    export_model(own, tmp_path / "out")
    model = theirs_of(tmp_path / "out", trust_remote_code=True)
    copies = {name: module for name, module in sys.modules.items() if name.startswith("transformers_modules.out.")}
    assert type(model.model).__module__ in copies
    assert len(copies) > 40
    for name, module in copies.items():
        foreign = [key for key, value in vars(module).items() if home(value).startswith("tfkit.")]
        assert not foreign, f"{name} takes {foreign} from the tfkit that is installed"


def home(value: Any) -> str:
    """The module that something was defined in, or that it is."""
    said = value.__name__ if isinstance(value, type(sys)) else getattr(value, "__module__", "")
    return said if isinstance(said, str) else ""


@pytest.mark.slow
def test_it_loads_where_tfkit_is_not_installed(own: Run, tmp_path: Path) -> None:
    export_model(own, tmp_path / "out")
    arguments = [str(tmp_path / "out"), json.dumps(tokens().tolist()), str(tmp_path / "logits.pt")]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_MODULES_CACHE": str(tmp_path / "modules")}
    subprocess.run([sys.executable, "-c", ISOLATED, *arguments], check=True, env=environment, cwd=tmp_path)
    logits = torch.load(tmp_path / "logits.pt", weights_only=True)["logits"]
    torch.testing.assert_close(logits, own.model(tokens()).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_its_generate_writes_what_the_run_writes_where_positions_change_with_the_length(tmp_path: Path) -> None:
    """What was read of a shorter text would say something else in a longer one, so that nothing of it is kept."""
    moving = {"type": "rotary", "scaling": {"type": "dynamic", "factor": 8.0, "original_length": 4}}
    run = trained(tmp_path / "run", decoder(position=moving))
    export_model(run, tmp_path / "out")
    model = theirs_of(tmp_path / "out", trust_remote_code=True)
    (found,) = run.candidates("a", 9, stop=[])
    written = model.generate(torch.tensor([run.read(["a"])[0]]), max_new_tokens=9, do_sample=False, eos_token_id=None)
    assert written[0].tolist()[-9:] == list(found[0].ids)


@pytest.mark.full
def test_its_generate_writes_what_the_run_writes(own: Run, tmp_path: Path) -> None:
    export_model(own, tmp_path / "out")
    model = theirs_of(tmp_path / "out", trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    texts = ["return it", "a", "def of"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    ours = own.generate(texts, max_new_tokens=6)
    for options in ({}, {"use_cache": False}):
        written = model.generate(**batch, max_new_tokens=6, do_sample=False, **options)[
            :, batch["input_ids"].shape[1] :
        ]
        assert tokenizer.batch_decode(written, skip_special_tokens=True) == ours
    beams = [
        model.generate(**batch, max_new_tokens=6, num_beams=3, use_cache=use_cache).tolist()
        for use_cache in (True, False)
    ]
    assert beams[0] == beams[1]
    loss = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["input_ids"]).loss
    assert loss > 0


RECURRENT = {"layer": {"residual": "none", "mixer": "lstm"}, "position": "none"}
JOINED = {"attention": {}, "last state": {**RECURRENT, "decoder": {"memory": "last_state"}}}


def pair(folder: Path, changes: dict[str, Any]) -> Run:
    """A run of an encoder-decoder, and its texts, in a folder."""
    for name, word in (("a", "cats"), ("b", "Katzen")):
        (folder / name).write_text("".join(f"{number} {word}\n" for number in range(8)))
    pairs = {"type": "parallel_text", "source": str(folder / "a"), "target": str(folder / "b")}
    model = {"type": "encoder_decoder", **MODEL, "embedding": {"type": "tokens", "shared": True}, **changes}
    model["head"] = {"type": "language_model", "tied": True}
    return trained(folder / "run", model, "seq2seq", train=pairs, valid=pairs)


@pytest.mark.parametrize("joined", some(JOINED, every=1))
def test_an_encoder_decoder(tmp_path: Path, joined: str) -> None:
    run = pair(tmp_path, JOINED[joined])
    made = export_model(run, tmp_path / "out")
    assert made.auto_class == "AutoModelForSeq2SeqLM"
    theirs = theirs_of(tmp_path / "out", "AutoModelForSeq2SeqLM", trust_remote_code=True)
    source, target = tokens(2, 7) % run.tokenizer.vocab_size, tokens(2, 5, seed=1) % run.tokenizer.vocab_size
    with torch.no_grad():
        ours = run.model(source, decoder_input_ids=target).logits
        torch.testing.assert_close(theirs(source, decoder_input_ids=target).logits, ours, rtol=1e-4, atol=1e-4)
        if joined == "attention":
            seen = theirs(source, decoder_input_ids=target, output_attentions=True)
            sides = (seen.encoder_attentions, seen.decoder_attentions, seen.cross_attentions)
            assert [len(side) for side in sides] == [2, 2, 2]
            assert seen.cross_attentions[0].shape == (2, 4, 5, 7)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    texts = ["3 cats", "1 cat"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    for options in ({}, {"use_cache": False}):
        written = theirs.generate(
            batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=6, do_sample=False, **options
        )
        assert tokenizer.batch_decode(written, skip_special_tokens=True) == run.generate(texts, max_new_tokens=6)
    beams = theirs.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=6, num_beams=2)
    assert beams.shape[0] == len(texts)


def test_a_masked_model(tmp_path: Path) -> None:
    model = {"type": "encoder", **MODEL, "head": {"type": "masked_lm", "tied": True}}
    tokenizer = {"type": "character", "special_tokens": {"mask": "<mask>"}}
    run = trained(tmp_path / "run", model, "masked_lm", tokenizer=tokenizer)
    made = export_model(run, tmp_path / "out")
    assert (made.family_config, made.auto_class) == (None, "AutoModelForMaskedLM")
    same_logits(run, tmp_path / "out", "AutoModelForMaskedLM", trust_remote_code=True)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert reader("it")["input_ids"] == run.read(["it"])[0]
    filled = transformers.pipeline("fill-mask", str(tmp_path / "out"), trust_remote_code=True)("a <mask>")
    assert len(filled) == 5


@pytest.mark.full
def test_parts_of_ones_own_come_along(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import tfkit\n"
        "import tfkit.components.norm\n"
        "from torch import nn\n\n\n"
        '@tfkit.register("norm", "halving")\n'
        "class Halving(tfkit.components.norm.Norm):\n"
        '    """x / 2."""\n\n'
        "    class Config(tfkit.components.norm.Norm.Config):\n"
        '        """No options."""\n\n'
        "    def __init__(self, config, shape):\n"
        "        super().__init__(config, shape)\n\n"
        "    def forward(self, x, context=None):\n"
        "        return x / 2\n"
    )
    recipe = {
        "tfkit": 1,
        "model": decoder(layer={**LAYER, "norm": "halving"}),
        "data": {"tokenizer": "character", "train": TEXTS, "valid": TEXTS, "batch": {"size": 4}},
        "objective": "causal_lm",
        "train": TRAIN,
    }
    run = tfkit.train(recipe, out=tmp_path / "run", progress=False, imports=[file])
    result = command("export", tmp_path / "run", tmp_path / "out", "--import", file)
    assert result.exit_code == 0, result.output
    file.unlink()
    assert "class Halving" in (tmp_path / "out" / "tfkit_sources.py").read_text("utf-8")
    same_logits(run, tmp_path / "out", trust_remote_code=True)


@pytest.mark.full
def test_what_is_bundled_is_what_is_used(own: Run, tmp_path: Path) -> None:
    export_model(own, tmp_path / "out")
    sources = (tmp_path / "out" / "tfkit_sources.py").read_text("utf-8")
    assert "tfkit/components/residual.py" in sources
    for unused in ("class LSTM", "position/rotary.py", "tfkit/training", "tfkit/data", "tfkit/cli"):
        assert unused not in sources
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in (tmp_path / "out").iterdir())


# folders


@pytest.mark.full
def test_what_is_there_is_not_replaced_unasked(own: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(own, out)
    with pytest.raises(RunError, match="contains a model; --force replaces it"):
        export_model(own, out)
    (out / "mine.txt").write_text("kept")
    folder = model_folder(tmp_path / "gpt2", "gpt2")
    import_model(str(folder), tmp_path / "run")
    export_model(tfkit.load_run(tmp_path / "run"), out, force=True)
    assert (tmp_path / "out.old" / "mine.txt").read_text() == "kept" and not (out / "mine.txt").exists()
    assert not (out / "modeling_tfkit.py").exists()
    assert theirs_of(out).config.vocab_size == SIZE
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("kept")
    with pytest.raises(RunError, match="not empty and not a model"):
        export_model(own, foreign, force=True)
