"""What must hold of every recipe, however broken: a model that runs, or faults with places; soon, in little memory."""

from __future__ import annotations

import resource
import time
import warnings
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

from tfkit.core.errors import Fault, RecipeError, TfkitWarning
from tfkit.models.base import Model
from tfkit.models.build import build_model, build_sample, meta_inputs
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.sections import Train
from tfkit.reports.counts import count_parameters
from tfkit.training.optimizer import regroup

from ..small import read_again
from .drawn import healed
from .mutators import break_bytes, mutate, odd_python, seed, setting
from .tree import Pairs, plain, sites, written

SECONDS = 6.0  # of this thread
MEGABYTES = 500  # more than the most before
BUILT_WHOLE = 6  # layers; a deeper stack is built as its distinct layers
CALCULATED = 300_000  # parameters; a smaller model computes with real numbers too

FILE = "mutant.yaml"
PYTHONISMS = (
    *("NoneType", "Traceback", "<class", "pydantic", "object at 0x", "'dict'", "KeyError", "TypeError", "ValueError"),
    *("Errno", "RecursionError", "built-in", "model_fields"),
)
WITHOUT_LINE = ("no such file", "this is a folder", "larger than", "cannot be read")


@dataclass
class Mutant:
    """A recipe to be loaded: a file's bytes or Python data, with what is laid over it."""

    text: bytes = b""
    mapping: dict[Any, Any] | None = None
    sets: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    overrides: dict[Any, Any] = field(default_factory=dict)

    def load(self) -> Recipe:
        """The Recipe; its file is written into the working folder."""
        if self.mapping is None:
            Path(FILE).write_bytes(self.text)
        source = Path(FILE) if self.mapping is None else self.mapping
        return load_recipe(source, self.overrides, self.variants, sets=self.sets)


def mutant(random: Random) -> Mutant:
    """A right recipe with a few things wrong, or none."""
    tree: Pairs = deepcopy(seed(random))
    for _ in range(random.choice((0, 1, 1, 2, 2, 4))):
        mutate(tree, random)
    if random.random() < 0.6:
        healed(tree, random.choice((1, 2, 4, 8)))  # so that what is odd, and right, is not lost among what is wrong
    sets = [setting(tree, random) for _ in range(random.choice((0, 0, 0, 0, 1, 2)))]
    variants = [random.choice(("wide", "deep", "wide=1", "nobody", "=", ""))] if random.random() < 0.05 else []
    if random.random() < 0.15:
        if tree and random.random() < 0.3:
            random.choice(list(sites(tree))).value = odd_python(random)
        keys = ("model.d_model", "model.layer.norm", "", "a..b", 3, None, "model[1]", "extends", "\0")
        overrides = {random.choice(keys): odd_python(random)} if random.random() < 0.3 else {}
        return Mutant(mapping=plain(tree), sets=sets, overrides=overrides)
    text = written(tree, random).encode(errors="surrogatepass")
    for _ in range(random.choice((0, 0, 0, 0, 1, 2))):
        text = break_bytes(text, random)
    return Mutant(text, sets=sets, variants=variants)


def neighbours() -> None:
    """The files that a mutant may extend, in the working folder."""
    for name in ("gpt2", "gemma-2-2b"):
        Path(f"{name}.yaml").write_bytes(shipped_recipes()[name].read_bytes())
    Path("circle.yaml").write_text(f"extends: {FILE}\n")
    Path("bytes.yaml").write_bytes(b"\xff\xfe\0")
    Path("folder.yaml").mkdir(exist_ok=True)


def check(mutant: Mutant, tries: int = 3) -> bool:
    """True if the mutant is accepted. Raise AssertionError if it is neither right nor refused as it should be."""
    warnings.simplefilter("ignore", TfkitWarning)  # an older recipe is read, with a warning
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    try:
        recipe = mutant.load()
    except RecipeError as error:
        recipe = None
        assert error.faults, "refused without a fault"
        check_faults(error.faults, mutant)
    if recipe is not None:
        check_faults(list(recipe.warnings), mutant)
        check_accepted(recipe)
    seconds = time.thread_time() - start
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    assert megabytes < MEGABYTES, f"{megabytes:.0f} megabytes"
    if seconds > SECONDS and tries > 1:
        return check(mutant, tries - 1)  # others may work beside it, which costs time of this thread too
    assert seconds < SECONDS, f"{seconds:.1f} seconds"
    return recipe is not None


