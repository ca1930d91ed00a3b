"""Says in one line why a request to an MCP server failed.

A server may send anything. What the SDK makes of that can be any exception: it is an error of the server's
reply, and says nothing about whether the server still runs.
"""

from __future__ import annotations

import anyio
import mcp_types
from mcp import MCPError
from pydantic import ValidationError

from lastgood.engine.mcp.mcp_errors import ServerUnavailable
from lastgood.engine.tools.tool import ToolFailed

#: Begins what our transports say of a reply. The SDK puts words of its own before it.
OF_REPLY = "its reply "
_LONGEST = 300
_CLOSED = -32000  # the SDK's code for a connection that ended under a request; servers use it for anything
_CLOSED_BEGINNINGS = ("Connection closed", "SSE stream ")
_INVALID = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def may_be_lost(error: BaseException) -> bool:
    """Whether the connection may have ended under the request."""
    if isinstance(error, MCPError):
        return error.error.code == _CLOSED
    lost = (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)
    return isinstance(error, lost) and not isinstance(error, TimeoutError)


def is_lost(error: BaseException) -> bool:
    """The same where no process can be asked."""
    if isinstance(error, MCPError) and may_be_lost(error):
        return error.error.message.startswith(_CLOSED_BEGINNINGS)
    return may_be_lost(error)


def is_timeout(error: BaseException) -> bool:
    """Whether the request was sent, and nothing is known of it."""
    if isinstance(error, MCPError):
        return error.error.code == mcp_types.REQUEST_TIMEOUT
    return isinstance(error, TimeoutError)


def reason_of(error: BaseException, reply: str = "reply") -> str:
    """Task groups wrap what went wrong. `reply`: what the server was asked for."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, (ServerUnavailable, ToolFailed)):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it did not respond in time"
    if OF_REPLY in str(error):
        return OF_REPLY + _line(str(error).partition(OF_REPLY)[2])
    if isinstance(error, MCPError) and error.error.code == mcp_types.PARSE_ERROR:
        return f"it sent an invalid {reply}: not a JSON-RPC message"
    if isinstance(error, _INVALID):
        return f"it sent an invalid {reply}: {_detail(error)}"
    return _line(str(error)) or type(error).__name__


def _detail(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return _line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    return _line(str(error)) or type(error).__name__


def _line(text: str) -> str:
    return " ".join(text[: 4 * _LONGEST].split())[:_LONGEST]
