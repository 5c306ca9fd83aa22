"""A part of one's own in every slot comes in by every door, and a run knows what it was made with."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import tfkit
from tfkit.cli.main import main
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe import imports

BASES = {
    "attention": "tfkit.components.attention.multi_head.MultiHead",
    "position": "tfkit.components.position.absolute.Sinusoidal",
    "feedforward": "tfkit.components.feedforward.dense.MLP",
    "norm": "tfkit.components.norm.RMSNorm",
    "residual": "tfkit.components.residual.PreNorm",
    "embedding": "tfkit.components.embedding.tokens.Tokens",
    "head": "tfkit.components.head.tokens.LanguageModel",
    "mask": "tfkit.components.mask.Window",
    "activation": "tfkit.components.activation.QuickGELU",
    "init": "tfkit.components.init.Normal",
    "tokenizer": "tfkit.data.tokenizer.word.Character",
    "corpus": "tfkit.data.corpus.drawn.Docstrings",
    "objective": "tfkit.training.objective.completion.CausalLm",
    "optimizer": "tfkit.training.optimizer.Adam",
    "schedule": "tfkit.training.schedule.Constant",
    "adapter": "tfkit.training.adapter.Lora",
    "metric": "tfkit.training.metric.base.Perplexity",
    "callback": "tfkit.training.callback.Ema",
    "logits": "tfkit.generation.logits.base.MinLength",
    "stop": "tfkit.generation.stop.Length",
    "strategy": "tfkit.generation.strategy.rows.Greedy",
}


def text_of(slot: str) -> str:
    module, _, name = BASES[slot].rpartition(".")
    return f"""
import tfkit
from {module} import {name}

@tfkit.register("{slot}", "my_{slot}")
class My{name}({name}):
    pass
"""


RECIPE = """
tfkit: 1
model:
  type: decoder
  d_model: 16
  num_layers: 1
  vocab_size: tokenizer
  max_length: 32
  embedding: my_embedding
  position: my_position
  layer:
    residual: my_residual
    norm: my_norm
    attention: {type: my_attention, num_heads: 2}
    feedforward: {type: my_feedforward, d_ff: 16, activation: my_activation}
    mask: {type: my_mask, size: 8}
  head: my_head
  init: my_init
data:
  tokenizer: my_tokenizer
  train: {type: my_corpus, limit: 5}
  valid: {type: my_corpus, limit: 5}
objective: {type: my_objective, block: 16}
train:
  steps: 2
  device: cpu
  samples: 0
  optimizer: my_optimizer
  schedule: {type: my_schedule, lr: 0.01}
  callbacks: [my_callback]
  adapter: my_adapter
  metrics: [my_metric]
generate:
  max_new_tokens: 9
  strategy: my_strategy
  logits: {type: my_logits, tokens: 2}
  stop: {type: my_stop, tokens: 4}
"""
ONE = RECIPE.replace("my_norm", "MINE")
for _slot, _base in BASES.items():
    ONE = ONE.replace(f"my_{_slot}", resolve_name(_base).part_name)
ONE = ONE.replace("MINE", "my_norm")  # only the norm is the user's


def install(folder: Path, patch: pytest.MonkeyPatch, name: str, version: str, text: str) -> Path:
    """Install a distribution with an entry point; return its metadata."""
    patch.syspath_prepend(folder)
    patch.setattr(REGISTRY, "_plugins_loaded", False)
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[tfkit.parts]\nmine = {module}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info / "METADATA"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests imported is not known here."""
    monkeypatch.setattr(imports, "_IMPORTED", {})


def forget() -> None:
    """As in a new process: no part of the user's is registered, no file was imported."""
    imports._IMPORTED.clear()
    for slot, parts in REGISTRY.registered().items():
        for name, part in parts.items():
            if not part.__module__.startswith("tfkit."):
                del REGISTRY.load(slot)[name]


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def trained(folder: Path) -> Path:
    """A run whose norm came in from my_parts.py, in a process that has forgotten it."""
    file = folder / "my_parts.py"
    file.write_text(text_of("norm"))
    (folder / "mine.yaml").write_text(ONE)
    tfkit.train(folder / "mine.yaml", out=folder / "run", progress=False, imports=[file])
    forget()
    return folder / "run"


