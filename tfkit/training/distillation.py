"""Distillation: a loss that combines the objective with imitation of a teacher model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tfkit.core.options import LayerPair, layer_pairs
from tfkit.functional.view import wide
from tfkit.models import Model
from tfkit.models.base import ModelOutput
from tfkit.recipe.settings import sections
from tfkit.training.objective import Batch, Loss, Objective, Reading
from tfkit.training.objective.base import token_logits
from tfkit.training.objective.reading import head_of

Place = tuple[str, int]  # (stack, layer index)
# Axes: n targets, m real tokens, c classes, d width.


class Distillation:
    """Loss = (1 - weight) * objective + weight * T^2 KL(teacher || student at temperature T) + cosine + layers.

    The objective and KL terms are averaged over targets, the others over real tokens (not padding). Only the student
    and the projections between different widths are trained (Hinton et al. 2015, arXiv 1503.02531; Sanh et al. 2019,
    arXiv 1910.01108; Jiao et al. 2019, arXiv 1909.10351).
    """

    def __init__(self, settings: sections.Teacher, objective: Objective, teacher: Model, student: Model) -> None:
        self.settings, self.objective, self.teacher = settings, objective, teacher
        self.side = side = student.blueprint.last.side
        self.hidden = list(layer_pairs(settings.hidden, side))
        self.attention = list(layer_pairs(settings.attention, side))
        self.projections = _projections(self, student)
        if len(self.projections):
            objective.module = self.projections

    def loss(self, student: Model, batch: Batch) -> Loss:
        """Compute the training loss of the student."""
        with recording(student, bool(self.attention)) as own:
            plain = self.objective.loss(student, batch, training=True)
        with torch.no_grad(), recording(self.teacher, bool(self.attention)) as other:
            self.objective.loss(self.teacher, batch, training=False)
        share, added = self.settings.weight, own.auxiliary * plain.count
        total = (1 - share) * (plain.total - added) + added
        if share:
            total = total + share * plain.count * self._soft(student, own.last, other.last, batch)
        return Loss(total + plain.count * self._states(own, other, batch), plain.count)

    def _soft(self, student: Model, own: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Compute T^2 KL(softmax(teacher / T) || softmax(student / T)), averaged over the targets."""
        temperature = self.settings.temperature
        logits = target_logits(self.objective, student, own, batch)  # [n c]
        with torch.no_grad():
            targets = target_logits(self.objective, self.teacher, other, batch)  # [n c]
        log_student, log_teacher = (F.log_softmax(one / temperature, dim=-1) for one in (logits, targets))
        divergence = F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
        return temperature**2 * divergence

    def _states(self, own: States, other: States, batch: Batch) -> Tensor:
        """Return the weighted sum of the errors of hidden states and attention weights."""
        settings, total = self.settings, own.last.new_zeros((), dtype=torch.float32)
        if settings.cosine:
            texts = self._texts(batch, self.side)
            state, target = chosen(self._projected("last", own.last), texts), chosen(other.last, texts)  # [m d]
            total = total + settings.cosine * (1 - F.cosine_similarity(state, target, dim=-1)).mean()
        for pair in self.hidden:
            state, target = own.hidden[pair.side, pair.own], other.hidden[pair.side, pair.other]
            texts = self._texts(batch, pair.side)
            error = chosen(self._projected(_key(pair), state), texts) - chosen(target, texts)  # [m d]
            total = total + settings.hidden_weight * error.square().mean()
        for pair in self.attention:
            weights, target = own.attention[pair.side, pair.own], other.attention[pair.side, pair.other]
            texts = self._texts(batch, pair.side)
            total = total + settings.attention_weight * attention_error(wide(weights), wide(target), texts)
        return total

    def _projected(self, name: str, hidden: Tensor) -> Tensor:
        projected: Tensor = self.projections[name](hidden) if name in self.projections else hidden
        return projected

    def _texts(self, batch: Batch, side: str) -> Tensor | None:
        """Return the number of each token's text in its row, [batch time], 0 for padding; None: one text per row."""
        prefix = "decoder_" if side == "decoder" and "decoder_input_ids" in batch else ""
        return batch.get("segment_ids", batch.get(f"{prefix}attention_mask"))


