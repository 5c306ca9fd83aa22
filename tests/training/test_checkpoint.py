"""Weights and checkpoints: exact, complete or absent, never pickled."""

import copy
import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.sampling import each, looped
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.runs import checkpoint
from tfkit.runs.checkpoint import Checkpoints, Progress, damage, read_progress, restore, step_of
from tfkit.runs.weights import Weights, load_weights, not_finite, read_tensors, save_tensors
from tfkit.storage.files import read_json, write_json
from tfkit.training.publish import mean


class Tied(nn.Module):
    """Three names, two tensors; and a buffer."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(5, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, 5, bias=False)
        self.output.weight = self.table.weight
        self.register_buffer("count", torch.tensor(7))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.output(torch.tanh(self.hidden(self.table(ids))))
        return out


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randint(0, 5, (4,))).square().sum().backward()
        optimizer.step()


def made(folder: Path) -> tuple[Path, Tied, torch.optim.Optimizer]:
    """A checkpoint with its model and optimizer."""
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    steps(model, optimizer, 1)
    return Checkpoints(folder).save(model, optimizer, Progress(step=1, tokens=7, targets=4)), model, optimizer


def saved(folder: Path, *numbers: int, keep: int = 1, beside: nn.Module | None = None) -> list[Path]:
    """Save checkpoints of these steps."""
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    steps(model, optimizer, 1)
    return [Checkpoints(folder, keep).save(model, optimizer, Progress(step=step), beside) for step in numbers]


def test_tied_tensors_are_stored_once_and_load_back(tmp_path: Path) -> None:
    model, file = Tied(), tmp_path / "model.safetensors"
    Weights.of(model).save(file)
    header_length = struct.unpack("<Q", file.read_bytes()[:8])[0]
    header = json.loads(file.read_bytes()[8 : 8 + header_length])
    assert set(header) - {"__metadata__"} == {"table.weight", "hidden.weight", "hidden.bias", "count"}
    other = Tied()
    load_weights(other, file)
    assert other.output.weight is other.table.weight
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert Weights.read(file).by_name().keys() == model.state_dict().keys()


def test_a_file_from_elsewhere_may_leave_tied_names_out(tmp_path: Path) -> None:
    model, file = Tied(), tmp_path / "model.safetensors"
    weights = Weights.of(model)
    Weights(weights.tensors, {}).save(file)
    load_weights(Tied(), file)
    without = {name: tensor for name, tensor in weights.tensors.items() if name != "table.weight"}
    Weights(without | {"output.weight": model.output.weight}, {}).save(file)
    with pytest.raises(RunError, match=r"table\.weight is missing"):
        load_weights(Tied(), file)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    file, weights = tmp_path / "model.safetensors", Weights.of(Tied())
    Weights(weights.tensors | {"hidden.bias": torch.zeros(3, dtype=torch.int32)}, weights.tied).save(file)
    with pytest.raises(RunError, match=r"does not fit this model: hidden\.bias holds int32, expected float32"):
        load_weights(Tied(), file)
    Weights.of(Tied(4)).save(file)
    with pytest.raises(RunError, match=r"model\.safetensors: .*table\.weight has shape \[5, 4\], expected \[5, 3\]"):
        load_weights(Tied(3), file)
    Weights({"other": torch.zeros(1)}, {}).save(file)
    with pytest.raises(RunError, match=r"table\.weight is missing.* and 2 more"):
        load_weights(Tied(), file)
    with pytest.raises(RunError, match=r"none\.safetensors: no such file"):
        read_tensors(tmp_path / "none.safetensors")


def test_broken_files_are_errors_of_the_user(tmp_path: Path) -> None:
    def refused(content: bytes) -> None:
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(RunError, match=r"model\.safetensors: not a complete safetensors file"):
            read_tensors(tmp_path / "model.safetensors")

    each([b"", b"\x80\x04K\x01.", b"\xff" * 40], refused)

    def damaged(tied: str) -> None:
        save_tensors(tmp_path / "model.safetensors", {"a": torch.ones(1)}, {"tied": tied})
        with pytest.raises(RunError, match=r"model\.safetensors: its list of tied tensors cannot be read"):
            Weights.read(tmp_path / "model.safetensors")

    each(["{", "[1]", "7", '[["a", "b"]]', "[" * 100_000], damaged)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
def test_training_goes_on_exactly(tmp_path: Path, kind: Any) -> None:
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    torch.manual_seed(0)
    model = Tied()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    steps(model, optimizer, 3)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    path = checkpoints.save(model, optimizer, Progress(step=3, tokens=12, epoch=1, batch=2, best=0.5))
    steps(model, optimizer, 3)

    torch.manual_seed(99)
    other = Tied()
    again = kind(other.parameters(), lr=0.5, **options)
    progress = restore(path, other, again)
    assert progress == Progress(step=3, tokens=12, epoch=1, batch=2, best=0.5) == read_progress(path)
    steps(other, again, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    files = ["SHA256SUMS", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(file.name for file in path.iterdir()) == files
    json.loads((path / "state.json").read_text())


def test_old_checkpoints_go(tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    (one / ".step-00000001.0123456789abcdef.tmp").mkdir(parents=True)  # an interrupted save
    (one / ".step-00000002.tmp").mkdir()  # of an older version
    saved(one, *range(1, 6)), saved(three, *range(1, 6), keep=3)
    assert sorted(path.name for path in one.iterdir()) == ["step-00000004", "step-00000005"]
    old, *complete = Checkpoints(three).all()
    assert [path.name for path in (old, *complete)] == ["step-00000003", "step-00000004", "step-00000005"]
    assert Checkpoints(three).last() == complete[-1] and len(list(three.glob("*/optimizer.safetensors"))) == 2
    assert all(damage(path) == [] for path in [*Checkpoints(one).all(), *complete])
    assert "optimizer.safetensors" not in (old / "SHA256SUMS").read_text()


def test_a_checkpoint_with_other_files_stays(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 1, 2)
    (first / "notes.txt").write_text("mine")
    (second / ".state.json.0123456789abcdef.tmp").write_text("of a process that was killed")
    (tmp_path / "step-00000001-copy").mkdir()
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "step-00000000" / "state.json").symlink_to(first / "state.json")
    saved(tmp_path, 3, 4, 5, 6)
    checkpoints = Checkpoints(tmp_path)
    assert damage(first) == [] and (first / "notes.txt").exists() and (tmp_path / "step-00000001-copy").is_dir()
    assert [step_of(path) for path in checkpoints.all()] == [0, 1, 5, 6]
    assert checkpoints.sound(print) == checkpoints.last()


def test_damaged_checkpoints_are_set_aside(tmp_path: Path) -> None:
    for step, name in ((2, "notes.txt"), (3, "state.json")):
        (tmp_path / f"step-0000000{step}.damaged").mkdir()
        (tmp_path / f"step-0000000{step}.damaged" / name).write_text("{}")
    first, _ = saved(tmp_path, 1, 2)
    Checkpoints(tmp_path).go_on_from(first, print)
    saved(tmp_path, 3)
    Checkpoints(tmp_path).go_on_from(first, print)
    names = ["step-00000001", "step-00000002.damaged", "step-00000002.damaged-2", "step-00000003.damaged"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert (tmp_path / "step-00000002.damaged" / "notes.txt").exists()
    assert damage(tmp_path / "step-00000003.damaged") == []


def test_modules_of_an_objective_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    before, newest = saved(tmp_path, 1, 2, beside=nn.Linear(2, 2))
    (newest / "beside.safetensors").unlink()
    said: list[str] = []
    assert Checkpoints(tmp_path).sound(said.append) == before and "beside.safetensors: is missing" in said[0]


def test_checkpoints_of_weights_alone_are_not_resumed(tmp_path: Path) -> None:
    first, second, third, fourth = saved(tmp_path, 1, 2, 3, 4, keep=4)
    said: list[str] = []
    for damaged in (third, fourth):
        (damaged / "state.json").write_text("{}")
    with pytest.raises(RunError, match=r"(?s)step-00000004/state\.json: .*3/state\.json: .*cannot be resumed"):
        Checkpoints(tmp_path).sound(said.append)
    assert said == [] and (first / "SHA256SUMS").exists() and not (second / "optimizer.safetensors").exists()


def test_saving_the_same_step_again_changes_only_the_progress(tmp_path: Path) -> None:
    path, model, optimizer = made(tmp_path)
    assert Checkpoints(tmp_path).save(model, optimizer, Progress(step=1, finished="steps")) == path
    assert read_progress(path).finished == "steps" and damage(path) == []


def test_checkpoints_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path, model, optimizer = made(tmp_path)
    with pytest.raises(RunError, match=r"optimizer\.safetensors: does not fit this optimizer"):
        restore(path, Tied(), torch.optim.Adam([nn.Parameter(torch.zeros(1))]))
    (path / "state.json").write_text('{"version": 7}')
    with pytest.raises(RunError, match=r"state\.json: not a checkpoint that this version of tfkit can read"):
        restore(path, model, optimizer)
    (path / "state.json").write_text("{")
    with pytest.raises(RunError, match=r"state\.json: cannot be read"):
        read_progress(path)


def test_mean_is_summed_in_float64(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    values = [1e8, 1.0, -1e8]
    for number, (file, value) in enumerate(zip(files, values, strict=True)):
        Weights({"a": torch.tensor([value, 3.0]), "n": torch.tensor(number)}, {"b": "a"}).save(file)
    result = mean(files)
    assert torch.equal(result.tensors["a"], torch.tensor([1 / 3, 3.0]))
    assert result.tensors["a"].dtype == torch.float32
    assert result.tensors["n"] == 2 and result.tied == {"b": "a"}


def test_random_states_come_back_as_plain_data() -> None:
    random.gauss(0, 1), np.random.standard_normal()  # leaves a second number in both
    state = json.loads(json.dumps(checkpoint.capture()))
    draws = random.gauss(0, 1), np.random.standard_normal(), torch.rand(3)
    checkpoint.restore_state(state)
    again = random.gauss(0, 1), np.random.standard_normal(), torch.rand(3)
    assert draws[:2] == again[:2] and torch.equal(draws[2], again[2])


def test_a_seeded_block_leaves_the_callers_states_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with checkpoint.seeded(5):
        first = torch.rand(2), random.random(), np.random.random()
    with checkpoint.seeded(5):
        second = torch.rand(2), random.random(), np.random.random()
    assert torch.equal(first[0], second[0]) and first[1:] == second[1:]
    assert torch.equal(torch.rand(2), expected)


ODD_PROGRESS = [
    ({"step": 10**12}, r"progress\.step is 1,000,000,000,000, but the folder is named step-00000001"),
    ({"step": -1}, r"progress\.step: Input should be greater than or equal to 0, got -1"),
    ({"step": "1"}, r"progress\.step: Input should be a valid integer, got '1'"),
    ({"tokens": None}, r"progress\.tokens: "),
    ({"best": float("nan")}, r"progress\.best: Input should be a finite number"),
    ({"finished": "yes"}, r"progress\.finished: Input should be '', 'steps', 'patience' or 'callback'"),
    ({"unknown": 1}, r"progress\.unknown: "),
]


def test_impossible_progress_is_refused(tmp_path: Path) -> None:
    path, model, optimizer = made(tmp_path)
    state = read_json(path / "state.json")

    def refused(progress: dict[str, Any], message: str) -> None:
        write_json(path / "state.json", state | {"progress": state["progress"] | progress})
        for reading in (lambda: read_progress(path), lambda: restore(path, model, optimizer)):
            with pytest.raises(RunError, match=rf"state\.json: {message}"):
                reading()

    each(ODD_PROGRESS, refused)
    del state["progress"]["targets"]  # an older version counted targets in `tokens`
    write_json(path / "state.json", state)
    assert read_progress(path) == Progress(step=1, tokens=7, targets=7)


ODD_STATE: list[tuple[str, Any]] = [
    ("progress", None),
    ("progress", [1]),
    ("random", None),
    ("random", {}),
    ("random.python", [3, [1], None]),
    ("random.numpy", []),
    ("random.torch", "AAAA"),
    ("random.torch", 7),
    ("optimizer", None),
    ("optimizer", {"items": 3}),
    ("optimizer", {"items": [["state", {"tensor": "nowhere"}]]}),
    ("optimizer", {"items": [["state", {"items": []}], ["param_groups", [1]]]}),
]


def test_a_malformed_state_is_refused(tmp_path: Path) -> None:
    path, model, optimizer = made(tmp_path)
    whole = read_json(path / "state.json")

    def refused(place: str, value: Any) -> None:
        state = copy.deepcopy(whole)
        *outer, name = place.split(".")
        (state[outer[0]] if outer else state)[name] = value
        write_json(path / "state.json", state)
        with pytest.raises(RunError, match=r"(state\.json|optimizer\.safetensors): "):
            restore(path, model, optimizer)

    each(ODD_STATE, refused)


# --- numbers


@looped("value", [float("nan"), float("inf"), -float("inf")])
@looped("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weights_that_are_not_finite_are_reported(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    model, file = Tied().to(dtype), tmp_path / "model.safetensors"
    with torch.no_grad():
        model.hidden.weight[1, 2] = value
    Weights.of(model).save(file)
    with pytest.warns(TfkitWarning, match=r"model\.safetensors: 1 of 4 tensors contain NaN .* values: hidden\.weight"):
        load_weights(Tied().to(dtype), file)


def test_large_numbers_are_finite() -> None:
    """Their sum is not."""
    large = {"float": torch.full((9, 9), torch.finfo(torch.float32).max), "empty": torch.empty(0)}
    large |= {"half": torch.full((9, 9), 6e4, dtype=torch.float16), "whole": torch.ones(1).int()}
    assert not_finite(large) == [] == not_finite({})
    assert not_finite({**large, "x": torch.tensor([float("inf"), -float("inf")])}) == ["x"]
