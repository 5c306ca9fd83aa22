"""Reading recipe text: values, places, and everything that must be refused."""

import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import numpy
import pytest
import yaml

from tfkit.core.errors import Place, RecipeError
from tfkit.recipe.text import source
from tfkit.recipe.text.node import Node, inline
from tfkit.recipe.text.source import from_mapping, from_value, parse, parse_value, read

from ..sampling import looped

SET = Place("--set k=..")


@pytest.fixture(params=["C", "Python"])
def either_parser(request, monkeypatch):
    """Run a test with the C parser and with the pure one, which is used if libyaml is missing."""
    if request.param == "Python":
        monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)


def good(text):
    root, faults = parse(text, "r.yaml")
    assert not faults
    return root.plain()


def said(text):
    """The faults of a text, one per line as they are printed."""
    return [str(fault) for fault in parse(text, "r.yaml")[1]]


def value(text):
    node, faults = parse_value(text, SET, "k")
    assert not faults
    return node.plain()


@pytest.mark.usefixtures("either_parser")
@looped(
    ("written", "meant"),
    [
        ("none", None),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("1e-9", 1e-9),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("1_000.5", 1000.5),
        ("-0.0", 0.0),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("local*2", "local*2"),
        ("1/sqrt_d_model", "1/sqrt_d_model"),
        ("_1", "_1"),
        ("'yes'", "yes"),
        ('"none"', "none"),
        ("'017'", "017"),
        ("''", ""),
        ("{}", {}),
        ("[]", []),
        ("[1, [a, {b: none}]]", [1, ["a", {"b": None}]]),
    ],
)
def test_values(written, meant):
    found = good(f"key: {written}\n")["key"]
    assert found == meant and type(found) is type(meant)


@pytest.mark.usefixtures("either_parser")
@looped(
    ("written", "part"),
    [
        ("", "an empty value; write a value"),
        ("~", "an empty value"),
        ("null", "an empty value"),
        ("NULL", "an empty value"),
        ("yes", "'yes' is ambiguous"),
        ("Off", "write true or false, or quote it"),
        ("n", "'n' is ambiguous"),
        ("None", "write none"),
        ("017", "write 17, or '017' in quotes"),
        (".inf", "finite"),
        ("-.INF", "finite"),
        (".nan", "finite"),
        ("1e999", "too large"),
        ("1e-999", "too small"),
        ("9" * 5000, "a number with 5,000 characters"),
        ("!!python/object/apply:os.system [echo]", "the tag !!python/object/apply:os.system is not allowed"),
        ("!x 3", "the tag !x is not allowed"),
        ("!!str 3", "the tag !!str is not allowed"),
        ("*nowhere", "this alias needs an earlier anchor &nowhere"),
        ("&me [*me]", "refers to a value that contains it"),
        ('"a\\0b"', "NUL"),
    ],
)
def test_refused_values(written, part):
    (fault,) = parse(f"key: {written}\n", "r.yaml")[1]
    assert part in fault.message and fault.path.startswith("key") and fault.line == 1


@looped(
    ("text", "part"),
    [
        ("-1: a", "r.yaml:1:1: a key must be a word, not -1"),
        ("true: a", "a key must be a word"),
        ("null: a", "empty"),
        ("m: {1_0: 2}", "a key must be a word"),
        ("m: {01: 2}", "starts with a zero"),
        ("m: {1: 2, '1': 3}", "duplicate key"),
        ("a: {<<: 3}", "needs a mapping"),
        ("x: &x {}\na: {<<: *x, <<: *x}", "duplicate key"),
        ("? [a]\n: b", "a key must be a plain word"),
        ("&a b: 1", "tags and anchors of keys"),
        ("m: {2.5: a}", "r.yaml:1:5: m: a key must be a word, not 2.5"),
    ],
)
def test_refused_keys(text, part):
    assert part in said(text)[0]


