"""Schema and validation of `study:`, the section that compares variants of its recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tfkit.core.bounds import ARMS, SEEDS, TRIALS
from tfkit.core.component import Doubt, Problem
from tfkit.core.options import Names, PositiveFloat, PositiveInt, Seed, as_tuple
from tfkit.core.synonyms import nearest
from tfkit.recipe.overlays import Axis, Variant
from tfkit.recipe.settings.sections import Data, Section, Train
from tfkit.studies.design_section import BASELINE as BASELINE
from tfkit.studies.design_section import Design, design_problems, parts_of, unknown

KEY = "study"
COSTS = ("tokens_per_second", "seconds", "peak_memory", "parameters", "flops", "cache_bytes")  # measured in every run
GENERATION_RATE = "generation.tokens_per_second"  # measured in runs with train.generation_rate
STEPS = "train.steps"
LENGTHS = (STEPS, "train.epochs", "train.max_time")
BEYOND, MORE = "...", 4  # last of the tuned values: go on beyond the ends; number of further values
CLAIM = re.compile(r"\s*[^<>\s][^<>]*[<>](?!=)\s*[^<>\s][^<>]*")
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
        return self.parameters or self.flops or STEPS


class PaperClaim(Section):
    """A claim of a paper about two variants, which the study tests."""

    paper: str = Field("", description="source of the claim")
    says: str = Field(description="two variants with < or > between them: norm=pre_norm < norm=post_norm")
    on: str = Field("", description="measure that the claim compares; empty: the first measure of the study")

    @model_validator(mode="after")
    def _compares(self) -> PaperClaim:
        if CLAIM.fullmatch(self.says) is None:
            raise ValueError(f"says: expected two variants with < or > between them, got '{self.says}'")
        return self

    @property
    def is_greater(self) -> bool:
        """True if the first variant is claimed to have the greater value."""
        return ">" in self.says

    @property
    def sides(self) -> tuple[str, str]:
        """The two variants; according to the claim, the first has the smaller value."""
        first, second = map(str.strip, re.split("[<>]", self.says))
        return (second, first) if self.is_greater else (first, second)


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
        return self.probe if isinstance(self.probe, str) else str(self.probe["type"])

    @property
    def options(self) -> dict[str, Any]:
        return {} if isinstance(self.probe, str) else {key: self.probe[key] for key in self.probe if key != "type"}

    @property
    def name(self) -> str:
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
    design: Design | None = Field(None, description="many options screened in few runs, in place of compare and cross")
    baseline: str | dict[str, Any] = Field(
        default_factory=dict, description="the baseline: the recipe, a variant, or values by key"
    )
    seeds: Seeds = Field(3, description="number of seeds per variant, or a list of seeds")
    match: Match | None = Field(None, description="quantity to equalize between each variant and the baseline")
    tune: dict[str, Values] = Field(
        default_factory=dict,
        description="candidate values by key, tuned for each variant with the first seed; after a last `...` the best "
        "at an end is doubled or halved",
    )
    sizes: dict[str, Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="values by key of each size at which all variants are repeated: {small: {model.d_model: 64}, "
        "large: {model.d_model: 128}}",
    )
    budgets: Annotated[tuple[PositiveInt, ...], BeforeValidator(as_tuple)] = Field(
        (), description="numbers of steps, each of which all variants are trained for, at each size: [300, 600]"
    )
    measure: Annotated[tuple[str | ProbeMeasure, ...], BeforeValidator(as_tuple)] = Field(
        ("valid.loss",),
        min_length=1,
        description="scores or costs of the runs to judge, or {probe: NAME}; the first is the main measure, and tuning "
        "goes by its twin on the validation split",
    )
    equal_within: dict[str, PositiveFloat] = Field(
        default_factory=dict,
        description="equivalence margin by measure, the largest difference that counts as equal: {valid.loss: 0.01}",
    )
    claims: Annotated[tuple[PaperClaim, ...], BeforeValidator(as_tuple)] = Field(
        (), description="claims of papers to test on the runs"
    )
    keep: Keep = Field(
        "all", description="files kept of each finished run; scores: no weights or checkpoints; weights: no checkpoints"
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _fixed(cls, seeds: Any) -> Any:
        if isinstance(seeds, dict):
            raise ValueError("seeds that depend on results were removed; give a number of seeds")
        return seeds

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one if isinstance(one, str) else one.name for one in self.measure)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds of each variant; of a design, those of the screen, the noise and the confirming runs in turn."""
        if self.design is not None:
            return tuple(range(self.design.seeds[-1].stop))
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def grids(self) -> dict[str, tuple[Any, ...]]:
        """The candidate values of each tuned key."""
        return {key: tuple(value for value in values if value != BEYOND) for key, values in self.tune.items()}

    @property
    def at_sizes(self) -> Mapping[str, Mapping[str, object]]:
        """Values by key of each size, at each budget; one empty size without both."""
        sizes = self.sizes or {"": {}}
        if not self.budgets:
            return sizes
        points = product(sizes.items(), sorted(self.budgets))
        return {f"{name}-{steps}" if name else f"{steps}": {**values, STEPS: steps} for (name, values), steps in points}

    @property
    def base_variants(self) -> tuple[str, ...]:
        return parts_of(self.baseline) if isinstance(self.baseline, str) and self.baseline else ()

    @property
    def base_values(self) -> Mapping[str, object]:
        return {} if isinstance(self.baseline, str) else self.baseline


