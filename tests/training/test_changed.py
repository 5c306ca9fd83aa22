"""A run is resumed with the data that it started with, and its environment keeps how it started."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.training.small import RECIPE, outcome, small, trained
from tfkit.core.errors import RecipeError, RunError
from tfkit.core.options import RecipePath
from tfkit.data.corpus import Corpus, Example, LabelledText, ParallelText, Phrases, TextCorpus
from tfkit.recipe.load import load_recipe
from tfkit.run import train
from tfkit.runs import claim, history
from tfkit.runs.record import differences, file_hashes

TWO = {"steps": 2, "metrics": []}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained(small(tmp_path, **TWO), tmp_path / "run").folder


def known(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "environment.json").read_text()))


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_changed_file_is_named_and_may_be_accepted(tmp_path: Path, run: Path, split: str) -> None:
    file = tmp_path / f"{split}.txt"
    file.write_text(file.read_text().replace("three", "eerht"))  # of the same length
    before = {path.name: path.read_bytes() for path in run.glob("*.*")}
    with pytest.raises(RunError, match=r"run: cannot be resumed with changed data; to resume anyway, add") as error:
        trained(small(tmp_path), run, resume=True)
    assert str(error.value).splitlines()[1:] == [f"  {file} has changed since this run started (data.{split})"]
    assert "--set train.changed_data=accept" in str(error.value)
    assert {path.name: path.read_bytes() for path in run.glob("*.*")} == before
    trained(small(tmp_path, changed_data="accept"), run, resume=True)
    assert f"{file} has changed since this run started" in (run / "train.log").read_text()
    assert known(run)["data"] == file_hashes(small(tmp_path).data)  # type: ignore[arg-type]
    trained(small(tmp_path, steps=4), run, resume=True)  # what is on record now is accepted
    best = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][2:]
    checkpoint = json.loads((run / "checkpoints" / "step-00000004" / "state.json").read_text())["progress"]
    if split == "valid":  # the best of before was measured on other examples
        assert checkpoint["best"] == min(line["valid.loss"] for line in best)


@pytest.mark.full
@pytest.mark.parametrize("options", [{"steps": 2}, {"steps": None, "epochs": 1}])
def test_a_run_beyond_the_last_step_is_refused_untouched(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(small(tmp_path, steps=4, metrics=[]), tmp_path / "run").folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    beyond = (
        r"epochs: 1 \(3 steps\); increase train\.epochs" if "epochs" in options else r"steps: 2; set train\.steps to 4"
    )
    with pytest.raises(RunError, match=rf"run: is at step 4, beyond train\.{beyond}.*, or choose another --out"):
        trained(small(tmp_path, metrics=[], **options), folder, resume=True)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    train(small(tmp_path, steps=4, metrics=[]), folder, resume=True)
    assert "already finished" in capsys.readouterr().out


def test_a_key_that_one_version_lacks_is_no_change_if_it_is_off() -> None:
    for value, lines in (
        ("none", []),
        (None, []),
        (False, []),
        (2, ["train.pieces: 2 in the run, nothing in the recipe"]),
    ):
        assert list(claim.differences({"pieces": value}, {}, "train")) == lines


@pytest.mark.full
def test_changed_keys_are_named_at_each_start(tmp_path: Path, run: Path) -> None:
    def log(**options: Any) -> str:
        text = (run / "train.log").read_text()
        trained(small(tmp_path, **{**TWO, "steps": 3, **options}), run, resume=True)
        return (run / "train.log").read_text().removeprefix(text)

    rate = {"schedule": {"type": "constant", "lr": 0.5}}
    steps = "train.steps: 2 in the run, 3 in the recipe"
    assert f"changed since the last start: {steps}; train.schedule.lr: 0.05 in the run, 0.5 in the recipe\n" in log(
        **rate
    )
    many = {"steps": 4, "precision": "bfloat16", "samples": 0, "keep": "last", "clip_norm": 1, "patience": 9}
    told = log(**many, **rate)
    assert told.count("in the recipe") == 5 and " and 1 more\n" in told
    assert "changed since" not in log(**{**many, "steps": 4}, **rate)  # is finished
    assert "last start: train.steps: 4 in the run, 5 in the recipe\n" in log(**{**many, "steps": 5}, **rate)


@pytest.mark.full
def test_unchanged_data_are_resumed(tmp_path: Path, run: Path) -> None:
    trained(small(tmp_path, **TWO, keep="last"), run, resume=True)
    said = f"resuming {run} from step 2: training has ended (steps), so no step is trained"
    assert said in (run / "train.log").read_text()
    (tmp_path / "train.txt").write_text((tmp_path / "train.txt").read_text())
    trained(small(tmp_path), run, resume=True)


@pytest.mark.full
def test_a_run_that_was_moved_with_its_data_goes_on(tmp_path: Path) -> None:
    """With its test split, of which training keeps no hash."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()

    def loaded(name: str, steps: int) -> Any:
        recipe = small(tmp_path / name, steps=steps, metrics=[]).root.plain()
        test = {"type": "text", "files": str(tmp_path / name / "valid.txt")}
        return load_recipe({**recipe, "data": {**recipe["data"], "test": test}})

    trained(loaded("here", 2), tmp_path / "here" / "run")
    shutil.move(tmp_path / "here" / "run", tmp_path / "there" / "run")
    run = trained(loaded("there", 4), tmp_path / "there" / "run", resume=True).folder
    assert str(tmp_path / "here") not in (run / "resolved.yaml").read_text()
    assert list(known(run)["data"]["train"]) == [str(tmp_path / "there" / "train.txt")]
    (tmp_path / "here" / "train.txt").write_text("six six six\n" * 4)
    before = (run / "environment.json").read_text()
    with pytest.raises(RunError, match=r"was started from another recipe[^\n]*\n  data\.train\.files: "):
        trained(loaded("here", 6), run, resume=True)
    assert (run / "environment.json").read_text() == before


