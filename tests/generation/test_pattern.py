"""Patterns as automata: what `re.fullmatch` says, for whatever pattern; and what is refused, and where."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfkit.generation.constraint.automaton import START, automaton_of, automaton_of_texts
from tfkit.generation.constraint.syntax import PatternError, parse

from ..sampling import looped

ATOMS = (
    "a", "b", "é", "漢", "🙂", " ", "-", "{", "}", "a{,2}", "b{2}", "c{1,3}", "{}", "[a-c]", "[^a]", "[]a]", "[^]a-]",
    "[\\d_]", "[^\\W\\d]", "[a\\]b]", ".", "\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\.", "\\n", "\\x61", "\\u00e9",
    "\\0", "\\101", "\\\\", "(?:ab)?", "(a)", "(?P<name>b|)", "[a-z0-9]{2,}",
)  # fmt: skip
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.lists(inner, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda ways: f"(?:{'|'.join(ways)})")
        | st.builds(
            "(?:{}){}".format, inner, st.sampled_from(("*", "+", "?", "{2}", "{0,2}", "{1,}", "{,1}", "*?", "+?", "??"))
        )
    ),
    max_leaves=8,
)
TEXTS = st.lists(st.text("abcé漢🙂01 \n.-_{}]A\\\x00x", max_size=6), min_size=10, max_size=10)


def matches(pattern: str, text: str) -> bool:
    automaton = automaton_of(pattern)
    return bool(automaton.accepts[automaton.next(START, text)])


@pytest.mark.full
@settings(max_examples=100, deadline=None)
@given(PATTERNS, TEXTS)
def test_an_automaton_matches_what_re_matches(pattern: str, texts: list[str]) -> None:
    try:
        made = re.compile(pattern.replace("(?P<name>", "("))  # a name comes once in `re`
    except re.error:
        with pytest.raises(PatternError):
            automaton_of(pattern)
        return
    for text in texts:
        assert matches(pattern, text) == bool(made.fullmatch(text)), text


@looped(
    ("pattern", "yes", "no"),
    [
        ("", [""], ["a", "\n"]),
        ("^a$|^b\\Z", ["a", "b"], ["ab", "a\n"]),
        ("(a*)*b", ["b", "aab"], ["a", ""]),
        ("\\d{4}-\\d{2}", ["2024-05", "٢٠٢٤-٠٥"], ["2024-5", "2024-055"]),
        ('\\{"name": "[^"\\\\]*"\\}', ['{"name": ""}', '{"name": "Ünï 🙂"}'], ['{"name": """}', '{"name": "x"']),
        ("[[]", ["["], ["[["]),
        ("[\\U0001F600-\\U0001F64F]+", ["😀🙂"], ["☺"]),
        ("(?:(?:a|b)(?:c|d)){2}", ["acbd"], ["ac", "acbda"]),
    ],
)
def test_some_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [text for text in (*yes, *no) if matches(pattern, text)] == yes


def test_texts_stand_as_they_are() -> None:
    texts = ("a", "a.b", "(", "new", "new york", "🙂")
    automaton = automaton_of_texts(texts)
    for text in (*texts, "", "axb", "new ", "york"):
        assert bool(automaton.accepts[automaton.next(START, text)]) == (text in texts)


def test_equal_ends_are_no_more_states_than_they_need() -> None:
    assert len(automaton_of("[a-z]{1,200}").table) == 202
    assert len(automaton_of("(?:\\w|\\d|a)*").table) <= 4


@pytest.mark.full
@looped(
    ("pattern", "message"),
    [
        ("x(?=a)", r"^'\(\?=' at character 2 is lookahead or lookbehind"),
        ("(?<!a)b", r"^'\(\?<!' at character 1 is lookahead or lookbehind"),
        ("(a)\\1", r"^'\\1' at character 4 refers back to a group, which is not regular$"),
        ("(?P<x>a)(?P=x)", r"^'\(\?P=' at character 9 refers back"),
        ("(?i)a", r"^'\(\?i' at character 1 sets a flag.*\[aA\] for \(\?i\)a"),
        ("(?>a)", "is an atomic group"),
        ("(a)(?(1)b|c)", "character 4 is a condition"),
        ("(?#hm)", "is a comment"),
        ("(?~a)", "is not a known kind of group"),
        ("\\bfoo\\b", "is a word boundary, which is not supported"),
        ("ab^c", r"^'\^' at character 3 marks the beginning of the text and is allowed only there"),
        ("a$b", r"^'\$' at character 2 marks the end of the text and is allowed only there"),
        ("(^a)", "'\\^' at character 2 marks the beginning"),
        ("a++", "makes the repetition possessive"),
        ("a**", r"character 3 repeats a repetition; put the inner repetition into a group"),
        ("a{2}{3}", "character 5 repeats a repetition"),
        ("*a", r"^'\*' at character 1 has nothing to repeat; write \\\* for the literal character"),
        ("a|+", "character 3 has nothing to repeat"),
        ("a{3,2}", r"^'\{3,2\}' at character 2 has a minimum of 3 above its maximum of 2"),
        ("(a", r"^'\(' at character 1 opens a group that is never closed"),
        ("a)", r"^'\)' at character 2 closes no group; write \\\) for a literal parenthesis"),
        ("[a", r"^'\[' at character 1 has no closing \]"),
        ("[z-a]", "is not a valid character set: bad character range z-a"),
        ("a\\", "escapes nothing"),
        ("\\y", r"^'\\y' at character 1 is not a known escape sequence"),
        ("\\u12", "is not a known escape sequence"),
        ("(" * 51 + ")" * 51, "is nested more than 50 groups deep"),
        ("a[^\\s\\S]", "^matches no text at all$"),
        ("a{1000000}", "is too large; reduce the repetitions"),
        ("(?:){99999999}", "is too large"),
        ("((a{0,100}){0,100}){0,100}", "is too large"),
        ("(a|b)*a(a|b){20}", "needs more than 10000 states; reduce the repetitions"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_place(pattern: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        automaton_of(pattern)


@settings(max_examples=100, deadline=None)
@given(st.text("ab()[]{}|*+?.\\^$-,0129dwzPx:<>=!#", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        parse(pattern)
    except PatternError as error:
        assert "at character" in str(error)
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Python may read `[[` otherwise one day
            made = re.compile(pattern)
    except re.error as error:  # names of groups are not looked at here
        assert "group name" in str(error) or "redefinition" in str(error)
        return
    for text in ("", "a", "b", "ab", "0", "a0"):
        assert matches(pattern, text) == bool(made.fullmatch(text))
