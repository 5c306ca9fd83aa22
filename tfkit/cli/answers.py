"""What a run writes for prompts, printed: as lines, in pieces, or as JSON."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tfkit.cli.terminal import warn, working
from tfkit.cli.texts import Text, TextOutput, located
from tfkit.core.errors import DataError

if TYPE_CHECKING:
    from tfkit.generation.writer import GeneratedText
    from tfkit.run import Run

NAMED = 5  # unknown pieces that are named at once
LONG = 30  # characters of one that are shown
Form = Literal["best", "all", "stream", "jsonl"]


@dataclass(frozen=True)
class AnswerPrinter:
    """How a run answers: what is asked of it, and in what form it is printed.

    `best` is one text for each prompt, `all` every candidate, `stream` the best in pieces, `jsonl` every candidate as
    an object. With `lines` an output is one line; with `records` an object with the id of its record.
    """

    run: Run
    asked: dict[str, Any]
    form: Form
    lines: bool = False
    records: bool = False
    output: TextOutput = field(default_factory=TextOutput)
    noted: set[str] = field(default_factory=set)  # unknown words that the user was told about
    cut: list[int] = field(default_factory=list)  # the numbers of prompts whose texts are cut

    def give(self, prompts: Sequence[Text]) -> None:
        """Write the answers to prompts; raises TfkitError."""
        self._note_unknown(prompts)
        if self.form == "stream":
            self._stream(prompts)
            return
        with located(prompts), working("writing"):
            found = self.run.candidates([prompt.values[0] for prompt in prompts], **self.asked)
        for prompt, candidates in zip(prompts, found, strict=True):
            for candidate in candidates[:1] if self.form == "best" else candidates:
                self._write(prompt, candidate)
                self._note_cut(prompt, candidate)

    def alone(self, prompt: str) -> None:
        """Print the answer to one prompt, while it is written where that is possible."""
        streams = self.form == "best" and self.run.writes and self.run.writer(**self.asked).strategy.streams
        (replace(self, form="stream") if streams else self).give([Text((prompt,), 1)])

    def _write(self, prompt: Text, candidate: GeneratedText) -> None:
        """Write a candidate in the form that was asked for."""
        if self.records:
            self.output.record(prompt, self._object(prompt, candidate))
        elif self.form == "jsonl":
            self.output.json(self._object(prompt, candidate))
        else:
            self.output.text(self._shown(candidate.text))

    def _note_cut(self, prompt: Text, candidate: GeneratedText) -> None:
        """Say on standard error that a candidate for a prompt is cut."""
        from tfkit.generation.writer import CUT

        if candidate.cut:
            self.cut.append(prompt.number)
            warn(f"tfkit: {prompt.named('prompt')}: {CUT}")

    def _object(self, prompt: Text, candidate: GeneratedText) -> dict[str, Any]:
        """A candidate as JSON can hold it, where there is no infinity."""
        cut = {"cut": True} if candidate.cut else {}
        if self.form != "jsonl":
            return {"text": candidate.text, **cut}
        numbers = {"log_probability": candidate.log_probability, "score": candidate.score}
        return {
            "prompt": prompt.values[0],
            "text": candidate.text,
            "ids": list(candidate.ids),
            "tokens": [self.run.tokenizer.readable_token(id_) for id_ in candidate.ids],
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            **cut,
        }

    def _stream(self, prompts: Sequence[Text]) -> None:
        """Print each answer while it is written; that none is wrong is known before the first begins."""
        streams = []
        for prompt in prompts:
            with located([prompt]):
                streams.append(self.run.stream(prompt.values[0], **self.asked))
        for prompt, pieces in zip(prompts, streams, strict=True):
            try:
                written = self._streamed(pieces)
            finally:
                pieces.close()
                self.output.text("")
            self._note_cut(prompt, written)

    def _streamed(self, pieces: Generator[str, None, GeneratedText]) -> GeneratedText:
        """Print a text in its pieces."""
        from tfkit.generation.writer import CutWarning

        text = shown = ""
        while True:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", CutWarning)  # it is told with the number of the prompt
                    text += next(pieces)
            except StopIteration as end:
                written: GeneratedText = end.value
                return written
            line = self._shown(text)  # which grows as the text does
            self.output.text(line[len(shown) :], end="")
            shown = line

    def _shown(self, text: str) -> str:
        """An output as it is printed; on one line where each line answers a line."""
        return " ".join(text.splitlines()) if self.lines else text

    def _note_unknown(self, prompts: Sequence[Text]) -> None:
        """Say on standard error what a model that writes cannot read of prompts, each piece once."""
        role = self.run.source_tokenizer.special_ids.get("unknown")
        if role is None or not self.run.writes or self.run.reads_vectors:
            return
        found: dict[str, None] = {}
        for prompt in prompts:
            with located([prompt]):
                found |= dict.fromkeys(self._unknown(prompt.values[0]))
        new = [piece for piece in found if piece not in self.noted]
        self.noted.update(new)
        if new:
            more = f" and {len(new) - NAMED} more" * (len(new) > NAMED)
            token = self.run.source_tokenizer.token(role)
            warn(f"tfkit: not in the vocabulary, and read as {token}: {', '.join(new[:NAMED])}{more}")

    def _unknown(self, prompt: str) -> list[str]:
        """What of a prompt the vocabulary lacks, in words; raises PromptError for what is no text at all."""
        from tfkit.generation.prompts import PromptError

        try:
            pieces = self.run.source_tokenizer.unknown(prompt)
        except DataError as error:
            raise PromptError("prompt", 1, f"cannot be read: {error}") from None
        return ["an empty text"] if pieces and not prompt.strip() else [_quoted(piece) for piece in pieces if piece]


def _quoted(piece: str) -> str:
    """A piece of a text in quotes; of a long one its beginning, and how long it is."""
    return repr(piece) if len(piece) <= LONG else f"{piece[:LONG]!r}... ({len(piece):,} characters)"
