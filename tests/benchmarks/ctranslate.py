"""Decoding with CTranslate2 in the decoding benchmark: the same weights, tokens and log-probabilities as tfkit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.benchmarks.decoding import Work, decoding, recipe
from tests.benchmarks.rounds import Call, library
from tfkit.core.errors import DifferenceError, UsageError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.verifying import quiet
from tfkit.models import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.run import Run, save

Texts = list[tuple[list[int], float]]  # ids and log-probability of the best text of each prompt
TOLERANCE = 1e-3  # maximum difference of log-probabilities per token


def ctranslate2(work: Work, model: Model, dtype: str = "float32") -> Call:
    """Return a call that decodes. Raise DifferenceError if the texts in float32 differ from tfkit's."""
    library("ctranslate2")
    if work.device != "cpu":
        raise UsageError("ctranslate2 is compared on a CPU only")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "engine"
        _convert(work, model, folder)
        exact = _load(work, folder, "float32")
        check(work, model, exact())
        return exact if dtype == "float32" else _load(work, folder, dtype)


def _convert(work: Work, model: Model, folder: Path) -> None:
    """Export the model to a class of transformers, and convert it with CTranslate2's own converter."""
    engine, transformers = library("ctranslate2"), library("transformers")
    with quiet(transformers):
        exported = export_model(_run(work, model, folder.with_name("run")), folder.with_name("exported")).folder
        _numbers(work.size.vocab_size).save_pretrained(exported)
        engine.converters.TransformersConverter(str(exported)).convert(str(folder))


def _run(work: Work, model: Model, folder: Path) -> Run:
    """Save the model as a run. An encoder-decoder becomes a Marian, whose last token the converter removes."""
    pair = work.size.pair
    values = recipe(replace(work.size, vocab_size=work.size.vocab_size + pair))
    values["head"]["bias"] = "frozen" if pair else False
    loaded = load_recipe({"tfkit": 1, "model": values})
    extended = build_model(loaded.blueprint(), seed=0)
    tensors = extended.state_dict()
    for name, tensor in model.state_dict().items():
        tensors[name][: len(tensor)] = tensor
    return save(extended, loaded, None, folder)


def _numbers(vocab_size: int) -> Any:
    """Return a tokenizer whose tokens are their ids in decimal, as CTranslate2 requires texts."""
    transformers = library("transformers")
    words = Tokenizer(WordLevel({str(number): number for number in range(vocab_size)}, unk_token="0"))
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "0")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


def _load(work: Work, folder: Path, dtype: str) -> Callable[[], Texts]:
    """Return a call that decodes with a CTranslate2 folder."""
    package = library("ctranslate2")
    how = {"compute_type": dtype, "inter_threads": 1, "intra_threads": work.threads}
    engine = (package.Translator if work.size.pair else package.Generator)(str(folder), device="cpu", **how)
    read = [[str(number) for number in row] for row in work.prompts().tolist()]
    search = {"beam_size": work.beams, "length_penalty": 0, "end_token": [], "return_scores": True}

    def translate() -> Texts:
        results = engine.translate_batch(read, max_decoding_length=work.new, **search)
        return [([int(token) for token in one.hypotheses[0]], one.scores[0]) for one in results]

    def generate() -> Texts:
        results = engine.generate_batch(read, max_length=work.new, include_prompt_in_result=False, **search)
        return [(one.sequences_ids[0], one.scores[0]) for one in results]

    return translate if work.size.pair else generate


def check(work: Work, model: Model, texts: Texts) -> None:
    """Raise DifferenceError if tokens or log-probabilities differ from tfkit's."""
    for number, (candidates, (ids, score)) in enumerate(zip(decoding(model, work, scored=True)(), texts, strict=True)):
        own, what = candidates[0], f"{work.size.name}, prompt {number + 1}: CTranslate2's"
        if list(own.ids) != ids:
            raise DifferenceError(f"{what} tokens differ from tfkit's")
        off = abs(own.log_probability - score) / work.new
        if not off <= TOLERANCE:
            raise DifferenceError(f"{what} log-probability differs from tfkit's by {off:.2g} per token")
