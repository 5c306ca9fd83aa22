"""A Run: the folder that training leaves behind, to be generated from, evaluated and resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError, UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.stepper import most_positions
from tfkit.generation.texts import write_all
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.sections import Data
from tfkit.training.checkpoint import Checkpoints
from tfkit.training.device import choose_device
from tfkit.training.feed import VALID, Feed
from tfkit.training.folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    EVALUATION,
    RESOLVED,
    TOKENIZER,
    WEIGHTS,
    RunFolder,
    read_json,
    write_json,
)
from tfkit.training.lifecycle import is_finished, mark_finished, train_in
from tfkit.training.objective import Objective
from tfkit.training.progress import Reporter
from tfkit.training.samples import Sample, cut, print_samples
from tfkit.training.scoring import chosen_metrics
from tfkit.training.setup import longest_example
from tfkit.training.start import choose_folder
from tfkit.training.validation import mean_loss
from tfkit.training.weights import load_weights


class Run:
    """A trained model with its recipe and tokenizer; each is read when it is first asked for."""

    def __init__(self, folder: str | Path, recipe: Recipe, device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.recipe = recipe
        self.device = choose_device(device)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the model was trained with."""
        return Tokenizer.load(self.folder / TOKENIZER)

    @cached_property
    def model(self) -> Model:
        """The model with the weights that training kept, ready to be used."""
        model = build_model(self.recipe.blueprint(self.tokenizer.vocab_size), device=self.device)
        load_weights(model, self.folder / WEIGHTS)
        return model.eval()

    @cached_property
    def objective(self) -> Objective:
        """What the model was trained for, bound to its tokenizer."""
        if self.recipe.objective is None:
            raise RunError(f"{self.folder / RESOLVED}: says no objective")
        objective: Objective = self.recipe.objective.build()
        objective.bind(self.tokenizer)
        return objective

    def generate(
        self, prompts: str | Sequence[str], max_new_tokens: int | None = None, batch_size: int = 64
    ) -> list[str]:
        """Translations of the prompts, or what comes behind them; one text each, in their order.

        `max_new_tokens` is by default what the recipe's `generate:` says. Raises UsageError for a prompt the model
        cannot read, and for a model that does not write.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts:
            return []
        if self.recipe.blueprint(self.tokenizer.vocab_size).decoder is None:
            raise UsageError(f"{self.folder} holds an encoder, which reads texts but writes none")
        read = [self.objective.prompt(ids) for ids in self.tokenizer.encode_batch(texts)]
        end = self.tokenizer.special_ids.get("end")
        limits = [self._limit(len(ids), max_new_tokens) for ids in read]
        if self.model.blueprint.encoder is None:
            written = write_all(self.model, read, limits, end, batch_size=batch_size)
            return [self._behind(prompt, new) for prompt, new in zip(read, written, strict=True)]
        start = [[self.tokenizer.special_ids["start"]]] * len(read)
        written = write_all(self.model, start, limits, end, sources=read, batch_size=batch_size)
        return [self.tokenizer.decode(ids) for ids in written]

    def _limit(self, length: int, most: int | None) -> int:
        settings = self.recipe.generate
        if most is not None:
            return most
        if settings.length_ratio is None or self.model.blueprint.encoder is None:
            return settings.max_new_tokens
        return min(settings.max_new_tokens, int(settings.length_ratio * length) + 10)

    def _behind(self, prompt: list[int], new: list[int]) -> str:
        """The text of the new tokens as it stands behind the prompt: a space between the two belongs to it."""
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *new])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(new)

    def evaluate(self, split: str | None = None, limit: int | None = None) -> dict[str, float]:
        """Loss and metrics on a split (test, else valid) or its first `limit` examples; also in evaluation.json.

        The metrics are those of `train.metrics`; by default perplexity, and BLEU and exact match of translations.
        """
        split = split or ("valid" if self._data.test is None else "test")
        examples = self._examples(split)[:limit]
        loss = mean_loss(self.model, self._feed(examples))
        scores = {"loss": loss}
        texts: tuple[list[str], list[str]] | None = None
        for metric in chosen_metrics(self.recipe.train.metrics, self.objective):
            if metric.needs == "loss":
                scores[metric.part_name] = metric.from_loss(loss)
            else:
                texts = texts or self._outputs(examples, metric.part_name)
                scores[metric.part_name] = metric.score(*texts)
        file = self.folder / EVALUATION
        before = read_json(file) if file.exists() else {}
        write_json(file, {**before, split: {"examples": len(examples), **scores}})
        return scores

    def samples(self, count: int, split: str = "valid") -> list[Sample]:
        """Outputs beside references, of the first examples of a split; none of a model that translates nothing."""
        if not count or self.objective.reads != "encoder_decoder" or getattr(self._data, split) is None:
            return []
        examples = self._examples(split)[:count]
        outputs, references = self._outputs(examples, "samples")
        sources = [example["source"] for example in examples]
        return [Sample(*texts) for texts in zip(sources, outputs, references, strict=True)]

    @property
    def _data(self) -> Data:
        if self.recipe.data is None:
            raise RunError(f"{self.folder / RESOLVED}: says no data")
        return self.recipe.data

    def _examples(self, split: str) -> list[dict[str, str]]:
        corpus = getattr(self._data, split) if split in ("train", "valid", "test") else None
        if corpus is None:
            there = [name for name in ("train", "valid", "test") if getattr(self._data, name) is not None]
            raise UsageError(f"this run has no split '{split}'; it has {', '.join(there)}")
        examples: list[dict[str, str]] = corpus.build().examples()
        return examples

    def _feed(self, examples: Sequence[Mapping[str, str]]) -> Feed:
        longest = longest_example(self.model.blueprint, self._data)
        items = self.objective.prepare(examples, self.tokenizer, longest)
        return Feed(self.objective, items, self._data.batch, self.recipe.train.seed, self.device, VALID)

    def _outputs(self, examples: Sequence[Mapping[str, str]], purpose: str) -> tuple[list[str], list[str]]:
        """What the model writes for each example, and its references; nothing for a source too long to be read."""
        if self.objective.reads != "encoder_decoder":
            raise UsageError(f"{purpose} compares outputs with references, and {self.objective.part_name} has none")
        sources = [example["source"] for example in examples]
        bound = most_positions(self.model, "encoder") or 2**62
        read = self.tokenizer.encode_batch(sources)
        fits = [len(self.objective.prompt(ids)) <= bound for ids in read]
        written = iter(self.generate([text for text, fit in zip(sources, fits, strict=True) if fit]))
        return [next(written) if fit else "" for fit in fits], [example["target"] for example in examples]


def load_run(path: str | Path, trust: bool = False, device: str = "cpu") -> Run:
    """The run in a folder; raises RunError naming what is missing. `trust` imports the code its recipe asks for."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise RunError(f"{folder}: there is no such folder")
    for name in (RESOLVED, TOKENIZER, WEIGHTS):
        if not (folder / name).is_file():
            unfinished = name == WEIGHTS and Checkpoints(folder / CHECKPOINTS).last() is not None
            raise RunError(f"{folder / name}: is missing" + (", since training kept no weights yet" * unfinished))
    recipe = load_recipe(folder / RESOLVED, trust=trust)
    known: Any = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).is_file() else {}
    return Run(folder.path, replace(recipe, name=known.get("recipe", folder.path.name)), device)


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    trust: bool = False,
) -> Run:
    """Train the model of a recipe (a name, a path, a mapping or a Recipe) into a folder, by default runs/<its name>.

    `resume` goes on with what is in the folder, or starts; `force` replaces the run in it. Ctrl-C raises Interrupted,
    with a checkpoint saved. Raises RunError, UsageError or DataError for what cannot be done, before training starts.
    """
    loaded = load_recipe(recipe, trust=trust)
    folder = choose_folder(loaded.name, out, resume, force)
    run = Run(folder.path, loaded, loaded.train.device)
    with Reporter(visible=progress) as reporter:
        if resume and is_finished(folder, loaded):
            reporter.say(f"{folder}: is finished; nothing is left to do\n{_next(run)}")
        else:
            train_in(folder, loaded, resume, reporter)
            _conclude(run, reporter)
            mark_finished(folder, loaded)
    return run


