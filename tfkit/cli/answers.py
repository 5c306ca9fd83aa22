"""Output of generated text: as lines, as a stream, or as JSON."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from tfkit.cli.terminal import warn, working
from tfkit.cli.texts import Text, TextOutput, located
from tfkit.core.errors import DataError
from tfkit.generation.shorthands import WriteOptions

if TYPE_CHECKING:
    from tfkit.generation.writer import GeneratedText
    from tfkit.run import Run

NAMED = 5  # maximum number of unknown pieces quoted in one warning
LONG = 30  # maximum characters shown of a piece
Form = Literal["best", "all", "stream", "jsonl"]


@dataclass(frozen=True)
class AnswerPrinter:
    """Printer of generated candidates in one of four forms.

    `best` prints one text per prompt, `all` every candidate, `stream` the best text incrementally, `jsonl` every
    candidate as a JSON object. With `lines`, each output is a single line; with `records`, each is a JSON object with
    the id of the input record.
    """

    run: Run
    options: WriteOptions
    form: Form
    lines: bool = False
    records: bool = False
    output: TextOutput = field(default_factory=TextOutput)
    reported: set[str] = field(default_factory=set)  # unknown pieces already reported
    cut: list[int] = field(default_factory=list)  # numbers of prompts with truncated output

    def print(self, prompts: Sequence[Text]) -> None:
        """Generate for prompts and print the results. Raise TfkitError if a prompt is invalid."""
        self._note_unknown(prompts)
        if self.form == "stream":
            self._stream(prompts)
            return
        with located(prompts), working("generating"):
            results = self.run.candidates([prompt.values[0] for prompt in prompts], **self.options)
        for prompt, candidates in zip(prompts, results, strict=True):
            for candidate in candidates[:1] if self.form == "best" else candidates:
                self._write(prompt, candidate)
                self._note_cut(prompt, candidate)

    def alone(self, prompt: str) -> None:
        """Print the output for one prompt; stream it if the strategy supports streaming."""
        streams = self.form == "best" and self.run.writes and self.run.writer(**self.options).strategy.streams
        (replace(self, form="stream") if streams else self).print([Text((prompt,), 1)])

    def _write(self, prompt: Text, candidate: GeneratedText) -> None:
        """Print a candidate in the chosen form."""
        if self.records:
            self.output.record(prompt, self._object(prompt, candidate))
        elif self.form == "jsonl":
            self.output.json(self._object(prompt, candidate))
        else:
            self.output.text(self._shown(candidate.text))

    def _note_cut(self, prompt: Text, candidate: GeneratedText) -> None:
        """Warn on standard error that a candidate is truncated."""
        from tfkit.generation.writer import CUT

        if candidate.cut:
            self.cut.append(prompt.number)
            warn(f"tfkit: {prompt.named('prompt')}: {CUT}")

    def _object(self, prompt: Text, candidate: GeneratedText) -> dict[str, object]:
        """Convert a candidate to JSON; infinities become null."""
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
        """Stream the outputs. All prompts are checked before the first output starts."""
        streams = []
        for prompt in prompts:
            with located([prompt]):
                streams.append(self.run.stream(prompt.values[0], **self.options))
        for prompt, pieces in zip(prompts, streams, strict=True):
            try:
                candidate = self._streamed(pieces)
            finally:
                pieces.close()
                self.output.text("")
            self._note_cut(prompt, candidate)

    def _streamed(self, pieces: Generator[str, None, GeneratedText]) -> GeneratedText:
        """Print a text incrementally."""
        from tfkit.generation.writer import CutWarning

        text = shown = ""
        while True:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", CutWarning)  # reported later, with the number of the prompt
                    text += next(pieces)
            except StopIteration as end:
                candidate: GeneratedText = end.value
                return candidate
            line = self._shown(text)  # grows with the text
            self.output.text(line[len(shown) :], end="")
            shown = line

    def _shown(self, text: str) -> str:
        """Format an output; with `lines`, join it into a single line."""
        return " ".join(text.splitlines()) if self.lines else text

    def _note_unknown(self, prompts: Sequence[Text]) -> None:
        """Warn on standard error about pieces of prompts that are not in the vocabulary, once per piece."""
        role = self.run.source_tokenizer.special_ids.get("unknown")
        if role is None or not self.run.writes or self.run.reads_vectors:
            return
        pieces: dict[str, None] = {}
        for prompt in prompts:
            with located([prompt]):
                pieces |= dict.fromkeys(self._unknown(prompt.values[0]))
        new = [piece for piece in pieces if piece not in self.reported]
        self.reported.update(new)
        if new:
            more = f" and {len(new) - NAMED} more" * (len(new) > NAMED)
            token = self.run.source_tokenizer.token(role)
            warn(f"tfkit: not in the vocabulary, read as {token}: {', '.join(new[:NAMED])}{more}")

    def _unknown(self, prompt: str) -> list[str]:
        """Return the quoted out-of-vocabulary pieces of a prompt. Raise PromptError if it cannot be read."""
        from tfkit.generation.prompts import PromptError

        try:
            pieces = self.run.unknown(prompt)
        except DataError as error:
            raise PromptError("prompt", 1, f"cannot be read: {error}") from None
        return ["an empty text"] if pieces and not prompt.strip() else [_quoted(piece) for piece in pieces if piece]


def _quoted(piece: str) -> str:
    """Quote a piece. Long pieces are truncated and their length is appended."""
    return repr(piece) if len(piece) <= LONG else f"{piece[:LONG]!r}... ({len(piece):,} characters)"
