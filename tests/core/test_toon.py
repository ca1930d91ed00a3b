"""JSON as TOON, and the tools that a file's patterns are for."""

import json
import tracemalloc
from typing import Any

import pytest

from lastgood.core.toon import globs_of, shorter_as_toon, to_toon, why_not_patterns

CASES: list[tuple[Any, str]] = [
    (
        {"id": 1, "name": "Ada", "ok": True, "no": None, "x": 1.5},
        "id: 1\nname: Ada\nok: true\nno: null\nx: 1.5",
    ),
    ({"user": {"id": 1, "tags": ["a", "b"]}}, "user:\n  id: 1\n  tags[2]: a,b"),
    (
        {"items": [{"id": 1, "name": "a"}, {"id": 2, "name": "b,c"}]},
        'items[2]{id,name}:\n  1,a\n  2,"b,c"',
    ),
    ([{"id": 1}, {"id": 2}], "[2]{id}:\n  1\n  2"),
    (["a", 1, None], "[3]: a,1,null"),
    ([], "[0]:"),
    ({"none": [], "empty": {}}, "none[0]:\nempty:"),
    (
        {"mixed": [1, {"a": 1, "b": {"c": 2}}, [1, 2], {}]},
        "mixed[4]:\n  - 1\n  - a: 1\n    b:\n      c: 2\n  - [2]: 1,2\n  -",
    ),
    ([{"a": 1}, {"b": 1}], "[2]:\n  - a: 1\n  - b: 1"),
    ([{"a": [1]}, {"a": [2]}], "[2]:\n  - a[1]: 1\n  - a[1]: 2"),
    ([{}, {}], "[2]:\n  -\n  -"),
    ({"a b": 1, "x-y": 2, "": 3}, '"a b": 1\n"x-y": 2\n"": 3'),
    ("plain", "plain"),
]


@pytest.mark.parametrize(("value", "text"), CASES)
def test_records_are_tables_and_the_rest_is_indented(value: Any, text: str) -> None:
    assert to_toon(value) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", '""'),
        (" a", '" a"'),
        ("true", '"true"'),
        ("-", '"-"'),
        ("12", '"12"'),
        ("1e5", '"1e5"'),
        ("a:b", '"a:b"'),
        ('a\n"b"\\\t\r', '"a\\n\\"b\\"\\\\\\t\\r"'),
        ("süß 🧭", "süß 🧭"),
    ],
)
def test_a_text_that_could_be_read_as_something_else_is_quoted(text: str, written: str) -> None:
    assert to_toon({"a": text}) == f"a: {written}"


@pytest.mark.parametrize(
    ("patterns", "name", "is_one"),
    [
        (".*", "anything", True),
        ("list_.*,get_.*", "get_issue", True),
        ("list_.*,get_.*", "create_issue", False),
        ("^get", "forget", False),
        ("get", "forget", True),
        ("get$", "get_it", False),
        ("a.c|x", "abc", True),
        ("a.c", "ac", False),
        (" , ", "a", False),
    ],
)
def test_patterns_are_found_anywhere_in_a_name(patterns: str, name: str, is_one: bool) -> None:
    assert any(glob.matches(name) for glob in globs_of(patterns)) is is_one


def test_I40_patterns_that_may_take_for_ever_are_refused() -> None:
    assert why_not_patterns(".*,list_.*|^a-b$") is None
    for wrong in ("(a+)+", "[ab]", "a*", "a{2}", "a\\d"):
        assert wrong in (why_not_patterns(f"fine,{wrong}") or "")


def test_I40_a_text_that_would_be_longer_is_not_built() -> None:
    deep: Any = [{"a": 1}, [1]] * 20_000
    for _ in range(150):
        deep = [deep]
    size = len(json.dumps(deep))
    tracemalloc.start()
    assert shorter_as_toon(deep, size) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * size
    assert shorter_as_toon({"a": 1}, 4) == "a: 1"
    assert shorter_as_toon({"a": 1}, 3) is None
