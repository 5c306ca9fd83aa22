"""English-German number phrases generated from small tables: the default data of translation recipes.

A *family* is the finite product of short axes, sampled by index without replacement. Phrases are distinct without
rejection, and the size of each kind is known.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NUMBER_LIMIT = 1_000_000


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ENGLISH_SMALL = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_ENGLISH_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_ENGLISH_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
# "ein" is the form within compounds and before nouns; number_in_german appends the "s" of a standalone number.
_GERMAN_SMALL = _words(
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
_GERMAN_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_GERMAN_ORDINALS = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}

# English month, German month, days (29 February only in dates without a year).
_MONTHS = (
    ("January", "Januar", 31),
    ("February", "Februar", 29),
    ("March", "März", 31),
    ("April", "April", 30),
    ("May", "Mai", 31),
    ("June", "Juni", 30),
    ("July", "Juli", 31),
    ("August", "August", 31),
    ("September", "September", 30),
    ("October", "Oktober", 31),
    ("November", "November", 30),
    ("December", "Dezember", 31),
)
_WEEKDAYS = (
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
)
# English, German, hours: restricted to those on which both languages agree.
_DAY_PARTS = (
    ("morning", "morgen", range(5, 12)),
    ("afternoon", "nachmittag", range(13, 18)),
    ("evening", "abend", range(18, 23)),
)
_DAY_PART_HOURS = tuple((english, german, hour) for english, german, hours in _DAY_PARTS for hour in hours)


@dataclass(frozen=True)
class Phrase:
    """An English phrase, its unique German translation, and its kind."""

    english: str
    german: str
    kind: str


@dataclass(frozen=True)
class _Noun:
    """A noun in both languages, singular and plural, with its German gender (m, f or n)."""

    one: str
    many: str
    german_one: str
    german_many: str
    gender: str

    @property
    def dative_many(self) -> str:
        """German dative plural: plus -n unless the plural ends in -n or -s."""
        return self.german_many if self.german_many[-1] in "ns" else self.german_many + "n"


@dataclass(frozen=True)
class _Case:
    """A preposition (or none) with the German articles and endings it governs, by gender."""

    english: str
    german: str
    name: str
    one: dict[str, tuple[str, str]]  # ein/eine/ein, and the following adjective's ending
    the: dict[str, tuple[str, str]]  # der/die/das, and the following ordinal's or adjective's ending
    many: str  # the adjective's ending after numbers above one


_Description = tuple[tuple[str, str], ...]
_Pair = tuple[str, str]

_NOUNS = tuple(
    _Noun(*_words(row))
    for row in (
        "apple apples Apfel Äpfel m",
        "tree trees Baum Bäume m",
        "dog dogs Hund Hunde m",
        "table tables Tisch Tische m",
        "chair chairs Stuhl Stühle m",
        "ball balls Ball Bälle m",
        "key keys Schlüssel Schlüssel m",
        "spoon spoons Löffel Löffel m",
        "flower flowers Blume Blumen f",
        "cat cats Katze Katzen f",
        "bottle bottles Flasche Flaschen f",
        "lamp lamps Lampe Lampen f",
        "city cities Stadt Städte f",
        "door doors Tür Türen f",
        "mouse mice Maus Mäuse f",
        "bridge bridges Brücke Brücken f",
        "house houses Haus Häuser n",
        "book books Buch Bücher n",
        "car cars Auto Autos n",
        "ship ships Schiff Schiffe n",
        "bed beds Bett Betten n",
        "window windows Fenster Fenster n",
        "egg eggs Ei Eier n",
        "horse horses Pferd Pferde n",
    )
)
# Adjectives with an invariant stem; qualities precede colours in both languages.
_QUALITIES = (
    ("small", "klein"),
    ("big", "groß"),
    ("old", "alt"),
    ("new", "neu"),
    ("beautiful", "schön"),
    ("cheap", "billig"),
)
_COLOURS = (
    ("red", "rot"),
    ("green", "grün"),
    ("blue", "blau"),
    ("white", "weiß"),
    ("black", "schwarz"),
    ("yellow", "gelb"),
)
_PLAIN: tuple[_Description, ...] = ((),)
_DESCRIBED: tuple[_Description, ...] = tuple((adjective,) for adjective in _QUALITIES + _COLOURS)
_TWICE_DESCRIBED: tuple[_Description, ...] = tuple((first, last) for first in _QUALITIES for last in _COLOURS)

_NOMINATIVE = _Case(
    "",
    "",
    "nominative",
    one={"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")},
    the={"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")},
    many="e",
)
_DATIVE = _Case(
    "with ",
    "mit ",
    "dative",
    one={"m": ("einem", "en"), "f": ("einer", "en"), "n": ("einem", "en")},
    the={"m": ("dem", "en"), "f": ("der", "en"), "n": ("dem", "en")},
    many="en",
)
_ACCUSATIVE = _Case(
    "without ",
    "ohne ",
    "accusative",
    one={"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")},
    the={"m": ("den", "en"), "f": ("die", "e"), "n": ("das", "e")},
    many="e",
)
_CASES = (_NOMINATIVE, _DATIVE, _ACCUSATIVE)

# Measures and substances; German has no "of" between them.
_LIQUIDS = (("water", "Wasser"), ("milk", "Milch"), ("coffee", "Kaffee"), ("tea", "Tee"), ("juice", "Saft"))
_SOLIDS = (("sugar", "Zucker"), ("flour", "Mehl"), ("rice", "Reis"), ("salt", "Salz"), ("cheese", "Käse"))
_LIQUID_MEASURES = (
    _Noun("liter", "liters", "Liter", "Liter", "m"),
    _Noun("bottle", "bottles", "Flasche", "Flaschen", "f"),
    _Noun("cup", "cups", "Tasse", "Tassen", "f"),
)
_SOLID_MEASURES = (
    _Noun("kilogram", "kilograms", "Kilogramm", "Kilogramm", "n"),
    _Noun("gram", "grams", "Gramm", "Gramm", "n"),
)
_MEASURED = tuple((measure, stuff) for measure in _LIQUID_MEASURES for stuff in _LIQUIDS) + tuple(
    (measure, stuff) for measure in _SOLID_MEASURES for stuff in _SOLIDS
)

# Currencies keep the singular in German ("zwölf Euro"); none is feminine, so "ein" fits all.
_CENT = _Noun("cent", "cents", "Cent", "Cent", "m")
_CURRENCIES = (
    (_Noun("euro", "euros", "Euro", "Euro", "m"), _CENT),
    (_Noun("dollar", "dollars", "Dollar", "Dollar", "m"), _CENT),
    (_Noun("pound", "pounds", "Pfund", "Pfund", "n"), _Noun("penny", "pence", "Penny", "Pence", "m")),
    (
        _Noun("Swiss franc", "Swiss francs", "Schweizer Franken", "Schweizer Franken", "m"),
        _Noun("centime", "centimes", "Rappen", "Rappen", "m"),
    ),
)

# English and German prepositions of dates; "" takes the nominative, the others the dative.
_DATE_PREPOSITIONS = (("", "der"), ("on ", "am"), ("since ", "seit dem"), ("until ", "bis zum"))
_DATES = tuple((month, day) for month, (_, _, days) in enumerate(_MONTHS) for day in range(1, days + 1))
_YEARLY_DATES = tuple(date for date in _DATES if date != (1, 29))  # most years have no 29 February
_DATE_RANGES = tuple(
    (month, first, last) for month, first in _DATES for last in range(first + 1, _MONTHS[month][2] + 1)
)

_OCLOCK_MINUTES = range(0, 60, 5)
_ODD_MINUTES = tuple(minute for minute in range(60) if minute % 5)
_DIGITS = (range(10), *(range(10**digits, 10 ** (digits + 1)) for digits in range(1, 6)))
_COUNTS = (range(1, 10), *_DIGITS[1:])


def _check_number(n: int) -> None:
    if not 0 <= n < NUMBER_LIMIT:
        raise ValueError(f"numbers from 0 to {NUMBER_LIMIT - 1} have words here, not {n}")


def number_in_english(n: int) -> str:
    """Return `n` in American English words, without "and"; raise ValueError unless 0 <= n <= 999999."""
    _check_number(n)
    if n >= 1000:
        return _join(number_in_english(n // 1000) + " thousand", number_in_english(n % 1000) if n % 1000 else "")
    if n >= 100:
        return _join(_ENGLISH_SMALL[n // 100] + " hundred", number_in_english(n % 100) if n % 100 else "")
    if n < 20:
        return _ENGLISH_SMALL[n]
    return _ENGLISH_TENS[n // 10 - 2] + (f"-{_ENGLISH_SMALL[n % 10]}" if n % 10 else "")


def number_in_german(n: int) -> str:
    """Return `n` as a standalone German word; raise ValueError unless 0 <= n <= 999999."""
    _check_number(n)
    return _german_count(n) + ("s" if n % 100 == 1 else "")


def ordinal_in_english(n: int) -> str:
    """Return the English ordinal of `n` ("twenty-first"); raise ValueError unless 1 <= n <= 999999."""
    words = number_in_english(_positive(n))
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return words[:cut] + _ENGLISH_ORDINALS.get(last, regular)


def ordinal_in_german(n: int) -> str:
    """Return the German ordinal of `n` ending in -e ("dritte"); raise ValueError unless 1 <= n <= 999999."""
    _check_number(_positive(n))
    tail = n % 100
    if not 0 < tail < 20:
        return _german_count(n) + "ste"
    head = _german_count(n - tail) if n > tail else ""
    return head + _GERMAN_ORDINALS.get(tail, _GERMAN_SMALL[tail] + "te")


def _positive(n: int) -> int:
    if n < 1:
        raise ValueError(f"ordinals start at 1, not {n}")
    return n


def _german_count(n: int) -> str:
    """Return `n` as written before a noun or within a longer number ("zweihundertein")."""
    if n >= 1000:
        return _german_count(n // 1000) + "tausend" + (_german_count(n % 1000) if n % 1000 else "")
    if n >= 100:
        return _GERMAN_SMALL[n // 100] + "hundert" + (_german_count(n % 100) if n % 100 else "")
    if n < 20:
        return _GERMAN_SMALL[n]
    return (f"{_GERMAN_SMALL[n % 10]}und" if n % 10 else "") + _GERMAN_TENS[n // 10 - 2]


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


# Numbers


def _number(n: int) -> _Pair:
    return number_in_english(n), number_in_german(n)


# Times


def _minutes(minute: int) -> _Pair:
    """Phrase minutes before or after the hour: without unit for multiples of five."""
    if minute == 15:
        return "quarter", "Viertel"
    if minute == 1:
        return "one minute", "eine Minute"
    if minute % 5:
        return f"{number_in_english(minute)} minutes", f"{number_in_german(minute)} Minuten"
    return _number(minute)


def _clock(hour: int, minute: int) -> _Pair:
    """Phrase a time colloquially; German refers the half hour, and five minutes around it, to the next hour."""
    this, coming = (hour - 1) % 12 + 1, hour % 12 + 1
    if minute == 0:
        return f"{number_in_english(this)} o'clock", f"{_german_count(this)} Uhr"
    if minute == 30:
        return f"half past {number_in_english(this)}", f"halb {number_in_german(coming)}"
    past = minute < 30
    english, german = _minutes(minute if past else 60 - minute)
    english = f"{english} {'past' if past else 'to'} {number_in_english(this if past else coming)}"
    if minute in (25, 35):
        return english, f"fünf {'vor' if past else 'nach'} halb {number_in_german(coming)}"
    return english, f"{german} {'nach' if past else 'vor'} {number_in_german(this if past else coming)}"


def _half_day_clock(hour: int, minute: int) -> _Pair:
    """Phrase a 24-hour time in English with a.m. or p.m."""
    spoken = number_in_english(minute) if minute >= 10 else f"oh-{number_in_english(minute)}"
    english = _join(number_in_english((hour - 1) % 12 + 1), spoken if minute else "", "a.m." if hour < 12 else "p.m.")
    return english, _join(_german_count(hour), "Uhr", number_in_german(minute) if minute else "")


def _at_clock(hour: int, minute: int) -> _Pair:
    english, german = _clock(hour, minute)
    return f"at {english}", f"um {german}"


def _weekday_clock(opening: _Pair, weekday: _Pair, hour: int, minute: int) -> _Pair:
    english, german = _at_clock(hour, minute)
    return f"{opening[0]} {weekday[0]} {english}", f"{opening[1]} {weekday[1]} {german}"


def _weekday_half_day(weekday: _Pair, hour: int, minute: int) -> _Pair:
    english, german = _half_day_clock(hour, minute)
    return f"on {weekday[0]} at {english}", f"am {weekday[1]} um {german}"


def _day_part_clock(weekday: _Pair, part: tuple[str, str, int], minute: int) -> _Pair:
    english, german = _at_clock(part[2], minute)
    return f"on {weekday[0]} {part[0]} {english}", f"am {weekday[1]}{part[1]} {german}"


def _time_span(start: int, length: int) -> _Pair:
    """Phrase an interval; start and length are in steps of five minutes."""
    first, last = (_clock(step // 12, step % 12 * 5) for step in (start, start + length))
    return f"from {first[0]} until {last[0]}", f"von {first[1]} bis {last[1]}"


# Dates


def _year(year: int) -> _Pair:
    """Phrase a year from 1100 to 2099: by hundreds; in German, as a number from 2000."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return _number(year)
    spoken = number_in_english(rest) if rest >= 10 else f"oh-{number_in_english(rest)}" if rest else "hundred"
    english = f"{number_in_english(century)} {spoken}"
    if century == 20:
        return english, number_in_german(year)
    return english, _german_count(century) + "hundert" + (number_in_german(rest) if rest else "")


