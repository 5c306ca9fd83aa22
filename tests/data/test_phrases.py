"""The phrases against num2words, babel, an independent clock table, and hand-written German."""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import date
from itertools import product
from typing import Any

import pytest
from babel.dates import get_day_names, get_month_names
from num2words import num2words

from tfkit.core.options import Slot
from tfkit.data.phrases import _FAMILIES as FAMILIES
from tfkit.data.phrases import KIND_SIZES, KINDS, MOST, Phrase, split
from tfkit.data.phrases import _clock as clock
from tfkit.data.phrases import _date_in_year as date_in_year
from tfkit.data.phrases import _draw as draw
from tfkit.data.phrases import _half_day_clock as half_day_clock
from tfkit.data.phrases import _shares as shares
from tfkit.data.phrases import _year as year_words
from tfkit.data.words import Noun, number_in_english, number_in_german, ordinal_in_english, ordinal_in_german

from ..sampling import looped, some

pytestmark = pytest.mark.full

NUMBERS = [*range(1_000), *random.Random(0).sample(range(1_000, 1_000_000), 2_000), 999_999]
CROWD = 20_000
GOLD_NUMBERS = (*range(100), 100, 107, 201, 241, 301, 500, 900, 1016, 101_031)
VALUES = {num2words(n): n for n in (*range(20), *range(20, 100, 10))}

# Written by hand, not taken from the module.
GOLD = {
    "number": """
        zero = null
        one = eins
        seventeen = siebzehn
        twenty-one = einundzwanzig
        seventy-six = sechsundsiebzig
        one hundred = einhundert
        two hundred one = zweihunderteins
        two hundred forty-one = zweihunderteinundvierzig
        one thousand sixteen = eintausendsechzehn
        one hundred one thousand thirty-one = einhunderteintausendeinunddreißig
    """,
    "time": """
        one o'clock = ein Uhr
        seven o'clock = sieben Uhr
        half past three = halb vier
        half past twelve = halb eins
        quarter past one = Viertel nach eins
        quarter to one = Viertel vor eins
        twenty-five past three = fünf vor halb vier
        twenty-five to four = fünf nach halb vier
        twenty past six = zwanzig nach sechs
        one minute past two = eine Minute nach zwei
        twenty-one minutes to ten = einundzwanzig Minuten vor zehn
        at half past eleven = um halb zwölf
        three forty-five p.m. = fünfzehn Uhr fünfundvierzig
        one oh-one a.m. = ein Uhr eins
        twelve a.m. = null Uhr
        twelve p.m. = zwölf Uhr
        twelve thirty a.m. = null Uhr dreißig
        nine p.m. = einundzwanzig Uhr
        every Wednesday at five to eight = jeden Mittwoch um fünf vor acht
        on Monday at one o'clock = am Montag um ein Uhr
        on Saturday afternoon at quarter to four = am Samstagnachmittag um Viertel vor vier
        on Thursday morning at ten o'clock = am Donnerstagmorgen um zehn Uhr
        on Friday at eight oh-five p.m. = am Freitag um zwanzig Uhr fünf
        from half past nine until quarter past five = von halb zehn bis Viertel nach fünf
    """,
    "date": """
        the third of May, nineteen ninety-nine = der dritte Mai neunzehnhundertneunundneunzig
        May third, nineteen ninety-nine = der dritte Mai neunzehnhundertneunundneunzig
        on the first of March = am ersten März
        on July thirty-first, twenty fifteen = am einunddreißigsten Juli zweitausendfünfzehn
        since the seventh of December, nineteen oh-one = seit dem siebten Dezember neunzehnhunderteins
        until October eighth, two thousand five = bis zum achten Oktober zweitausendfünf
        January sixteenth, eleven hundred = der sechzehnte Januar elfhundert
        June twentieth, two thousand = der zwanzigste Juni zweitausend
        the twenty-ninth of February = der neunundzwanzigste Februar
        Sunday, the thirtieth of April = Sonntag, der dreißigste April
        from the second to the eleventh of August = vom zweiten bis zum elften August
    """,
    "price": """
        one euro = ein Euro
        twelve dollars and five cents = zwölf Dollar und fünf Cent
        one dollar and one cent = ein Dollar und ein Cent
        one pound and one penny = ein Pfund und ein Penny
        three hundred one pounds and twenty pence = dreihundertein Pfund und zwanzig Pence
        twenty-one Swiss francs and two centimes = einundzwanzig Schweizer Franken und zwei Rappen
        the red apple costs one euro = der rote Apfel kostet einen Euro
        the bridge costs one pound = die Brücke kostet ein Pfund
        the small white house costs nine hundred dollars = das kleine weiße Haus kostet neunhundert Dollar
        the three red apples cost ninety-nine euros = die drei roten Äpfel kosten neunundneunzig Euro
        the two lamps cost one Swiss franc = die zwei Lampen kosten einen Schweizer Franken
        five apples at two euros each = fünf Äpfel zu je zwei Euro
        two old books at eleven dollars each = zwei alte Bücher zu je elf Dollar
    """,
    "quantity": """
        one red apple = ein roter Apfel
        one red flower = eine rote Blume
        one red house = ein rotes Haus
        one big black dog = ein großer schwarzer Hund
        two hundred one small houses = zweihundertein kleine Häuser
        twenty-one cities = einundzwanzig Städte
        six windows = sechs Fenster
        three beautiful white cats = drei schöne weiße Katzen
        with one red apple = mit einem roten Apfel
        with one old door = mit einer alten Tür
        with one new green car = mit einem neuen grünen Auto
        with three red apples = mit drei roten Äpfeln
        with twelve cars = mit zwölf Autos
        with seven flowers = mit sieben Blumen
        with two spoons = mit zwei Löffeln
        with four small mice = mit vier kleinen Mäusen
        without one key = ohne einen Schlüssel
        without one small tree = ohne einen kleinen Baum
        without one yellow bottle = ohne eine gelbe Flasche
        without one cheap bed = ohne ein billiges Bett
        without ten blue chairs = ohne zehn blaue Stühle
        one bottle of water = eine Flasche Wasser
        one liter of milk = ein Liter Milch
        three cups of coffee = drei Tassen Kaffee
        five hundred grams of flour = fünfhundert Gramm Mehl
        two kilograms of cheese = zwei Kilogramm Käse
    """,
    "rank": """
        the first small egg = das erste kleine Ei
        the third ball = der dritte Ball
        the two hundred forty-first ship = das zweihunderteinundvierzigste Schiff
        the one hundred seventh city = die einhundertsiebte Stadt
        with the second old horse = mit dem zweiten alten Pferd
        with the twelfth blue lamp = mit der zwölften blauen Lampe
        without the eighth table = ohne den achten Tisch
        without the twentieth cheap red bottle = ohne die zwanzigste billige rote Flasche
        without the one hundredth book = ohne das einhundertste Buch
    """,
}
GOLD_PAIRS = [
    Phrase(*line.strip().split(" = "), kind=kind) for kind, lines in GOLD.items() for line in lines.strip().splitlines()
]


