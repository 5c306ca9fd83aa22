"""Merging (R20), base recipes, variants, --set and overrides."""

import os
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

import pytest

from tfkit.core.errors import RecipeError, UsageError
from tfkit.recipe.compose import compose
from tfkit.recipe.overlays import choices, edited, merge, set_overlay, written
from tfkit.recipe.overlays import overlaid as laid_data
from tfkit.recipe.settings.sections import Data, Generate, Section, Train
from tfkit.recipe.text.source import parse
from tfkit.studies.settings import Study

from ..sampling import looped


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder; calling it writes files into it."""
    monkeypatch.chdir(tmp_path)

    def write(**files):
        for name, text in files.items():
            path = Path(name.replace("__", "/") + ".yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def composed(source, **how):
    result = compose(source, shipped=how.pop("shipped", {}), **how)
    assert not result.faults, result.faults
    return result.root.plain()


def faults_of(source, **how):
    return [str(fault) for fault in compose(source, shipped=how.pop("shipped", {}), **how).faults]


def overlaid(base, over):
    """`over` laid over `base`, both at model.<key> as they are written."""
    faults = []
    trees = [parse(f"model: {{{text}}}", name)[0] for text, name in ((base, "base.yaml"), (over, "over.yaml"))]
    return merge(*trees, faults).get("model"), faults


@looped(
    ("overlays", "expected"),
    [
        ([{"layer.norm.eps": 2}], {"layer": {"norm": {"type": "a", "eps": 2}}}),
        ([{"layer": {"norm": "b"}, "layer.norm.eps": 2}], {"layer": {"norm": {"type": "b", "eps": 2}}}),
        ([{"layer.mask": "m"}, {"layer": {"norm": "none"}, "layer.mask.size": 3}],
         {"layer": {"norm": None, "mask": {"type": "m", "size": 3}}}),
    ],
)  # fmt: skip
def test_data_are_laid_over_a_section_as_variants_are(overlays, expected):
    base = {"layer": {"norm": {"type": "a", "eps": 1}}}
    assert laid_data("model", base, *overlays) == expected
    assert base == {"layer": {"norm": {"type": "a", "eps": 1}}}


def test_all_faults_of_data_are_reported():
    with pytest.raises(RecipeError) as caught:
        laid_data("model", {"head": None, "eps": float("inf")}, {"head.tied": True})
    assert [str(fault).partition(";")[0] for fault in caught.value.faults] == [
        "<mapping>: model.eps: inf: numbers must be finite",
        "<mapping>: model.head: options without a type cannot be merged over none (at <mapping>)",
    ]


@looped(
    ("base", "over", "expected"),
    [
        ("a: {x: 1, y: 2}", "a: {y: 3}", {"a": {"x": 1, "y": 3}}),
        ("mask: [a, b]", "mask: [c]", {"mask": ["c"]}),
        ("d: 1", "d: none", {"d": None}),
        # parts
        ("norm: {type: a, eps: 1}", "norm: {type: b, bias: 2}", {"norm": {"type": "b", "bias": 2}}),
        ("norm: {type: a, eps: 1}", "norm: {type: a, bias: 2}", {"norm": {"type": "a", "eps": 1, "bias": 2}}),
        ("norm: {type: a, eps: 1}", "norm: {eps: 2}", {"norm": {"type": "a", "eps": 2}}),
        ("norm: {type: a, eps: 1}", "norm: a", {"norm": {"type": "a", "eps": 1}}),
        ("norm: {type: a, eps: 1}", "norm: b", {"norm": {"type": "b"}}),
        ("norm: {type: a, eps: 1}", "norm: none", {"norm": None}),
        ("norm: {eps: 1}", "norm: a", {"norm": {"type": "a", "eps": 1}}),
        ("norm: {eps: 1}", "norm: {type: a}", {"norm": {"type": "a", "eps": 1}}),
        ("norm: a", "norm: {eps: 1}", {"norm": {"type": "a", "eps": 1}}),
        ("norm: a", "norm: {type: a, eps: 1}", {"norm": {"type": "a", "eps": 1}}),
        ("norm: a", "norm: {type: b}", {"norm": {"type": "b"}}),
        ("norm: none", "norm: a", {"norm": "a"}),
        ("norm: none", "norm: {type: a}", {"norm": {"type": "a"}}),
        ("norm: true", "norm: {eps: 1}", {"norm": {"eps": 1}}),
        ("position: [a, b]", "position: {type: a}", {"position": {"type": "a"}}),
        # no parts: they merge whatever `type` says
        ("type: encoder, d_model: 3", "type: decoder", {"type": "decoder", "d_model": 3}),
        ("layer: {norm: a}", "layer: {dropout: 1}", {"layer": {"norm": "a", "dropout": 1}}),
        ("layers: {type: {norm: a}}", "layers: {type: {norm: b}}", {"layers": {"type": {"norm": "b"}}}),
        ("layers: {a: {norm: x}, b: {}}", "layers: {b: none}", {"layers": {"a": {"norm": "x"}, "b": None}}),
        ("layers: {a: none}", "layers: {a: {norm: x}}", {"layers": {"a": {"norm": "x"}}}),
        ("memory: none", "memory: {d_model: 3}", {"memory": {"d_model": 3}}),
        ("heads: {a: x}", "heads: {a: {bias: 1}, b: z}", {"heads": {"a": {"type": "x", "bias": 1}, "b": "z"}}),
        # one value a layer is a plain value
        ("size: 3", "size: {per_layer: [1, 2]}", {"size": {"per_layer": [1, 2]}}),
        ("size: {per_layer: [1, 2]}", "size: word", {"size": "word"}),
        ("size: {per_layer: [1, 2]}", "size: {per_layer: [3]}", {"size": {"per_layer": [3]}}),
    ],
)
def test_merging(base, over, expected):
    node, faults = overlaid(base, over)
    assert not faults and node.plain() == expected


def mappings(section, path):
    """The keys of a section whose value may be a mapping or something else, such as none."""
    for name, field in section.model_fields.items():
        at = f"{path}.{name}"
        union = get_origin(field.annotation) in (Union, UnionType)
        forms = get_args(field.annotation) if union else (field.annotation,)
        inner = [form for form in forms if isinstance(form, type) and issubclass(form, Section)]
        free = [form for form in forms if get_origin(form) is dict]
        if (inner or free) and len(forms) > 1:
            yield at
        for form in inner:
            yield from mappings(form, at)


SECTIONS = {"data": Data, "train": Train, "generate": Generate, "study": Study}
MAPPINGS = ["train.evaluations"] + [path for name, section in SECTIONS.items() for path in mappings(section, name)]


@looped("path", MAPPINGS)
@looped("base", ["word", "none", "3"])
def test_a_mapping_that_is_no_part_replaces_any_other_value(path, base):
    assert {"train.init_from", "train.keep", "train.teacher", "study.baseline"} < {*MAPPINGS}
    faults = []
    over, other = set_overlay(f"{path}={{a: 1}}", faults), set_overlay(f"{path}={base}", faults)
    for one, two in ((other, over), (over, other)):
        merged = merge(one, two, faults)
        assert not faults and merged.plain() == two.plain()


@looped(
    ("path", "base", "over", "expected"),
    [
        ("train", "{steps: 3, seed: 1}", "{epochs: 2}", {"seed": 1, "epochs": 2}),
        ("data.batch", "{size: 3, pack: true}", "{tokens: 9}", {"pack": True, "tokens": 9}),
        ("data.batch", "{tokens: 9}", "{size: 3}", {"size": 3}),
        ("data.batch", "{tokens: 9}", "{size: none}", {"tokens": 9, "size": None}),
        ("data.batch", "{tokens: 9}", "{tokens: 8, size: 3}", {"tokens": 8, "size": 3}),
    ],
)
def test_one_of_two_alternatives_replaces_the_other(path, base, over, expected):
    faults = []
    merged = merge(*(set_overlay(f"{path}={text}", faults) for text in (base, over)), faults).plain()
    assert not faults
    for key in path.split("."):
        merged = merged[key]
    assert merged == expected


@looped("value", ["[a, b]", "3", "false", "none", "0.5"])
def test_options_without_a_type_over_no_part(value):
    node, (fault,) = overlaid(f"norm: {value}", "norm: {eps: 1}")
    assert str(fault).startswith("over.yaml:1:15: model.norm: options without a type cannot be merged over ")
    assert "base.yaml:1:15" in fault.message
    assert node.plain() == parse(f"norm: {value}", "x")[0].plain()


@looped(
    ("base", "over", "dropped"),
    [
        ("a: {type: multi_head, num_heads: 8, bias: true}", "a: {type: latent, bias: false}", ["type", "num_heads"]),
        ("a: {type: x, size: 1}", "a: z", ["type", "size"]),
        ("a: x", "a: {type: z}", []),
    ],
)
def test_what_a_change_of_type_drops_is_kept(base, over, dropped):
    node, _ = overlaid(base, over)
    assert [lost.path for lost in node.get("a").dropped] == [f"model.a.{key}" for key in dropped]


def test_what_is_said_again_is_no_longer_dropped():
    first, _ = overlaid("a: {type: x, n: 1, m: 2}", "a: {type: z}")
    node = merge(first, parse("model: {a: {n: 3}}", "third.yaml")[0].get("model"), [])
    assert [(lost.path, lost.value) for lost in node.get("a").dropped] == [("model.a.type", "x"), ("model.a.m", 2)]


def test_merged_values_keep_their_places():
    node, _ = overlaid("a: {type: x, n: 1}, b: {type: x}", "a: {n: 3}, b: {type: z}")
    places = [node.get(one).get(key).place.file for one, key in (("a", "type"), ("a", "n"), ("b", "type"))]
    assert places == ["base.yaml", "over.yaml", "over.yaml"]


def test_file_name_and_text(here):
    here(recipes__mine="model: {d_model: 3}   # as written\n")
    result = compose("recipes/mine.yaml", shipped={})
    assert result.root.plain() == {"model": {"d_model": 3}}
    assert (result.name, result.file) == ("mine", Path("recipes/mine.yaml"))
    assert result.text == "model: {d_model: 3}   # as written\n"
    assert str(result.root.get("model").get("d_model").place) == "recipes/mine.yaml:1:18"
    assert result.variants == {}
    assert composed(Path("recipes/mine.yaml").absolute()) == result.root.plain()


def test_shipped_name_and_mapping(here):
    here(shipped__base="model: {d_model: 3}")
    shipped = {"base": Path("shipped/base.yaml").absolute()}
    result = compose("base", shipped=shipped)
    assert (result.name, str(result.root.place)) == ("base", "shipped/base.yaml:1:1")
    mapping = compose({"extends": "base", "model": {"d_ff": 4}}, shipped=shipped)
    assert mapping.root.plain() == {"model": {"d_model": 3, "d_ff": 4}}
    assert (mapping.name, mapping.file, mapping.text) == ("recipe", None, None)


@looped(
    ("name", "expected"),
    [
        ("bert-bse", "bert-bse: 'bert-bse' is neither a shipped recipe nor a file. Did you mean 'bert-base'?"),
        ("mine", "mine: 'mine' is neither a shipped recipe nor a file. Did you mean 'mine.yaml'?"),
        ("mien.yaml", "mien.yaml: no such file: 'mien.yaml'. Did you mean 'mine.yaml'?"),
        ("models/bert-base.yaml", "no such file: 'models/bert-base.yaml'. Did you mean 'bert-base'?"),
        ("zzzzzzzz", "zzzzzzzz: 'zzzzzzzz' is neither a shipped recipe nor a file"),
        ("\0", "neither"),
        (".", "is a folder"),
        ("broken.yaml", "broken.yaml:1:4"),
        ("words.yaml", "words.yaml:1:1"),
        ("gone.yaml", "gone.yaml: a link to a missing file: 'gone.yaml'"),
        ("round.yaml", "round.yaml: a link that leads back to itself: 'round.yaml'"),
        ("to_round.yaml", "to_round.yaml:1:10: extends: a link that leads back to itself: 'round.yaml'"),
        ("a.yaml", "sub/b.yaml:1:10: extends: forms a circle: a"),
        ("c.yaml", "extends: forms a circle: a.yaml -> sub/b.yaml -> a.yaml"),
        ("d.yaml", "forms a circle: d.yaml -> d.yaml"),
        ("to_link.yaml", "forms a circle"),
        ("r0.yaml", "more than 32 levels"),
    ],
)
def test_what_cannot_be_read_or_extended_is_named(here, name, expected):
    here(mine="a: 1", broken="a: [1", words="hello", to_round="extends: round.yaml", to_link="extends: link.yaml")
    here(a="extends: sub/b.yaml", sub__b="extends: ../a.yaml", c="extends: a.yaml", d="extends: d.yaml")
    here(**{f"r{i}": f"extends: r{i + 1}.yaml" for i in range(40)}, r40="a: 1")
    assert composed("r10.yaml") == {"a": 1}
    for link, target in (("gone", "nowhere"), ("round", "round.yaml"), ("link", "to_link.yaml")):
        if not os.path.lexists(f"{link}.yaml"):
            os.symlink(target, f"{link}.yaml")
    with pytest.raises(RecipeError) as caught:
        compose(name, shipped={"bert-base": Path("bert-base.yaml")})
    assert expected in str(caught.value)
    with pytest.raises(UsageError, match="not an int"):
        compose(3)  # type: ignore[arg-type]


def test_faults_of_the_file_and_of_its_base_are_collected(here):
    here(base="a: yes", mine="extends: base.yaml\nb: 017\nc: 3")
    result = compose("mine.yaml", sets=["d"], shipped={})
    assert len(result.faults) == 3 and result.root.plain()["c"] == 3
    assert any(str(fault).startswith("base.yaml:1:4: a: 'yes' is ambiguous") for fault in result.faults)


def test_extends_chain(here):
    here(
        a="model: {d_model: 1, d_ff: 1, n: 1}",
        sub__b="extends: ../a.yaml\nmodel: {d_ff: 2, n: 2}",
        c="extends: sub/b.yaml\nmodel: {n: 3}",
    )
    result = compose("c.yaml", shipped={})
    assert not result.faults
    assert result.root.plain() == {"model": {"d_model": 1, "d_ff": 2, "n": 3}}
    places = [str(result.root.get("model").get(key).place) for key in ("d_model", "d_ff", "n")]
    assert places == ["a.yaml:1:18", "sub/b.yaml:2:15", "c.yaml:2:12"]
    assert [node.folder for node in result.root.get("model").value.values()] == [Path(), Path("sub"), Path()]


def test_extends_none_is_no_base(here):
    assert composed({"extends": None, "a": 1}) == {"a": 1}


@looped(
    ("extends", "expected"),
    [
        ("bert-bas", "x/mine.yaml:2:10: extends: 'bert-bas' is not a shipped recipe; a path must end in .yaml. Did"),
        ("other", "Did you mean 'other.yaml'?"),
        ("./othr.yaml", "no such file: 'x/othr.yaml'. Did you mean 'other.yaml'?"),
        ("[a, b]", "expected one shipped recipe or path, not a list"),
        ("{a: b}", "not a mapping"),
        ("../x/", "x: is a folder, not a recipe file"),
        ("broken.yaml", "x/broken.yaml:1:4: this bracket is not closed"),
        ('"\\0/x.yaml"', "NUL"),
    ],
)
def test_wrong_extends(here, extends, expected):
    here(x__mine=f"a: yes\nextends: {extends}", x__other="a: 1", x__broken="a: [1")
    try:
        found = faults_of("x/mine.yaml", shipped={"bert-base": Path("bert-base.yaml")})
    except RecipeError as error:
        found = [str(fault) for fault in error.faults]
    assert any("ambiguous" in fault for fault in found) and any(expected in fault for fault in found)


STUDY = """
model: {d_model: 512, layer: {attention: {type: multi_head, num_heads: 8}, dropout: 0.1}, pattern: [a]}
variants:
  wide: {model.d_model: 1024, model.layer.attention.num_heads: 16}
  dry: {model.layer: {dropout: 0}}
  same: {}
  heads: {model.layer.attention.num_heads: [1, 4, 16]}
  kinds: {model.layer.attention: [{type: latent, rank: 3}, linear, {type: multi_head, bias: true}]}
  shallow: {model: {pattern: [b, c]}}