def say_of(run: Path, known: dict[str, Any]) -> None:
    """Write an environment.json as an older version would have, without a record of its hash."""
    (run / "environment.json").write_text(json.dumps(known))
    (run / "SHA256SUMS").unlink(missing_ok=True)


def needs(run: Path) -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = json.loads((run / "environment.json").read_text())["imports"]
    return known


# --- doors


@pytest.mark.full
def test_every_slot_takes_a_part_of_ones_own_through_every_command(tmp_path: Path) -> None:
    assert set(BASES) | {"model", "mixer"} == set(CATALOGUES)
    file, recipe, run = tmp_path / "my_parts.py", tmp_path / "mine.yaml", tmp_path / "run"
    file.write_text("".join(map(text_of, BASES)))
    recipe.write_text(RECIPE)
    assert "unknown norm 'my_norm'" in command("check", recipe).stderr
    checked = command("check", recipe, "--import", file)
    assert checked.exit_code == 0, checked.output
    assert all(f"my_{slot}" in tfkit.parts(slot) for slot in BASES)
    assert (
        "unknown norm 'my_nrom'. Did you mean 'my_norm'?"
        in command("check", recipe, "--import", file, "--set", "model.layer.norm=my_nrom").stderr
    )
    done = command("train", recipe, "--import", file, "--out", run)
    assert done.exit_code == 0, done.output
    for arguments in (("evaluate", run), ("generate", run, "The "), ("show", run), ("check", run / "resolved.yaml")):
        forget()
        refused = command(*arguments)
        assert refused.exit_code == 2 and "this run needs the parts in" in refused.stderr
        assert command(*arguments, "--import", file).exit_code == 0
        forget()
        assert command(*arguments, "--trust").exit_code == 0
    assert len(command("generate", run, "The ", "--trust").stdout.rstrip("\n")) == 4
    shorter = command("generate", run, "The ", "--trust", "--set", "generate.stop={type: my_stop, tokens: 3}")
    assert len(shorter.stdout.rstrip("\n")) == 3
    wrong = command("generate", run, "The ", "--trust", "--set", "generate.stop={type: my_stop}")
    assert wrong.exit_code == 2 and "needs the option 'tokens'" in wrong.stderr
    (need,) = needs(run)
    assert need["parts"] == need["used"] == {slot: [f"my_{slot}"] for slot in sorted(BASES)}


@pytest.mark.full
def test_what_only_training_used_is_not_needed_to_write(tmp_path: Path) -> None:
    file, recipe, run = tmp_path / "my_parts.py", tmp_path / "mine.yaml", tmp_path / "run"
    mine = ("adapter", "callback", "corpus", "metric", "optimizer", "schedule")
    text = RECIPE
    for slot in BASES.keys() - set(mine):
        text = text.replace(f"my_{slot}", resolve_name(BASES[slot]).part_name)
    recipe.write_text(text)
    file.write_text("".join(map(text_of, mine)))
    done = command("train", recipe, "--import", file, "--out", run)
    assert done.exit_code == 0, done.output
    with_code = [command(*arguments, "--import", file) for arguments in (("generate", run, "The "), ("show", run))]
    forget()
    without = [command(*arguments) for arguments in (("generate", run, "The "), ("show", run))]
    assert [(one.exit_code, one.stdout) for one in without] == [(0, one.stdout) for one in with_code]
    assert command("export", run, tmp_path / "out").exit_code == 0
    assert not any(f"my_{slot}" in tfkit.parts(slot) for slot in mine)
    refused = command("evaluate", run)
    assert refused.exit_code == 2 and "this run needs the parts in" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert command("evaluate", run, "--trust").exit_code == 0


def test_a_broken_plugin_is_told_on_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY, "problems", [])
    install(tmp_path, monkeypatch, "broken-plugin", "2.0", "import sys\nsys.exit()\n")
    result = command("check", "gpt2", "--set", "model.layer.norm=layr_norm")
    lines = result.stderr.splitlines()
    told = f"the plugin 'mine' of broken-plugin 2.0 cannot be loaded: {tmp_path}/broken_plugin.py:2: cannot be"
    assert result.exit_code == 2 and lines[0].startswith(f"tfkit: {told}")
    assert f"unknown norm 'layr_norm'; {told}" in lines[1] and lines[1].endswith("Did you mean 'layer_norm'?")
    again = command("check", "gpt2")
    assert again.exit_code == 0 and not again.stderr


