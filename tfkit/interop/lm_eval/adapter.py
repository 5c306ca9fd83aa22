"""The model `tfkit` for lm-eval: scores and generations of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tfkit.core.errors import UsageError
from tfkit.core.extras import optional
from tfkit.data.by_length import by_length
from tfkit.run import Run, load_run
from tfkit.training.objective.base import token_logits

NEEDS = "the lm-eval adapter needs"
UNBOUNDED = 2048  # window of a model without max_length; lm-eval's own default
NEW_TOKENS = 256  # default limit of generated tokens
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # lm-eval's names for the limit
SAMPLING = ("temperature", "top_k", "top_p", "num_beams")

_api: Any = optional("lm_eval.api.model", "eval", NEEDS)
_registry: Any = optional("lm_eval.api.registry", "eval", NEEDS)
_utils: Any = optional("lm_eval.utils", "eval", NEEDS)


@dataclass(frozen=True)
class Row:
    """A continuation to score: decoder input ids, target ids for the last positions, encoder input ids."""

    read: Sequence[int]
    targets: Sequence[int]
    source: Sequence[int] | None = None


@_registry.register_model("tfkit")
class TfkitLM(_api.TemplateLM):  # type: ignore[misc]
    """A run that generates text, as a model for lm-eval. In an encoder-decoder, the context is the encoder's input.

    `run` is a run folder or a loaded Run; `trust` allows importing the code of custom parts. `max_length` is the
    window size in tokens, by default the model's. Raises UsageError if the run does not generate text, RunError if the
    folder is invalid.
    """

    def __init__(
        self,
        run: str | Path | Run = "",
        trust: bool = False,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_length: int | None = None,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown or not run:
            wrong = f"unknown argument '{next(iter(unknown))}'" if unknown else "the run is missing"
            raise UsageError(f"--model_args: {wrong}; use run=FOLDER, and optionally trust, max_length")
        if device is None or (device.startswith("cuda") and not torch.cuda.is_available()):
            device = "auto"  # lm-eval defaults to cuda:0 even without a GPU
        self.run = run if isinstance(run, Run) else load_run(run, trust, device)
        if self.run.reads_vectors or not self.run.writes:
            raise UsageError(f"{self.run.folder}: lm-eval needs a model that continues texts, such as a decoder")
        self._device = self.run.device
        self._max_length = max_length
        sizes = None if batch_size is None or batch_size == "auto" else int(batch_size)
        self.batch_size = sizes  # None: chosen by the device
        self.backend = "causal" if self.run.blueprint.encoder is None else "seq2seq"

    @property
    def max_length(self) -> int:
        """Window size in tokens."""
        return self._max_length or next(self.run.blueprint.stacks()).max_length or UNBOUNDED

    @property
    def tokenizer_name(self) -> str:
        """Key under which lm-eval caches requests."""
        return str(self.run.folder.resolve()).replace("/", "__")

    @cached_property
    def eot_token_id(self) -> int:
        """End token id. Raises UsageError if the tokenizer has none."""
        end: int | None = self.run.tokenizer.special_ids.get("end")
        if end is None:
            raise UsageError(f"{self.run.folder}: the task has an empty context, but the tokenizer has no end token")
        return end

    @cached_property
    def prefix_token_id(self) -> int:
        """Id of the token that precedes every text."""
        prefix = self.run.read([""])[0]
        return prefix[0] if prefix else self.eot_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Return token ids, without special tokens if `add_special_tokens` is False."""
        return self.run.tokenizer.encode(string) if add_special_tokens is False else self.run.read([string])[0]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, scored in windows that overlap by one token."""
        if self.backend != "causal":
            raise UsageError(
                f"{self.run.folder}: loglikelihood_rolling supports only decoders; this run also has an encoder"
            )
        totals = []
        for (text,) in (request.args for request in requests):
            windows = _utils.get_rolling_token_windows(
                self.run.tokenizer.encode(text), self.prefix_token_id, self.max_length, context_len=1
            )
            pairs = [(None, *_utils.make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(pairs)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Return (log-probability, True if greedy decoding would produce it) for each continuation."""
        rows = [self._row(context, continuation) for _, context, continuation in requests]
        results = [(0.0, False)] * len(rows)
        lengths = [len(row.read) + len(row.source or ()) for row in rows]
        for batch in by_length(lengths, self.device.type, self.batch_size):
            for place, score in zip(batch, _scores(self.run, [rows[place] for place in batch]), strict=True):
                results[place] = score
                if requests[place][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[place][0], score)
        return results

    def _row(self, context: Sequence[int], continuation: Sequence[int]) -> Row:
        """Build a row, left-truncating the context to fit. Raise UsageError if the continuation alone does not fit."""
        most = self.max_length
        if not 0 < len(continuation) <= most:
            raise UsageError(f"a continuation of {len(continuation)} tokens cannot be scored; windows have 1 to {most}")
        if self._start is not None:
            return Row([self._start, *continuation[:-1]], continuation, context[-most:])
        return Row([*context, *continuation][-(most + 1) :][:-1], continuation)

    @cached_property
    def _start(self) -> int | None:
        """Start token of the decoder; None for a decoder-only model."""
        return None if self.backend == "causal" else self.run.writer().start

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate a continuation of each context up to a stop string, greedily unless the task requests sampling."""
        answers = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(place)
        for places in groups.values():
            texts = self._written([requests[place].args[0] for place in places], requests[places[0]].args[1])
            for place, text in zip(places, texts, strict=True):
                answers[place] = text
                self.cache_hook.add_partial("generate_until", requests[place].args, text)
        return answers

    def _written(self, contexts: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
        new, until, options = _options(arguments)
        room = self.max_length - new if self.backend == "causal" else self.max_length
        if room < 1:
            raise UsageError(
                f"{new} new tokens leave no room for a context within {self.max_length}; set a smaller max_gen_toks"
            )
        prompts = [ids[-room:] for ids in self.run.read(contexts)]
        stop: list[Any] = ["end_token"] if "end" in self.run.tokenizer.special_ids else []
        stop += [{"type": "strings", "strings": until}] if until else []
        options |= {"stop": stop, "logits": []} | ({"batch_size": self.batch_size} if self.batch_size else {})
        if options["strategy"] == "sample":
            options["seed"] = int(torch.randint(2**31, ()))  # reproducible, since lm-eval sets torch's seed
        return self.run.generate(prompts, new, **options)


def _options(arguments: Mapping[str, Any]) -> tuple[int, list[str], dict[str, Any]]:
    """Return the token limit, stop strings and `generate` options of a task. Raise UsageError for unknown options."""
    values = {name: value for name, value in arguments.items() if value is not None}
    until = values.pop("until", [])
    limits = [values.pop(name) for name in LIMITS if name in values]
    draws = bool(values.pop("do_sample", values.get("temperature", 0) > 0))
    unknown = next((name for name in values if name not in SAMPLING), None)
    if unknown is not None:
        raise UsageError(
            f"gen_kwargs: unknown option '{unknown}'; available: until, {', '.join((*LIMITS[:1], *SAMPLING))}"
        )
    if not draws:
        values = {"num_beams": values["num_beams"]} if values.get("num_beams", 1) > 1 else {}
    strategy = "beam" if "num_beams" in values else "sample" if draws else "greedy"
    stops = [until] if isinstance(until, str) else [text for text in until if text]
    return int(limits[0]) if limits else NEW_TOKENS, stops, {**values, "strategy": strategy}


def _scores(run: Run, rows: Sequence[Row]) -> Iterator[tuple[float, bool]]:
    """Score rows in one forward pass."""
    ids, real = _padded([row.read for row in rows], run.device)
    with torch.no_grad():  # not inference_mode, so that tensors cached by the model remain usable in training
        if rows[0].source is None:
            hidden = run.model(ids, attention_mask=real, with_heads=False).hidden
        else:
            source, source_mask = _padded([row.source or () for row in rows], run.device)
            hidden = run.model(
                source, attention_mask=source_mask, decoder_input_ids=ids, decoder_attention_mask=real, with_heads=False
            ).hidden
        ends = [(place * ids.shape[1] + len(row.read), len(row.targets)) for place, row in enumerate(rows)]
        predicted = torch.cat([torch.arange(end - count, end, device=run.device) for end, count in ends])
        log_probabilities = token_logits(run.model, hidden, {"predicted": predicted}).log_softmax(
            dim=-1
        )  # [targets, vocab_size]
    for row, scores in zip(rows, torch.split(log_probabilities, [len(row.targets) for row in rows]), strict=True):
        targets = torch.tensor(row.targets, device=run.device)
        total = scores.gather(1, targets[:, None]).double().sum().item()
        yield total, bool((scores.argmax(dim=-1) == targets).all())


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad ids on the right. Return ids and attention mask, [rows longest]."""
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths[:, None]).long().to(device)
