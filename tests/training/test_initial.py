"""What training starts from: every tensor fits, or is named as one that need not."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from tests.training.small import small, trained
from tfkit.core.errors import RecipeError, RunError, TfkitWarning
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.sections import InitFrom
from tfkit.runs.weights import Weights
from tfkit.storage.checksums import hashes_of, write
from tfkit.training.initial import patterns_for, start_from
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare


class Small(nn.Module):
    """Layers, and a head that may be tied to the table."""

    def __init__(self, layers: int = 2, width: int = 3, tied: bool = False, head: str = "head") -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(4, width), "down": nn.Linear(width, 4)}) for _ in range(layers)
        )
        output = nn.Linear(4, 5, bias=False)
        if tied:
            output.weight = self.table.weight
        self.add_module(head, output)


def saved(folder: Path, model: nn.Module) -> str:
    folder.mkdir(exist_ok=True)
    Weights.of(model).save(folder / "model.safetensors")
    return str(folder)


def start(model: nn.Module, run: str, **named: Any) -> str:
    stream = io.StringIO()
    start_from(
        model, InitFrom(run=run, **{name: tuple(names) for name, names in named.items()}), Reporter(True, stream)
    )
    return stream.getvalue()


def refusal(model: nn.Module, run: str, **named: Any) -> list[str]:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RunError) as error:
        start(model, run, **named)
    assert same(before, model.state_dict())
    return str(error.value).replace(run, "RUN").splitlines()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())


def test_the_same_architecture_is_taken_over_whole(tmp_path: Path) -> None:
    run, model = saved(tmp_path / "run", first := Small()), Small()
    assert "10 tensors kept, 0 new, 0 not used" in start(model, run)
    assert same(first.state_dict(), model.state_dict())


def test_what_differs_is_refused_with_the_line_that_allows_it(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", first := Small(layers=2, head="old"))
    model = Small(layers=3, head="head")
    assert refusal(model, run) == [
        "train.init_from: RUN fits this model only in part: 9 tensors match, these do not",
        "  new in this model: layers.2.up.weight, layers.2.up.bias, layers.2.down.weight, layers.2.down.bias, "
        "head.weight",
        "  only in the run: old.weight",
        "  if intended: init_from: {run: RUN, new: [layers.2.*, head.*], unused: [old.*]}",
    ]
    assert refusal(model, run, new=["layers.2.*", "head.*"])[-1].endswith("new: [layers.2.*, head.*], unused: [old.*]}")
    said = start(model, run, new=["layers.2.*", "head.*"], unused=["old.*"])
    assert "9 tensors kept, 5 new, 1 not used" in said and "layers.2.up.weight" in said
    assert torch.equal(model.layers[1]["down"].weight, first.layers[1]["down"].weight)  # type: ignore[index]


def test_another_shape_is_new(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", Small(width=3))
    lines = refusal(Small(width=6), run)
    assert "layers.0.up.weight (shape [6, 4] here, [3, 4] in the run)" in lines[1]
    allowed = "new: [layers.0.up.*, layers.0.down.weight, layers.1.up.*, layers.1.down.weight]"
    assert lines[2:] == [f"  if intended: init_from: {{run: RUN, {allowed}}}"]
    assert "4 tensors kept, 6 new, 6 not used" in start(Small(width=6), run, new=["layers.*"])


def test_integers_are_no_weights(tmp_path: Path) -> None:
    model = Small()
    weights = Weights.of(model)
    table = weights.tensors["table.weight"].int()
    (tmp_path / "run").mkdir()
    Weights(weights.tensors | {"table.weight": table}, {}).save(tmp_path / "run" / "model.safetensors")
    assert "table.weight (int32 in the run)" in refusal(model, str(tmp_path / "run"))[1]


def test_tied_tensors(tmp_path: Path) -> None:
    run = saved(tmp_path / "tied", tied := Small(tied=True))
    untied = Small()
    start(untied, run)
    assert torch.equal(untied.head.weight, tied.table.weight)  # type: ignore[union-attr,arg-type]
    start(Small(tied=True), run)
    lines = refusal(Small(tied=True), saved(tmp_path / "untied", untied := Small()))
    assert lines[1:] == [
        "  only in the run: head.weight",
        "  if intended: init_from: {run: RUN, unused: [head.*]}",
    ]
    untied.head.weight = nn.Parameter(untied.table.weight.detach().clone())  # type: ignore[union-attr]
    start(Small(tied=True), saved(tmp_path / "untied", untied))


def test_a_name_of_nothing_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", Small())
    assert refusal(Small(), run, new=["heda.*"]) == [
        "train.init_from.new: no tensor of this model is named 'heda.*'. Did you mean 'head'?"
    ]
    assert refusal(Small(), run, unused=["layers.7.*"])[0].startswith(
        "train.init_from.unused: no tensor of RUN is named 'layers.7.*'."
    )


def test_what_is_no_run_or_fits_nowhere(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        start(Small(), str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"empty/model\.safetensors: no such file"):
        start(Small(), str(tmp_path / "empty"))
    with pytest.raises(RunError, match=r"no tensor in .* matches this model by name and shape"):
        start(nn.Linear(2, 2), saved(tmp_path / "run", Small()), new=["*"], unused=["*"])


def test_the_weights_that_it_begins_with_are_checked(tmp_path: Path) -> None:
    model = Small()
    with torch.no_grad():
        model.table.weight[0, 0] = float("nan")
    run = Path(saved(tmp_path / "run", model))
    write(run, hashes_of(run, ["model.safetensors"]))
    with pytest.warns(TfkitWarning, match=r"model\.safetensors: 1 of 10 tensors contain NaN .*: table\.weight"):
        start(Small(), str(run))
    Weights.of(Small()).save(run / "model.safetensors")
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=r"model\.safetensors: has changed since it was written"):
        start(Small(), str(run))


def test_patterns_stand_for_all_names_and_no_others() -> None:
    assert patterns_for(["a.b.c", "a.b.d"], ["a.e"]) == ["a.b.*"]
    assert patterns_for(["a.b", "c"], ["a.c", "d"]) == ["a.b", "c"]
    assert patterns_for(["a.bc.d"], ["a.b.d"]) == ["a.bc.*"]


def load(init_from: Any) -> Any:
    layer = {"norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 8}}
    model = {"type": "decoder", "d_model": 8, "vocab_size": 9, "num_layers": 1, "embedding": "tokens", "layer": layer}
    return load_recipe({"tfkit": 1, "model": model, "train": {"init_from": init_from}}).train


def test_both_forms_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("x").initial == InitFrom(run=str(tmp_path / "x"))
    long = load({"run": "x", "new": ["head.*"]})
    assert long.initial == long.init_from == InitFrom(run=str(tmp_path / "x"), new=("head.*",))
    assert load("none").initial is None
    with pytest.raises(RecipeError, match=r"train\.init_from\.nwe: unknown option\. Did you mean 'new'"):
        load({"run": "x", "nwe": []})
    with pytest.raises(RecipeError, match=r"train\.init_from.*needs.*run"):
        load({"new": ["head.*"]})


def of_depth(folder: Path, layers: int, **train: Any) -> Recipe:
    """The small recipe with that many layers, trained for a step."""
    return small(folder, overrides={"model.num_layers": layers}, steps=1, **train)


@pytest.mark.full
def test_a_larger_vocabulary_keeps_the_rows_of_the_run(tmp_path: Path) -> None:
    for tied, size in ((True, None), (False, None), (False, 20)):  # 20: the run has rows without a token
        model = {"model.head.tied": tied, **({"model.vocab_size": size} if size else {})}
        run = trained(small(tmp_path, model, steps=1), tmp_path / f"run-{tied}-{size}")
        backend = Tokenizer.from_str(run.tokenizer.backend.to_str())
        backend.add_tokens(["seven", "eight"])
        backend.save(str(tmp_path / "bigger.json"))
        bigger = {"data.tokenizer": {"type": "file", "path": str(tmp_path / "bigger.json")}, "model.head.tied": tied}
        stream = io.StringIO()
        task = prepare(small(tmp_path, bigger, init_from=str(run.folder)), Reporter(True, stream))
        old, new = run.model.state_dict(), task.model.state_dict()
        for name, table in old.items():
            assert torch.equal(new[name][: len(table)], table[: len(new[name])]), name
        name = "decoder.embedding.tokens.weight"
        if size is None:
            drawn = prepare(small(tmp_path, bigger), Reporter(False)).model.state_dict()
            assert torch.equal(new[name][-2:], drawn[name][-2:])
            assert f"{name}: {len(old[name])} rows kept, 2 new" in stream.getvalue()
        named = small(tmp_path, bigger, init_from={"run": str(run.folder), "new": [name, "head.*"][: 2 - tied]})
        assert not torch.equal(prepare(named, Reporter(False)).model.state_dict()[name][:5], old[name][:5])
        backend = Tokenizer.from_str(backend.to_str().replace("one", "won"))
        backend.save(str(tmp_path / "bigger.json"))
        with pytest.raises(RunError, match="has another tokenizer, so its embeddings belong to other tokens"):
            prepare(small(tmp_path, bigger, init_from=str(run.folder)), Reporter(False))


@pytest.mark.full
def test_layers_start_from_other_layers(tmp_path: Path) -> None:
    run = trained(of_depth(tmp_path, 3), tmp_path / "deep")
    deep = run.model.state_dict()
    settings: dict[str, Any] = {"run": str(run.folder), "layers": {0: 2, 1: 0}}
    task = prepare(of_depth(tmp_path, 2, init_from=settings), Reporter(False))
    assert {name.split(".")[2] for name in task.model.state_dict() if ".layers." in name} == {"0", "1"}
    for name, tensor in task.model.state_dict().items():
        there = (
            name.replace("layers.0.", "layers.2.") if ".layers.0." in name else name.replace("layers.1.", "layers.0.")
        )
        assert torch.equal(tensor, deep[there]), name


@pytest.mark.full
def test_a_layer_that_starts_from_none_is_named(tmp_path: Path) -> None:
    run = trained(of_depth(tmp_path, 2), tmp_path / "deep")
    settings: dict[str, Any] = {"run": str(run.folder), "layers": {0: 1}}
    with pytest.raises(RunError, match=r"layers: \{.?0.?: 1\}, new: \[decoder\.layers\.1\.\*\]"):
        prepare(of_depth(tmp_path, 2, init_from=settings), Reporter(False))
    settings["new"] = ["decoder.layers.1.*"]
    model = prepare(of_depth(tmp_path, 2, init_from=settings), Reporter(False)).model.state_dict()
    name = "decoder.layers.0.feedforward.up.weight"
    assert torch.equal(model[name], run.model.state_dict()[name.replace("0", "1")])


@pytest.mark.full
def test_layers_of_either_side_that_do_not_exist(tmp_path: Path) -> None:
    run = trained(of_depth(tmp_path, 2), tmp_path / "deep")
    for layers, said in (
        ({2: 0}, "train.init_from.layers.2: no layer 2: the decoder has layers 0 to 1"),
        ({"encoder": {0: 0}}, "train.init_from.layers.encoder.0: the model has no encoder; its stack is the decoder"),
        ({0: 7}, f"train.init_from.layers.0: {run.folder} has no layer 7: its decoder has layers 0 to 1"),
        ({"first": 0}, "expected a mapping of layer numbers from 0"),
        ({0: "last"}, "expected a mapping of layer numbers from 0"),
        ([0, 1], "expected a mapping of layer numbers"),
    ):
        with pytest.raises(RecipeError) as error:
            prepare(of_depth(tmp_path, 2, init_from={"run": str(run.folder), "layers": layers}), Reporter(False))
        assert said in str(error.value), layers


@pytest.mark.full
def test_a_saved_recipe_has_the_layers(tmp_path: Path) -> None:
    run = trained(of_depth(tmp_path, 2), tmp_path / "deep")
    settings = {"run": str(run.folder), "layers": {0: 1, 1: 0}}
    other = trained(of_depth(tmp_path, 2, init_from=settings), tmp_path / "other")
    initial = load_recipe(other.folder / "resolved.yaml").train.initial
    assert initial is not None and initial.layers == {"0": 1, "1": 0}
