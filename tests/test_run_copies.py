"""A used run is pickled, copied and sent to another process; cached decoders stay behind."""

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tfkit.core.errors import UsageError
from tfkit.models import Model
from tfkit.run import Run, train

from .test_run import TRANSLATION, language, recipe

pytestmark = pytest.mark.full

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda thing: pickle.loads(pickle.dumps(thing)),
    "copied": copy.deepcopy,
}
PART = """
import torch
import tfkit
from tfkit.components.feedforward import FeedForward

@tfkit.register("feedforward", "travelling")
class Travelling(FeedForward):
    def __init__(self, config, shape):
        super().__init__(config, shape)
        self.up = torch.nn.Linear(shape.d_model, shape.d_model)

    def forward(self, x, context):
        return self.up(x).relu()
"""


def masked() -> dict[str, Any]:
    """An encoder that fills masks."""
    model = {name: value for name, value in TRANSLATION["model"].items() if name not in ("encoder", "decoder")}
    model |= {"type": "encoder", "num_layers": 1, "head": {"type": "masked_lm"}, "embedding": "tokens"}
    data = {"tokenizer": {"type": "word", "special_tokens": {"mask": "[MASK]"}}, "batch": {"size": 4, "length": 32}}
    data["train"] = data["valid"] = {"type": "docstrings", "limit": 5}
    train = {**TRANSLATION["train"], "samples": 0}
    return {"tfkit": 1, "model": model, "data": data, "objective": "masked_lm", "train": train}


RECIPES: dict[str, Callable[[], Any]] = {"pair": recipe, "decoder": language, "encoder": masked}


def written(run: Run) -> list[Any]:
    """Results of every way to generate."""
    text = "one two"
    ruled = [{"type": "choices", "choices": ["one", "two"]}] if find_spec("llguidance") else []
    return [
        run.generate(text),
        run.generate([text, "one"], strategy="sample", seed=1),
        run.candidates(text, strategy={"type": "beam", "num_beams": 2}),
        list(run.stream(text)),
        run.generate(text, quantize="int8"),
        run.generate(text, logits=ruled),
    ]


def used(run: Run) -> list[Any]:
    """Results of every use of a run."""
    found = written(run) if run.writes else [run.predict("a [MASK] text"), run.generate("a [MASK] text")]
    return [
        *found,
        run.embed(["one", "one two"]).tolist(),
        run.evaluate("valid", limit=4),
        *([run.evaluate("valid", limit=4, quantize="int8")] if run.writes else []),
    ]


def step(model: Model, run: Run) -> None:
    """Take a step of training."""
    model.train()
    objective = run.objective
    items = objective.rows.prepare(run._examples("train")[:2], run.tokenizer, 16)
    batch = objective.rows.collate(items, np.random.default_rng(0))
    objective.loss(model, batch, training=True).total.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.eval()


@pytest.fixture(scope="module", params=RECIPES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(RECIPES[request.param](), out=tmp_path_factory.mktemp("runs") / "run", progress=False)


@pytest.mark.parametrize("way", WAYS)
def test_a_used_run_travels(run: Run, way: str) -> None:
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    results = used(run)
    twin = WAYS[way](run)
    assert used(twin) == results == used(run)
    for weights in (run.model.state_dict(), twin.model.state_dict()):
        assert list(weights) == list(before) and all(torch.equal(weights[name], before[name]) for name in before)
    assert twin.model is not run.model
    twin = WAYS[way](run)
    assert not twin._decoders
    if run.writes:
        assert twin.decoder().model is twin.model
        assert run.decoder("int8").bytes and WAYS[way](run.decoder("int8")).bytes == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_used_model_travels_before_and_after_training(run: Run, way: str) -> None:
    used(run)
    other = Run(run.folder, run.recipe)
    other.model = WAYS[way](run.model)
    assert used(other) == used(run)
    step(other.model, other)
    changed = used(other)
    assert changed != used(run)
    assert used(WAYS[way](other)) == changed


@pytest.mark.parametrize("way", WAYS)
def test_a_writer_travels(run: Run, way: str) -> None:
    if not run.writes:
        with pytest.raises(UsageError):
            run.writer()
        return
    pytest.importorskip("llguidance")
    writer = run.writer(logits=[{"type": "regex", "pattern": "[a-z ]*"}], seed=1, strategy="sample")
    read = run.read(["one two"])
    assert WAYS[way](writer).write(read) == writer.write(read)


def _answer(run: Run, results: Any) -> None:
    results.put(used(run))


@pytest.mark.slow
def test_a_run_with_a_part_of_a_file_travels_to_a_new_process(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(PART)
    base = {**TRANSLATION, "imports": [str(tmp_path / "part.py")]}
    base["model"] = {**base["model"], "layer": {**base["model"]["layer"], "feedforward": "travelling"}}
    run = train(base, out=tmp_path / "run", progress=False, trust=True)
    assert elsewhere(run) == used(run)


def elsewhere(run: Run) -> Any:
    """Use the run in a new process."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_answer, args=(run, results))
    process.start()
    try:
        return results.get(timeout=300)
    finally:
        process.join(60)
