"""Recipes with made data: the files are those of their generators, and each recipe beats a cheap baseline."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests import made

RECIPES = ("proteins", "protein-functions", "molecules", "events", "tune-names", "directions")


def test_the_files_are_those_of_their_generators() -> None:
    files = {name: (made.FOLDER / name).read_bytes() for name in made.FILES}
    assert {name: made.text(name).encode("ascii") for name in made.FILES} == files
    assert sum(map(len, files.values())) <= 400_000
    for name in RECIPES:
        lines = (made.FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        assert sum(not line.startswith("#") for line in lines) <= 30, name


def trained(name: str, folder: Path, **overrides: Any) -> tfkit.Run:
    recipe = tfkit.load_recipe(name, overrides={"train.device": "cpu", "train.samples": 0, **overrides})
    return tfkit.train(recipe, out=folder / name, progress=False)


def scores(name: str, folder: Path, **overrides: Any) -> dict[str, float]:
    return trained(name, folder, **overrides).evaluate()


@pytest.mark.full
def test_proteins_are_more_than_their_letters_and_functions_hold_for_new_families(tmp_path: Path) -> None:
    letters = Counter("".join(line for line in made.proteins() if not line.startswith(">")))
    entropy = -sum(count / letters.total() * math.log(count / letters.total()) for count in letters.values())
    run = trained("proteins", tmp_path)
    assert run.evaluate()["loss"] < entropy - 0.2
    with open(run.folder / "splits.csv", encoding="utf-8") as file:
        test = {row["id"] for row in csv.DictReader(file) if row["split"] == "test"}
    shares, even = [], []
    for name, function, sequence in re.findall(r">(\w+) \S+ function=(\w+)\n([A-Z\n]+)", made.text("proteins.fasta")):
        text = sequence.replace("\n", "")
        motif = re.search(made.MOTIFS[function], text)
        if name in test and function != "other" and motif is not None:
            places = [place for place in range(*motif.span()) if made.MOTIFS[function][place - motif.start()] != "."]
            hidden = places.pop(len(places) // 2)
            seen = run.attention(f"{text[:hidden]}<mask>{text[hidden + 1 :]}")
            rows = [weights[hidden + 1] for each in seen.maps for weights in each.weights]  # after the start token
            shares.append([float(row[[place + 1 for place in places]].sum()) for row in rows])
            even.append(len(places) / len(rows[0]))
    best = max(sum(share) for share in zip(*shares, strict=True))  # the head that looks at the rest of the motif most
    assert best > 2 * sum(even) and len(even) > 20
    init = {"run": str(run.folder), "new": ["head.*"], "unused": ["head.*"]}
    begun = scores("protein-functions", tmp_path, **{"train.init_from": init})
    assert begun["accuracy"] > 75  # one of four functions: 25


@pytest.mark.full
def test_molecules_have_three_properties(tmp_path: Path) -> None:
    found = scores("molecules", tmp_path, **{"train.steps": 400})
    assert min(found[f"r2.{name}"] for name in ("logp", "mass", "tpsa")) > 50  # the mean: at most 0


@pytest.mark.full
def test_the_order_of_events_is_learned(tmp_path: Path) -> None:
    found = scores("events", tmp_path, **{"train.steps": 400})
    rows = list(csv.DictReader(made.events()))
    most = 100 * sum(row["outcome"] == "well" for row in rows) / len(rows)
    assert found["auc"] > 80 and found["accuracy"] > most + 5 and found["macro_f1"] > 70


@pytest.mark.full
def test_tunes_have_their_names(tmp_path: Path) -> None:
    called = [json.loads(line)["called"] for line in made.tunes()]
    often = sorted(Counter(name for names in called for name in names).values(), reverse=True)
    constant = max(200 * sum(often[:n]) / (n * len(called) + sum(often)) for n in range(1, len(often) + 1))
    found = scores("tune-names", tmp_path, **{"train.steps": 500})
    assert found["micro_f1"] > constant + 10 and found["auc"] > 80


@pytest.mark.full
def test_directions_reach_a_pair_that_is_never_trained(tmp_path: Path) -> None:
    found = scores("directions", tmp_path)
    assert min(found[f"exact_match.{pair}"] for pair, count in made.PAIRS.items() if count) > 60
    assert found["exact_match.ka-mo"] > 20
