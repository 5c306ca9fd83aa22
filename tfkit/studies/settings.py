"""Schema and validation of `study:`, the section that compares variants of its recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tfkit.core.bounds import ARMS, SEEDS, TRIALS
from tfkit.core.component import Problem
from tfkit.core.options import Names, PositiveFloat, PositiveInt, Seed, as_tuple
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays import Axis, Variant
from tfkit.recipe.settings.sections import Data, Section, Train

KEY = "study"
BASELINE = "baseline"
COSTS = ("tokens_per_second", "seconds", "peak_memory", "parameters", "flops", "cache_bytes")  # measured in every run
GENERATION_RATE = "generation.tokens_per_second"  # measured in runs with train.generation_rate
STEPS = "train.steps"
FIRST = "study.measure[0]"
CLAIM = re.compile(r"\s*(.+?)\s*([<>])(?!=)\s*(.+?)\s*")
Key = Annotated[str, Field(min_length=1)]


class Match(Section):
    """Exactly one quantity to equalize between each variant and the baseline, by solving for the value of a key."""

    parameters: Key | None = Field(
        None, description="key to solve for an equal number of parameters, such as model.layer.feedforward.d_ff"
    )
    flops: Key | None = Field(
        None, description="key to solve for equal FLOPs per token; train.steps: for equal FLOPs of the whole training"
    )
    tokens: PositiveInt | None = Field(
        None, description="number of tokens each run reads; solved by setting train.steps"
    )
    seconds: PositiveFloat | None = Field(
        None, description="training time of each run in seconds; solved by setting train.steps"
    )

    @model_validator(mode="after")
    def _one(self) -> Match:
        chosen = [name for name in Match.model_fields if getattr(self, name) is not None]
        if len(chosen) != 1:
            names = ", ".join(Match.model_fields)
            raise ValueError(f"expected one of {names}" + (f", got {' and '.join(chosen)}" if chosen else ""))
        return self

    @property
    def what(self) -> str:
        """Quantity to equalize: parameters, flops, tokens or seconds."""
        return next(name for name in Match.model_fields if getattr(self, name) is not None)

    @property
    def key(self) -> str:
        """Key to solve for."""
        return self.parameters or self.flops or STEPS


class PaperClaim(Section):
    """A claim of a paper about two variants, which the study tests."""

    paper: str = Field("", description="source of the claim")
    says: str = Field(description="two variants with < or > between them: norm=pre_norm < norm=post_norm")
    on: str = Field("valid.loss", description="measure that the claim compares")

    @model_validator(mode="after")
    def _compares(self) -> PaperClaim:
        if CLAIM.fullmatch(self.says) is None or len(re.findall(r"[<>]", self.says)) != 1:
            raise ValueError(f"says: expected two variants with < or > between them, got '{self.says}'")
        return self

    @property
    def is_greater(self) -> bool:
        """True if the first variant is claimed to have the greater value."""
        match = CLAIM.fullmatch(self.says)
        return match is not None and match[2] == ">"

    @property
    def sides(self) -> tuple[str, str]:
        """The two variants; according to the claim, the first has the smaller value."""
        match = CLAIM.fullmatch(self.says)
        first, sign, second = ("", "<", "") if match is None else match.groups()
        return (first, second) if sign == "<" else (second, first)


class ProbeMeasure(Section):
    """A probe: a second model of the same architecture, trained on a synthetic task. Its test accuracy is a measure."""

    probe: Key | dict[str, Any] = Field(
        description="a synthetic corpus of pairs, such as induction, or {type: induction} with options"
    )
    steps: PositiveInt | None = Field(None, description="number of optimizer steps; none: train.steps of the run")
    set: dict[str, Any] = Field(default_factory=dict, description="overrides by key for training the probe")

    @model_validator(mode="after")
    def _named(self) -> ProbeMeasure:
        if isinstance(self.probe, dict) and not isinstance(self.probe.get("type"), str):
            raise ValueError("probe: a mapping needs a `type`, the name of a corpus such as induction")
        return self

    @property
    def corpus(self) -> str:
        """Name of the corpus."""
        return self.probe if isinstance(self.probe, str) else str(self.probe["type"])

    @property
    def options(self) -> dict[str, Any]:
        """Options of the corpus."""
        return {} if isinstance(self.probe, str) else {key: self.probe[key] for key in self.probe if key != "type"}

    @property
    def name(self) -> str:
        """Name of the measure."""
        return f"probe.{self.corpus}"


Seeds = (
    Annotated[int, Field(ge=1, le=SEEDS.most)]
    | Annotated[tuple[Seed, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=SEEDS.most)]
)
Keep = Literal["scores", "weights", "all"]
Values = Annotated[tuple[Any, ...], BeforeValidator(as_tuple), Field(min_length=1)]


class Study(Section):
    """The variants to compare, the seeds, and the measures."""

    about: str = Field("", description="question that the study answers, shown on its page")
    compare: Names = Field((), description="variants or axes to compare with the baseline; + combines several")
    cross: Names = Field((), description="variants and axes to compare in every combination")
    baseline: str | dict[str, Any] = Field(
        default_factory=dict, description="the baseline: the recipe, a variant, or values by key"
    )
    seeds: Seeds = Field(
        3,
        description="number of seeds per variant, or a list of seeds",
    )
    match: Match | None = Field(None, description="quantity to equalize between each variant and the baseline")
    tune: dict[str, Values] = Field(
        default_factory=dict, description="candidate values by key, tuned for each variant with the first seed"
    )
    sizes: dict[str, Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="values by key of each size at which all variants are repeated: {small: {model.d_model: 64}, "
        "large: {model.d_model: 128}}",
    )
    measure: Annotated[tuple[str | ProbeMeasure, ...], BeforeValidator(as_tuple)] = Field(
        ("valid.loss",),
        min_length=1,
        description="scores or costs of the runs, or {probe: NAME}; the first is the main measure",
    )
    equal_within: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description="equivalence margin by measure, the largest difference that counts as equal: {valid.loss: 0.01}",
    )
    claims: Annotated[tuple[PaperClaim, ...], BeforeValidator(as_tuple)] = Field(
        (), description="claims of papers to test on the runs"
    )
    keep: Keep = Field(
        "all",
        description="files kept of each finished run; scores: no weights or checkpoints; weights: no checkpoints",
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _fixed(cls, seeds: Any) -> Any:
        if isinstance(seeds, dict):
            raise ValueError("seeds that depend on results were removed; give a number of seeds")
        return seeds

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the measures; the first is used for tuning."""
        return tuple(one if isinstance(one, str) else one.name for one in self.measure)

    @property
    def probes(self) -> tuple[ProbeMeasure, ...]:
        """The probes among the measures."""
        return tuple(one for one in self.measure if isinstance(one, ProbeMeasure))

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds of each variant."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def at_sizes(self) -> Mapping[str, Mapping[str, object]]:
        """Values by key of each size; one empty size without sizes."""
        return self.sizes or {"": {}}

    @property
    def base_variants(self) -> tuple[str, ...]:
        """Variants that define the baseline."""
        return parts_of(self.baseline) if isinstance(self.baseline, str) and self.baseline else ()

    @property
    def base_values(self) -> Mapping[str, object]:
        """Values by key that define the baseline."""
        return {} if isinstance(self.baseline, str) else self.baseline


