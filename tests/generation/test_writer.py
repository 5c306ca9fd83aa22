"""A run that writes: prompts of every kind, options, streams; and what is wrong said with the prompt's number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tfkit
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.generation.prompts import PromptError
from tfkit.generation.writer import CutWarning
from tfkit.models import build_model
from tfkit.run import Run

from ..sampling import looped
from .test_rules import RECIPE

SAMPLE = {"strategy": "sample", "seed": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tfkit.train(RECIPE, out=tmp_path_factory.mktemp("runs") / "x", progress=False)


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = {"type": "word", "special_tokens": {"mask": "[MASK]"}, "vocab_size": 60}
    changes: dict[str, Any] = {
        "model": {**RECIPE["model"], "type": "encoder", "head": "masked_lm"},
        "data": {**RECIPE["data"], "tokenizer": words},
        "objective": "masked_lm",
    }
    return tfkit.train({**RECIPE, **changes}, out=tmp_path_factory.mktemp("runs") / "m", progress=False)


# --- prompts


@pytest.mark.full
def test_prompts_are_texts_or_ids_one_or_many(run: Run) -> None:
    texts = ["The ", "a", "The ", "an"]
    expected = run.generate(texts, 6)
    ids = run.read(texts)
    assert run.generate(ids, 6) == expected
    mixed: Any = [texts[0], ids[1], tuple(ids[2]), torch.tensor(ids[3])]
    assert run.generate(mixed, 6) == expected
    array: Any = np.array(ids[1])
    assert run.generate(array, 6) == run.generate("a", 6) == [expected[1]]
    rows: Any = torch.tensor([ids[0], ids[2]])
    assert run.generate(rows, 6) == [expected[0], expected[2]]
    assert run.generate(texts, 6, batch_size=1) == expected
    assert run.generate([]) == [] == run.candidates([])


@looped(
    ("prompts", "message"),
    [
        (["a", []], "prompt 2 is empty; generation starts from at least one token"),
        (["a", "b" * 60], "prompt 2 has 60 tokens, but this model reads at most 40; shorten it"),
        (["a", [3, 90_000]], "prompt 2 contains the id 90000; ids are 0 to"),
        (["a", "b", [-1]], "prompt 3 contains the id -1"),
        (["a", 2.5], "prompt 2 is neither a text nor a list of ids: 2.5"),
        (["a", ["b"]], r"prompt 2 is neither a text nor a list of ids: \['b'\]"),
        (["a", "\ud800"], "prompt 2 cannot be read: the text contains a lone surrogate"),
        (5, "a prompt is a text or a list of ids, got 5"),
    ],
)
def test_a_wrong_prompt_is_refused_by_its_number(run: Run, prompts: Any, message: str) -> None:
    for ask in (run.generate, run.candidates):
        with pytest.raises(UsageError, match=message):
            ask(prompts, 4)


def test_a_prompt_error_says_the_number_as_data(run: Run) -> None:
    with pytest.raises(PromptError) as error:
        run.generate(["a", []])
    assert (error.value.name, error.value.number) == ("prompt", 2)


# --- texts that something cuts


CUT: dict[str, Any] = {
    "logits": {"type": "regex", "pattern": "[a-z]{8}"},
    "stop": {"type": "strings", "strings": list("abcdefghijklmnopqrstuvwxyz")},
}


def test_a_text_that_is_cut_says_so(run: Run) -> None:
    pytest.importorskip("llguidance")
    (found,) = run.candidates("a", **CUT)
    assert found[0].cut and not run.candidates("a", logits=CUT["logits"])[0][0].cut
    with pytest.warns(CutWarning, match="prompt 1: the text is cut off"):
        assert run.generate(["a", "b"], **CUT) == ["", ""]
    pieces = run.stream("a", **CUT)
    with pytest.warns(CutWarning, match="prompt 1: the text is cut off"), pytest.raises(StopIteration) as end:
        while True:
            next(pieces)
    assert end.value.value.cut and end.value.value.ids == found[0].ids


# --- options


@looped(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be a whole number from 0 to 2,147,483,648, got -1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number from 0 to 2,147,483,648, got 2.5"),
        ({"seed": -1}, "seed must be a whole number from 0 to 4,294,967,295, got -1"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 to 1,048,576, got 0"),
        ({"stategy": "sample"}, "unknown generation option 'stategy'; did you mean 'strategy'"),
        ({"strategy": ["greedy", "sample"]}, "expected one strategy, got 2"),
        ({"logits": {"type": "temperature", "temperature": 0.5}}, "temperature affects sampling, but greedy does not"),
        ({"strategy": "sample", "logits": {"type": "top_k", "k": 5000}}, "k: 5000 exceeds the vocabulary of"),
    ],
)
def test_a_wrong_wish_is_refused(run: Run, options: dict[str, Any], message: str) -> None:
    for ask in (run.generate, run.candidates, run.stream):
        with pytest.raises(UsageError, match=message):
            ask("a", **options)


def test_what_the_recipe_says_holds_until_a_call_says_otherwise(run: Run) -> None:
    sets = ["strategy={type: sample, n_best: 2}", "seed=3", "max_new_tokens=5", "stop=none"]
    drawing = tfkit.load_run(run.folder, sets=[f"generate.{text}" for text in sets])
    drawn = drawing.candidates("The ")[0]
    assert [len(one.ids) for one in drawn] == [5, 5] and drawn == drawing.candidates("The ")[0]
    assert drawn == run.candidates("The ", 5, strategy={"type": "sample", "n_best": 2}, seed=3, stop=[])[0]
    assert drawing.generate("The ", strategy="greedy") == run.generate("The ", 5, stop=[])


@pytest.mark.full
def test_the_short_options_are_those_of_the_command(run: Run) -> None:
    sampled = {"strategy": "sample", "logits": [{"type": "top_k", "k": 3}], "seed": 1}
    assert run.generate("three", top_k=3, seed=1) == run.generate("three", **sampled)  # type: ignore[arg-type]
    beams: Any = {"type": "beam", "num_beams": 3, "n_best": 2}
    assert run.candidates("three", num_beams=3, n_best=2) == run.candidates("three", strategy=beams)
    given: Any = {"type": "beam", "length_penalty": 0.5}
    assert run.candidates("three", strategy=given, num_beams=3) == run.candidates(
        "three", strategy={**given, "num_beams": 3}
    )


@looped(
    ("options", "message"),
    [
        ({"num_beams": 1_000_000}, "num_beams=1000000: generate.strategy.num_beams: must be at most 4,096"),
        ({"temperature": "hot"}, "temperature=hot: generate.logits.temperature: expected a number"),
        ({"top_k": True}, "top_k=True: generate.logits.k: expected a whole number"),
        ({"strategy": "greedy", "num_beams": 2}, "num_beams=2: strategy 'greedy' has no option num_beams"),
        ({"top_n": 2}, "did you mean 'top_p'"),
        ({"max_new_tokens": 2**70}, "max_new_tokens must be a whole number from 0 to 2,147,483,648"),
    ],
)
def test_a_wrong_short_option_is_refused(run: Run, options: Any, message: str) -> None:
    with pytest.raises((tfkit.UsageError, tfkit.RecipeError), match=message):
        run.generate("three", **options)


def test_candidates_say_what_the_model_thinks(run: Run) -> None:
    (best,) = run.candidates("The ", 6)[0]
    assert best.text == run.generate("The ", 6)[0]
    ids = torch.tensor([[*run.read(["The "])[0], *best.ids]])
    with torch.no_grad():
        scores = run.model(ids).logits[0, -7:-1].log_softmax(-1)
    assert best.log_probability == pytest.approx(float(scores.gather(1, ids[0, -6:, None]).sum()), abs=1e-4)


def test_a_recipe_that_cannot_write_is_refused_before_training(tmp_path: Path) -> None:
    hot = {"logits": {"type": "temperature", "temperature": 0.5}}
    with pytest.raises(RecipeError, match=r"does not declare 'draws' .* which logits 'temperature' requires"):
        tfkit.train({**RECIPE, "generate": hot}, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_run_records_how_it_writes(run: Run, tmp_path: Path) -> None:
    said = {"strategy": {"type": "sample", "n_best": 2}, "seed": 5, "max_new_tokens": 3}
    recipe = tfkit.load_recipe({**RECIPE, "generate": said})
    file = tmp_path / "resolved.yaml"
    file.write_text(recipe.resolved(30), encoding="utf-8")
    assert tfkit.load_recipe(file).generate == recipe.generate
    assert "strategy" in (run.folder / "resolved.yaml").read_text()


# --- streams


@pytest.mark.parametrize("options", [{}, SAMPLE, {"stop": {"type": "strings", "strings": ["e", "ab"]}}])
def test_the_pieces_of_a_stream_are_the_text(run: Run, options: dict[str, Any]) -> None:
    for prompt in ("The ", "a", run.read(["x"])[0]):
        pieces = list(run.stream(prompt, 20, **options))
        assert "".join(pieces) == run.generate(prompt, 20, **options)[0]
        assert all(pieces)
    forced = {"type": "forced", "tokens": list("to do")}
    assert list(run.stream("The ", 5, logits=forced, **options)) == list("to do")


@looped(
    ("prompt", "options", "message"),
    [
        ("a", {"strategy": "beam"}, "beam cannot stream, because its text is only known at the end"),
        ("a", {"strategy": {"type": "sample", "n_best": 3}}, "n_best is 3; streaming needs n_best 1"),
        (["a", "b"], {}, "stream takes one prompt, got 2"),
        ([], {}, "stream takes one prompt, got 0"),
        ("b" * 60, {}, "prompt 1 has 60 tokens"),
    ],
)
def test_a_stream_is_refused_when_it_is_asked_for(run: Run, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run.stream(prompt, **options)


# --- masks


def test_masks_are_filled_with_what_the_tokenizer_knows(filler: Run) -> None:
    """Not with ids that the model has besides, however likely."""
    size = filler.tokenizer.vocab_size
    model: Any = build_model(
        tfkit.load_recipe(filler.folder / "resolved.yaml", overrides={"model.vocab_size": size + 9}).blueprint()
    ).eval()
    with torch.no_grad():
        model.head.output.bias[size:] = 50.0
    (prediction,) = filler.objective.answers.predict(model, [{"text": "a [MASK]"}], filler.tokenizer)
    fills = prediction["fills"][0]
    assert len(fills) == 5 and all(fill["id"] < size for fill in fills)


def test_masks_are_filled_the_likeliest_first(filler: Run) -> None:
    text = "The [MASK] is [MASK]"
    (prediction,) = filler.predict(text)
    found = filler.candidates([text, "a [MASK]"])
    assert filler.generate([text, "a [MASK]"]) == [candidates[0].text for candidates in found]
    assert found[0][0].text == prediction["filled"]
    assert [len(candidates) for candidates in found] == [5, 5]
    totals = [one.log_probability for one in found[0]]
    assert totals == sorted(totals, reverse=True) and len({one.text for one in found[0]}) == 5
    probabilities = [[fill["probability"] for fill in fills] for fills in prediction["fills"]]
    every = sorted((one * other for one in probabilities[0] for other in probabilities[1]), reverse=True)
    assert np.exp(totals) == pytest.approx(every[:5], rel=1e-5)
    first, second = (fills[0] for fills in prediction["fills"])
    assert found[0][0].ids == (first["id"], second["id"])
    assert found[0][0].text == f"The {first['token']} is {second['token']}"


@looped(
    ("ask", "message"),
    [
        (lambda run: run.generate(["a [MASK]", "a"]), r"text 2 has no mask; replace a word with \[MASK\]"),
        (lambda run: run.generate("[MASK] " * 60), "text 1 of .* tokens exceeds the model's maximum length of 40"),
        (
            lambda run: run.generate("[MASK]", strategy="beam", seed=1),
            "fills masks; strategy, seed requires a",
        ),
        (lambda run: run.generate("[MASK]", max_new_tokens=1), "fills masks; max_new_tokens requires a model"),
        (lambda run: run.generate("[MASK]", sed=1), "unknown generation option 'sed'"),
        (lambda run: run.stream("[MASK]"), "contains an encoder, which does not generate text"),
        (lambda run: run.generate([[1, 2]]), "this model reads text"),
    ],
)
def test_what_fills_masks_refuses_what_it_cannot_do(filler: Run, ask: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(filler)


def test_another_run_drafts_what_a_run_writes(run: Run) -> None:
    said = {"type": "speculative", "draft": str(run.folder), "tokens": 3}
    assert run.generate(["The ", "a"], 9, strategy=said) == run.generate(["The ", "a"], 9)
    drawn = [run.generate(["The ", "a"], 9, strategy={**said, "sampled": True}, seed=2) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert "".join(run.stream("The ", 9, strategy=said)) == run.generate("The ", 9)[0]
    with pytest.raises(RunError, match="nothing: no such folder"):
        run.generate("a", 3, strategy={**said, "draft": str(run.folder / "nothing")})
