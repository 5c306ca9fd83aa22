"""English-German number phrases generated from small tables: the default data of translation recipes.

A *family* is the product of a few short lists, from which indices are sampled without replacement. Phrases are
therefore distinct without rejection sampling, and the number of phrases of each kind is known.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfkit.data.words import (
    ACCUSATIVE,
    CASES,
    CURRENCIES,
    DAY_PART_HOURS,
    DESCRIBED,
    MEASURED,
    MONTHS,
    NOMINATIVE,
    NOUNS,
    PLAIN,
    TWICE_DESCRIBED,
    WEEKDAYS,
    Description,
    GrammaticalCase,
    Noun,
    Pair,
    german_count,
    joined,
    number_in_english,
    number_in_german,
    ordinal_in_english,
    ordinal_in_german,
)


@dataclass(frozen=True)
class Phrase:
    """An English phrase, its unique German translation, and its kind."""

    english: str
    german: str
    kind: str


# prepositions of dates in English and German; "" governs the nominative, all others the dative
_DATE_PREPOSITIONS = (("", "der"), ("on ", "am"), ("since ", "seit dem"), ("until ", "bis zum"))
_DATES = tuple((month, day) for month, (_, _, days) in enumerate(MONTHS) for day in range(1, days + 1))
_YEARLY_DATES = tuple(date for date in _DATES if date != (1, 29))  # 29 February is missing in most years
_DATE_RANGES = tuple((month, first, last) for month, first in _DATES for last in range(first + 1, MONTHS[month][2] + 1))

_OCLOCK_MINUTES = range(0, 60, 5)
_ODD_MINUTES = tuple(minute for minute in range(60) if minute % 5)
_DIGITS = (range(10), *(range(10**digits, 10 ** (digits + 1)) for digits in range(1, 6)))
_COUNTS = (range(1, 10), *_DIGITS[1:])


def _number(n: int) -> Pair:
    return number_in_english(n), number_in_german(n)


def _minutes(minute: int) -> Pair:
    """Phrase the minutes before or after the hour; multiples of five are spoken without a unit."""
    if minute == 15:
        return "quarter", "Viertel"
    if minute == 1:
        return "one minute", "eine Minute"
    if minute % 5:
        return f"{number_in_english(minute)} minutes", f"{number_in_german(minute)} Minuten"
    return _number(minute)


def _clock(hour: int, minute: int) -> Pair:
    """Phrase a time colloquially; German relates the half hour, and five minutes before and after, to the next hour."""
    this, coming = (hour - 1) % 12 + 1, hour % 12 + 1
    if minute == 0:
        return f"{number_in_english(this)} o'clock", f"{german_count(this)} Uhr"
    if minute == 30:
        return f"half past {number_in_english(this)}", f"halb {number_in_german(coming)}"
    past = minute < 30
    english, german = _minutes(minute if past else 60 - minute)
    english = f"{english} {'past' if past else 'to'} {number_in_english(this if past else coming)}"
    if minute in (25, 35):
        return english, f"fünf {'vor' if past else 'nach'} halb {number_in_german(coming)}"
    return english, f"{german} {'nach' if past else 'vor'} {number_in_german(this if past else coming)}"


def _half_day_clock(hour: int, minute: int) -> Pair:
    """Phrase a 24-hour time in English with a.m. or p.m."""
    spoken = number_in_english(minute) if minute >= 10 else f"oh-{number_in_english(minute)}"
    english = joined(number_in_english((hour - 1) % 12 + 1), spoken if minute else "", "a.m." if hour < 12 else "p.m.")
    return english, joined(german_count(hour), "Uhr", number_in_german(minute) if minute else "")


def _at_clock(hour: int, minute: int) -> Pair:
    english, german = _clock(hour, minute)
    return f"at {english}", f"um {german}"


def _weekday_clock(opening: Pair, weekday: Pair, hour: int, minute: int) -> Pair:
    english, german = _at_clock(hour, minute)
    return f"{opening[0]} {weekday[0]} {english}", f"{opening[1]} {weekday[1]} {german}"


def _weekday_half_day(weekday: Pair, hour: int, minute: int) -> Pair:
    english, german = _half_day_clock(hour, minute)
    return f"on {weekday[0]} at {english}", f"am {weekday[1]} um {german}"


def _day_part_clock(weekday: Pair, part: tuple[str, str, int], minute: int) -> Pair:
    english, german = _at_clock(part[2], minute)
    return f"on {weekday[0]} {part[0]} {english}", f"am {weekday[1]}{part[1]} {german}"


def _time_span(start: int, length: int) -> Pair:
    """Phrase a time interval; start and length are in steps of five minutes."""
    first, last = (_clock(step // 12, step % 12 * 5) for step in (start, start + length))
    return f"from {first[0]} until {last[0]}", f"von {first[1]} bis {last[1]}"


def _year(year: int) -> Pair:
    """Phrase a year from 1100 to 2099 by hundreds; from 2000 on, German uses the plain number."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return _number(year)
    spoken = number_in_english(rest) if rest >= 10 else f"oh-{number_in_english(rest)}" if rest else "hundred"
    english = f"{number_in_english(century)} {spoken}"
    if century == 20:
        return english, number_in_german(year)
    return english, german_count(century) + "hundert" + (number_in_german(rest) if rest else "")