def measures_of(data: Data | None, train: Train) -> list[str]:
    """Return the names of a run's scores, from its best validation and from the measurements after training."""
    if data is None:
        return []
    names = [f"valid.{name}" for name in ("loss", *train.validate.names)] if data.valid is not None else []
    for split in data.measured() if train.metrics else []:
        names += [f"{split}.{score}" for config in train.metrics for score in config.scores()]
        names += [f"{split}.loss"] if split != "valid" else []
    scores = ["loss", *(score for config in train.metrics for score in config.scores())]
    names += [f"{name}.{score}" for name in train.evaluations for score in scores]
    names += [GENERATION_RATE] if train.generation_rate is not None else []
    return list(dict.fromkeys(names))


def rises(measure: str, train: Train) -> bool:
    """True if larger values of the measure are better."""
    name = measure.partition(".")[2]
    metrics = {score: config.part for config in (*train.metrics, *train.validate.metrics) for score in config.scores()}
    return (
        measure in ("tokens_per_second", GENERATION_RATE)
        or measure.startswith("probe.")
        or (name in metrics and metrics[name].higher_is_better)
    )


def parts_of(entry: str) -> tuple[str, ...]:
    """Split an entry into the variants joined by +."""
    return tuple(part.strip() for part in entry.split("+"))


