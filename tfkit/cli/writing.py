"""`tfkit generate`, and its output: as lines, as a stream, as JSON, or in a conversation."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import click

from tfkit.cli.completion import RUN
from tfkit.cli.main import NO, complain
from tfkit.cli.options import DEVICE, ReadOptions, Whole, gathered, sets_run
from tfkit.cli.terminal import echo, echo_text, is_terminal, warn, working
from tfkit.cli.texts import Text, TextOptions, TextOutput, located, output_to, takes_texts
from tfkit.core.bounds import COUNT, ROWS, SEED, TEXTS
from tfkit.core.errors import DataError, UsageError
from tfkit.core.output import SPEECH, some
from tfkit.generation.shorthands import Shorthands, WriteOptions

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
    inputs: TextOptions = field(default_factory=TextOptions)  # for the model's extra inputs
    reported: set[str] = field(default_factory=set)  # unknown pieces already reported
    cut: list[int] = field(default_factory=list)  # numbers of prompts with truncated output

    def print(self, prompts: Sequence[Text]) -> None:
        """Generate for prompts and print the results. Raise TfkitError if a prompt is invalid."""
        self._note_unknown(prompts)
        if self.form == "stream":
            self._stream(prompts)
            return
        with located(prompts), working("generating"):
            own: WriteOptions = {**self.options, **self.inputs.inputs(prompts)}
            results = self.run.candidates([prompt.values[0] for prompt in prompts], **own)
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
                own: WriteOptions = {**self.options, **self.inputs.inputs([prompt])}
                streams.append(self.run.stream(prompt.values[0], **own))
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
            token = self.run.source_tokenizer.token(role)
            warn(f"tfkit: not in the vocabulary, read as {token}: {some(new, NAMED)}")

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


def replying(run: Run, options: WriteOptions) -> Callable[[str], None]:
    """Return a function that prints the reply to a message and remembers both.

    A message that got no reply is removed from the conversation. If Ctrl-C interrupts a reply, the printed part is
    kept.
    """
    messages: list[dict[str, str]] = []
    streams = run.writer(**options).strategy.streams

    def answer(text: str) -> None:
        message, reply = {"role": "user", "content": text}, ""
        ids = run.read_chat([*messages, message])
        try:
            for piece in run.stream(ids, **options) if streams else run.generate([ids], **options):
                echo_text(piece, end="")
                reply += piece
        finally:
            echo()
            if reply.strip():
                messages.extend((message, {"role": "assistant", "content": reply}))

    return answer


SIGN = "> "


def converse(answer: Callable[[str], None]) -> None:
    """Read texts and answer them until Ctrl-D or Ctrl-C; Ctrl-C during an answer ends only that answer.

    Errors are reported, then the next text is read. The arrow keys recall earlier lines if readline is available.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  importing it gives input() a history
    while (text := _typed()) is not None:
        try:
            if text.strip():
                answer(text)
        except Exception as error:
            if not complain(error):
                raise
        except KeyboardInterrupt:
            echo()


def _typed() -> str | None:
    """Read a line from the terminal; None at the end of input."""
    try:
        return input(SIGN)
    except UnicodeDecodeError:
        warn("tfkit: the input is not UTF-8 text")
        return ""
    except (EOFError, KeyboardInterrupt):
        echo()
        return None


takes_generation_options = gathered(
    "shorthands",
    Shorthands,
    click.option("--strategy", metavar="NAME", help="Decoding strategy: greedy, sample, beam, ..."),
    click.option(
        "--temperature", type=float, metavar="X", help="Sampling temperature: more random above 1, less below."
    ),
    click.option("--top-k", type=Whole(COUNT), metavar="K", help="Sample from the K most likely tokens."),
    click.option(
        "--top-p", type=float, metavar="P", help="Sample from the smallest set of tokens with total probability P."
    ),
    click.option("--num-beams", type=Whole(TEXTS), metavar="N", help="Beam search with N beams."),
    click.option("--n-best", type=Whole(TEXTS), metavar="N", help="Print N texts per prompt, best first."),
    click.option("--seed", type=Whole(SEED, 0), metavar="N", help="Seed of the random draws."),
    click.option("--batch-size", type=Whole(ROWS), metavar="N", help="Prompts per batch.  [default: 64]"),
    click.option(
        "--quantize",
        type=click.Choice(["int8", "bfloat16"]),
        help="Quantize the weights: generation is faster, but less exact.",
    ),
    click.option(
        "--max-new-tokens", type=Whole(COUNT), metavar="N", help="Stop after N new tokens.  [default: the recipe's]"
    ),
)

