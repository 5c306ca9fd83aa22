"""Extractive question answering: locate the answer within a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.errors import ExampleError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.loss import cross_entropy
from tfkit.models import Model
from tfkit.training.objective.base import Prediction
from tfkit.training.objective.reading import Reading, ReadingAnswers, ReadingRows, framed
from tfkit.training.objective.rows import Batch, Example, Item, located, padded

Places = list[tuple[int, int]]  # character span of each token


class SpanRows(ReadingRows):
    """Questions with windows of their contexts and the positions of the answers."""

    fields = ("question", "context", "answer")

    def prepare(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int | None) -> Sequence[Item]:
        """Return items with `text` (question and context) with the token masks `inside` (context) and `answer`.

        Examples and windows that do not contain the answer are dropped.
        """
        answers = self._column(examples, "answer")
        items: list[Item] = []
        found: set[int] = set()
        for number, item, places, _ in self._windows(examples, tokenizer, max_length):
            begin = self._begin(number, examples[number], answers[number])
            span = covering(places, begin, begin + len(answers[number])) if begin >= 0 and answers[number] else None
            if span is not None:
                first = int(np.flatnonzero(item["inside"])[0])
                marks = np.zeros_like(item["inside"])
                marks[first + span[0] : first + span[1] + 1] = 1
                items.append(item | {"answer": marks})
                found.add(number)
        why = "the answer is not in the context"
        self._left_out(len(examples) - len(found), len(examples), why)
        return self._usable(items, len(examples), why)

    def _begin(self, number: int, example: Example, answer: str) -> int:
        """Return the offset of the answer, -1 if it is missing. Raise ExampleError for a wrong `answer_start`."""
        context, start = example["context"], example.get("answer_start", "").strip()
        if not start:
            return context.find(answer)
        if start.isdecimal() and context.startswith(answer, int(start)):
            return int(start)
        raise ExampleError(
            number + 1, f"answer_start {start} is not the offset of the answer {answer!r} in the context"
        )

    def _windows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, longest: int | None
    ) -> Iterator[tuple[int, Item, Places, int]]:
        """Yield (example index, window, character spans of the context tokens, number of context tokens)."""
        self.bind(tokenizer)
        questions = self._encoded(examples, "question", tokenizer)
        texts = self._column(examples, "context")
        with located(texts, tokenizer):
            contexts = tokenizer.encode_with_places(texts)
        for number, (question, (ids, places)) in enumerate(zip(questions, contexts, strict=True)):
            if not ids:
                continue
            extra = self._frame.around + len(self._frame.between)
            room = len(ids) if longest is None else longest - extra - len(question)
            if room < 2:
                text = (
                    f"a question of {len(question)} tokens leaves no room for its context in a row of {longest} tokens"
                )
                raise ExampleError(number + 1, text)
            for start in range(0, max(1, len(ids) - room // 2), max(1, room // 2)) if room < len(ids) else (0,):
                piece = np.asarray(ids[start : start + room], dtype=np.int32)
                item = framed(self._frame, question, piece, None)
                inside = np.zeros(len(item["text"]), dtype=np.int32)
                first = len(inside) - len(piece) - len(self._frame.after)
                inside[first : first + len(piece)] = 1
                # question tokens have global attention if the model supports it
                marked = np.asarray(item["types"] == 0, dtype=np.int32)
                yield number, item | {"inside": inside, "marked": marked}, places[start : start + room], len(piece)

    def collate(self, items: Sequence[Item], rng: np.random.Generator) -> Batch:
        """Collate inputs, `labels` [rows 2] (start and end position) and the context mask `inside` [rows width]."""
        answers = [np.flatnonzero(item["answer"]) for item in items]
        labels = np.asarray([(answer[0], answer[-1]) for answer in answers], dtype=np.int64)
        inside = padded([item["inside"] for item in items], 0)[0].astype(np.bool_)
        return super().collate(items, rng) | {"labels": torch.from_numpy(labels), "inside": torch.from_numpy(inside)}


class AnswerSpans(ReadingAnswers):
    """The most likely span of the context."""

    objective: SpanObjective
    rows: SpanRows
    reference = "answer"
    metrics = ("exact_match",)
    of_tokens = True

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Return the `answer` to each question with its character offsets `begin` and `end` in the context.

        `probability` is normalized over the spans of one window. The answer to an empty context is empty.
        """
        windows = list(self.rows._windows(examples, tokenizer, model.blueprint.last.max_length))
        per_window = self._logits(model, [item for _, item, _, _ in windows])
        best: list[tuple[float, int, int, float]] = [(-np.inf, 0, 0, 0.0)] * len(examples)
        for (number, item, places, _), logits in zip(windows, per_window, strict=True):
            score, begin, end, chance = best_span(logits[torch.from_numpy(item["inside"]).bool()], self._longest)
            if score > best[number][0]:
                best[number] = score, places[begin][0], places[end][1], chance
        predictions = []
        for example, (_, begin, end, chance) in zip(examples, best, strict=True):
            answer = example["context"][begin:end]
            begin += len(answer) - len(answer.lstrip())  # a token may include the preceding space
            answer = answer.strip()
            texts = {"question": example["question"], "context": example["context"]}
            place = {"begin": begin, "end": begin + len(answer)}
            predictions.append({**texts, "answer": answer, **place, "probability": chance})
        return predictions

    @property
    def _longest(self) -> int:
        return self.objective.config.longest_answer

    def text(self, prediction: Prediction) -> str:
        return str(prediction["answer"])


