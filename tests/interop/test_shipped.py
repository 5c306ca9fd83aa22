"""Every shipped model: its published size, and the round trip through transformers as its own family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, device

import tfkit
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.family import families
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.matching import matching_family
from tfkit.interop.huggingface.verifying import call_of, verify
from tfkit.models.build import build_model
from tfkit.plain.smaller import smaller
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count_parameters
from tfkit.run import Run
from tfkit.runs.folder import ENVIRONMENT
from tfkit.storage.files import write_json

from ..sampling import each, some
from ..shipped import MODELS, shipped
from .counts import COUNTS, Size
from .parity import PAD, randomise

transformers = pytest.importorskip("transformers", reason='the proofs need transformers: pip install "tfkit[test]"')
SHIPPED = [name for name, size in COUNTS.items() if size.family]
IDS = {"pad": PAD, "start": 2, "end": 3}


def shrunk(name: str, least: int = 2) -> Recipe:
    """Load a small version of a shipped model, of at least `least` layers and with special tokens."""
    small = smaller(shipped(name), least)
    assert small is not None, f"{name} has no smaller version"
    return load_recipe({"tfkit": 1, "model": small.root.plain()["model"] | {"special_ids": IDS}})


def run_of(name: str, folder: Path) -> Run:
    """A run of a small version with random weights, on record as one of the model's own family."""
    folder.mkdir()
    write_json(folder / ENVIRONMENT, {"imported": {"family": COUNTS[name].family}})
    run = Run(folder, shrunk(name))
    run.model = build_model(run.blueprint, seed=0).eval()
    randomise(run.model, 0.3 * (32 / run.blueprint.last.d_model) ** 0.5)
    with torch.no_grad():
        for key, value in run.model.state_dict().items():
            if key.endswith("embedding.tokens.weight"):
                value[PAD] = 0  # as some classes of theirs set it when they load a model
    return run


def reply(run: Run, call: dict[str, Tensor]) -> Tensor:
    """Return the logits of a run, or its hidden states if it has no head."""
    with torch.no_grad():
        out = run.model(**call)
    return out.hidden if out.logits is None else out.logits


@pytest.mark.parametrize("name", some(SHIPPED, every=9))
def test_its_family_says_it(name: str) -> None:
    found, _ = matching_family(shipped(name).blueprint(), (COUNTS[name].family,))
    assert found is not None and found.family is families()[COUNTS[name].family]


@pytest.mark.parametrize("name", some(SHIPPED, every=60))
def test_it_goes_out_and_in_again(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path / "run")
    made = export_model(run, tmp_path / "theirs")
    assert made.family_config is not None, "no family says it"
    assert made.family_config.family is families()[COUNTS[name].family]
    verdict = verify(run, str(tmp_path / "theirs"))
    assert verdict.equal, verdict.as_data()
    import_model(str(tmp_path / "theirs"), tmp_path / "again")
    call, _, _ = call_of(run, tmp_path, None)
    assert torch.equal(reply(tfkit.load_run(tmp_path / "again"), call), reply(run, call))


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
    size = COUNTS[name]
    theirs, _ = matching_family(shipped(name).blueprint(), (size.family,))
    assert theirs is not None, "no family says it"
    assert theirs.family is families()[size.family]
    config = {key: value for key, value in theirs.config.items() if key not in ("architectures", "model_type")}
    with device("meta"):
        made = transformers.CONFIG_MAPPING[theirs.config["model_type"]](**config)
        model = getattr(transformers, theirs.head_class)(made)
    assert sum(parameter.numel() for parameter in model.parameters()) == size.parameters + size.besides[0]
