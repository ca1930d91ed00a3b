"""A server of the revision 2025-06-18 that asks for input while its call runs, and returns what it heard."""

import json
import sys
from typing import Any


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def result(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            about = {"name": "older", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [{"name": "ask_inline", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
            asked = {"message": "Sure?", "requestedSchema": schema}
            send({"id": "ask-1", "method": "elicitation/create", "params": asked})
            while (received := json.loads(sys.stdin.readline())).get("id") != "ask-1":
                pass
            return {"content": [{"type": "text", "text": json.dumps(received)}]}
        case _:
            raise NotImplementedError


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        try:
            send({"id": request["id"], "result": result(request)})
        except NotImplementedError:
            send({"id": request["id"], "error": {"code": -32601, "message": "unknown method"}})