@register("objective", "span")
class SpanObjective(Reading):
    """Loss = -log p(begin | question, context) - log p(end | question, context) (Devlin et al. 2018: SQuAD).

    The target is the answer at the field `answer_start` (a character offset), or its first occurrence. Long contexts
    are split into windows that overlap by half.
    """

    rows_type: ClassVar[type[SpanRows]] = SpanRows
    answers_type = AnswerSpans
    heads = ("span",)
    capabilities = frozenset({"likelihood", "words"})

    class Config(Reading.Config):
        longest_answer: PositiveInt = Field(30, description="maximum number of tokens of an answer")

        def shortest(self, facts: RecipeFacts) -> int:
            between = facts.token("separator") or facts.token("end")
            return super().shortest(facts) + 1 + bool(between)  # plus a question token and the separator

    config: Config
    rows: SpanRows

    def head_loss(self, logits: Tensor, batch: Batch, training: bool) -> tuple[Tensor, int]:
        """Compute the cross-entropy of `logits` [rows time 2] over context positions."""
        allowed = logits.masked_fill(~batch["inside"][:, :, None], -torch.inf)  # [rows time 2]
        both = allowed.transpose(1, 2).flatten(0, 1)  # [rows*2 time]
        return cross_entropy(both, batch["labels"].flatten()), len(both)


def covering(places: Places, begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and last of the tokens that cover characters begin..end, or None if some are not covered."""
    touching = [token for token, (first, last) in enumerate(places) if first < end and last > begin]
    if not touching or places[touching[0]][0] > begin or places[touching[-1]][1] < end:
        return None
    return touching[0], touching[-1]


def best_span(logits: Tensor, longest: int) -> tuple[float, int, int, float]:
    """Return score, start, end and probability of the best span of `logits` [time 2] with at most `longest` tokens."""
    begins, ends = logits.double().unbind(dim=1)
    scores = begins[:, None] + ends[None, :]  # [begin end]
    allowed = torch.ones_like(scores, dtype=torch.bool).triu() & torch.ones_like(scores, dtype=torch.bool).tril(
        longest - 1
    )
    place = int(scores.masked_fill(~allowed, -torch.inf).argmax())
    begin, end = divmod(place, len(logits))
    chance = float(begins.softmax(0)[begin] * ends.softmax(0)[end])
    return float(scores[begin, end]), begin, end, chance