def _date(preposition: _Pair, month_first: bool, date: tuple[int, int]) -> _Pair:
    month, day = _MONTHS[date[0]], ordinal_in_english(date[1])
    english = f"{month[0]} {day}" if month_first else f"the {day} of {month[0]}"
    ending = "n" if preposition[0] else ""
    return preposition[0] + english, f"{preposition[1]} {ordinal_in_german(date[1])}{ending} {month[1]}"


def _date_in_year(preposition: _Pair, month_first: bool, date: tuple[int, int], year: int) -> _Pair:
    english, german = _date(preposition, month_first, date)
    return f"{english}, {_year(year)[0]}", f"{german} {_year(year)[1]}"


def _weekday_date(weekday: _Pair, date: tuple[int, int]) -> _Pair:
    english, german = _date(_DATE_PREPOSITIONS[0], False, date)
    return f"{weekday[0]}, {english}", f"{weekday[1]}, {german}"


def _date_span(span: tuple[int, int, int]) -> _Pair:
    month, first, last = span
    english = f"from the {ordinal_in_english(first)} to the {ordinal_in_english(last)} of {_MONTHS[month][0]}"
    return english, f"vom {ordinal_in_german(first)}n bis zum {ordinal_in_german(last)}n {_MONTHS[month][1]}"


