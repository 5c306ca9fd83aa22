"""The documents are true: commands print what is shown, code runs, links lead somewhere, tables are complete."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

import tfkit
from tfkit.cli.main import main
from tfkit.core.registry import REGISTRY
from tfkit.recipe.compose import shipped_recipes, shipped_tasks

from . import guides, reference
from .documents import DOCUMENTS, KINDS, ROOT, between, blocks, words_of, write_files
from .interop import proofs
from .recipe.small import small
from .sampling import looped

pytestmark = pytest.mark.full

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXTEND = ROOT / "tfkit" / "README.md"
PARTS = ROOT / "tfkit" / "components" / "README.md"
RECIPES = ROOT / "recipes"
LINES = "anna\nbob\ncarla\ndora\nemil\nfrieda\n" * 20
# so that a documented training is quick
SHORT = ("train.steps=2", "train.evaluate_every=2", "train.checkpoint_every=2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def printed(text: str) -> list[str]:
    """The lines; how far off a broken part is depends on the numbers that torch draws."""
    return [re.sub(r"off by \d\.\de-\d\d", "off by ...", line.rstrip()) for line in text.splitlines()]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def each_block(what: str, but: Collection[Path] = ()) -> pytest.MarkDecorator:
    """Parametrize a test with the blocks of one kind in all documents but these."""
    found = [block for block in blocks(what) if block.document not in but]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.label)


def test_every_mark_is_known():
    marks = {
        mark for path in DOCUMENTS for mark in re.findall(r"^<!-- ([\w-]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    studies = {file.stem for file in (ROOT / "recipes" / "studies").glob("*.yaml")}
    assert marks <= {*KINDS, *studies, "textbook", "onnx", "declarations", "measured", "needs", "end"}


@each_block("recipe")
def test_a_recipe_shown_is_the_shipped_one(block):
    shipped = shipped_recipes()[block.value]
    assert yaml.safe_load(block.text) == yaml.safe_load(shipped.read_text(encoding="utf-8"))


@each_block("code")
def test_code_shown_is_printed(block):
    assert block.text in tfkit.code(block.value)


@each_block("run")
def test_a_command_prints_what_is_shown(block, folder):
    write_files(block.document, folder)
    result = run(*words_of(block))
    assert result.exit_code == int(block.value or 0), result.output
    assert printed(result.output) == printed(block.text.partition("\n")[2]), "write it with: python -m tests.documents"


@each_block("python", but=guides.guides().values())
def test_the_code_runs_and_prints_what_its_comments_say(block, folder, capsys):
    write_files(block.document, folder)
    exec(compile(block.text, block.label, "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", block.text)


@pytest.mark.slow
@pytest.mark.parametrize("name", guides.guides())
def test_a_guide_does_what_it_says(name, tmp_path):
    if absent := guides.missing(guides.guides()[name]):
        pytest.skip(f"{name} needs {', '.join(absent)}")
    assert guides.run(guides.guides()[name], tmp_path)


def test_the_notebook_is_the_page():
    made = guides.notebook(guides.guides()["start"])
    assert guides.NOTEBOOK.read_text("utf-8") == made, "write it with: python -m tests.guides --notebook"
    cells = json.loads(made)["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert "!tfkit train" in code and "%%writefile" in code and "<!--" not in made and len(cells) > 8


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    if guides.needs():
        pytest.skip(guides.needs())
    guides.execute(guides.NOTEBOOK.read_text("utf-8"), tmp_path)


@pytest.mark.slow
@each_block("session", but=guides.guides().values())
def test_a_session_runs(block, folder):
    """The commands of a session, after the document's files and code; a training takes two steps."""
    write_files(block.document, folder)
    for name in ("train.txt", "valid.txt", "more.txt", "films.txt"):
        (folder / name).write_text(LINES, encoding="utf-8")
    theirs(folder / "theirs")
    for code in blocks("python", block.document):
        exec(compile(code.text, code.label, "exec"), {})
    for command in re.findall(r"^\$ tfkit (.*)$", block.text, re.MULTILINE):
        words = shlex.split(command)
        sets = [f"--set={one}" for one in SHORT] if words[0] == "train" else []
        result = run(*words, *sets)
        assert result.exit_code == 0, f"{command}\n{result.output}"


PAGE = RECIPES / "guides" / "part-from-a-paper.md"
IDEAS = [block for block in blocks("file", PAGE) if block.value.endswith(".py")]


@pytest.mark.parametrize("block", IDEAS, ids=lambda block: block.value)
def test_an_idea_takes_forty_lines_and_holds_in_all_contracts(block, folder):
    """Every part of the page, as a reader writes it."""
    (folder / block.value).write_text(block.text, encoding="utf-8")
    result = run("parts", "--verify", block.value)
    assert len(block.text.splitlines()) <= 40
    assert result.exit_code == 0 and "FAILED" not in result.output and "not run" not in result.output, result.output


