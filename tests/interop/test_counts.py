"""Every shipped model has the size that its makers publish, and that the class of transformers has."""

from __future__ import annotations

import re

import pytest
from torch import device

from tfkit.interop.huggingface.known import families
from tfkit.interop.huggingface.matching import matching_family
from tfkit.reports.counts import count_parameters

from ..sampling import each
from ..shipped import MODELS, shipped
from .counts import COUNTS, Size

UNITS = {"": 1, "M": 10**6, "B": 10**9}
NEAR = 0.05  # papers round, and leave out a pooler or a table of positions


def number(said: str) -> float:
    """What is published, such as 6.7B, as a number."""
    found = re.fullmatch(r"([\d.,]+)([MB]?)", said)
    assert found is not None, said
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def test_every_shipped_model_is_counted() -> None:
    assert sorted(COUNTS) == MODELS


def test_each_size_is_that_of_show_and_near_the_published_one_or_it_is_said_why_not() -> None:
    def check(name: str, size: Size) -> None:
        assert count_parameters(shipped(name).blueprint()) == size.parameters
        if size.published:
            apart = abs(size.parameters / number(size.published) - 1)
            assert (apart > NEAR) == bool(size.why), f"{apart:.1%} from {size.published} of {size.source}"

    each(COUNTS.items(), check)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, size in COUNTS.items() if size.family])
def test_the_class_of_transformers_has_as_many(name: str) -> None:
    """The recipe, said in the config.json of its family, makes a class of theirs of that size."""
    transformers = pytest.importorskip("transformers")
    size = COUNTS[name]
    theirs, _ = matching_family(shipped(name).blueprint(), (size.family,))
    assert theirs is not None, "no family says it"
    assert theirs.family is families()[size.family]
    config = {key: value for key, value in theirs.config.items() if key not in ("architectures", "model_type")}
    with device("meta"):
        made = transformers.CONFIG_MAPPING[theirs.config["model_type"]](**config)
        model = getattr(transformers, theirs.head_class)(made)
    assert sum(parameter.numel() for parameter in model.parameters()) == size.parameters + size.besides[0]
