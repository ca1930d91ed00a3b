"""Decides what an MCP server of an agent file is called, what starts it, and which of them a runtime gets.

A runtime gets names of secrets and never their values: `${TOKEN}` in a variable or a header is filled on the
worker, from what its owner passes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from lastgood.core.egress import shown
from lastgood.model.agents import AgentSpec, ToolsetSpec

DOCKER = "docker:"
NO_OAUTH = "OAuth for MCP servers is not supported yet; send a token in `headers`"
NOT_PASSED_ON = "The MCP server {} of this agent is not available here: {}"
#: Programs that only start the server which their first argument names.
_LAUNCHERS = frozenset({"bunx", "deno", "node", "npx", "pnpx", "python", "python3", "uvx"})
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
_LONGEST_NAME = 32
_NOT_IN_TOOL_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_TOOL_NAME = 64


@dataclass(frozen=True, slots=True)
class RuntimeServers:
    """`servers` as a claim carries them; `disclosures` name the ones that are left out, and why."""

    servers: tuple[dict[str, Any], ...] = ()
    disclosures: tuple[str, ...] = ()


def server_name(options: Mapping[str, Any]) -> str:
    """For people: the given name, else the host, the reference or the program, whatever starts it."""
    if given := str(options.get("name") or ""):
        return given
    if remote := options.get("remote"):
        return shown(str(remote["url"]))
    if ref := options.get("ref"):
        return str(ref)
    words = [str(options.get("command") or "mcp"), *map(str, options.get("args") or ())]
    if _last(words[0]) in _LAUNCHERS:
        words = [word for word in words[1:] if not word.startswith("-")] or words
    return _last(words[0])


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def server_words(options: Mapping[str, Any]) -> list[str]:
    """What starts a server that is no remote one. A `docker:` reference needs `docker`."""
    ref = str(options.get("ref") or "")
    if ref.startswith(DOCKER):
        return ["docker", "mcp", "gateway", "run", "--servers", ref.removeprefix(DOCKER)]
    return [str(options["command"]), *map(str, options.get("args") or ())]


def gateway_config(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what the Docker MCP gateway is configured with, by server. None: there is no `config`."""
    ref, config = str(options.get("ref") or ""), options.get("config")
    return {ref.removeprefix(DOCKER): config} if ref.startswith(DOCKER) and config is not None else None


def tool_name(name: str, prefix: str) -> str:
    """As models may call it: letters, digits, `_` and `-`, at most 64 of them."""
    full = _NOT_IN_TOOL_NAMES.sub("_", f"{prefix}_{name}" if prefix else name)
    if len(full) <= _LONGEST_TOOL_NAME:
        return full
    return f"{full[: _LONGEST_TOOL_NAME - 9]}_{sha256(full.encode()).hexdigest()[:8]}"


def wants_oauth(options: Mapping[str, Any]) -> bool:
    return bool((options.get("remote") or {}).get("oauth"))


def runtime_servers(agent: AgentSpec) -> RuntimeServers:
    servers: list[dict[str, Any]] = []
    notes: list[str] = []
    for toolset in agent.toolsets:
        if toolset.type != "mcp":
            continue
        if refusal := _refusal(toolset):
            notes.append(NOT_PASSED_ON.format(server_name(toolset.options), refusal))
            continue
        name = _unique(_short(server_name(toolset.options)), [one["name"] for one in servers])
        servers.append({"name": name, **_server(toolset)})
    return RuntimeServers(tuple(servers), tuple(notes))


def _refusal(toolset: ToolsetSpec) -> str | None:
    if not toolset.trusted:
        return "the agent file comes from a URL or a registry, and starts nothing on other machines"
    if gateway_config(toolset.options) is not None:
        return "its `config` is for the Docker MCP gateway of the server, and is not passed on yet"
    return NO_OAUTH if wants_oauth(toolset.options) else None


def _server(toolset: ToolsetSpec) -> dict[str, Any]:
    options = toolset.options
    how: dict[str, Any]
    if remote := options.get("remote"):
        how = {
            "url": str(remote["url"]),
            "transport": "sse" if remote.get("transport_type") == "sse" else "streamable",
            "headers": _texts(remote.get("headers")),
        }
    else:
        how = {
            "command": server_words(options),
            "env": _texts(options.get("env")),
            "working_dir": str(options.get("working_dir") or ""),
        }
    prefix = str(options.get("name") or "")
    return {"prefix": prefix, "tools": None if toolset.tools is None else list(toolset.tools), **how}


def _texts(values: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (values or {}).items()}


def _short(name: str) -> str:
    """As every CLI takes it: lower case, digits, `_` and `-`. Two underscores end a name in some of them."""
    plain = re.sub("__+", "_", _NOT_IN_NAMES.sub("-", name.lower())).strip("-_")
    return plain[:_LONGEST_NAME].rstrip("-_") or "mcp"


def _unique(name: str, taken: Sequence[str]) -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
