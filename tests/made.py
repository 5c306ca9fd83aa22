"""The files of made data beside the shipped recipes: `python -m tests.made` writes them, the same bytes each time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "recipes" / "tasks"

# Letters of proteins, as often as they are in nature (per cent, rounded); two conserved motifs each, "." is any letter.
LETTERS = dict(zip("ALGVESIKRDTPNQFYMHCW", (9, 10, 7, 7, 6, 7, 6, 6, 5, 5, 5, 5, 4, 4, 4, 3, 2, 2, 1, 1), strict=True))
MOTIFS = {
    "zinc": "F.C..C...F.....L..H...H",
    "helicase": "A..G.GKT.......DEAD",
    "protease": "TAAHC.......GDSGGP",
    "other": "",
}


def proteins() -> Iterator[str]:
    """Yield families of sequences in FASTA: one ancestor each, mutated but for the motif of its function."""
    draw = random.Random(1)

    def letters(count: int) -> list[str]:
        return draw.choices(list(LETTERS), list(LETTERS.values()), k=count)

    for family in range(120):
        function = list(MOTIFS)[family % len(MOTIFS)]
        motif = MOTIFS[function]
        ancestor = letters(draw.randint(42, 54))
        begin = draw.randint(5, len(ancestor) - len(motif))
        for member in range(8):
            sequence = [new if draw.random() < 0.4 else old for old, new in zip(ancestor, letters(54), strict=False)]
            for place, letter in enumerate(motif):
                if letter != "." and draw.random() < 0.98:
                    sequence[begin + place] = letter
            text = "".join(sequence[draw.randint(0, 4) :])
            yield f">M{family:03}{member} family=f{family:03} function={function}"
            yield from re.findall(".{1,50}", text)


# Rings with places for branches, chains between rings, and groups that begin a molecule or end a branch: valid SMILES.
RINGS = ("c1c{}cc{}cc1", "c1c{}cnc{}c1", "c1c{}c[nH]c1", "c1c{}coc1", "c1c{}sc{}c1", "C1CC{}CC{}C1", "C1CNC{}CC1")
CHAINS = ("C", "CC", "CO", "NC", "C(=O)N", "C=C", "S")
STARTS = ("C", "CC", "CC(C)", "O", "CO", "N", "F", "Cl", "Br", "N#C", "OC(=O)", "NS(=O)(=O)")
ENDS = ("C", "CC", "C(C)C", "O", "OC", "N", "F", "Cl", "Br", "C#N", "C(=O)O", "S(=O)(=O)N")
SYMBOL = r"\[[^\]]+\]|Br|Cl|[A-Za-z]|[^A-Za-z]"
# of each atom: what it adds to the partition coefficient, the mass and the polar surface
ATOMS = {
    "C": (0.4, 12.011, 0), "c": (0.3, 12.011, 0), "N": (-1.0, 14.007, 26.0), "n": (-0.6, 14.007, 12.9),
    "[nH]": (-0.3, 15.015, 15.8), "O": (-0.8, 15.999, 17.1), "o": (0.1, 15.999, 13.1), "S": (0.6, 32.06, 8.4),
    "s": (0.7, 32.06, 0), "F": (0.4, 18.998, 0), "Cl": (0.8, 35.45, 0), "Br": (1.0, 79.904, 0),
}  # fmt: skip


def molecules() -> Iterator[str]:
    """Yield a CSV of SMILES with their scaffold and three properties, a part of which was never measured."""
    draw = random.Random(2)
    yield "name,smiles,scaffold,logp,mass,tpsa"
    for number in range(1300):
        first, second, chain = draw.choice(RINGS), draw.choice((*RINGS, "")), draw.choice(CHAINS)
        rings = first + (chain + second.replace("1", "2") if second else "")
        branches = (f"({draw.choice(ENDS)})" if draw.random() < 0.4 else "" for _ in range(4))
        smiles = draw.choice(STARTS) + re.sub(r"\{\}", lambda _, given=branches: next(given), rings)
        atoms = [ATOMS[symbol] for symbol in re.findall(SYMBOL, smiles) if symbol in ATOMS]
        logp, mass, surface = map(sum, zip(*atoms, strict=True))
        measured = (f"{logp + draw.gauss(0, 0.2):.2f}", f"{mass:.1f}", f"{surface:.1f}")
        cells = (
            "" if draw.random() < missing else cell for cell, missing in zip(measured, (0.3, 0.1, 0.5), strict=True)
        )
        yield f"m{number:04},{smiles},{rings.replace('{}', '')},{','.join(cells)}"


ALLERGY, ANTIDOTE, DRUG = "17", "29", "42"
COMMON = [str(code) for code in range(1, 50) if str(code) not in (ALLERGY, ANTIDOTE, DRUG)]


def events() -> Iterator[str]:
    """Yield a CSV of visits: codes in their order. The drug after the allergy, without the antidote between, is ill."""
    draw = random.Random(3)
    yield "subject,visit,codes,outcome"
    for subject in range(560):
        chronic = [str(code) for code in draw.sample(range(50, 100), 4)]  # what a subject has at each visit
        for visit in range(1, draw.randint(2, 5)):
            codes = [draw.choice((*chronic, draw.choice(COMMON))) for _ in range(draw.randint(6, 14))]
            for code, often in ((ALLERGY, 0.8), (DRUG, 0.8), (ANTIDOTE, 0.4)):
                if draw.random() < often:
                    codes.insert(draw.randint(0, len(codes)), code)
            order = [code for code in codes if code in (ALLERGY, ANTIDOTE, DRUG)]
            ill = f"{ALLERGY} {DRUG}" in " ".join(order)
            yield f"s{subject:03},{visit},{' '.join(codes)},{'ill' if ill ^ (draw.random() < 0.02) else 'well'}"


NOTES = re.findall(r"\^?\w", "C^CD^DEF^FG^GA^ABc^cd^def^fg^ga^ab")
SCALES = {"major": (0, 2, 4, 5, 7, 9, 11, 12), "minor": (0, 2, 3, 5, 7, 8, 10, 12)}
FIVE = {"major": (0, 1, 2, 4, 5, 7), "minor": (0, 2, 3, 4, 6, 7)}  # degrees of the pentatonic scales
METRES = {"waltz": ("2", "2", "2"), "jig": ("", "", "", "", "", ""), "reel": ("", "") * 4}


def tunes() -> Iterator[str]:
    """Yield JSON lines of tunes in ABC, with all that they are called."""
    draw = random.Random(4)
    for number in range(600):
        mode, metre = draw.choice(list(SCALES)), draw.choice(list(METRES))
        tonic, scale = draw.choice((0, 2, 5, 7, 9)), SCALES[mode]
        five, climbing = draw.random() < 0.4, draw.random() < 0.4
        degrees = FIVE[mode] if five else range(8)
        place, symbols = 0, []
        for bar in range(4):
            for beat, length in enumerate(METRES[metre]):
                if bar or beat:
                    place += draw.choice((0, 1, 1, 2) if climbing and bar > 1 else (-2, -1, 0, 1, 2))
                place = min(max(place, 0), len(degrees) - 1)
                symbols.append(NOTES[tonic + scale[degrees[place]]] + length)
            symbols.append("|")
        names = [mode, metre, *["pentatonic"] * five, *["climbing"] * climbing]
        listed = ", ".join(f'"{name}"' for name in sorted(names))
        yield f'{{"id": "t{number:04}", "tune": "{" ".join(symbols)}", "called": [{listed}]}}'


# Three languages of one family: sounds, order of words (subject, verb, object), and the noun's and the verb's ending.
LANGUAGES = {
    "ka": ("ptksmnlraeiou", "sov", "o", "di"),
    "lu": ("ptksmnlraeiou", "sov", "a", "di"),
    "mo": ("ptkzmnlraeeou", "vso", "i", "s"),
}
PAIRS = {"ka-lu": 600, "lu-ka": 200, "lu-mo": 300, "ka-mo": 0}  # how many are for training


def directions() -> Iterator[str]:
    """Yield a CSV of sentences in two of three languages, none of them twice, some of a pair that is never trained."""
    draw, drawn = random.Random(5), set()
    stems = ["".join(draw.choice("ptksmnlr") + draw.choice("aeiou") for _ in range(2)) for _ in range(150)]
    stems = sorted(set(stems))
    draw.shuffle(stems)
    nouns, verbs, adjectives = stems[:50], stems[50:75], stems[75:100]

    def said(sentence: dict[str, list[str]], language: str) -> str:
        sounds, order, noun, verb = LANGUAGES[language]
        change = str.maketrans("ptksmnlraeiou", sounds)
        words = [[*(word.translate(change) for word in sentence[part])] for part in order]
        return " ".join(
            " ".join(group) + (verb if part == "v" else noun) for part, group in zip(order, words, strict=True)
        )

    yield "split,direction,to,source,target"
    for pair, count in PAIRS.items():
        source, target = pair.split("-")
        for split, size in (("train", count), ("valid", 30 if count else 0), ("test", 50)):
            while size:
                phrases = [[draw.choice(adjectives)] * (draw.random() < 0.3) + [draw.choice(nouns)] for _ in "so"]
                sentence = {"s": phrases[0], "o": phrases[1], "v": [draw.choice(verbs)]}
                if (new := said(sentence, "ka")) not in drawn:
                    drawn.add(new)
                    size -= 1
                    yield f"{split},{pair},{target},{said(sentence, source)},{said(sentence, target)}"


FILES: dict[str, Callable[[], Iterator[str]]] = {
    "proteins.fasta": proteins,
    "molecules.csv": molecules,
    "events.csv": events,
    "tune-names.jsonl": tunes,
    "directions.csv": directions,
}


def text(name: str) -> str:
    """Return the content of a file."""
    return "".join(f"{line}\n" for line in FILES[name]())


if __name__ == "__main__":
    for name in FILES:
        (FOLDER / name).write_bytes(text(name).encode("ascii"))
