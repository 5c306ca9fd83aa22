"""Files: written whole or not at all, with the mode of the umask; logs are opened where they are and nowhere else."""

import os
import re
from pathlib import Path

import pytest
import torch

from tfkit.core.errors import RunError
from tfkit.runs.weights import save_tensors
from tfkit.storage.files import open_log, read_json, remove_leftovers, temporary, whole, write_text


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_modes_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "text", "x")
        save_tensors(tmp_path / "weights", {"a": torch.zeros(2)}, {})
        open_log(tmp_path / "log").close()
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("text", "weights", "log"), mode
    )


def test_a_file_is_in_use_while_it_is_written(tmp_path: Path) -> None:
    from tfkit.storage.files import is_in_use

    with whole(tmp_path / "a") as beside:
        assert is_in_use(beside)
    assert not is_in_use(tmp_path / "a") and not is_in_use(tmp_path / "nowhere") and not is_in_use(tmp_path)


def test_files_are_complete_or_absent(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "file.txt"
    write_text(file, "before")
    with pytest.raises(KeyError), whole(file) as beside:
        beside.write_text("half")
        raise KeyError
    assert file.read_text() == "before" and os.listdir(file.parent) == ["file.txt"]
    with pytest.raises(RunError, match=r"x\.json: cannot be written"):
        write_text(file / "x.json", "{}")
    with pytest.raises(RunError, match=r"x\.json: no such file"):
        read_json(tmp_path / "x.json")


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    for name, why in {
        "fifo": "is not",
        "link": "is not",
        "folder": "Is a dir",
        "folder/..": "Is a dir",
        "\0": "embedded",
    }.items():
        with pytest.raises(RunError, match=rf"cannot be written: .*{why}"), whole(tmp_path / name):
            pytest.fail("the block ran")
    for name in ("", ".", "/"):
        with pytest.raises(RunError, match="Is a directory"), whole(Path(name)):
            pytest.fail("the block ran")
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "fifo").is_fifo()


def test_a_log_goes_on(tmp_path: Path) -> None:
    for line in ("one\n", "two ä\n"):
        with open_log(tmp_path / "log") as file:
            file.write(line)
    assert (tmp_path / "log").read_bytes() == "one\ntwo ä\n".encode()


def test_a_log_is_written_where_it_is_and_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name, why in {
        "link": "is a link",
        "dangling": "is a link",
        "fifo": "cannot be written|is not a regular file",
        "folder": "cannot be written: Is a directory",
        "no/log": "cannot be written: No such file",
    }.items():
        with pytest.raises(RunError, match=rf"{name}: ({why})"):
            open_log(tmp_path / name)
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(RunError, match="fifo: is not a regular file"):
        open_log(tmp_path / "fifo")
    os.close(reader)
    assert outside.read_text() == "mine" and not (tmp_path / "nowhere").exists()


def test_leftovers_of_files_go_when_their_process_is_dead(tmp_path: Path) -> None:
    for name in ("a", "other"):
        temporary(tmp_path / name).write_text("half")
    temporary(tmp_path / "a").symlink_to(tmp_path / "nowhere")
    temporary(tmp_path / "a").mkdir()
    (tmp_path / ".a.tmp").touch()  # a name of somebody else
    with whole(tmp_path / "b") as beside:
        remove_leftovers(tmp_path, ("a", "b"))
        assert beside.exists()
        beside.write_text("whole")
    left = sorted(re.sub(r"[0-9a-f]{16}", "*", name) for name in os.listdir(tmp_path))
    assert left == [".a.*.tmp", ".a.tmp", ".other.*.tmp", "b"] and (tmp_path / "b").read_text() == "whole"
