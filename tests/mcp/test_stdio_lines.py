"""Each line that answers a request settles it, and no other one, whatever the line holds."""

from __future__ import annotations

import orjson
import pytest
from mcp_types import (
    CallToolRequestParams,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from lastgood.engine.mcp import stdio_lines
from lastgood.engine.mcp.stdio_lines import LineBuffer, OpenRequests


@pytest.fixture
def requests() -> OpenRequests:
    """Of requests 1 to 3."""
    sent = OpenRequests()
    params = CallToolRequestParams(name="add").model_dump(exclude_none=True)
    for id in (1, 2, 3):
        sent.note_sent(JSONRPCRequest(jsonrpc="2.0", id=id, method="tools/call", params=params))
    return sent


def failed(text: bytes, requests: OpenRequests) -> list[int | str | None]:
    line = LineBuffer()
    for start in range(0, len(text), 1000):
        line.add(text[start : start + 1000])
    messages = line.messages(requests)
    assert all(isinstance(message, JSONRPCError) for message in messages)
    return [message.id for message in messages if isinstance(message, JSONRPCError)]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (b'{"jsonrpc": "2.0", "id": 2, "result": "' + b"x" * 9000 + b'"}', [2]),
        (b'{"id":2,"jsonrpc":"2.0","result":"' + b"x" * 9000 + b'"}', [2]),
        (b'{"result": "' + b"x" * 9000 + b'", "jsonrpc": "2.0", "id": 3}', [3]),
        (b'{"result": "' + b"x" * 9000 + b'", "id": 3, "jsonrpc": "2.0"}\r', [3]),
        (b'{"result": {"id": 3, "a": "' + b"x" * 9000 + b'", "b": {"id": 1}}}', [1, 2, 3]),
        (b'{"jsonrpc": "2.0", "id": 9, "result": "' + b"x" * 9000 + b'"}', []),
        (b'{"jsonrpc": "2.0", "method": "notifications/message", "params": "' + b"x" * 9000, []),
        (b"x" * 9000, []),
    ],
)
def test_a_line_that_is_too_long_fails_the_requests_that_it_may_answer(
    text: bytes, ids: list[int], requests: OpenRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio_lines, "MAX_LINE_BYTES", 5000)
    assert failed(text, requests) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (b'{"jsonrpc": "2.0", "id": 2, "result": 7}', [2]),
        (b'{"result": 7, "jsonrpc": "2.0", "id": 2}', [2]),
        (b'{"jsonrpc": "2.0", "id": 2, "result": {"a": ', [2]),
        (b'{"jsonrpc": "2.0", "id": 9, "result": 7}', []),
        (b"starting the server", []),
        (b"{}", []),
        (b"", []),
    ],
)
def test_a_line_outside_the_protocol_fails_the_request_that_it_names(
    text: bytes, ids: list[int], requests: OpenRequests
) -> None:
    assert failed(text, requests) == ids


def test_a_request_that_was_answered_or_cancelled_waits_no_more(requests: OpenRequests) -> None:
    line = LineBuffer()
    line.add(b'{"jsonrpc": "2.0", "id": 1, "result": {}}')
    assert isinstance(line.messages(requests)[0], JSONRPCResponse)
    requests.note_sent(
        JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 2})
    )
    assert requests.ids == {3}


@pytest.mark.parametrize(("text", "is_kept"), [("x" * 70_000, False), ("", True)])
def test_structured_content_of_a_long_reply_is_kept_where_there_is_no_other(
    text: str, is_kept: bool, requests: OpenRequests
) -> None:
    result = {"content": [{"type": "text", "text": text}], "structuredContent": {"rows": ["y" * 70_000]}}
    line = LineBuffer()
    line.add(orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": result}))
    message = line.messages(requests)[0]
    assert isinstance(message, JSONRPCResponse)
    assert ("structuredContent" in message.result) is is_kept


def test_a_long_reply_may_hold_what_only_the_slower_parser_knows(requests: OpenRequests) -> None:
    line = LineBuffer()
    line.add(b'{"jsonrpc": "2.0", "id": 1, "result": {"a": NaN, "b": "' + b"x" * 70_000 + b'"}}')
    assert isinstance(line.messages(requests)[0], JSONRPCResponse)
