"""Decides what a line on a server's standard output means.

A line may be too long to keep, or hold no message of the protocol. If it answers a request, that request
fails at once: it would wait until its time limit otherwise. Other lines are skipped, because servers print
there, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mcp_types
import orjson
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from lastgood.engine.mcp.reply_errors import OF_REPLY

#: Of one message. A result is often in it twice, as text and as data. A larger one would hold the event loop
#: for too long, and a thread would not help, because parsers hold the interpreter.
MAX_LINE_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 200
#: Longer lines are read by the parser that is several times faster; it knows no NaN.
_LONG_BYTES = 64 * 1024
#: Only where the id is the message's own: what a result holds may look the same.
_FIRST = re.compile(rb'^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,(?!\s*"method")')
_LAST = re.compile(rb'[,{]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class OpenRequests:
    """The ids of the requests that have no answer yet."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def note_sent(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest) and isinstance(message.id, int):
            self.ids.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.ids.discard((message.params or {}).get("requestId", -1))

    def note_answered(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError) and isinstance(message.id, int):
            self.ids.discard(message.id)

    def fail(self, ids: frozenset[int], code: int, text: str) -> Sequence[JSONRPCMessage]:
        """Answers for those of them that wait. The others were cancelled, or took too long."""
        failed = ids & self.ids
        self.ids -= failed
        error = mcp_types.ErrorData(code=code, message=text)
        return [JSONRPCError(jsonrpc="2.0", id=id, error=error) for id in sorted(failed)]


class LineBuffer:
    """Keeps both ends of a line that is too long: one of them says which request it would have answered."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._beginning = self._end = b""

    def add(self, part: bytes) -> None:
        self._size += len(part)
        self._beginning += part[: _KEPT_BYTES - len(self._beginning)]
        self._end = (self._end + part[-_KEPT_BYTES:])[-_KEPT_BYTES:]
        if self._size <= MAX_LINE_BYTES:
            self._parts.append(part)
        else:
            self._parts.clear()

    def messages(self, requests: OpenRequests) -> Sequence[JSONRPCMessage]:
        """Several, if any of the open requests may be the one that a line was for."""
        if self._size > MAX_LINE_BYTES:
            text = f"{OF_REPLY}has {self._size:,} bytes; the limit is {MAX_LINE_BYTES:,}"
            ids = self._own_id if self._own_id or not self._may_answer else frozenset(requests.ids)
            return requests.fail(ids, mcp_types.INTERNAL_ERROR, text)
        try:
            message = _message(b"".join(self._parts))
        except ValueError:
            return requests.fail(self._own_id, mcp_types.PARSE_ERROR, "not a JSON-RPC message")
        requests.note_answered(message)
        return (message,)

    @property
    def _own_id(self) -> frozenset[int]:
        """Empty if neither end has it."""
        found = _FIRST.search(self._beginning) or _LAST.search(self._end)
        return frozenset((int(found[1]),) if found else ())

    @property
    def _may_answer(self) -> bool:
        return self._beginning.lstrip().startswith(b"{") and b'"method"' not in self._beginning


def _message(line: bytes) -> JSONRPCMessage:
    """Raises ValueError."""
    if len(line) > _LONG_BYTES:
        try:
            return mcp_types.jsonrpc_message_adapter.validate_python(_lean(orjson.loads(line)), by_name=False)
        except orjson.JSONDecodeError:
            pass
    return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)


def _lean(message: Any) -> Any:
    """Without the structured content of a result that has other content: nobody reads it, and the SDK takes
    as long to check it as it took to parse."""
    result = message.get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict) or not isinstance(content := result.get("content"), list):
        return message
    if any(isinstance(one, dict) and (one.get("type") != "text" or one.get("text")) for one in content):
        result.pop("structuredContent", None)
    return message
