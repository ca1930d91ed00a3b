"""Does a text match a glob, and what does that cost?"""

import re
import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lastgood.core.globs import Glob


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("", [""], ["a"]),
        ("abc", ["abc"], ["ab", "abcd", "xabc"]),
        ("*", ["", "a/b\n"], []),
        ("a*", ["a", "ab/c"], ["", "ba"]),
        ("*a", ["a", "ba"], ["", "ab"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("*ab*ab*", ["abab", "xabxabx"], ["ab", "aab", "xabx"]),
        ("a?c", ["abc", "a\nc"], ["ac", "abbc"]),
        ("*?b", ["ab", "bb"], ["b", "a"]),
        ("[ab]c", ["ac", "bc"], ["cc", "c"]),
        ("[!ab]c", ["cc", "\U0010ffffc"], ["ac", "c"]),
        ("[^ab]c", ["cc"], ["ac"]),
        ("[a-c]", ["a", "b", "c"], ["d", "-"]),
        ("[!a-cb]", ["d"], ["a", "b", "c"]),
        ("[c-a]", [], ["a", "b", "c", ""]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[!\0-\U0010ffff]", [], ["a", "\0", "\U0010ffff"]),
        ("[ab", ["[ab"], ["a"]),
        (r"\*\?\[\\", ["*?[\\"], ["abcd"]),
        ("*x[ab]?y*", ["xaay", "..xbxay..xbcy"], ["xaa", "xcay"]),
    ],
)
def test_a_glob_matches_these_texts_and_no_others(glob: str, matching: list[str], others: list[str]) -> None:
    assert [text for text in matching if not Glob(glob).matches(text)] == []
    assert [text for text in others if Glob(glob).matches(text)] == []


@given(
    st.lists(st.sampled_from([*"abc*?[]!-^\\", "[ab]", "[!a]", "[a-c]", "[]b]", r"\*"]), max_size=8),
    st.text("abc[]-!^*\\?", max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_globs_mean_what_the_standard_library_says(pieces: list[str], text: str) -> None:
    glob = "".join(pieces)
    # The library takes `!` for a negation where a backward range before it is empty.
    assume(all(low <= high for low, high in re.findall(r"(?=(.)-(.))", glob)))
    expected = fnmatchcase(text, re.sub(r"\\([*?\[\\])", r"[\1]", glob).replace("[^", "[!"))
    assert Glob(glob).matches(text) is expected


@pytest.mark.parametrize(
    ("unit", "end"), [("a", "b" + "a" * 9), ("a?", "b"), ("[ab]", "c")], ids=["text", "any", "sets"]
)
def test_I40_a_glob_that_is_16_times_as_long_does_not_cost_16_times_as_much(unit: str, end: str) -> None:
    """Whoever sends both a rule and a text could otherwise multiply the one by the other."""
    text = "a" * 20_000
    short, long = (Glob(f"*{unit * times}{end}*") for times in (50, 800))
    assert _cost(long, text) < 6 * _cost(short, text)


def _cost(glob: Glob, text: str) -> float:
    def once() -> float:
        started = time.process_time()
        for _ in range(3):
            assert not glob.matches(text)
        return time.process_time() - started

    return max(min(once() for _ in range(3)), 0.001)
