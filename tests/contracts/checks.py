"""The contracts of a part: plain functions of a Case that raise AssertionError with a sentence.

They know nothing of pytest. A check looks from outside: the part stands in a small model, and only what the model gives
is compared. Values are float64, so that a difference is a fault and no rounding.
"""

from __future__ import annotations

import copy
import json
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tfkit.core.component import Component, Slot
from tfkit.core.context import Inputs, Span, Visibility
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

from .cases import (
    NEEDED,
    PREFIX,
    SOURCE,
    SUBLAYERS,
    TOPOLOGIES,
    VOCABULARY,
    Case,
    blueprint,
    fresh,
    load,
    loads,
    model,
    outputs,
    randomise,
    run,
    special,
    tokens,
)
from .cases import tokenwise as tokenwise_head

SAME = 1e-6  # of outputs that come from the same numbers
EQUAL = 1e-5  # of outputs computed in another order; some parts work in float32
PAD = 0


@dataclass(frozen=True)
class Check:
    """A contract: what it promises, when it applies, and the function that holds a case to it."""

    name: str
    promise: str
    function: Callable[[Case], None]
    needs: tuple[str, ...]
    when: Callable[[Case], bool]
    every_option: bool  # worth running with each option changed
    once: bool  # the same in every topology

    def applies(self, case: Case) -> bool:
        """Whether the part promises this, and its slot has a use for it."""
        return all(case.declares(need) for need in self.needs) and self.name in ENOUGH.get(case.slot, (self.name,))

    def __call__(self, case: Case) -> None:
        """Hold the case to the contract; the part that breaks it is named."""
        try:
            if self.when(case):
                self.function(case)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error} (the contract: {self.promise})") from None
        except Exception as error:
            told = f"it raises {type(error).__name__}: {error}"
            raise AssertionError(f"{case}: {told} (the contract: {self.promise})") from error


CHECKS: dict[str, Check] = {}
# slots of which some checks tell all there is to know
ENOUGH = {
    "init": ("config", "determinism", "initial", "shapes", "saving"),
    "activation": ("shapes", "gradients", "future", "padding", "few", "config", "meta", "compile", "export"),
}


def always(case: Case) -> bool:
    """Applies to any case."""
    return True


