"""`tfkit export --to ctranslate2`: the same tokens as the run, and what does not leave is refused at its place."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.training.small import LINES, RECIPE, small
from tfkit.core.errors import DataError, RunError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.interop.engines import MODEL, converting
from tfkit.interop.engines.comparing import verify_engine
from tfkit.interop.engines.converting import export_ctranslate2
from tfkit.run import Run

from .made import command
from .parity import randomise

pytestmark = pytest.mark.full

for name in ("ctranslate2", "transformers"):
    pytest.importorskip(name, reason="CTranslate2's converter needs the extras engines and hf")

ATTENTION = {"type": "multi_head", "num_heads": 4}
PRE = {
    "residual": "pre_norm",
    "norm": "layer_norm",
    "attention": ATTENTION,
    "feedforward": {"type": "mlp", "d_ff": 48, "activation": "gelu_tanh"},
}
POST = {**PRE, "residual": "post_norm", "feedforward": {"type": "mlp", "d_ff": 48, "activation": "relu"}}
LLAMA = {
    **PRE,
    "norm": "rms_norm",
    "attention": {**ATTENTION, "bias": False, "num_kv_heads": 2},
    "feedforward": {"type": "glu", "d_ff": 48, "activation": "silu", "bias": False},
}
BASE: dict[str, Any] = {"d_model": 32, "max_length": 64, "head": {"type": "language_model", "tied": True}}
ONE = {**BASE, "type": "decoder", "num_layers": 2, "embedding": "tokens"}
TWO = {**BASE, "type": "encoder_decoder", "encoder": {"num_layers": 2}, "decoder": {"num_layers": 2}}
GPT2 = {**ONE, "position": "learned", "layer": {**PRE, "norm": {"type": "layer_norm", "eps": 0.01}}}
MARIAN = {
    **TWO,
    "position": {"type": "sinusoidal", "layout": "halves"},
    "layer": POST,
    "head": {**BASE["head"], "bias": "frozen"},
    "embedding": {"type": "tokens", "shared": True, "scale": "sqrt_d_model"},
}
MODELS = {"gpt2": GPT2, "llama": {**ONE, "position": "rotary", "layer": LLAMA}, "marian": MARIAN}


def words() -> Tokenizer:
    made: Tokenizer = REGISTRY.get("tokenizer", "word").Config().build().fit(LINES)
    return made


def saved(folder: Path, model: dict[str, Any], tokenizer: Tokenizer | None = None) -> Run:
    """A run with large random weights, whose tokens are those of `words`."""
    known = words()
    special = {role: id_ for role, id_ in known.special_ids.items() if role != "unknown"}
    recipe = tfkit.load_recipe({"tfkit": 1, "model": {**model, "vocab_size": known.vocab_size, "special_ids": special}})
    made = tfkit.build(recipe)
    randomise(made, 0.3)
    return tfkit.save(made, recipe, known if tokenizer is None else tokenizer, folder)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("engines")
    run = saved(folder / "run", GPT2)
    return run, export_ctranslate2(run, folder / "out")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "llama")) for name in MODELS])
def test_it_writes_the_same_tokens(name: str, tmp_path: Path) -> None:
    run = saved(tmp_path / "run", MODELS[name])
    verdict = verify_engine(run, export_ctranslate2(run, tmp_path / "out"))
    assert verdict.failures == [] and verdict.equal_prompts == verdict.prompts == 20


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_imported_model_leaves(family: str, tmp_path: Path) -> None:
    from tfkit.interop.huggingface.importing import import_model

    from .made import model_folder, with_tokenizer

    theirs = with_tokenizer(model_folder(tmp_path / "theirs", family), "$A </s>")
    run = tfkit.load_run(import_model(str(theirs), tmp_path / "run").run)
    assert verify_engine(run, export_ctranslate2(run, tmp_path / "out")).failures == []


def test_the_commands(gpt2: tuple[Run, Path], tmp_path: Path) -> None:
    run, there = gpt2
    out = tmp_path / "out"
    result = command("export", run.folder, out, "--to", "ctranslate2")
    assert result.exit_code == 0 and f'Load: ctranslate2.Generator("{out}")' in result.output
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in there.iterdir())
    result = command("verify", run.folder, "--against", out)
    assert result.exit_code == 0 and "greedy tokens: equal after 20 of 20 prompts" in result.output
    other = saved(tmp_path / "other", GPT2 | {"num_layers": 1})
    result = command("verify", other.folder, "--against", out)
    assert result.exit_code == 1 and "not equal: model.bin: off by" in result.output
    result = command("verify", run.folder, "--against", out, "--text", "a")
    assert (result.exit_code, "a CTranslate2 folder is compared on random tokens" in result.stderr) == (2, True)
    result = command("export", run.folder, out, "--to", "ctranslate2")
    assert (result.exit_code, "contains a CTranslate2 model; --force replaces it" in result.stderr) == (2, True)
    (out / MODEL).write_bytes(b"x")
    with pytest.raises(DataError, match=r"model\.bin: cannot be loaded"):
        verify_engine(run, out)
    assert command("export", run.folder, out, "--to", "ctranslate2", "--force").exit_code == 0
    assert verify_engine(run, out).failures == []


REFUSED = {
    "deep_norm": (
        {**GPT2, "layer": {**PRE, "residual": "deep_norm"}},
        r"resolved\.yaml:\d+:\d+: model\.layer\.residual\.type: CTranslate2 does not support deep_norm\n",
    ),
    "class": (
        {**ONE, "position": "rotary", "layer": {**PRE, "residual": "parallel_two_norms"}},
        r"CTranslate2('s converter)? (rejects this|does not support) '",
    ),
    "width": (
        {**ONE, "position": "rotary", "layer": {**LLAMA, "attention": {**LLAMA["attention"], "head_dim": 16}}},  # type: ignore[dict-item]
        r"CTranslate2 computes this 'llama' differently: (its log-probabilities differ by|axis)",
    ),
    "encoder": (
        {**ONE, "type": "encoder", "position": "learned", "head": {"type": "masked_lm", "tied": True}, "layer": POST},
        r"does not generate text, which CTranslate2 requires; try --to onnx",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_leave_is_refused_and_nothing_is_left(case: str, tmp_path: Path) -> None:
    model, message = REFUSED[case]
    run = saved(tmp_path / "run", model)
    with warnings.catch_warnings(), pytest.raises(UsageError, match=message):
        warnings.simplefilter("ignore")
        export_ctranslate2(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_class_without_a_converter_is_named(
    gpt2: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaders = converting._loaders()
    monkeypatch.setattr(converting, "_loaders", lambda: {key: loaders[key] for key in ("LlamaConfig", "T5Config")})
    with pytest.raises(UsageError, match=r"CTranslate2 does not support 'gpt2' \(GPT2LMHeadModel\)"):
        export_ctranslate2(gpt2[0], tmp_path / "out")


def test_without_a_tokenizer_without_a_library_and_in_a_strangers_folder(
    gpt2: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = gpt2[0]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(RunError, match=r"not empty and not a CTranslate2 model"):
        export_ctranslate2(run, tmp_path / "out", force=True)
    with pytest.raises(UsageError, match=r"has no tokenizer, which CTranslate2 requires"):
        export_ctranslate2(tfkit.load_run(run.weights), tmp_path / "new")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UsageError, match=r"export to CTranslate2 needs the package ctranslate2"):
        export_ctranslate2(run, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_of_bytes_leaves_and_no_path_of_the_author_does(tmp_path: Path) -> None:
    """A tokenizer of bytes has no unknown token, for which CTranslate2 requires a text."""
    home = tmp_path / "ann lee"
    home.mkdir()
    texts = small(home).root.plain()["data"] | {"tokenizer": {"type": "bpe", "vocab_size": 300, "byte_level": True}}
    recipe = {**RECIPE, "model": {**GPT2, "vocab_size": "tokenizer"}, "data": texts}
    run = tfkit.train(tfkit.load_recipe(recipe), home / "run", progress=False)
    result = command("export", run.folder, tmp_path / "out", "--to", "ctranslate2")
    assert result.exit_code == 0, result.output
    assert b"ann lee" in (run.folder / "recipe.yaml").read_bytes()
    assert [
        path.name for path in (tmp_path / "out").rglob("*") if path.is_file() and b"ann lee" in path.read_bytes()
    ] == []
