"""Vocabulary of the generated phrases in English and German: numbers, dates, nouns, adjectives, units, currencies."""

from __future__ import annotations

from dataclasses import dataclass

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
# "ein" is the form in compounds and before nouns; number_in_german adds the "s" of a standalone number
_GERMAN_SMALL = _words(
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
_GERMAN_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_GERMAN_ORDINALS = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}

# English month, German month, number of days (29 February occurs only in dates without a year)
MONTHS = (
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
WEEKDAYS = (
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
)
# English, German, hours: only hours for which both languages use the same part of the day
_DAY_PARTS = (
    ("morning", "morgen", range(5, 12)),
    ("afternoon", "nachmittag", range(13, 18)),
    ("evening", "abend", range(18, 23)),
)
DAY_PART_HOURS = tuple((english, german, hour) for english, german, hours in _DAY_PARTS for hour in hours)


@dataclass(frozen=True)
class Noun:
    """A noun in both languages, singular and plural, with its German gender (m, f or n)."""

    one: str
    many: str
    german_one: str
    german_many: str
    gender: str

    @property
    def dative_many(self) -> str:
        """German dative plural, which adds -n unless the plural ends in -n or -s."""
        return self.german_many if self.german_many[-1] in "ns" else self.german_many + "n"


@dataclass(frozen=True)
class GrammaticalCase:
    """A preposition, or none, with the German articles and endings that it governs, by gender."""

    english: str
    german: str
    name: str
    one: dict[str, tuple[str, str]]  # ein/eine/ein, and the ending of the following adjective
    the: dict[str, tuple[str, str]]  # der/die/das, and the ending of the following ordinal or adjective
    many: str  # the ending of an adjective after numbers above one


Description = tuple[tuple[str, str], ...]
Pair = tuple[str, str]

NOUNS = tuple(
    Noun(*_words(row))
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
# adjectives whose stem does not change; qualities precede colours in both languages
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
PLAIN: tuple[Description, ...] = ((),)
DESCRIBED: tuple[Description, ...] = tuple((adjective,) for adjective in _QUALITIES + _COLOURS)
TWICE_DESCRIBED: tuple[Description, ...] = tuple((first, last) for first in _QUALITIES for last in _COLOURS)

NOMINATIVE = GrammaticalCase(
    "",
    "",
    "nominative",
    one={"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")},
    the={"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")},
    many="e",
)
_DATIVE = GrammaticalCase(
    "with ",
    "mit ",
    "dative",
    one={"m": ("einem", "en"), "f": ("einer", "en"), "n": ("einem", "en")},
    the={"m": ("dem", "en"), "f": ("der", "en"), "n": ("dem", "en")},
    many="en",
)
ACCUSATIVE = GrammaticalCase(
    "without ",
    "ohne ",
    "accusative",
    one={"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")},
    the={"m": ("den", "en"), "f": ("die", "e"), "n": ("das", "e")},
    many="e",
)
CASES = (NOMINATIVE, _DATIVE, ACCUSATIVE)

# units and substances; German has no "of" between them
_LIQUIDS = (("water", "Wasser"), ("milk", "Milch"), ("coffee", "Kaffee"), ("tea", "Tee"), ("juice", "Saft"))
_SOLIDS = (("sugar", "Zucker"), ("flour", "Mehl"), ("rice", "Reis"), ("salt", "Salz"), ("cheese", "Käse"))
_LIQUID_MEASURES = (
    Noun("liter", "liters", "Liter", "Liter", "m"),
    Noun("bottle", "bottles", "Flasche", "Flaschen", "f"),
    Noun("cup", "cups", "Tasse", "Tassen", "f"),
)
_SOLID_MEASURES = (
    Noun("kilogram", "kilograms", "Kilogramm", "Kilogramm", "n"),
    Noun("gram", "grams", "Gramm", "Gramm", "n"),
)
MEASURED = tuple((measure, stuff) for measure in _LIQUID_MEASURES for stuff in _LIQUIDS) + tuple(
    (measure, stuff) for measure in _SOLID_MEASURES for stuff in _SOLIDS
)

# in German, currencies stay singular ("zwölf Euro"); none is feminine, so "ein" fits all
_CENT = Noun("cent", "cents", "Cent", "Cent", "m")
CURRENCIES = (
    (Noun("euro", "euros", "Euro", "Euro", "m"), _CENT),
    (Noun("dollar", "dollars", "Dollar", "Dollar", "m"), _CENT),
    (Noun("pound", "pounds", "Pfund", "Pfund", "n"), Noun("penny", "pence", "Penny", "Pence", "m")),
    (
        Noun("Swiss franc", "Swiss francs", "Schweizer Franken", "Schweizer Franken", "m"),
        Noun("centime", "centimes", "Rappen", "Rappen", "m"),
    ),
)


def _check_number(n: int) -> None:
    if not 0 <= n < NUMBER_LIMIT:
        raise ValueError(f"only numbers from 0 to {NUMBER_LIMIT - 1} are supported, not {n}")


def number_in_english(n: int) -> str:
    """Return `n` in American English words, without "and"; raise ValueError unless 0 <= n <= 999999."""
    _check_number(n)
    if n >= 1000:
        return joined(number_in_english(n // 1000) + " thousand", number_in_english(n % 1000) if n % 1000 else "")
    if n >= 100:
        return joined(_ENGLISH_SMALL[n // 100] + " hundred", number_in_english(n % 100) if n % 100 else "")
    if n < 20:
        return _ENGLISH_SMALL[n]
    return _ENGLISH_TENS[n // 10 - 2] + (f"-{_ENGLISH_SMALL[n % 10]}" if n % 10 else "")


def number_in_german(n: int) -> str:
    """Return `n` as a standalone German word; raise ValueError unless 0 <= n <= 999999."""
    _check_number(n)
    return german_count(n) + ("s" if n % 100 == 1 else "")


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
        return german_count(n) + "ste"
    head = german_count(n - tail) if n > tail else ""
    return head + _GERMAN_ORDINALS.get(tail, _GERMAN_SMALL[tail] + "te")


def _positive(n: int) -> int:
    if n < 1:
        raise ValueError(f"ordinals start at 1, not {n}")
    return n


def german_count(n: int) -> str:
    """Return `n` as written before a noun or within a longer number ("zweihundertein")."""
    if n >= 1000:
        return german_count(n // 1000) + "tausend" + (german_count(n % 1000) if n % 1000 else "")
    if n >= 100:
        return _GERMAN_SMALL[n // 100] + "hundert" + (german_count(n % 100) if n % 100 else "")
    if n < 20:
        return _GERMAN_SMALL[n]
    return (f"{_GERMAN_SMALL[n % 10]}und" if n % 10 else "") + _GERMAN_TENS[n // 10 - 2]


def joined(*words: str) -> str:
    """Join words by spaces, omitting empty ones."""
    return " ".join(word for word in words if word)
