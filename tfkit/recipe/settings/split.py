"""The base class of sections, and the section `data.split`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tfkit.core.options import PositiveInt, RecipePath, Seed


class Section(BaseModel):
    """Base of recipe mappings that are not parts: strict, closed and frozen, as the options of parts are."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def _possible(share: int | float | str) -> int | float | str:
    if not isinstance(share, str) and (share <= 0 or (share >= 1 and isinstance(share, float))):
        raise ValueError("must be a share between 0 and 1, a number of examples from 1, or a file")
    return share


Share = Annotated[PositiveInt | float | RecipePath, AfterValidator(_possible)]


class Partition(Section):
    """Division of `train` by groups, lists or place. With `by` only, `tfkit check` compares the groups of splits."""

    valid: Share | None = Field(
        None, description="share or number of the examples for validation, or a file that lists the values of `by`"
    )
    test: Share | None = Field(None, description="share or number of the examples for test, or such a file")
    by: str | None = Field(
        None,
        min_length=1,
        description="column whose groups stay whole; none: equal examples form a group, and files list the ids",
    )
    stratify: str | None = Field(
        None, min_length=1, description="field or column whose values have equal shares in all splits"
    )
    seed: Seed = Field(0, description="seed of the division")
    by_place: bool | None = Field(
        None, description="keep the order: train, valid, test; none: if the objective joins running text to one stream"
    )

    @property
    def cut(self) -> dict[str, int | float | str]:
        """Options of the splits other than train."""
        return {name: value for name, value in (("valid", self.valid), ("test", self.test)) if value is not None}

    @property
    def shares(self) -> dict[str, int | float]:
        """Fraction or number of examples of each split."""
        return {name: value for name, value in self.cut.items() if not isinstance(value, str)}

    @property
    def lists(self) -> dict[str, str]:
        """Files with the values of `by`, by split."""
        return {name: value for name, value in self.cut.items() if isinstance(value, str)}

    @model_validator(mode="after")
    def _cuts(self) -> Partition:
        if not self.cut and self.by is None:
            raise ValueError("set valid, test or both")
        if sum(share for share in self.shares.values() if share < 1) >= 1:
            raise ValueError(f"valid: {self.valid} and test: {self.test} leave nothing for train; use smaller shares")
        return self

    @property
    def idle(self) -> list[str]:
        """Names of options without effect."""
        names = ["stratify", "seed"] if self.by_place or not self.shares else []
        return [name for name in (*names, *(("by", *self.lists) if self.by_place else ())) if getattr(self, name)]