def options_of(name: str, variants: Mapping[str, Variant]) -> list[str]:
    """Return the choices of an axis, or the name of a plain variant itself."""
    variant = variants.get(name)
    return variant.written() if isinstance(variant, Axis) else [name]


def study_problems(study: Study, variants: Mapping[str, Variant], data: Data | None, train: Train) -> Iterator[Problem]:
    """Yield problems in `study:`."""
    wrong = list(_entry_problems(study, variants))
    yield from wrong
    yield from _measure_problems(study, measures_of(data, train))
    yield from _value_problems(study)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", "contains a seed twice", at="study")
    if not wrong:
        arms = [at_size(name, size) for size in study.at_sizes for name in arms_in(study, variants)]
        yield from _claim_problems(study, arms)


def _entry_problems(study: Study, variants: Mapping[str, Variant]) -> Iterator[Problem]:
    """Yield problems of `compare`, `cross` and `baseline`."""
    if not study.compare and not study.cross:
        yield Problem("compare", "is empty; list variants to compare with the baseline", at="study")
    for key in ("compare", "cross"):
        for place, entry in enumerate(getattr(study, key)):
            yield from _unknown(entry, variants, f"study.{key}[{place}]", alone=key == "cross")
    for name in study.base_variants:
        yield from _unknown(name, variants, "study.baseline", whole=True)
    if len(set(study.cross)) < len(study.cross):
        yield Problem("cross", "contains a variant twice", at="study")
    counts = [math.prod(len(options_of(name, variants)) for name in parts_of(entry)) for entry in study.compare]
    crossed_count = math.prod(len(crossed(name, variants)) for name in study.cross) if study.cross else 0
    arms, grid = (1 + sum(counts) + crossed_count) * len(study.at_sizes), math.prod(map(len, study.tune.values()))
    if arms > ARMS.most:
        text = f"results in {arms:,} variants including the baseline; the limit is {ARMS.most:,}"
        yield Problem("cross" if study.cross else "compare", text, at="study")
    elif arms * grid > TRIALS.most:
        text = f"results in {grid:,} combinations for each of {arms:,} variants; the limit is {TRIALS.most:,} trials"
        yield Problem("tune", text, at="study")


def _measure_problems(study: Study, measures: Sequence[str]) -> Iterator[Problem]:
    for place, measure in enumerate(study.measure):
        if isinstance(measure, str):
            yield from _unmeasured(measure, measures, f"study.measure[{place}]")
    if not isinstance(study.measure[0], str):
        yield Problem("", "the first measure cannot be a probe; put a score or cost of the runs first", at=FIRST)
    if len(set(study.names)) < len(study.names):
        yield Problem("measure", "contains a measure twice", at="study")
    for name in study.equal_within:
        if name not in study.names:
            text = f"'{name}' is not measured; add it to study.measure"
            yield Problem(name, text, nearest(name, [*study.names]), at="study.equal_within")


