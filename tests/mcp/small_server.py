"""A server of the revision 2025-06-18 without a library: it starts in a moment, so that many can."""

import json
import os
import sys
from typing import Any

ABOUT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "small", "version": "1"},
    "instructions": "Sums are made with add.",
}
TOOLS = ("add", "count", "die", "environment", "where")
_count = 0


def call(name: str, given: dict[str, Any]) -> str:
    global _count
    match name:
        case "add":
            return str(given["a"] + given["b"])
        case "count":
            _count += 1
            return str(_count)
        case "die":
            os._exit(given.get("code", 3))
        case "environment":
            return " ".join(sorted(os.environ))
        case _:
            return os.getcwd()


def result(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return ABOUT
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        case _:
            asked = message["params"]
            return {"content": [{"type": "text", "text": call(asked["name"], asked["arguments"])}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] in ("initialize", "tools/list", "tools/call"):
        answer = {"result": result(request)}
    else:
        answer = {"error": {"code": -32601, "message": "unknown method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
