"""Comparison of a CTranslate2 folder with its run: log-probabilities and greedy tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tfkit.core.errors import DataError, DifferenceError
from tfkit.core.extras import optional
from tfkit.interop.engines import MODEL, VOCABULARIES
from tfkit.interop.greedy import TOLERANCE, BoundaryTokens, FilesVerdict, boundary_tokens, equal_prompts, prompts
from tfkit.interop.onnx.exporting import as_float32
from tfkit.models import Model
from tfkit.run import Run
from tfkit.storage.files import read_json

PURPOSE = "loading a CTranslate2 model needs"


class Engine:
    """A loaded CTranslate2 folder. Raises DataError if loading fails."""

    def __init__(self, folder: Path, special: BoundaryTokens) -> None:
        library = optional("ctranslate2", "engines", PURPOSE)
        self.paired, self.ends = special["start"] is not None, list(special["ends"])
        files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
        if not files:
            raise DataError(f"{folder}: has no vocabulary; export the run again")
        self.tokens: list[str] = read_json(files[0])
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        try:
            self.raw = (library.Translator if self.paired else library.Generator)(str(folder), device="cpu")
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{folder / MODEL}: cannot be loaded: {error}") from None

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as text. Raise DataError for ids beyond the vocabulary."""
        if any(number >= len(self.tokens) for number in ids):
            raise DifferenceError(f"its vocabulary has only {len(self.tokens):,} tokens, fewer than the run's")
        return [self.tokens[number] for number in ids]

    def score(self, ids: Sequence[int], target: Sequence[int]) -> list[float]:
        """Return the log-probability of each token after the first, or of each `target` token of an encoder-decoder."""
        texts = [self.texts(ids)]
        (result,) = self.raw.score_batch(texts, [self.texts(target)]) if self.paired else self.raw.score_batch(texts)
        scores: list[float] = result.log_probs[: len(target)]
        return scores

    def write(self, ids: list[int], count: int) -> list[int]:
        """Return the greedy continuation of a prompt, or the greedy target of a source."""
        options: dict[str, object] = {"beam_size": 1, "end_token": self.ends, "return_end_token": False}
        if self.paired:
            (result,) = self.raw.translate_batch([self.texts(ids)], max_decoding_length=count, **options)
            return [self.ids[token] for token in result.hypotheses[0]]
        options["include_prompt_in_result"] = False
        (result,) = self.raw.generate_batch([self.texts(ids)], max_length=count, **options)
        return list(result.sequences_ids[0])


@torch.no_grad()
def largest_difference(model: Model, engine: Engine, special: BoundaryTokens) -> float:
    """Return the largest difference between log-probabilities over 20 texts."""
    worst = 0.0
    for one in prompts(model, special):
        target = (one.ids if engine.paired else one.ids[1:])[: one.count]
        if not target:
            continue
        read = torch.tensor([[special["start"], *target[:-1]] if engine.paired else one.ids])
        inputs = {"decoder_input_ids": read} if engine.paired else {}
        logits = model(torch.tensor([one.ids]) if engine.paired else read, **inputs).logits[0]
        expected = logits[: len(target)].log_softmax(-1).gather(-1, torch.tensor(target)[:, None])[:, 0]
        off = float((expected - torch.tensor(engine.score(one.ids, target))).abs().max())
        worst = max(worst, off if off == off else float("inf"))
    return worst


def verify_engine(run: Run, folder: Path, tolerance: float = TOLERANCE) -> FilesVerdict:
    """Compare a run with its CTranslate2 export in `folder`. Raise DataError if it cannot be loaded."""
    special = boundary_tokens(run)
    engine, model = Engine(folder, special), as_float32(run.model)
    try:
        worst = largest_difference(model, engine, special)
        return FilesVerdict(tolerance, {MODEL: worst}, equal_prompts(model, special, engine.write))
    except (RuntimeError, ValueError) as error:  # the exported architecture differs
        raise DifferenceError(
            f"{folder}: does not accept this run's inputs; is it an export of this run? {error}"
        ) from None
