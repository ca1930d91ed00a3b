"""What a person decides about holds nothing invisible, and prose nothing that controls a terminal."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from lastgood.core.visible_text import harmless, visible


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x1bb", "a\\x1bb"),
        ("a\rb", "a\\x0db"),
        ("a\x9bb", "a\\x9bb"),
        ("a\xadb", "a\\xadb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("a\u3164b", "a\\u3164b"),
        ("a\u115fb\u1160", "a\\u115fb\\u1160"),
        ("a\u2800b", "a\\u2800b"),
        ("a\u034fb", "a\\u034fb"),
        ("a\ufe0fb", "a\\ufe0fb"),
        ("a\U000e0100b", "a\\U000e0100b"),
        # Not `\ue0041`, which would be U+E004 and the digit 1.
        ("a\U000e0041b", "a\\U000e0041b"),
        ("a\u200db", "a\\u200db"),
        ("a\uffa0b", "a\\uffa0b"),
        ("two lines\n\tand a tab", "two lines\n\tand a tab"),
        ("Grüße, 你好, здравствуйте, 🦀, e\u0301", "Grüße, 你好, здравствуйте, 🦀, e\u0301"),
    ],
)
def test_invisible_characters_are_escaped(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_no_control_format_or_separator_character_stays_as_it_is() -> None:
    """All of Unicode as this Python knows it, so a new version of it cannot add one unseen."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    kept = [
        f"U+{code:04X}"
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(char := chr(code)) in hidden and visible(char) == char
    ]
    assert kept == ["U+0009", "U+000A"]


@pytest.mark.parametrize(
    "text", ["👩\u200d🚀", "❤\ufe0f", "\u0645\u06cc\u200c\u062e\u0648", "soft\xadhyphen"]
)
def test_prose_keeps_emoji_and_joiners(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize("char", ["\x1b", "\x9b", "\u202e", "\u2028", "\u200b", "\U000e0041"])
def test_prose_holds_nothing_that_controls_or_reorders(char: str) -> None:
    assert char not in harmless(f"a{char}b")
