"""Which memory a call stores, and which ones a search finds."""

import pytest

from lastgood.core.memories import (
    CATEGORY_CHARACTERS,
    MEMORY_CHARACTERS,
    QUERY_CHARACTERS,
    Memory,
    is_memory_id,
    memory_id,
    search,
    why_not_searched,
    why_not_stored,
)

MEMORIES = [
    Memory("1", "Likes GREEN tea", "preference"),
    Memory("2", "Lives in Rome", "fact"),
    Memory("3", "Straße 5, green door"),
]


def test_I33_the_same_call_with_the_same_text_is_the_same_memory_and_no_other_is() -> None:
    known = memory_id("t:1:c", "text", "fact")
    assert memory_id("t:1:c", "text", "fact") == known
    others = [
        ("t:1:d", "text", "fact"),
        ("t:1:c", "texts", "fact"),
        ("t:1:c", "text", ""),
        ("t:1:ct", "ext", "fact"),
    ]
    assert len({known, *(memory_id(*other) for other in others)}) == 5


@pytest.mark.parametrize(
    ("query", "category", "found"),
    [
        ("", "", "123"),
        ("green", "", "13"),
        ("tea likes", "", "1"),
        ("green rome", "", ""),
        ("STRASSE", "", "3"),
        ("green", "Preference ", "1"),
        ("", "fact", "2"),
    ],
)
def test_a_search_finds_all_words_in_any_case(query: str, category: str, found: str) -> None:
    assert "".join(one.id for one in search(MEMORIES, query, category)) == found


@pytest.mark.parametrize(
    ("text", "category", "words"),
    [
        (" ", "", "is empty"),
        ("a\x00", "", "NUL"),
        ("a", "\x00", "NUL"),
        ("x" * (MEMORY_CHARACTERS + 1), "", "`memory` has 8,193 characters; the limit is 8,192"),
        ("x", "y" * (CATEGORY_CHARACTERS + 1), "`category` has 101 characters"),
    ],
)
def test_I40_a_memory_that_cannot_be_stored_says_why(text: str, category: str, words: str) -> None:
    assert words in (why_not_stored(text, category) or "")


def test_I40_a_memory_of_the_largest_size_can_be_stored() -> None:
    assert why_not_stored("x" * MEMORY_CHARACTERS, "y" * CATEGORY_CHARACTERS) is None


def test_I40_a_search_looks_for_so_many_words_and_for_each_of_them_once() -> None:
    assert why_not_searched("x" * QUERY_CHARACTERS) is None
    assert "`query` has 1,001 characters" in (why_not_searched("x" * (QUERY_CHARACTERS + 1)) or "")
    large = [Memory(str(number), "a " * 4096) for number in range(1000)]
    assert len(search(large, "a " * 500, "")) == 1000


def test_only_an_id_of_ours_is_looked_up() -> None:
    assert is_memory_id(memory_id("t:1:c", "text", "fact"))
    for other in ("", "mem_\x00", "mem_0123456789abcdef\n", "mem_0123456789ABCDEF", "x" * 10_000):
        assert not is_memory_id(other)
