"""The Run: generation, prediction, embeddings, attention and evaluation with a trained model."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfkit.core.blame import parts_named
from tfkit.core.errors import RunError, TfkitWarning, UsageError
from tfkit.data.chat import Message
from tfkit.data.corpus import RecordCorpus, VectorCorpus
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.vectors import Array, Vectors, as_vectors
from tfkit.generation.attention import AttentionMaps, attention_of, position_labels
from tfkit.generation.decoder import Quantize, StepDecoder
from tfkit.generation.prompts import Ids, Prompts, Source, extra_rows, prompt_ids
from tfkit.generation.shorthands import GenerateOptions
from tfkit.generation.vectors import Pooling, text_vectors
from tfkit.generation.writer import GeneratedText, Writer, check_options, make_writer, warn_of_cut
from tfkit.recipe.imports import find_imported, import_parts
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.sections import value_problem
from tfkit.run.stored import StoredRun, why_missing
from tfkit.runs import record
from tfkit.runs.folder import ENVIRONMENT, EVALUATION, RESOLVED, WEIGHTS, RunFolder, check_tokenizer
from tfkit.runs.history import choose_device
from tfkit.runs.kept import KEPT, POOLINGS, Sentences, sentences_in
from tfkit.runs.supply import downloaded_run, saved_recipe
from tfkit.runs.weights import is_weights_file, recipe_in
from tfkit.storage.hub import is_on_hub
from tfkit.training.objective import MaskedLm, Prediction
from tfkit.training.objective.base import text_fields
from tfkit.training.objective.masked_lm import fillings
from tfkit.training.scoring import SampleOutput, Scorer, keep_scores

# a text, a mapping from fields to texts, or a sequence of these; for vector models, an array or a list of arrays
Texts = str | Mapping[str, str] | Sequence[str | Mapping[str, str] | Array] | NDArray[np.float32] | Tensor


class Run(StoredRun):
    """A trained model with its recipe and tokenizer, each loaded on first use."""

    # for a copy made by `_packed`: the run whose weights its model shows, and their quantization
    _packed_run: tuple[Run, Quantize | None] | None = None

    def __init__(self, folder: str | Path, recipe: Recipe, device: str = "cpu", as_saved: bool = True) -> None:
        super().__init__(folder, recipe, device, as_saved)
        self._decoders: dict[Quantize | None, StepDecoder] = {}
        self._others: dict[str, Run] = {}

    def __reduce__(self) -> tuple[Callable[[Sequence[str]], Run], tuple[Sequence[str]], dict[str, object]]:
        """Copy and pickle without the cached decoders. Unpickling first imports the code of custom parts."""
        return _bare_run, (self.recipe.imports,), {**vars(self), "_decoders": {}}

    def generate(
        self, prompts: Prompts, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> list[str]:
        """Generate the best continuation, or translation, of each prompt.

        A prompt is a text or a list of ids. The options (GenerateOptions) are those of `tfkit generate`: strategy,
        temperature, top_k, num_beams, seed, ... They default to the recipe's `generate:` section. Prompts are processed
        in batches of `batch_size` (64). A masked language model fills in the masks of a text instead. Warn about a text
        that ends before it satisfies the rules of `logits`. Raise UsageError for an invalid prompt, or if the model
        does not generate; raise RecipeError for an invalid part.
        """
        best = [candidates[0] for candidates in self._generated(prompts, max_new_tokens, options, scored=False)]
        warn_of_cut(best)
        return [candidate.text for candidate in best]

    def candidates(
        self, prompts: Prompts, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> list[list[GeneratedText]]:
        """Return all candidates for each prompt, best first, with text, ids, log-probability and score.

        A masked language model returns the most likely fillings of each text.
        """
        return self._generated(prompts, max_new_tokens, options, scored=True)

    def stream(
        self, prompt: str | Ids, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> Generator[str, None, GeneratedText]:
        """Yield the text that `generate` returns for a prompt, piece by piece. The generator returns the candidate.

        Raise UsageError immediately for invalid arguments, or if the strategy cannot stream. Closing the generator
        stops the search.
        """
        writer = self.writer(max_new_tokens, **options)
        read = self._sources([prompt] if isinstance(prompt, Vectors) else prompt)
        if len(read) != 1:
            raise UsageError(f"stream takes one prompt, got {len(read)}")
        return writer.stream(read[0])

    def chat(
        self, messages: Sequence[Message], max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> str:
        """Generate the assistant's reply to messages, [{"role": "user", "content": ...}, ...].

        Raise UsageError if there is no chat template, and errors as `generate` does.
        """
        return self.generate([self.read_chat(messages)], max_new_tokens, **options)[0]

    def writer(self, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]) -> Writer:
        """Create the generator of texts for these options. Raise errors as `generate` does."""
        if not self.writes:
            raise UsageError(f"{self.folder} contains an encoder, which does not generate text")
        start = self._start if self.blueprint.encoder is not None else None
        check_options(options, max_new_tokens)
        quantize = options.get("quantize")
        decoder, settings = self.decoder(quantize), self.recipe.generate
        writer = make_writer(decoder, self.tokenizer, settings, start, max_new_tokens, options)
        writer.strategy.bind(self.tokenizer, partial(self._other_run, quantize=quantize))
        return writer

    def decoder(self, quantize: Quantize | None = None) -> StepDecoder:
        """Return the decoder for this value of `quantize`, cached. Raise UsageError for an unknown value.

        On a CPU, weights that are stored in int8 are also decoded in int8.
        """
        if self._packed_run is not None:
            run, own = self._packed_run
            return run.decoder(own if quantize is None else quantize)
        stored = quantize is None and self.stores_int8 and self.device.type == "cpu"
        return self._decoder("int8" if stored else quantize)

    def _decoder(self, quantize: Quantize | None) -> StepDecoder:
        if quantize not in self._decoders or self._decoders[quantize].model is not self.model:
            self._decoders[quantize] = StepDecoder(self.model, quantize)
        return self._decoders[quantize]

    def _other_run(self, path: str, quantize: Quantize | None) -> tuple[StepDecoder, Tokenizer]:
        """Return the decoder and the tokenizer of another run, cached by path."""
        if path not in self._others:
            self._others[path] = load_run(path, device=str(self.device))
        return self._others[path].decoder(quantize), self._others[path].tokenizer

    @parts_named()
    def _generated(
        self, prompts: Prompts, max_new_tokens: int | None, options: GenerateOptions, scored: bool
    ) -> list[list[GeneratedText]]:
        if self.writes:
            return self.writer(max_new_tokens, **options).write(self._sources(prompts), scored)
        return self._filled(prompts, {"max_new_tokens": max_new_tokens, **options})

    def _sources(self, prompts: Any) -> Sequence[Source]:
        """Return the ids of each prompt, or for vector models the vectors [time width] of each array."""
        if not self.reads_vectors:
            return prompt_ids(prompts, self.read)
        arrays = as_vectors(prompts)
        items = self.objective.rows.vectors([{"vectors": name} for name in arrays])
        stack = self.model.stack(next(self.blueprint.stacks()).side)
        cut = [stack.cut(torch.from_numpy(item["vectors"])[None]) for item in items]
        return [rows[0].numpy() for rows in cut if rows is not None]

    def _filled(self, texts: Any, options: Mapping[str, Any]) -> list[list[GeneratedText]]:
        """Return the fillings of each text. Raise UsageError if the model was not trained to fill masks."""
        if not isinstance(self.predictor, MaskedLm):
            raise UsageError(
                f"{self.folder} contains an encoder, which does not generate text; try tfkit predict or embed"
            )
        check_options({name: option for name, option in options.items() if name != "max_new_tokens"})
        given = options.get("inputs")
        inputs = given if isinstance(given, Mapping) else None
        unsupported = ", ".join(name for name, option in options.items() if option is not None and name != "inputs")
        if unsupported:
            raise UsageError(f"{self.folder} fills masks; {unsupported} requires a model that generates text")
        mask = self.tokenizer.token(self.predictor.rows.tokens.special["mask"])
        return [
            fillings(one["text"], mask, one["fills"])
            for one in self.predict(texts, inputs if isinstance(inputs, Mapping) else None)
        ]

    @parts_named()
    def predict(self, texts: Texts, inputs: Mapping[str, object] | None = None) -> list[Prediction]:
        """Predict the label of each text, the tags of its words, the answer it contains, or fillings of its masks.

        Pairs are mappings with the fields `text` and `second`, or `question` and `context`. Vector models take arrays.
        `inputs` are the extra inputs of the model's parts, [texts width] each. Each prediction is a JSON-serializable
        mapping. Raise UsageError if the model makes no predictions.
        """
        predictor = self.predictor
        read: Sequence[object] = [texts] if self.reads_vectors or isinstance(texts, (str, Mapping)) else list(texts)
        read = as_vectors(texts) if self.reads_vectors else read
        fields = text_fields(predictor)
        if predictor.answers is None or not predictor.answers.predicts:
            raise UsageError(f"a model trained with {predictor.part_name} makes no predictions; use tfkit generate")
        examples = [_example(text, fields) for text in read]
        for name, rows in self.model.extra(extra_rows(inputs, len(read)), len(read)).items():
            examples = [one | {name: str(row)} for one, row in zip(examples, rows.tolist(), strict=True)]
        return predictor.answers.predict(self._packed().model, examples, self.tokenizer) if examples else []

    @parts_named()
    def embed(
        self,
        texts: str | Sequence[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        batch_size: int | None = None,
        prompt: str | None = None,
        inputs: Mapping[str, object] | None = None,
    ) -> Tensor:
        """Return the pooled last hidden states of each text, [texts d_model], in at least float32.

        `pooling` (mean, first, last, max, mean_sqrt, weighted_mean) selects the vector of a text, by default the mean
        over all tokens except padding. `normalize` divides each vector by its norm. `prompt` names a prompt to put
        before each text; "" is none. A model imported from sentence-transformers has other defaults. `inputs` are the
        extra inputs of the model's parts, [texts width] each. Long texts are truncated. Raise UsageError for vector
        models and invalid arguments.
        """
        if self.reads_vectors:
            raise UsageError(f"{self.folder}: this model reads arrays, but embed requires texts; call run.model")
        settings = sentences_in(self.folder / KEPT) or Sentences()
        pooling = settings.pooling if pooling is None else pooling
        if pooling not in POOLINGS:
            raise UsageError(f"pooling must be {', '.join(POOLINGS)}, got '{pooling}'")
        prompt = settings.default if prompt is None else prompt
        if prompt and prompt not in settings.prompts:
            raise UsageError(f"{self.folder}: no prompt '{prompt}'; available: {', '.join(settings.prompts) or 'none'}")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {batch_size}")
        strings = [texts] if isinstance(texts, str) else list(texts)
        if prompt or settings.lower:
            strings = [(settings.prompts[prompt] if prompt else "") + text for text in strings]
            strings = [text.lower() for text in strings] if settings.lower else strings
        plan = next(self.blueprint.stacks())
        longest = min((size for size in (plan.max_length, settings.max_length) if size is not None), default=None)
        framed = list(self._encode_framed(strings))
        ids = [self._cut(ids, longest) for ids in framed]
        if cut := sum(len(one) < len(whole) for one, whole in zip(ids, framed, strict=True)):
            logging.getLogger("tfkit").warning("%s of %s texts are truncated to %s tokens", cut, len(ids), longest)
        if not ids:
            return torch.empty(0, plan.d_model)
        extra = extra_rows(inputs, len(ids))
        normalize = settings.normalize if normalize is None else normalize
        return text_vectors(self._packed().model, ids, pooling, normalize, batch_size, extra)

    @parts_named()
    def attention(self, text: str | Array, target: str | None = None) -> AttentionMaps:
        """Return the attention weights of every head for a text, or for the array of a vector model.

        The labels are tokens, positions of vectors, or row:column of the patches of a picture.
        An encoder-decoder also reads `target`, by default the model's own output. Raise UsageError if the text has no
        tokens or is too long, or if the model exposes no attention weights.
        """
        model = self._packed().model
        pair = model.blueprint.encoder is not None and model.blueprint.decoder is not None
        if not (isinstance(text, str) or self.reads_vectors) or not isinstance(target, (str, type(None))):
            raise UsageError(f"attention takes a text, or a source and a target, got {text!r} and {target!r}")
        if target is not None and not pair:
            raise UsageError(f"{self.folder}: reads one text; a target requires an encoder-decoder")
        if self.reads_vectors:
            (vectors,) = as_vectors(text if isinstance(text, Vectors) else [text])
            (source,) = self._sources(vectors)
            text, read = vectors, position_labels(next(self.blueprint.stacks()), vectors.array.shape, len(source))
        else:
            text = str(text)
            (source,) = self.read([text]) if self.writes else self._encode_framed([text])
            read = _labels(self.source_tokenizer, source)
        if not len(source):
            raise UsageError("the text has no tokens")
        ids = self._target(text, target) if pair else None
        written = read if ids is None else _labels(self.tokenizer, ids)
        special = (_labels(one, list(one.special_ids.values())) for one in (self.tokenizer, self.source_tokenizer))
        return attention_of(model, source, ids, read, written, tuple(chain(*special)))

    def _target(self, source: str, target: str | None) -> list[int]:
        """Return the ids of the target with start and end token. The default target is generated."""
        ids = self.tokenizer.encode(target) if target is not None else list(self.candidates(source)[0][0].ids)
        end = dict(self.blueprint.special_ids).get("end", self.tokenizer.special_ids.get("end"))
        ids = ids if end is None or ids[-1:] == [end] else [*ids, end]
        return [self._start, *ids]

    def _cut(self, ids: list[int], longest: int | None) -> list[int]:
        """Truncate to the maximum length, but keep a special token at the end."""
        if not ids:
            return [self.source_tokenizer.special_ids.get("pad", 0)]
        if longest is None or len(ids) <= longest:
            return ids
        ends = ids[-1] in self.source_tokenizer.special_ids.values()
        return [*ids[: longest - 1], ids[-1]] if ends else ids[:longest]

    @parts_named()
    def evaluate(
        self, split: str | None = None, limit: int | None = None, quantize: Quantize | None = None
    ) -> dict[str, float]:
        """Compute the loss and metrics on a split (by default test, else valid) or on its first `limit` examples.

        `split` may also name one of `train.evaluations`. The metrics are `train.metrics`, or else the default metrics
        of the objective, such as accuracy or BLEU. The scores are saved in evaluation.json, unless the weights are
        quantized or the run was loaded with `sets`. Issue a TfkitWarning if they cannot be saved.
        """
        if split in self.recipe.train.evaluations:
            return self._evaluate_named(str(split), limit, quantize)
        split = split or self.final_split
        record.check_existing(RunFolder(self.folder), EVALUATION)
        examples = self._examples(split)[:limit]
        scores = self._packed(quantize)._scorer.scores(examples, self.recipe.train.metrics)
        if self.as_saved and quantize is None:
            try:
                keep_scores(self.folder / EVALUATION, split, {"examples": len(examples), **scores})
            except RunError as error:
                warnings.warn(f"the scores are not saved: {error}", TfkitWarning, stacklevel=3)
        return scores

    @property
    def final_split(self) -> str:
        """The split on which the final scores are computed."""
        return "test" if self._data.has("test") else "valid"

    def _evaluate_named(
        self, name: str, limit: int | None = None, quantize: Quantize | None = None
    ) -> dict[str, float]:
        """Compute the scores of an entry of `train.evaluations`, and save them in evaluation.json."""
        other = self._packed(quantize)
        other.recipe = self.recipe.evaluated(name)
        other.__dict__.pop("objective", None)
        examples = other._examples(other.final_split)[:limit]
        scores = other._scorer.scores(examples, self.recipe.train.metrics)
        if self.as_saved and quantize is None:
            keep_scores(self.folder / EVALUATION, name, {"examples": len(examples), **scores})
        return scores

    def _packed(self, quantize: Quantize | None = None) -> Run:
        """Return a copy of the run for one call, with its current weights packed or quantized."""
        other = copy.copy(self)
        if quantize is not None or not self.model.training:
            other.model, other._packed_run = self._decoder(quantize).current(), (self, quantize)
        return other

    def samples(self, count: int, split: str = "valid") -> list[SampleOutput]:
        """Return outputs and references of the first `count` examples; [] unless the model maps sources to targets."""
        if not count or not self.writes or split not in dict(self._data.splits()):
            return []
        return self._scorer.samples(self._examples(split)[:count])

    @property
    def _scorer(self) -> Scorer:
        return Scorer(self.model, self.objective, self.tokenizer, self._feed, self.generate)

    def inputs(self, path: str) -> list[Vectors]:
        """Read arrays, images or audio from a file or folder, as in training. Raise DataError if that fails."""
        train = self._data.train
        corpus, fields = train.build(), dict(train).get("fields")
        if self.reads_vectors and isinstance(corpus, RecordCorpus) and fields is not None:
            names = {"vectors": fields.get("vectors", "values")}
            file = "file" if "file" in type(train).model_fields else "folder"
            corpus = train.model_copy(
                update={file: path, "fields": names, "where": (), "skip": 0, "limit": None}
            ).build()
            return as_vectors([row["vectors"] for row in corpus.examples()])
        if not self.reads_vectors or not isinstance(corpus, VectorCorpus):
            raise UsageError(f"{self.folder}: this model reads texts, not arrays; pass texts to predict or generate")
        return list(corpus.inputs(path))


def _labels(tokenizer: Tokenizer, ids: Iterable[int]) -> tuple[str, ...]:
    return tuple(map(tokenizer.readable_token, ids))


def _bare_run(imports: Sequence[str]) -> Run:
    """Return a Run without state, for unpickling. First import the files of its custom parts."""
    for name in imports:
        if find_imported(name) is None:
            import_parts(name)
    return object.__new__(Run)


def _example(text: object, fields: Sequence[str]) -> dict[str, str]:
    """Convert an input to an example. Raise UsageError if a field is missing."""
    example = {fields[0]: text} if isinstance(text, str) and len(fields) == 1 else text
    known = dict(example) if isinstance(example, Mapping) else {}
    missing = [field for field in fields if not isinstance(known.get(field), str)]
    if missing or not all(isinstance(value, str) for value in known.values()):
        what = " and ".join(fields)
        raise UsageError(f"this model reads {what}; pass a mapping from field to text, got {text!r}")
    return known


@parts_named()
def load_run(
    path: str | Path,
    trust: bool = False,
    device: str = "cpu",
    imports: Sequence[str | Path] = (),
    sets: Sequence[str] = (),
    accept_changes: bool = False,
) -> Run:
    """Load the run in a folder. Raise RunError if files are missing, or have changed since they were written.

    `path` may also be a weights file, FILE.safetensors, whose metadata contains the architecture. Nothing else is read
    then, no code is imported except `imports`, and the run works on ids (run.model). hf://user/name loads a run from
    the Hugging Face hub without modifying the copy in the hub's cache.

    `trust` imports the code of the run's custom parts, and `imports` lists their files at their current paths. `sets`
    overrides the recipe's data, objective and generation in the syntax of `--set` ("generate.stop=[end_token]"), except
    settings that the weights depend on. `accept_changes` records the current files, for files that were replaced on
    purpose. `device` is cpu, cuda, cuda:1 or auto, which selects CUDA if available (the default of the commands).
    """
    choose_device(device, "device")
    for text in sets:
        if problem := value_problem(text.partition("=")[0].strip()):
            raise UsageError(f"--set {text}: the run is already trained: {problem}")
    if is_weights_file(path):
        return Run(path, recipe_in(Path(path), imports, sets), device, as_saved=False)
    hub = is_on_hub(path)
    if hub and accept_changes:
        raise UsageError(f"{path}: on the hub, where no changes are recorded; load it without accept_changes")
    folder = RunFolder(downloaded_run(str(path)) if hub else Path(path))
    if not folder.path.is_dir():
        raise RunError(f"{folder}: no such folder")
    if accept_changes:
        with record.accepting(folder.path):
            return load_run(folder.path, trust, device, imports, sets).all_read()
    for name in (RESOLVED, WEIGHTS):
        if not (folder / name).is_file():
            raise RunError(f"{folder / name}: is missing{why_missing(folder, name)}")
    record.check(folder, record.SMALL)
    recipe = saved_recipe(folder, trust, imports, sets)
    if recipe.data is not None and recipe.data.tokenizer is not None:
        check_tokenizer(folder)
    known = folder.known if (folder / ENVIRONMENT).is_file() else {}
    named = replace(recipe, name=str(known.get("recipe", folder.path.name)))
    return Run(folder.path, named, device, as_saved=not sets and not hub)


def evaluate(
    run: Run | str | Path,
    split: str | None = None,
    limit: int | None = None,
    trust: bool = False,
    imports: Sequence[str | Path] = (),
) -> dict[str, float]:
    """Call `Run.evaluate` on a run, or on a folder loaded by load_run with `trust` and `imports`."""
    return (run if isinstance(run, Run) else load_run(run, trust, imports=imports)).evaluate(split, limit)
