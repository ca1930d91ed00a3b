"""What is known about agents that speak the Agent Client Protocol, beyond the protocol.

The protocol lets an agent ask before a tool call, and does not make it ask. So rules can be enforced only
for an agent that is known here, in a mode in which it asks about every call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lastgood.model.agents import Effect
from lastgood.worker.runtimes.tool_rules import UNKNOWN_TOOL, CliToolCall, KnownTool

_PATH = {"path": "path"}
_SHELL = KnownTool(Effect.UNKNOWN, "shell", {"command": "cmd"})
#: By the protocol's kinds of tools.
_BY_KIND: Mapping[str, KnownTool] = {
    "read": KnownTool(Effect.SAFE, "read_file", _PATH),
    "search": KnownTool(Effect.SAFE, "search_files_content", _PATH),
    "think": KnownTool(Effect.SAFE),
    "fetch": KnownTool(Effect.SAFE, "fetch", {"url": "urls"}),
    "edit": KnownTool(Effect.DESTRUCTIVE, "edit_file", _PATH),
    "delete": KnownTool(Effect.DESTRUCTIVE, "", _PATH),
    "move": KnownTool(Effect.DESTRUCTIVE, "", _PATH),
    "execute": _SHELL,
}
_GOOSE: Mapping[str, KnownTool] = {
    "write": KnownTool(Effect.DESTRUCTIVE, "write_file", _PATH),
    "edit": KnownTool(Effect.DESTRUCTIVE, "edit_file", _PATH),
    "shell": _SHELL,
    "tree": KnownTool(Effect.SAFE, "directory_tree", _PATH),
    "analyze": KnownTool(Effect.SAFE, "read_file", _PATH),
    "read_image": KnownTool(Effect.SAFE, "read_file", _PATH),
}


@dataclass(frozen=True, slots=True)
class AcpPreset:
    """`ask_mode` is the mode in which the agent asks about every call; None: no mode is known to do that.

    `error_answer` matches a last message that is an error of the model in disguise. `weakened_by` returns
    a file of settings that lets tools run unasked.
    """

    provider: str = "acp"
    format: str = "acp-1"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tested: frozenset[str] | None = None
    ask_mode: str | None = None
    free_mode: str | None = None
    steer_method: str | None = None
    error_answer: re.Pattern[str] | None = None
    tool_call: Callable[[dict[str, Any]], CliToolCall] = lambda update: tool_call_by_kind(update)
    weakened_by: Callable[[Mapping[str, str]], Path | None] = lambda environment: None


def tool_call_by_kind(update: dict[str, Any]) -> CliToolCall:
    kind, title = str(update.get("kind") or "other"), str(update.get("title") or "")
    known = _BY_KIND.get(kind, UNKNOWN_TOOL)
    return CliToolCall(str(update.get("toolCallId", "")), kind, update.get("rawInput"), known, title)


def _goose_tool_call(update: dict[str, Any]) -> CliToolCall:
    meta = update.get("_meta")
    goose = meta.get("goose") if isinstance(meta, dict) else None
    named = goose.get("toolCall") if isinstance(goose, dict) else None
    named = named if isinstance(named, dict) else {}
    title = str(update.get("title") or "")
    tool = str(named.get("toolName") or title.partition(" · ")[0])
    extension = named.get("extensionName")
    # A tool of another extension may have the name of a built-in one and do anything.
    known = _GOOSE.get(tool, UNKNOWN_TOOL) if extension == "developer" else UNKNOWN_TOOL
    is_whole = extension in (None, "", "developer") or tool.startswith(f"{extension}__")
    name = tool if is_whole else f"{extension}__{tool}"
    return CliToolCall(str(update.get("toolCallId", "")), name, update.get("rawInput"), known, title)


def _goose_permissions(environment: Mapping[str, str]) -> Path | None:
    """The file in which goose keeps what its user once allowed for always."""
    home = Path(environment.get("HOME", "/"))
    root = environment.get("GOOSE_PATH_ROOT")
    config = (
        Path(root) / "config"
        if root
        else Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "goose"
    )
    file = config / "permission.yaml"
    try:
        return file if _allows_anything(yaml.safe_load(file.read_text())) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, yaml.YAMLError):
        return file  # unreadable for us, and perhaps not for goose


def _allows_anything(value: Any) -> bool:
    sections = value.values() if isinstance(value, dict) else ()
    return any(isinstance(section, dict) and section.get("always_allow") for section in sections)


GOOSE = AcpPreset(
    provider="goose",
    format="goose-sessions",
    arguments=("acp",),
    environment={"GOOSE_TELEMETRY_ENABLED": "false"},
    tested=frozenset({"1.52.0"}),
    ask_mode="approve",
    free_mode="auto",
    steer_method="_goose/unstable/session/steer",
    error_answer=re.compile(
        r"\s*(?:Ran into this error\b.*|Unable to continue: Context limit.*"
        r"|.*Please retry if you think this is a transient or recoverable error\."
        r"|.*resend your message to (?:try again|continue)\.)\s*",
        re.DOTALL,
    ),
    tool_call=_goose_tool_call,
    weakened_by=_goose_permissions,
)
