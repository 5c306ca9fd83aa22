"""Decoding with CTranslate2 in the decoding benchmark: the same weights, tokens and log-probabilities as tfkit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tfkit.core.component import spell
from tfkit.core.errors import DifferenceError, UsageError
from tfkit.core.extras import optional
from tfkit.interop.engines.converting import converting, save_engine
from tfkit.interop.huggingface.convert import to_checkpoint
from tfkit.interop.huggingface.known import families
from tfkit.interop.huggingface.weights import own_tensors
from tfkit.models import Model
from tfkit.recipe.views.resolved import model_values
from tfkit.reports.bench_decoding import LENGTH, START, Work, decoding
from tfkit.reports.rounds import Call

Texts = list[tuple[list[int], float]]  # ids and log-probability of the best text of each prompt
PURPOSE = "this comparison needs"
TOLERANCE = 1e-3  # maximum difference of log-probabilities per token


def ctranslate2(work: Work, model: Model) -> Call:
    """Return a call that decodes in float32. Raise DifferenceError if the texts differ from tfkit's."""
    return _call(work, model, "float32")


def ctranslate2_int8(work: Work, model: Model) -> Call:
    """Return a call that decodes in int8. Raise DifferenceError if the texts in float32 differ from tfkit's."""
    return _call(work, model, "int8")


def _call(work: Work, model: Model, dtype: str) -> Call:
    optional("ctranslate2", "bench", PURPOSE)
    if work.device != "cpu":
        raise UsageError("ctranslate2 is compared on a CPU only")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _save(model, folder)
        exact = _load(work, folder, "float32")
        _check(work, model, exact())
        return exact if dtype == "float32" else _load(work, folder, dtype)


def _save(model: Model, folder: Path) -> None:
    """Convert the model with tfkit's maps to a class of transformers, and that with CTranslate2's converter."""
    transformers = optional("transformers", "bench", PURPOSE)
    pair = model.blueprint.encoder is not None
    family, head = families()["marian" if pair else "gpt2"], "MarianMTModel" if pair else "GPT2LMHeadModel"
    values = family.config(spell(model_values(model.blueprint)), head) | {"bos_token_id": None, "eos_token_id": None}
    if pair:
        values |= {"max_position_embeddings": LENGTH, "pad_token_id": 0, "decoder_start_token_id": START}
    stored = to_checkpoint(family, own_tensors(model)[0], model.blueprint)
    with converting(family.part_name):
        config = transformers.CONFIG_MAPPING[values["model_type"]](**values)
        converted = getattr(transformers, head)(config)
        converted.load_state_dict(stored, strict=False)  # without tied weights and Marian's constant bias of 0
        converted.tie_weights()
        save_engine(converted, _numbers(config.vocab_size), folder)


def _numbers(vocab_size: int) -> object:
    """Return a tokenizer whose tokens are their ids in decimal, as CTranslate2 requires texts."""
    transformers = optional("transformers", "bench", PURPOSE)
    words = Tokenizer(WordLevel({str(number): number for number in range(vocab_size)}, unk_token="0"))
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "0")
    tokenizer: object = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    return tokenizer


def _load(work: Work, folder: Path, dtype: str) -> Callable[[], Texts]:
    """Return a call that decodes with a CTranslate2 folder."""
    library = optional("ctranslate2", "bench", PURPOSE)
    how = {"compute_type": dtype, "inter_threads": 1, "intra_threads": work.threads}
    engine = (library.Translator if work.size.pair else library.Generator)(str(folder), device="cpu", **how)
    read = [[str(number) for number in row] for row in work.prompts().tolist()]
    search = {"beam_size": work.beams, "length_penalty": 0, "end_token": [], "return_scores": True}

    def translate() -> Texts:
        results = engine.translate_batch(read, max_decoding_length=work.new, **search)
        return [([int(token) for token in one.hypotheses[0]], one.scores[0]) for one in results]

    def generate() -> Texts:
        results = engine.generate_batch(read, max_length=work.new, include_prompt_in_result=False, **search)
        return [(one.sequences_ids[0], one.scores[0]) for one in results]

    return translate if work.size.pair else generate


def _check(work: Work, model: Model, texts: Texts) -> None:
    """Raise DifferenceError if tokens or log-probabilities differ from tfkit's."""
    for number, (candidates, (ids, score)) in enumerate(zip(decoding(model, work, scored=True)(), texts, strict=True)):
        own, what = candidates[0], f"{work.size.name}, prompt {number + 1}: CTranslate2's"
        if list(own.ids) != ids:
            raise DifferenceError(f"{what} tokens differ from tfkit's")
        off = abs(own.log_probability - score) / work.new
        if not off <= TOLERANCE:
            raise DifferenceError(f"{what} log-probability differs from tfkit's by {off:.2g} per token")
