"""What claude's tools are called in Lastgood, and how its events and our replies are written.

Reads any shape without an exception: a field that is missing or of another type counts as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lastgood.model.agents import Effect
from lastgood.worker.job import JobAnswer, JobUsage
from lastgood.worker.runtimes.tool_rules import KnownTool

_PATH = {"file_path": "path", "notebook_path": "path", "path": "path"}
_READ, _EDIT = KnownTool(Effect.SAFE, "read_file", _PATH), KnownTool(Effect.DESTRUCTIVE, "edit_file", _PATH)
_SEARCH, _OWN = KnownTool(Effect.SAFE, "search_files_content", _PATH), KnownTool(Effect.SAFE)
TOOLS: Mapping[str, KnownTool] = {
    "Read": _READ,
    "NotebookRead": _READ,
    "Glob": _SEARCH,
    "Grep": _SEARCH,
    "LS": KnownTool(Effect.SAFE, "list_directory", _PATH),
    "Write": KnownTool(Effect.DESTRUCTIVE, "write_file", _PATH),
    "Edit": _EDIT,
    "MultiEdit": _EDIT,
    "NotebookEdit": _EDIT,
    "Bash": KnownTool(Effect.UNKNOWN, "shell", {"command": "cmd"}),
    "WebFetch": KnownTool(Effect.SAFE, "fetch", {"url": "urls"}),
    "WebSearch": KnownTool(Effect.SAFE, "fetch"),
    # Claude's own lists, and subagents, whose calls come to the hook one by one.
    **dict.fromkeys(("Task", "Agent", "TodoWrite", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate"), _OWN),
    **dict.fromkeys(("TaskOutput", "BashOutput"), _OWN),
}


def hook_reply(answer: JobAnswer) -> dict[str, Any]:
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "allow" if answer.allowed else "deny"}
    return {"hookSpecificOutput": {**decision, "permissionDecisionReason": answer.reason}}


def tool_reply(answer: JobAnswer, given: Any) -> dict[str, Any]:
    if answer.allowed:
        return {"behavior": "allow", "updatedInput": given}
    return {"behavior": "deny", "message": answer.reason or "Denied"}


def parts_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def texts_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", part)) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def error_text_of(event: dict[str, Any]) -> str:
    errors = event.get("errors")
    listed = [str(error) for error in errors] if isinstance(errors, list) else []
    return "; ".join(filter(None, [str(event.get("result") or ""), *listed]))


def usage_with(usage: JobUsage, event: dict[str, Any]) -> JobUsage:
    """Each turn's tokens are its own; the cost that claude names is that of the whole process."""
    given = event.get("usage")
    counts = {name: n for name, n in given.items() if isinstance(n, int)} if isinstance(given, dict) else {}
    cost = event.get("total_cost_usd")
    read = sum(n for name, n in counts.items() if name.endswith("input_tokens"))
    return JobUsage(
        usage.input_tokens + read,
        usage.output_tokens + counts.get("output_tokens", 0),
        float(cost) if isinstance(cost, int | float) else usage.cost,
    )