def test_a_file_in_two_splits_is_reported_once(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    both = load_recipe(
        loaded.root.plain(), overrides={"data.valid.files": str(tmp_path / "train.txt"), "train.steps": 1}
    )
    trained(both, tmp_path / "run")
    (tmp_path / "train.txt").write_text("one two\n" * 5)
    with pytest.raises(RunError) as error:
        trained(load_recipe(both.root.plain(), overrides={"train.steps": 2}), tmp_path / "run", resume=True)
    assert str(error.value).splitlines()[1:] == [
        f"  {tmp_path / 'train.txt'} has changed since this run started (data.train, data.valid)"
    ]


@pytest.mark.full
def test_a_tokenizer_file_counts_too(tmp_path: Path, run: Path) -> None:
    shutil.copy(run / "tokenizer.json", tmp_path / "tokens.json")
    overrides = {"data.tokenizer": {"type": "file", "path": str(tmp_path / "tokens.json")}}
    loaded = load_recipe(small(tmp_path, **TWO).root.plain(), overrides=overrides)
    trained(loaded, tmp_path / "other")
    (tmp_path / "tokens.json").write_text((tmp_path / "tokens.json").read_text() + "\n")
    with pytest.raises(RunError, match=r"tokens\.json has changed since this run started \(data\.tokenizer\)"):
        trained(load_recipe(loaded.root.plain(), overrides={"train.steps": 3}), tmp_path / "other", resume=True)


def test_every_shipped_corpus_lists_its_files(tmp_path: Path) -> None:
    data = small(tmp_path).data
    assert data is not None
    assert data.train.files_read() == (str(tmp_path / "train.txt"),)
    assert ParallelText.Config(source="a", target="b").files_read() == ("a", "b")
    assert LabelledText.Config(file="a").files_read() == ("a",)
    assert TextCorpus.Config(files=["a", "b", "a"]).files_read() == ("a", "b")
    assert Phrases.Config().files_read() == ()


TEXTS = ["one two", "three four"]


@pytest.fixture
def own() -> Iterator[None]:
    @tfkit.register("corpus", "own")
    class Own(Corpus):
        """Texts that no file holds, or a folder of them."""

        class Config(Corpus.Config):
            folder: RecipePath | None = None

        fields = ("text",)

        def read(self) -> Iterator[Example]:
            for text in TEXTS:
                yield {"text": text}

    yield
    del Own


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"folder": "."}])
def test_examples_without_files_are_hashed(
    tmp_path: Path, own: None, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(steps: int) -> Any:
        data = {**RECIPE["data"], "train": {"type": "own", **options}}
        return load_recipe({**RECIPE, "data": data, "train": {**RECIPE["train"], "steps": steps, "metrics": []}})

    folder = trained(loaded(1), tmp_path / "run").folder
    assert known(folder)["data"]["train"].keys() == {"examples"}
    trained(loaded(2), folder, resume=True)
    monkeypatch.setitem(globals(), "TEXTS", ["two one", "three four"])
    with pytest.raises(RunError, match=r"the examples of data\.train have changed since this run started"):
        trained(loaded(3), folder, resume=True)


@pytest.mark.full
def test_an_older_run_has_no_record_and_gets_one(tmp_path: Path, run: Path) -> None:
    for odd in (None, [], {"train": 5}, {"train": {"x": 1}}):
        (run / "SHA256SUMS").unlink(missing_ok=True)
        environment = {name: value for name, value in known(run).items() if name != "data"}
        (run / "environment.json").write_text(json.dumps(environment | ({} if odd is None else {"data": odd})))
        trained(small(tmp_path, **TWO), run, resume=True)
        text = (run / "environment.json").read_text()
        (run / "environment.json").write_text(text.replace('"finished"', '"x"'))
    (run / "SHA256SUMS").unlink()
    trained(small(tmp_path), run, resume=True)
    assert known(run)["data"].keys() == {"train", "valid"}
    assert differences({}, known(run)["data"]) == {}


@pytest.mark.full
def test_a_resume_keeps_how_the_run_began(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = known(run)
    monkeypatch.setattr(history, "PACKAGES", ("torch", "numpy"))
    monkeypatch.setattr(history, "_version", lambda name: "9.9" if name == "torch" else before[name])
    monkeypatch.setattr(history, "describe", lambda _: "a GPU")
    trained(small(tmp_path), run, resume=True)
    monkeypatch.undo()
    trained(small(tmp_path, steps=4), run, resume=True)
    after = known(run)
    first, second = after.pop("resumed")
    assert {**after, "finished": None} == {**before, "finished": None}
    assert first.pop("started") >= before["started"] and second.pop("started") >= before["started"]
    threads = before["threads"]
    assert first == {"step": 2, "device": "a GPU", "threads": threads, "torch": "9.9"}
    assert second == {"step": 3, "device": before["device"], "threads": threads}


@pytest.mark.full
def test_accepting_unchanged_data_is_a_no_op(tmp_path: Path, run: Path) -> None:
    straight = trained(small(tmp_path), tmp_path / "straight").folder
    assert outcome(trained(small(tmp_path, changed_data="accept"), run, resume=True).folder) == outcome(straight)
    with pytest.raises(RecipeError, match=r"train\.changed_data.*'refuse' or 'accept'"):
        small(tmp_path, changed_data="maybe")