# Quantities and ranks


def _english_words(description: _Description) -> str:
    return " ".join(english for english, _ in description)


def _german_words(description: _Description, ending: str) -> str:
    return " ".join(german + ending for _, german in description)


def _quantity(case: _Case, count: int, description: _Description, noun: _Noun) -> _Pair:
    """Phrase a quantity with the preposition of its case."""
    english, german = _counted(case, count, description, noun)
    return case.english + english, case.german + german


def _counted(case: _Case, count: int, description: _Description, noun: _Noun) -> _Pair:
    """Phrase a count with its noun in a case; German 201 etc. take an uninflected "ein" and the plural."""
    english = _join(number_in_english(count), _english_words(description), noun.one if count == 1 else noun.many)
    if count == 1:
        article, ending = case.one[noun.gender]
        german = _join(article, _german_words(description, ending), noun.german_one)
    else:
        many = noun.dative_many if case.name == "dative" else noun.german_many
        german = _join(_german_count(count), _german_words(description, case.many), many)
    return english, german


def _measure(count: int, measured: tuple[_Noun, _Pair]) -> _Pair:
    noun, stuff = measured
    english, german = _counted(_NOMINATIVE, count, (), noun)
    return f"{english} of {stuff[0]}", f"{german} {stuff[1]}"


