"""`tfkit look`: what heads attend to, as tables, as JSON and as one page that opens without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tests.studies.test_page import LOOK
from tests.test_run import recipe, silent
from tests.training.small import small
from tests.training.small import trained as train_small
from tfkit.core.bounds import Bound
from tfkit.generation.attention import AttentionMap, AttentionMaps
from tfkit.reports.attention import LARGEST, page
from tfkit.run import Run

from .test_hostile_text import ACTING
from .typed import refused, typed

HOSTILE = "</script><img src=x onerror=alert(1)> \x1b[2J\u202e"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("writer")
    return train_small(small(folder), folder / "run")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return silent(recipe(), tmp_path_factory.mktemp("pair") / "run")


def test_a_text_has_its_tokens_as_labels_and_its_probabilities(writer: Run) -> None:
    seen = writer.attention("one two three one")
    (only,) = seen.maps
    assert only.place == "decoder.layers.0.attention" and only.queries == only.keys
    assert only.queries[-4:] == ("▁one", "▁two", "▁three", "▁one")
    assert only.weights.shape == (2, len(only.keys), len(only.keys))
    ids = torch.tensor(writer.read(["one two three one"]))
    with torch.no_grad():
        want = writer.model(ids).logits[0].softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]  # type: ignore[index]
    assert [one.probability for one in seen.probabilities] == pytest.approx(want.tolist())
    assert [one.token for one in seen.probabilities] == list(only.queries[1:])


def test_a_pair_has_maps_between_its_texts(pair: Run) -> None:
    seen = pair.attention("twelve", "zwölf")
    cross = seen.map("decoder.layers.0.cross_attention")
    source = seen.map("encoder.layers.0.attention")
    assert cross.keys == source.keys and cross.weights.shape[1:] == (len(cross.queries), len(source.keys))
    assert cross.queries[0] == pair.tokenizer.token(pair.tokenizer.special_ids["start"])
    assert len(seen.probabilities) == len(cross.queries)  # the end token is predicted, and not read
    assert pair.attention("twelve").map(cross.place).keys == cross.keys  # a target that it generates
    with pytest.raises(tfkit.UsageError, match=r"there are no attention weights for 'x'; available: encoder\.layers"):
        seen.map("x")


@pytest.mark.full
def test_each_side_has_the_labels_of_its_own_vocabulary(tmp_path: Path) -> None:
    made = tfkit.load_recipe("translate-characters", overrides={"train.epochs": 1, "train.device": "cpu"})
    run = tfkit.train(made, out=tmp_path / "run", progress=False)
    seen = run.attention("i love you", "ich")
    source, cross = seen.map("encoder.layers.0.attention"), seen.map("decoder.layers.1.cross_attention")
    words = [token for token in source.queries if token not in seen.special]
    assert "".join(words).replace("\u2581", " ").strip() == "i love you" and cross.keys == source.keys
    assert cross.queries[1:] == ("i", "c", "h") and {source.queries[0], source.queries[-1]} <= seen.special


def test_the_scores_of_a_head_are_those_of_its_weights() -> None:
    tokens = ("a", "b", "c", "a", "b")
    previous = torch.cat((torch.eye(5)[:1], torch.eye(5)[:-1]))  # each token looks at the one before it
    induction = torch.tensor([[1.0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]])
    even = torch.full((5, 5), 0.2)
    weights = torch.stack((previous, induction, even))
    one, two, three = AttentionMap("decoder.layers.0.attention", weights, tokens, tokens).scores()
    assert (one.entropy, one.distance, one.induction) == (0.0, pytest.approx(0.8), 0.0)
    assert (two.induction, two.distance) == (1.0, pytest.approx((0 + 1 + 2 + 2 + 2) / 5))
    assert three.entropy == pytest.approx(2.321928, abs=1e-5)
    assert three.induction == pytest.approx(0.2)
    cross = AttentionMap("decoder.layers.0.cross_attention", even[None], tokens, tokens)
    assert [(one.distance, one.induction) for one in cross.scores()] == [(None, None)]


def test_the_command_prints_heads_rows_and_tokens(writer: Run, tmp_path: Path) -> None:
    out = typed("look", writer.folder, "one two three one").stdout
    assert re.search(r"decoder\.layers\.0\.attention +[01] +\d\.\d\d +\d\.\d +\d\.\d{3}\n", out)
    assert "probability of each token, given the tokens before it" in out
    rows = typed(
        "look", writer.folder, "one two three one", "--head", "decoder.layers.0.attention:1"
    ).stdout.splitlines()
    assert len(rows) == 1 + len(writer.read(["one two three one"])[0])
    assert rows[0].split() == ["query", "next", "most", "second"] and rows[2].split()[:2] == ["▁one", "▁two"]
    assert "on special tokens" in typed("look", writer.folder, "one two", "--token", "two").stdout
    data = json.loads(typed("look", writer.folder, "one two", "--json", "--token", "two").stdout)
    assert len(data["heads"]) == 2 and data["token"] == "two" and data["predicts"] == "next"


def test_what_cannot_be_looked_at_is_refused(writer: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one")
    place = "decoder.layers.0.attention"
    for words, message in (
        (("one", "--target", "two"), "reads one text; a target requires an encoder-decoder"),
        (("one two", "--token", "six"), "'six' is not a token of the text; its tokens are"),
        (("one", "--head", f"{place}:2"), f"--head must be {place}:0 to {place}:1"),
        (("one", "--head", "x:0"), "there are no attention weights for 'x'"),
        (("one", "--head", "x:0", "--json"), "remove --token and --json"),
        ((tmp_path / "text",), "is a file; pass a text"),
        (("one", "--json", "--out", "-"), "--out - prints the page"),
        (("one", "--token", "one", "--out", tmp_path), str(tmp_path)),
    ):
        assert message in refused("look", writer.folder, *words)
    with pytest.raises(tfkit.UsageError, match="attention takes a text"):
        writer.attention(3)  # type: ignore[arg-type]


def test_a_long_text_is_refused_before_anything_is_computed(writer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.generation.attention.LOOKED", Bound(31, "weights"))
    assert typed("look", writer.folder, "one").stdout
    said = refused("look", writer.folder, "one two three")
    assert "tokens have" in said and "attention weights; at most 31 can be shown" in said


def test_the_page_replaces_an_older_one_and_lets_no_text_act(writer: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("older")
    assert "the page: " in typed("look", writer.folder, "one two", "--out", tmp_path / "page.html").stdout
    text = (tmp_path / "page.html").read_text()
    assert text.startswith("<!doctype html>") and "http" not in text.replace("http-equiv", "")
    tokens = (HOSTILE, "b")
    found = AttentionMaps(
        (AttentionMap("decoder.layers.0.attention", torch.full((1, 2, 2), 0.5), tokens, tokens),),
        (), None, frozenset(), (),
    )  # fmt: skip
    text = page(found, HOSTILE)
    assert "<img" not in text and text.count("</script>") == text.count("<script") == 3
    assert not ACTING.search(text)


def large(layers: int, heads: int, time: int) -> AttentionMaps:
    tokens = tuple(f"token{place}" for place in range(time))
    weights = torch.rand(heads, time, time).softmax(dim=-1)
    maps = (AttentionMap(f"decoder.layers.{layer}.attention", weights, tokens, tokens) for layer in range(layers))
    return AttentionMaps(tuple(maps), (), None, frozenset(), ())


def test_long_texts_are_shown_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert '"block":1,' in page(large(2, 2, 12), "x")
    monkeypatch.setattr("tfkit.reports.attention.LARGEST", 200)
    assert '"block":2,' in page(large(2, 2, 13), "x")
    assert 4 / 3 * LARGEST < 4_100_000


@pytest.mark.slow
def test_the_page_of_a_long_text_and_many_heads_stays_small() -> None:
    assert len(page(large(12, 12, 512), "x").encode()) < 5_000_000


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [("a", "b", "a", HOSTILE), tuple(f"token{place}" for place in range(200))], ids=len)
def test_the_page_in_a_real_browser(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    pytest.importorskip("PySide6.QtWebEngineWidgets", reason="pip install PySide6, which brings a browser")
    weights = torch.rand(12, len(tokens), len(tokens)).softmax(dim=-1)
    maps = tuple(AttentionMap(f"decoder.layers.{layer}.attention", weights, tokens, tokens) for layer in range(12))
    (tmp_path / "page.html").write_text(
        page(AttentionMaps(maps, (), None, frozenset(), ()), "A text"), encoding="utf-8"
    )
    seen = in_browser(tmp_path / "page.html")
    assert (seen["loaded"], seen["said"]) == (True, [])
    assert len(seen["pictures"]) == 13 and all(height > 90 for height in seen["pictures"])
    assert "A text" in seen["text"] and "decoder.layers.11.attention, head 11" in seen["text"]
    assert seen["wide"] <= seen["window"] + 1


def in_browser(file: Path) -> dict[str, Any]:
    """What a page shows in a browser without a screen: its text, and the heights of its canvases."""
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    environment["QTWEBENGINE_CHROMIUM_FLAGS"] = "--no-sandbox --disable-gpu"
    words = [sys.executable, "-c", LOOK.replace("'svg'", "'canvas'"), str(file)]
    found = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=True)
    seen: dict[str, Any] = json.loads(found.stdout.strip().splitlines()[-1])
    return seen