@looped(
    ("text", "meant"),
    [
        ("a: |\n  1\nb: >\n  yes\n", {"a": "1\n", "b": "yes\n"}),
        ("'1': a\non: b\nmodel.d_model: c", {"1": "a", "on": "b", "model.d_model": "c"}),
        ("m: {0: 2, 1: 4}", {"m": {"0": 2, "1": 4}}),  # a key may be the number of a layer
        (b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("\ufeffa: 1", {"a": 1}),
        ("a: {'<<': 3}", {"a": {"<<": 3}}),
    ],
)
def test_texts(text, meant):
    assert good(text) == meant


def test_places_and_paths():
    root, faults = parse("model:\n  layer: {ä: 1, norm: x}\n  pattern: [a, [b]]\n", "some/r.yaml")
    assert not faults
    layer = root.get("model").get("layer")
    norm, pattern = layer.get("norm"), root.get("model").get("pattern")
    assert (norm.path, norm.place, norm.key_place) == (
        "model.layer.norm",
        Place("some/r.yaml", 2, 23),
        Place("some/r.yaml", 2, 17),
    )
    assert pattern.value[1].value[0].path == "model.pattern[1][0]"
    assert norm.folder == Path("some")
    assert parse_value("1", SET, "k")[0].folder is None
    assert from_mapping({"a": 1})[0].folder is None


def test_faults_have_the_place_of_their_key():
    assert said("a: 1\nmodel:\n  norm:\n\n\nb: 2\n") == [
        "r.yaml:3:3: model.norm: an empty value; write a value, none, or {} for no change"
    ]
    assert said("m:\n  a: 1\n  b: 2\n  a: 3\n") == ["r.yaml:4:3: m.a: duplicate key, first set at r.yaml:2:3"]


def test_many_faults_at_once_also_before_a_syntax_error():
    faults = said("a: yes\nb: 017\nc: !t 1\n-1: x\nd: *no\na: 3\n")
    assert [line.split(":")[1] for line in faults] == ["1", "2", "3", "4", "5", "6"]
    assert len(said("a: yes\nb: [1, 2\n")) == 2


def test_aliases_copy_with_their_own_paths():
    root, faults = parse("a: &x {b: [1]}\nc: {d: *x}\n", "r.yaml")
    assert not faults
    copied = root.get("c").get("d").get("b").value[0]
    assert (copied.path, copied.place.line) == ("c.d.b[0]", 1)


def test_merge_keys():
    text = "x: &x {a: 1, b: 2}\ny: &y {b: 5, c: 6}\nz: {b: 3, <<: *x}\nw: {<<: [*x, *y]}\nv: {<<: {e: 1}}\n"
    found = good(text)
    assert found["z"] == {"a": 1, "b": 3}
    assert found["w"] == {"a": 1, "b": 2, "c": 6}
    assert found["v"] == {"e": 1}
    assert parse(text, "r")[0].get("w").get("c").path == "w.c"


BOMBS = {
    "bomb": "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "doubling": "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 30)),
    "lists": "a: " + "[" * 5000,
    "as many as the parser takes": "a: " + "[" * 1001,
    "mappings": "a: " + "{a: " * 5000,
    "block": "- " * 5000,
    "keys": "? " * 5000,
    "lines": "\n".join(" " * i + "a:" for i in range(70)) + " 1",
    "wide": "a: [" + "x," * 120_000 + "]",
    "deep alias": "a: " + "[" * 40 + "&x " + "[" * 20 + "1" + "]" * 60 + "\nb: " + "[" * 60 + "*x" + "]" * 60,
}


@pytest.mark.full
@looped("name", BOMBS)
def test_bombs_are_refused(name):
    root, faults = parse(BOMBS[name], "r.yaml")
    assert root.value is None
    assert any("deeper than 64" in fault.message or "too large" in fault.message for fault in faults)


