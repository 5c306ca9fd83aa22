"""Options of generation that override the recipe's `generate:`.

Short options (`num_beams` for `generate.strategy: {type: beam, ...}`) are available on the command line
(`--num-beams 4`) and in Python (`num_beams=4`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypedDict

from tfkit.core.errors import UsageError, on_one_line

if TYPE_CHECKING:
    from tfkit.core.component import Config
    from tfkit.generation.decoder import Quantize
    from tfkit.recipe.architecture.prepare import Parts
    from tfkit.recipe.settings.sections import Generate

# short option -> logits rule and the rule's option, in the order in which the rules apply
RULES = {"temperature": ("temperature", "temperature"), "top_k": ("top_k", "k"), "top_p": ("top_p", "p")}
OF_STRATEGIES = ("num_beams", "n_best")  # options of specific strategies


class GenerateOptions(TypedDict, total=False):
    """Options of a call that override the recipe's `generate:`; None keeps the recipe's value.

    `strategy`, `logits` and `stop` are names, mappings with a type, or Configs. `batch_size` is the number of prompts
    per batch. `quantize` computes with `"int8"` or `"bfloat16"` weights. `temperature`, `top_k`, `top_p`, `num_beams`
    and `n_best` are short options, applied on top of the strategy and the rules.
    """

    strategy: Parts | None
    logits: Parts | None
    stop: Parts | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    num_beams: int | None
    n_best: int | None
    seed: int | None
    batch_size: int
    quantize: Quantize | None
    inputs: Mapping[str, object] | None  # extra inputs: tensors or arrays [prompts width], or [width] for all prompts


class WriteOptions(GenerateOptions, total=False):
    """Generation options and the maximum number of new tokens."""

    max_new_tokens: int | None


@dataclass(frozen=True)
class Shorthands:
    """Values of the short options; None if unset."""

    strategy: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_beams: int | None = None
    n_best: int | None = None
    seed: int | None = None
    batch_size: int | None = None
    quantize: Quantize | None = None
    max_new_tokens: int | None = None

    def set_options(self, *names: str) -> list[str]:
        """Return the options that are set, as typed by the user; only those in `names` if given."""
        chosen = names or [field.name for field in fields(self)]
        values = {name: getattr(self, name) for name in chosen}
        return [self.typed(name, value) for name, value in values.items() if value is not None]

    def typed(self, name: str, value: object) -> str:
        """Format an option as typed by the user."""
        return f"--{name.replace('_', '-')} {_plain(value)}"

    def options(self, settings: Generate, sets: Sequence[str] = ()) -> GenerateOptions:
        """Convert to generation options on top of a recipe's `settings`; `sets` are the --set arguments of the call."""
        strategy = self.strategy_over(settings.strategy, _strategy_set(sets))
        if self.seed is not None and not strategy.build().draws:
            raise UsageError(
                f"--seed {self.seed}: strategy '{strategy.part.part_name}' does not sample; use --strategy sample"
            )
        options: GenerateOptions = {
            "strategy": strategy,
            "logits": self.logits_over(settings.logits),
            "seed": self.seed,
        }
        if self.quantize is not None:
            options["quantize"] = self.quantize
        return options if self.batch_size is None else {**options, "batch_size": self.batch_size}

    def strategy_over(self, base: Config, override: str | None = None) -> Config:
        """Return the strategy that the options name or imply, else the recipe's; `override` is a --set argument."""
        from tfkit.recipe.architecture.prepare import part_at

        if self.strategy is not None and override is not None:
            raise UsageError(f"--strategy {self.strategy} and --set {override} both set the strategy; use one of them")
        name = self.strategy or (None if override else self._implied(base)) or base.part.part_name
        values = {option: getattr(self, option) for option in OF_STRATEGIES if getattr(self, option) is not None}
        if name == base.part.part_name and not values:
            return base
        options = base.spelled() if name == base.part.part_name else {"type": name}
        text = " ".join(self.set_options("strategy", *OF_STRATEGIES)) or " ".join(self.set_options(*RULES))
        self._check(name, values)
        return part_at("strategy", {**options, **values}, text, "generate.strategy")

    def _implied(self, base: Config) -> str | None:
        """Return the strategy that the options imply; None for the recipe's."""
        if self.num_beams is not None:
            return None if "num_beams" in type(base).model_fields else "beam"
        draws = any(getattr(self, name) is not None for name in RULES)
        return "sample" if draws and not base.build().draws else None

    def logits_over(self, base: Sequence[Config]) -> list[Config]:
        """Return the recipe's rules, with the rules of short options replaced in place or appended."""
        from tfkit.recipe.architecture.prepare import part_at

        rules = list(base)
        for name, (kind, option) in RULES.items():
            value = getattr(self, name)
            if value is None:
                continue
            rule = part_at("logits", {"type": kind, option: value}, self.typed(name, value), "generate.logits")
            places = [place for place, other in enumerate(rules) if other.part.part_name == kind]
            kept = [other for other in rules if other.part.part_name != kind]
            rules = [*kept, rule] if not places else [*kept[: places[0]], rule, *kept[places[0] :]]
        return rules

    def _check(self, strategy: str, values: Mapping[str, object]) -> None:
        """Raise UsageError if the strategy lacks an option, naming the strategies that have it."""
        from tfkit.core.registry import REGISTRY

        having = {name: REGISTRY.get("strategy", name).Config.model_fields for name in REGISTRY.names("strategy")}
        for option, value in values.items():
            if strategy in having and option not in having[strategy]:
                others = ", ".join(name for name, options in having.items() if option in options)
                why = f"strategy '{strategy}' has no option {option}; supported by: {others}"
                raise UsageError(f"{self.typed(option, value)}: {why}")


@dataclass(frozen=True)
class Keywords(Shorthands):
    """Short options as keyword arguments in Python."""

    def typed(self, name: str, value: object) -> str:
        return f"{name}={_plain(value)}"


def _strategy_set(sets: Sequence[str]) -> str | None:
    """Return the --set argument that changes the strategy, if any."""
    for text in sets:
        key, _, value = (part.strip() for part in text.partition("="))
        if f"{key}.".startswith("generate.strategy.") or (key == "generate" and "strategy" in value):
            return text
    return None


def _plain(value: object) -> str:
    """Format a value; floats get no more digits than the user typed."""
    return f"{value:.15g}" if isinstance(value, float) else on_one_line(str(value), 60)