def _rank(case: _Case, rank: int, description: _Description, noun: _Noun) -> _Pair:
    article, ending = case.the[noun.gender]
    german = _join(article, ordinal_in_german(rank)[:-1] + ending, _german_words(description, ending), noun.german_one)
    english = _join("the", ordinal_in_english(rank), _english_words(description), noun.one)
    return case.english + english, case.german + german


# Prices


def _amount(whole: int, currency: tuple[_Noun, _Noun]) -> _Pair:
    return _counted(_NOMINATIVE, whole, (), currency[0])


def _full_amount(whole: int, part: int, currency: tuple[_Noun, _Noun]) -> _Pair:
    english, german = _amount(whole, currency)
    small = _counted(_NOMINATIVE, part, (), currency[1])
    return f"{english} and {small[0]}", f"{german} und {small[1]}"


def _cost_amount(whole: int, currency: tuple[_Noun, _Noun]) -> _Pair:
    """Phrase a price after "kosten", which takes the accusative: "kostet einen Euro"."""
    return _counted(_ACCUSATIVE, whole, (), currency[0])


def _cost(description: _Description, noun: _Noun, whole: int, currency: tuple[_Noun, _Noun]) -> _Pair:
    english, german = _cost_amount(whole, currency)
    article, ending = _NOMINATIVE.the[noun.gender]
    goods = _join(article, _german_words(description, ending), noun.german_one)
    return _join("the", _english_words(description), noun.one, "costs", english), f"{goods} kostet {german}"


