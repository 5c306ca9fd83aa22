"""A config.json whose values are not what they should be is told of, whatever its family; nothing else comes of it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.parity import Row
from tests.interop.rows import ROWS
from tests.sampling import each, looped
from tfkit.core.errors import DataError, TfkitError
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.settings import NEEDED
from tfkit.interop.huggingface.weights import Source

transformers = pytest.importorskip("transformers")

ABSENT = "absent"
WRONG = (ABSENT, None, "x", "", -1, 0, 7, 10**9, 2**70, 1.5, 1e39, True, [], [1, 2], {}, {"a": 1}, ["full_attention"])
ABOUT = {"transformers_version", "architectures", "dtype", "id2label", "label2id"}  # what no shape comes of
FIRST = {row.family: row for row in reversed(ROWS)}
QUICK = ("llama", "t5", "bert", "deepseek_v3")


def config_of(row: Row) -> dict[str, Any]:
    config = getattr(transformers, row.config)(**{"vocab_size": 61, **row.settings})
    return {**json.loads(config.to_json_string(use_diff=False)), "architectures": [row.model]}


def mutants(row: Row, count: int) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the config with one value replaced by a wrong one, or left out; and the keys that lead to it."""
    whole, draw = config_of(row), random.Random(row.family)
    places = [(key,) for key in whole if key not in ABOUT]
    places += [(key, below) for key, value in whole.items() if isinstance(value, dict) for below in value]
    for _ in range(count):
        config, (*path, last), value = copy.deepcopy(whole), draw.choice(places), draw.choice(WRONG)
        at = config[path[0]] if path else config
        if value == ABSENT:
            del at[last]
        else:
            at[last] = value
        yield config, [*path, last]


def check(row: Row, count: int, folder: Path) -> None:
    """Raise unless each config is read, or refused by a message that names the file and the key."""
    for config, keys in mutants(row, count):
        (folder / "config.json").write_text(json.dumps(config))
        try:
            source = Source.of(str(folder))
            source.described(source.model())
        except TfkitError as error:
            said = str(error)
            assert (
                f"{folder / 'config.json'}" in said and any(key in said for key in keys) and "<mapping>" not in said
            ), said


@pytest.mark.parametrize(
    ("family", "count"),
    [
        pytest.param(name, 8 if name in QUICK else 30, marks=pytest.mark.full if name in QUICK else pytest.mark.slow)
        for name in sorted(FIRST)
    ],
)
def test_no_value_ends_in_a_traceback(family: str, count: int, tmp_path: Path) -> None:
    check(FIRST[family], count, tmp_path)


@looped(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": {"a": 1}},
            "num_hidden_layers {\"a\": 1}: not a config of the family 'llama' (TypeError:",
        ),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps Infinity: layer.norm.eps: inf: numbers must be finite"),
        *(({"model_type": value}, "config.json: model_type: no family for") for value in ({"a": 1}, [1], 3, "")),
        *(({key: ABSENT}, f"{key} is missing") for key in ("hidden_size", "num_hidden_layers", "intermediate_size")),
        ({"num_attention_heads": ABSENT}, "num_attention_heads is missing"),
    ],
)
def test_the_message_names_the_file_and_the_value(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {key: value for key, value in (config_of(FIRST["llama"]) | changes).items() if value != ABSENT}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError) as caught:
        Source.of(str(tmp_path)).model()
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message.removeprefix('config.json: ')}")


def test_no_family_makes_up_a_size() -> None:
    """Sizes that every config.json says are needed; None stands for one that follows from another."""

    def check(name: str) -> None:
        rows = REGISTRY.get("family", name).settings
        words = ("d_model", "num_layers", "num_heads", "d_ff")
        sizes = [row for row in rows if row.keys[0].rpartition(".")[2] in words]
        assert any(row.keys[0].endswith("d_model") for row in sizes) or name == "t5gemma"  # two configs of gemma
        assert {row.config_key: row.default for row in sizes if row.default not in (NEEDED, None)} == {}

    each(REGISTRY.names("family"), check)


@pytest.mark.full
def test_each_saved_config_says_all_sizes(tmp_path: Path) -> None:
    def check(family: str) -> None:
        row = FIRST[family]
        written = getattr(transformers, row.config)(**{"vocab_size": 61, **row.settings}).to_json_string(use_diff=True)
        (tmp_path / "config.json").write_text(json.dumps({**json.loads(written), "architectures": [row.model]}))
        assert Source.of(str(tmp_path)).model()["type"] in ("encoder", "decoder", "encoder_decoder")

    each(sorted(FIRST), check)
