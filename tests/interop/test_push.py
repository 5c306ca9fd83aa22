"""`tfkit.push` and names on the hub, with a folder in place of the hub."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tfkit
from tests.training.small import small
from tfkit.core.errors import DataError, RunError, UsageError
from tfkit.interop.huggingface.files import folder_of
from tfkit.run import Run
from tfkit.storage.hub import repository

from ..sampling import looped
from .made import command, model_folder

hub = pytest.importorskip("huggingface_hub", reason="the hub needs huggingface_hub, which the extra hf brings")
errors = pytest.importorskip("huggingface_hub.errors")
HERE = "hf://someone/small"
pytestmark = pytest.mark.filterwarnings("ignore:.*absolute paths are replaced")


class Hub:
    """A folder for each repository, by the methods of HfApi that tfkit calls."""

    def __init__(self, root: Path) -> None:
        self.root, self.refuses, self.private = root, [], {}  # type: ignore[var-annotated]

    def repo_exists(self, name: str) -> bool:
        for error in self.refuses:
            raise error
        return (self.root / name).is_dir()

    def create_repo(self, name: str, private: bool) -> None:
        (self.root / name).mkdir(parents=True)
        (self.root / name / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        self.private[name] = private

    def list_repo_files(self, name: str) -> list[str]:
        there = self.root / name
        return [path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()]

    def hf_hub_download(self, name: str, file: str) -> str:
        return str(self.root / name / file)

    def create_commit(self, name: str, operations: list[Any], commit_message: str) -> None:
        for one in operations:
            place = self.root / name / one.path_in_repo
            if isinstance(one, hub.CommitOperationDelete):
                place.unlink()
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            given = one.path_or_fileobj
            place.write_bytes(given if isinstance(given, bytes) else Path(given).read_bytes())

    def snapshot_download(self, name: str, allow_patterns: list[str]) -> str:
        for error in self.refuses:
            raise error
        there, copy = self.root / name, self.root / "cache" / name
        for path in there.rglob("*"):
            inside = path.relative_to(there)
            if path.is_file() and any(inside.match(pattern) for pattern in allow_patterns):
                (copy / inside).parent.mkdir(parents=True, exist_ok=True)
                if not (copy / inside).is_symlink():
                    (copy / inside).symlink_to(path)  # as in the hub's cache
        return str(copy)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "HfApi", lambda: made)
    monkeypatch.setattr(hub, "snapshot_download", made.snapshot_download)
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("push")
    made = tfkit.train(small(folder), folder / "run", progress=False)
    made.evaluate("valid")
    return made


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    return tfkit.load_run(shutil.copytree(trained.folder, tmp_path / "run"))


def test_a_pushed_run_is_loaded_by_its_address(place: Hub, run: Run) -> None:
    assert tfkit.push(run, HERE) == HERE
    assert sorted(place.list_repo_files("someone/small")) == sorted([
        *(".gitattributes", "README.md", "SHA256SUMS", "environment.json", "evaluation.json", "model.safetensors"),
        *("recipe.yaml", "resolved.yaml", "tokenizer.json"),
    ])  # fmt: skip
    found = tfkit.load_run(HERE)
    assert found.blueprint == run.blueprint and found.recipe.name == run.recipe.name
    assert found.generate(["one two"], 3, strategy="greedy") == run.generate(["one two"], 3, strategy="greedy")
    before = (place.root / "someone/small/evaluation.json").read_bytes()
    data = f"data.valid.files={Path(run.recipe.data.valid.files[0])}"  # type: ignore[union-attr]
    assert tfkit.load_run(HERE, sets=[data]).evaluate("valid")["loss"] == run.evaluate("valid")["loss"]
    assert (found.folder / "evaluation.json").read_bytes() == before
    card = (place.root / "someone/small/README.md").read_text()
    assert f'tfkit.load_run("{HERE}")' in card and "library_name: tfkit" in card and "| valid | loss |" in card


def test_the_commands_take_the_address(place: Hub, run: Run, tmp_path: Path) -> None:
    tfkit.push(run, HERE, private=True)
    assert place.private == {"someone/small": True}
    generated = command("generate", HERE, "one two", "--max-new-tokens", "3", "--device", "cpu")
    assert (generated.exit_code, generated.stdout) == (
        0,
        command("generate", run.folder, "one two", "--max-new-tokens", "3").stdout,
    )
    assert "decoder" in command("show", HERE).stdout
    result = command("generate", HERE, "one", "--accept-changes")
    assert (result.exit_code, "on the hub, where no changes are recorded" in result.stderr) == (2, True)


def test_a_folder_is_a_hub(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hub's library; what is not the run's own stays, as on the hub."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("TFKIT_HUB", str(tmp_path / "hub"))
    with pytest.raises(DataError, match=r"TFKIT_HUB=.*hub: no such folder"):
        tfkit.push(run, HERE)
    (tmp_path / "hub").mkdir()
    there = tmp_path / "hub/someone/small"
    assert tfkit.push(run, HERE, private=True) == HERE and there.stat().st_mode & 0o777 == 0o700
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    assert tfkit.load_run(HERE).generate(["one two"], 3) == run.generate(["one two"], 3)
    assert not tfkit.load_run(HERE).as_saved  # evaluation writes nothing there
    assert {path.name: path.read_bytes() for path in there.iterdir()} == before
    assert "decoder" in command("show", HERE).stdout
    assert command("generate", "hf://someone/none", "one").exit_code == 2
    (there / "README.md").write_text("mine"), (there / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="use force=True to replace it"):
        tfkit.push(run, HERE)
    (there / "evaluation.json").unlink(), (there / "labels.json").write_text("[]")
    tfkit.push(run, HERE, force=True)
    assert {path.name: path.read_bytes() for path in there.iterdir()} == before | dict.fromkeys(
        ("README.md", "notes.txt"), b"mine"
    )
    (there / "resolved.yaml").unlink()
    with pytest.raises(UsageError, match="is not empty and is not a tfkit run"):
        tfkit.push(run, HERE, force=True)
    for name in ("a/../b", "../b", "a/b/c", "b"):
        with pytest.raises(UsageError, match="is not the address of a repository"):
            tfkit.push(run, f"hf://{name}")


@pytest.mark.full
def test_an_import_and_a_comparison_read_a_folder_as_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFKIT_HUB", str(tmp_path))
    model_folder(tmp_path / "them/llama", "llama")
    for name in ("them/llama", "hf://them/llama"):
        assert command("import", name, "--out", tmp_path / "run", "--force").exit_code == 0
        assert command("verify", tmp_path / "run", "--against", name).exit_code == 0
    refused = command("import", "them/none")
    assert (refused.exit_code, "none: has no config.json" in refused.stderr) == (2, True), refused.output


@pytest.mark.full
def test_a_run_is_replaced_with_force_only_and_what_is_not_its_own_stays(place: Hub, run: Run) -> None:
    tfkit.push(run, HERE)
    there = place.root / "someone/small"
    (there / "README.md").write_text("mine")
    (there / "notes.txt").write_text("mine")
    (there / "labels.json").write_text("[]")
    with pytest.raises(UsageError, match=r"hf://someone/small: contains a tfkit run; use force=True to replace it"):
        tfkit.push(run, HERE)
    tfkit.push(run, HERE, force=True)
    assert (there / "README.md").read_text() == (there / "notes.txt").read_text() == "mine"
    assert not (there / "labels.json").exists()
    (place.root / "someone/other").mkdir()
    (place.root / "someone/other/config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"hf://someone/other: is not empty and is not a tfkit run"):
        tfkit.push(run, "hf://someone/other", force=True)
    with pytest.raises(RunError, match=r"hf://someone/other: not a tfkit run: resolved\.yaml is missing"):
        tfkit.load_run("hf://someone/other")


def test_a_damaged_run_is_not_pushed_and_a_damaged_copy_is_not_loaded(place: Hub, run: Run) -> None:
    tfkit.push(run, HERE)
    (place.root / "someone/small/tokenizer.json").write_text("{}")
    with pytest.raises(RunError, match=r"tokenizer\.json: has changed since it was written"):
        tfkit.load_run(HERE)
    (run.folder / "resolved.yaml").write_text("tfkit: 1\n")
    with pytest.raises(RunError, match=r"resolved\.yaml: has changed since it was written"):
        tfkit.push(run, "hf://someone/new")
    assert not (place.root / "someone/new").exists()


def response(status: int) -> Any:
    """What the hub's errors hold of its answer."""
    return SimpleNamespace(status_code=status, headers={}, request=None)