@pytest.fixture(scope="module")
def crowd() -> list[Phrase]:
    return split(CROWD, 0, 0, seed=7)[0]


def in_english(n: int, to: str = "cardinal") -> str:
    return num2words(n, to=to).replace(",", "").replace(" and ", " ")


def in_german(n: int, to: str = "cardinal") -> str:
    # num2words writes "einhunderteinstausend"; only the last syllable of a number is "eins".
    return num2words(n, lang="de", to=to).replace("einstausend", "eintausend")


def all_pairs(*makers: str) -> dict[str, tuple[str, str]]:
    """Every phrase of the families whose maker has one of these names, by English text."""
    families = [family for group in FAMILIES.values() for family in group if family.make.__name__ in makers]
    pairs = (family.pair(index) for family in families for index in range(family.size))
    return {english: (english, german) for english, german in pairs}


def test_numbers_match_num2words() -> None:
    for n in NUMBERS:
        assert number_in_english(n) == in_english(n)
        assert number_in_german(n) == in_german(n)


def test_ordinals_match_num2words() -> None:
    for n in range(1, 1000):
        assert ordinal_in_english(n) == in_english(n, "ordinal")
        # num2words shortens this one ordinal; both forms are German, and "einhundertste" goes with "einhundert".
        assert ordinal_in_german(n) == ("einhundertste" if n == 100 else in_german(n, "ordinal"))


def test_years_match_num2words() -> None:
    for year in range(1100, 2100):
        assert year_words(year) == (in_english(year, "year"), in_german(year, "year"))


@pytest.mark.parametrize("n", [-1, 1_000_000])
def test_numbers_out_of_range_are_refused(n: int) -> None:
    for words in (number_in_english, number_in_german, ordinal_in_english, ordinal_in_german):
        with pytest.raises(ValueError):
            words(n)


def test_there_is_no_ordinal_of_zero() -> None:
    for words in (ordinal_in_english, ordinal_in_german):
        with pytest.raises(ValueError, match="start at 1"):
            words(0)