def measures_of(data: Data | None, train: Train) -> list[str]:
    """Return the names of a run's scores, from its best validation and from the measurements after training."""
    if data is None:
        return []
    names = [f"valid.{name}" for name in ("loss", *train.validate.names)] if data.has("valid") else []
    for split in data.measured() if train.metrics else []:
        names += [f"{split}.{score}" for config in train.metrics for score in config.scores()]
        names += [f"{split}.loss"] if split != "valid" else []
    scores = ["loss", *(score for config in train.metrics for score in config.scores())]
    names += [f"{name}.{score}" for name in train.evaluations for score in scores]
    names += [GENERATION_RATE] if train.generation_rate is not None else []
    return list(dict.fromkeys(names))


def tuned_by(measure: str, data: Data | None, train: Train) -> str:
    """Return the measure that tuning goes by: the twin of `measure` on the validation split, or valid.loss."""
    twin = f"valid.{measure.partition('.')[2]}"
    return twin if twin in measures_of(data, train) else "valid.loss"


def rises(measure: str, train: Train) -> bool:
    """True if larger values of the measure are better."""
    name = measure.partition(".")[2]
    configs = (*train.metrics, *train.validate.metrics)
    parts = (config.part for config in configs if any(fnmatchcase(name, one) for one in config.scores()))
    return (
        measure in ("tokens_per_second", GENERATION_RATE)
        or measure.startswith("probe.")
        or any(part.higher_is_better for part in parts)
    )


def options_of(name: str, variants: Mapping[str, Variant]) -> list[str]:
    """Return the choices of an axis, or the name of a plain variant itself."""
    variant = variants.get(name)
    return variant.written() if isinstance(variant, Axis) else [name]


def study_problems(study: Study, variants: Mapping[str, Variant], data: Data | None, train: Train) -> Iterator[Problem]:
    """Yield problems in `study:`."""
    wrong = list(_entry_problems(study, variants))
    yield from wrong
    yield from _measure_problems(study, measures_of(data, train))
    if study.tune:
        yield from _tuning_problems(study, tuned_by(study.names[0], data, train), measures_of(data, train))
    yield from _value_problems(study)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", "contains a seed twice", at="study")
    if not wrong:
        arms = [at_size(name, size) for size in study.at_sizes for name in arms_in(study, variants)]
        yield from _claim_problems(study, arms)
        yield from _budget_problems(study, variants, train) if study.budgets else ()


def _entry_problems(study: Study, variants: Mapping[str, Variant]) -> Iterator[Problem]:
    """Yield problems of `compare`, `cross` and `baseline`."""
    if study.design is not None:
        yield from design_problems(study.design, variants, study.model_fields_set, study.measure)
    elif not study.compare and not study.cross:
        yield Problem("compare", "is empty; list variants to compare with the baseline", at="study")
    for key in ("compare", "cross"):
        for place, entry in enumerate(getattr(study, key)):
            yield from unknown(entry, variants, f"study.{key}[{place}]", alone=key == "cross")
    for name in study.base_variants:
        yield from unknown(name, variants, "study.baseline", whole=True)
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
        available = [*measures, *COSTS]
        if isinstance(measure, str) and ("*" in measure or not any(fnmatchcase(measure, one) for one in available)):
            text = f"'{measure}' is not measured in these runs; available: {', '.join(available)}"
            yield Problem("", text, nearest(measure, available), at=f"study.measure[{place}]")
    if not isinstance(study.measure[0], str):
        yield Problem("measure[0]", "cannot be a probe; put a score or cost of the runs first", at="study")
    if len(set(study.names)) < len(study.names):
        yield Problem("measure", "contains a measure twice", at="study")
    for name in study.equal_within:
        if name not in study.names:
            text = f"'{name}' is not measured; add it to study.measure"
            yield Problem(name, text, nearest(name, [*study.names]), at="study.equal_within")