def _date(preposition: Pair, month_first: bool, date: tuple[int, int]) -> Pair:
    month, day = MONTHS[date[0]], ordinal_in_english(date[1])
    english = f"{month[0]} {day}" if month_first else f"the {day} of {month[0]}"
    ending = "n" if preposition[0] else ""
    return preposition[0] + english, f"{preposition[1]} {ordinal_in_german(date[1])}{ending} {month[1]}"


def _date_in_year(preposition: Pair, month_first: bool, date: tuple[int, int], year: int) -> Pair:
    english, german = _date(preposition, month_first, date)
    return f"{english}, {_year(year)[0]}", f"{german} {_year(year)[1]}"


def _weekday_date(weekday: Pair, date: tuple[int, int]) -> Pair:
    english, german = _date(_DATE_PREPOSITIONS[0], False, date)
    return f"{weekday[0]}, {english}", f"{weekday[1]}, {german}"


def _date_span(span: tuple[int, int, int]) -> Pair:
    month, first, last = span
    english = f"from the {ordinal_in_english(first)} to the {ordinal_in_english(last)} of {MONTHS[month][0]}"
    return english, f"vom {ordinal_in_german(first)}n bis zum {ordinal_in_german(last)}n {MONTHS[month][1]}"


def _english_words(description: Description) -> str:
    return " ".join(english for english, _ in description)


def _german_words(description: Description, ending: str) -> str:
    return " ".join(german + ending for _, german in description)


def _quantity(case: GrammaticalCase, count: int, description: Description, noun: Noun) -> Pair:
    """Phrase a quantity after the preposition of its case."""
    english, german = _counted(case, count, description, noun)
    return case.english + english, case.german + german


def _counted(case: GrammaticalCase, count: int, description: Description, noun: Noun) -> Pair:
    """Phrase a counted noun in a case; in German, 201, 301, ... take an uninflected "ein" and the plural."""
    english = joined(number_in_english(count), _english_words(description), noun.one if count == 1 else noun.many)
    if count == 1:
        article, ending = case.one[noun.gender]
        german = joined(article, _german_words(description, ending), noun.german_one)
    else:
        many = noun.dative_many if case.name == "dative" else noun.german_many
        german = joined(german_count(count), _german_words(description, case.many), many)
    return english, german


def _measure(count: int, measured: tuple[Noun, Pair]) -> Pair:
    noun, stuff = measured
    english, german = _counted(NOMINATIVE, count, (), noun)
    return f"{english} of {stuff[0]}", f"{german} {stuff[1]}"


def _rank(case: GrammaticalCase, rank: int, description: Description, noun: Noun) -> Pair:
    article, ending = case.the[noun.gender]
    german = joined(article, ordinal_in_german(rank)[:-1] + ending, _german_words(description, ending), noun.german_one)
    english = joined("the", ordinal_in_english(rank), _english_words(description), noun.one)
    return case.english + english, case.german + german


