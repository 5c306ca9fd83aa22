"""SHA256SUMS: damage is named, and a file that changes in a complete folder is valid at every moment."""

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sampling import each
from tfkit.core.errors import RunError
from tfkit.storage import checksums
from tfkit.storage.checksums import SUMS, changing, check, checking, hashes_of, read_sums, write, write_text


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evaluation.json").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    write(tmp_path, hashes_of(tmp_path, ["b.txt", "evaluation.json", "missing"]))
    return tmp_path


def test_sha256sum_reads_the_manifest(folder: Path) -> None:
    assert (folder / SUMS).read_text() == f"{sha('two')}  b.txt\n{sha('one')}  evaluation.json\n"
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "-c", "--strict", SUMS], cwd=folder, capture_output=True).returncode == 0


def test_changes_are_named(folder: Path) -> None:
    check(folder, "b.txt")
    (folder / "b.txt").write_text("twp")
    with pytest.raises(RunError, match=r"b\.txt: has changed since it was written .*SHA256SUMS.*replaced; do this"):
        check(folder, "b.txt", "; do this")
    (folder / "b.txt").unlink()
    with pytest.raises(RunError, match=r"b\.txt: is missing, but listed in SHA256SUMS"):
        check(folder, "b.txt")
    os.mkfifo(folder / "b.txt")
    with pytest.raises(RunError, match=r"b\.txt: is not a regular file"):
        check(folder, "b.txt")
    (folder / "c.txt").write_text("new")
    with pytest.raises(RunError, match=r"c\.txt: not listed in SHA256SUMS"):
        check(folder, "c.txt")
    check(folder, "nothing.txt")
    check(folder, "evaluation.json")


def test_a_folder_without_a_manifest_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    check(tmp_path, "a.txt")
    write_text(tmp_path / "a.txt", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and read_sums(tmp_path) is None


def test_damaged_manifests_are_named(folder: Path) -> None:
    whole = (folder / SUMS).read_text()

    def damaged(line: str) -> None:
        (folder / SUMS).write_text(whole + line + "\n")
        with pytest.raises(RunError, match=r"SHA256SUMS:3: expected a SHA-256 and a file name"):
            check(folder, "b.txt")

    each(["no hash", f"{'A' * 64}  a.txt", f"{'a' * 63}  a.txt", f"{'a' * 64} a.txt", "\x00"], damaged)
    (folder / SUMS).write_text(whole[:-1])
    with pytest.raises(RunError, match=r"SHA256SUMS: truncated last line"):
        check(folder, "b.txt")
    (folder / SUMS).write_text(whole.replace("evaluation", "evaluatiom"))
    with pytest.raises(RunError, match=r"evaluation\.json: not listed"):
        check(folder, "evaluation.json")


def test_a_file_is_valid_while_it_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each rename, so that a process may be killed in between."""
    replace, seen = os.replace, []

    def observed(source: Path, target: Path) -> None:
        check(folder, "evaluation.json")
        replace(source, target)
        check(folder, "evaluation.json")
        seen.append(Path(target).name)

    monkeypatch.setattr("os.replace", observed)
    write_text(folder / "evaluation.json", "new")
    assert seen == [SUMS, "evaluation.json", SUMS]
    assert read_sums(folder) == {"b.txt": (sha("two"),), "evaluation.json": (sha("new"),)}
    with changing(folder, "b.txt"):
        (folder / "b.txt").unlink()
    assert read_sums(folder) == {"evaluation.json": (sha("new"),)}


def test_two_hashes_of_an_earlier_version_are_valid(folder: Path) -> None:
    (folder / SUMS).write_text(f"{sha('zero')}  b.txt\n{sha('two')}  b.txt\n")
    check(folder, "b.txt")
    write_text(folder / "b.txt", "zero")
    assert read_sums(folder) == {"b.txt": (sha("zero"),)}


def changed_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Apply a change while a file is hashed for the first time."""
    hash_of = checksums.sha256_of

    def late(path: Path) -> str:
        monkeypatch.setattr(checksums, "sha256_of", hash_of)
        found = hash_of(path)
        change()
        return found

    monkeypatch.setattr(checksums, "sha256_of", late)


def test_a_reader_and_a_writer_at_once_are_fine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed_meanwhile(folder, monkeypatch, lambda: write_text(folder / "evaluation.json", "three"))
    check(folder, "evaluation.json")
    changed_meanwhile(folder, monkeypatch, lambda: (folder / "evaluation.json").write_text("five"))
    write_text(folder / "evaluation.json", "four")
    check(folder, "evaluation.json")


def test_two_writers_of_one_file_leave_it_valid(folder: Path) -> None:
    def rewrite(number: int) -> None:
        for version in range(6):
            write_text(folder / "evaluation.json", f"{number} {version}")

    threads = [threading.Thread(target=rewrite, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(folder, "evaluation.json")
    check(folder, "b.txt")


def test_a_changed_file_is_reported_before_its_consequences(folder: Path) -> None:
    with checking(folder, "b.txt"):
        pass
    with pytest.raises(RunError, match="of another kind"), checking(folder, "b.txt"):
        raise RunError("of another kind")
    (folder / "b.txt").write_text("changed")
    for consequence in (False, True):
        with pytest.raises(RunError, match="has changed"), checking(folder, "b.txt"):
            if consequence:
                raise RunError("of another kind")