def _tuning_problems(study: Study, tuned: str, measures: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem if nothing can be tuned by, and a doubt if a judged measure is the one that is tuned by."""
    if tuned not in measures:
        yield Problem("tune", "needs data.valid, the split by which values are chosen", at="study")
    elif tuned in study.names:
        split = next((one for one in measures if one == tuned.replace("valid.", "test.")), "a measure on data.test")
        text = f"{tuned} is judged, and study.tune chooses by it, which favours lucky values; list {split} instead"
        yield Doubt("", text, at=f"study.measure[{study.names.index(tuned)}]")


def _value_problems(study: Study) -> Iterator[Problem]:
    """Yield invalid keys in `tune`, `match` and `baseline`."""
    match = study.match
    if match is not None and match.parameters is not None and not match.parameters.startswith("model."):
        text = f"'{match.parameters}' does not change the number of parameters; use a key of model"
        yield Problem("parameters", text, at="study.match")
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
        numbers = [type(value) in (int, float) and value > 0 for value in values[:-1]]
        if BEYOND in values and (values[-1] != BEYOND or not numbers or not all(numbers)):
            text = f"`{BEYOND}` must be the last value, after numbers above 0 to double or halve"
            yield Problem(key, text, at="study.tune")


def _budget_problems(study: Study, variants: Mapping[str, Variant], train: Train) -> Iterator[Problem]:
    """Yield the other keys that set the length of training."""
    if len(set(study.budgets)) < max(2, len(study.budgets)):
        yield Problem("budgets", "needs two different numbers of steps or more", at="study")
    places: dict[str, Collection[str]] = {"study.tune": study.tune, "study.baseline": study.base_values}
    places |= {f"study.sizes.{name}": values for name, values in study.sizes.items()}
    used = {name.partition("=")[0] for name in sum(arms_in(study, variants).values(), study.base_variants)}
    for name, variant in variants.items():
        nodes = variant.choices if isinstance(variant, Axis) else (variant,)
        places[f"variants.{name}"] = {node.path for one in nodes * (name in used) for _, node in one.walk()}
    others = [f"study.match.{study.match.what}"] if study.match is not None and study.match.key == STEPS else []
    others += [f"{key} in {place}" for place, keys in places.items() for key in LENGTHS if key in keys]
    others += [key for key in LENGTHS[1:] if getattr(train, key.partition(".")[2]) is not None]
    for other in others:
        yield Problem("budgets", f"cannot be combined with {other}: both set the length of training", at="study")


def _claim_problems(study: Study, arms: Sequence[str]) -> Iterator[Problem]:
    for place, claim in enumerate(study.claims):
        where = f"study.claims[{place}]"
        if claim.on and claim.on not in study.names:
            text = f"'{claim.on}' is not measured; add it to study.measure"
            yield Problem("on", text, nearest(claim.on, [*study.names]), at=where)
        for side in claim.sides:
            if side not in arms:
                text = f"'{side}' is not compared by this study; available: {', '.join(arms)}"
                yield Problem("says", text, nearest(side, list(arms)), at=where)
        if study.design is not None and BASELINE not in claim.sides:
            yield Problem("says", f"a design compares an option with '{BASELINE}' only; name it on one side", at=where)
        if claim.sides[0] == claim.sides[1]:
            yield Problem("says", f"compares '{claim.sides[0]}' with itself", at=where)


def arms_in(study: Study, variants: Mapping[str, Variant]) -> dict[str, tuple[str, ...]]:
    """Map the name of each compared variant, baseline first, to the variants that it combines."""
    arms: dict[str, tuple[str, ...]] = {BASELINE: ()}
    joined = [
        one for entry in study.compare for one in product(*(options_of(name, variants) for name in parts_of(entry)))
    ]
    joined += [(option,) for option in study.design.options] if study.design else []
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
