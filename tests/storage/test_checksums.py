"""SHA256SUMS: right at every moment, for every reader, and nothing is written where nobody began a record."""

import hashlib
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tfkit.core.errors import RunError
from tfkit.storage import checksums
from tfkit.storage.checksums import (
    SUMS,
    add,
    begin,
    check,
    checking,
    forget,
    read_sums,
    recorded,
    renew,
    settle,
    write_text,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    begin(tmp_path, ["b.txt", "a.txt"])
    return tmp_path


def test_the_format_is_that_of_sha256sum(folder: Path) -> None:
    assert (folder / SUMS).read_text() == f"{sha('one')}  a.txt\n{sha('two')}  b.txt\n"
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "-c", "--strict", SUMS], cwd=folder, capture_output=True).returncode == 0


def test_what_has_changed_is_named(folder: Path) -> None:
    check(folder, "a.txt")
    (folder / "a.txt").write_text("onf")
    with pytest.raises(RunError, match=r"a\.txt: has changed since it was written .*SHA256SUMS.*replaced; do this"):
        check(folder, "a.txt", "; do this")
    check(folder, "b.txt")
    (folder / "b.txt").unlink()
    with pytest.raises(RunError, match=r"b\.txt: is missing, but listed in SHA256SUMS"):
        check(folder, "b.txt")
    (folder / "c.txt").write_text("new")
    with pytest.raises(RunError, match=r"c\.txt: not listed in SHA256SUMS"):
        check(folder, "c.txt")
    check(folder, "nothing.txt")  # neither there nor listed