def check_faults(faults: list[Fault], mutant: Mutant) -> None:
    """Each fault has a place that exists and words for people; they are sorted."""
    keys = [(fault.file, fault.line, fault.column, fault.path) for fault in faults]
    assert keys == sorted(keys), "the faults are not sorted by place"
    for fault in faults:
        _check_place(fault, mutant)
        assert fault.message.strip(), "a fault without a message"
        for word in PYTHONISMS:
            assert word not in fault.message, f"not for people: {fault.message[:300]}"
        assert len(str(fault)) < 3_000, f"a message of {len(str(fault)):,} letters: {str(fault)[:200]}"
        assert len(str(fault).splitlines()) == 1, f"a message of several lines: {str(fault)[:300]!r}"


def _check_place(fault: Fault, mutant: Mutant) -> None:
    given = ["<mapping>", "<overrides>", *(f"--variant {name}" for name in mutant.variants)]
    if fault.file in given or fault.file.startswith("--set "):
        return
    if not fault.line:
        assert fault.message.startswith(WITHOUT_LINE), f"no line: {fault}"
        return
    data = Path(fault.file).read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    most = max(len(data.splitlines()), len(data.decode(errors="replace").splitlines())) + 1
    assert fault.line <= most, f"line {fault.line} of {most}: {fault}"
    assert fault.column >= 1, f"column {fault.column}: {fault}"


def check_accepted(recipe: Recipe) -> None:
    """It is a model that builds and runs, and its resolved text is the same model."""
    blueprint = recipe.blueprint()
    assert read_again(recipe).blueprint() == blueprint, "the resolved recipe is another model"
    parameters = count_parameters(blueprint)
    deep = sum(plan.num_layers for plan in blueprint.stacks()) > BUILT_WHOLE
    model = build_sample(blueprint) if deep else build_model(blueprint, device="meta")
    check_run(model, "meta")
    if not deep:
        assert sum(weight.numel() for weight in model.parameters()) == parameters, "the parameters are miscounted"
        if parameters < CALCULATED:
            check_run(build_model(blueprint), "cpu")


@torch.no_grad()
def check_run(model: Model, device: str) -> None:
    """A forward of two rows has hidden states and logits of the right shapes."""
    blueprint = model.blueprint
    lengths = [getattr(owner, "max_length", None) for plan in blueprint.stacks() for owner in (plan, *plan.position)]
    time_steps = min([5, *(length for length in lengths if length)])
    inputs = {name: torch.zeros_like(value, device=device) for name, value in meta_inputs(model, time_steps, 2).items()}
    out = model.eval()(**inputs)
    assert out.hidden is not None and out.hidden.shape == (2, time_steps, blueprint.last.d_model), "hidden"
    assert all(value.shape[0] == 2 for value in out.heads.values() if value is not None)
    if blueprint.head is not None and blueprint.head.part.part_name == "language_model":
        assert out.logits is not None
        assert out.logits.shape == (2, time_steps, blueprint.last.vocab_size), f"logits {list(out.logits.shape)}"


def groups(model: Model) -> dict[str, tuple[float, float, float]]:
    """The factor on the learning rate, the weight decay and the eps of each parameter by name."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, eps=1e-8, weight_decay=0.1)
    regroup(optimizer, model, Train())
    names = {id(weight): name for name, weight in model.named_parameters()}
    return {
        names[id(weight)]: (group.get("rate", 1.0), group["weight_decay"], group["eps"])
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def difference(one: Model, other: Model) -> str | None:
    """The first difference of two models as they are built and trained: initial weights and optimizer groups."""
    mine, theirs = one.state_dict(), other.state_dict()
    if mine.keys() != theirs.keys():
        return f"weights {sorted(mine.keys() ^ theirs.keys())}"
    for name, weight in mine.items():
        if weight.shape != theirs[name].shape or not torch.equal(weight, theirs[name]):
            return f"weight {name}"
    rates, other_rates = groups(one), groups(other)
    return next((f"group of {name}" for name, group in rates.items() if group != other_rates[name]), None)