def _amount(whole: int, currency: tuple[Noun, Noun], case: GrammaticalCase = NOMINATIVE) -> Pair:
    return _counted(case, whole, (), currency[0])


def _full_amount(whole: int, part: int, currency: tuple[Noun, Noun]) -> Pair:
    english, german = _amount(whole, currency)
    small = _counted(NOMINATIVE, part, (), currency[1])
    return f"{english} and {small[0]}", f"{german} und {small[1]}"


def _cost(description: Description, noun: Noun, whole: int, currency: tuple[Noun, Noun]) -> Pair:
    english, german = _amount(whole, currency, ACCUSATIVE)  # "kostet einen Euro"
    article, ending = NOMINATIVE.the[noun.gender]
    goods = joined(article, _german_words(description, ending), noun.german_one)
    return joined("the", _english_words(description), noun.one, "costs", english), f"{goods} kostet {german}"


def _cost_of_many(count: int, description: Description, noun: Noun, whole: int, currency: tuple[Noun, Noun]) -> Pair:
    english, german = _amount(whole, currency, ACCUSATIVE)
    # the adjective has the weak ending after "die": "drei rote Äpfel", but "die drei roten Äpfel"
    goods = joined("die", german_count(count), _german_words(description, "en"), noun.german_many)
    english = joined("the", number_in_english(count), _english_words(description), noun.many, "cost", english)
    return english, f"{goods} kosten {german}"


def _price_each(count: int, description: Description, noun: Noun, whole: int, currency: tuple[Noun, Noun]) -> Pair:
    english, german = _counted(NOMINATIVE, count, description, noun)
    price = _amount(whole, currency)
    return f"{english} at {price[0]} each", f"{german} zu je {price[1]}"


@dataclass(frozen=True)
class _Family:
    """Phrases `make(*values)` for all combinations of the axes; `core` families teach the vocabulary in training."""

    make: Callable[..., Pair]
    axes: tuple[Sequence[Any], ...]
    core: bool = False

    @property
    def size(self) -> int:
        return math.prod(len(axis) for axis in self.axes)

    def pair(self, index: int) -> Pair:
        values = []
        for axis in self.axes:
            index, position = divmod(index, len(axis))
            values.append(axis[position])
        return self.make(*values)


def _time_families() -> Iterable[_Family]:
    openings = (("on", "am"), ("every", "jeden"))
    yield _Family(_clock, (range(12), _OCLOCK_MINUTES), core=True)
    yield _Family(_clock, (range(12), _ODD_MINUTES))
    yield _Family(_at_clock, (range(12), range(60)))
    yield _Family(_half_day_clock, (range(24), range(1)), core=True)
    yield _Family(_half_day_clock, (range(24), range(1, 60)))
    yield _Family(_weekday_clock, (openings, WEEKDAYS, range(12), range(60)))
    yield _Family(_weekday_half_day, (WEEKDAYS, range(24), range(60)))
    yield _Family(_day_part_clock, (WEEKDAYS, DAY_PART_HOURS, range(60)))
    yield _Family(_time_span, (range(144), range(1, 144)))


def _date_families() -> Iterable[_Family]:
    orders = (False, True)
    yield _Family(_date, (_DATE_PREPOSITIONS, orders, _DATES))
    yield _Family(_date_in_year, (_DATE_PREPOSITIONS, orders, _YEARLY_DATES, range(1100, 1900)))
    yield _Family(_date_in_year, (_DATE_PREPOSITIONS, orders, _YEARLY_DATES, range(1900, 2000)))
    yield _Family(_date_in_year, (_DATE_PREPOSITIONS, orders, _YEARLY_DATES, range(2000, 2100)))
    yield _Family(_weekday_date, (WEEKDAYS, _DATES))
    yield _Family(_date_span, (_DATE_RANGES,))