def refusal(name: str, status: int, message: str = "x") -> Exception:
    """An error of the hub's, which needs an answer to be made as the library does."""
    kind = getattr(errors, name)
    made: Exception = kind.__new__(kind)
    made.args = (message,)
    made.response = response(status)  # type: ignore[attr-defined]
    return made


REFUSALS = {
    "no such repository": (refusal("RepositoryNotFoundError", 404), "the repository does not exist or is private"),
    "gated": (refusal("GatedRepoError", 403), "is gated: accept its terms"),
    "not logged in": (refusal("HfHubHTTPError", 401), "the hub requires authentication: log in with `hf auth login`"),
    "no token": (errors.LocalTokenNotFoundError("x"), "the hub requires authentication: log in with `hf auth login`"),
    "not allowed": (refusal("HfHubHTTPError", 403), "the token has no write access"),
    "offline": (errors.OfflineModeIsEnabled("x"), "the hub cannot be reached"),
    "no network": (ConnectionError("x"), "the hub cannot be reached"),
    "nothing cached": (
        errors.LocalEntryNotFoundError("x"),
        "the hub cannot be reached, and the cache has no complete",
    ),
    "anything else": (RuntimeError("odd\nmore"), "the request failed: odd"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_the_hub_refuses_is_told_in_words(case: str, place: Hub, run: Run) -> None:
    error, message = REFUSALS[case]
    place.refuses = [error]
    for call in (lambda: tfkit.push(run, HERE), lambda: tfkit.load_run(HERE)):
        with pytest.raises(DataError) as told:
            call()
        assert str(told.value).startswith(f"{HERE}: ") and message in str(told.value)
        assert len(str(told.value).splitlines()) == 1


@looped("name", ["small", "a/b/c", "", "a/", "/b", "a/b.git", "a/../b", "a/b--c", "a/ b", "-a/b", "a/b\n"])
def test_a_malformed_address_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not the address of a repository on the hub; use hf://user/name"):
        repository(f"hf://{name}")


def test_push_takes_an_address_and_a_folder(place: Hub, run: Run) -> None:
    with pytest.raises(UsageError, match=r"'someone/small' is not the address of a repository"):
        tfkit.push(run, "someone/small")
    with pytest.raises(UsageError, match=r"is only a weight file, not a run folder; push the whole folder"):
        tfkit.push(run.weights, HERE)
    assert tfkit.push(run.folder, HERE) == HERE


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: tfkit.push(run, HERE), lambda: tfkit.load_run(HERE), lambda: folder_of("some/model")):
        with pytest.raises(UsageError, match=r'needs? the package huggingface_hub: pip install "huggingface-hub>=1"'):
            call()


def test_a_name_that_the_hub_does_not_give() -> None:
    result = command("import", "nobody/nothing-at-all")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "tfkit: nobody/nothing-at-all is not a local folder, and its download from the hub failed: "
    )
    assert len(result.stderr.splitlines()) == 1


@looped("name", ["a/b/c", "./nowhere", "/nowhere", "~/nowhere", "two words", "-/x", "a//b"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(DataError, match=r"no such folder|download from the hub failed"):
        folder_of(name)


def test_nothing_but_data_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a model is made with transformers, which the extra test brings")
    folder, asked = model_folder(tmp_path / "snapshot", "gpt2"), []

    def download(name: str, allow_patterns: list[str], **options: Any) -> str:
        asked.append((name, allow_patterns, options))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    result = command("import", "some/tiny-gpt2")
    assert result.exit_code == 0, result.output
    assert [name for name, _, _ in asked] == ["some/tiny-gpt2"]
    assert not any(pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in asked[0][1])
    assert "# Imported from some/tiny-gpt2" in (tmp_path / "runs" / "tiny-gpt2" / "recipe.yaml").read_text()