def test_sizes_are_bounded(monkeypatch, tmp_path):
    assert not said("a: " + "[" * 63 + "1" + "]" * 63)
    text = "".join(" " * i + "k" * 900 + ":\n" for i in range(60)) + " " * 60 + "[" + "x," * 50_000 + "]"
    assert any("too large" in line for line in said(text))
    (tmp_path / "big.yaml").write_bytes(b"a: 1\n" * 400_000)
    with pytest.raises(RecipeError, match="larger than 1,000,000 bytes"):
        read(tmp_path / "big.yaml")
    assert "larger than" in said("# " + "x" * 1_000_000)[0] and "larger than" in said(b"# " + b"x" * 1_000_000)[0]
    monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)
    for text in ("a: " + "[" * 5000, "- " * 5000, "a: " + "{a: " * 5000):
        assert "deeper than 64" in said(text)[0]


@looped(
    ("text", "expected"),
    [
        ("a: 1\n\tb: 2", "r.yaml:2:1: a tab in the indentation; YAML needs spaces"),
        ("a:\n\tb: 2", "r.yaml:2:1: a tab in the indentation; YAML needs spaces"),
        ("a: [1, 2\n", "r.yaml:1:4: this bracket is not closed"),
        ("a: {x: 1", "r.yaml:1:4: this bracket is not closed"),
        ("a: [1\nb: 2", "r.yaml:2:2: expected ',' or ']' in this list, opened at line 1, column 4"),
        ("a: 'x\n\n", "r.yaml:1:4: this quote is not closed"),
        ("a: 1\n b: 2", "r.yaml:2:3: a ':' is not allowed here; check the indentation of this line, or quote the text"),
        ("a: @x", "r.yaml:1:4: a value cannot start with '@'; quote it"),
        ("- a\nb: 1", "r.yaml:2:1: this does not match the list above; check the indentation"),
        ("a: {b: 1}}", "r.yaml:1:10: this does not match the lines above; check the indentation and the brackets"),
        ("{a: b}}", "r.yaml:1:7: unexpected text after the end of the recipe"),
        ('a: "\\q"', "r.yaml:1:5: unknown escape"),
        ("a: *", "r.yaml:1:5: '*' starts an alias; quote it if it is text"),
        ("a: !e!x 1", "r.yaml:1:4: tags are not allowed"),
        ("a: 1\n---\nb: 2", "r.yaml:2:1: a second document starts here"),
        ("", "r.yaml:1:1: the file is empty"),
        ("# nothing\n", "r.yaml:1:1: the file is empty"),
        ("---\n", "r.yaml:1:1: the file is empty"),
        ("[a]", "r.yaml:1:1: expected a mapping of keys to values, got a list"),
        ("bert", "r.yaml:1:1: expected a mapping of keys to values, got the word 'bert'"),
        ("a: \x00b", "r.yaml:1:4: the character U+0000 is not allowed in a recipe"),
        ("a: 1\nb: \x1b[0m", "r.yaml:2:4: the character U+001B is not allowed in a recipe"),
        ("a: \ud800", "r.yaml:1:4: the character U+D800 is not allowed in a recipe"),
        (b"a: 1\nb: \xc3\xa4\xff", "r.yaml:2:5: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("a: 1".encode("utf-16"), "r.yaml:1:1: this is UTF-16; save the file as UTF-8"),
    ],
)
def test_syntax(text, expected):
    (line,) = said(text)
    assert line.startswith(expected)


def test_syntax_errors_of_the_pure_parser_have_places(monkeypatch):
    monkeypatch.setattr(source, "_LOADER", yaml.SafeLoader)
    for text in ("a: [1, 2", "a: {x", "a: 'x", "a: @", "a:\n\tb: 1", "- a\nb: 1", 'a: "\\U00110000"', "a: [}"):
        fault = parse(text, "r.yaml")[1][-1]
        assert fault.line
        assert "this is not YAML" not in fault.message or "chr()" in fault.message


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("a: 1")
    Path("link").mkdir()
    Path("link/link.yaml").symlink_to("nowhere")
    for path, part in [
        ("mien.yaml", "mien.yaml: no such file. Did you mean 'mine.yaml'?"),
        (".", "is a folder, not a recipe file. Did you mean 'mine.yaml'?"),
        ("mine.yaml/x", "cannot be read: Not a directory"),
        ("no\0name", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        ("nowhere/x.yaml", "nowhere/x.yaml: no such file"),
        ("link/link.yaml", "link.yaml: a link to a missing file"),
    ]:
        with pytest.raises(RecipeError) as caught:
            read(path)
        assert part in str(caught.value)
        assert caught.value.faults[0].file == path
    assert read("mine.yaml")[0].get("a").place == Place("mine.yaml", 1, 4)


@looped(
    ("text", "meant"),
    [
        ("[a, b]", ["a", "b"]),
        ("{type: x, d_ff: 3}", {"type": "x", "d_ff": 3}),
        ("runs/x.yaml", "runs/x.yaml"),
        ("C:\\x", "C:\\x"),
        ("http://h:80/a?b=c", "http://h:80/a?b=c"),
        ("two words", "two words"),
        ("'a: b, #c'", "a: b, #c"),
        (" 3 ", 3),
        ("a#b", "a#b"),
    ],
)
def test_set_values(text, meant):
    assert value(text) == meant


@looped(
    ("text", "part"),
    [
        ("", "an empty value"),
        ("# all gone", "an empty value"),
        ("fix #3", "unexpected '#3' after the value"),
        ("a,", "after the value"),
        ("a, b", "several values; write a list as [a, b]"),
        ("a: b", "a mapping needs braces: {key: value}"),
        ("a]", "unexpected text"),
        ("a]\n---\n[b", ""),
        ("]\n[", "empty"),
        ("[a", "is not closed"),
        ("!!python/name:os.system", "is not allowed"),
        ("\udcff", "U+DCFF"),
        ("x" * 1_000_001, "longer"),
    ],
)
def test_refused_set_values(text, part):
    node, faults = parse_value(text, SET, "k")
    assert faults and part in faults[0].message and faults[0].place == SET
    assert faults[0].path.startswith("k") and node.path == "k"


def test_mappings():
    root, faults = from_mapping({"a": None, "b": "none", "c": (1, [True]), "d": {"e": Path("x/y")}, "f": "yes"})
    assert not faults
    assert root.plain() == {"a": None, "b": None, "c": [1, [True]], "d": {"e": "x/y"}, "f": "yes"}
    assert root.get("c").value[1].value[0].path == "c[1][0]"
    assert str(root.get("a").place) == "<mapping>"


class Odd(StrEnum):
    ONE = "one"


@looped(
    "bad",
    [numpy.float32(1), numpy.int64(1), Odd.ONE, object(), {1, 2}, b"x", 1j, float("nan"), float("inf"), "\0"],
)
def test_odd_values_of_mappings(bad):
    (fault,) = from_mapping({"model": {"x": bad}})[1]
    assert (fault.path, str(fault.place)) == ("model.x", "<mapping>")


def test_keys_of_mappings():
    root, faults = from_mapping({"a": {-1: 2, Odd.ONE: 3, "b": 4, 0: 2}})
    assert len(faults) == 2 and root.plain() == {"a": {"b": 4, "0": 2}}


def test_endless_mappings_are_refused():
    endless = {}
    endless["a"] = endless
    wide = [1] * 10
    for _ in range(8):
        wide = [wide] * 10
    for data, part in ((endless, "deeper"), ({"a": wide}, "too large")):
        root, (fault,) = from_mapping(data)
        assert root.value is None
        assert part in fault.message
    assert "deeper" in from_value(endless, SET, "k")[1][0].message


@looped(
    "data",
    [None, True, 3, 1e-9, "word", "yes", "No", "1", "a b", "", "x: y", [1, "a"], {"a": [None]}, "none", "#", "ä\n"],
)
def test_inline_reads_back(data):
    assert value(inline(data)) == data


def test_nodes_do_not_change():
    with pytest.raises(AttributeError):
        Node(1, SET).value = 2  # type: ignore[misc]


def test_reading_recipes_needs_no_torch():
    code = "import tfkit.recipe.compose, sys; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