TOGETHER = 64  # texts per batch


@click.command("generate")
@click.argument("run", type=RUN)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--stream", is_flag=True, help="Print each output as it is generated.")
@click.option("--jsonl", is_flag=True, hidden=True, expose_value=False, help="Same as --json, which replaces it.")
@click.option("--chat", is_flag=True, help="Treat texts as messages, formatted with the run's chat template.")
@takes_texts
@takes_generation_options
@DEVICE
@sets_run
@click.pass_context
def generate_command(
    ctx: click.Context,
    run: str,
    inputs: TextOptions,
    stream: bool,
    chat: bool,
    shorthands: Shorthands,
    device: str,
    reading: ReadOptions,
) -> None:
    """Generate text with RUN (a run folder): a continuation, an encoder-decoder's target, or tokens for masks.

    Print one output for each TEXT, or for each line of --input or standard input; in the output for a line, line breaks
    become spaces. With --chat, or if the run was trained with objective: chat, a text is a user message, or a JSON list
    of messages, and the output is the reply. On a terminal without TEXT, prompt for texts and stream the answers; a
    chat remembers earlier messages. Ctrl-C ends an answer, Ctrl-D quits.

    With --json, print each candidate as a JSON object on its own line, with its log-probability.

    Exit status 1: a text was cut off before it satisfied `generate.logits` (regex, choices).
    """
    inputs.check()
    form = _form(stream, shorthands, inputs)
    loaded = reading.run(run, device, shorthands.quantize)
    options = _options(loaded, shorthands, reading.sets)
    if chat:
        loaded.read_chat([{"role": "user", "content": "-"}])  # raises without a template
        loaded.chats = True
    inputs = replace(inputs, chat=loaded.reads_messages).read_by(loaded)
    is_idle = not inputs.texts and inputs.file is None and inputs.output is None
    if is_idle and on_terminal() and not loaded.reads_vectors:
        every: WriteOptions = {**options, **inputs.inputs([Text((), 1)])}
        alone = AnswerPrinter(loaded, options, form, inputs=inputs).alone
        converse(replying(loaded, every) if loaded.reads_messages else alone)
        return
    one_by_one = form == "stream" and not inputs.texts
    count = 1 if one_by_one else shorthands.batch_size or TOGETHER
    batches = inputs.arrays(loaded, count) if loaded.reads_vectors else inputs.batches(count)
    with output_to(inputs.output, tables=True) as output:
        lines = not inputs.texts and form != "jsonl" and not inputs.are_records
        answers = AnswerPrinter(loaded, options, form, lines, inputs.are_records, output, inputs)
        for prompts in batches:
            answers.print(prompts)
    if answers.cut:
        ctx.exit(NO)


def on_terminal() -> bool:
    """True if standard input and output are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def _form(stream: bool, shorthands: Shorthands, inputs: TextOptions) -> Form:
    """Return the output form. Raise UsageError for conflicting options."""
    others = ["--json"] * SPEECH.data + shorthands.set_options("n_best", "batch_size")
    others += ["--field"] * bool(inputs.fields) + ["--out"] * (inputs.output is not None)
    others += [f"--input {inputs.file}"] * (inputs.format is not None)
    if stream and others:
        raise UsageError(f"--stream prints one text while it is generated; remove {' and '.join(others)}")
    if stream or SPEECH.data:
        return "stream" if stream else "jsonl"
    return "best" if shorthands.n_best is None else "all"


def _options(run: Run, shorthands: Shorthands, sets: tuple[str, ...]) -> WriteOptions:
    """Return the generation options. Raise UsageError or RecipeError for unsupported ones before reading any input."""
    used = shorthands.set_options()
    if not run.writes:
        if used:
            raise UsageError(f"{', '.join(used)}: not supported by the encoder in {run.folder}")
        return {}
    own: WriteOptions = {**shorthands.options(run.recipe.generate, sets), "max_new_tokens": shorthands.max_new_tokens}
    run.writer(**own).check()
    return own