def _value_problems(study: Study) -> Iterator[Problem]:
    """Yield invalid keys in `tune`, `match` and `baseline`."""
    match = study.match
    if match is not None and match.parameters is not None and not match.parameters.startswith("model."):
        yield Problem(
            "parameters",
            f"'{match.parameters}' does not change the number of parameters; use a key of model",
            at="study.match",
        )
    if match is not None and match.key in study.tune:
        yield Problem(match.key, "cannot be tuned, since study.match solves for it", at="study.tune")
    if len(study.sizes) == 1:
        yield Problem("sizes", "needs two sizes or more", at="study")
    for key in study.tune:
        if any(key in values for values in study.sizes.values()):
            yield Problem(key, "cannot be tuned, since study.sizes sets it", at="study.tune")
    if match is not None and match.what in ("tokens", "seconds") and any(STEPS in one for one in study.sizes.values()):
        yield Problem(STEPS, f"cannot be set, since study.match.{match.what} solves for it", at="study.sizes")
    for name in study.sizes:
        if re.fullmatch(r"[\w.-]+", name) is None:
            yield Problem("", f"'{name}': name a size with letters, digits, _, . and - only", at="study.sizes")
    sizes = {f"sizes.{name}": values for name, values in study.sizes.items()}
    if any("train.seed" in values for values in (study.tune, study.base_values, *sizes.values())):
        yield Problem("seeds", "the study sets the seed of each run; remove train.seed", at="study")
    for section, keys in {"tune": study.tune, "baseline": study.base_values, **sizes}.items():
        for key in keys:
            if not key or key.partition(".")[0] in ("study", "extends", "variants"):
                yield Problem("", f"'{key}' cannot be overridden in a study", at=f"study.{section}")
    for key, values in study.tune.items():
        if len({repr(value) for value in values}) < len(values):
            yield Problem(key, "contains a value twice", at="study.tune")


def _claim_problems(study: Study, arms: Sequence[str]) -> Iterator[Problem]:
    for place, claim in enumerate(study.claims):
        where = f"study.claims[{place}]"
        if claim.on not in study.names:
            yield Problem(
                "on",
                f"'{claim.on}' is not measured; add it to study.measure",
                nearest(claim.on, [*study.names]),
                at=where,
            )
        for side in claim.sides:
            if side not in arms:
                text = f"'{side}' is not compared by this study; available: {', '.join(arms)}"
                yield Problem("says", text, nearest(side, list(arms)), at=where)
        if claim.sides[0] == claim.sides[1]:
            yield Problem("says", f"compares '{claim.sides[0]}' with itself", at=where)


def arms_in(study: Study, variants: Mapping[str, Variant]) -> dict[str, tuple[str, ...]]:
    """Map the name of each compared variant, baseline first, to the variants that it combines."""
    arms: dict[str, tuple[str, ...]] = {BASELINE: ()}
    joined = [
        one for entry in study.compare for one in product(*(options_of(name, variants) for name in parts_of(entry)))
    ]
    if study.cross:
        joined += product(*(crossed(name, variants) for name in study.cross))
    for parts in joined:
        chosen = tuple(part for part in parts if part)
        if chosen:
            arms.setdefault("+".join(chosen), chosen)
    return arms


def at_size(name: str, size: str) -> str:
    """Return the name of a variant at a size, or the name itself without sizes."""
    return f"{name}@{size}" if size else name


def crossed(name: str, variants: Mapping[str, Variant]) -> list[str]:
    """Return the alternatives for an entry of `cross`: the choices of an axis, or "" and the variant."""
    return options_of(name, variants) if isinstance(variants.get(name), Axis) else ["", name]


def _unknown(
    entry: str, variants: Mapping[str, Variant], at: str, whole: bool = False, alone: bool = False
) -> Iterator[Problem]:
    """Yield problems of an entry. If `whole`, an axis needs a choice; if `alone`, + is not allowed."""
    if entry in variants and (entry == BASELINE or "+" in entry or "=" in entry):
        why = "is the name of the baseline" if entry == BASELINE else "contains a + or ="
        yield Problem("", f"'{entry}' {why}; rename the variant", at=at)
        return
    if alone and "+" in entry:
        yield Problem(
            "", f"'{entry}': cross already compares all combinations; list each variant or axis separately", at=at
        )
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


def _unmeasured(measure: str, measures: Sequence[str], at: str) -> Iterator[Problem]:
    available = [*measures, *COSTS]
    if measure not in available:
        text = f"'{measure}' is not measured in these runs; available: {', '.join(available)}"
        yield Problem("", text, nearest(measure, available), at=at)