# --- saved runs


@pytest.mark.full
def test_a_run_records_the_file_and_its_parts(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (need,) = needs(run)
    file = tmp_path / "my_parts.py"
    assert need == {
        "door": "import",
        "name": str(file),
        "beside": "../my_parts.py",
        "sha256": imports.hash_of(file),
        "parts": {"norm": ["my_norm"]},
        "used": {"norm": ["my_norm"]},
    }
    assert f'imports: ["{file}"]' in (run / "resolved.yaml").read_text()


@pytest.mark.full
def test_a_run_says_what_it_needs_and_takes_it(tmp_path: Path) -> None:
    run = trained(tmp_path)
    file = tmp_path / "my_parts.py"
    message = rf"needs the parts in {file} \(norm 'my_norm'\): use --import {file} or --trust$"
    with pytest.raises(RunError, match=message):
        tfkit.load_run(run)
    expected = tfkit.load_run(run, trust=True).generate("The ")
    forget()
    assert tfkit.load_run(run, imports=[file]).generate("The ") == expected
    forget()
    with pytest.raises(RunError, match=message):
        tfkit.evaluate(run, "valid")
    assert tfkit.evaluate(run, "valid", imports=[file])["loss"] > 0
    assert tfkit.load_run(run).generate("The ") == expected  # imported by now


@pytest.mark.full
def test_nothing_of_a_run_is_imported_unless_it_is_trusted(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (tmp_path / "my_parts.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for attempt in (lambda: tfkit.load_run(run), lambda: tfkit.load_recipe(run / "resolved.yaml")):
        with pytest.raises(tfkit.TfkitError):
            attempt()
    assert not (tmp_path / "ran").exists()


@pytest.mark.full
def test_a_changed_file_is_a_warning(tmp_path: Path) -> None:
    run = trained(tmp_path)
    file = tmp_path / "my_parts.py"
    file.write_text(file.read_text() + "\n# another thought\n")
    with pytest.warns(TfkitWarning, match=f"{file} has changed since this run was created") as found:
        tfkit.load_run(run, trust=True)
    assert len(found) == 1
    result = command("evaluate", run, "--trust")
    assert result.exit_code == 0 and f"tfkit: {run}: {file} has changed since this run was created" in result.stderr


@pytest.mark.full
def test_a_run_and_its_file_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    run = trained(tmp_path / "here")
    expected = tfkit.load_run(run, trust=True).generate("The ")
    forget()
    (tmp_path / "here").rename(tmp_path / "there")  # both, together
    moved = tmp_path / "there" / "run"
    with pytest.raises(RunError, match=f"use --import {tmp_path}/there/my_parts.py or --trust"):
        tfkit.load_run(moved)
    assert tfkit.load_run(moved, trust=True).generate("The ") == expected
    forget()
    alone = tmp_path / "alone"
    shutil.move(moved, alone)  # the run only
    new = tmp_path / "new_name.py"
    shutil.move(tmp_path / "there" / "my_parts.py", new)
    for trust in (False, True):
        with pytest.raises(
            RunError, match=r"my_parts.py \(norm 'my_norm'\), which is missing: pass its new path to --import"
        ):
            tfkit.load_run(alone, trust=trust)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the same text: nothing to warn of
        assert tfkit.load_run(alone, imports=[new]).generate("The ") == expected
    assert command("show", alone, "--import", new).exit_code == 0


@pytest.mark.full
def test_another_file_does_not_do(tmp_path: Path) -> None:
    run = trained(tmp_path)
    other = tmp_path / "other.py"
    other.write_text(text_of("residual"))
    with pytest.raises(RunError, match=r"needs the parts in .*my_parts.py \(norm 'my_norm'\)"):
        tfkit.load_run(run, imports=[other])
    forget()
    (tmp_path / "my_parts.py").write_text(text_of("residual"))
    with pytest.raises(RunError, match=r"my_parts.py: does not register norm 'my_norm', which the run .* needs"):
        tfkit.load_run(run, trust=True)
    (tmp_path / "my_parts.py").write_text("1 / 0\n")
    with pytest.raises(RunError, match=r"my_parts.py:1: cannot be imported: ZeroDivisionError"):
        tfkit.load_run(run, trust=True)
    with pytest.raises(RunError, match=r"--import gone.py: gone.py: no such file"):
        tfkit.load_run(run, imports=["gone.py"])


@pytest.mark.full
def test_a_run_goes_on_with_the_code_it_needs(tmp_path: Path) -> None:
    run = trained(tmp_path)
    new = tmp_path / "elsewhere.py"
    shutil.move(tmp_path / "my_parts.py", new)
    new.write_text(new.read_text() + "# changed\n")
    go_on = ("train", run / "resolved.yaml", "--out", run, "--resume", "--set", "train.steps=3")
    assert "which is missing: pass its new path to --import" in command(*go_on).stderr
    result = command(*go_on, "--import", new)
    assert result.exit_code == 0 and f"{new} has changed since this run was created" in result.stdout + result.stderr
    (need,) = needs(run)
    assert need["name"] == str(new) and need["sha256"] == imports.hash_of(new)
    forget()
    assert tfkit.load_run(run, trust=True).recipe.train.steps == 3


@pytest.mark.full
def test_a_run_without_records_asks_as_a_recipe_does(tmp_path: Path) -> None:
    run = trained(tmp_path)
    known = json.loads((run / "environment.json").read_text())
    del known["imports"]
    for said in ("nonsense", [3], [{"door": "import"}], [{"door": "back", "name": "x"}]):
        say_of(run, known | {"imports": said})
        with pytest.raises(RunError, match=r"environment.json: the entry `imports` cannot be read"):
            tfkit.load_run(run)
    say_of(run, known)
    with pytest.raises(tfkit.RecipeError, match=r"this recipe needs the code in '.*my_parts.py'"):
        tfkit.load_run(run)
    assert tfkit.load_run(run, trust=True).recipe.imports == (str(tmp_path / "my_parts.py"),)


@pytest.mark.full
def test_parts_registered_in_python_are_recorded_too(tmp_path: Path) -> None:
    from tfkit.components.norm import RMSNorm

    class InPython(RMSNorm):
        pass

    tfkit.register("norm", "my_norm")(InPython)
    run = tmp_path / "run"
    tfkit.train(tfkit.load_recipe(yaml.safe_load(ONE)), out=run, progress=False)
    (need,) = needs(run)
    assert (need["door"], need["name"], need["used"]) == ("python", __name__, {"norm": ["my_norm"]})
    forget()
    with pytest.raises(RunError, match=r"needs norm 'my_norm', registered by .*: import that module first, or pass"):
        tfkit.load_run(run, trust=True)
    file = tmp_path / "now_in_a_file.py"
    file.write_text(text_of("norm"))
    with pytest.warns(TfkitWarning, match="now_in_a_file.py has changed"):
        assert tfkit.load_run(run, imports=[file]).generate("a")


@pytest.mark.full
def test_a_plugin_is_recorded_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = install(tmp_path, monkeypatch, "norm-plugin", "1.0", text_of("norm"))
    run = tmp_path / "run"
    tfkit.train(yaml.safe_load(ONE), out=run, progress=False)
    (need,) = needs(run)
    found = {key: need[key] for key in ("door", "name", "distribution", "version")}
    assert found == {"door": "plugin", "name": "norm_plugin", "distribution": "norm-plugin", "version": "1.0"}
    assert tfkit.load_run(run).generate("a")  # what is installed needs no leave
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 2.0"))
    with pytest.warns(TfkitWarning, match=r"created with norm-plugin 1.0; 2.0 is installed"):
        tfkit.load_run(run)
    forget()
    with pytest.raises(RunError, match=r"plugin norm_plugin of norm-plugin 1.0 \(norm .my_norm.\): install it"):
        tfkit.load_run(run, trust=True)
    del sys.modules["norm_plugin"]