def _cost_of_many(
    count: int, description: _Description, noun: _Noun, whole: int, currency: tuple[_Noun, _Noun]
) -> _Pair:
    english, german = _cost_amount(whole, currency)
    # The adjective is weak after "die": "drei rote Äpfel", yet "die drei roten Äpfel".
    goods = _join("die", _german_count(count), _german_words(description, "en"), noun.german_many)
    english = _join("the", number_in_english(count), _english_words(description), noun.many, "cost", english)
    return english, f"{goods} kosten {german}"


def _price_each(count: int, description: _Description, noun: _Noun, whole: int, currency: tuple[_Noun, _Noun]) -> _Pair:
    english, german = _counted(_NOMINATIVE, count, description, noun)
    price = _amount(whole, currency)
    return f"{english} at {price[0]} each", f"{german} zu je {price[1]}"


# Families


@dataclass(frozen=True)
class _Family:
    """Phrases `make(*values)` over the product of the axes; `core` ones teach the vocabulary and stay in training."""

    make: Callable[..., _Pair]
    axes: tuple[Sequence[Any], ...]
    core: bool = False

    @property
    def size(self) -> int:
        """Number of phrases in the family."""
        return math.prod(len(axis) for axis in self.axes)

    def pair(self, index: int) -> _Pair:
        """Return the phrase at this index."""
        values = []
        for axis in self.axes:
            index, position = divmod(index, len(axis))
            values.append(axis[position])
        return self.make(*values)


def _number_families() -> Iterable[_Family]:
    for position, numbers in enumerate(_DIGITS):
        yield _Family(_number, (numbers,), core=position < 2)


def _time_families() -> Iterable[_Family]:
    openings = (("on", "am"), ("every", "jeden"))
    yield _Family(_clock, (range(12), _OCLOCK_MINUTES), core=True)
    yield _Family(_clock, (range(12), _ODD_MINUTES))
    yield _Family(_at_clock, (range(12), range(60)))
    yield _Family(_half_day_clock, (range(24), range(1)), core=True)
    yield _Family(_half_day_clock, (range(24), range(1, 60)))
    yield _Family(_weekday_clock, (openings, _WEEKDAYS, range(12), range(60)))
    yield _Family(_weekday_half_day, (_WEEKDAYS, range(24), range(60)))
    yield _Family(_day_part_clock, (_WEEKDAYS, _DAY_PART_HOURS, range(60)))
    yield _Family(_time_span, (range(144), range(1, 144)))


def _date_families() -> Iterable[_Family]:
    orders = (False, True)
    yield _Family(_date, (_DATE_PREPOSITIONS, orders, _DATES))
    yield _Family(_date_in_year, (_DATE_PREPOSITIONS, orders, _YEARLY_DATES, range(1100, 1900)))
    yield _Family(_date_in_year, (_DATE_PREPOSITIONS, orders, _YEARLY_DATES, range(1900, 2000)))
    yield _Family(_date_in_year, (_DATE_PREPOSITIONS, orders, _YEARLY_DATES, range(2000, 2100)))
    yield _Family(_weekday_date, (_WEEKDAYS, _DATES))
    yield _Family(_date_span, (_DATE_RANGES,))


def _price_families() -> Iterable[_Family]:
    one, several = range(1, 2), range(2, 100)
    for counts in _COUNTS:
        yield _Family(_amount, (counts, _CURRENCIES))
        for parts in (one, several):
            yield _Family(_full_amount, (counts, parts, _CURRENCIES))
    for descriptions in (_PLAIN, _DESCRIBED, _TWICE_DESCRIBED):
        # A price of one is inflected ("kostet einen Euro") and would be rare in uniform samples: separate families.
        for prices in (one, range(2, 1000)):
            yield _Family(_cost, (descriptions, _NOUNS, prices, _CURRENCIES))
        for prices in (one, several):
            yield _Family(_cost_of_many, (several, descriptions, _NOUNS, prices, _CURRENCIES))
        # From two: "zu je" would require the dative for a price of one.
        yield _Family(_price_each, (several, descriptions, _NOUNS, several, _CURRENCIES))