def _price_families() -> Iterable[_Family]:
    one, several = range(1, 2), range(2, 100)
    for counts in _COUNTS:
        yield _Family(_amount, (counts, CURRENCIES))
        for parts in (one, several):
            yield _Family(_full_amount, (counts, parts, CURRENCIES))
    for descriptions in (PLAIN, DESCRIBED, TWICE_DESCRIBED):
        # separate families: a price of one is inflected ("kostet einen Euro") and would be rare in uniform samples
        for prices in (one, range(2, 1000)):
            yield _Family(_cost, (descriptions, NOUNS, prices, CURRENCIES))
        for prices in (one, several):
            yield _Family(_cost_of_many, (several, descriptions, NOUNS, prices, CURRENCIES))
        # from two on, since a price of one would need the dative after "zu je"
        yield _Family(_price_each, (several, descriptions, NOUNS, several, CURRENCIES))


def _quantity_families() -> Iterable[_Family]:
    # separate families, since only "one" shows the gender and would otherwise be too rare to learn
    for counts in (range(1, 2), range(2, 10), *_COUNTS[1:]):
        yield _Family(_measure, (counts, MEASURED))
        for descriptions in (PLAIN, DESCRIBED, TWICE_DESCRIBED):
            yield _Family(_quantity, (CASES, counts, descriptions, NOUNS))


_FAMILIES: dict[str, tuple[_Family, ...]] = {
    "number": tuple(_Family(_number, (numbers,), core=position < 2) for position, numbers in enumerate(_DIGITS)),
    "time": tuple(_time_families()),
    "date": tuple(_date_families()),
    "price": tuple(_price_families()),
    "quantity": tuple(_quantity_families()),
    "rank": tuple(
        _Family(_rank, (CASES, ranks, descriptions, NOUNS))
        for descriptions in (PLAIN, DESCRIBED, TWICE_DESCRIBED)
        for ranks in _COUNTS[:3]
    ),
}
KINDS = tuple(_FAMILIES)
KIND_SIZES = {kind: sum(family.size for family in families) for kind, families in _FAMILIES.items()}
# maximum total size of the splits: all kinds are limited to the size of the smallest, less one per split for rounding
MOST = len(KINDS) * (min(KIND_SIZES.values()) - 3)


def _shares(total: int) -> list[int]:
    """Divide a total evenly among the kinds."""
    return [total // len(KINDS) + (position < total % len(KINDS)) for position in range(len(KINDS))]


def _quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Divide a total evenly among families, limited by their sizes."""
    quotas = [0] * len(sizes)
    # smallest first, so that larger families receive what smaller ones cannot provide
    for done, position in enumerate(sorted(range(len(sizes)), key=lambda position: sizes[position])):
        quotas[position] = min(sizes[position], total // (len(sizes) - done))
        total -= quotas[position]
    return quotas


def _draw(kind: str, count: int, rng: random.Random) -> list[Phrase]:
    """Draw distinct phrases of a kind, shuffled, with core phrases last."""
    families = _FAMILIES[kind]
    drawn = []
    for family, quota in zip(families, _quotas([family.size for family in families], count), strict=True):
        drawn += [(family, index) for index in rng.sample(range(family.size), quota)]
    rng.shuffle(drawn)
    drawn.sort(key=lambda item: item[0].core)
    return [Phrase(*family.pair(index), kind) for family, index in drawn]


def split(train: int, valid: int, test: int, seed: int) -> tuple[list[Phrase], list[Phrase], list[Phrase]]:
    """Return three disjoint lists of phrases with distinct English, each balanced by kind; MOST bounds their sum."""
    rng = random.Random(seed)
    parts: tuple[list[Phrase], list[Phrase], list[Phrase]] = ([], [], [])
    for kind, *counts in zip(KINDS, _shares(train), _shares(valid), _shares(test), strict=True):
        in_train, in_valid, in_test = counts
        drawn = _draw(kind, in_train + in_valid + in_test, rng)
        # core phrases are last, so held-out sets contain them only if no other phrases are left
        parts[1].extend(drawn[:in_valid])
        parts[2].extend(drawn[in_valid : in_valid + in_test])
        parts[0].extend(drawn[in_valid + in_test :])
    for part in parts:
        rng.shuffle(part)
    return parts