@pytest.mark.slow
def test_a_training_begins_with_the_lines_that_are_shown(folder):
    document = ROOT / "tfkit" / "training" / "README.md"
    shown = document.read_text("utf-8").partition("$ tfkit train translate-numbers\n1,465,344")[2].splitlines()[1:4]
    more = ("train.schedule.warmup=0", "train.metrics=[]", "train.samples=0", "data.test=none")
    sets = [f"--set={one}" for one in (*SHORT, *more)]
    printed = run("train", "translate-numbers", *sets).output.splitlines()
    assert len(shown) == 3 and shown == printed[1:4]


def theirs(folder: Path) -> None:
    """A tiny GPT-2 as transformers saves it, with a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    words = ["<end>", "<unk>", *sorted(set(LINES.split()))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>", "<unk>"])
    config = GPT2Config(vocab_size=len(words), n_embd=16, n_layer=1, n_head=2, n_positions=32)
    config.bos_token_id = config.eos_token_id = 0
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


@cache
def anchors(target):
    text = target.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    if target.suffix == ".html":
        return re.findall(r'\bid="(.*?)"', text)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@looped("path", DOCUMENTS)
def test_what_a_document_links_to_is_there(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_readme_is_two_screens_with_the_two_commands_first_and_counts_the_models():
    lines = README.splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 135
    first = "\n".join(lines[:24])
    assert "tfkit train translate-numbers" in first and "&& pytest" in first
    models = [path for path in shipped_recipes().values() if path.parent.name == "models"]
    assert f"the {len(models)} published models" in README


def test_every_task_and_every_family_is_in_a_table():
    text = (RECIPES / "tasks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## Probes")[0], re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", "\n".join(rows))) == set(shipped_tasks())
    types = {family.model_types[0] for family in REGISTRY.load("family").values()}
    assert set(re.findall(r"\[`([^`]+)`\]", reference.page("families.md"))) == types


@pytest.mark.parametrize("name", [*reference.PAGES, "declarations"])
def test_a_table_is_what_the_code_says(name):
    if name == "declarations":
        shown, table = between(PARTS.read_text(encoding="utf-8"), name)[1], reference.declared()
    else:
        shown, table = (reference.FOLDER / name).read_text(encoding="utf-8"), reference.page(name)
    assert shown == table, "write it with: python -m tests.reference"


def test_every_row_of_the_families_is_on_their_page_which_loads_nothing():
    page, table = reference.page("families.html"), reference.page("families.md")
    assert page.count("<tr>") == len(re.findall(r"^\|", table, re.MULTILINE)) - 1
    assert not re.search(r"https?:|\bsrc=|@import|<link", page)
    row = [proofs.Cell("<b>&`x|y`", "a'b.yaml", " > 1", "2")]
    cell = """<td data-sort="2"><a href="a&#x27;b.yaml">&lt;b&gt;&amp;<code>x|y</code></a> &gt; 1</td>"""
    assert f"<tr>{cell}</tr>" in proofs.html([row]) and "<b>" not in proofs.html([row])


def test_the_map_and_the_guides_are_short():
    assert len((RECIPES / "README.md").read_text(encoding="utf-8").split()) <= 2_500
    for path in (RECIPES / "guides").glob("*.md"):
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        prose = [line for line in text.splitlines() if not line.startswith(("|", "<!--"))]
        assert len(" ".join(prose).split()) <= 900, path


@looped("name", proofs.REFERENCES)
def test_a_reference_is_a_test_of_that_recipe_or_of_its_part(name):
    tested = (ROOT / proofs.REFERENCES[name].file).read_text(encoding="utf-8")
    assert f'"{name}"' in tested or f'"{name.split("-")[0]}"' in tested


def test_the_glossary_is_short():
    glossary = EXTEND.read_text(encoding="utf-8").partition("## Glossary")[2]
    assert 20 < len(re.findall(r"^\| [\w ]+ \| .* \|$", glossary, re.MULTILINE)) <= 41  # with its head


def test_an_attention_of_ones_own_is_short_trains_and_generates(folder):
    (part,) = (block.text for block in blocks("file", EXTEND) if block.value == "fading.py")
    assert len([line for line in part.splitlines() if line.strip()]) < 25
    write_files(EXTEND, folder)
    recipe = small({"attention": {"type": "fading", "num_heads": 2}}, vocab_size="tokenizer", d_model=16) | {
        "data": {"tokenizer": "character", "train": {"type": "text", "files": "words.txt"}, "batch": {"size": 4}},
        "objective": {"type": "causal_lm", "block": 8},
        "train": {"steps": 2},
    }
    (folder / "words.txt").write_text("to be or not to be\nthat is the question\n", encoding="utf-8")
    (folder / "own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    for words in (["train", "own.yaml", "--out", "run"], ["generate", "run", "to", "--max-new-tokens", "3"]):
        result = run(*words, "--import", "fading.py")
        assert result.exit_code == 0, result.output
    wrong = run("check", "gpt2", "--import", "fading.py", "--set", "model.layer.attention.type=fadign")
    assert wrong.exit_code == 2 and "Did you mean 'fading'?" in " ".join(wrong.output.split())
