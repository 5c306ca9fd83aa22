"""Rules within a search: rows by themselves, padding that says nothing, rules of one's own; in recipes and runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import PositiveInt, Slot
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.logits import LogitsRule
from tfkit.generation.prompts import PromptError
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import prepare
from tfkit.generation.stop import StopRule, WrittenRow
from tfkit.generation.texts import find
from tfkit.models import Model, build_model
from tfkit.run import Run

from ..sampling import looped
from .searching import best

PROMPTS = [[4, 5, 6], [7], [8, 9, 10, 11, 4, 5], [6, 6]]
RECIPE: dict[str, Any] = {
    "tfkit": 1,
    "model": {
        "type": "decoder",
        "d_model": 16,
        "num_layers": 1,
        "vocab_size": "tokenizer",
        "max_length": 40,
        "embedding": "tokens",
        "position": "learned",
        "layer": {
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2},
            "feedforward": {"type": "mlp", "d_ff": 16},
        },
        "head": "language_model",
        "init": {"type": "normal", "std": 0.3},
    },
    "data": {"tokenizer": "character", "train": {"type": "docstrings", "limit": 5}},
    "objective": {"type": "causal_lm", "block": 16},
    "train": {"steps": 1, "device": "cpu", "samples": 0},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    fitted: Tokenizer = Slot("tokenizer").validate("character").build().fit(["abcdefgh"])
    return fitted


@pytest.fixture(scope="module")
def net() -> Model:
    plain = {key: RECIPE[key] for key in ("tfkit", "model")}
    return build_model(tfkit.load_recipe(plain, overrides={"model.vocab_size": 12}).blueprint(), seed=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tfkit.train(RECIPE, out=tmp_path_factory.mktemp("runs") / "x", progress=False)


def searched(tokenizer: Tokenizer, logits: list[Any], stop: list[Any]) -> Rules:
    return bound_rules(
        [Slot("logits").validate(part) for part in logits], [Slot("stop").validate(part) for part in stop], tokenizer
    )


def alone(net: Model, rules: Rules, prompt: list[int], count: int) -> list[int]:
    """The plainest way: the whole forward for every token, one row, no padding."""
    ids = list(prompt)
    net.eval()
    with torch.no_grad():
        for new in range(count):
            logits = rules.scores(net(torch.tensor([ids])).logits[:, -1], torch.tensor([ids]), torch.tensor([new]))
            ids.append(int(logits.argmax()))
            if rules.done(prompt, ids[len(prompt) :], 0):
                break
    return rules.cut(ids[len(prompt) :])


@pytest.mark.parametrize(
    ("logits", "stop"),
    [
        ([{"type": "repetition_penalty", "penalty": 1.5}], ["end_token"]),
        ([{"type": "no_repeat_ngram", "size": 2}, {"type": "frequency_penalty", "penalty": 0.4}], []),
        ([{"type": "presence_penalty", "penalty": 2.0, "prompt": True}], [{"type": "strings", "strings": ["a", "h"]}]),
        ([{"type": "forced", "tokens": ["c", "d"]}, {"type": "min_length", "tokens": 5}], ["end_token"]),
        ([{"type": "banned", "tokens": [4, 5, 6]}], [{"type": "length", "tokens": 3}, "end_token"]),
    ],
)
@pytest.mark.parametrize("use_cache", [True, False])
def test_rows_of_unlike_length_are_written_as_each_alone(
    net: Model, tokenizer: Tokenizer, logits: list[Any], stop: list[Any], use_cache: bool
) -> None:
    rules = searched(tokenizer, logits, stop)
    expected = [alone(net, rules, prompt, 12) for prompt in PROMPTS]
    assert best(net, PROMPTS, 12, rules, use_cache=use_cache) == expected
    assert expected != best(net, PROMPTS, 12)  # and the rules make a difference


def test_a_row_that_is_left_no_token_ends(net: Model, tokenizer: Tokenizer) -> None:
    rules = searched(tokenizer, [{"type": "no_repeat_ngram", "size": 1}], [])
    out = best(net, PROMPTS, 30, rules)
    for prompt, new in zip(PROMPTS, out, strict=True):
        assert sorted([*set(prompt), *new]) == list(range(12))


STRATEGIES: list[Any] = [
    "greedy", "sample", {"type": "sample", "n_best": 3}, "beam", {"type": "beam", "sampled": True, "n_best": 4},
    "diverse_beam", {"type": "contrastive", "k": 7}, "speculative", {"type": "speculative", "sampled": True},
    {"type": "speculative", "draft": "itself"},
]  # fmt: skip


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_ids_that_no_token_has_are_never_written(tokenizer: Tokenizer, strategy: Any, quantize: Any) -> None:
    """A model may have more than its tokenizer, which may have gaps, and like those best."""
    gap, size = 4, tokenizer.vocab_size
    data = json.loads(tokenizer.to_json())
    del data["model"]["vocab"][tokenizer.token(gap)]
    tokenizer = Tokenizer.from_json(json.dumps(data))
    assert tokenizer.gaps == {gap} and tokenizer.vocab_size == size
    model = {**RECIPE["model"], "vocab_size": size + 20, "head": {"type": "language_model", "bias": True}}
    net = build_model(tfkit.load_recipe({"tfkit": 1, "model": model}).blueprint(), seed=5)
    with torch.no_grad():
        net.head.output.bias[[gap, *range(size, size + 20)]] = 50.0  # type: ignore[union-attr,index]
    made: Any = Slot("strategy").validate(strategy).build()
    made.bind(tokenizer, lambda path: (StepDecoder(net, quantize), tokenizer))
    rules = searched(tokenizer, [{"type": "repetition_penalty", "penalty": 1.3}], [])
    prompts = [[5, size + 3, 6], [size + 3]]
    for found in find(made, prepare(net, prompts, 6, rules, seed=1, decoder=StepDecoder(net, quantize))):
        for candidate in found:
            assert len(candidate.ids) == 6
            assert all(id_ < size and id_ != gap for id_ in candidate.ids)


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_logits_that_are_not_finite_are_told_and_write_nothing(
    tokenizer: Tokenizer, strategy: Any, damage: float
) -> None:
    net = build_model(tfkit.load_recipe({"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 12}}).blueprint())
    made: Any = Slot("strategy").validate(strategy).build()
    made.bind(tokenizer, lambda path: (StepDecoder(net), tokenizer))
    with torch.no_grad():
        net.stack("decoder").embedding.tokens.weight[8] = damage  # type: ignore[union-attr,index]
    for scored in (True, False):
        search = prepare(net, [[4, 5], [4, 8]], 5, searched(tokenizer, [], []), seed=1, scored=scored)
        with pytest.raises(PromptError, match="prompt 2 produced non-finite logits after 0 new tokens"):
            find(made, replace(search, rules=Rules([Without8()], [], tokenizer)))


class Without8(LogitsRule):
    """A row may never write the token 8, so that it is only read where the prompt has it."""

    def __init__(self) -> None:
        super().__init__(self.Config())

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits.index_fill(1, torch.tensor([8]), float("-inf"))


def test_one_logit_that_is_no_number_is_enough(tokenizer: Tokenizer) -> None:
    """However seldom its token is chosen."""
    net = build_model(tfkit.load_recipe({"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 12}}).blueprint())
    with torch.no_grad():
        net.head.output.weight[3] = float("nan")  # type: ignore[union-attr,index]
    for strategy in ("greedy", "sample", "beam", "contrastive", {"type": "speculative", "sampled": True}):
        with pytest.raises(PromptError, match="prompt 1 produced non-finite logits"):
            best(net, [[4, 5]], 5, searched(tokenizer, [], []), strategy, seed=1)


def test_a_rule_of_ones_own(net: Model, tokenizer: Tokenizer) -> None:
    @tfkit.register("logits", "only_even")
    class OnlyEven(LogitsRule):
        """Only tokens of even ids."""

        def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
            return logits.masked_fill(torch.arange(logits.shape[1]) % 2 == 1, float("-inf"))

    @tfkit.register("stop", "sum")
    class Sum(StopRule):
        """Ends when the ids add up to `most`."""

        class Config(StopRule.Config):
            most: PositiveInt

        config: Config

        def done(self, row: WrittenRow) -> bool:
            return sum(row.ids) >= self.config.most

    out = best(net, PROMPTS, 50, searched(tokenizer, ["only_even"], [{"type": "sum", "most": 20}]))
    assert all(token % 2 == 0 for row in out for token in row)
    assert all(sum(row) >= 20 > sum(row[:-1]) for row in out)


def test_a_rule_that_gives_no_logits_is_named(net: Model, tokenizer: Tokenizer) -> None:
    @tfkit.register("logits", "broken")
    class Broken(LogitsRule):
        def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
            return logits[:, 0]

    with pytest.raises(UsageError, match=r"the logits rule 'broken' returned \[4\], expected logits \[4, 12\]"):
        best(net, PROMPTS, 3, searched(tokenizer, ["broken"], []))


def test_time_ends_all_rows(net: Model, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))  # the search begins at 0
    monkeypatch.setattr("tfkit.generation.search.time.monotonic", lambda: next(clock))
    out = best(net, PROMPTS, 30, searched(tokenizer, [], [{"type": "time", "seconds": 4}]))
    assert [len(row) for row in out] == [4] * 4


# --- recipes and runs


def test_rules_are_said_in_a_recipe() -> None:
    said = {
        "logits": [{"type": "banned", "tokens": ["x", 3]}],
        "stop": ["end_token", {"type": "strings", "strings": "q"}],
    }
    recipe = tfkit.load_recipe({**RECIPE, "generate": said})
    assert [rule.part.part_name for rule in recipe.generate.stop] == ["end_token", "strings"]
    again = tfkit.load_recipe(RECIPE, sets=["generate.logits={type: banned, tokens: [x, 3]}"])
    assert again.generate.logits == recipe.generate.logits
    assert [rule.part.part_name for rule in tfkit.load_recipe(RECIPE).generate.stop] == ["end_token"]
    assert tfkit.load_recipe(RECIPE, sets=["generate.stop=none"]).generate.stop == ()


@looped(
    ("text", "message"),
    [
        ("generate.logits=[{type: baned, tokens: a}]", r"unknown logits 'baned'. Did you mean 'banned'\?"),
        ("generate.stop=[{type: strings}]", "needs the option 'strings'"),
        ("generate.stop=[strings]", "needs the option 'strings'"),
        ("generate.stop={type: time, secnds: 3}", "unknown option. Did you mean 'seconds'"),
        ("generate.logits=[{type: banned, tokens: [-1]}]", "must be at least 0"),
        ("generate.stop=3", "expected the name of a stop"),
    ],
)
def test_wrong_rules_are_faults_with_a_place(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        tfkit.load_recipe(RECIPE, sets=[text])
    assert all(fault.file == f"--set {text}" for fault in error.value.faults)


def test_a_rule_that_cannot_go_with_the_tokenizer_stops_before_training(tmp_path: Path) -> None:
    wrong = tfkit.load_recipe(RECIPE, sets=["generate.logits={type: banned, tokens: nothing}"])
    with pytest.raises(RecipeError, match=r"generate\.logits: banned: 'nothing' is not in the vocabulary"):
        tfkit.train(wrong, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_run_takes_names_mappings_and_configs(run: Run) -> None:
    prompts, forced = ["The ", "a"], {"type": "forced", "tokens": list("abcdefgh")}
    assert run.generate(prompts, 8, logits=[forced]) == ["abcdefgh"] * 2  # whatever the model would write
    assert run.generate(prompts, 8, logits=forced) == ["abcdefgh"] * 2
    assert run.generate(prompts, 8, logits=Slot("logits").validate(forced)) == ["abcdefgh"] * 2
    assert run.generate(prompts, 8, logits=[], stop="end_token") == run.generate(prompts, 8)
    assert run.generate("a", 8, logits=forced, stop=[{"type": "length", "tokens": 3}]) == ["abc"]
    assert run.generate("a", 8, logits=forced, stop={"type": "strings", "strings": "c"}) == ["ab"]


@looped(
    ("rules", "error", "message"),
    [
        ({"logits": ["baned"]}, RecipeError, r"<logits>: logits\[0\]: unknown logits 'baned'. Did you mean 'banned'\?"),
        ({"stop": ["end_token", {"type": "length"}]}, RecipeError, r"<stop>: stop\[1\]: needs the option 'tokens'"),
        ({"stop": [3]}, RecipeError, r"stop\[0\]: expected the name of a stop"),
        (
            {"logits": {"type": "banned", "tokens": "zzz"}},
            UsageError,
            r"generate\.logits: banned: 'zzz' is not in the vocabulary",
        ),
    ],
)
def test_a_run_refuses_wrong_rules(run: Run, rules: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run.generate("a", **rules)
    with pytest.raises(UsageError, match=r"stop\[0\]: 'banned' is a logits, expected a stop"):
        run.generate("a", stop=Slot("logits").validate({"type": "banned", "tokens": "a"}))


def test_a_loaded_run_can_be_told_how_to_write(run: Run) -> None:
    said = ["generate.stop={type: length, tokens: 2}", "generate.logits={type: forced, tokens: [a, b, c]}"]
    assert tfkit.load_run(run.folder, sets=said).generate("The ", 3) == ["ab"]
    with pytest.raises(UsageError, match=r"--set model.d_model=3: the run is already trained"):
        tfkit.load_run(run.folder, sets=["model.d_model=3"])
