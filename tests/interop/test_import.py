"""`tfkit import`: their folder becomes a run that everything else takes, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tfkit
from tfkit.core.errors import DataError, RunError, TfkitWarning
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.blame import Watched
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.generation import generate_section
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.recipe import shortened
from tfkit.interop.huggingface.strangers import special_ids
from tfkit.interop.huggingface.tokenizer import tokenizer_of
from tfkit.recipe.architecture.resolve import ModelResolver
from tfkit.recipe.model import blueprint_of
from tfkit.storage.checksums import read_sums

from ..sampling import each
from ..work import entered
from .made import command, model_folder, said, theirs_of, tokens, with_tokenizer
from .parity import Row
from .rows import ROWS

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")

FUNCTIONS = 789  # 785 before the card and the page had one source, 782 with gzip where a file is


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return with_tokenizer(model_folder(tmp_path / "llama", "llama"))


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return with_tokenizer(model_folder(tmp_path / "gpt2", "gpt2"), template="")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "bert", "bert")


def logits_of(run: Path) -> torch.Tensor:
    with torch.no_grad():
        logits = tfkit.load_run(run).model(tokens()).logits
    assert logits is not None
    return logits


def same_as_theirs(run: Path, folder: Path) -> None:
    with torch.no_grad():
        theirs = theirs_of(folder)(tokens()).logits
    torch.testing.assert_close(logits_of(run), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_an_import_enters_few_functions(llama: Path, tmp_path: Path) -> None:
    """A budget for functions and comprehensions, to be lowered with the code."""
    import_model(str(llama), tmp_path / "first")  # imports, and what is kept for each class
    functions = entered(lambda: import_model(str(llama), tmp_path / "second"))
    assert len(functions) <= FUNCTIONS, sorted(functions)


def test_a_recipe_that_says_what_differs(gpt2: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = command("import", gpt2, "--out", run)
    assert result.exit_code == 0, result.output
    assert f"{run}: gpt2 (GPT2LMHeadModel), 42,176 parameters in float32" in result.stdout
    assert "tokenizer: 61 tokens; pad 1, start 2, end 3, unknown 0, mask 4" in result.stdout
    assert "not read" not in result.stdout
    text = (run / "recipe.yaml").read_text()
    header, _, body = text.partition("tfkit: 1\n")
    assert f"# Imported from {gpt2} (GPT2LMHeadModel)" in header
    assert f'tfkit generate {run} "..."' in header
    assert all(line.startswith("# ") for line in header.splitlines())
    assert body == (
        "model:\n"
        "  type: decoder\n"
        "  d_model: 32\n"
        "  num_layers: 3\n"
        "  vocab_size: 61\n"
        "  max_length: 64\n"
        "  embedding: {type: tokens, dropout: 0.1}\n"
        "  position: learned\n"
        "  layer:\n"
        "    residual: pre_norm\n"
        "    norm: layer_norm\n"
        "    attention: {type: multi_head, num_heads: 4, dropout: 0.1}\n"
        "    feedforward: {type: mlp, activation: gelu_tanh, d_ff: 128}\n"
        "    dropout: 0.1\n"
        "  head: {type: language_model, tied: true}\n"
        "  init: scaled_residual\n"
        "  special_ids: {start: 2, end: 3}\n"
    )
    names = set(load_file(run / "model.safetensors"))
    assert "decoder.embedding.tokens.weight" in names and "head.output.weight" not in names  # tied


def test_every_command_takes_the_run(llama: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    import_model(str(llama), run)
    assert command("show", run).exit_code == 0
    assert command("check", run / "recipe.yaml").exit_code == 0
    assert command("check", run / "resolved.yaml").exit_code == 0
    assert command("generate", run, "w1 w2", "--max-new-tokens", "3").exit_code == 0
    result = command("evaluate", run)
    assert (result.exit_code, result.stderr) == (2, f"tfkit: {run / 'resolved.yaml'}: the recipe has no data\n")


@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.full), "t5", "bart"])
def test_it_generates_what_transformers_generates(family: str, tmp_path: Path) -> None:
    paired = family != "llama"
    folder = with_tokenizer(model_folder(tmp_path / family, family), template="$A </s>" if paired else "<s> $A")
    result = command("import", folder, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    run = tfkit.load_run(tmp_path / "run")
    assert dict(run.blueprint.special_ids)["start"] == {"t5": 1, "bart": 3, "llama": 2}[family]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = theirs_of(folder, "AutoModelForSeq2SeqLM" if paired else "AutoModelForCausalLM")
    texts = ["w1 w2 w3", "w9", "w4 <mask> w5"]
    for text, ours in zip(texts, run.generate(texts, max_new_tokens=7), strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        out = model.generate(ids, max_new_tokens=7, do_sample=False, num_beams=1)[0, 0 if paired else ids.shape[1] :]
        assert ours.strip() == tokenizer.decode(out, skip_special_tokens=True).strip()


@pytest.mark.full
def test_training_starts_from_an_import_and_does_not_resume_it(gpt2: Path, tmp_path: Path) -> None:
    import_model(str(gpt2), tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    result = command("train", "translate-numbers", "--out", tmp_path / "run", "--resume")
    assert result.exit_code == 2
    assert "an imported model, which has no training to resume; to start from its weights, use" in result.stderr
    result = command("train", "translate-numbers", "--out", tmp_path / "run")
    assert "contains an imported model; --force replaces it" in result.stderr
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    run = tfkit.load_run(tmp_path / "run")
    assert run.read(["", "w1"]) == [[2], [6]]
    assert run.generate("", max_new_tokens=3) == [run.generate("<s>", max_new_tokens=3)[0]]
    (tmp_path / "lines").write_text("w1 w2 w3 w4\n" * 4)
    lines = {"type": "text", "files": "lines"}
    recipe = {
        "tfkit": 1,
        "extends": "run/recipe.yaml",
        "data": {"tokenizer": {"type": "file", "path": "run/tokenizer.json"}, "train": lines, "batch": {"size": 2}},
        "objective": "causal_lm",
        "train": {"device": "cpu", "steps": 1, "optimizer": "adam", "samples": 0, "keep": "last"},
    }
    recipe["train"] |= {"schedule": {"type": "constant", "lr": 1e-9}, "init_from": "run"}
    (tmp_path / "tuned.yaml").write_text(json.dumps(recipe))
    tuned = tfkit.train(tmp_path / "tuned.yaml", out=tmp_path / "tuned", progress=False)
    torch.testing.assert_close(tuned.model(tokens()).logits, logits_of(tmp_path / "run"), rtol=1e-4, atol=1e-4)


def test_texts_are_read_as_their_tokenizer_reads_them(bert: Path, tmp_path: Path) -> None:
    with_tokenizer(bert, template="<s> $A </s>")
    import_model(str(bert), tmp_path / "run")
    run = tfkit.load_run(tmp_path / "run")
    texts = ["w1 <mask> w3", "", "nothing known"]
    theirs = transformers.AutoTokenizer.from_pretrained(bert)(texts)["input_ids"]
    assert run.read(texts) == theirs == [[2, 6, 4, 8, 3], [2, 3], [2, 0, 0, 3]]
    with pytest.raises(tfkit.UsageError, match="has no mask"):
        run.generate("w1")


def test_without_a_tokenizer_it_works_on_ids(llama: Path, tmp_path: Path) -> None:
    (llama / "tokenizer.json").unlink()
    (llama / "tokenizer.model").write_bytes(b"\x00")
    result = command("import", llama, "--out", tmp_path / "run")
    assert "no tokenizer.json: this run reads and writes ids instead of text; tokenizer.model" in result.stdout
    same_as_theirs(tmp_path / "run", llama)
    result = command("generate", tmp_path / "run", "w1")
    assert result.exit_code == 2
    assert "tokenizer.json: is missing: this run works on ids" in result.stderr
    assert "tfkit generate" not in (tmp_path / "run" / "recipe.yaml").read_text()


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_vocabulary_of_a_bert_alone(bert: Path, tmp_path: Path, lowercase: bool) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "Cat", ",", "!", "caf", "##e"]
    (bert / "vocab.txt").write_text("\n".join([*words, *(f"w{n}" for n in range(48))]) + "\n")
    (bert / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    import_model(str(bert), tmp_path / "run")
    theirs = transformers.BertTokenizer(str(bert / "vocab.txt"), do_lower_case=lowercase)
    run = tfkit.load_run(tmp_path / "run")
    for text in ("The cats, café!", "Cats [MASK] zebra", "w3"):
        assert run.read([text])[0] == theirs(text)["input_ids"], text
    assert run.tokenizer.special_ids["mask"] == 4
    (bert / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"vocab\.txt: lacks \[UNK\]"):
        import_model(str(bert), tmp_path / "other")


def test_lines_of_a_vocabulary_end_at_line_feeds(bert: Path, tmp_path: Path) -> None:
    odd = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *odd, "", "b", "##c"]
    for end, mark in (("\n", ""), ("\r\n", "\ufeff")):
        (bert / "vocab.txt").write_bytes(f"{mark}{end.join(words)}{end}".encode())
        tokenizer = tokenizer_of(bert, {})
        assert tokenizer is not None and tokenizer.vocab_size == len(words), repr(end)
        assert tokenizer.encode("a bc") == [words.index(word) for word in ("a", "b", "##c")], repr(end)


def test_half_precision_is_kept_when_asked_for(llama: Path, tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(llama / "model.safetensors").items()}
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    import_model(str(llama), tmp_path / "full")
    import_model(str(llama), tmp_path / "half", dtype="bfloat16")
    full, half = (tfkit.load_run(tmp_path / name).model for name in ("full", "half"))
    assert {tensor.dtype for tensor in full.parameters()} == {torch.float32}
    assert {tensor.dtype for tensor in half.parameters()} == {torch.bfloat16}
    for one, other in zip(full.parameters(), half.parameters(), strict=True):
        assert torch.equal(one, other.float())
    with safe_open(tmp_path / "half" / "model.safetensors", framework="pt") as file:
        assert "head.output.weight" in file.keys()  # noqa: SIM118


@pytest.mark.full
def test_what_is_there_is_not_replaced_unasked(llama: Path, gpt2: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    import_model(str(llama), run)
    result = command("import", gpt2, "--out", run)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{run}: contains a tfkit run; --force replaces it" in result.stderr
    (run / "mine.txt").write_text("kept")
    assert command("import", gpt2, "--out", run, "--force").exit_code == 0
    same_as_theirs(run, gpt2)
    assert (tmp_path / "run.old" / "mine.txt").read_text() == "kept" and not (run / "mine.txt").exists()


def test_nothing_is_left_of_what_fails(llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    tensors["model.layers.1.self_attn.rope.weight"] = torch.ones(2)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataError) as caught:
        import_model(str(llama), tmp_path / "run")
    assert "no rule of 'llama' covers model.layers.1.self_attn.rope.weight" in str(caught.value)
    assert "missing in the files: decoder.layers.2.feedforward.up.weight" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_tensor_of_another_shape(llama: Path, tmp_path: Path) -> None:
    said(llama, intermediate_size=41)
    with pytest.raises(DataError, match=r"gate_proj.weight \[40, 32\] cannot become .*feedforward.gate.weight"):
        import_model(str(llama), tmp_path / "run")


def test_keys_that_nobody_read_are_named(llama: Path, tmp_path: Path) -> None:
    said(llama, logit_bias_scale=2.5, use_cache=True, nothing=None)
    result = command("import", llama, "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert "not read in config.json:" in result.stdout
    assert "logit_bias_scale" in result.stdout
    assert "use_cache" not in result.stdout


def test_a_family_or_a_class_that_is_not_known(llama: Path, tmp_path: Path) -> None:
    said(llama, architectures=["LlamaForTokenDreams"])
    with pytest.raises(DataError, match="architectures: LlamaForTokenDreams is not supported; expected Llama"):
        import_model(str(llama), tmp_path / "run")
    said(llama, model_type="lama")
    with pytest.raises(DataError, match=r"no family for 'lama', the nearest is 'llama'.*--import"):
        import_model(str(llama), tmp_path / "run")
    config = json.loads((llama / "config.json").read_text())
    del config["model_type"]
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="model_type is missing"):
        import_model(str(llama), tmp_path / "run")


def test_a_config_of_an_impossible_model(llama: Path, tmp_path: Path) -> None:
    said(llama, num_attention_heads=5, head_dim=None)
    with pytest.raises(
        DataError, match=r"config\.json: num_attention_heads 5: layer\.attention\.num_heads: 5 heads do not divide"
    ):
        import_model(str(llama), tmp_path / "run")


@pytest.mark.full
def test_names_without_a_prefix_and_of_old(tmp_path: Path, bert: Path) -> None:
    gpt2 = model_folder(tmp_path / "gpt2", "gpt2")
    old = {"weight": "gamma", "bias": "beta"}
    tensors = load_file(bert / "model.safetensors")
    renamed = {
        ".".join([*name.split(".")[:-1], old[name.split(".")[-1]]]) if "LayerNorm" in name else name: tensor
        for name, tensor in tensors.items()
    }
    import_model(str(bert), tmp_path / "new")
    save_file({**renamed, "bert.pooler.dense.weight": torch.ones(32, 32)}, bert / "model.safetensors")
    result = command("import", bert, "--out", tmp_path / "old")
    assert "weights that no output of this model uses: bert.pooler.dense.weight" in result.stdout
    assert torch.equal(logits_of(tmp_path / "new"), logits_of(tmp_path / "old"))
    tensors = load_file(gpt2 / "model.safetensors")
    save_file({name.removeprefix("transformer."): each for name, each in tensors.items()}, gpt2 / "model.safetensors")
    import_model(str(gpt2), tmp_path / "bare")
    same_as_theirs(tmp_path / "bare", gpt2)


def test_a_file_with_only_the_copy_of_a_tied_tensor(tmp_path: Path) -> None:
    def check(family: str, copy: str, owner: str, **settings: Any) -> None:
        folder = model_folder(tmp_path / f"{family}-{copy}", family, **settings)
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {copy: tensors.pop(owner)}, folder / "model.safetensors", {"format": "pt"})
        import_model(str(folder), tmp_path / "run", force=True)
        state = tfkit.load_run(tmp_path / "run").model.state_dict()
        assert any(torch.equal(tensor, load_file(folder / "model.safetensors")[copy]) for tensor in state.values())
        if family != "t5":  # whose scale transformers decides by the names in the file
            same_as_theirs(tmp_path / "run", folder)

    each(
        [
            ("llama", "lm_head.weight", "model.embed_tokens.weight"),
            ("gpt2", "lm_head.weight", "transformer.wte.weight"),
            ("t5", "encoder.embed_tokens.weight", "shared.weight"),
        ],
        lambda *row: check(*row, tie_word_embeddings=True),
    )


def test_several_ends_stop_a_text(llama: Path, tmp_path: Path) -> None:
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 20, 21], "repetition_penalty": 1.3}))
    import_model(str(llama), tmp_path / "run")
    recipe = tfkit.load_run(tmp_path / "run").recipe
    assert [rule.spelled() for rule in recipe.generate.stop] == [{"type": "end_token", "tokens": [3, 20, 21]}]
    assert [rule.part.part_name for rule in recipe.generate.logits] == ["repetition_penalty"]
    assert dict(recipe.blueprint().special_ids) == {"pad": 1, "start": 2, "end": 3}


def generated(folder: Path, call: int | None = None) -> list[int]:
    """What their `generate` writes after three tokens, without the end token."""
    paired = json.loads((folder / "config.json").read_text())["model_type"] == "bart"
    theirs: Any = theirs_of(folder, "AutoModelForSeq2SeqLM" if paired else "AutoModelForCausalLM")
    ids = torch.tensor([[5, 9, 11]])
    more = {} if call is None else {"max_new_tokens": call}
    out = theirs.generate(ids, attention_mask=torch.ones_like(ids), **more)[0].tolist()[1 if paired else 3 :]
    ends = theirs.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return next((out[:place] for place, id_ in enumerate(out) if id_ in ends), out)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_generation_settings_write_what_theirs_write(kind: str, tmp_path: Path) -> None:
    folder = with_tokenizer(model_folder(tmp_path / kind, kind, forced_bos_token_id=None))
    config = json.loads((folder / "config.json").read_text())
    special = {"eos_token_id": 3, "pad_token_id": 1, **({"decoder_start_token_id": 3} if kind == "bart" else {})}
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**special, "eos_token_id": None, "max_new_tokens": 9}))
    a, b, c = generated(folder)[:3]

    def check(settings: dict[str, Any], left: str = "", call: int | None = None, old: bool = False) -> None:
        stored = {"max_new_tokens": 9, **settings}
        if old:
            file.unlink(missing_ok=True)
        else:
            file.write_text(json.dumps({**special, **stored}))
        (folder / "config.json").write_text(json.dumps({**config, **(stored if old else {})}))
        made = import_model(str(folder), tmp_path / "run", force=True)
        run = tfkit.load_run(tmp_path / "run")
        assert list(run.candidates([[5, 9, 11]], call)[0][0].ids) == generated(folder, call)
        export_model(run, tmp_path / "out", force=True)
        assert generated(tmp_path / "out", call) == generated(folder, call)
        named = [note for note in made.notes if note.startswith("generation settings not used: ")]
        assert named == ([f"generation settings not used: {left}"] if left else [])

    beams = {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "eos_token_id": [b, c]}
    each(
        [
            ({"eos_token_id": [b, c], "min_length": 7},),
            ({"eos_token_id": b, "min_length": 2, "min_new_tokens": 5}, "", None, True),
            ({"bad_words_ids": [[3], [b], [a, a]], "suppress_tokens": [c]}, "bad_words_ids of several tokens"),
            ({"begin_suppress_tokens": [a, b], "forced_eos_token_id": [4, 3]}, "", 6),
            ({**beams, "forced_eos_token_id": 3}, "", None, True),
            ({**beams, "early_stopping": "never", "no_repeat_ngram_size": 2, "min_length": 6},),
            ({"max_new_tokens": None, "max_length": 8},),
            ({"max_new_tokens": None, "max_length": 6}, "", 8),
            ({"do_sample": True, "top_p": 1e-6}, "", None, True),
            ({"temperature": 0.6, "mine": "x", "length_penalty": 3.0}, "temperature, mine, length_penalty"),
            ({"suppress_tokens": [], "encoder_no_repeat_ngram_size": 1}, "encoder_no_repeat_ngram_size"),
            ({"forced_bos_token_id": 7, "begin_suppress_tokens": [a]}, "forced_bos_token_id" * (kind == "llama")),
        ],
        check,
    )
    file.write_text(json.dumps({**special, "do_sample": True, "temperature": 0.5}))
    result = command("import", folder, "--out", tmp_path / "drawn")
    assert "generation defaults: do_sample True, temperature 0.5, top_k 50" in result.stdout
    run = tfkit.load_run(tmp_path / "drawn")
    assert [rule.part.part_name for rule in run.recipe.generate.logits] == ["temperature", "top_k"]
    assert run.generate(["w1"], 4, strategy="greedy") == run.generate(["w1"], 4, strategy="greedy")
    with pytest.warns(TfkitWarning, match="the recipe's generate: is not exported"):
        export_model(tfkit.load_run(run.folder, sets=["generate.max_new_tokens=3"]), tmp_path / "changed")
    file.write_text(json.dumps({**special, "bad_words_ids": 5, "stop_strings": [""]}))
    assert f"{file}: stop_strings: " in command("import", folder, "--out", tmp_path / "no").stderr


def test_special_ids_of_an_encoder_decoder() -> None:
    config = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2, "no": 1}
    assert special_ids(config, {}, 50) == {"pad": 1, "start": 2, "end": 2}
    assert special_ids(config, {"decoder_start_token_id": 7}, 50)["start"] == 7
    assert special_ids({"eos_token_id": 99}, {}, 50) == {}
    section = generate_section(config, {"forced_bos_token_id": 0, "no_repeat_ngram_size": 3}, 50, True)[0]
    assert section["logits"] == [
        {"type": "no_repeat_ngram", "size": 3},
        {"type": "forced", "tokens": [0]},
    ]
    assert generate_section(config, {"no_repeat_ngram_size": 0, "suppress_tokens": [60]}, 50, True)[0] == {}


def test_a_config_remembers_what_was_asked() -> None:
    config = Watched({"a": 1, "b": {"c": 1, "d": 2}, "e": None, "pad_token_id": 3, "f": 5, "g": {"h": 1}})
    assert config["a"] == 1
    assert config.get("b", {}).get("c") == 1
    assert "g" in config
    assert config.unread() == ["b.d", "f"]


def with_tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change one tensor in a folder of theirs."""
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: change(load_file(file)[name])}, file, {"format": "pt"})


