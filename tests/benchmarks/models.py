"""Benchmarks of training steps and forward passes, compared with other libraries and engines."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tests.benchmarks.decoding import PATCH, PIXELS, SIZES, Size, recipe
from tests.benchmarks.products import product_rate
from tests.benchmarks.rounds import (
    OWN,
    Call,
    Make,
    alternate,
    compared,
    measured_calls,
    peak_bytes,
    print_table,
    say,
    where,
)
from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import JsonObject
from tfkit.core.errors import DifferenceError
from tfkit.core.options import Slot
from tfkit.generation.decoder import copies_of, pack
from tfkit.models import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count as count_costs
from tfkit.runs.history import autocast
from tfkit.training.division import Division

if TYPE_CHECKING:
    from tfkit.training.objective import Batch, Loss, Objective

CLIP_NORM, LR = 1.0, 1e-4
EQUAL = 1e-5  # maximum difference of the logits of a packed model
MASKED = 0.15  # share of the tokens that a masked language model predicts
OBJECTIVES = {"decoder": "causal_lm", "encoder": "masked_lm", "encoder_decoder": "seq2seq"}


@dataclass(frozen=True)
class Case:
    """A model and a batch of `rows` random texts of `length` tokens; an encoder-decoder has them on both sides.

    `precision` is float32, or bfloat16 for autocast. `threads` is the number of CPU threads that engines use.
    """

    size: Size
    rows: int
    length: int
    dropout: float = 0.0
    trains: bool = True
    device: str = "cpu"
    precision: str = "float32"
    threads: int = field(default_factory=torch.get_num_threads)

    def ids(self, seed: int = 0) -> Tensor:
        """Return reproducible random ids [rows length], without special tokens."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(5, self.size.vocab_size, (self.rows, self.length), generator=generator).to(self.device)

    def inputs(self) -> dict[str, Tensor]:
        """Return the inputs of a forward pass; tfkit and transformers use the same names for those of texts."""
        if self.size.type == "pictures":
            generator = torch.Generator().manual_seed(0)
            return {"inputs_embeds": torch.rand(self.rows, PIXELS, PIXELS, 3, generator=generator).to(self.device)}
        return {"input_ids": self.ids()} | ({"decoder_input_ids": self.ids(1)} if self.size.pair else {})

    def labels(self) -> Tensor:
        """Return the token to predict at each position [rows length], -100 where there is none."""
        ids = self.ids(2)
        if self.size.type != "encoder":
            return ids
        draws = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3))
        return ids.masked_fill((draws >= MASKED).to(self.device), -100)

    def blueprint(self) -> Blueprint:
        """Return the architecture of tfkit's model."""
        return load_recipe({"tfkit": 1, "model": recipe(self.size, self.dropout)}).blueprint()

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context manager of the precision."""
        return autocast(torch.device(self.device), self.precision)

    def flops(self) -> float:
        """Return the FLOPs of the matrix products, of which a backward pass has twice as many as a forward pass.

        Logits are counted for predicted tokens only.
        """
        tokens, counts = self.rows * self.length, count_costs(self.blueprint(), self.length, self.rows)
        head = sum(row.cost.flops_per_token for row in counts.rows if row.name == "head")
        predicted = int((self.labels() >= 0).sum()) if self.trains else tokens
        forward = tokens * (counts.total.flops_per_token - head) + predicted * head
        return float(3 * forward if self.trains else forward)


Peer = Callable[[Case, Model], Call]  # another library, or an engine that runs the model

TRAINED = {
    case.size.name: case
    for case in (
        Case(Size("gpt", 6, 384, 6, 1536, 256), 8, 256),
        Case(Size("gpt50257", 6, 384, 6, 1536, 50257), 8, 256),
        Case(Size("bert", 6, 384, 6, 1536, 30522, "encoder"), 16, 128),
        Case(Size("bert-base", 12, 768, 12, 3072, 30522, "encoder"), 8, 128),
        Case(SIZES["gpt2"], 16, 1024),
        Case(Size("pair", 3, 256, 4, 1024, 8000, "encoder_decoder"), 32, 64),
    )
}
READ = {name: replace(case, length=128, trains=False) for name, case in TRAINED.items()}
READ["gpt2"] = replace(READ["gpt2"], length=512)
READ["vit-base"] = Case(
    Size("vit-base", 12, 768, 12, 3072, 1000, "pictures"), 8, (PIXELS // PATCH) ** 2 + 1, trains=False
)
PACKED = f"{OWN} packed"


def measure(cases: Sequence[Case], peers: Mapping[str, Peer], rounds: int) -> Iterator[JsonObject]:
    """Time tfkit and the peers in alternating rounds. Raise UsageError if a library is not installed."""
    for case in cases:
        makes: dict[str, Make] = {OWN: partial(_own, case)}
        packs = not case.trains and case.device == "cpu" and case.precision == "float32"
        makes |= {PACKED: partial(_packed, case)} if packs else {}
        makes |= {name: partial(_peer, case, peer) for name, peer in peers.items()}
        with measured_calls(makes) as calls:
            times = alternate(calls, rounds)
            peak = partial(peak_bytes, case.device)  # engines allocate by other means than torch
            peaks = {name: {"peak_bytes": int(call.ask(peak))} if case.trains else {} for name, call in calls.items()}
            copies = int(calls[PACKED].ask(_copied_bytes)) if packs else 0
            rate = calls[OWN].ask(partial(product_rate, case.device, case.precision))
        own = times[OWN] or ()
        for name, seconds in times.items():
            more = peaks[name] if case.trains else {"copied_bytes": copies if name == PACKED else 0}
            yield _row(case, rate, name, seconds or (), own) | more


def build(case: Case) -> Model:
    """Return the model with reproducible random weights."""
    return build_model(case.blueprint(), device=case.device, seed=0).train(case.trains)


def _own(case: Case) -> Call:
    return (step if case.trains else _forward)(case, build(case))


def _packed(case: Case) -> Call:
    """Return the forward pass with packed weights. Raise DifferenceError if its logits differ from the plain ones."""
    plain, model = build(case), pack(build(case))
    with torch.inference_mode():
        difference = (model(**case.inputs()).logits - plain(**case.inputs()).logits).abs().max().item()
    if not difference <= EQUAL:
        raise DifferenceError(f"{case.size.name}: the packed model's logits differ by {difference:.2g}")
    return _forward(case, model)


def _copied_bytes(call: Call) -> float:
    assert isinstance(call, partial)
    decoder = copies_of(call.args[0])
    return 0 if decoder is None else decoder.bytes


def _peer(case: Case, peer: Peer) -> Call:
    return peer(case, build(case))


def _row(case: Case, rate: float, way: str, times: Sequence[float], own: Sequence[float]) -> JsonObject:
    row: JsonObject = {"model": case.size.name, "rows": case.rows, "length": case.length, "dropout": case.dropout}
    measured = compared(times, own)
    seconds = measured.pop("seconds")
    share = {"mfu": case.flops() / seconds / rate, "product_flops_per_second": rate}
    return {**row, "way": way, "ms": 1000 * seconds, **share, **measured}


def _forward(case: Case, model: Model) -> Call:
    return partial(_read, model, case, case.inputs())


def _read(model: Model, case: Case, inputs: dict[str, Tensor]) -> None:
    with torch.inference_mode(), case.autocast():
        model(**inputs)


def _linear_bytes(case: Case) -> int:
    """Return the bytes of the weights of all linear layers."""
    model = build_model(case.blueprint(), "meta")
    return sum(one.weight.nbytes for one in model.modules() if isinstance(one, nn.Linear))


def step(case: Case, model: Model) -> Call:
    """Return a training step: loss, gradients, clipping and AdamW."""
    objective: Objective = Slot("objective").validate(OBJECTIVES[case.size.type]).build()
    batch, numbers = _batch(case), count()

    def loss(batch: Batch) -> Loss:
        with case.autocast():
            return objective.loss(model, batch, True)

    division = Division(model, loss)
    scale = 1 / len(batch["labels"])
    return with_adamw(model, lambda: division.backward(batch, (next(numbers),), scale, True))


def _batch(case: Case) -> Batch:
    """Return a batch as the objectives collate it: `labels` [n], and their indices in the flattened rows."""
    labels = case.labels().flatten()  # [rows*length]
    predicted = torch.nonzero(labels >= 0).flatten()  # [n]
    batch = {**case.inputs(), "labels": labels[predicted]}
    return batch if len(predicted) == len(labels) else {**batch, "predicted": predicted}


def with_adamw(model: nn.Module, backward: Callable[[], object]) -> Call:
    """Return a training step: gradients by `backward`, clipping, and torch's fused AdamW."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, fused=True)

    def call() -> None:
        backward()
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return call


