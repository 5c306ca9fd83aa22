"""What must hold of every recipe, however broken: a model that runs, or faults with places; soon, in little memory."""

from __future__ import annotations

import resource
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import Fault, RecipeError, TfkitWarning
from tfkit.models.base import Model, ModelOutput
from tfkit.models.build import build_model
from tfkit.models.sample import build_sample, meta_inputs
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count_parameters

from .mutators import break_bytes, mutate, odd_python, setting
from .seeds import ARCHITECTURES, healed, seed
from .tree import Pairs, grafted, plain, sites, written

SECONDS = 3.0  # of this thread, on a quiet machine
NOISE = 2  # how much longer it may take where others work beside it
MEGABYTES = 500  # more than before
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
        """The Recipe; the file stands in the working folder."""
        if self.mapping is None:
            Path(FILE).write_bytes(self.text)
        source = Path(FILE) if self.mapping is None else self.mapping
        return load_recipe(source, self.overrides, self.variants, sets=self.sets)


def mutant(random: Random) -> Mutant:
    """A right recipe with a few things wrong, or none."""
    tree: Pairs = grafted(seed(random))
    for _ in range(random.choice((0, 1, 1, 2, 2, 4))):
        mutate(tree, random)
    if random.random() < 0.6:
        healed(tree, random.choice((1, 2, 4, 8)))  # so that what is odd, and right, is not lost among what is wrong
    sets = [setting(tree, random) for _ in range(random.choice((0, 0, 0, 0, 1, 2)))]
    variants = [random.choice(("wide", "deep", "wide=1", "nobody", "=", ""))] if random.random() < 0.05 else []
    if random.random() < 0.15:
        return Mutant(mapping=_python(tree, random), sets=sets, overrides=_overrides(random))
    text = written(tree, random).encode(errors="surrogatepass")
    for _ in range(random.choice((0, 0, 0, 0, 1, 2))):
        text = break_bytes(text, random)
    return Mutant(text, sets=sets, variants=variants)


def _python(tree: Pairs, random: Random) -> Any:
    if random.random() < 0.3:
        found = sites(tree)
        if found:
            random.choice(found).value = odd_python(random)
    return plain(tree)


def _overrides(random: Random) -> dict[Any, Any]:
    if random.random() < 0.7:
        return {}
    key = random.choice(("model.d_model", "model.layer.norm", "", "a..b", 3, None, "model[1]", "extends", "\0"))
    return {key: odd_python(random)}


def neighbours() -> None:
    """The files that a mutant may extend, in the working folder."""
    for path in ARCHITECTURES.glob("*.yaml"):
        Path(path.name).write_bytes(path.read_bytes())
    Path("circle.yaml").write_text(f"extends: {FILE}\n")
    Path("bytes.yaml").write_bytes(b"\xff\xfe\0")
    Path("folder.yaml").mkdir(exist_ok=True)


def check(mutant: Mutant, tries: int = 3) -> bool:
    """Whether the mutant is right; raises AssertionError where it is neither right nor refused as it should be."""
    warnings.simplefilter("ignore", TfkitWarning)  # an older recipe is read, and told of
    _reset_peak()
    memory, start = _peak(), time.thread_time()
    accepted = answered(mutant)
    seconds, megabytes = time.thread_time() - start, _peak() - memory
    assert megabytes < MEGABYTES, f"{megabytes:.0f} megabytes"
    if seconds > SECONDS and tries > 1:
        return check(mutant, tries - 1)  # others may work beside it, which costs time of this thread too
    assert seconds < SECONDS * NOISE, f"{seconds:.1f} seconds"
    return accepted


def answered(mutant: Mutant) -> bool:
    """Whether the mutant is accepted, what follows from either answer being checked."""
    try:
        recipe = mutant.load()
    except RecipeError as error:
        check_faults(error.faults, mutant)
        return False
    if recipe.warnings:
        check_faults(list(recipe.warnings), mutant)
    check_accepted(recipe)
    return True


def check_faults(faults: list[Fault], mutant: Mutant) -> None:
    """Each fault has a place that exists and words for people; they are sorted."""
    assert faults, "refused without a fault"
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
    path = Path(fault.file)
    if not fault.line:
        assert fault.message.startswith(WITHOUT_LINE), f"no line: {fault}"
        return
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").splitlines() or [b""]
    text = path.read_text(encoding="utf-8", errors="replace")
    count = len(text.splitlines()) + 1
    assert fault.line <= max(count, len(lines) + 1), f"line {fault.line} of {count}: {fault}"
    assert fault.column >= 1, f"column {fault.column}: {fault}"


def check_accepted(recipe: Recipe) -> None:
    """It is a model that builds and runs, and its resolved text is the same model."""
    blueprint = recipe.blueprint()
    Path("resolved.yaml").write_text(recipe.resolved(), encoding="utf-8")
    again = load_recipe(Path("resolved.yaml")).blueprint()
    assert again == blueprint, "the resolved recipe is another model"
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
    """A forward of two rows gives the right shapes."""
    blueprint = model.blueprint
    lengths = [getattr(owner, "max_length", None) for plan in blueprint.stacks() for owner in (plan, *plan.position)]
    time_steps = min([5, *(length for length in lengths if length)])
    inputs = {name: torch.zeros_like(value, device=device) for name, value in meta_inputs(model, time_steps, 2).items()}
    check_output(model.eval()(**inputs), blueprint, time_steps)


def check_output(out: ModelOutput, blueprint: Blueprint, time_steps: int) -> None:
    """Hidden states and logits are as large as they should be."""
    assert out.hidden is not None and out.hidden.shape == (2, time_steps, blueprint.last.d_model), "hidden"
    for logits in ([] if out.logits is None else [out.logits], *([value] for value in out.heads.values())):
        for value in logits:
            assert value.shape[0] == 2, f"logits {list(value.shape)}"
    if blueprint.head is not None and blueprint.head.part.part_name == "language_model":
        assert out.logits is not None
        assert out.logits.shape == (2, time_steps, blueprint.last.vocab_size), f"logits {list(out.logits.shape)}"


def _reset_peak() -> None:
    with suppress(OSError):  # the highest peak so far serves too: only a new one is told
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """The most memory that this process has held, in megabytes."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