def _conclude(run: Run, reporter: Reporter) -> None:
    """What is measured and shown when training ends."""
    settings, data = run.recipe.train, run.recipe.data
    split = "valid" if data is None or data.test is None else "test"
    if settings.metrics and data is not None and getattr(data, split) is not None:
        scores = run.evaluate(split)
        reporter.say(f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items()))
    samples = run.samples(settings.samples, split)
    for sample in samples:
        reporter.log(f"{cut(sample.source)} -> {cut(sample.output)} (reference: {cut(sample.reference)})")
    if samples and reporter.visible:
        print_samples(samples, reporter.stream)
    reporter.say(_next(run, samples[0].source if samples else "..."))


def _next(run: Run, prompt: str = "...") -> str:
    """What to type next."""
    lines = [f"tfkit evaluate {run.folder}", f"tfkit show {run.folder}"]
    if run.objective.reads != "bidirectional":
        lines.insert(0, f'tfkit generate {run.folder} "{prompt}"')
    return "next: " + "\n      ".join(lines)


def evaluate(run: Run | str | Path, split: str | None = None, limit: int | None = None) -> dict[str, float]:
    """`Run.evaluate`, of a run or the folder of one."""
    return (run if isinstance(run, Run) else load_run(run)).evaluate(split, limit)