def render(rows: Sequence[JsonObject], case: Case) -> None:
    """Print the results of cases that have the device and precision of `case`."""
    say(
        f"Random weights, {case.precision}, {where(case.device)}; medians of alternating rounds, each method in a "
        "process of its own."
    )
    figures = {"ms": "{ms:.1f}", "MFU": "{mfu:.0%}"}
    if not case.trains:
        weights = {row["model"]: _linear_bytes(READ[row["model"]]) for row in rows}
        rows = [{**row, "copies": row["copied_bytes"] / weights[row["model"]]} for row in rows]
        figures["copies"] = "{copies:.2f}"
    if case.trains:
        rows = [{**row, "peak": row["peak_bytes"] / 1e6} for row in rows]
        figures["peak MB"] = "{peak:,.0f}"
    print_table(rows, ("model", "rows", "length", "dropout", "way"), figures)
    rate = statistics.median(row["product_flops_per_second"] for row in rows)
    say(
        f"\nMFU: FLOPs per second, as a share of those of a large matrix product (here {rate / 1e12:.3g} TFLOP/s).",
        style="dim",
    )
    if not case.trains:
        say("copies: bytes of packed weights, as a multiple of those of all linear layers' weights.", style="dim")
    if case.trains:
        say("peak MB: peak memory of the tensors that a step allocates, gradients included.", style="dim")
