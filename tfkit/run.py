"""A Run: the folder written by training, for generation, evaluation and resumption."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfkit.core.blame import parts_named
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.errors import RunError, TfkitWarning, UsageError
from tfkit.core.output import block, block_as_html
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import VectorCorpus
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.frame import Frame
from tfkit.data.vectors import Array, Vectors, as_vectors
from tfkit.generation.attention import AttentionMaps, attention_of
from tfkit.generation.decoder import Quantize, StepDecoder
from tfkit.generation.prompts import Ids, Prompts, Source, prompt_ids
from tfkit.generation.rate import generation_rate
from tfkit.generation.shorthands import GenerateOptions
from tfkit.generation.stepper import most_positions
from tfkit.generation.vectors import Pooling, text_vectors
from tfkit.generation.writer import GeneratedText, Writer, check_options, make_writer, warn_of_cut
from tfkit.models import Model, build_model
from tfkit.recipe.imports import find_imported, import_parts
from tfkit.recipe.load import ReadingOptions, Recipe, read_for
from tfkit.recipe.settings.evaluations import value_problem
from tfkit.recipe.settings.sections import Data, GenerationRate
from tfkit.storage.checksums import write_json
from tfkit.storage.files import LARGEST_TEXT, read_bytes, read_json
from tfkit.storage.hub import is_on_hub
from tfkit.training import record
from tfkit.training.card import write_card
from tfkit.training.checkpoint import Checkpoints
from tfkit.training.claim import claim_folder, one_training
from tfkit.training.curves import write_curves
from tfkit.training.device import choose_device
from tfkit.training.feed import VALID, Feed
from tfkit.training.fills import fillings
from tfkit.training.folder import CHECKPOINTS, CURVES, ENVIRONMENT, EVALUATION, RESOLVED, TOKENIZER, WEIGHTS, RunFolder
from tfkit.training.labels import read_labels
from tfkit.training.lifecycle import is_finished, mark_finished, restore_history, train_in
from tfkit.training.mend import mend
from tfkit.training.metric import as_compared, length_of
from tfkit.training.objective import MaskedLm, Objective, Prediction
from tfkit.training.objective.base import predicts, text_fields
from tfkit.training.objective.reading import Reading
from tfkit.training.progress import Reporter
from tfkit.training.run_name import run_name
from tfkit.training.samples import SampleOutput, print_samples
from tfkit.training.saving import save_run
from tfkit.training.scoring import chosen_metrics
from tfkit.training.setup import Task, longest_example
from tfkit.training.supply import downloaded_run, saved_recipe
from tfkit.training.validation import ValidationScores, total_loss
from tfkit.training.vocabularies import check_tokenizer, load_tokenizer, tokenizer_files
from tfkit.training.weights import holds_int8, load_weights, saved_dtype
from tfkit.training.weights_file import check_fits, is_weights_file, recipe_in

# objectives of imported models, found by the head
PREDICTORS = ("masked_lm", "classification", "token_classification", "span", "regression")


# a text, a mapping of fields to texts, or several; for a model of vectors an array of them, or a list of arrays
Texts = str | Mapping[str, str] | Sequence[str | Mapping[str, str] | Array] | NDArray[np.float32] | Tensor


class Run:
    """A trained model with its recipe and tokenizer, each loaded on first use."""

    def __init__(self, folder: str | Path, recipe: Recipe, device: str = "cpu", as_saved: bool = True) -> None:
        self.folder = Path(folder)
        self.recipe = recipe
        self.as_saved = as_saved  # True if the recipe is the folder's own
        self.device = choose_device(device)
        self._decoders: dict[Quantize | None, StepDecoder] = {}

    def __repr__(self) -> str:
        return block(f"Run {str(self.folder)!r} of recipe {self.recipe.name!r} on {self.device}", self.recipe.lines())

    def _repr_html_(self) -> str:
        file = self.folder / CURVES
        return block_as_html(repr(self), read_bytes(file, LARGEST_TEXT) if file.is_file() else b"")

    def __reduce__(self) -> tuple[Callable[[Sequence[str]], Run], tuple[Sequence[str]], dict[str, Any]]:
        """Copy and pickle without the derived decoders; unpickling first imports the code of the user's parts."""
        return _bare_run, (self.recipe.imports,), {**vars(self), "_decoders": {}}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer that the model was trained with; if there are two, that of the output.

        Raises RunError for an imported model without one.
        """
        folder = RunFolder(self.folder)
        if self.recipe.data is None and not tokenizer_files(folder):
            lacks = (
                f"{self.folder / TOKENIZER}: is missing" if self.folder.is_dir() else f"{self.folder}: has no tokenizer"
            )
            raise RunError(f"{lacks}: this run works on ids (run.model), not on texts")
        if self.recipe.data is not None and self.recipe.data.tokenizer is None:
            return Tokenizer.empty()
        return load_tokenizer(folder)

    @property
    def source_tokenizer(self) -> Tokenizer:
        """Tokenizer of the encoder's input; equals `tokenizer` unless source and target have one each."""
        return self.tokenizer.source

    @property
    def blueprint(self) -> Blueprint:
        """The architecture, with the vocabulary size of the tokenizer."""
        recipe = self.recipe.labelled(len(self.labels))
        return recipe.blueprint(self.tokenizer.sizes if recipe.unknown_vocab else None)

    @property
    def cost(self) -> str:
        """Parameters and FLOPs as sentences; FLOPs are omitted if a part cannot be measured without weights."""
        from tfkit.reports.counts import count  # the weights are not needed, and may not exist yet

        model = build_model(self.blueprint, device="meta")
        text = f"{sum(weight.numel() for weight in model.parameters()):,} parameters."
        try:
            found = count(self.blueprint)
        except Exception:  # a failing part of the user must not spoil a completed training
            return text
        return f"{text} {found.total.flops_per_token:,} FLOPs per token of a forward pass at length {found.length:,}."

    @property
    def summary(self) -> list[str]:
        """The cost, and the lines of the recipe with the vocabulary of the tokenizer."""
        return [self.cost, *self.recipe.lines(self.blueprint)]

    @property
    def weights(self) -> Path:
        """The weights file: in the folder, or the one the run was loaded from."""
        return self.folder if is_weights_file(self.folder) else self.folder / WEIGHTS

    @property
    def _described(self) -> Path:
        """The file containing the recipe."""
        return self.folder if self.folder == self.weights else self.folder / RESOLVED

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names of the head, in the order of the logits; empty if unknown."""
        return read_labels(RunFolder(self.folder))

    @cached_property
    def model(self) -> Model:
        """The model with the trained or imported weights, in eval mode."""
        file = self.weights
        if file == self.folder:
            check_fits(file, self.blueprint)
        with record.checking(RunFolder(self.folder), WEIGHTS):
            model = build_model(self.blueprint, device=self.device, dtype=saved_dtype(file))
            load_weights(model, file)
        return model.eval()

    @cached_property
    def stores_int8(self) -> bool:
        """True if the weights of this run are stored in int8; the model has them in float32."""
        file = self.weights
        return file.is_file() and holds_int8(file)

    @cached_property
    def objective(self) -> Objective:
        """Objective that the model was trained for, bound to its tokenizer."""
        if self.recipe.objective is None:
            raise RunError(f"{self._described}: says no objective")
        return self._bound(self.recipe.objective.build())

    @cached_property
    def predictor(self) -> Objective:
        """Objective used for predictions: the run's own, or for an imported model the one matching its head."""
        if self.recipe.objective is not None:
            return self.objective
        head = self.blueprint.head
        for name in PREDICTORS:
            objective: Objective = REGISTRY.get("objective", name).Config().build()
            if head is not None and head.part.part_name in objective.heads:
                return self._bound(self._reads_as_imported(objective))
        has = "has no head" if head is None else f"has a head '{head.part.part_name}'"
        raise UsageError(f"{self.folder}: predicts nothing: this model {has}; tfkit generate, or embed, may serve")

    def _reads_as_imported(self, objective: Objective) -> Objective:
        """Set the objective's template to that of the tokenizer."""
        if isinstance(objective, Reading):
            objective.rows.template = Frame.of_template(self.tokenizer)
        return objective

    def _bound(self, objective: Objective) -> Objective:
        objective.rows.labels = self.labels
        objective.rows.read_model(self.blueprint)
        objective.rows.bind(self.tokenizer)
        return objective

    def generate(
        self, prompts: Prompts, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> list[str]:
        """Generate the best continuation, or translation, of each prompt.

        A prompt is a text or a list of ids. The options (GenerateOptions) are those of the command: strategy,
        temperature, top_k, num_beams, seed, ..., by default those of the recipe's `generate:`; prompts are processed in
        batches of `batch_size` (64). A masked language model fills the masks of a text instead. Warns about a text
        truncated before it satisfied the rules of `logits`. Raises UsageError for an invalid prompt or a model that
        does not generate; RecipeError for an invalid part.
        """
        best = [found[0] for found in self._found(prompts, max_new_tokens, options, scored=False)]
        warn_of_cut(best)
        return [written.text for written in best]

    def candidates(
        self, prompts: Prompts, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> list[list[GeneratedText]]:
        """Return all candidates of each prompt, the best first: texts with ids, log-probability and score.

        For a masked language model these are the likeliest fills of the masks of each text.
        """
        return self._found(prompts, max_new_tokens, options, scored=True)

    def stream(
        self, prompt: str | Ids, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> Generator[str, None, GeneratedText]:
        """Stream the text that `generate` returns for one prompt.

        Raises UsageError immediately for invalid arguments, and for a strategy that cannot stream. Closing the iterator
        stops the search. The generator returns the candidate.
        """
        writer = self.writer(max_new_tokens, **options)
        read = self._sources([prompt] if isinstance(prompt, Vectors) else prompt)
        if len(read) != 1:
            raise UsageError(f"a stream is of one prompt, got {len(read)}")
        return writer.stream(read[0])

    def writer(self, max_new_tokens: int | None = None, **options: Unpack[GenerateOptions]) -> Writer:
        """Return a writer with its strategy and rules; raises as `generate` does."""
        if not self.writes:
            raise UsageError(f"{self.folder} holds an encoder, which reads texts but writes none")
        start = self._start if self.blueprint.encoder is not None else None
        check_options(options, max_new_tokens)
        quantize = options.get("quantize")
        decoder = self.decoder(quantize)
        writer = make_writer(decoder, self.tokenizer, self.recipe.generate, start, max_new_tokens, options)
        writer.strategy.bind(self.tokenizer, partial(self._other, quantize=quantize))
        return writer

    def decoder(self, quantize: Quantize | None = None) -> StepDecoder:
        """Return the decoder, cached for each value of `quantize`; raise UsageError for an unknown one.

        On a CPU, weights stored in int8 are decoded in int8.
        """
        if quantize is None and self.stores_int8 and self.device.type == "cpu":
            quantize = "int8"
        found = self._decoders.get(quantize)
        if found is None or found.model is not self.model:
            found = self._decoders[quantize] = StepDecoder(self.model, quantize)
        return found

    def _other(self, path: str, quantize: Quantize | None) -> tuple[StepDecoder, Tokenizer]:
        """Return the decoder and the tokenizer of another run, loaded once."""
        if path not in self._others:
            self._others[path] = load_run(path, device=str(self.device))
        return self._others[path].decoder(quantize), self._others[path].tokenizer

    @cached_property
    def _others(self) -> dict[str, Run]:
        return {}

    @property
    def reads_vectors(self) -> bool:
        """True if the model reads arrays instead of texts."""
        return next(self.blueprint.stacks()).reads_vectors

    @property
    def writes(self) -> bool:
        """True if the model has a decoder; without one it may still fill masks."""
        return self.blueprint.decoder is not None

    @parts_named()
    def _found(
        self, prompts: Prompts, max_new_tokens: int | None, options: GenerateOptions, scored: bool
    ) -> list[list[GeneratedText]]:
        if self.writes:
            return self.writer(max_new_tokens, **options).write(self._sources(prompts), scored)
        return self._filled(prompts, {"max_new_tokens": max_new_tokens, **options})

    def _sources(self, prompts: Any) -> Sequence[Source]:
        """Return the ids of prompts, or the vectors [time width] of arrays."""
        if not self.reads_vectors:
            return prompt_ids(prompts, self.read)
        arrays = as_vectors(prompts)
        items = self.objective.rows.vectors([{"vectors": name} for name in arrays])
        stack = self.model.stack(next(self.blueprint.stacks()).side)
        cut = [stack.cut(torch.from_numpy(item["vectors"])[None]) for item in items]
        return [rows[0].numpy() for rows in cut if rows is not None]

    def _filled(self, texts: Any, options: Mapping[str, Any]) -> list[list[GeneratedText]]:
        """Return the fills for the masks of each text; raise UsageError for an encoder without masks."""
        if not isinstance(self.predictor, MaskedLm):
            raise UsageError(
                f"{self.folder} holds an encoder, which reads texts but writes none; tfkit predict or embed may serve"
            )
        check_options({name: option for name, option in options.items() if name != "max_new_tokens"})
        asked = ", ".join(name for name, option in options.items() if option is not None)
        if asked:
            raise UsageError(f"{self.folder} fills masks, and {asked} is for models that write")
        mask = self.tokenizer.token(self.predictor.rows.tokens.special["mask"])
        return [fillings(one["text"], mask, one["fills"]) for one in self.predict(texts)]

    @parts_named()
    def predict(self, texts: Texts) -> list[Prediction]:
        """Predict each text: its label, the tags of its words, the answer in it, or fills for its masks.

        A text is a string, or a mapping for pairs: `text` and `second`, `question` and `context`. For a model of
        vectors it is an array. Each prediction is a JSON-serializable mapping. Raises UsageError for a model without
        predictions.
        """
        predictor = self.predictor
        given: Sequence[Any] = [texts] if self.reads_vectors or isinstance(texts, (str, Mapping)) else list(texts)
        given = as_vectors(texts) if self.reads_vectors else given
        fields = text_fields(predictor)
        if predictor.answers is None or not predictor.answers.predicts:
            raise UsageError(f"a model trained for {predictor.part_name} predicts nothing of a text; tfkit generate")
        examples = [_example(text, fields) for text in given]
        return predictor.answers.predict(self.model, examples, self.tokenizer) if examples else []

    @parts_named()
    def embed(
        self,
        texts: str | Sequence[str],
        pooling: Pooling = "mean",
        normalize: bool = True,
        batch_size: int | None = None,
    ) -> Tensor:
        """Return the pooled last hidden states of each text, [texts d_model], in float32 (float64 if the model is).

        `pooling` is the mean over all tokens but padding, or the first or last of them; `normalize` divides by the norm
        of the vector. Long texts are truncated. Raises UsageError.
        """
        if self.reads_vectors:
            raise UsageError(f"{self.folder}: this model reads arrays, and embed reads texts; run.model does more")
        if pooling not in ("mean", "first", "last"):
            raise UsageError(f"pooling is mean, first or last, got '{pooling}'")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size is 1 or more, got {batch_size}")
        given = [texts] if isinstance(texts, str) else list(texts)
        plan = next(self.blueprint.stacks())
        ids = [self._cut(ids, plan.max_length) for ids in self._read_plainly(given)]
        if not ids:
            return torch.empty(0, plan.d_model)
        return text_vectors(self.model, ids, pooling, normalize, batch_size)

    @parts_named()
    def attention(self, text: str, target: str | None = None) -> AttentionMaps:
        """Return the attention weights of every head for a text, with its tokens as labels.

        An encoder-decoder reads `text` and the `target`, by default its own output. Raises UsageError for a text
        without tokens, or longer than the maximum, and for a model that exposes no weights.
        """
        model = self.model
        pair = model.blueprint.encoder is not None and model.blueprint.decoder is not None
        if not isinstance(text, str) or not isinstance(target, (str, type(None))):
            raise UsageError(f"attention is of a text, or of a source and a target, got {text!r} and {target!r}")
        if target is not None and not pair:
            raise UsageError(f"{self.folder}: reads one text; a target is for an encoder-decoder")
        (ids,) = self.read([text]) if self.writes else self._read_plainly([text])
        if not ids:
            raise UsageError("the text has no tokens")
        special = self._labels(list(self.tokenizer.special_ids.values()))
        return attention_of(model, ids, self._target(text, target) if pair else None, self._labels, special)

    def _target(self, source: str, target: str | None) -> list[int]:
        """Return the ids of a target from the start to the end token; None: generate it."""
        ids = self.tokenizer.encode(target) if target is not None else list(self.candidates(source)[0][0].ids)
        end = dict(self.blueprint.special_ids).get("end", self.tokenizer.special_ids.get("end"))
        ids = ids if end is None or ids[-1:] == [end] else [*ids, end]
        return [self._start, *ids]

    def _labels(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tokenizer.readable_token(id_) for id_ in ids)

    def _read_plainly(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts with the special tokens of the objective, or of an imported tokenizer template."""
        if self.recipe.objective is not None:
            return [self.objective.rows.prompt(ids) for ids in self.source_tokenizer.encode_batch(texts)]
        return self.source_tokenizer.encode_batch(texts, template=True)

    def _cut(self, ids: list[int], longest: int | None) -> list[int]:
        """Truncate to the maximum length, keeping a special token at the end."""
        if not ids:
            return [self.source_tokenizer.special_ids.get("pad", 0)]
        if longest is None or len(ids) <= longest:
            return ids
        ends = ids[-1] in self.source_tokenizer.special_ids.values()
        return [*ids[: longest - 1], ids[-1]] if ends else ids[:longest]

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts in the format of the objective, or of an imported model's tokenizer."""
        if self.recipe.objective is not None:
            return [self.objective.rows.prompt(ids) for ids in self.source_tokenizer.encode_batch(texts)]
        first = dict(self.blueprint.special_ids).get("start")
        nothing = [] if first is None else [first]  # the start token
        return [ids or nothing for ids in self.source_tokenizer.encode_batch(texts, special=True, template=True)]

    @property
    def _start(self) -> int:
        """Id of the decoder's start token, in an encoder-decoder."""
        special_ids = dict(self.blueprint.special_ids) if self.recipe.objective is None else {}
        found = special_ids.get("start", self.tokenizer.special_ids.get("start"))
        if found is None:
            raise RunError(f"{self._described}: says no model.special_ids.start, which the decoder begins with")
        return found

    @parts_named()
    def evaluate(
        self, split: str | None = None, limit: int | None = None, quantize: Quantize | None = None
    ) -> dict[str, float]:
        """Return loss and metrics on a split (test, else valid) or its first `limit` examples; also in evaluation.json.

        `split` may also be the name of one of `train.evaluations`. The metrics are those of `train.metrics`; by default
        those of the objective, such as accuracy or BLEU. With `quantize="int8"` the weights are quantized; then, and
        for a run loaded with `sets`, no file is written. If the file cannot be written, a TfkitWarning is issued.
        """
        if split in self.recipe.train.evaluations:
            return self._evaluated(str(split), limit, quantize)
        split = split or self._judged
        record.check_there(RunFolder(self.folder), EVALUATION)
        examples = self._examples(split)[:limit]
        if quantize is not None:
            return self._quantized(quantize)._scores(examples, self.recipe.train.metrics)
        scores = self._scores(examples, self.recipe.train.metrics)
        if self.as_saved:
            try:
                self._keep(split, {"examples": len(examples), **scores})
            except RunError as error:
                warnings.warn(f"the scores are not written down: {error}", TfkitWarning, stacklevel=3)
        return scores

    @property
    def _judged(self) -> str:
        """The split of the final scores."""
        return "valid" if self._data.test is None else "test"

    def _evaluated(self, name: str, limit: int | None = None, quantize: Quantize | None = None) -> dict[str, float]:
        """Return the scores under an entry of `train.evaluations`, and save them in evaluation.json."""
        other = copy.copy(self) if quantize is None else self._quantized(quantize)
        other.recipe = self.recipe.evaluated(name)
        other.__dict__.pop("objective", None)
        examples = other._examples(other._judged)[:limit]
        scores = other._scores(examples, self.recipe.train.metrics)
        if self.as_saved and quantize is None:
            self._keep(name, {"examples": len(examples), **scores})
        return scores

    def _generation_rate(self, asked: GenerationRate) -> float:
        """Return the generated tokens per second, and save them in evaluation.json."""
        start = self._start if self.blueprint.encoder is not None else None
        rate = generation_rate(self.decoder(), start, asked.batch, asked.prompt, asked.new)
        self._keep("generation", {"tokens_per_second": rate})
        return rate

    def _quantized(self, quantize: Quantize) -> Run:
        """Return a copy of the run with quantized weights; this one's are unchanged."""
        other = copy.copy(self)
        other.model = self.decoder(quantize).current()
        return other

    def _keep(self, split: str, scores: Mapping[str, Any]) -> None:
        """Add the scores of a split to evaluation.json; raise RunError."""
        file = self.folder / EVALUATION
        before = read_json(file) if file.exists() else {}
        if not isinstance(before, dict):
            raise RunError(f"{file}: holds no scores by split")
        write_json(file, {**before, split: scores})

    def _concluding_scores(self, split: str) -> dict[str, float]:
        """Compute and save the scores at the end of training; on RunError the run stays unfinished."""
        examples = self._examples(split)
        scores = self._scores(examples, self.recipe.train.metrics)
        self._keep(split, {"examples": len(examples), **scores})
        return scores

    def _during(self, task: Task) -> ValidationScores:
        """Compute the metrics and samples of a validation with a copy of the model that shares its weights.

        State cached by generation stays with the copy.
        """
        shared: dict[int, Any] = {id(weight): weight for weight in task.model.parameters()}
        other = copy.copy(self)
        other.recipe, other.tokenizer, other.objective = task.recipe, task.tokenizer, task.objective
        other.model = copy.deepcopy(task.model, shared).eval()
        asked = self.recipe.train.validate
        examples = other._examples("valid")
        scores = other._scores(examples[: asked.limit], asked.metrics) if asked.metrics else {}
        return ValidationScores({name: scores[name] for name in asked.names}, other.samples(asked.samples))

    def _scores(self, examples: Sequence[Mapping[str, str]], metrics: Sequence[Config]) -> dict[str, float]:
        """Compute loss and metrics of examples; by default the metrics of the objective."""
        nats, targets = total_loss(self.model, self._feed(examples))
        loss = nats / targets
        scores = {"loss": loss}
        texts: tuple[list[str], list[str]] | None = None
        fields = text_fields(self.objective)
        for metric in chosen_metrics(metrics, self.objective):
            if metric.reads == "loss":
                per = nats / self._characters(examples, metric.part_name) if metric.per_character else loss
                scores[metric.part_name] = metric.from_loss(per)
            else:
                texts = texts or self._outputs(examples, metric.part_name)
                outputs, references = (
                    [as_compared(metric, *one) for one in zip(examples, side, strict=True)] for side in texts
                )
                scores[metric.config.scores()[0]] = metric.score(outputs, references)
                scores |= metric.by_length(outputs, references, [length_of(example, fields) for example in examples])
                if "source" in fields:
                    scores |= metric.of_sources([example["source"] for example in examples], references)
        return scores

    def _characters(self, examples: Sequence[Mapping[str, str]], metric: str) -> int:
        """Count the characters predicted in the examples; raise UsageError if the loss is not about characters."""
        if "characters" not in self.objective.capabilities:
            raise UsageError(f"{metric} is of models that write a text; {self.objective.part_name} does not")
        written = self.objective.rows.fields[-1]
        return max(1, sum(len(example[written]) for example in examples))

    def samples(self, count: int, split: str = "valid") -> list[SampleOutput]:
        """Return outputs next to references for the first examples of a split; none if the model does not translate."""
        fields = self.objective.rows.fields
        translates = self.writes and fields in (("source", "target"), ("vectors", "target"))
        if not count or not translates or getattr(self._data, split) is None:
            return []
        examples = self._examples(split)[:count]
        outputs, references = self._outputs(examples, "samples")
        sources = [example[fields[0]] for example in examples]
        return [SampleOutput(*texts) for texts in zip(sources, outputs, references, strict=True)]

    def inputs(self, path: str) -> list[Vectors]:
        """Read arrays, pictures or sounds from a file or folder with the settings of training; raise DataError."""
        corpus = self._data.train.build()
        if not self.reads_vectors or not isinstance(corpus, VectorCorpus):
            raise UsageError(f"{self.folder}: this model reads texts")
        return list(corpus.inputs(path))

    @property
    def _data(self) -> Data:
        if self.recipe.data is None:
            raise RunError(f"{self._described}: says no data")
        return self.recipe.data

    def _examples(self, split: str) -> list[dict[str, str]]:
        corpora = dict(self._data.splits())
        if split not in corpora:
            raise UsageError(f"this run has no split '{split}'; it has {', '.join(corpora)}")
        examples: list[dict[str, str]] = corpora[split].build().examples()
        return examples

    def _feed(self, examples: Sequence[Mapping[str, str]]) -> Feed:
        longest = longest_example(self.model.blueprint, self._data)
        items = self.objective.rows.prepare(examples, self.tokenizer, longest)
        return Feed(self.objective, items, self._data.batch, self.recipe.train.seed, self.device, VALID)

    def task(self, examples: int) -> Task:
        """Return a task for training a float32 copy of the model on the first examples.

        Raises RunError for a run without data or objective.
        """
        data = self._data
        if self.recipe.objective is None:
            raise RunError(f"{self._described}: says no objective")
        model = build_model(self.blueprint, device=self.device)
        model.load_state_dict(self.model.state_dict())
        objective = self._bound(self.recipe.objective.build())
        items = objective.rows.prepare(
            self._examples("train")[:examples], self.tokenizer, longest_example(model.blueprint, data)
        )
        objective.attach(model)
        settings = self.recipe.train
        feed = Feed(objective, items, data.batch, settings.seed, self.device)
        return Task(self.recipe, model, self.tokenizer, objective, settings, settings.steps or 1, feed, None, {})

    def _outputs(self, examples: Sequence[Mapping[str, str]], purpose: str) -> tuple[list[str], list[str]]:
        """Return the model's outputs and the references; the output is empty if the source is too long."""
        answers = self.objective.answers
        if answers is None or answers.reference is None:
            name = self.objective.part_name
            raise UsageError(f"{purpose} compares outputs with references, and {name} has none")
        if answers.predicts:
            predictions = answers.predict(self.model, examples, self.tokenizer)
            outputs = [answers.text(prediction) for prediction in predictions]
            return outputs, [answers.wanted(example) for example in examples]
        if self.reads_vectors:
            return self.generate([example["vectors"] for example in examples]), [one["target"] for one in examples]
        sources = [example["source"] for example in examples]
        bound = most_positions(self.model, next(self.blueprint.stacks()).side) or 2**62
        read = self.source_tokenizer.encode_batch(sources)
        fits = [len(self.objective.rows.prompt(ids)) <= bound for ids in read]
        written = iter(self.generate([text for text, fit in zip(sources, fits, strict=True) if fit]))
        return [next(written) if fit else "" for fit in fits], [example["target"] for example in examples]


def _bare_run(imports: Sequence[str]) -> Run:
    """Return a Run without state, for unpickling, after importing the files that its parts are in."""
    for name in imports:
        if find_imported(name) is None:
            import_parts(name)
    return object.__new__(Run)


def _example(text: Any, fields: Sequence[str]) -> dict[str, str]:
    """Convert an input text to an example; raise UsageError for missing fields."""
    example = {fields[0]: text} if isinstance(text, str) and len(fields) == 1 else text
    known = dict(example) if isinstance(example, Mapping) else {}
    missing = [field for field in fields if not isinstance(known.get(field), str)]
    if missing or not all(isinstance(value, str) for value in known.values()):
        raise UsageError(f"this model reads {' and '.join(fields)}: give a mapping of them to texts, got {text!r}")
    return known


def load_run(
    path: str | Path,
    trust: bool = False,
    device: str = "cpu",
    imports: Sequence[str | Path] = (),
    sets: Sequence[str] = (),
    accept_changes: bool = False,
) -> Run:
    """Load the run in a folder; raise RunError for missing files, or files changed since they were written.

    `path` may also be a single weights file, FILE.safetensors: its metadata holds the architecture, and the run works
    on ids (run.model). Nothing else is read then, and no code runs except `imports`. hf://user/name is a run on the
    Hugging Face hub; its copy in the hub's cache is not modified. `trust` imports the code of the run's parts,
    `imports` lists it by file, at its current place; `sets` overrides the recipe's data, objective and generation in
    the syntax of `--set` ("generate.stop=[end_token]"), except settings that the weights depend on. `accept_changes`
    records the current files: use it if they were replaced on purpose. `device` is cpu, cuda, cuda:1 or auto, which
    selects CUDA if available (the default of the commands).
    """
    choose_device(device, "device")
    for text in sets:
        if problem := value_problem(text.partition("=")[0].strip()):
            raise UsageError(f"--set {text}: this run is made already: {problem}")
    if is_weights_file(path):
        return Run(path, recipe_in(Path(path), imports, sets), device, as_saved=False)
    hub = is_on_hub(path)
    if hub and accept_changes:
        raise UsageError(f"{path}: is on the hub, where nothing is recorded; load it without accept_changes")
    folder = RunFolder(downloaded_run(str(path)) if hub else Path(path))
    if not folder.path.is_dir():
        raise RunError(f"{folder}: there is no such folder")
    if accept_changes:
        record.accept(folder)
    for name in (RESOLVED, WEIGHTS):
        if not (folder / name).is_file():
            unfinished = name == WEIGHTS and Checkpoints(folder / CHECKPOINTS).last() is not None
            raise RunError(f"{folder / name}: is missing" + (", since training kept no weights yet" * unfinished))
    record.check(folder, record.SMALL)
    recipe = saved_recipe(folder, trust, imports, sets)
    if recipe.data is not None and recipe.data.tokenizer is not None:
        check_tokenizer(folder)
    known = folder.known if (folder / ENVIRONMENT).is_file() else {}
    named = replace(recipe, name=str(known.get("recipe", folder.path.name)))
    return Run(folder.path, named, device, as_saved=not sets and not hub)


@parts_named()
def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    accept_changes: bool = False,
    **reading: Unpack[ReadingOptions],
) -> Run:
    """Train the model of a recipe (a name, a path, a mapping or a Recipe) into the folder `out`.

    The default is runs/<its name> with the variants and changed values (`names-rotary-s3`) and a free number.

    `resume` continues the run in the folder, or starts it; `force` renames it to NAME.old. Ctrl-C saves a checkpoint
    and raises Interrupted. `accept_changes` is that of load_run, applied to the resumed run and the run that training
    starts from. Further keywords are those of load_recipe: overrides, variant, trust, sets, imports. Raises RunError,
    UsageError or DataError for invalid arguments before training starts.
    """
    loaded = read_for("train", ("out", "resume", "force", "progress", "accept_changes"), recipe, reading)
    loaded.tell_warnings()
    with (
        one_training(),
        claim_folder(run_name(loaded), out, resume, force) as claim,
        record.completed(claim.folder),
        Reporter(progress) as reporter,
    ):
        folder = claim.folder
        run = Run(folder.path, loaded, loaded.train.device)
        if accept_changes:
            _accept_changes(folder, loaded, resume)
        if resume:
            record.check_resumed(folder)
        for message in mend(folder) if resume else ():
            reporter.say(message)
        if resume and is_finished(folder, loaded):
            restore_history(folder, loaded)
            reporter.say(f"{folder}: is finished; nothing is left to do\n{_next(run)}")
        else:
            try:
                train_in(claim, loaded, reporter, run._during)
            finally:
                write_curves(folder)
            _conclude(run, reporter)
            write_card(folder, loaded.name, run.summary)
            mark_finished(folder, loaded)
    return run


@parts_named()
def save(
    model: Model,
    recipe: str | Path | Mapping[str, Any] | Recipe,
    tokenizer: Tokenizer | None,
    out: str | Path,
    labels: Sequence[str] = (),
    force: bool = False,
    **reading: Unpack[ReadingOptions],
) -> Run:
    """Save a model from a custom training loop as a run in the folder `out`.

    `tokenizer` may be None if the recipe has no `data:`; the run then works on ids. `labels` are the class names of a
    classifier in the order of its logits. `force` renames an existing run to NAME.old. Further keywords are those
    of load_recipe. Raises UsageError if the model does not match the recipe, RunError if the folder is occupied;
    nothing is written then.
    """
    loaded = read_for("save", ("labels", "force"), recipe, reading)
    run = load_run(save_run(model, loaded, tokenizer, out, labels, force))
    write_card(RunFolder(run.folder), run.recipe.name, run.summary)
    return run


def _accept_changes(folder: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Record the current files of the initial run, the teacher, and the resumed run."""
    others = [source.run for source in (recipe.train.initial, recipe.train.teacher) if source is not None]
    for other in (RunFolder(Path(run)) for run in dict.fromkeys(others)):
        if record.has_record(other):
            record.accept(other)
    if resume and folder.holds_run:
        record.accept(folder)
        record.accept_checkpoint(folder)


def _conclude(run: Run, reporter: Reporter) -> None:
    """Compute and show the scores at the end of training."""
    settings, data = run.recipe.train, run.recipe.data
    split = "valid" if data is None else run._judged
    for measured in data.measured() if settings.metrics and data is not None else []:
        reporter.say(_scores_line(measured, run._concluding_scores(measured)))
    for name in settings.evaluations:
        reporter.say(_scores_line(name, run._evaluated(name)))
    if settings.generation_rate is not None:
        reporter.say(f"generation: {run._generation_rate(settings.generation_rate):,.0f} tokens/s")
    samples = run.samples(settings.samples, split)
    for sample in samples:
        reporter.log(sample.line())
    if samples:
        reporter.draw(lambda stream: print_samples(samples, stream))
    reporter.say(_next(run, samples[0].source if samples else "..."))


def _scores_line(split: str, scores: Mapping[str, float]) -> str:
    return f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items())


def _next(run: Run, prompt: str = "...") -> str:
    """Return the suggested next commands."""
    lines = [f"tfkit evaluate {run.folder}", f"tfkit show {run.folder}"]
    if predicts(run.objective) or run.objective.reads != "bidirectional":
        given = "--input FILE.npy" if run.reads_vectors else f'"{prompt}"'
        lines.insert(0, f"tfkit {'predict' if predicts(run.objective) else 'generate'} {run.folder} {given}")
    return "next: " + "\n      ".join(lines)


def evaluate(
    run: Run | str | Path,
    split: str | None = None,
    limit: int | None = None,
    trust: bool = False,
    imports: Sequence[str | Path] = (),
) -> dict[str, float]:
    """Call `Run.evaluate` on a run or a folder, loaded with `trust` and `imports` by load_run."""
    return (run if isinstance(run, Run) else load_run(run, trust, imports=imports)).evaluate(split, limit)