def test_times_match_a_naive_table() -> None:
    hours = ["zwölf", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
    table = {
        5: "fünf nach {0}",
        10: "zehn nach {0}",
        15: "Viertel nach {0}",
        20: "zwanzig nach {0}",
        25: "fünf vor halb {1}",
        30: "halb {1}",
        35: "fünf nach halb {1}",
        40: "zwanzig vor {1}",
        45: "Viertel vor {1}",
        50: "zehn vor {1}",
        55: "fünf vor {1}",
    }
    english_hours = [
        "twelve",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ]
    english_table = {
        5: "five past {0}",
        10: "ten past {0}",
        15: "quarter past {0}",
        20: "twenty past {0}",
        25: "twenty-five past {0}",
        30: "half past {0}",
        35: "twenty-five to {1}",
        40: "twenty to {1}",
        45: "quarter to {1}",
        50: "ten to {1}",
        55: "five to {1}",
    }
    for hour in range(12):
        assert clock(hour, 0) == (f"{english_hours[hour]} o'clock", f"{hours[hour].replace('eins', 'ein')} Uhr")
        for minute, german in table.items():
            english = english_table[minute].format(*english_hours[hour : hour + 2])
            assert clock(hour, minute) == (english, german.format(*hours[hour : hour + 2]))


def test_odd_minutes_name_their_unit() -> None:
    for minute in (minute for minute in range(2, 59) if minute % 5):
        count, word, german_word = (minute, "past", "nach") if minute < 30 else (60 - minute, "to", "vor")
        english, german = clock(7, minute)
        hour, german_hour = ("seven", "sieben") if minute < 30 else ("eight", "acht")
        assert english == f"{in_english(count)} minutes {word} {hour}"
        assert german == f"{in_german(count)} Minuten {german_word} {german_hour}"


def test_half_day_times_count_twenty_four_hours() -> None:
    halves = ("a.m.", "p.m.")
    for hour in range(24):
        for minute in range(10, 60):
            english, german = half_day_clock(hour, minute)
            assert english == f"{in_english(hour % 12 or 12)} {in_english(minute)} {halves[hour // 12]}"
            assert german == f"{'ein' if hour == 1 else in_german(hour)} Uhr {in_german(minute)}"


def test_dates_use_the_names_of_babel() -> None:
    months = get_month_names(locale="de"), get_month_names(locale="en")
    expected = {}
    for day in (date.fromordinal(date(2023, 1, 1).toordinal() + offset) for offset in range(365)):
        english = f"the {in_english(day.day, 'ordinal')} of {months[1][day.month]}"
        expected[english] = f"der {in_german(day.day, 'ordinal')} {months[0][day.month]}"
    pairs = all_pairs("_date")
    assert {english: german for english, german in pairs.values() if english in expected} == expected
    assert len(pairs) == 366 * 2 * 4


def test_a_date_with_a_year_adds_the_year_at_the_end() -> None:
    english, german = date_in_year(("until ", "bis zum"), True, (11, 24), 1806)
    assert english == "until December twenty-fourth, eighteen oh-six"
    assert german == "bis zum vierundzwanzigsten Dezember achtzehnhundertsechs"


def test_weekdays_are_those_of_babel() -> None:
    english, german = get_day_names(locale="en"), get_day_names(locale="de")
    found = {(pair[0].split(",")[0], pair[1].split(",")[0]) for pair in all_pairs("_weekday_date").values()}
    assert found == {(english[day], german[day]) for day in range(7)}


@pytest.mark.parametrize("gold", some(GOLD_PAIRS), ids=lambda gold: gold.english)
def test_gold_pairs(gold: Phrase) -> None:
    assert germans_of(gold.english, gold.kind) == {gold.german}


def germans_of(english: str, kind: str) -> set[str]:
    """Every German the families of a kind give for an English phrase (one, if they are unambiguous)."""
    found = set()
    for family in FAMILIES[kind]:
        axes = [[value for value in candidates(axis, kind) if plausible(value, english)] for axis in family.axes]
        pairs = (family.make(*values) for values in product(*axes))
        found |= {german for text, german in pairs if text == english}
    return found


def candidates(axis: Sequence[Any], kind: str) -> Sequence[Any]:
    """The values of an axis, only those of the gold pairs where the axis counts up to a million."""
    if isinstance(axis, range) and kind not in ("time", "date"):
        return [n for n in GOLD_NUMBERS if n in axis]
    return axis


def plausible(value: Any, english: str) -> bool:
    """Whether a value whose own words are known may stand in an English phrase; hours, minutes and years always may."""
    match value:
        case Noun():
            return value.one in english or value.many in english
        case (Noun(), Noun()):  # a currency: its smaller unit need not be named
            return plausible(value[0], english)
        case (str(), *_):
            return value[0] in english
        case (int(), *days):  # a month's number and days
            return all(ordinal_in_english(day) in english for day in days)
        case tuple():
            return all(plausible(item, english) for item in value)
    return True


def test_every_kind_has_gold_pairs() -> None:
    assert set(GOLD) == set(KINDS)
    assert len(GOLD_PAIRS) >= 90


def test_phrases_are_distinct_with_one_translation(crowd: list[Phrase]) -> None:
    assert len(crowd) == len({phrase.english for phrase in crowd}) == CROWD


@pytest.mark.full
def test_small_families_of_a_kind_never_share_a_phrase() -> None:
    for families in FAMILIES.values():
        small = [family for family in families if family.size <= 30_000]
        english = [family.pair(index)[0] for family in small for index in range(family.size)]
        assert len(english) == len(set(english))


def test_kinds_are_balanced(crowd: list[Phrase]) -> None:
    counts = Counter(phrase.kind for phrase in crowd)
    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_small_and_large_numbers_are_both_common(crowd: list[Phrase]) -> None:
    lengths = Counter(len(str(value_of(phrase))) for phrase in crowd if phrase.kind == "number")
    assert set(lengths) == set(range(1, 7))
    assert lengths[1] == 10 and lengths[2] == 90
    assert min(lengths[digits] for digits in range(3, 7)) >= 500


def value_of(phrase: Phrase) -> int:
    """The number that an English number phrase names, read back word by word."""
    total = part = 0
    for word in phrase.english.replace("-", " ").split():
        if word in ("hundred", "thousand"):
            part *= {"hundred": 100, "thousand": 1000}[word]
            if word == "thousand":
                total, part = part, 0
        else:
            part += VALUES[word]
    return total + part


def test_phrases_are_short_and_have_a_closed_vocabulary(crowd: list[Phrase]) -> None:
    words = {word for phrase in crowd for word in phrase.english.replace("-", " ").replace(",", "").split()}
    others = split(CROWD, 0, 0, seed=8)[0]
    assert {word for phrase in others for word in phrase.english.replace("-", " ").replace(",", "").split()} == words
    assert len(words) < 250
    assert max(len(phrase.english.split()) for phrase in crowd) <= 12
    german = set("".join(phrase.german for phrase in crowd))
    assert german <= set("abcdefghijklmnopqrstuvwxyzäöüßABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÜ ,")


def test_phrases_are_deterministic() -> None:
    assert split(300, 30, 40, seed=3) == split(300, 30, 40, seed=3) != split(300, 30, 40, seed=4)


def test_split_is_disjoint_with_every_kind_in_each_part() -> None:
    parts = split(3_000, 200, 301, seed=1)
    assert [len(part) for part in parts] == [3_000, 200, 301]
    assert len({phrase.english for part in parts for phrase in part}) == 3_501
    for part in parts:
        counts = Counter(phrase.kind for phrase in part)
        assert max(counts[kind] for kind in KINDS) - min(counts[kind] for kind in KINDS) <= 1


def test_words_of_small_sets_are_in_training() -> None:
    train, valid, test = split(20_000, 1_000, 1_000, seed=5)
    known = {phrase.english for phrase in train}
    assert {number_in_english(n) for n in range(100)} <= known
    assert {clock(hour, minute)[0] for hour in range(12) for minute in range(0, 60, 5)} <= known
    words = {word for english in known for word in english.replace(",", "").split()}
    assert {word for phrase in valid + test for word in phrase.english.replace(",", "").split()} <= words


@pytest.mark.parametrize("more", [1, 2**31 - MOST])
def test_too_many_phrases_are_refused_when_the_recipe_is_read(more: int) -> None:
    with pytest.raises(ValueError, match=f"add up to {MOST + more:,} pairs, but only {MOST:,} distinct pairs exist"):
        Slot("corpus").validate({"type": "phrases", "train": MOST + more - 20, "valid": 10, "test": 10})


@looped("rest", range(len(KINDS)))
def test_as_many_as_are_promised_can_be_drawn(rest: int) -> None:
    """However the three are rounded."""
    sizes = (MOST - 2 * (600 + rest), 600 + rest, 600 + rest)
    Slot("corpus").validate({"type": "phrases", "train": sizes[0], "valid": sizes[1], "test": sizes[2]})
    for kind, *wanted in zip(KINDS, *map(shares, sizes), strict=True):
        assert sum(wanted) <= KIND_SIZES[kind]


def test_a_whole_kind_can_be_drawn() -> None:
    drawn = draw("time", KIND_SIZES["time"], random.Random(0))
    assert len({phrase.english for phrase in drawn}) == KIND_SIZES["time"]