def _key(pair: LayerPair) -> str:
    return f"{pair.side}_{pair.own}"


def _projections(distillation: Distillation, student: Model) -> nn.ModuleDict:
    """Create projections from the student's width to the teacher's for states whose widths differ."""
    teacher, first = distillation.teacher, next(student.parameters())
    pairs = {_key(pair): (student.stack(pair.side), teacher.stack(pair.side)) for pair in distillation.hidden}
    if distillation.settings.cosine:
        pairs["last"] = student.stack(student.blueprint.last.side), teacher.stack(teacher.blueprint.last.side)
    widths = {name: (own.plan.d_model, other.plan.d_model) for name, (own, other) in pairs.items()}
    made = {
        name: nn.Linear(own, other, bias=False, device=first.device)
        for name, (own, other) in sorted(widths.items())
        if own != other
    }
    return nn.ModuleDict(made)


def target_logits(objective: Objective, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
    """Compute the logits [n c] of the targets from the last hidden states [batch time d]."""
    if not isinstance(objective, Reading):
        return token_logits(model, hidden, batch)
    logits = wide(head_of(model, objective.config.head)(hidden, batch.get("attention_mask")))
    return logits.flatten(0, 1).index_select(0, batch["predicted"]) if "predicted" in batch else logits


def chosen(hidden: Tensor, texts: Tensor | None) -> Tensor:
    """Select the real tokens of [batch time d] as [m d], in at least float32."""
    return wide(rearrange(hidden, "batch time width -> (batch time) width") if texts is None else hidden[texts != 0])


def attention_error(own: Tensor, other: Tensor, texts: Tensor | None) -> Tensor:
    """Mean squared error of attention weights [batch head query key] over heads and pairs of tokens of one text."""
    error = (own - other).square().mean(dim=1)  # [batch query key]
    if texts is None:
        return error.mean()
    return error[(texts[:, :, None] == texts[:, None, :]) & (texts != 0)[:, None, :]].mean()


@dataclass
class States:
    """Recorded results of a forward pass: final hidden states, hidden states and attention weights of each layer."""

    last: Tensor = field(default_factory=lambda: torch.empty(0))
    auxiliary: Tensor = field(default_factory=lambda: torch.zeros(()))
    hidden: dict[Place, Tensor] = field(default_factory=dict)
    attention: dict[Place, Tensor] = field(default_factory=dict)


@contextlib.contextmanager
def recording(model: Model, attention: bool = False) -> Iterator[States]:
    """Record the states of `model` within the block. Attention weights are optional because recording them is slow."""
    states, observe = States(), {"attention"} if attention else None

    def watch(module: nn.Module, arguments: object, keywords: dict[str, object]) -> tuple[object, dict[str, object]]:
        return arguments, {**keywords, "observe": observe}

    def keep(module: nn.Module, arguments: object, out: ModelOutput) -> None:
        if out.hidden is not None:
            states.last = out.hidden
        for place, weights in out.observed.items():
            side, _, layer, name = place.split(".")
            if name == "attention":
                states.attention[side, int(layer)] = weights
        if out.auxiliary_loss is not None:
            states.auxiliary = out.auxiliary_loss

    handles = [model.register_forward_pre_hook(watch, with_kwargs=True), model.register_forward_hook(keep)]
    for plan in model.blueprint.stacks():
        handles += _watched(model, plan.side, states)
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _watched(model: Model, side: str, states: States) -> list[RemovableHandle]:
    """Add hooks to the layers of a stack. Calls are counted, because a shared layer is called several times."""
    handles: list[RemovableHandle] = []
    calls = iter(range(len(model.stack(side).layers)))
    current = -1

    def enter(module: nn.Module, arguments: object) -> None:
        nonlocal current
        current = next(calls)

    def leave(module: nn.Module, arguments: object, out: Tensor) -> None:
        states.hidden[side, current] = out

    for layer in dict.fromkeys(model.stack(side).layers):
        handles += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    return handles
