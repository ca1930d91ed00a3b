"""An MCP server for tests, written with the official SDK; it speaks both eras of the protocol.

python server.py stdio | streamable-http PORT | sse PORT | broken | never
"""

import asyncio
import base64
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

server = MCPServer("test server", instructions="Sums are made with add.", log_level="ERROR")
_count = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def count() -> int:
    """Counts in memory."""
    global _count
    _count += 1
    return _count


@server.tool()
def environment(of: str = "") -> str:
    """Names the variables of the process, or returns the value of one."""
    return os.environ.get(of, "unset") if of else " ".join(sorted(os.environ))


@server.tool()
def where() -> str:
    return os.getcwd()


@server.tool()
async def slow(ctx: Context[Any], note: str) -> str:
    """Reports progress, then takes long; writes down if it is cancelled."""
    await ctx.report_progress(1, 3, "one of three")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(note).write_text("cancelled")  # noqa: ASYNC240
        raise
    return "done"


@server.tool()
def die(code: int = 3) -> str:
    os._exit(code)


@server.tool()
def large(size: int) -> str:
    return "x" * size


@server.tool()
def fail() -> str:
    raise ToolError("out of paper")


@server.tool()
def picture() -> Image:
    one_pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    return Image(data=base64.b64decode(one_pixel), format="png")


@server.tool()
async def key(ctx: Context[Any]) -> str:
    """Returns the key that came with the call."""
    meta = ctx.request_context.meta or {}
    return str(dict(meta).get("lastgood.dev/idempotency-key"))


@server.tool()
async def book(ctx: Context[Any], city: str) -> Any:
    """Asks for a name and a number of nights, then writes the booking down."""
    given = ctx.input_responses
    if given is None:
        requests: dict[str, Any] = {
            "name": _form("For whom?", name={"type": "string"}),
            "nights": _form("How many nights?", nights={"type": "integer"}),
        }
        return InputRequiredResult(input_requests=requests, request_state=f"room in {city}")
    answers = [one for id in ("name", "nights") if isinstance(one := given[id], ElicitResult)]
    if any(one.action != "accept" for one in answers):
        return "not booked"
    name, nights = ((one.content or {})[id] for one, id in zip(answers, ("name", "nights"), strict=True))
    return f"{ctx.request_state} booked for {name}, {nights} nights"


@server.tool()
async def grow(ctx: Context[Any]) -> str:
    """Adds a tool, and says so."""
    server.add_tool(add, name="extra")
    await ctx.notify_tools_changed()
    return "grown"


def _form(message: str, **properties: Any) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


if __name__ == "__main__":
    how = sys.argv[1]
    if how == "broken":
        print("cannot open the ledger", file=sys.stderr)
        raise SystemExit(4)
    if how == "never":
        time.sleep(600)
    if how == "noisy":
        print("this line is no message", flush=True)
        print("{}", flush=True)
        how = "stdio"
    if how == "stdio":
        server.run("stdio")
    elif how == "sse":
        server.run("sse", port=int(sys.argv[2]))
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