"""


@looped(
    ("chosen", "path", "expected"),
    [
        (["wide"], "d_model", 1024),
        (["wide"], "layer", {"attention": {"type": "multi_head", "num_heads": 16}, "dropout": 0.1}),
        (["wide", "dry"], "layer", {"attention": {"type": "multi_head", "num_heads": 16}, "dropout": 0}),
        (["wide", "heads=4"], "layer", {"attention": {"type": "multi_head", "num_heads": 4}, "dropout": 0.1}),
        (["heads=4", "wide"], "layer", {"attention": {"type": "multi_head", "num_heads": 16}, "dropout": 0.1}),
        (["kinds=latent"], "layer", {"attention": {"type": "latent", "rank": 3}, "dropout": 0.1}),
        (["kinds=linear"], "layer", {"attention": {"type": "linear"}, "dropout": 0.1}),
        (["kinds={bias: true, type: multi_head}"], "layer",
         {"attention": {"type": "multi_head", "num_heads": 8, "bias": True}, "dropout": 0.1}),
        (["same"], "d_model", 512),
        (["shallow"], "pattern", ["b", "c"]),
        ("wide", "d_model", 1024),
    ],
)  # fmt: skip
def test_variants(here, chosen, path, expected):
    here(study=STUDY)
    assert composed("study.yaml", variants=chosen)["model"][path] == expected


def test_chosen_values_have_recipe_paths_and_file_places(here):
    here(study=STUDY)
    root = compose("study.yaml", variants=["heads=4", "wide"], shipped={}).root
    node = root.get("model").get("d_model")
    assert (node.path, str(node.place), node.key_place.line) == ("model.d_model", "study.yaml:4:25", 4)
    assert root.get("model").place.line == 2


@looped(
    ("chosen", "expected"),
    [
        ("wid", "--variant wid: unknown variant 'wid'; available: wide, dry, same, heads=1"),
        ("wid", "Did you mean 'wide'?"),
        ("heads", "'heads' needs a value; use one of heads=1, heads=4, heads=16"),
        ("heads=5", "5 is not a value of 'heads'; use one of heads=1"),
        ("heads=true", "is not a value"),
        ("heads=", "an empty value"),
        ("wide=3", "'wide' has no values to choose from; use --variant wide"),
        ("kinds=other", "use one of kinds={type: latent, rank: 3}, kinds=linear, kinds={type: multi_head, bias: true}"),
        ("", "unknown variant"),
    ],
)
def test_wrong_choices(here, chosen, expected):
    here(study=STUDY)
    (line,) = faults_of("study.yaml", variants=[chosen])
    assert expected in line


@looped(
    ("entry", "expected"),
    [
        ("3", "variants.v: expected a mapping of dotted keys to values, got the number 3"),
        ("[a]", "got a list"),
        ("{model..x: 3}", "expected a dotted key, such as model.layer.dropout, got 'model..x'"),
        ("{'model.pattern[2]': 3}", "cannot set a single item of a list"),
        ("{extends: x}", "'extends' can only be set in the recipe file"),
        ("{variants.v.x: 3}", "'variants' can only be set in the recipe file"),
        ("{model.x: []}", "at least one value"),
        ("{model.norm: none, model.norm.eps: 3}", "options without a type cannot be merged over none"),
    ],
)
def test_wrong_variants_are_reported_whether_chosen_or_not(here, entry, expected):
    here(mine=f"model: {{}}\nvariants: {{v: {entry}}}")
    (line,) = faults_of("mine.yaml")
    assert expected in line
    assert line.startswith("mine.yaml:2:")


def test_variants_that_cannot_be(here):
    keys = ", ".join(f"k{number}: {{}}" for number in range(20_000))  # each is merged over those before it
    here(mine=f"model: {{}}\nvariants: {{many: {{{keys}}}}}")
    assert "variants.many: has 20,000 keys; the limit is 1,000" in faults_of("mine.yaml")[0]
    assert "expected a mapping from names to variants, got a list" in faults_of({"variants": ["a"]})[0]
    assert "available: none" in faults_of({"a": 1}, variants=["x"])[0]


def test_variants_are_inherited_by_name(here):
    here(
        base="m: {a: 0}\nvariants: {x: {m.a: 1, m.b: 1}, y: {m.a: 2}, z: {m.a: 3}}",
        mine="extends: base.yaml\nvariants: {x: {m.a: 9}, z: none, n: {m.a: [4, 5]}}",
    )
    result = compose("mine.yaml", variants=["x"], shipped={})
    assert result.root.plain() == {"m": {"a": 9}}  # an entry is replaced whole
    assert choices(result.variants) == ["x", "y", "n=4", "n=5"]
    assert composed("mine.yaml", variants=["y"]) == {"m": {"a": 2}}


def test_sets_in_order_after_variants_and_overrides(here):
    here(study=STUDY)
    how = {"variants": ["wide"], "overrides": {"model.d_model": 3}}
    assert composed("study.yaml", **how)["model"]["d_model"] == 3
    assert composed("study.yaml", **how, sets=["model.d_model=4", "model.d_model=5"])["model"]["d_model"] == 5


HEADS = {"type": "multi_head", "num_heads": 8}


@looped(
    ("text", "expected"),
    [
        ("model.layer.attention.num_heads=4", HEADS | {"num_heads": 4}),
        ("model.layer.attention={num_heads: 4}", HEADS | {"num_heads": 4}),
        ("model.layer.attention=latent", {"type": "latent"}),
        ("model.layer.attention=none", None),
        ("model.layer.attention.out.path=a=b", HEADS | {"out": {"path": "a=b"}}),
    ],
)
def test_sets(text, expected):
    base = {"model": {"layer": {"attention": HEADS}}}
    assert composed(base, sets=text)["model"]["layer"]["attention"] == expected


def test_set_into_a_word_and_a_new_section():
    composed_norm = composed({"norm": "a"}, sets=["norm.eps=1", "x.y.z=2"])
    assert composed_norm == {"norm": {"type": "a", "eps": 1}, "x": {"y": {"z": 2}}}
    assert composed({"train": {"keep": "best"}}, sets=["train.keep.mean=3"]) == {"train": {"keep": {"mean": 3}}}


def test_places_of_sets_and_overrides(here):
    here(mine="model:\n  layer: {norm: a}")
    root = compose("mine.yaml", sets=["model.d_model= 3"], overrides={"model.layer.x": 1}, shipped={}).root
    node = root.get("model").get("d_model")
    assert (str(node.place), str(node.key_place)) == ("--set model.d_model= 3", "--set model.d_model= 3")
    assert node.folder is None
    assert str(root.get("model").get("layer").get("x").place) == "<overrides>"
    # what is missing in a mapping is told where the file says it, not at the --set that only passes through
    assert str(root.get("model").place) == "mine.yaml:2:3"
    assert str(root.get("model").get("layer").place) == "mine.yaml:2:10"


@looped(
    ("text", "expected"),
    [
        ("model.d_model", "--set model.d_model: expected key=value"),
        ("=3", "--set =3: expected a dotted key, such as model.layer.dropout, got ''"),
        ("a..b=1", "expected a dotted key, such as model.layer.dropout, got 'a..b'"),
        (".a=1", "expected a dotted key"),
        ("a.=1", "expected a dotted key"),
        ("model.pattern[2]=3", "'model.pattern[2]': cannot set a single item of a list"),
        ("extends=x", "'extends' can only be set in the recipe file"),
        ("variants.a.b=1", "'variants' can only be set in the recipe file"),
        ("a=yes", "--set a=yes: a: 'yes' is ambiguous"),
        ("a=", "--set a=: a: an empty value"),
        ("a=[1", "--set a=[1: a: this bracket is not closed"),
        ("none.eps=1", "--set none.eps=1: none: options without a type cannot be merged over none"),
        ("list.eps=1", "cannot be merged over a list"),
    ],
)
def test_wrong_sets(text, expected):
    (line,) = faults_of({"none": None, "list": [1]}, sets=[text])
    assert expected in line


def test_wrong_overrides():
    lines = faults_of({"a": 1}, overrides={"a..b": 1, "a[0]": 2, 3: 4, "x": object(), "extends": "y"})
    assert len(lines) == 5
    assert all(line.startswith("<overrides>: ") for line in lines)
    assert composed({"a": {"b": 1}}, overrides={"a": {"b": None}, "c": (1, 2)}) == {"a": {"b": None}, "c": [1, 2]}


WRITTEN = {
    "tfkit": 1,
    "model": {"layer": {"norm": "rms_norm", "attention": HEADS}, "head": None},
    "variants": {"it's: odd": {"model.d_model": [1, 2.5, True, "none", "1e3", "ü # x", ""]}, "empty": {}},
    "data": {"train": {"files": [f"{'long' * 20}{number}.txt" for number in range(3)], "type": "text"}},
}


def test_what_is_written_reads_the_same():
    text = written(WRITTEN)
    assert parse(text, "<text>")[0].plain() == WRITTEN and written({}) == "{}\n"
    for key, value, expected in (
        ("model.layer.attention.num_heads", 4, HEADS | {"num_heads": 4}),
        ("model.layer.attention", {"type": "linear"}, {"type": "linear"}),
    ):
        assert parse(edited(text, key, value), "<text>")[0].plain()["model"]["layer"]["attention"] == expected
    for key in ("extends", "variants.wide", "model..d_model"):
        with pytest.raises(RecipeError):
            edited(text, key, "x")
