"""The folder of a run: recipe, tokenizer, weights and objective, each loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError, RunError, UsageError
from tfkit.core.output import block
from tfkit.core.registry import REGISTRY
from tfkit.data.chat import ChatTemplate, ControlTokens, Conversation, Message, Rendered, checked
from tfkit.data.chat import read as conversation_in
from tfkit.data.corpus import Corpus
from tfkit.data.corpus.division import table
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.word import Frame
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.sections import Data
from tfkit.runs import record
from tfkit.runs.checkpoint import Checkpoints
from tfkit.runs.folder import (
    CHECKPOINTS,
    RESOLVED,
    SPLITS,
    TOKENIZER,
    WEIGHTS,
    RunFolder,
    load_tokenizer,
    read_labels,
    tokenizer_files,
)
from tfkit.runs.history import choose_device
from tfkit.runs.kept import kept_templates
from tfkit.runs.weights import check_fits, holds_int8, is_weights_file, load_weights, saved_dtype
from tfkit.storage.files import read_text
from tfkit.training.feed import VALID, Feed
from tfkit.training.objective import Objective
from tfkit.training.objective.chat import ChatRows
from tfkit.training.objective.reading import Reading
from tfkit.training.setup import Task, longest_example

# objectives for predictions with imported models, selected by the head
PREDICTORS = ("masked_lm", "classification", "token_classification", "span", "regression")


class StoredRun:
    """A trained model with its recipe and tokenizer, each loaded on first use."""

    def __init__(self, folder: str | Path, recipe: Recipe, device: str = "cpu", as_saved: bool = True) -> None:
        self.folder = Path(folder)
        self.recipe = recipe
        self.as_saved = as_saved  # False if overrides changed the recipe
        self.device = choose_device(device)
        self.chats = False  # if True, an imported run reads texts as messages, as the objective `chat` does

    def __repr__(self) -> str:
        return block(f"Run {str(self.folder)!r} of recipe {self.recipe.name!r} on {self.device}", self.recipe.lines())

    def all_read(self) -> Self:
        """Return this run after reading its files."""
        _ = self.model, self.labels, tokenizer_files(RunFolder(self.folder)) and self.tokenizer
        return self

    def outside(self, target: str | Path) -> str | Path:
        """Return a folder to write. Raise UsageError if it is this run or lies in it, links and `..` resolved."""
        if "\0" in str(target):
            return target  # refused as a name
        own, place = (Path(path).resolve() for path in (self.folder, target))
        own = own.parent if RunFolder(own.parent).holds_run else own  # only the weights of a run are loaded
        if own in (place, *place.parents):
            where = "the run itself" if own == place else f"inside the run {own}"
            raise UsageError(f"{target}: is {where}; choose a folder outside it")
        return target

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model; if source and target have separate ones, the target's.

        Raise RunError for an imported model without a tokenizer.
        """
        folder = RunFolder(self.folder)
        if self.recipe.data is None and not tokenizer_files(folder):
            reason = (
                f"{self.folder / TOKENIZER}: is missing" if self.folder.is_dir() else f"{self.folder}: has no tokenizer"
            )
            raise RunError(f"{reason}: this run works on ids (run.model), not on texts")
        if self.recipe.data is not None and self.recipe.data.tokenizer is None:
            return Tokenizer.empty()
        return load_tokenizer(folder)

    @property
    def source_tokenizer(self) -> Tokenizer:
        """Tokenizer of the encoder's input. Equals `tokenizer` unless source and target have separate tokenizers."""
        return self.tokenizer.source

    @property
    def blueprint(self) -> Blueprint:
        """Architecture, with the vocabulary size of the tokenizer."""
        recipe = self.recipe.labelled(len(self.labels))
        return recipe.blueprint(self.tokenizer.sizes if recipe.unknown_vocab else None)

    @property
    def cost(self) -> str:
        """Parameters and FLOPs in sentences. FLOPs are omitted if a part cannot be measured on meta."""
        from tfkit.reports.counts import count

        model = build_model(self.blueprint, device="meta")
        text = f"{sum(weight.numel() for weight in model.parameters()):,} parameters."
        try:
            counts = count(self.blueprint)
        except Exception:  # a failing custom part must not fail a completed run
            return text
        return f"{text} {counts.total.flops_per_token:,} FLOPs per token of a forward pass at length {counts.length:,}."

    @property
    def summary(self) -> list[str]:
        """Cost, followed by the lines of the recipe with the tokenizer's vocabulary size."""
        return [self.cost, *self.recipe.lines(self.blueprint)]

    @property
    def weights(self) -> Path:
        """Path of the weights: in the folder, or the file from which the run was loaded."""
        return self.folder if is_weights_file(self.folder) else self.folder / WEIGHTS

    @property
    def _recipe_file(self) -> Path:
        """Path of the file that contains the recipe."""
        return self.folder if self.folder == self.weights else self.folder / RESOLVED

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits, or () if there are none."""
        return read_labels(RunFolder(self.folder))

    @cached_property
    def model(self) -> Model:
        """The model with its trained or imported weights, in eval mode."""
        file = self.weights
        if file == self.folder:
            check_fits(file, self.blueprint)
        with record.checking(RunFolder(self.folder), WEIGHTS):
            model = build_model(self.blueprint, device=self.device, dtype=saved_dtype(file))
            load_weights(model, file)
        return model.eval()

    @cached_property
    def stores_int8(self) -> bool:
        """True if the weights are stored in int8. The model itself uses float32."""
        file = self.weights
        return file.is_file() and holds_int8(file)

    @cached_property
    def objective(self) -> Objective:
        """The objective that the model was trained with, bound to the tokenizer."""
        if self.recipe.objective is None:
            raise RunError(f"{self._recipe_file}: the recipe has no objective")
        return self._bound(self.recipe.objective.build())

    @cached_property
    def predictor(self) -> Objective:
        """The objective for predictions: the run's own or, for an imported model, the one that matches the head."""
        if self.recipe.objective is not None:
            return self.objective
        head = self.blueprint.head
        for name in PREDICTORS:
            objective: Objective = REGISTRY.get("objective", name).Config().build()
            if head is not None and head.part.part_name in objective.heads:
                if isinstance(objective, Reading):
                    objective.rows.template = Frame.of_template(self.tokenizer)  # of the imported tokenizer
                return self._bound(objective)
        description = "has no head" if head is None else f"has a head '{head.part.part_name}'"
        raise UsageError(f"{self.folder}: makes no predictions: this model {description}; try tfkit generate or embed")

    def _bound(self, objective: Objective) -> Objective:
        objective.rows.labels = self.labels
        objective.rows.read_model(self.blueprint)
        objective.rows.bind(self.tokenizer)
        return objective

    @property
    def reads_vectors(self) -> bool:
        """True if the model reads arrays, not texts."""
        return next(self.blueprint.stacks()).reads_vectors

    @property
    def writes(self) -> bool:
        """True if the model has a decoder. A model without a decoder may still fill masks."""
        return self.blueprint.decoder is not None

    def _encode_framed(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts with the special tokens of the objective, or of the imported tokenizer's template."""
        if self.recipe.objective is not None:
            return self.objective.rows.read(texts, self.source_tokenizer)
        return self.source_tokenizer.encode_batch(texts, template=True)

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts as prompts in the format of the objective, or of the imported tokenizer."""
        if self.recipe.objective is not None:
            return self.objective.rows.read(texts, self.source_tokenizer)
        if self.chats:
            return self._control.encode([self._rendered(conversation_in(text)) for text in texts])
        first = dict(self.blueprint.special_ids).get("start")
        nothing = [] if first is None else [first]  # an empty prompt is the start token
        return [ids or nothing for ids in self.source_tokenizer.encode_batch(texts, special=True, template=True)]

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Chat templates of the imported model by name, or the objective's as `default`."""
        if self.recipe.objective is None:
            return kept_templates(self.folder)
        return {"default": self.objective.rows.template().text} if isinstance(self.objective.rows, ChatRows) else {}

    @property
    def chat_template(self) -> str | None:
        """Chat template of the objective or of the imported model, or None."""
        return self.chat_templates.get("default")

    def read_chat(self, messages: Sequence[Message] | Mapping[str, object]) -> list[int]:
        """Encode a conversation up to the start of a reply. Raise UsageError if there is no chat template.

        A mapping has `messages`, and optionally `tools` and `documents`.
        """
        parts = messages if isinstance(messages, Mapping) else list(messages)
        return self._control.encode([self._rendered(checked(parts, "the conversation"))])[0]

    @property
    def _control(self) -> ControlTokens:
        return ControlTokens.of(self.tokenizer)

    def _rendered(self, talk: Conversation) -> Rendered:
        """Render a conversation with the template that transformers would select."""
        if not self.chat_templates:
            text = "has no chat template; train with objective: chat, or import a model that has one"
            raise UsageError(f"{self.folder}: {text}")
        name = "tool_use" if talk.tools is not None and "tool_use" in self.chat_templates else "default"
        if name not in self.chat_templates:
            names = ", ".join(self.chat_templates)
            raise UsageError(f"{self.folder}: has no chat template named default, only {names}")
        rows = None if self.recipe.objective is None else self.objective.rows
        date = rows.config.date if isinstance(rows, ChatRows) else ""
        try:
            template = ChatTemplate(self.chat_templates[name])
        except ValueError as error:
            raise RunError(f"{self.folder}: {error}") from None
        control = self._control
        return template.rendered([talk], control.special, [[(len(talk), True)]], date, control.control)[0][0]

    @property
    def reads_messages(self) -> bool:
        """True if a text is read as a user message, or as a JSON list of messages."""
        return self.chats or (self.recipe.objective is not None and self.chat_template is not None)

    def unknown(self, text: str) -> list[str]:
        """Return the distinct pieces of a prompt, or of the conversation it contains, that are not in the vocabulary.

        Raise DataError if it cannot be read.
        """
        if self.reads_messages:
            rendered = self._rendered(conversation_in(text))
            found = self.tokenizer.unknown_pieces(rendered.text, *self._control.encode_with_places(rendered))
            return [piece for piece in found if piece in text]  # the template's own words are not the user's
        return self.source_tokenizer.unknown(text)

    @property
    def _start(self) -> int:
        """Id of the start token of the decoder in an encoder-decoder."""
        special_ids = dict(self.blueprint.special_ids) if self.recipe.objective is None else {}
        start_id = special_ids.get("start", self.tokenizer.special_ids.get("start"))
        if start_id is None:
            raise RunError(f"{self._recipe_file}: the recipe lacks model.special_ids.start, the decoder's start token")
        return start_id

    @property
    def _data(self) -> Data:
        if self.recipe.data is None:
            raise RunError(f"{self._recipe_file}: the recipe has no data")
        return self.recipe.data

    def _examples(self, split: str) -> list[dict[str, str]]:
        corpora = dict(self._data.splits())
        if split not in corpora:
            raise UsageError(f"this run has no split '{split}'; it has {', '.join(corpora)}")
        file, data = self.folder / SPLITS, self._data
        if data.split and self.as_saved and file.is_file() and read_text(file) != table(data.train, data.split):
            raise RunError(f"{file}: data.split divides the data differently now; restore the data of the run")
        corpus: Corpus = corpora[split].build()
        corpus.also = self.recipe.train.grouped_by(split)
        return corpus.examples()

    def _feed(self, examples: Sequence[Mapping[str, str]]) -> Feed:
        longest = longest_example(self.model.blueprint, self._data)
        items = self.objective.rows.prepare(examples, self.tokenizer, longest)
        return Feed(self.objective, items, self._data.batch, self.recipe.train.seed, self.device, VALID)

    def task(self, examples: int) -> Task:
        """Prepare to train a float32 copy of the model on the first `examples` examples, or on the first that fit.

        Raise RunError if the run has no data or objective.
        """
        data = self._data
        if self.recipe.objective is None:
            raise RunError(f"{self._recipe_file}: the recipe has no objective")
        model = build_model(self.blueprint, device=self.device)
        model.load_state_dict(self.model.state_dict())
        objective = self._bound(self.recipe.objective.build())
        given, longest = self._examples("train"), longest_example(model.blueprint, data)
        try:
            items = objective.rows.prepare(given[:examples], self.tokenizer, longest)
        except DataError:  # none of them fits
            items = objective.rows.prepare(given, self.tokenizer, longest)[:examples]
        objective.attach(model)
        settings = self.recipe.train
        feed = Feed(objective, items, data.batch, settings.seed, self.device)
        return Task(self.recipe, model, self.tokenizer, objective, settings, settings.steps or 1, feed, None, {})


def why_missing(folder: RunFolder, name: str) -> str:
    """Explain why a file of a run is missing, or return ""."""
    if folder.holds_run and name in folder.removed:
        return ": a study deleted it (study.keep: scores); train the run again to use its weights"
    if name == RESOLVED and not folder.holds_run:
        return "; the folder contains no run"
    unfinished = name == WEIGHTS and Checkpoints(folder / CHECKPOINTS).last() is not None
    return ": training has not saved any weights yet" if unfinished else ""