def _quantity_families() -> Iterable[_Family]:
    # Only "one" shows gender: separate families, since it would be too rare to learn otherwise.
    for counts in (range(1, 2), range(2, 10), *_COUNTS[1:]):
        yield _Family(_measure, (counts, _MEASURED))
        for descriptions in (_PLAIN, _DESCRIBED, _TWICE_DESCRIBED):
            yield _Family(_quantity, (_CASES, counts, descriptions, _NOUNS))


def _rank_families() -> Iterable[_Family]:
    for descriptions in (_PLAIN, _DESCRIBED, _TWICE_DESCRIBED):
        for ranks in _COUNTS[:3]:
            yield _Family(_rank, (_CASES, ranks, descriptions, _NOUNS))


_FAMILIES: dict[str, tuple[_Family, ...]] = {
    "number": tuple(_number_families()),
    "time": tuple(_time_families()),
    "date": tuple(_date_families()),
    "price": tuple(_price_families()),
    "quantity": tuple(_quantity_families()),
    "rank": tuple(_rank_families()),
}
KINDS = tuple(_FAMILIES)
KIND_SIZES = {kind: sum(family.size for family in families) for kind, families in _FAMILIES.items()}
# maximum of all splits: each kind is limited to the size of the smallest, less one per split for rounding
MOST = len(KINDS) * (min(KIND_SIZES.values()) - 3)


# Drawing


def _shares(total: int) -> list[int]:
    """Split a total evenly among the kinds; raise ValueError if it is negative."""
    if total < 0:
        raise ValueError(f"a number of phrases cannot be negative: {total}")
    return [total // len(KINDS) + (position < total % len(KINDS)) for position in range(len(KINDS))]


def _quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Split a total evenly among families, capped by their sizes."""
    quotas = [0] * len(sizes)
    # Smallest first: its shortfall is redistributed to larger ones.
    for done, position in enumerate(sorted(range(len(sizes)), key=lambda position: sizes[position])):
        quotas[position] = min(sizes[position], total // (len(sizes) - done))
        total -= quotas[position]
    return quotas


def _draw(kind: str, count: int, rng: random.Random) -> list[Phrase]:
    """Draw distinct phrases of a kind, shuffled with core ones last; raise ValueError beyond the kind's size."""
    if count > KIND_SIZES[kind]:
        raise ValueError(f"there are at most {KIND_SIZES[kind]} distinct phrases of kind {kind!r}, not {count}")
    families = _FAMILIES[kind]
    drawn = []
    for family, quota in zip(families, _quotas([family.size for family in families], count), strict=True):
        drawn += [(family, index) for index in rng.sample(range(family.size), quota)]
    rng.shuffle(drawn)
    drawn.sort(key=lambda item: item[0].core)
    return [Phrase(*family.pair(index), kind) for family, index in drawn]


def phrases(count: int, seed: int) -> list[Phrase]:
    """Return `count` phrases with distinct English, kinds balanced; raise ValueError if a kind has too few."""
    return split(count, 0, 0, seed)[0]


def split(train: int, valid: int, test: int, seed: int) -> tuple[list[Phrase], list[Phrase], list[Phrase]]:
    """Return three disjoint lists of phrases, kinds balanced in each; raise ValueError if a kind has too few."""
    rng = random.Random(seed)
    parts: tuple[list[Phrase], list[Phrase], list[Phrase]] = ([], [], [])
    for kind, *wanted in zip(KINDS, _shares(train), _shares(valid), _shares(test), strict=True):
        in_train, in_valid, in_test = wanted
        drawn = _draw(kind, in_train + in_valid + in_test, rng)
        # Core phrases are last, so that held-out sets contain them only if the others run out.
        parts[1].extend(drawn[:in_valid])
        parts[2].extend(drawn[in_valid : in_valid + in_test])
        parts[0].extend(drawn[in_valid + in_test :])
    for part in parts:
        rng.shuffle(part)
    return parts
