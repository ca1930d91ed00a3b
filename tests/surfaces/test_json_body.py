"""From bytes to JSON values: counted before they are built, and a large document in slices."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood.errors import InvalidRequest, TooLarge
from lastgood.surfaces.http import json_body
from lastgood.surfaces.http.json_body import check_values, parse_document, parse_json
from lastgood.time_slices import paced

LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('ab",[{\\é\n', max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


def count(value: Any) -> int:
    """Elements and fields; an empty list or object still has its bracket."""
    match value:
        case dict():
            return max(len(value), 1) + sum(map(count, value.values()))
        case list():
            return max(len(value), 1) + sum(map(count, value))
        case _:
            return 0


def holds_more(body: bytes, limit: int) -> bool:
    async def run() -> bool:
        return await paced(json_body._holds_more(body, limit))

    return asyncio.run(run())


@given(VALUES, st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_I40_values_are_counted_exactly_whatever_strings_hold_and_wherever_a_window_ends(
    value: Any, window: int
) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_WINDOW_BYTES", window)
        assert not holds_more(body, count(value))
        assert count(value) == 0 or holds_more(body, count(value) - 1)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.sampled_from([None, 1]))
@settings(max_examples=150, deadline=None)
def test_a_document_read_in_slices_is_the_document(value: dict[str, Any], indent: int | None) -> None:
    body = json.dumps(value, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_LARGE_BYTES", 0)
        assert asyncio.run(parse_document(body)) == value


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":1,}',
        b'{"a":1 "b":2}',
        b'{"a":[1,]}',
        b'{"a":[1 2]}',
        b'{"a":[1',
        b'{"a":NaN}',
        b'{"a":[Infinity]}',
        b'{"a":[1e999]}',
        b"{7:1}",
        b'{"a":1}{',
        b'{"a":"\xff"}',
        b'{"a":["\\ud800",{"b":"\\ud800"}]}',
        b'{"a":' + b"[" * 98 + b'{"a":' * 3 + b"1" + b"}" * 3 + b"]" * 98 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_I40_what_is_not_json_is_refused_in_slices_too(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(body)
    monkeypatch.setattr(json_body, "_LARGE_BYTES", 0)
    with pytest.raises(InvalidRequest):
        asyncio.run(parse_document(body))


def test_I40_a_body_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    body = b'{"messages": [' + b"1," * 300_000  # it is not even JSON
    with pytest.raises(TooLarge, match="more than 200,000 JSON values"):
        asyncio.run(check_values(body))
    text = json.dumps({"text": 'a, [b], {c}, "d", \\' * 100_000}).encode()
    asyncio.run(check_values(text))
