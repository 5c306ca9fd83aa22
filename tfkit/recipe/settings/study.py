"""`study:`, the section of a recipe that compares variants of itself; what may be in it, and what contradicts in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from tfkit.core.component import Problem
from tfkit.core.options import Names, NonNegativeInt, PositiveFloat, PositiveInt, as_tuple
from tfkit.core.registry import nearest
from tfkit.recipe.overlays.overlay import Axis, Variant
from tfkit.recipe.settings.sections import Data, Section, Train

BASELINE = "baseline"
COSTS = ("tokens_per_second", "seconds", "peak_memory", "parameters", "flops")  # measured of every run
STEPS = "train.steps"
CLAIM = re.compile(r"\s*(.+?)\s*([<>])\s*(.+?)\s*")


class Match(Section):
    """What all variants have as much of as the baseline, solved for by a counter: one of these."""

    parameters: str | None = Field(None, description="a key, such as model.layer.feedforward.d_ff: equal parameters")
    flops: str | None = Field(None, description="a key: equal FLOPs of a token; with train.steps, of the training")
    tokens: PositiveInt | None = Field(None, description="tokens that each run reads: train.steps is solved for")
    seconds: PositiveFloat | None = Field(None, description="seconds that each run trains: train.steps is solved for")

    @model_validator(mode="after")
    def _one(self) -> Match:
        given = [name for name in Match.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            names = ", ".join(Match.model_fields)
            raise ValueError(f"match one of {names}" + (f", not {' and '.join(given)}" if given else ""))
        return self

    @property
    def what(self) -> str:
        """What is equal: parameters, flops, tokens or seconds."""
        return next(name for name in Match.model_fields if getattr(self, name) is not None)

    @property
    def key(self) -> str:
        """The key that is solved for."""
        return self.parameters or self.flops or STEPS


class PaperClaim(Section):
    """What a paper claims of the variants, to be held against the runs."""

    paper: str = Field("", description="where the claim is made")
    says: str = Field(description="two variants and how their values compare: norm=pre_norm < norm=post_norm")
    on: str = Field("valid.loss", description="the measure that is compared")

    @model_validator(mode="after")
    def _compares(self) -> PaperClaim:
        if CLAIM.fullmatch(self.says) is None or len(re.findall(r"[<>]", self.says)) != 1:
            raise ValueError(f"says: '{self.says}': write two variants with < or > between them")
        return self

    @property
    def sides(self) -> tuple[str, str]:
        """The variant whose value is claimed to be the smaller one, and the other."""
        found = CLAIM.fullmatch(self.says)
        first, sign, second = ("", "<", "") if found is None else found.groups()
        return (first, second) if sign == "<" else (second, first)


Seeds = PositiveInt | Annotated[tuple[NonNegativeInt, ...], BeforeValidator(as_tuple), Field(min_length=1)]
Values = Annotated[tuple[Any, ...], BeforeValidator(as_tuple), Field(min_length=1)]


class Study(Section):
    """What is compared, over which seeds, and what is measured."""

    about: str = Field("", description="what the study asks, for its page")
    compare: Names = Field((), description="variants, axes of variants, or several of them joined with +")
    cross: Names = Field((), description="variants and axes of which every combination is compared")
    baseline: str | dict[str, Any] = Field(
        default_factory=dict, description="what they are compared with: the recipe, a variant of it, or values by key"
    )
    seeds: Seeds = Field(3, description="how many seeds each variant is trained with, or the seeds themselves")
    match: Match | None = Field(None, description="what the variants have as much of as the baseline")
    tune: dict[str, Values] = Field(
        default_factory=dict, description="values by key, of which each variant gets its best, on the first seed"
    )
    measure: Names = Field(("valid.loss",), description="what is compared; the first decides tuning")
    claims: Annotated[tuple[PaperClaim, ...], BeforeValidator(as_tuple)] = Field(
        (), description="what papers claim of it"
    )

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def base_variants(self) -> tuple[str, ...]:
        """The variants that make the baseline."""
        return tuple(self.baseline.split("+")) if isinstance(self.baseline, str) and self.baseline else ()

    @property
    def base_values(self) -> Mapping[str, Any]:
        """The values by key that make the baseline."""
        return {} if isinstance(self.baseline, str) else self.baseline


def measures_of(data: Data | None, train: Train) -> list[str]:
    """The scores that a run has when it has been trained: of its best validation, and of its last measurement."""
    if data is None:
        return []
    names = [f"valid.{name}" for name in ("loss", *train.validate.names)] if data.valid is not None else []
    split = "test" if data.test is not None else "valid"
    if train.metrics and getattr(data, split) is not None:
        names += [f"{split}.{config.part.part_name}" for config in train.metrics]
        names += ["test.loss"] if split == "test" else []
    return list(dict.fromkeys(names))


def rises(measure: str, train: Train) -> bool:
    """Whether more of a measure is better, as its metric says."""
    name = measure.partition(".")[2]
    metrics = {config.part.part_name: config.part for config in (*train.metrics, *train.validate.metrics)}
    return measure == "tokens_per_second" or (name in metrics and metrics[name].higher_is_better)


def options_of(name: str, variants: Mapping[str, Variant]) -> list[str]:
    """The variants that an entry of `compare` or `cross` stands for: one, or the choices of an axis."""
    found = variants.get(name)
    return found.written() if isinstance(found, Axis) else [name]


def study_problems(study: Study, variants: Mapping[str, Variant], measures: Sequence[str]) -> Iterator[Problem]:
    """What contradicts in `study:`; `measures` are the metrics that the runs have."""
    if not study.compare and not study.cross:
        yield Problem("compare", "names nothing to compare with the baseline", at="study")
    for key in ("compare", "cross"):
        for place, entry in enumerate(getattr(study, key)):
            yield from _unknown(entry, variants, f"study.{key}[{place}]")
    for name in study.base_variants:
        yield from _unknown(name, variants, "study.baseline", whole=True)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", "names a seed twice", at="study")
    for place, measure in enumerate(study.measure):
        yield from _unmeasured(measure, measures, f"study.measure[{place}]")
    arms = arm_names(study, variants)
    for place, claim in enumerate(study.claims):
        where = f"study.claims[{place}]"
        if claim.on not in study.measure:
            hint = nearest(claim.on, list(study.measure))
            yield Problem("on", f"'{claim.on}' is not among study.measure", hint, at=where)
        for side in claim.sides:
            if side not in arms:
                text = f"'{side}' is not compared; there are: {', '.join(arms)}"
                yield Problem("says", text, nearest(side, arms), at=where)
    if study.match is not None and study.match.key in study.tune:
        yield Problem(study.match.key, "is solved for by study.match, and cannot be tuned too", at="study.tune")
    if "train.seed" in study.tune or "train.seed" in study.base_values:
        yield Problem("seeds", "the study gives each run its seed; train.seed cannot be set in it", at="study")


def arm_names(study: Study, variants: Mapping[str, Variant]) -> list[str]:
    """What the compared variants are called, the baseline first."""
    names = [BASELINE]
    for entry in study.compare:
        names += ["+".join(one) for one in combinations([options_of(name, variants) for name in entry.split("+")])]
    if study.cross:
        names += ["+".join(one) for one in combinations([crossed(name, variants) for name in study.cross]) if any(one)]
    return list(dict.fromkeys("+".join(part for part in name.split("+") if part) for name in names))


def crossed(name: str, variants: Mapping[str, Variant]) -> list[str]:
    """The options of an entry of `cross`: the choices of an axis; of a variant, with it and without."""
    return options_of(name, variants) if isinstance(variants.get(name), Axis) else ["", name]


def combinations(options: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """One of each, in every way, the last changing first."""
    if not options:
        yield ()
        return
    for first in options[0]:
        for rest in combinations(options[1:]):
            yield (first, *rest)


def _unknown(entry: str, variants: Mapping[str, Variant], at: str, whole: bool = False) -> Iterator[Problem]:
    """The names in an entry that are no variants; of a `whole` one, an axis needs its choice."""
    for text in entry.split("+"):
        name, equals, _ = (part.strip() for part in text.partition("="))
        found = variants.get(name)
        if found is None:
            known = ", ".join(variants) or "none"
            yield Problem("", f"unknown variant '{name}'; there are: {known}", nearest(name, list(variants)), at=at)
        elif isinstance(found, Axis) and (equals or whole) and text.strip() not in found.written():
            yield Problem("", f"'{text}' is no choice of '{name}'; there are: {', '.join(found.written())}", at=at)
        elif equals and not isinstance(found, Axis):
            yield Problem("", f"'{name}' has no values to choose from", at=at)


def _unmeasured(measure: str, measures: Sequence[str], at: str) -> Iterator[Problem]:
    known = [*measures, *COSTS]
    if measure not in known:
        text = f"'{measure}' is not measured by these runs; there are: {', '.join(known)}"
        yield Problem("", text, nearest(measure, known), at=at)
