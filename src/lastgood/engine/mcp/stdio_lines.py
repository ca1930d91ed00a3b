"""Decides what a line on a server's standard output means.

A line may be too long to keep, or hold no message of the protocol. If it answers a request, that request
fails at once: it would wait until its time limit otherwise. Other lines are skipped, because servers print
there, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import mcp_types
import orjson
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from lastgood.engine.mcp.reply_errors import OF_REPLY

#: Of one message. A result is often in it twice, as text and as data. Reading one of this size takes 0.2
#: seconds of the event loop; a thread would not help, because parsers hold the interpreter.
MAX_LINE_BYTES = 16 * 1024 * 1024
_KEPT_BYTES = 200
#: Longer lines are read by the parser that is several times faster; it knows no NaN.
_LONG_BYTES = 64 * 1024
#: Only where the id is the message's own: what a result holds may look the same.
_FIRST = re.compile(rb'^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,(?!\s*"method")')
_LAST = re.compile(rb'[,{]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


class Waiting:
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


class Line:
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

    def messages(self, waiting: Waiting) -> Sequence[JSONRPCMessage]:
        """Several, if any of the open requests may be the one that a line was for."""
        if self._size > MAX_LINE_BYTES:
            code, text = (
                mcp_types.INTERNAL_ERROR,
                f"{OF_REPLY}has {self._size:,} bytes; the limit is {MAX_LINE_BYTES:,}",
            )
            ids = self._answered(waiting) or (waiting.ids if self._may_answer else ())
        else:
            try:
                message = _message(b"".join(self._parts))
            except ValueError:
                code, text, ids = mcp_types.PARSE_ERROR, "not a JSON-RPC message", self._answered(waiting)
            else:
                waiting.note_answered(message)
                return (message,)
        error = mcp_types.ErrorData(code=code, message=text)
        errors = [JSONRPCError(jsonrpc="2.0", id=id, error=error) for id in sorted(ids)]
        waiting.ids.difference_update(ids)
        return errors

    def _answered(self, waiting: Waiting) -> set[int]:
        found = _FIRST.search(self._beginning) or _LAST.search(self._end)
        return {int(found[1])} & waiting.ids if found else set()

    @property
    def _may_answer(self) -> bool:
        return self._beginning.lstrip().startswith(b"{") and b'"method"' not in self._beginning


def _message(line: bytes) -> JSONRPCMessage:
    """Raises ValueError."""
    if len(line) > _LONG_BYTES:
        try:
            return mcp_types.jsonrpc_message_adapter.validate_python(orjson.loads(line), by_name=False)
        except orjson.JSONDecodeError:
            pass
    return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
