"""What a run writes for prompts, printed: as lines, in pieces, or as JSON."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tfkit.cli.terminal import echo, echo_text, warn, working
from tfkit.core.errors import DataError, UsageError
from tfkit.core.output import json_line

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
    an object. With `lines` prompts are lines of standard input, and so are outputs.
    """

    run: Run
    asked: dict[str, Any]
    form: Form
    lines: bool = False
    noted: set[str] = field(default_factory=set)  # unknown words that the user was told about
    cut: list[int] = field(default_factory=list)  # the numbers of prompts whose texts are cut

    def give(self, prompts: Sequence[str], before: int = 0) -> None:
        """Print what there is to say of prompts, of which `before` were counted already; raises TfkitError."""
        self._note_unknown(prompts, before)
        if self.form == "stream":
            self._stream(prompts, before)
            return
        with self._counted(before), working("writing"):
            found = self.run.candidates(prompts, **self.asked)
        for number, (prompt, candidates) in enumerate(zip(prompts, found, strict=True), before + 1):
            for candidate in candidates[:1] if self.form == "best" else candidates:
                echo_text(self._shown(self._printed(prompt, candidate)))
                self._note_cut(number, candidate)

    def alone(self, prompt: str) -> None:
        """Print the answer to one prompt, while it is written where that is possible."""
        streams = self.form == "best" and self.run.writes and self.run.writer(**self.asked).strategy.streams
        (replace(self, form="stream") if streams else self).give([prompt])

    def _printed(self, prompt: str, candidate: GeneratedText) -> str:
        """A candidate in the form that was asked for."""
        if self.form == "jsonl":
            return json_line(self._object(prompt, candidate))
        return candidate.text

    def _note_cut(self, number: int, candidate: GeneratedText) -> None:
        """Say on standard error of a candidate for a prompt of that number that it is cut."""
        from tfkit.generation.writer import CUT

        if candidate.cut:
            self.cut.append(number)
            where = f"standard input, line {number}" if self.lines else f"prompt {number}"
            warn(f"tfkit: {where}: {CUT}")

    def _object(self, prompt: str, candidate: GeneratedText) -> dict[str, Any]:
        """A candidate as JSON can hold it, where there is no infinity."""
        numbers = {"log_probability": candidate.log_probability, "score": candidate.score}
        return {
            "prompt": prompt,
            "text": candidate.text,
            "ids": list(candidate.ids),
            "tokens": [self.run.tokenizer.readable_token(id_) for id_ in candidate.ids],
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            **({"cut": True} if candidate.cut else {}),
        }

    def _stream(self, prompts: Sequence[str], before: int) -> None:
        """Print each answer while it is written; that none is wrong is known before the first begins."""
        streams = []
        for number, prompt in enumerate(prompts):
            with self._counted(before + number):
                streams.append(self.run.stream(prompt, **self.asked))
        for number, pieces in enumerate(streams, before + 1):
            try:
                written = self._streamed(pieces)
            finally:
                pieces.close()
                echo()
            self._note_cut(number, written)

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
            echo_text(line[len(shown) :], end="")
            shown = line

    def _shown(self, text: str) -> str:
        """An output as it is printed; on one line where each line answers a line."""
        return " ".join(text.splitlines()) if self.lines and self.form != "jsonl" else text

    def _note_unknown(self, prompts: Sequence[str], before: int) -> None:
        """Say on standard error what a model that writes cannot read of prompts, each piece once."""
        role = self.run.tokenizer.special_ids.get("unknown")
        if role is None or not self.run.writes:
            return
        found: dict[str, None] = {}
        for number, prompt in enumerate(prompts, before):
            with self._counted(number):
                found |= dict.fromkeys(self._unknown(prompt))
        new = [piece for piece in found if piece not in self.noted]
        self.noted.update(new)
        if new:
            more = f" and {len(new) - NAMED} more" * (len(new) > NAMED)
            token = self.run.tokenizer.token(role)
            warn(f"tfkit: not in the vocabulary, and read as {token}: {', '.join(new[:NAMED])}{more}")

    def _unknown(self, prompt: str) -> list[str]:
        """What of a prompt the vocabulary lacks, in words; raises PromptError for what is no text at all."""
        from tfkit.generation.prompts import PromptError

        try:
            pieces = self.run.tokenizer.unknown(prompt)
        except DataError as error:
            raise PromptError("prompt", 1, f"cannot be read: {error}") from None
        return ["an empty text"] if pieces and not prompt.strip() else [_quoted(piece) for piece in pieces if piece]

    @contextlib.contextmanager
    def _counted(self, before: int) -> Iterator[None]:
        """An error about a prompt, with the number that the prompt has for the user."""
        from tfkit.generation.prompts import PromptError

        try:
            yield
        except PromptError as error:
            number = before + error.number
            where = f"standard input, line {number}: the {error.name}" if self.lines else f"{error.name} {number}"
            raise UsageError(f"{where} {error.what}") from None


def _quoted(piece: str) -> str:
    """A piece of a text in quotes; of a long one its beginning, and how long it is."""
    return repr(piece) if len(piece) <= LONG else f"{piece[:LONG]!r}... ({len(piece):,} characters)"
