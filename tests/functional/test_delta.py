"""The delta rule in chunks against its recurrence, a step per token."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tfkit.functional.delta import CHUNK, delta_rule

ROWS, HEADS, DIM, VALUE = 2, 3, 8, 5
LENGTHS = (1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)


def drawn(time: int, channels: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values of length 1, decays from almost none to all within a few tokens, strengths up to 2."""
    generator = torch.Generator().manual_seed(time + channels)
    sizes = (DIM, DIM, VALUE, channels, 1)
    made = [torch.randn(ROWS, HEADS, time, size, generator=generator, dtype=torch.float64) for size in sizes]
    query, key, value = (F.normalize(each, dim=-1) for each in made[:3])
    decay, strength = -F.softplus(3 * made[3]) * scale, 2 * torch.sigmoid(made[4])
    return [each.to(dtype) for each in (query, key, value, decay, strength)]


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor, texts: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    out = []
    for time in range(query.shape[2]):
        if time:
            state = state * (texts[:, time] == texts[:, time - 1])[:, None, None, None]
        now = key[:, :, time, :, None]  # a column
        state = decay[:, :, time, :, None].exp() * state
        state = state - strength[:, :, time, :, None] * now @ (now.mT @ state)
        state = state + strength[:, :, time, :, None] * now @ value[:, :, time, None, :]
        out.append((query[:, :, time, None, :] @ state)[:, :, 0])
    return torch.stack(out, dim=2), state


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return F.normalize(torch.randn(ROWS, HEADS, DIM, VALUE, generator=generator, dtype=torch.float64), dim=-1).to(dtype)


def far(some: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))


def test_chunks_are_the_recurrence_at_every_length() -> None:
    for channels in (1, DIM):
        for scale in (0.01, 1.0, 100.0):
            for time in LENGTHS:
                inputs = drawn(time, channels, scale)
                one_text = torch.zeros(ROWS, time)
                for state in (torch.zeros_like(start()), start()):
                    want = recurrence(*inputs, one_text, state)
                    for chunk in (CHUNK, 8, 1):  # 1: the recurrent form, a token per step
                        assert far(delta_rule(*inputs, state=state, chunk=chunk), want) < 1e-12
                halves = time // 2
                first = delta_rule(*(each[:, :, :halves] for each in inputs)) if halves else (inputs[2][:, :, :0], None)
                rest = delta_rule(*(each[:, :, halves:] for each in inputs), state=first[1])  # the cached form
                joined = torch.cat((first[0], rest[0]), dim=2), rest[1]
                assert far(joined, recurrence(*inputs, one_text, torch.zeros_like(start()))) < 1e-12


@pytest.mark.full
def test_float32_is_as_exact_as_its_recurrence() -> None:
    """Also with decays whose sums over a chunk reach thousands, in which a difference of sums has no digits left."""
    for channels in (1, DIM):
        for scale in (0.01, 1.0, 100.0):
            inputs = drawn(LENGTHS[-1], channels, scale, torch.float32)
            inputs[-1] /= 2
            exact = [each.double() for each in inputs]
            want = recurrence(*exact, torch.zeros(ROWS, LENGTHS[-1]), torch.zeros_like(start()))
            for chunk in (CHUNK, 8, 1):
                assert far(delta_rule(*inputs, chunk=chunk), want) < 1e-6


@pytest.mark.full
def test_packed_texts_do_not_see_each_other() -> None:
    time = 3 * CHUNK + 5
    places = torch.arange(time)
    texts = torch.stack((places // 37, (places > 2) + (places >= CHUNK).long() + (places >= 3 * CHUNK + 4)))
    for channels in (1, DIM):
        inputs = drawn(time, channels)
        want = recurrence(*inputs, texts, torch.zeros_like(start()))
        for chunk in (CHUNK, 8, 1):
            assert far(delta_rule(*inputs, texts=texts, chunk=chunk), want) < 1e-12


@pytest.mark.full
def test_gradients_are_those_of_the_recurrence() -> None:
    time = CHUNK + 9
    for channels in (1, DIM):
        for scale in (0.01, 1.0, 100.0):
            inputs = [each.requires_grad_() for each in (*drawn(time, channels, scale), start())]
            texts = torch.zeros(ROWS, time)
            grads = []
            for out, state in (
                recurrence(*inputs[:5], texts, inputs[5]),
                delta_rule(*inputs[:5], state=inputs[5]),
            ):
                grads.append(torch.autograd.grad(out.sin().sum() + state.cos().sum(), inputs))
            assert max(float((one - other).abs().max()) for one, other in zip(*grads, strict=True)) < 1e-10


@pytest.mark.full
def test_shapes_alone_cost_as_much_as_values() -> None:
    """On `meta`, all chunks are computed at once: as many operations, in as many steps as one chunk has."""
    inputs, counts, found = drawn(3 * CHUNK + 5, DIM), [], []
    for device in ("cpu", "meta"):
        with FlopCounterMode(display=False) as counter:
            found.append([each.shape for each in delta_rule(*(each.to(device) for each in inputs))])
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0 and found[0] == found[1]
