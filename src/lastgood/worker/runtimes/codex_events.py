"""What codex's items and errors say, whatever is missing in them."""

from __future__ import annotations

import shlex
from typing import Any

from lastgood.model.agents import Effect
from lastgood.worker.runtimes.tool_rules import CliToolCall, KnownTool

_COMMAND = KnownTool(Effect.UNKNOWN, "shell", {"command": "cmd"})
_ADD = KnownTool(Effect.DESTRUCTIVE, "write_file", {"paths": "path"})
_CHANGE = KnownTool(Effect.DESTRUCTIVE, "edit_file", {"paths": "path"})
_SEARCH = KnownTool(Effect.SAFE, "fetch")
_VIEW = KnownTool(Effect.SAFE, "read_file")

TOOL_ITEMS = frozenset(
    {"commandExecution", "fileChange", "mcpToolCall", "dynamicToolCall", "collabAgentToolCall", "webSearch"}
    | {"imageView", "imageGeneration"}
)
#: Notifications that say nothing a person would miss.
IGNORED = frozenset(
    {
        *("thread/started", "thread/status/changed", "thread/settings/updated", "thread/name/updated"),
        *("turn/started", "turn/completed", "turn/diff/updated", "turn/plan/updated", "thread/compacted"),
        *("item/agentMessage/delta", "item/plan/delta", "item/reasoning/summaryTextDelta"),
        *("item/reasoning/summaryPartAdded", "item/reasoning/textDelta", "item/mcpToolCall/progress"),
        *("item/commandExecution/outputDelta", "item/commandExecution/terminalInteraction"),
        *("item/fileChange/outputDelta", "item/fileChange/patchUpdated", "serverRequest/resolved"),
        *("account/updated", "account/rateLimits/updated", "warning"),
        *("configWarning", "deprecationNotice", "remoteControl/status/changed", "skills/changed"),
        *(
            "rawResponseItem/completed",
            "rawResponse/completed",
            "thread/read/changed",
            "thread/queue/changed",
        ),
    }
)


def tool_call_of(item: dict[str, Any]) -> CliToolCall | None:
    """Returns None for an item that is no call of a tool."""
    number = str(item.get("id", ""))
    match item.get("type"):
        case "commandExecution":
            command = script_in(str(item.get("command") or ""))
            return CliToolCall(number, "commandExecution", {"command": command}, _COMMAND, title=command)
        case "fileChange":
            changes = [one for one in item.get("changes") or () if isinstance(one, dict)]
            adds = bool(changes) and all(_is_add(one) for one in changes)
            given = {"paths": [str(one.get("path", "")) for one in changes], "changes": changes}
            return CliToolCall(number, "fileChange", given, _ADD if adds else _CHANGE)
        case "mcpToolCall":
            return CliToolCall(number, f"{item.get('server')}__{item.get('tool')}", item.get("arguments"))
        case "webSearch":
            return CliToolCall(number, "webSearch", {"query": item.get("query")}, _SEARCH)
        case "imageView":
            return CliToolCall(number, "imageView", {"path": item.get("path")}, _VIEW)
        case "collabAgentToolCall":  # its own calls are items of their own
            return CliToolCall(number, str(item.get("tool")), {}, KnownTool(Effect.SAFE))
        case str() as kind if kind in TOOL_ITEMS:
            return CliToolCall(number, str(item.get("tool", kind)), item.get("arguments"))
        case _:
            return None


def script_in(command: str) -> str:
    """The script of `/bin/bash -lc '…'`, and anything else as it is: rules are about what was asked for."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if len(words) == 3 and words[0].endswith("sh") and words[1] in ("-c", "-lc"):
        return words[2]
    return command


def output_of_item(item: dict[str, Any]) -> str:
    status = str(item.get("status", ""))
    found = item.get("aggregatedOutput") or item.get("result") or item.get("error") or ""
    return "\n".join(filter(None, (status, str(found))))


def error_of(turn: dict[str, Any]) -> tuple[str, str, int | None]:
    """Returns the message, codex's own code for it, and the HTTP status that the model's provider gave."""
    error = turn.get("error")
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or f"codex ended the turn with the status {turn.get('status')!r}")
    info = error.get("codexErrorInfo")
    if not isinstance(info, dict) or not info:
        return message, str(info or ""), None
    name, detail = next(iter(info.items()))
    status = detail.get("httpStatusCode") if isinstance(detail, dict) else None
    return message, str(name), status if isinstance(status, int) else None


def _is_add(change: dict[str, Any]) -> bool:
    kind = change.get("kind")
    return isinstance(kind, dict) and kind.get("type") == "add"