@pytest.mark.full
def test_an_import_is_on_record(llama: Path, tmp_path: Path) -> None:
    run = import_model(str(llama), tmp_path / "run").run
    listed = read_sums(run)
    assert listed is not None and set(listed) | {"SHA256SUMS"} == {
        path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()
    }
    config = run / "huggingface" / "config.json"
    config.write_text(config.read_text() + " ")
    assert tfkit.load_run(run).model is not None
    with pytest.raises(RunError, match=r"huggingface/config\.json: has changed since it was written"):
        export_model(tfkit.load_run(run), tmp_path / "out")
    with pytest.warns(TfkitWarning, match=r"huggingface/config\.json: recorded as it is now"):
        export_model(tfkit.load_run(run, accept_changes=True), tmp_path / "out")


def test_numbers_that_are_not_finite_are_told(llama: Path, tmp_path: Path) -> None:
    with_tensor(llama, "model.layers.0.mlp.up_proj.weight", lambda tensor: tensor.index_fill(0, torch.tensor(0), 1e6))
    name = r"decoder\.layers\.0\.feedforward\.up\.weight"
    with pytest.warns(TfkitWarning, match=rf"llama: 1 of \d+ tensors contain NaN or infinite values: {name}"):
        import_model(str(llama), tmp_path / "half", dtype="float16")  # in which 1e6 is infinite
    import_model(str(llama), tmp_path / "run")
    with pytest.warns(TfkitWarning, match=rf"half/model\.safetensors: 1 of \d+ tensors contain NaN .*: {name}"):
        _ = tfkit.load_run(tmp_path / "half").model


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool])
def test_integers_are_no_weights(llama: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    with_tensor(llama, "model.layers.0.mlp.up_proj.weight", lambda tensor: tensor.to(dtype))
    kind = str(dtype).removeprefix("torch.")
    name = r"decoder\.layers\.0\.feedforward\.up\.weight"
    with pytest.raises(
        DataError, match=rf"llama: .*{name} \({kind}\) are not floating-point, so they cannot be weights"
    ):
        import_model(str(llama), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_is_resolved_once(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = []
    resolve = ModelResolver.resolve
    monkeypatch.setattr(ModelResolver, "resolve", lambda self: resolved.append(1) or resolve(self))
    import_model(str(llama), tmp_path / "run")
    assert len(resolved) == 1


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_recipe_leaves_out_what_a_default_says_and_no_more(row: Row) -> None:
    family = REGISTRY.get("family", row.family)
    theirs = getattr(transformers, row.config)(**row.settings).to_dict()
    theirs["vocab_size"] = theirs.get("vocab_size") or 90  # ESM has no default
    model = family.recipe(theirs | {"architectures": [row.model]})
    short = shortened(model)
    assert replace(blueprint_of(short), name="") == replace(blueprint_of(model), name="")
    assert sum(1 for _ in leaves(short)) <= sum(1 for _ in leaves(model))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for child in value.values():
            yield from leaves(child)
    else:
        yield value