def contract(
    promise: str,
    *needs: str,
    when: Callable[[Case], bool] = always,
    every_option: bool = False,
    once: bool = False,
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Enter a check into CHECKS under its name without `check_`."""

    def enter(function: Callable[[Case], None]) -> Callable[[Case], None]:
        name = function.__name__.removeprefix("check_")
        CHECKS[name] = Check(name, promise, function, needs, when, every_option, once)
        return function

    return enter


# --- comparing


def far(a: Tensor, b: Tensor) -> float:
    """The greatest difference, relative to the size of the numbers; infinite where one is not a number."""
    if a.numel() == 0:
        return 0.0
    difference = (a.double() - b.double()).abs().max().item()
    return difference / max(1.0, b.double().abs().max().item()) if difference == difference else float("inf")


def expect_equal(a: Tensor, b: Tensor, what: str, tolerance: float = EQUAL) -> None:
    assert a.shape == b.shape, f"{what}: shape {list(a.shape)} instead of {list(b.shape)}"
    distance = far(a, b)
    assert distance <= tolerance, f"{what}: off by {distance:.1e}"


def expect_finite(tensors: dict[str, Tensor], what: str) -> None:
    for name, tensor in tensors.items():
        assert bool(torch.isfinite(tensor).all()), f"{what}: {name} is not finite"


def tokenwise(out: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs that have an entry for each token."""
    return {name: value for name, value in out.items() if name != "pooled"}


def causal(case: Case) -> bool:
    return case.blueprint.last.causal


# --- shapes


@contract("shapes and the dtype of hidden states are kept, in float32, bfloat16 and float64", every_option=True)
@torch.no_grad()
def check_shapes(case: Case) -> None:
    ids, exact = tokens(3, 7), {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        made, kept = model(case, dtype), []
        stacks = [made.stack(plan.side) for plan in made.blueprint.stacks()]
        hooks = [
            layer.register_forward_hook(lambda module, arguments, out, kept=kept: kept.append(("a layer", out.dtype)))
            for layer in {layer for stack in stacks for layer in stack.layers}
        ]
        out = run(case, ids, on=made)
        for hook in hooks:
            hook.remove()
        exact = exact or out
        expect_finite(out, f"in {dtype}")
        assert out["hidden"].shape == (3, 7, made.blueprint.last.d_model), f"hidden is {list(out['hidden'].shape)}"
        for name, found in [*kept, ("the model", out["hidden"].dtype)]:
            assert found == dtype, f"{name} gives {found} when its weights are {dtype}"
        for name, value in out.items():
            assert value.shape == exact[name].shape, f"{name} is {list(value.shape)} in {dtype}"
            assert value.is_floating_point() and value.shape[0] == 3, f"{name} is {value.dtype} {list(value.shape)}"
            if dtype == torch.float32:
                expect_equal(value, exact[name], f"{name} in float32 against float64", 1e-3)
    head = case.blueprint.head
    if head is not None and getattr(made.head, "output", None) is not None and case.slot != "head":
        assert out["logits"].shape[-1] == VOCABULARY, f"logits are {list(out['logits'].shape)}"


# --- gradients


def loss_of(case: Case, out: dict[str, Tensor]) -> Tensor:
    """A number that depends on all outputs; on the head's alone where every token can reach it."""
    wanted = {name: value for name, value in out.items() if name != "hidden"}
    if not wanted or (causal(case) and "pooled" in wanted):
        wanted = out
    generator = torch.Generator().manual_seed(3)
    terms = [(value * torch.randn(value.shape, generator=generator).to(value.dtype)).sum() for value in wanted.values()]
    return torch.stack(terms).sum()


def gradients(case: Case, made: Model, out: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Gradient of each trained weight by name, None where there is none."""
    named = {name: weight for name, weight in made.named_parameters() if weight.requires_grad}
    found = torch.autograd.grad(loss_of(case, out), list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


def inert_names(made: nn.Module) -> dict[str, Component]:
    """The parameters that parts declare inert, by their full name, each with its part."""
    return {
        f"{prefix}.{name}": module
        for prefix, module in made.named_modules()
        if isinstance(module, Component)
        for name in module.inert
    }


@contract("every parameter has a finite gradient that is not zero, unless it is declared inert", every_option=True)
def check_gradients(case: Case) -> None:
    made = model(case)
    ids = tokens(3, 7)
    found = gradients(case, made, run(case, ids))
    inert = inert_names(made)
    largest = max(float(grad.abs().max()) for grad in found.values() if grad is not None)
    for name, grad in found.items():
        size = 0.0 if grad is None else float(grad.abs().max())
        assert size == size and size != float("inf"), f"the gradient of {name} is not finite"
        if name not in inert:
            assert size > 1e-9 * largest, f"{name} has no gradient: it cannot change the output"
        elif isinstance(inert[name], case.part) and not case.variant and case.slot in SUBLAYERS:
            assert size < 1e-6 * largest, f"{name} is declared inert, but it changes the output"


# --- who may look at whom


@contract("no output depends on a later token", "causal", when=causal, every_option=True)
@torch.no_grad()
def check_future(case: Case) -> None:
    time = 6
    ids = tokens(2, time)
    before = tokenwise(run(case, ids))
    start = PREFIX if case.opens else 0
    for place in range(start, time):
        after = tokenwise(run(case, changed(ids, place)))
        for name, value in before.items():
            expect_equal(
                after[name][:, :place],
                value[:, :place],
                f"{name} before token {place} changes when that token changes: a look into the future",
                SAME,
            )
        assert far(after["hidden"][:, place:], before["hidden"][:, place:]) > 0, f"nothing depends on token {place}"
    if case.opens:
        opened = run(case, changed(ids, start - 1))["hidden"]
        assert far(opened[:, :1], before["hidden"][:, :1]) > 0, "the prefix is not read both ways"


def changed(ids: Tensor, place: int) -> Tensor:
    """The ids with another token at `place`."""
    out = ids.clone()
    out[:, place] = out[:, place] % (VOCABULARY - 1) + 1
    return out


@contract("a token sees what the layers' mask rules show it, and nothing else", when=lambda case: not case.pair)
@torch.no_grad()
def check_visibility(case: Case) -> None:
    time = 6
    ids = tokens(1, time)
    reach = reachable(case, ids)
    before = run(case, ids)["hidden"][0]
    for place in range(time):
        after = run(case, changed(ids, place))["hidden"][0]
        moved = (after - before).abs().amax(dim=-1) > SAME
        hidden = moved & ~reach[:, place]
        assert not hidden.any(), f"token {int(hidden.nonzero()[0])} sees token {place}, which the mask hides"
        if case.slot == "mask":
            blind = ((after - before).abs().amax(dim=-1) == 0) & reach[:, place]
            assert not blind.any(), f"token {int(blind.nonzero()[0])} does not see token {place}, which the mask shows"


def reachable(case: Case, ids: Tensor) -> Tensor:
    """[query key], whether a key's token can reach the query through all layers, from the rules themselves."""
    stack, time = case.blueprint.last, ids.shape[1]
    needed = special(case.needs, ids, 0, torch.zeros(1, dtype=torch.long))
    reach = torch.eye(time, dtype=torch.bool)
    for kind in stack.order:
        plan = stack.layers[kind]
        rules = [rule.build(stack.shape(plan=plan)) for rule in plan.mask]
        dense = Visibility(rules, Span(time, time, 0, ids.device), Inputs(ids, None, **needed)).dense()
        one = torch.ones(time, time, dtype=torch.bool) if dense is None else dense[0].expand(time, time)
        one = one | torch.eye(time, dtype=torch.bool)
        reach = (one.long() @ reach.long()) > 0
    return reach


# --- padding, batches, packing


def padded(rows: Sequence[Tensor], side: str, fill: int) -> dict[str, Tensor]:
    """Rows of different lengths as one batch: ids, which are real, the positions, and the padding on the left."""
    width = max(len(row) for row in rows) + 1
    ids = torch.full((len(rows), width), fill)
    real = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros(len(rows), width, dtype=torch.long)
    shift = torch.zeros(len(rows), dtype=torch.long)
    for index, row in enumerate(rows):
        start = width - len(row) if side == "left" else 0
        place = slice(start, start + len(row))
        ids[index, place], real[index, place] = row, 1
        positions[index, place] = torch.arange(len(row))
        shift[index] = start
    return {"ids": ids, "real": real, "positions": positions, "shift": shift}


LENGTHS = (7, 4, 0, 1, 6)


@contract("padding and other rows of the batch change nothing", "padding", every_option=True)
@torch.no_grad()
def check_padding(case: Case) -> None:
    rows = [tokens(1, length, seed=index)[0] for index, length in enumerate(LENGTHS)]
    alone = [run(case, row[None]) if len(row) else {} for row in rows]
    whole = [tokens(1, 7, seed=seed)[0] for seed in range(3)]
    batch = run(case, torch.stack(whole))
    for index, row in enumerate(whole):
        for name, value in run(case, row[None]).items():
            expect_equal(batch[name][index : index + 1], value, f"{name} of a row alone and in a batch")
    for side in ("right", "left"):
        for fill in (PAD, 5):
            call = padded(rows, side, fill)
            out = run(case, **call)
            expect_finite(out, f"a batch padded on the {side}, with an empty row in it")
            for index, one in enumerate(alone):
                kept = call["real"][index].bool()
                for name, value in one.items():
                    found = out[name][index] if name == "pooled" else out[name][index][kept]
                    what = (
                        f"{name} of {LENGTHS[index]} tokens, padded on the {side} with id {fill}, and without padding"
                    )
                    expect_equal(found, value[0], what)


@contract("padding of the source changes nothing", "padding", when=lambda case: case.pair, every_option=True)
@torch.no_grad()
def check_source_padding(case: Case) -> None:
    rows = [tokens(1, length, seed=index)[0] for index, length in enumerate((6, 3, 0, 1))]
    ids = tokens(4, 5, seed=20)
    alone = [run(case, ids[index : index + 1], source=row[None]) if len(row) else {} for index, row in enumerate(rows)]
    for side in ("right", "left"):
        call = padded(rows, side, 5)
        more = {"source": call["ids"], "source_real": call["real"]}
        out = run(case, ids, **more, position_ids=call["positions"])
        expect_finite(out, f"a source padded on the {side}, with an empty row in it")
        for index, one in enumerate(alone):
            for name, value in one.items():
                expect_equal(out[name][index : index + 1], value, f"{name} of a source padded on the {side}")


def packs(case: Case) -> bool:
    """Whether texts may share a row: an encoder-decoder takes one a row, and a prefix belongs to a whole row."""
    return not case.pair and "prefix_length" not in case.needs


@contract("the segments of a packed row are as if each stood alone", "packing", when=packs, every_option=True)
@torch.no_grad()
def check_packing(case: Case) -> None:
    packed = [[tokens(1, length, seed=10 * row + length)[0] for length in lengths] for row, lengths in PACKED]
    ids = torch.stack([torch.cat([*texts, torch.full((10 - sum(map(len, texts)),), PAD)]) for texts in packed])
    segments, positions, real, marks = (torch.zeros_like(ids) for _ in range(4))
    for row, texts in enumerate(packed):
        start = 0
        for number, text in enumerate(texts, start=1):
            place = slice(start, start + len(text))
            segments[row, place], real[row, place] = number, 1
            positions[row, place] = torch.arange(len(text))
            marks[row, start] = 1
            start += len(text)
    more = {"segment_ids": segments}
    if "global_attention_mask" in case.needs:
        more["global_attention_mask"] = marks
    full = run(case, ids, real=real, positions=positions, **more)
    for row, texts in enumerate(packed):
        start = 0
        for number, text in enumerate(texts, start=1):
            for name, value in tokenwise(run(case, text[None])).items():
                found = full[name][row : row + 1, start : start + len(text)]
                expect_equal(found, value, f"{name} of segment {number} of a packed row, and of that text alone")
            start += len(text)


PACKED = tuple(enumerate(([4, 3, 2], [5, 4], [10])))


@contract("a text of one token, and rows that may see nothing, give numbers", every_option=True)
def check_few(case: Case) -> None:
    ids = tokens(3, 6)
    if causal(case) and not case.opens:
        first = run(case, ids)["hidden"][:, :1]
        expect_equal(run(case, ids[:, :1])["hidden"], first, "a text of one token, and the first of a longer one")
    made = model(case)
    call: dict[str, Any] = {"real": torch.tensor([[1] * 6, [0] * 6, [1] * 3 + [0] * 3])}
    if not case.declares("padding"):
        call = {}
    elif case.pair:
        call = {"source_real": torch.tensor([[1] * SOURCE, [0] * SOURCE, [1] * 3 + [0] * 3])}
    out = run(case, ids, **call)
    expect_finite(out, "with a row that may see nothing")
    expect_finite(
        {f"the gradient of {name}": grad for name, grad in gradients(case, made, out).items() if grad is not None},
        "with a row that may see nothing",
    )
    expect_finite(run(case, ids[:, :1]), "of a text of one token")


# --- decoding from a state


def cached_with(case: Case, made: Model) -> bool:
    """Whether the model decodes from a state: it is causal, and all its sublayers can."""
    plan = case.blueprint.last
    parts = [sublayer.config.part for layer in plan.layers for sublayer in layer.sublayers]
    return causal(case) and all("cache" in part.capabilities for part in parts)


def decodes(case: Case) -> bool:
    return cached_with(case, model(case))


def stepwise(
    case: Case,
    ids: Tensor,
    sizes: Sequence[int],
    real: Tensor | None = None,
    positions: Tensor | None = None,
    shift: Tensor | None = None,
    every_mask: bool = True,
    **more: Any,
) -> dict[str, Tensor]:
    """The outputs for [batch time] ids, given a few at a time to a decode state."""
    state, found, start = model(case).new_state(), [], 0
    for size in sizes:
        end = start + size
        call: dict[str, Any] = {"shift": shift, "state": state, **more}
        if real is not None and (every_mask or start == 0):
            call["real"] = real[:, :end]
        if positions is not None:
            call["positions"] = positions[:, start:end]
        found.append(tokenwise(run(case, ids[:, start:end], **call)))
        start = end
    return {name: torch.cat([part[name] for part in found], dim=1) for name in found[0]}


@contract("decoding from a state gives what the whole text at once gives", "cache", when=decodes, every_option=True)
@torch.no_grad()
def check_cache(case: Case) -> None:
    ids = tokens(3, 7)
    more = memory_of(case, 3)
    full = tokenwise(run(case, ids, **more))
    plans = [[4, 3], [5, 1, 1], [7]] if case.opens else [[1] * 7, [4, 3], [5, 1, 1]]
    for sizes in plans:
        steps = stepwise(case, ids, sizes, **more)
        for name, value in full.items():
            expect_equal(steps[name], value, f"{name} decoded in steps of {sizes}, and at once")
    if case.declares("padding"):
        _cache_left_padded(case)


def memory_of(case: Case, rows: int) -> dict[str, Tensor]:
    """A source of its own for every row, some of it padding, where the model has an encoder."""
    if not case.pair:
        return {}
    real = torch.ones(rows, SOURCE, dtype=torch.long)
    real[1:, -2:] = 0
    return {"source": tokens(rows, SOURCE, seed=30), "source_real": real}


def _cache_left_padded(case: Case) -> None:
    rows = [tokens(1, length, seed=40 + length)[0] for length in (9, 7, 4)]
    call = padded(rows, "left", PAD)
    more = memory_of(case, 3)
    full = tokenwise(run(case, **call, **more))
    kept = call["real"].bool()
    # the first call must hold the longest padding, and the prefix if there is one; what follows is real
    for every_mask, sizes in ((True, [9, 1]),) if case.opens else ((True, [7, 1, 2]), (False, [7, 2, 1])):
        steps = stepwise(case, sizes=sizes, every_mask=every_mask, **call, **more)
        for name, value in full.items():
            how = "the whole mask with every call" if every_mask else "the mask with the first call only"
            what = f"{name} decoded in steps of {sizes} with padding on the left, {how}, and at once"
            expect_equal(steps[name][kept], value[kept], what)


@contract("reordered rows of a decode state go on as those rows would", "cache", when=decodes, every_option=True)
@torch.no_grad()
def check_reorder(case: Case) -> None:
    ids, more = tokens(3, 5), memory_of(case, 3)
    for order in ([2, 0, 0, 1], [1]):
        rows = torch.tensor(order)
        new = tokens(len(order), 3, seed=50)
        whole = torch.cat((ids[rows], new), dim=1)
        chosen = {name: value[rows] for name, value in more.items()}
        full = tokenwise(run(case, whole, **chosen))
        state = model(case).new_state()
        run(case, ids, state=state, **more)
        state.reorder(rows)
        found = [tokenwise(run(case, new[:, place : place + 1], state=state, **chosen)) for place in range(3)]
        for name, value in full.items():
            steps = torch.cat([part[name] for part in found], dim=1)
            expect_equal(steps, value[:, 5:], f"{name} after the rows became {order}, and of those rows at once")
    assert state.bytes() >= 0, "a decode state says how many bytes it holds"


@contract("with a decode state the encoder runs once", "cache", when=lambda case: case.pair and decodes(case))
@torch.no_grad()
def check_encoder_runs_once(case: Case) -> None:
    made = model(case)
    tokenwise_head(case)  # asks the model too, the first time
    calls: list[int] = []
    hook = made.stack("encoder").register_forward_hook(lambda *arguments: calls.append(1))
    try:
        stepwise(case, tokens(2, 4), [1, 1, 1, 1])
    finally:
        hook.remove()
    assert len(calls) == 1, f"the encoder ran {len(calls)} times in 4 steps"


# --- config, weights, repeatability


@contract("options survive being written, read, copied and pickled", every_option=True)
def check_config(case: Case) -> None:
    config, slot = case.config, Slot(case.slot)
    spelled = config.spelled()
    again = slot.validate(json.loads(json.dumps(spelled)))
    assert again == config, f"{spelled} is read as {again.spelled()}"
    assert hash(again) == hash(config), "equal options have different hashes"
    assert again.spelled() == spelled, f"{spelled} is spelled {again.spelled()} when read again"
    for how, other in (("pickled", pickle.loads(pickle.dumps(config))), ("copied", copy.deepcopy(config))):
        assert other == config, f"the {how} options are {other.spelled()}"
    recipe = load(case)
    text = recipe.resolved()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resolved.yaml"
        path.write_text(text, encoding="utf-8")
        loaded = load_recipe(path)
    assert loaded.blueprint() == recipe.blueprint(), f"resolved.yaml does not load to an equal Blueprint:\n{text}"


@contract("a seed gives the same weights and the same outputs, and leaves the caller's random numbers alone", once=True)
@torch.no_grad()
def check_determinism(case: Case) -> None:
    plan, ids = blueprint(case), tokens(2, 6)
    before = torch.get_rng_state()
    first, second, other = (build_model(plan, seed=seed).eval() for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state()), "building a model moved the caller's random numbers"
    for (name, weight), same in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(weight, same), f"{name} differs between two models of one seed"
    assert any(not torch.equal(weight, other.state_dict()[name]) for name, weight in first.state_dict().items()), (
        "two seeds give the same weights"
    )
    outs = [run(case, ids, on=made) for made in (first, second, first)]
    for out in outs[1:]:
        for name, value in outs[0].items():
            assert torch.equal(out[name], value), f"{name} differs between two calls in eval mode"


@contract("initial weights are finite, and no matrix is constant", when=lambda case: case.slot == "init")
def check_initial(case: Case) -> None:
    for name, weight in build_model(blueprint(case), seed=2).named_parameters():
        expect_finite({name: weight}, "as initialised")
        if weight.dim() > 1:
            assert float(weight.detach().std()) > 0, f"{name} is the same number everywhere"


@contract("a model is pickled and copied whole", once=True)
@torch.no_grad()
def check_copies(case: Case) -> None:
    made, ids = model(case), tokens(2, 5)
    want = run(case, ids)
    for how, other in (("pickled", pickle.loads(pickle.dumps(made))), ("copied", copy.deepcopy(made))):
        for name, value in run(case, ids, on=other).items():
            assert torch.equal(value, want[name]), f"{name} of the {how} model differs"


@contract("weights survive safetensors, tied ones stored once; on `meta` the same names and shapes", once=True)
@torch.no_grad()
def check_saving(case: Case) -> None:
    made, ids = model(case, torch.float32), tokens(2, 5)
    weights = made.state_dict()
    once = {tensor.data_ptr(): name for name, tensor in reversed(weights.items()) if tensor.numel()}
    meta = build_model(blueprint(case), device="meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    assert {name: tuple(tensor.shape) for name, tensor in meta.state_dict().items()} == shapes, (
        "a model on meta has other weights"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({name: weights[name].contiguous() for name in once.values()}, path)
        loaded = load_file(path)
    other = build_model(blueprint(case), seed=99).eval()
    missing, unexpected = other.load_state_dict(loaded, strict=False)
    tied = set(weights) - set(once.values())
    assert set(missing) <= tied and not unexpected, f"missing {sorted(set(missing) - tied)}, unexpected {unexpected}"
    for name, value in run(case, ids, on=other).items():
        assert torch.equal(value, run(case, ids, on=made)[name]), f"{name} differs after saving and loading"


@contract("a model on `meta` runs and gives the right shapes, so that costs can be counted", once=True)
@torch.no_grad()
def check_meta(case: Case) -> None:
    ids = tokens(2, 5).to("meta")
    made = build_model(blueprint(case), device="meta").eval()
    arguments = {name: value.to("meta") for name, value in special(case.needs, tokens(2, 5), 0, torch.zeros(2)).items()}
    arguments |= {"input_ids": ids, **({"decoder_input_ids": ids} if case.pair else {})}
    want = run(case, tokens(2, 5))
    for name, value in outputs(case, made(**arguments)).items():
        assert value.shape == want[name].shape, f"{name} is {list(value.shape)} on meta, {list(want[name].shape)} else"


# --- dropout


@contract("dropout drops while training, keeps the mean, and does nothing in eval mode")
@torch.no_grad()
def check_dropout(case: Case) -> None:
    if "dropout" not in case.part.Config.model_fields:
        return
    dropping = case.with_(dropout=0.25)
    made = fresh(dropping)
    ids = tokens(2, 6)
    for name, value in run(dropping, ids).items():
        expect_equal(value, run(case, ids)[name], f"{name} in eval mode, with and without dropout", SAME)
    made.train()
    first, second = run(dropping, ids, on=made), run(dropping, ids, on=made)
    assert any(far(first[name], second[name]) > 0 for name in first), "two calls in training mode are the same"
    if case.slot in (*SUBLAYERS, "embedding"):
        _dropout_mean(dropping, made, ids[:1])


def _dropout_mean(case: Case, made: Model, ids: Tensor) -> None:
    """The part's own output, over many copies of one row, has the mean of its output without dropout."""
    part = next(module for module in made.modules() if isinstance(module, case.part))
    seen: list[Tensor] = []
    hook = part.register_forward_hook(lambda module, arguments, out: seen.append(out))
    many = ids.expand(1500, -1)
    run(case, many, on=made)
    made.eval()
    run(case, ids, on=made)
    hook.remove()
    dropped, want = seen[0], seen[-1][0]
    error = dropped.std(dim=0) / many.shape[0] ** 0.5
    allowed = 6 * error + 0.1 * want.pow(2).mean().sqrt()
    off = (dropped.mean(dim=0) - want).abs()
    assert bool((off <= allowed).all()), (
        f"the mean with dropout is off by {float(off.max()):.2f} of {float(want.abs().max()):.2f}"
    )


# --- refusals


@contract("a recipe is refused where the part lacks what it needs", when=lambda case: case.slot in SUBLAYERS)
def check_refusals(case: Case) -> None:
    for topology in TOPOLOGIES[case.slot]:
        other = Case(case.slot, case.name, topology)
        lacks = [name for name in sorted(NEEDED[topology]) if not case.declares(name)]
        if case.slot == "feedforward":
            lacks = [name for name in lacks if name != "cross_attention"]
        if lacks:
            assert not loads(other), f"it lacks {', '.join(lacks)}, yet {topology} takes it"


# --- compile and export


def call_of(case: Case, batch: int, time: int, masked: bool) -> dict[str, Tensor]:
    """Arguments of the model's forward."""
    ids = tokens(batch, time)
    real = torch.ones(batch, time, dtype=torch.long)
    real[-1, -1] = 0
    arguments = special(case.needs, ids, 0, torch.zeros(batch, dtype=torch.long)) | {"input_ids": ids}
    if masked:
        arguments["attention_mask"] = real
    if case.pair:
        arguments["decoder_input_ids"] = tokens(batch, time + 1, seed=2)
    return arguments


@torch.no_grad()
def compiles(case: Case, made: Model, masked: bool) -> None:
    """The model in one graph, equal to itself without."""
    arguments = call_of(case, 2, 6, masked)
    want = outputs(case, made(**arguments))
    torch._dynamo.reset()
    try:
        out = torch.compile(made, fullgraph=True, backend="eager")(**arguments)
    except torch._dynamo.exc.TorchDynamoException as error:
        told = " ".join(str(error).split())[:300]
        raise AssertionError(f"the graph breaks{' with an attention_mask' * masked}: {told}") from None
    finally:
        torch._dynamo.reset()
    for name, value in outputs(case, out).items():
        expect_equal(value, want[name], f"{name} compiled{' with an attention_mask' * masked}, and not")


@contract("the whole model compiles into one graph", "compile")
def check_compile(case: Case) -> None:
    made = model(case, torch.float32, num_layers=1)
    for masked in (False, True):
        compiles(case, made, masked)


@torch.no_grad()
def exports(case: Case, made: Model) -> None:
    """The model exported with any batch and length equals itself at other sizes."""
    arguments = call_of(case, 2, 6, True)
    any_size: dict[str, Any] = {name: {0: torch.export.Dim.DYNAMIC} for name in arguments}
    for name, value in arguments.items():
        if value.dim() > 1:
            any_size[name][1] = torch.export.Dim.DYNAMIC
    try:
        program = torch.export.export(made, (), arguments, dynamic_shapes=any_size).module()
    except Exception as error:
        told = " ".join(str(error).split())[:300]
        raise AssertionError(f"it cannot be exported with any batch and length: {told}") from None
    for batch, time in ((3, 9), (5, 4)):
        arguments = call_of(case, batch, time, True)
        want = outputs(case, made(**arguments))
        for name, value in outputs(case, program(**arguments)).items():
            expect_equal(value, want[name], f"{name} exported, on {batch} rows of {time}")


@contract("the model exports with any batch and length", "export")
def check_export(case: Case) -> None:
    exports(case, model(case, torch.float32, num_layers=1))


SLOW = ("compile", "export")
__all__ = ["CHECKS", "SLOW", "Check", "compiles", "exports", "randomise"]
