"""The section `study.design`, and the names of variants in the sections of a study."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.options import Names, PositiveInt, RunPath
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays import Axis, Variant
from tfkit.recipe.settings.sections import Section

BASELINE = "baseline"
LEAST = 3  # number of runs that measure the noise
ALONE = ("compare", "cross", "sizes", "budgets", "seeds")  # keys of a study without a design


class Confirm(Section):
    """Fresh runs of the options with the largest effects."""

    most: PositiveInt = Field(6, description="largest number of options to confirm, at most one of each group")
    runs: Annotated[int, Field(ge=2, le=256)] = Field(32, description="number of runs, each on its own seed")


class Design(Section):
    """A screen of many options in few runs, and fresh runs that confirm the largest effects."""

    screen: Annotated[Names, Field(min_length=1)] = Field(
        description="variants to screen; gelu | swiglu is a group, of which a run has at most one"
    )
    runs: Annotated[int, Field(ge=2, le=512)] = Field(64, description="number of screening runs, each on its own seed")
    noise: Annotated[int, Field(ge=LEAST, le=128)] | RunPath = Field(
        12, description="number of runs of the baseline, or the folder of a study with the same baseline"
    )
    confirm: Confirm = Field(default_factory=Confirm, description="fresh runs, from which alone verdicts come")

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        return tuple(parts_of(entry, "|") for entry in self.screen)

    @property
    def options(self) -> tuple[str, ...]:
        """All options in the order in which they are laid over the baseline."""
        return tuple(option for group in self.groups for option in group)

    @property
    def seeds(self) -> tuple[range, range, range]:
        """Seeds of the screen, of the noise and of the runs that confirm."""
        noise = self.runs + (self.noise if isinstance(self.noise, int) else 0)
        return range(self.runs), range(self.runs, noise), range(noise, noise + self.confirm.runs)


class DesignPlan(Design):
    """A design with pairs of options that exclude each other, and the options chosen when its screen had ended.

    `scores` are those of the baseline in the folder `noise`, by seed and measure.
    """

    excluded: list[list[str]] = []
    chosen: Names = ()
    scores: dict[str, dict[str, float]] = {}

    @property
    def asked(self) -> dict[str, object]:
        """The design as it is written in a recipe."""
        return self.model_dump(mode="json", include={*Design.model_fields})


def parts_of(entry: str, by: str = "+") -> tuple[str, ...]:
    """Split an entry into the variants joined by +."""
    return tuple(part.strip() for part in entry.split(by))


def design_problems(
    design: Design, variants: Mapping[str, Variant], written: Collection[str], measure: Sequence[object]
) -> Iterator[Problem]:
    """Yield problems of `design` in a study with the keys `written`."""
    for key in ALONE:
        if key in written:
            yield Problem(key, "cannot be combined with study.design; remove one of them", at="study")
    if "tune" in written and isinstance(design.noise, str):
        text = "give a number of runs, which study.tune needs; a folder is not tuned"
        yield Problem("noise", text, at="study.design")
    for place, one in enumerate(measure):
        if not isinstance(one, str):
            yield Problem("", "study.design measures no probes; remove it", at=f"study.measure[{place}]")
    for place, option in enumerate(design.options):
        at = next(f"study.design.screen[{i}]" for i, group in enumerate(design.groups) if option in group)
        if not option or option in design.options[:place]:
            text = f"'{option}' is listed twice" if option else "has a | without a variant on each side"
            yield Problem("", text, at=at)
        elif "@" in option:
            yield Problem("", f"'{option}' contains an @, which names the stage of a run; rename the variant", at=at)
        else:
            yield from unknown(option, variants, at, whole=True, alone=True)


def unknown(
    entry: str, variants: Mapping[str, Variant], at: str, whole: bool = False, alone: bool = False
) -> Iterator[Problem]:
    """Yield problems of an entry. If `whole`, an axis needs a choice; if `alone`, + is not allowed."""
    if entry in variants and (entry == BASELINE or "+" in entry or "=" in entry):
        why = "is the name of the baseline" if entry == BASELINE else "contains a + or ="
        yield Problem("", f"'{entry}' {why}; rename the variant", at=at)
        return
    if alone and "+" in entry:
        yield Problem("", f"'{entry}': the study combines variants itself; list each one separately", at=at)
        return
    parts = parts_of(entry)
    names = [part.partition("=")[0].strip() for part in parts]
    if len(set(names)) < len(names):
        yield Problem("", f"'{entry}' contains a variant twice", at=at)
    for text, name in zip(parts, names, strict=True):
        variant = variants.get(name)
        if variant is None:
            available = ", ".join(variants) or "none"
            yield Problem("", f"unknown variant '{name}'; available: {available}", nearest(name, list(variants)), at=at)
        elif isinstance(variant, Axis) and ("=" in text or whole) and text not in variant.written():
            yield Problem("", f"'{text}' is not a choice of '{name}'; available: {', '.join(variant.written())}", at=at)
        elif "=" in text and not isinstance(variant, Axis):
            yield Problem("", f"'{name}' has no values to choose from", at=at)
