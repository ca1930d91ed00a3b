"""A server of the revision 2025-06-18 that answers otherwise than the protocol says.

python odd_server.py HOW: the parts of HOW are joined by commas.
"""

import json
import signal
import sys
import time
from typing import Any

HOW = set(sys.argv[1].split(","))
TOOLS: list[Any] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("plain", "odd", "add")]
_count = 0


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tools(cursor: str | None) -> dict[str, Any]:
    if "bad-item" in HOW:
        return {"tools": [*TOOLS, {"name": 7}]}
    if "blank-name" in HOW:
        return {"tools": [*TOOLS, {"name": "", "inputSchema": {"type": "object"}}]}
    if "not-a-list" in HOW:
        return {"tools": "all of them"}
    if "repeats-cursor" in HOW:
        return {"tools": [], "nextCursor": "again"}
    if "endless" in HOW:
        return {"tools": [], "nextCursor": str(int(cursor or 0) + 1)}
    if "schema" in HOW:
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
        return {"tools": [{**TOOLS[0], "outputSchema": schema}, *TOOLS[1:]]}
    if "large-schema" in HOW:
        large = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 70_000}}}
        return {"tools": [*TOOLS, {"name": "large", "inputSchema": large}]}
    if "deep-schema" in HOW:
        deep: dict[str, Any] = {"type": "string"}
        for _ in range(126):
            deep = {"type": "object", "properties": {"a": deep}}
        huge = {"type": "object", "properties": {"a": {"default": 10**30}}}
        schemas = {"deep": deep, "huge": huge}
        # Long lines are read by a parser that takes deeper ones.
        text = "x" * 100_000
        odd = [{"name": name, "inputSchema": one, "description": text} for name, one in schemas.items()]
        return {"tools": [*TOOLS, *odd]}
    if "much" in HOW:
        about = {"inputSchema": {"type": "object", "title": "x" * 60_000}}
        return {"tools": [{"name": f"tool_{number}", **about} for number in range(40)]}
    return {"tools": TOOLS}


def called(request: dict[str, Any]) -> None:
    global _count
    _count += 1
    text = {"content": [{"type": "text", "text": f"call {_count}"}]}
    if request["params"]["name"] == "plain":
        send({"id": request["id"], "result": {**text, "structuredContent": {"sum": "two"}}})
    elif "bad-content" in HOW:
        send({"id": request["id"], "result": {"content": [{"type": "text"}]}})
    elif "no-object" in HOW:
        send({"id": request["id"], "result": "text"})
    elif "own-error" in HOW:
        send({"id": request["id"], "error": {"code": -32000, "message": "the ledger is locked"}})
    elif "id-last" in HOW:
        large = json.dumps({"content": [{"type": "text", "text": "x" * 34_000_000}]})
        print(f'{{"result": {large}, "jsonrpc": "2.0", "id": {request["id"]}}}', flush=True)
    elif "id-between" in HOW:
        large = json.dumps({"content": [{"type": "text", "text": "x" * 18_000_000}]})
        print(f'{{"a": {large}, "id": {request["id"]}, "result": {large}}}', flush=True)
    elif "progress" in HOW:
        token = request["params"]["_meta"]["progressToken"]
        for number in range(3000):
            notice = {"progressToken": token, "progress": number, "message": "p" * 5000}
            send({"method": "notifications/progress", "params": notice})
        send({"id": request["id"], "result": text})
    elif "changes" in HOW:
        TOOLS.append({"name": f"new_{_count}", "inputSchema": {"type": "object"}})
        send({"method": "notifications/tools/list_changed"})
        send({"id": request["id"], "result": text})


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    match request["method"]:
        case "initialize":
            about = {"name": "odd", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": about}
            send({"id": request["id"], "result": result})
        case "tools/list":
            if "silent" not in HOW:
                send({"id": request["id"], "result": tools((request.get("params") or {}).get("cursor"))})
        case "tools/call":
            called(request)
        case _:
            send({"id": request["id"], "error": {"code": -32601, "message": "unknown method"}})

if "stays" in HOW:  # whatever becomes of whoever started it
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)
