"""Token shards are made once, opened whole or not at all, and made by one process at a time."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kills import kills, shares
from tfkit.core.errors import DataError, ExampleError, RunError
from tfkit.data.encoder import Stream, TokenIds, encoded
from tfkit.data.shards import ShardSource, remembered, shard
from tfkit.data.tokenizer import Character, Tokenizer

LINES = ["one two", "three", "four five six", "", "seven"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens" / "key"


def letters(unknown: str | None = "<unk>") -> Tokenizer:
    config = Character.Config.model_validate({"special_tokens": {"unknown": unknown}})
    fitted: Tokenizer = config.build().fit(["abcdefghijklmnopqrstuvwxyz "])
    return fitted


def source(lines: list[str] = LINES, tokenizer: Tokenizer | None = None, processes: int = 1) -> ShardSource:
    return ShardSource(
        "a.txt", 100, lambda: ({"text": line} for line in lines), {"text": tokenizer or letters()}, processes
    )


def unread() -> ShardSource:
    def examples() -> Iterator[dict[str, str]]:
        raise AssertionError("the corpus is read again")

    return ShardSource("a.txt", 100, examples, {"text": letters()})


def listed(texts: TokenIds) -> list[list[int]]:
    return [texts[number].tolist() for number in range(len(texts))]


def test_a_shard_is_made_once_and_mapped() -> None:
    wanted = letters().encode_batch(LINES)
    assert listed(shard("key", source())["text"]) == wanted
    again = shard("key", unread())["text"]
    assert listed(again) == wanted and again.lengths.tolist() == [len(ids) for ids in wanted]
    assert isinstance(again.tokens, np.memmap) and again.tokens.dtype == np.uint16


@pytest.mark.parametrize("name", ["text.tokens", "text.offsets", "shard.json"])
@pytest.mark.parametrize("change", ["cut", "edited", "gone", "emptied"])
def test_a_damaged_shard_is_reported_and_made_again(
    cache: Path, name: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = listed(shard("key", source())["text"])
    file, data = cache / name, (cache / name).read_bytes()
    if change == "gone":
        file.unlink()
    else:
        changed = {"cut": data[:-2], "edited": data[:10] + b"\7" + data[11:], "emptied": b""}
        file.write_bytes(changed[change])
    with caplog.at_level(logging.WARNING, "tfkit"):
        assert listed(shard("key", source())["text"]) == before
    assert ("writing the token shard again" in caplog.text) == ((name, change) != ("shard.json", "gone"))
    assert file.read_bytes() == data and listed(shard("key", unread())["text"]) == before


@pytest.mark.parametrize("change", ["moved", "dtype"])
def test_a_shard_of_other_texts_is_not_opened(cache: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    other = source(LINES[::-1])
    wanted = [listed(shard(key, one)["text"]) for key, one in (("key", source()), ("other", other))]
    if change == "moved":
        for old, new in ((cache, "x"), (cache.with_name("other"), "key"), (cache.with_name("x"), "other")):
            old.rename(cache.with_name(new))
    else:
        (cache / "shard.json").write_text((cache / "shard.json").read_text().replace("uint16", "int16"))
    assert [listed(shard(key, one)["text"]) for key, one in (("key", source()), ("other", other))] == wanted
    count = caplog.text.count("belongs to other texts, or has changed since it was written; writing the token shard")
    assert count == (2 if change == "moved" else 1)


@pytest.mark.full
@shares(5)
def test_a_killed_process_leaves_nothing_that_is_taken_as_whole(cache: Path, share: int) -> None:
    wanted, ended = letters().encode_batch(LINES), 0
    for _ in kills(lambda: shard("key", source()), share):
        ended += 1
        assert listed(shard("key", source())["text"]) == wanted
        names = {path.name for path in cache.iterdir()} - {".lock"}  # killed when the shard was complete
        assert names == {"shard.json", "text.offsets", "text.tokens"}
        for path in cache.iterdir():
            path.unlink()
    assert ended > 10 // share


@pytest.mark.full
def test_processes_encode_as_one_does() -> None:
    batches = [[f"{chr(97 + number)}{line}" for line in LINES] for number in range(12)]
    alone = [listed(texts) for texts in encoded(batches, letters(), 1)]
    assert [listed(texts) for texts in encoded(batches, letters(), 3)] == alone
    assert alone[1] == letters().encode_batch(batches[1])


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, 2])
def test_a_text_that_cannot_be_encoded_is_named(processes: int, cache: Path) -> None:
    with pytest.raises(ExampleError) as caught:
        shard("key", source(["one", "two", "thr3e"], letters(unknown=None), processes))
    assert caught.value.number == 3 and not (cache / "shard.json").exists()
    with pytest.raises(DataError, match=r"a\.txt: contains no example"):
        shard("key", source([]))


WAITING = """
import sys, time
from tests.data.test_shards import LINES, letters, listed, source
from tfkit.data.shards import ShardSource, shard

def slow():
    print("made", flush=True)
    for line in LINES:
        time.sleep(0.2)
        yield {"text": line}

print(listed(shard("key", ShardSource("a.txt", 100, slow, {"text": letters()}))["text"]), flush=True)
"""


@pytest.mark.full
def test_one_of_several_processes_makes_it() -> None:
    started = [subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = [process.communicate(timeout=120)[0].splitlines() for process in started]
    assert sorted(map(len, found)) == [1, 1, 2]
    assert {lines[-1] for lines in found} == {str(letters().encode_batch(LINES))}


@pytest.mark.full
def test_the_next_process_goes_on_for_one_that_is_killed(cache: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "made\n"
        os.kill(process.pid, signal.SIGKILL)
    assert not (cache / "shard.json").exists()
    began = time.monotonic()
    assert listed(shard("key", source())["text"]) == letters().encode_batch(LINES)
    assert time.monotonic() - began < 10


def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match="cannot be written: Not a directory; set TFKIT_CACHE to a writable folder"):
        shard("key", source())


def test_a_text_is_remembered_until_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = iter(["first", "second"])
    assert [remembered("kind", "key", lambda: next(made)) for _ in range(2)] == ["first"] * 2
    file = tmp_path / "cache" / "kind" / "key.json"
    file.write_text(file.read_text().replace("first", "fist"))
    assert remembered("kind", "key", lambda: next(made)) == "second"
    assert "has changed since it was written" in caplog.text
    file.rename(file.with_name("other.json"))
    assert remembered("kind", "other", lambda: "third") == "third"


def test_a_stream_joins_texts_wherever_it_is_cut() -> None:
    texts = TokenIds.of([[], [1, 2, 3], [], [4], [5, 6], []])
    for end, wanted in ((None, [1, 2, 3, 4, 5, 6]), (9, [1, 2, 3, 9, 4, 9, 5, 6])):
        stream = Stream(texts, end)
        assert len(stream) == len(wanted)
        for start in range(len(wanted)):
            for stop in range(start + 1, len(wanted) + 3):
                assert stream.between(start, stop).tolist() == wanted[start:stop]
