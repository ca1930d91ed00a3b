"""What a plan is, and what a change keeps."""

import pytest

from lastgood.core.plans import FIELD_CHARACTERS, PLAN_CHARACTERS, changed_plan, why_not_a_name


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("release", "db-migration_2", "7")),
        *((name, False) for name in ("", "A", "../x", "-a", "a b", "a\n", "x" * 129)),
    ],
)
def test_I38_a_name_is_plain(name: str, is_one: bool) -> None:
    assert (why_not_a_name(name) is None) is is_one


def test_a_change_keeps_what_it_does_not_name() -> None:
    before = {"content": "old", "title": "T", "author": "", "other": "x"}
    assert changed_plan(before, {"content": "new", "status": "done", "name": "a"}) == {
        "content": "new",
        "title": "T",
        "status": "done",
    }
    assert changed_plan({}, {"content": "new"}) == {"content": "new"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"content": "x" * (PLAN_CHARACTERS + 1)}, "`content` has 200,001 characters"),
        ({"title": "x" * (FIELD_CHARACTERS + 1)}, "`title` has 201 characters"),
        ({"status": "a\x00"}, "`status` cannot contain a NUL"),
    ],
)
def test_I40_what_cannot_be_stored_says_why(change: dict[str, str], words: str) -> None:
    found = changed_plan({}, change)
    assert isinstance(found, str)
    assert words in found