def test_without_a_record_everything_is_believed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    check(tmp_path, "a.txt")
    write_text(tmp_path / "a.txt", "two")
    add(tmp_path, ["a.txt"])
    forget(tmp_path, ["a.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("line", ["no hash", f"{'A' * 64}  a.txt", f"{'a' * 63}  a.txt", f"{'a' * 64} a.txt", "\x00"])
def test_a_line_that_is_none_is_told_with_its_place(folder: Path, line: str) -> None:
    with (folder / SUMS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match=r"SHA256SUMS:3: expected a SHA-256 and a file name"):
        check(folder, "a.txt")
    assert renew(folder, ["a.txt"]) == ["a.txt"]
    check(folder, "a.txt")


def test_a_record_that_was_cut_is_told(folder: Path) -> None:
    (folder / SUMS).write_text((folder / SUMS).read_text()[:-1])
    with pytest.raises(RunError, match=r"SHA256SUMS: truncated last line"):
        check(folder, "a.txt")


def test_files_are_on_record_as_soon_as_they_are_there(folder: Path) -> None:
    write_text(folder / "a.txt", "changed")
    write_text(folder / "c.txt", "new")
    assert read_sums(folder) == {"a.txt": (sha("changed"),), "b.txt": (sha("two"),), "c.txt": (sha("new"),)}
    with pytest.raises(KeyError), recorded(folder / "a.txt") as beside:
        beside.write_text("half")
        raise KeyError
    check(folder, "a.txt")
    assert sorted(path.name for path in folder.iterdir()) == [SUMS, "a.txt", "b.txt", "c.txt"]


def test_a_file_is_right_before_and_after_it_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is renamed, and whenever a process dies in between."""
    replace, seen = os.replace, []

    def observed(source: Path, target: Path) -> None:
        for when in range(2):
            check(folder, "a.txt")
            seen.append((Path(target).name, when, read_sums(folder)))
            if not when:
                replace(source, target)

    monkeypatch.setattr("os.replace", observed)
    write_text(folder / "a.txt", "new")
    assert [name for name, when, _ in seen if when] == [SUMS, "a.txt", SUMS]
    both = (sha("one"), sha("new"))
    assert [sums["a.txt"] for _, when, sums in seen if when and sums] == [both, both, (sha("new"),)]


def test_a_record_left_with_two_hashes_is_settled_by_the_next_write(folder: Path) -> None:
    (folder / SUMS).write_text(f"{sha('zero')}  a.txt\n{sha('one')}  a.txt\n")
    check(folder, "a.txt")
    write_text(folder / "a.txt", "one")
    assert read_sums(folder) == {"a.txt": (sha("one"),)}


def test_adding_and_forgetting(folder: Path) -> None:
    (folder / "log").write_text("1")
    add(folder, ["log", "a.txt", "nothing"])
    (folder / "log").write_text("12")
    add(folder, ["log"])  # is listed: whoever changes it says so
    with pytest.raises(RunError, match="has changed"):
        check(folder, "log")
    forget(folder, ["log", "nothing"])
    assert read_sums(folder) == {"a.txt": (sha("one"),), "b.txt": (sha("two"),)}


def test_renewing_tells_what_was_otherwise(folder: Path) -> None:
    assert renew(folder, ["a.txt", "b.txt"]) == []
    (folder / "a.txt").write_text("other")
    (folder / "c.txt").write_text("new")
    (folder / "b.txt").unlink()
    assert renew(folder, ["a.txt", "c.txt"]) == ["a.txt", "b.txt", "c.txt"]
    assert read_sums(folder) == {"a.txt": (sha("other"),), "c.txt": (sha("new"),)}


def test_a_reader_beside_a_writer_looks_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that it read is of the file before; the file that it hashes is the next one."""
    hash_of, versions = checksums.sha256_of, iter(["three", "four"])

    def late(path: Path) -> str:
        version = next(versions, None)
        if version is not None:
            monkeypatch.setattr(checksums, "sha256_of", hash_of)
            write_text(folder / "a.txt", version)
            monkeypatch.setattr(checksums, "sha256_of", late)
        return hash_of(path)

    monkeypatch.setattr(checksums, "sha256_of", late)
    check(folder, "a.txt")
    assert (folder / "a.txt").read_text() == "four"


def test_writers_in_threads_lose_no_line(folder: Path) -> None:
    def write(number: int) -> None:
        for version in range(6):
            write_text(folder / f"{number}.txt", f"{number} {version}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sums = read_sums(folder)
    assert sums is not None
    assert {name: found for name, found in sums.items() if name[0].isdigit()} == {
        f"{number}.txt": (sha(f"{number} 5"),) for number in range(4)
    }


def test_what_has_changed_is_told_before_what_follows_from_it(folder: Path) -> None:
    with checking(folder, "a.txt"):
        pass
    with pytest.raises(RunError, match="of another kind"), checking(folder, "a.txt"):
        raise RunError("of another kind")
    (folder / "a.txt").write_text("changed")
    with pytest.raises(RunError, match="has changed"), checking(folder, "a.txt"):
        raise RunError("of another kind")
    with pytest.raises(RunError, match="has changed"), checking(folder, "a.txt"):
        pass


def test_only_regular_files_are_hashed(folder: Path) -> None:
    (folder / "a.txt").unlink()
    os.mkfifo(folder / "a.txt")
    with pytest.raises(RunError, match=r"a\.txt: is not a regular file"):
        check(folder, "a.txt")


def test_what_is_written_while_others_are_hashed_stays_on_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_of = checksums.sha256_of

    def late(path: Path) -> str:
        found = hash_of(path)
        if path.name == "b.txt":
            monkeypatch.setattr(checksums, "sha256_of", hash_of)
            write_text(folder / "a.txt", "new")
        return found

    monkeypatch.setattr(checksums, "sha256_of", late)
    assert renew(folder, ["a.txt", "b.txt"]) == []
    check(folder, "a.txt")


def test_settling_leaves_what_is_there(folder: Path) -> None:
    (folder / SUMS).write_text(f"{sha('zero')}  a.txt\n{sha('one')}  a.txt\n{sha('x')}  b.txt\n{sha('y')}  b.txt\n")
    settle(folder)
    assert read_sums(folder) == {"a.txt": (sha("one"),), "b.txt": (sha("x"), sha("y"))}


def test_a_writer_that_was_stopped_holds_nobody_up_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_PATIENCE", 0.05)
    with checksums._exclusive(folder):
        write_text(folder / "a.txt", "new")
    check(folder, "a.txt")
